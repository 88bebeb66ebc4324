"""When a difference came about and by whom, as far as the log tells; and the times of which nobody can tell.

Always holds: a date is that of an event about the very fact, between the two states. Where no daemon watched, the event
is dated by the look that found it, and the time since the look before is said. A gap starts with the last sign of life
of one daemon and ends with the start of the next, or with the end of the time that is asked about.
Never: guesses, or calls a time watched because it was quiet.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime
from itertools import islice
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

from lockd import lineage
from lockd.clock import since_boot
from lockd.findings import Finding
from lockd.plain import replace

if TYPE_CHECKING:
    from lockd.store import Event, Logged, Store

_PID = re.compile(r"started: .*\bpid (\d+)")
EARLIER = 20  # changes of one fact that are told besides its last
_SLACK = 2.0  # seconds between a process's start and its event


class Span(NamedTuple):
    """From one time to another, ISO UTC."""

    start: str
    end: str


class Launched(NamedTuple):
    """The first run that was started so, and the last before it that was not; "" where none is known."""

    first: str
    before: str = ""
    before_at: str = ""


class Evidence(NamedTuple):
    """Findings with `since` and `by`; fact → the time within which it changed unwatched; gaps in the watching.

    earlier: fact → the changes before the last one that led to the difference as well, newest first, at most EARLIER.
    launches: fact of a launch → since which run it is so (`launch_evidence`).
    """

    findings: tuple[Finding, ...]
    unwatched: Mapping[str, Span]
    gaps: tuple[Span, ...]
    earlier: Mapping[str, tuple[Event, ...]] = MappingProxyType({})
    launches: Mapping[str, Launched] = MappingProxyType({})


Alive = Callable[[int, str], bool]  # pid, when it said that it started → does that process still run?


def of(store: Store, findings: Iterable[Finding], start: str, end: str, alive: Alive | None = None) -> Evidence:
    """What the log tells of the differences between two times."""
    covered = list(watched(store, end, alive or _alive))
    listed = tuple(findings)
    events = _drifts(store, [one.fact for one in listed], start, end)
    dated = tuple(_dated(one, events.get(one.fact)) for one in listed)
    unwatched = {
        one.fact: Span(max(start, _before(store, covered, event)), event.event.at)
        for one in listed
        if (event := events.get(one.fact)) is not None and not _within(covered, event.event.at)
    }
    earlier = {fact: tuple(_earlier(store, fact, start, entry)) for fact, entry in events.items()}
    told = {fact: found for fact, found in earlier.items() if found}
    return Evidence(dated, unwatched, tuple(gaps(covered, start, end)), told)


def watched(store: Store, until: str, alive: Alive) -> Iterator[Span]:
    """The times at which a daemon watched, up to `until`, oldest first."""
    opened: str | None = None
    pid, last = 0, ""
    for entry in store.stream("kind IN ('daemon', 'look') AND at <= ?", until):
        message, at = entry.event.message, entry.event.at
        begins = _PID.match(message) if entry.event.kind == "daemon" else None
        if begins:
            if opened is not None:  # killed: it was there at its last word, no longer is known
                yield Span(opened, last)
            opened, pid = at, int(begins[1])
        elif opened is not None and entry.event.kind == "daemon" and message.startswith("stopped"):
            yield Span(opened, at)
            opened = None
        last = at
    if opened is not None:
        yield Span(opened, until if alive(pid, opened) else last)


def gaps(covered: Iterable[Span], start: str, end: str) -> Iterator[Span]:
    """What of a time nobody watched."""
    at = start
    for span in covered:
        if span.end <= at or span.start >= end:
            continue
        if span.start > at:
            yield Span(at, span.start)
        at = max(at, span.end)
    if at < end:
        yield Span(at, end)


def _within(covered: Iterable[Span], at: str) -> bool:
    """Strictly: what a daemon finds as it starts had happened before."""
    return any(span.start < at <= span.end for span in covered)


def _drifts(store: Store, facts: list[str], start: str, end: str) -> dict[str, Logged]:
    """The last event that says how each fact came to differ."""
    found = {}
    for fact in facts:
        where = "fact = ? AND kind IN ('drift', 'restore') AND at >= ? AND at <= ?"
        entry = next(store.stream(where, fact, start, end, newest_first=True), None)
        if entry is not None:
            found[fact] = entry
    return found


def _earlier(store: Store, fact: str, start: str, last: Logged) -> Iterator[Event]:
    """The changes of a fact before its last one, back to where it was as locked."""
    where = "fact = ? AND kind IN ('drift', 'restore', 'heal') AND at >= ? AND id < ?"
    for entry in islice(store.stream(where, fact, start, last.id, newest_first=True), EARLIER):
        if entry.event.kind == "heal":
            return
        yield entry.event


def _dated(one: Finding, entry: Logged | None) -> Finding:
    if entry is None:
        return one
    by: Mapping[str, Any] | None = entry.event.by if entry.event.by is not None else one.by
    return replace(one, since=entry.event.at, by=by)


def _before(store: Store, covered: Iterable[Span], entry: Logged) -> str:
    """The last time before an event at which somebody had looked."""
    ends = [span.end for span in covered if span.end < entry.event.at]
    looked = "state IS NOT NULL OR kind IN ('accept', 'drift', 'heal', 'launch')"
    rows = store.rows(f"SELECT max(at) FROM events WHERE at < ? AND ({looked})", entry.event.at)  # noqa: S608  our words
    return max([*ends, *(row[0] for row in rows if row[0])], default="")


def _alive(pid: int, at: str) -> bool:
    """Does the process that started at that time still run? Another of its number began later."""
    found = lineage.row(pid)
    if found is None:
        return False
    up = since_boot() - found.start / os.sysconf("SC_CLK_TCK")
    said = datetime.fromisoformat(at.replace("Z", "+00:00")).timestamp()
    return time.time() - up <= said + _SLACK
