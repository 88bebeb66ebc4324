"""The states that a person can name: `lock`, `now`, `@12`, a run, a time, an exported file; each gives its facts.

Always holds: a state is what was recorded or read, under the label that it was asked for by; one of which nothing is
known is an error that says so, never an empty state.
Never: compares, or makes up what nobody observed.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime, timezone
from typing import TYPE_CHECKING

from lockd.errors import LockdError, LookError, UsageError
from lockd.facts import Fact, Facts, Unknown
from lockd.plain import dataclass, replace

if TYPE_CHECKING:
    from lockd.check import Report
    from lockd.lock import Lock
    from lockd.probes import Manifest
    from lockd.session import Session
    from lockd.store import Store

LIMIT = 1 << 28  # bytes of an exported file
WORDS = "lock, now, @N, run:N, run:last, good, a time or an exported file"


_LOCKED: dict[tuple[str, int], Mapping[str, Fact | Unknown]] = {}  # store and generation → the facts of its lock


@dataclass(frozen=True)
class Source:
    """Facts under a label. at: when they were so, where that is known. manifests: the files behind them.

    state: an observed one. base: the generation that it was held against; a fact that was as locked has its files.
    """

    label: str
    facts: Facts
    at: str | None = None
    generation: int | None = None
    state: int | None = None
    base: int | None = None
    manifests: Callable[[], Mapping[str, Manifest]] = dict


def source(word: str, session: Session, look: Callable[[], Report]) -> Source:
    """The state that `word` names. `look` is called for `now` alone."""
    if word == "now":
        sight = look().sight
        return Source("now", sight.facts, manifests=sight.manifests)
    if word == "lock":
        return _of_lock(session)
    if word.startswith("@"):
        return _of_generation(word, session)
    if word == "good" or word.startswith("run:"):
        return _of_run(word, session)
    if os.path.exists(word):
        return _of_file(word)
    if "/" in word or word.endswith(".json"):
        raise UsageError("there is no such file", where=word, hint=f"name {WORDS}")
    return _of_time(word, session)


def manifests(one: Source, session: Session, names: Iterable[str]) -> dict[str, Manifest]:
    """The files behind facts of that state, where they are kept."""
    if one.generation is None and one.state is None:
        behind = one.manifests()
        return {name: behind[name] for name in names if name in behind}
    with _store(session) as store:
        found = ((name, _manifest(store, one, name)) for name in names) if store is not None else ()
        return {name: manifest for name, manifest in found if manifest is not None}


def _manifest(store: Store, one: Source, name: str) -> Manifest | None:
    """Kept with the state, or with the generation under which it was seen, where the fact was as locked."""
    found = None if one.state is None else store.state_manifest(one.state, name)
    if found is not None or one.state is None:
        return found if one.generation is None else store.manifest(one.generation, name)
    if one.base is None or not _same(one.facts.get(name), _locked(store, one.base).get(name)):
        return None
    return store.manifest(one.base, name)


def _locked(store: Store, generation: int) -> Mapping[str, Fact | Unknown]:
    """The facts of a generation's lock, read once."""
    known = _LOCKED.get((store.path, generation))
    if known is None:
        from lockd import lock

        text = store.lock_text(generation)
        known = _LOCKED[store.path, generation] = {} if text is None else lock.parse(text, store.path).facts
    return known


def _same(one: Fact | Unknown | None, other: Fact | Unknown | None) -> bool:
    return isinstance(one, Fact) and isinstance(other, Fact) and one.attributes == other.attributes


def _of_lock(session: Session) -> Source:
    if session.lock is None:
        hint = "lockd accept -m WHY records one, once this state is known to be good"
        raise LookError("no known-good yet", where=session.policy.lock_path, hint=hint)
    lock = session.lock
    with _store(session) as store:
        facts = lock.facts if store is None else _with_entries(lock, store)
    return Source(f"lock (generation {lock.generation})", facts, lock.accepted_at, lock.generation)


def _of_generation(word: str, session: Session) -> Source:
    number = word[1:]
    if not number.isdecimal():
        raise UsageError(f"{word}: a generation is @ and a number", hint=f"name {WORDS}")
    if session.lock is not None and session.lock.generation == int(number):
        return _of_lock(session)
    with _store(session) as store:
        text = None if store is None else store.lock_text(int(number))
        known = [] if store is None else [row.number for row in store.generations()]
        if text is None or store is None:
            hint = f"known here: {', '.join(f'@{one}' for one in known)}" if known else "the state here holds none"
            raise LookError(f"generation {number} is not known here", where=session.policy.path, hint=hint)
        return _parsed(text, store)


def _parsed(text: bytes, store: Store) -> Source:
    from lockd import lock

    found = lock.parse(text, store.path)
    facts = _with_entries(found, store)
    return Source(f"@{found.generation}", facts, found.accepted_at, found.generation)


def _with_entries(lock: Lock, store: Store) -> Facts:
    """The facts of a lock, with the entries of those sets that it leaves to the store."""
    from lockd.lock import LEFT_TO_STORE

    large = [fact.name for fact in lock.facts.known() if LEFT_TO_STORE in fact.told]
    kept = {name: store.entries(lock.generation, name) for name in large}
    return Facts(
        replace(fact, tokens=kept[name]) if isinstance(fact, Fact) and kept.get(name) is not None else fact
        for name, fact in lock.facts.items()
    )


def _of_run(word: str, session: Session) -> Source:
    """What a run started on, the facts of its launch with it."""
    from lockd import runs

    with _store(session) as store:
        if store is None:
            hint = "lockd run -- CMD records one"
            raise LookError(f"{word}: no run is recorded", where=session.policy.path, hint=hint)
        run = runs.resolve(store, word)
        return Source(run.name, runs.facts(store, run), run.start, state=run.state, base=run.generation)


def _of_file(path: str) -> Source:
    from lockd.report.json import imported

    hint = "lockd export --format json > FILE writes one"
    try:
        with open(path, "rb") as file:
            data = file.read(LIMIT + 1)
        if len(data) > LIMIT:
            raise ValueError(f"it is larger than {LIMIT >> 20} MiB")
        document = json.loads(data)
        return Source(path, imported(document), document.get("at"))
    except OSError as error:
        raise LookError(f"could not be read: {error.strerror}", where=path) from None
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise UsageError(f"is no exported file: {error}", where=path, hint=hint) from None


def _of_time(word: str, session: Session) -> Source:
    """What was last recorded up to that time: an observed state or an accepted generation, whichever is later."""
    from lockd.clock import parse_time, stamp

    try:
        wanted = stamp(parse_time(word, datetime.now(timezone.utc)).timestamp())
    except UsageError as error:
        raise UsageError(f"{word!r} names no state", hint=f"name {WORDS}; for a time {error.hint}") from None
    with _store(session) as store:
        found = None if store is None else _recorded(store, wanted, session)
    if found is None:
        raise LookError(
            f"nothing was recorded before {wanted}", where=session.policy.path, hint="lockd log shows what was"
        )
    return found


def _recorded(store: Store, wanted: str, session: Session) -> Source | None:
    from lockd.history import state_facts

    seen = store.sighting(wanted)
    accepted = max((row for row in store.generations() if row.at <= wanted), key=lambda row: row.at, default=None)
    if accepted is not None and (seen is None or accepted.at > seen[0]):
        text = store.lock_text(accepted.number)
        return None if text is None else _parsed(text, store)
    facts = None if seen is None else state_facts(store, seen[1])
    if seen is None or facts is None:
        return None
    base = None if accepted is None else accepted.number
    return Source(f"as seen at {seen[0]}", facts, seen[0], state=seen[1], base=base)


@contextmanager
def _store(session: Session) -> Iterator[Store | None]:
    """The store, closed afterwards; None where this user has none or it cannot be read."""
    from lockd import store

    if session.state is None:
        yield None
        return
    try:
        opened = store.open(session.state.store_path, create=False)
    except LockdError:
        opened = None
    try:
        yield opened
    finally:
        if opened is not None:
            opened.close()
