"""Since which launch its variables, or its interpreter, differ: of these no watcher can tell, but the runs do.

Always holds: a launch is named only where the record of that very run holds the value; the run before it, which was
started otherwise, bounds the time. A run that nobody could look at says nothing.
Never: dates what no run was started with, such as a variable of the shell at hand.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from lockd import runs
from lockd.evidence import Evidence, Launched
from lockd.facts import LAUNCH_KINDS, Fact, Facts, Unknown
from lockd.plain import replace

if TYPE_CHECKING:
    from lockd.findings import Finding
    from lockd.runs import Run
    from lockd.store import Store

_MOST = 10_000  # runs that are gone through


def added(store: Store, found: Evidence, later: Facts, label: str, end: str) -> Evidence:
    """The evidence, with the launches since which facts are as the later state has them.

    label: what that state is called, maybe a run. end: its time.
    """
    wanted = [one.fact for one in found.findings if one.fact.partition(":")[0] in LAUNCH_KINDS]
    if not wanted:
        return found
    kind, _, number = label.partition(":")
    # times are whole seconds, numbers tell which run came later
    last = int(number) if kind == "run" and number.isdecimal() else None
    listed = [
        run
        for run in runs.listed(store, _MOST)
        if (run.start <= end if last is None else run.number <= last) and "launch_facts" in run.body
    ]
    rows = [(run, {row["fact"]: row for row in run.body["launch_facts"]}) for run in listed]
    since = {fact: first for fact in wanted if (first := _since(rows, fact, _value(later.get(fact)))) is not None}
    findings = tuple(_dated(one, since) for one in found.findings)
    return found._replace(findings=findings, launches={fact: told for fact, (_, told) in since.items()})


def _since(rows: Iterable[tuple[Run, Mapping[str, Any]]], fact: str, value: Any) -> tuple[Run, Launched] | None:
    """The oldest run of the unbroken line, up to the newest, that had the value; and the run before it."""
    first: Run | None = None
    for run, told in rows:
        if _plain(told.get(fact)) != value:
            return None if first is None else (first, Launched(first.name, run.name, run.start))
        first = run
    return None if first is None else (first, Launched(first.name))


def _dated(one: Finding, since: Mapping[str, tuple[Run, Launched]]) -> Finding:
    if one.fact not in since:
        return one
    run = since[one.fact][0]
    return replace(one, since=run.start, by=run.body.get("by"))


def _value(fact: Fact | Unknown | None) -> Any:
    """What of a fact is compared; None where there is none."""
    return None if fact is None or (isinstance(fact, Fact) and fact.absent) else dict(_attributes(fact))


def _attributes(fact: Fact | Unknown) -> Iterator[tuple[str, Any]]:
    if isinstance(fact, Unknown):
        yield "unknown", fact.reason
        return
    for name, value in fact.attributes.items():
        yield name, list(value) if isinstance(value, tuple) else value


def _plain(row: Mapping[str, Any] | None) -> Any:
    """The same of a row of a record."""
    if row is None:
        return None
    if "unknown" in row:
        return {"unknown": row["unknown"]}
    return None if row["attributes"].get("absent") else dict(row["attributes"])
