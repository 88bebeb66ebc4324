"""What the store adds to a difference: how many files changed, and their names.

Always holds: numbers come from the manifests of the lock's own generation and of this look; a store that is not
there, or cannot be read, explains nothing, and changes no difference. Files of nobody that all were those of a
package which is gone, as they were, bear it as their cause; both stay differences, so no severity is lost.
Never: decides anything.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from lockd.compare import file_changes
from lockd.errors import LockdError
from lockd.facts import Fact, shown
from lockd.findings import Difference, FileChanges
from lockd.look import Sight
from lockd.plain import replace
from lockd.probes import Manifest

if TYPE_CHECKING:
    from lockd.lock import Lock
    from lockd.state import State
    from lockd.store import Store

_NAMED = 3  # files left by a removal that its line names


def explain(differences: tuple[Difference, ...], sight: Sight, state: State, lock: Lock) -> tuple[Difference, ...]:
    """Count and name the files behind changed facts, from the manifests of the lock's generation and of this look."""
    changed = [one for one in differences if one.change == "changed" and "lock" in one.against]
    if not changed:
        return differences
    new = sight.manifests()
    old = dict(_kept_manifests(state, lock, [one.name for one in changed if one.name in new]))
    counted = {name: _counted(name, manifest, new[name], differences) for name, manifest in old.items()}
    told = tuple(replace(one, files=counted.get(one.name)) for one in differences)
    for one in told:
        if one.name.startswith("unowned:") and one.files and one.files.added == one.files.total:
            came = {path: word for path, word in new[one.name].items() if path not in old[one.name]}
            told = _left_behind(told, one, came, state, lock)
    return told


def _left_behind(
    differences: tuple[Difference, ...], loose: Difference, came: Manifest, state: State, lock: Lock
) -> tuple[Difference, ...]:
    """Files that belong to nobody, because the metadata alone of their package was removed."""
    of = f"package:{loose.name.partition(':')[2]}/"
    gone = [one.name for one in differences if one.name.startswith(of) and one.change == "missing"]
    owners: dict[str, int] = {}
    left = dict(came)
    for name, manifest in _kept_manifests(state, lock, gone):
        for path, word in manifest.items():  # a conda record's paths are relative to the prefix, not to site-packages
            place = path if path in left else path.partition("/site-packages/")[2]
            if left.get(place) == word:
                del left[place]
                owners[name] = owners.get(name, 0) + 1
    if left or not owners:
        return differences
    cause = min(owners, key=lambda name: (-owners[name], name))
    names = tuple(map(shown, sorted(came)))
    said = {name: names if len(came) <= _NAMED and len(owners) == 1 else (_files(owners[name]),) for name in owners}
    folded = {one.name: replace(one, left=said[one.name]) for one in differences if one.name in said}
    return tuple(
        replace(one, because=cause) if one.name == loose.name else folded.get(one.name, one) for one in differences
    )


def _files(count: int) -> str:
    return f"{count} file{'' if count == 1 else 's'}"


def _counted(name: str, old: Manifest, new: Manifest, differences: Iterable[Difference]) -> FileChanges | None:
    one = next(difference for difference in differences if difference.name == name)
    grow = isinstance(one.found, Fact) and one.found.tokens is not None
    changes = file_changes(old, new, grow=grow)
    return changes if changes.total else None


def _kept_manifests(state: State, lock: Lock, names: Iterable[str]) -> Iterator[tuple[str, Manifest]]:
    """Those of the lock's own generation; a store that cannot be read explains nothing."""
    from lockd import store

    try:
        with _closing(store.open(state.store_path, create=False)) as kept:
            for name in names if kept is not None else ():
                manifest = kept.manifest(lock.generation, name) if kept is not None else None
                if manifest is not None:
                    yield name, manifest
    except (LockdError, OSError):
        return


@contextmanager
def _closing(kept: Store | None) -> Iterator[Store | None]:
    try:
        yield kept
    finally:
        if kept is not None:
            kept.close()


def kept_entries(state: State, lock: Lock, names: Iterable[str]) -> dict[str, frozenset[str]]:
    """The entries of sets that were too large for the lock, as far as the store has them."""
    from lockd import store

    try:
        with _closing(store.open(state.store_path, create=False)) as kept:
            entries = {name: kept.entries(lock.generation, name) for name in names} if kept is not None else {}
    except (LockdError, OSError):
        return {}
    return {name: tokens for name, tokens in entries.items() if tokens is not None}
