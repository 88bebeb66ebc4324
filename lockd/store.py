"""The history of one policy in SQLite: generations, per-file manifests, observed states, the log, runs, kept content.

Always holds: a store is built aside and renamed in; a change is one transaction; manifests, states and objects are
shared by what refers to them. A generation is `pending` until its lock lies beside the policy: the rename of the lock
decides, and `settle` finishes or forgets what a killed accept left. A newer store is refused, a corrupt one moved aside
and said: the lock still decides.
Never: decides a verdict, or changes an event.
"""

from __future__ import annotations

import hashlib
import json
import os
import zlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

from lockd import store_file
from lockd.clock import stamp
from lockd.manifests import apply_delta, pack, pack_delta, unpack
from lockd.plain import dataclass
from lockd.store_file import StoreError, spoken

if TYPE_CHECKING:
    import sqlite3

    from lockd.lock import Lock
    from lockd.probes import Manifest

__all__ = ["Event", "Generation", "Logged", "Store", "StoreError", "open", "pack", "unpack"]

GENESIS = ""  # the hash before the first event
_EVENT = "id, at, kind, fact, message, by, run, generation, state, hash, previous_hash"
_SMALL = 4096  # bytes of a packed manifest that is kept whole
_LEVEL = 3  # zlib: digests hardly shrink, names do


class Event(NamedTuple):
    """One entry of the log. at: ISO UTC. by: plain data, or None where nobody was observed."""

    at: str
    kind: str
    message: str
    fact: str | None = None
    by: Mapping[str, Any] | None = None
    run: int | None = None
    generation: int | None = None
    state: int | None = None


@dataclass(frozen=True)
class Logged:
    """An event as it stands in the log, with its number and hash."""

    id: int
    event: Event
    hash: str
    previous_hash: str


class Generation(NamedTuple):
    """One accepted lock as the store knows it."""

    number: int
    digest: str
    at: str
    by: str
    why: str
    environment: str


class Store:
    """An open store. Close it, or use it in a `with`."""

    def __init__(self, path: str, connection: sqlite3.Connection, notices: tuple[str, ...] = ()) -> None:
        self.path, self._connection, self.notices = path, connection, notices
        connection.text_factory = _text

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._connection.close()

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """All of it or nothing, with the write lock taken at once. Nested uses join the outer one."""
        if self._connection.in_transaction:
            yield
            return
        with spoken(self.path):
            self._connection.execute("BEGIN IMMEDIATE")
            try:
                yield
                self._connection.execute("COMMIT")
            except BaseException:
                if self._connection.in_transaction:
                    self._connection.execute("ROLLBACK")
                raise

    def sync_later(self) -> None:
        """Let commits of this connection outlive the process, and the power only from `synced` on."""
        with spoken(self.path):
            self._connection.execute("PRAGMA synchronous = NORMAL")

    def rows(self, query: str, *values: object) -> list[tuple[Any, ...]]:
        """What a query gives, whole."""
        with spoken(self.path):
            return self._connection.execute(query, values).fetchall()

    def change(self, statement: str, *values: object) -> int:
        """One change inside `transaction`; gives the new row's number."""
        with spoken(self.path):
            return self._connection.execute(statement, values).lastrowid or 0

    # -- generations --

    def prepare(
        self,
        lock: Lock,
        text: bytes,
        manifests: Mapping[str, Manifest],
        origin: Mapping[str, Any],
        carried: Iterable[str] = (),
    ) -> None:
        """Put a generation on disk, pending. carried: facts with the files and entries of the generation before."""
        with self.transaction():
            self.change("DELETE FROM generations WHERE digest = ?", lock.digest)
            generation = self._generation(lock, text, origin, pending=True)
            for fact, manifest in manifests.items():
                row = (generation, fact, self._manifest(manifest))
                self.change("INSERT INTO generation_manifests VALUES (?, ?, ?)", *row)
            for fact, tokens in large_sets(lock).items():
                body = zlib.compress("".join(sorted(tokens)).encode("ascii"), _LEVEL)
                self.change("INSERT INTO generation_entries VALUES (?, ?, ?)", generation, fact, body)
            if lock.previous is not None:
                self._carry(generation, lock.previous, carried)

    def _carry(self, generation: int, previous: str, facts: Iterable[str]) -> None:
        """What the generation of that digest has behind some facts stands behind them in this one, too."""
        for table, column in (("generation_manifests", "manifest"), ("generation_entries", "tokens")):
            statement = f"""INSERT OR IGNORE INTO {table} SELECT ?, fact, {column} FROM {table}
                JOIN generations ON generations.id = generation WHERE digest = ? AND fact = ?"""  # noqa: S608
            for fact in facts:
                self.change(statement, generation, previous, fact)

    def settle(self, lock: Lock | None, text: bytes = b"", *, forget: bool = True) -> None:
        """Make the store agree with the lock that lies beside the policy, `lock` with its bytes `text`.

        A pending generation that is this lock was accepted, any other pending one was not. A lock that came from
        elsewhere (git, a copy, an accept on another machine) is taken in without manifests. forget False: leave other
        pending ones, as whoever does not hold the lock between accepts must.
        """
        with self.transaction():
            if lock is not None:
                self._settle_one(lock, text)
            if forget:
                digest = lock.digest if lock else None
                self.change("DELETE FROM generations WHERE pending = 1 AND digest IS NOT ?", digest)

    def _settle_one(self, lock: Lock, text: bytes) -> None:
        known = self.rows("SELECT pending, origin FROM generations WHERE digest = ?", lock.digest)
        if not known:
            self._generation(lock, text, {}, pending=False)
            self.append(
                Event(
                    lock.accepted_at, "accept", f"{accepted(lock)}; taken in from its lock", generation=lock.generation
                )
            )
        elif known[0][0]:
            self.change("UPDATE generations SET pending = 0 WHERE digest = ?", lock.digest)
            by = json.loads(known[0][1])
            self.append(Event(lock.accepted_at, "accept", accepted(lock), by=by, generation=lock.generation))

    def _generation(self, lock: Lock, text: bytes, origin: Mapping[str, Any], *, pending: bool) -> int:
        head = (
            lock.generation,
            lock.digest,
            lock.previous,
            lock.accepted_at,
            lock.by,
            lock.why,
            lock.environment,
            lock.launch,
        )
        row = (*head, zlib.compress(text, _LEVEL), json.dumps(dict(origin)), int(pending))
        columns = "number, digest, previous, at, by, why, environment, launch, lock_text, origin, pending"
        return self.change(f"INSERT INTO generations ({columns}) VALUES ({', '.join('?' * len(row))})", *row)  # noqa: S608

    def generations(self) -> list[Generation]:
        """Every accepted generation, oldest first."""
        query = "SELECT number, digest, at, by, why, environment FROM generations WHERE pending = 0 ORDER BY id"
        return [Generation(*row) for row in self.rows(query)]

    def lock_text(self, number: int) -> bytes | None:
        """The bytes of the lock of generation `number` (the latest, should there be several). None: not known here."""
        query = "SELECT lock_text FROM generations WHERE number = ? AND pending = 0 ORDER BY id DESC LIMIT 1"
        found = self.rows(query, number)
        return zlib.decompress(found[0][0]) if found else None

    def manifest(self, generation: int, fact: str) -> Manifest | None:
        """The per-file manifest of a fact in a generation, None where it is not known here."""
        query = """SELECT manifest FROM generation_manifests JOIN generations ON generations.id = generation
            WHERE number = ? AND fact = ? ORDER BY generations.id DESC LIMIT 1"""
        found = self.rows(query, generation, fact)
        return self._read_manifest(found[0][0]) if found else None

    def entries(self, generation: int, fact: str) -> frozenset[str] | None:
        """The tokens of a set that was too large for the lock, None where they are not known here."""
        query = """SELECT tokens FROM generation_entries JOIN generations ON generations.id = generation
            WHERE number = ? AND fact = ? ORDER BY generations.id DESC LIMIT 1"""
        found = self.rows(query, generation, fact)
        if not found:
            return None
        text = zlib.decompress(found[0][0]).decode("ascii")
        return frozenset(text[start : start + 16] for start in range(0, len(text), 16))

    def _manifest(self, manifest: Manifest, base: str | None = None) -> str:
        """Keep a manifest, by what is other than in its base where that is little. Gives its digest."""
        plain = pack(manifest)
        digest = hashlib.sha256(plain).hexdigest()
        if self.rows("SELECT 1 FROM manifests WHERE digest = ?", digest):
            return digest
        body = zlib.compress(plain, _LEVEL)
        if base is not None and len(body) > _SMALL:
            delta = pack_delta(self._read_manifest(base) or {}, manifest)
            if len(delta) < len(body) // 4:
                self.change("INSERT INTO manifests (digest, body, base) VALUES (?, ?, ?)", digest, delta, base)
                return digest
        self.change("INSERT INTO manifests (digest, body) VALUES (?, ?)", digest, body)
        return digest

    def _read_manifest(self, digest: str) -> Manifest | None:
        found = self.rows("SELECT body, base FROM manifests WHERE digest = ?", digest)
        if not found:
            return None
        body, base = found[0]
        return unpack(body) if base is None else apply_delta(self._read_manifest(base) or {}, body)

    def _base(self, fact: str) -> str | None:
        """The newest whole manifest of a fact, first of a generation: others are kept by what they have otherwise."""
        for table, order in (("generation_manifests", "generation"), ("state_manifests", "state")):
            query = f"""SELECT manifest FROM {table} JOIN manifests ON digest = manifest
                WHERE fact = ? AND base IS NULL ORDER BY {order} DESC LIMIT 1"""  # noqa: S608  our own words
            found = self.rows(query, fact)
            if found:
                return str(found[0][0])
        return None

    # -- the log --

    def append(self, event: Event) -> int:
        """Add an event at the end of the chain; gives its number."""
        with self.transaction():
            last = self.rows("SELECT hash FROM events ORDER BY id DESC LIMIT 1")
            number = self.rows("SELECT coalesce((SELECT seq FROM sqlite_sequence WHERE name = 'events'), 0) + 1")[0][0]
            previous = last[0][0] if last else GENESIS
            by = None if event.by is None else json.dumps(dict(event.by), sort_keys=True)
            fields = (
                number,
                event.at,
                event.kind,
                event.fact,
                event.message,
                by,
                event.run,
                event.generation,
                event.state,
            )
            self.change(
                "INSERT INTO events VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                *fields,
                chained(previous, fields),
                previous,
            )
            return int(number)

    def events(self, where: str = "1", *values: object) -> list[Logged]:
        """Events that an SQL condition of ours selects, oldest first."""
        return list(self.stream(where, *values))

    def stream(self, where: str = "1", *values: object, newest_first: bool = False) -> Iterator[Logged]:
        """The same, one by one as they are read."""
        order = "DESC" if newest_first else "ASC"
        query = f"SELECT {_EVENT} FROM events WHERE {where} ORDER BY id {order}"  # noqa: S608  our own words
        with spoken(self.path):
            yield from map(_logged, self._connection.execute(query, values))

    def check_chain(self) -> int | None:
        """Prove the log: the number of the first entry that was changed, moved or removed; None when all is whole."""
        previous, expected = GENESIS, 1
        for *fields, digest, before in self.rows(f"SELECT {_EVENT} FROM events ORDER BY id"):  # noqa: S608
            foreign = any(isinstance(field, bytes) for field in fields)  # a BLOB that no lockd wrote: it has no hash
            if foreign or fields[0] != expected or before != previous or chained(previous, tuple(fields)) != digest:
                return expected
            previous, expected = digest, expected + 1
        ended = self.rows("SELECT coalesce((SELECT seq FROM sqlite_sequence WHERE name = 'events'), 0)")[0][0]
        return expected if ended >= expected else None

    # -- states and standing --

    def keep_state(self, digest: str, environment: str, at: str, body: str, manifests: Mapping[str, Manifest]) -> int:
        """A state observed at that time, inside `transaction`; an equal one is shared. Gives its number."""
        known = self.rows("SELECT id FROM states WHERE digest = ?", digest)
        if known:
            state = known[0][0]
        else:
            row = (digest, environment, at, zlib.compress(body.encode(), 9))
            state = self.change("INSERT INTO states (digest, environment, at, facts) VALUES (?, ?, ?, ?)", *row)
        for fact, manifest in manifests.items():
            behind = self._manifest(manifest, self._base(fact))
            self.change("INSERT OR REPLACE INTO state_manifests VALUES (?, ?, ?)", state, fact, behind)
        last = self.rows("SELECT state FROM sightings ORDER BY id DESC LIMIT 1")
        if last != [(state,)]:
            self.change("INSERT INTO sightings (at, state) VALUES (?, ?)", at, state)
        return int(state)

    def sighting(self, until: str) -> tuple[str, int] | None:
        """When a state was seen last, no later than `until`, and its number."""
        found = self.rows("SELECT at, state FROM sightings WHERE at <= ? ORDER BY at DESC, id DESC LIMIT 1", until)
        return (str(found[0][0]), int(found[0][1])) if found else None

    def state_facts(self, state: int) -> str | None:
        """The facts of an observed state as `history` wrote them."""
        found = self.rows("SELECT facts FROM states WHERE id = ?", state)
        return zlib.decompress(found[0][0]).decode() if found else None

    def state_manifest(self, state: int, fact: str) -> Manifest | None:
        """The per-file manifest of a fact in an observed state; None where none was kept with it."""
        found = self.rows("SELECT manifest FROM state_manifests WHERE state = ? AND fact = ?", state, fact)
        return self._read_manifest(found[0][0]) if found else None

    def standing(self) -> str | None:
        """The last recorded set of findings, as `history` wrote it."""
        found = self.rows("SELECT body FROM standing")
        return str(found[0][0]) if found else None

    def stand(self, body: str) -> None:
        """Replace the recorded set of findings."""
        self.change("INSERT OR REPLACE INTO standing VALUES (1, ?)", body)


def open(path: str, *, create: bool = True, thorough: bool = False) -> Store | None:  # reads as store.open
    """Open the store of a state folder. None: there is none, and none was to be made.

    A corrupt one is moved aside and said in `notices`, or refused where nothing may be made. thorough: read every page.
    """
    opened = store_file.connect(path, create=create, thorough=thorough)
    if opened is None:
        return None
    store = Store(path, *opened)
    for notice in store.notices:
        store.append(Event(stamp(), "note", notice))
    return store


def synced(path: str) -> None:
    """Put on the disk what was committed before, by whichever connection. OSError where the disk does not take it."""
    try:
        descriptor = os.open(f"{path}-wal", os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    except FileNotFoundError:  # all of it was moved into the store itself, which is synced then
        return
    try:
        os.fdatasync(descriptor)
    finally:
        os.close(descriptor)


def large_sets(lock: Lock) -> dict[str, frozenset[str]]:
    """The sets whose entries the lock leaves to the store."""
    from lockd.lock import ENTRIES

    sets = {fact.name: fact.tokens for fact in lock.facts.known() if fact.tokens is not None}
    return {name: tokens for name, tokens in sets.items() if len(tokens) > ENTRIES}


def accepted(lock: Lock) -> str:
    """The log's line about an accept."""
    return f"generation {lock.generation} accepted: {lock.why}"


def chained(previous: str, fields: tuple[Any, ...]) -> str:
    """The hash that binds an event's fields to the hash before."""
    return hashlib.sha256(json.dumps([previous, *fields]).encode()).hexdigest()


def _text(raw: bytes) -> str:
    """Text of the file; bytes that are not UTF-8 (a hand, a bad disk) stay apart from any text: the hash tells."""
    return raw.decode("utf-8", "surrogateescape")


def _shown(field: Any) -> Any:
    """A field as it can be printed: bytes that are no text escaped."""
    raw = field.encode("utf-8", "surrogateescape") if isinstance(field, str) and not field.isascii() else field
    return raw.decode("utf-8", "backslashreplace") if isinstance(raw, bytes) else field


def _logged(row: tuple[Any, ...]) -> Logged:
    number, *rest = map(_shown, row)
    at, kind, fact, message, by, run, generation, state, digest, previous = rest
    event = Event(at, kind, message, fact, None if by is None else _who(by), run, generation, state)
    return Logged(number, event, digest, previous)


def _who(text: str) -> Mapping[str, Any]:
    """Who an entry names; of an entry that was changed by hand, that it could not be read."""
    try:
        by = json.loads(text)
    except (ValueError, RecursionError):
        by = None
    if isinstance(by, dict):
        return by
    return {"confidence": "not observed", "reason": "the entry was changed: lockd log --check", "text": text[:200]}
