"""Free what nothing refers to: manifests without a generation or state, kept content without a generation or restore.

Always holds: rows first, in one transaction, then files; a file whose row is gone is freed by the next run. Accepted
generations, observed states and the log stay. With a number of generations to keep, what older ones kept goes, and what
older restores replaced; the lock's own generation, those of runs that still go or are noted as good, and the last
restore always stay whole.
Never: frees what those need to be put back or taken back, or runs beside an accept or a restore.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from lockd import store_reading
from lockd.store_file import StoreError

if TYPE_CHECKING:
    from lockd.journal import Journal
    from lockd.state import State
    from lockd.store import Store

_MANIFESTS = """digest NOT IN (SELECT manifest FROM generation_manifests)
    AND digest NOT IN (SELECT manifest FROM state_manifests)
    AND digest NOT IN (SELECT base FROM manifests WHERE base IS NOT NULL)"""


class Freed(NamedTuple):
    """What was, or would be, freed."""

    manifests: int = 0
    objects: int = 0
    bytes: int = 0


def collect(state: State, *, dry_run: bool, keep: int | None = None, lock: str = "") -> Freed:
    """Free what is unreferenced in one state folder.

    keep: of how many generations, the newest ones, kept content stays; None: of all. lock: the digest of the lock that
    lies beside the policy, whose generation stays in any case.
    """
    if not dry_run and _is_full(state):
        _empty_cache(state)
        if _is_full(state):
            hint = "lockd has emptied its cache, that was not enough: make room by other means, then run this again"
            raise StoreError(
                "the disk is full, and to free any of the history takes a little room", where=state.folder, hint=hint
            )
    return _collect(state, dry_run, keep, lock)


def _is_full(state: State) -> bool:
    return store_reading.obstacle(state.folder)[0] == store_reading.FULL


def _empty_cache(state: State) -> None:
    """SQLite needs room to free any: what only saves the next look time goes."""
    import shutil

    for name in os.listdir(state.cache_dir):
        path = os.path.join(state.cache_dir, name)
        if os.path.isdir(path) and not os.path.islink(path):
            shutil.rmtree(path)
        else:
            os.unlink(path)


def _collect(state: State, dry_run: bool, keep: int | None, lock: str) -> Freed:
    from contextlib import nullcontext

    from lockd import accept_record

    store = state.store()
    if store is None:
        return Freed()
    may_write = os.access(state.folder, os.W_OK)  # on a read-only disk there is nobody to count beside
    with store, accept_record.alone(state, lambda _: None) if may_write or not dry_run else nullcontext():
        old = _old_generations(store, keep, lock)
        needed = _needed(state, store, old, last_only=keep is not None)
        freed = _count(store, needed)
        strays = list(_strays(state, needed))
        if dry_run:
            return freed._replace(objects=len(strays))
        with store.transaction():
            for number in old:
                store.change("DELETE FROM generation_objects WHERE generation = ?", number)
            store.change(f"DELETE FROM manifests WHERE {_MANIFESTS}")  # noqa: S608  our own words
            for digest in _free_rows(store, needed):
                store.change("DELETE FROM objects WHERE digest = ?", digest)
        _forget_restores(state, last_only=keep is not None)
        for path in strays:
            os.unlink(path)
        if freed.manifests:
            store.rows("VACUUM")
        return freed._replace(objects=len(strays))


def _old_generations(store: Store, keep: int | None, lock: str) -> list[int]:
    if keep is None:
        return []
    rows = store.rows("SELECT id, number, digest FROM generations WHERE pending = 0 ORDER BY id DESC")
    wanted = _wanted_by_runs(store)
    return [row for row, number, digest in rows[max(keep, 1) :] if digest != lock and number not in wanted]


def _wanted_by_runs(store: Store) -> set[int]:
    """The generations that good runs started under, which are to be gone back to, and those of runs that still go."""
    from lockd import runs

    return {
        run.generation
        for run in runs.listed(store)
        if run.generation is not None and (run.notes.get("good") is True or (run.end is None and runs.living(run)))
    }


def _needed(state: State, store: Store, old: list[int], *, last_only: bool) -> set[str]:
    """The digests that a generation or a restore refers to."""
    from lockd import journal as restores
    from lockd import keep

    needed = set(keep.referenced(store, without=old))
    for journal in _standing_restores(state, last_only=last_only):
        needed.add(journal.rows)
        needed.update(row.content for row in restores.rows_of(store, journal) if row.kind == "f")
    return needed


def _standing_restores(state: State, *, last_only: bool) -> list[Journal]:
    from lockd import journal as restores

    journals = restores.every(state)
    return journals[-1:] if last_only else journals


def _forget_restores(state: State, *, last_only: bool) -> None:
    from lockd import journal as restores

    if last_only:
        for journal in restores.every(state)[:-1]:
            restores.forget(state, journal)


def _free_rows(store: Store, needed: set[str]) -> list[str]:
    return [digest for (digest,) in store.rows("SELECT digest FROM objects") if digest not in needed]


def _count(store: Store, needed: set[str]) -> Freed:
    manifests = f"SELECT count(*), coalesce(sum(length(body)), 0) FROM manifests WHERE {_MANIFESTS}"  # noqa: S608
    (rows, size) = store.rows(manifests)[0]
    stored = dict(store.rows("SELECT digest, stored FROM objects"))
    free = [digest for digest in stored if digest not in needed]
    return Freed(rows, len(free), size + sum(stored[digest] for digest in free))


def _strays(state: State, needed: set[str]) -> Iterator[str]:
    """Files of kept content that nobody needs."""
    for folder, folders, files in os.walk(state.objects_dir):
        folders.sort()
        yield from (os.path.join(folder, name) for name in sorted(files) if name not in needed)
