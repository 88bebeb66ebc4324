"""The timeline: what was seen to drift and to heal, what was accepted, and reading it back.

Always holds: a change of the standing findings is recorded once, whoever looks and however often; a state that changes
and changes back leaves both marks. Where nothing changed neither SQLite is opened nor a byte written. Facts of one
launch (`env:`, `launch:`) differ from shell to shell: they stand in runs, not here.
Never: decides a verdict, or invents when and by whom: `by` is there only where it was observed.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from lockd import atomic
from lockd.clock import parse_time, stamp
from lockd.errors import LockdError
from lockd.facts import LAUNCH_KINDS, Fact, Facts, Unknown, environment_id
from lockd.plain import dataclass, replace

if TYPE_CHECKING:
    from datetime import datetime

    from lockd.check import Report
    from lockd.findings import Finding
    from lockd.probes import Manifest
    from lockd.state import State
    from lockd.store import Logged, Store

__all__ = ["Query", "accepted", "parse_time", "record", "stand", "timeline"]

KINDS = ("accept", "drift", "heal", "launch", "refuse", "override", "note", "restore", "look", "daemon")

_PATIENCE = 1.0  # seconds that a daemon on a busy machine may take for its first word about who made a change
MOST_ENTRIES = 20_000  # of one set that a kept state holds; of a larger one it has the digest
_ENTRIES = "entries:"  # before the name of a fact: the tokens of its set, among the manifests of a state

Standing = Mapping[str, Mapping[str, str]]  # fact → key (what differs), since, message


# -- recording


def record(state: State | None, report: Report) -> None:
    """Put what drifted and healed since the last look into the log.

    Nothing is done without a state, without a lock, or when nothing changed. OSError if it can't be written: that
    changes no verdict, so whoever calls this says it and goes on.
    """
    if state is None or report.lock is None:
        return
    if os.path.exists(state.override_path) or os.path.exists(state.override_over_path):
        from lockd import overrides

        overrides.settle(state, report.findings)
    if state.guest:  # the timeline is the owner's
        return
    keys = {finding.fact: _key(finding) for finding in _lasting(report)}
    text = _read(state.standing_path)
    if text is None and not keys and not os.path.exists(state.store_path):
        return
    if text is not None and keys == _keys(_parse(text)) and _seen(text) == seen_of(report):
        return
    try:
        _write(state, report, report.lock.generation)
    except LockdError as error:  # full, busy, newer
        raise OSError(errno.EIO, str(error), state.store_path) from error


def remember(state: State | None, report: Report, say: Callable[[str], None]) -> None:
    """The same for a look that is about something else: a history that cannot be written is said, no more."""
    try:
        record(None if state is None or state.guest else state, report)
    except OSError as error:
        say(f"the history could not be written: {error.strerror}")


def _write(state: State, report: Report, generation: int) -> None:
    store = state.store(create=True)
    if store is None:
        return
    report = _attributed(report)
    with store:
        with store.transaction():
            body = _record(store, report, generation)
        atomic.write_scratch(state.standing_path, body.encode())


def _attributed(report: Report) -> Report:
    """The report with since when and by whom, as far as a daemon that watches knows it of the very same differences."""
    from lockd import client

    if report.by_daemon or not client.there(report.policy.path):
        return report
    told = client.ask(report.policy.path, {"ask": "writers"}, first=_PATIENCE)
    if told is None:
        return report

    def known(one: Finding) -> Finding:
        mark = told["marks"].get(one.fact)
        return replace(one, since=mark["since"], by=mark["by"]) if mark and mark["key"] == _key(one) else one

    findings, recorded = (tuple(map(known, listed)) for listed in (report.findings, report.recorded))
    return replace(report, findings=findings, recorded=recorded, healed=told["healed"])


def accepted(state: State, store: Store, report: Report) -> None:
    """After an accept: what still differs stands from now on; what was accepted did not heal, it became good."""
    before = _parse(store.standing())
    with store.transaction():
        if _lasting(report):  # the lock alone does not tell what was there
            _keep_state(store, report, stamp())
        body = stand(report, before)
        store.stand(body)
    atomic.write_scratch(state.standing_path, body.encode())


def stand(report: Report, before: Standing) -> str:
    """The standing findings as text, each with the time since which it stands."""
    now = stamp()
    rows = {}
    for finding in _lasting(report):
        old = before.get(finding.fact)
        since = old["since"] if old and old["key"] == _key(finding) else finding.since or now
        rows[finding.fact] = {"key": _key(finding), "since": since, "message": finding.message}
    told = {"schema": 1, "verdict": report.verdict, "environment": report.environment, "seen": seen_of(report)}
    return json.dumps({**told, "findings": rows}, sort_keys=True)


def seen_of(report: Report) -> str:
    """What tells one observed state from another: every pinned fact, entries of sets included, but no launch's.

    Commands are left out, since not every look runs them.
    """
    if not report.policy.command:
        return report.environment_full
    return environment_id(fact for fact in report.sight.facts.values() if fact.kind != "command")


def _record(store: Store, report: Report, generation: int) -> str:
    """Inside the transaction: the store's own copy decides, so that two lookers at once record once."""
    from lockd.store import Event

    text, now = store.standing(), stamp()
    before = _parse(text)
    new = {finding.fact: finding for finding in _lasting(report)}
    moved = [fact for fact, finding in new.items() if before.get(fact, {}).get("key") != _key(finding)]
    gone = [fact for fact in before if fact not in new]
    kept = _keep_state(store, report, now) if moved or gone or _seen(text) != seen_of(report) else None
    for fact in moved:
        finding = new[fact]
        by = dict(finding.by) if finding.by is not None else None
        store.append(Event(finding.since or now, "drift", finding.message, fact, by, generation=generation, state=kept))
    for fact in gone:
        message = f"as locked again; it was: {before[fact]['message']}"
        who = report.healed.get(fact)
        by = None if who is None else dict(who)
        store.append(Event(now, "heal", message, fact, by, generation=generation, state=kept))
    body = stand(report, before)
    store.stand(body)
    return body


def _lasting(report: Report) -> list[Finding]:
    """Findings that do not depend on who looks: those that are judged, and the recorded ones."""
    listed = (*report.findings, *report.recorded)
    return sorted((one for one in listed if one.fact.partition(":")[0] not in LAUNCH_KINDS), key=lambda one: one.fact)


def _key(finding: Finding) -> str:
    """Equal as long as the same thing differs in the same way."""
    what: list[Any] = [finding.change, finding.severity, sorted(finding.attributes.items())]
    return hashlib.sha256(json.dumps(what, default=list).encode()).hexdigest()[:16]


def key_of(finding: Finding) -> str:
    """The key by which the timeline tells one difference of a fact from another."""
    return _key(finding)


def standing(state: State) -> Standing:
    """The findings that stood when somebody last looked, as they are recorded."""
    return _parse(_read(state.standing_path))


def _keep_state(store: Store, report: Report, now: str) -> int:
    """The facts as they were seen, with the manifests of what is not as locked, shared with equal states before."""
    differing = [one.fact for one in _lasting(report)]
    manifests = report.sight.manifests() if differing else {}
    behind = {fact: manifests[fact] for fact in differing if fact in manifests}
    facts = Facts(fact for fact in report.sight.facts.values() if fact.kind not in LAUNCH_KINDS)
    return keep_facts(store, facts, report.environment, now, behind)


def keep_facts(store: Store, facts: Facts, environment: str, at: str, manifests: Mapping[str, Manifest]) -> int:
    """A state as it was seen, inside the transaction, with the manifests behind some facts; equal ones are shared."""
    body, digest = _text_and_digest(facts)
    sets = {f"{_ENTRIES}{fact.name}": dict.fromkeys(fact.tokens or (), "") for fact in facts.known() if _is_set(fact)}
    return store.keep_state(digest, environment, at, body, {**manifests, **sets})


_written: tuple[list[Fact | Unknown], str, str] = ([], "", "")  # the last; a daemon's launches mostly see the same


def _text_and_digest(facts: Facts) -> tuple[str, str]:
    global _written  # replaced as a whole, so that no thread sees half of it
    listed, (known, body, digest) = list(facts.values()), _written
    if not body or known != listed:
        body = facts_text(facts)
        digest = hashlib.sha256(body.encode()).hexdigest()
        _written = (listed, body, digest)
    return body, digest


def _is_set(fact: Fact) -> bool:
    return fact.tokens is not None and len(fact.tokens) <= MOST_ENTRIES


def state_facts(store: Store, state: int, more: Iterable[Mapping[str, Any]] = ()) -> Facts | None:
    """The facts of a kept state, and of more rows of the same form; None where it is not kept."""
    text = store.state_facts(state)
    if text is None:
        return None
    facts = [read_fact(row) for row in (*json.loads(text), *more)]
    kept = store.rows("SELECT fact FROM state_manifests WHERE state = ? AND fact LIKE 'entries:%'", state)
    sets = {fact[len(_ENTRIES) :]: frozenset(store.state_manifest(state, fact) or ()) for (fact,) in kept}
    return Facts(
        replace(fact, tokens=sets[fact.name]) if isinstance(fact, Fact) and fact.name in sets else fact
        for fact in facts
    )


def facts_text(facts: Facts) -> str:
    """All facts as one line of JSON, unknown ones with their reason; entries of sets by their digest only."""
    return json.dumps([fact_row(fact) for fact in facts.values()], sort_keys=True, default=list)


def fact_row(fact: Fact | Unknown) -> dict[str, Any]:
    """One fact of a kept state as plain data; `read_fact` reads it."""
    if isinstance(fact, Fact):
        return {"fact": fact.name, "attributes": dict(fact.attributes), "told": dict(fact.told)}
    return {"fact": fact.name, "unknown": fact.reason}


def read_fact(row: Mapping[str, Any]) -> Fact | Unknown:
    """The fact of a row."""
    kind, _, subject = row["fact"].partition(":")
    if "unknown" in row:
        return Unknown(kind, subject, row["unknown"])
    return Fact(kind, subject, _values(row["attributes"]), _values(row.get("told", {})))


def _values(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: tuple(value) if isinstance(value, list) else value for name, value in values.items()}


def _read(path: str) -> str | None:
    try:
        with open(path, encoding="utf-8") as file:
            return file.read()
    except (FileNotFoundError, UnicodeDecodeError):
        return None


def _parse(text: str | None) -> dict[str, dict[str, str]]:
    """The standing findings; anything that is none of ours counts as none recorded."""
    try:
        rows = json.loads(text or "{}").get("findings", {})
        return {str(fact): {name: str(row[name]) for name in ("key", "since", "message")} for fact, row in rows.items()}
    except (ValueError, AttributeError, KeyError, TypeError):
        return {}


def _seen(text: str | None) -> str | None:
    """The state that was seen last; None where that is not known."""
    try:
        found = json.loads(text or "{}").get("seen")
        return found if isinstance(found, str) else None
    except (ValueError, AttributeError):
        return None


def _keys(standing: Standing) -> dict[str, str]:
    return {fact: row["key"] for fact, row in standing.items()}


# -- reading back


@dataclass(frozen=True)
class Query:
    """Which events: from `since` to `until` (inclusive), of these kinds, about these facts; all if nothing is said."""

    since: datetime | None = None
    until: datetime | None = None
    kinds: tuple[str, ...] = ()
    facts: tuple[str, ...] = ()


def timeline(store: Store, query: Query, *, oldest_first: bool = False) -> Iterator[Logged]:
    """The events of a query, newest first unless asked otherwise."""
    parts, values = ["1"], []  # type: tuple[list[str], list[object]]
    for condition, at in (("at >= ?", query.since), ("at <= ?", query.until)):
        if at is not None:
            parts.append(condition)
            values.append(stamp(at.timestamp()))
    for column, wanted in (("kind", query.kinds), ("fact", query.facts)):
        if wanted:
            parts.append(f"{column} IN ({', '.join('?' * len(wanted))})")
            values.extend(wanted)
    return store.stream(" AND ".join(parts), *values, newest_first=not oldest_first)


def known_facts(store: Store) -> list[str]:
    """Every fact that the log names."""
    return [row[0] for row in store.rows("SELECT DISTINCT fact FROM events WHERE fact IS NOT NULL ORDER BY fact")]
