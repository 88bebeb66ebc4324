"""Which files are behind a difference, asked once: looks come many a second, differences stay.

Always holds: what is remembered is of the very same locked and found fact under the very same lock; manifests are made
here, in the thread that owns the Disk, and plain data from then on, for the history's thread.
Never: decides anything.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from lockd.explain import explain
from lockd.plain import replace

if TYPE_CHECKING:
    from lockd.findings import Difference, FileChanges
    from lockd.lock import Lock
    from lockd.look import Sight
    from lockd.probes import Manifest
    from lockd.state import State


class _Known(NamedTuple):
    key: Any
    files: FileChanges | None
    manifest: Manifest | None
    because: str | None
    left: tuple[str, ...]


class Explainer:
    """Used by the deciding thread alone."""

    def __init__(self) -> None:
        self._known: dict[str, _Known] = {}
        self._linked: list[tuple[str, Any]] = []

    def __call__(
        self, differences: tuple[Difference, ...], sight: Sight, state: State, lock: Lock
    ) -> tuple[Difference, ...]:
        """The differences with their files, as `explain.explain` gives them."""
        new = tuple(one for one in differences if not self._holds(one, lock))
        linked = [one for one in differences if _may_be_left(one)]  # a package that is gone and its files
        keys = [(one.name, _key(one, lock)) for one in linked]
        if keys != self._linked:  # they explain each other: one that came or went moves what is said of the others
            new = (*(one for one in new if not _may_be_left(one)), *linked)
        self._linked = keys
        if new:
            manifests = sight.manifests()
            for one in explain(new, sight, state, lock):
                self._known[one.name] = _Known(
                    _key(one, lock), one.files, manifests.get(one.name), one.because, one.left
                )
        return tuple(self._told(one) for one in differences)

    def _told(self, one: Difference) -> Difference:
        known = self._known[one.name]
        if not _may_be_left(one):
            return replace(one, files=known.files)
        return replace(one, files=known.files, because=known.because, left=known.left)

    def plain(self, sight: Sight, differences: tuple[Difference, ...]) -> Sight:
        """The sight with the manifests of what differs, and no others."""
        names = {one.name for one in differences}
        self._known = {name: known for name, known in self._known.items() if name in names}
        made = {name: known.manifest for name, known in self._known.items() if known.manifest is not None}
        return replace(sight, manifests=lambda: made)

    def _holds(self, one: Difference, lock: Lock) -> bool:
        known = self._known.get(one.name)
        return known is not None and known.key == _key(one, lock)


def _key(one: Difference, lock: Lock) -> Any:
    return lock.digest, one.change, one.against, one.expected, one.found


def _may_be_left(one: Difference) -> bool:
    return one.name.startswith("unowned:") or (one.name.startswith("package:") and one.change == "missing")


def unexplained(differences: tuple[Difference, ...], *_: object) -> tuple[Difference, ...]:
    """For the first word: what differs, without its files."""
    return differences
