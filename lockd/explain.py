"""What the store adds to a difference: how many files changed, and their names.

Always holds: numbers come from the manifests of the lock's own generation and of this look; a store that is not
there, or cannot be read, explains nothing, and changes no difference.
Never: decides anything.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from lockd.compare import file_changes
from lockd.errors import LockdError
from lockd.facts import Fact
from lockd.findings import Difference, FileChanges
from lockd.look import Sight
from lockd.plain import replace
from lockd.probes import Manifest

if TYPE_CHECKING:
    from lockd.lock import Lock
    from lockd.state import State
    from lockd.store import Store


def explain(differences: tuple[Difference, ...], sight: Sight, state: State, lock: Lock) -> tuple[Difference, ...]:
    """Count and name the files behind changed facts, from the manifests of the lock's generation and of this look."""
    changed = [one for one in differences if one.change == "changed" and "lock" in one.against]
    if not changed:
        return differences
    new = sight.manifests()
    old = dict(_kept_manifests(state, lock, [one.name for one in changed if one.name in new]))
    counted = {name: _counted(name, manifest, new[name], differences) for name, manifest in old.items()}
    return tuple(replace(one, files=counted.get(one.name)) for one in differences)


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
