"""Free what nothing refers to: manifests without a generation or state, kept content without a generation.

Always holds: rows first, in one transaction, then files; a file whose row is gone is freed by the next run. Accepted
generations, observed states and the log stay.
Never: frees what a generation needs to be put back, or runs beside an accept.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from lockd.state import State
    from lockd.store import Store

_MANIFESTS = """digest NOT IN (SELECT manifest FROM generation_manifests)
    AND digest NOT IN (SELECT manifest FROM state_manifests)"""
_OBJECTS = "digest NOT IN (SELECT object FROM generation_objects)"


class Freed(NamedTuple):
    """What was, or would be, freed."""

    manifests: int = 0
    objects: int = 0
    bytes: int = 0


def collect(state: State, *, dry_run: bool) -> Freed:
    """Free what is unreferenced in one state folder."""
    from lockd import accept_record

    store = state.store()
    if store is None:
        return Freed()
    with store, accept_record.alone(state, lambda _: None):
        freed = _count(store)
        if dry_run:
            return freed._replace(objects=freed.objects + len(list(_strays(state, store))))
        with store.transaction():
            store.change(f"DELETE FROM manifests WHERE {_MANIFESTS}")  # noqa: S608  our own words
            store.change(f"DELETE FROM objects WHERE {_OBJECTS}")  # noqa: S608
        strays = list(_strays(state, store))
        for path in strays:
            os.unlink(path)
        if freed.manifests:
            store.rows("VACUUM")
        return freed._replace(objects=len(strays))


def _count(store: Store) -> Freed:
    manifests = f"SELECT count(*), coalesce(sum(length(body)), 0) FROM manifests WHERE {_MANIFESTS}"  # noqa: S608
    objects = f"SELECT count(*), coalesce(sum(stored), 0) FROM objects WHERE {_OBJECTS}"  # noqa: S608
    (rows, size), (kept, stored) = store.rows(manifests)[0], store.rows(objects)[0]
    return Freed(rows, kept, size + stored)


def _strays(state: State, store: Store) -> Iterator[str]:
    """Files of kept content that no row knows."""
    known = {row[0] for row in store.rows("SELECT digest FROM objects")}
    for folder, folders, files in os.walk(state.objects_dir):
        folders.sort()
        yield from (os.path.join(folder, name) for name in sorted(files) if name not in known)
