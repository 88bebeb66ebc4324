"""What is kept of a known-good state: for each fact the rows of its files, and their contents as objects.

Always holds: what is kept is what the accept saw; a file that changed meanwhile refuses the accept. A fact's rows are
an object too, to which the generation refers; generations share what did not change. Everything is on disk before the
lock is, and nothing of it stays when the accept does not happen.
Never: keeps what no rule asks for (start-up code of an environment aside, which is tiny), or shows a text to anybody.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, NamedTuple

from lockd import objects, place
from lockd.errors import LookError, RefusedError
from lockd.facts import shown
from lockd.objects import Keeping
from lockd.place import FILE, LINK, Folders, Row

if TYPE_CHECKING:
    from lockd.lock import Lock
    from lockd.look import Sight
    from lockd.store import Store

_META = "rows"  # what the object of a row of generation_objects is
_AGAIN = "wait for what writes it, and run it again"
LONGEST_TEXT = 1 << 20  # bytes of a file that `text_of` gives


class Wanted(NamedTuple):
    """A path to keep. digest: the sha256 that the look saw; "": whatever it is, as long as it holds still.

    read_through: of a link to a file, keep what it leads to, as a file (an installer's cache may go away).
    """

    path: str
    digest: str = ""
    read_through: bool = False


class Kept(NamedTuple):
    """What an accept keeps: fact → the object with its rows."""

    facts: Mapping[str, str]
    keeping: Keeping


def gather(
    keeping: Keeping,
    store: Store,
    sight: Sight,
    lock: Lock,
    chosen: frozenset[str],
    before: Lock | None,
    say: Callable[[int, int], None] | None = None,
) -> Kept:
    """Put into the store what the rules want kept of a lock that is about to be accepted.

    Facts that were not chosen keep what the lock before kept of them. say: bytes done, bytes in all.
    """
    from lockd.keep_paths import wanted

    facts = (
        {}
        if before is None
        else {fact: one for fact, one in _kept(store, before) if fact.partition("#")[0] not in chosen}
    )
    listed = list(wanted(sight, lock, chosen))
    done, total = 0, sum(_size(one.path) for _, paths in listed for one in paths) if say is not None else 0
    with Folders() as folders:
        for fact, paths in listed:
            rows = []
            for one in paths:
                rows.append(keep_path(keeping, folders, one))
                done += rows[-1].size
                if say is not None:
                    say(done, max(done, total))
            facts[fact] = keeping.add_bytes(pack(rows))
    keeping.finish()
    return Kept({fact: digest for fact, digest in facts.items() if fact.partition("#")[0] in lock.facts}, keeping)


def _size(path: str) -> int:
    try:
        return os.lstat(path).st_size
    except OSError:
        return 0


def attach(store: Store, lock: Lock, kept: Kept) -> None:
    """Bind what is kept to the generation of a lock, inside the transaction that prepares it."""
    kept.keeping.record()
    (number,) = store.rows("SELECT id FROM generations WHERE digest = ?", lock.digest)[0]
    for fact, digest in kept.facts.items():
        row = (number, fact, fact, digest, _META)
        store.change("INSERT OR REPLACE INTO generation_objects VALUES (?, ?, ?, ?, ?)", *row)


def keep_path(keeping: Keeping, folders: Folders, one: Wanted) -> Row:
    """Keep what is at a path; gives its row. RefusedError where it is not what was seen."""
    try:
        row, _ = place.look(folders, one.path)
        if row.kind == LINK and one.read_through and os.path.isfile(one.path):
            inner = keep_path(keeping, folders, Wanted(os.path.realpath(one.path), one.digest))
            return inner._replace(path=one.path)
        if row.kind != FILE:
            if one.digest:
                raise RefusedError("it went while it was being kept", where=shown(one.path), hint=_AGAIN)
            return row
        descriptor = place.open_file(folders, one.path)
        try:
            return _kept_file(keeping, descriptor, one)
        finally:
            os.close(descriptor)
    except OSError as error:
        raise LookError(f"could not be kept: {error.strerror}", where=shown(one.path)) from error


def _kept_file(keeping: Keeping, descriptor: int, one: Wanted) -> Row:
    for _ in range(3):
        before = os.fstat(descriptor)
        digest = one.digest if one.digest and keeping.known(one.digest) else keeping.add(descriptor)
        if one.digest and digest != one.digest:
            break
        after = os.fstat(descriptor)
        if (before.st_size, before.st_mtime_ns, before.st_ctime_ns) == (
            after.st_size,
            after.st_mtime_ns,
            after.st_ctime_ns,
        ):
            return place.row_of(one.path, after, digest)
        os.lseek(descriptor, 0, os.SEEK_SET)
    raise RefusedError("it changes while it is being kept", where=shown(one.path), hint=_AGAIN)


# -- reading back


def rows_of(store: Store, generation: int, fact: str) -> list[Row] | None:
    """What is kept of a fact in a generation (the latest of that number); None: nothing."""
    query = """SELECT object FROM generation_objects JOIN generations ON generations.id = generation
        WHERE number = ? AND fact = ? AND pending = 0 ORDER BY generations.id DESC LIMIT 1"""
    found = store.rows(query, generation, fact)
    return unpack(objects.whole(store, found[0][0])) if found else None


def text_of(store: Store, generation: int, fact: str) -> str | None:
    """The text of a kept file; None: it is not kept, no text, or too long. For the policy's owner only."""
    rows = rows_of(store, generation, fact) or []
    row = next((row for row in rows if row.kind == FILE), None)
    if not fact.startswith("file:") or row is None or row.size > LONGEST_TEXT:
        return None
    data = objects.whole(store, row.content)
    return None if b"\0" in data else data.decode("utf-8", "backslashreplace")


def referenced(store: Store, without: Iterable[int] = ()) -> Iterator[str]:
    """The digest of every object that a generation needs; the generations with the row numbers `without` aside."""
    left_out = frozenset(without)
    rows = store.rows("SELECT generation, object FROM generation_objects")
    for digest in {digest for generation, digest in rows if generation not in left_out}:
        yield digest
        yield from (row.content for row in unpack(objects.whole(store, digest)) if row.kind == FILE)


def _kept(store: Store, lock: Lock) -> Iterable[tuple[str, str]]:
    query = """SELECT fact, object FROM generation_objects JOIN generations ON generations.id = generation
        WHERE digest = ?"""
    return ((fact, digest) for fact, digest in store.rows(query, lock.digest))


def pack(rows: Iterable[Row]) -> bytes:
    """Rows as bytes, sorted by path; JSON keeps any name (surrogates as escapes)."""
    return json.dumps(sorted(map(list, rows)), separators=(",", ":")).encode("ascii")


def unpack(data: bytes) -> list[Row]:
    """The rows that `pack` wrote."""
    return [Row(*row) for row in json.loads(data)]
