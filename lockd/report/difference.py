"""What differs between two states, as text and as a document: by what can move the throughput, most first.

Always holds: every difference stands in one group; when and by whom only where that was observed; a time that nobody
watched is said with its start and end. No control character of a name reaches the terminal.
Never: reads the machine or the store.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from lockd.evidence import Evidence
from lockd.facts import LAUNCH_KINDS, Value
from lockd.findings import Finding
from lockd.report import json, text

if TYPE_CHECKING:
    from lockd.store import Event

Groups = Sequence[tuple[str, Sequence[Finding]]]

_DIGEST = re.compile(r"\b(sha256:[0-9a-f]{12})[0-9a-f]+")  # of which the head is shown
_EARLIER = 3  # changes of one fact before its last that the text tells
_GAPS = 3  # gaps that the text spells out


def lines(a: str, b: str, groups: Groups, evidence: Evidence, *, colour: bool) -> Iterator[str]:
    """For people: a group a heading, a difference a paragraph."""
    listed = [one for _, found in groups for one in found]
    if not listed:
        yield f"no difference between {text.safe(a)} and {text.safe(b)}"
        return
    yield f"{text.safe(a)} → {text.safe(b)}: {_many(len(listed), 'difference')}"
    names = {one.fact for one in listed}
    for group, found in groups:
        yield f"{group}:"
        for one in found:
            yield from _paragraph(one, evidence, brought=one.because in names, colour=colour)
    yield from _gap_lines(evidence, listed)


def stat(groups: Groups) -> Iterator[str]:
    """One line a fact: the change and the number of files, most telling first."""
    listed = [one for _, found in groups for one in found]
    width = max((len(one.fact) for one in listed), default=0)
    for one in listed:
        files = "" if one.files is None else f"~{one.files.changed} +{one.files.added} -{one.files.missing}"
        yield f"{text.safe(one.fact):{width}}  {one.change:10} {files}".rstrip()


def document(a: str, b: str, groups: Groups, evidence: Evidence) -> dict[str, Any]:
    """`lockd diff --json`."""
    return {
        "schema": json.SCHEMA,
        "a": a,
        "b": b,
        "differences": [_row(group, one, evidence) for group, found in groups for one in found],
        "gaps": [{"from": gap.start, "to": gap.end} for gap in evidence.gaps],
    }


def _row(group: str, one: Finding, evidence: Evidence) -> dict[str, Any]:
    row = {**json.finding(one), "group": group}
    del row["hint"]
    span, earlier = evidence.unwatched.get(one.fact), evidence.earlier.get(one.fact, ())
    if span is not None:
        row["unwatched"] = {"from": span.start, "to": span.end}
    if earlier:
        row["earlier"] = [_change(event) for event in earlier]
    launched = evidence.launches.get(one.fact)
    if launched is not None:
        row["launches"] = {"first": launched.first, **({"before": launched.before} if launched.before else {})}
    return row


def _change(event: Event) -> dict[str, Any]:
    told = {"at": event.at, "message": event.message}
    return told if event.by is None else {**told, "by": dict(event.by)}


def _paragraph(one: Finding, evidence: Evidence, *, brought: bool, colour: bool) -> Iterator[str]:
    indent = "    " if brought else "  "
    yield f"{indent}{text.paint(f'{one.change:10}', one.severity, colour)} {text.safe(one.message)}"
    details = list(attribute_lines(one))
    if one.files is not None and any(name not in one.message for name in one.files.examples):
        details.append(text.files_line(one.files))
    details += _when(one, evidence)
    details += _earlier(evidence.earlier.get(one.fact, ()))
    for line in details:
        yield text.paint(f"{indent}  {text.safe(line)}", "dim", colour)


def _when(one: Finding, evidence: Evidence) -> Iterator[str]:
    unwatched, launched = evidence.unwatched.get(one.fact), evidence.launches.get(one.fact)
    if launched is not None:
        who = f", by {one.by['user']}" if one.by and one.by.get("user") else ""
        before = f"; {launched.before} of {launched.before_at} was not started so" if launched.before else ""
        yield f"since {launched.first}, started {one.since}{who}{before}"
    elif unwatched is not None:
        yield f"changed between {unwatched.start} and {unwatched.end}: seen then, nobody watched before"
    elif one.since:
        yield text.observed(one)


def _earlier(events: Sequence[Event]) -> Iterator[str]:
    """`before: 2026-11-30T21:15:40Z, by uv pip install … (root, ssh): torch … → …`, newest first."""
    for event in events[:_EARLIER]:
        who = text.whom(event.by)
        yield f"before: {event.at}{f', {who}' if who else ''}: {event.message}"
    if len(events) > _EARLIER:
        yield f"and {_many(len(events) - _EARLIER, 'time')} before: lockd log --fact tells them"


def _gap_lines(evidence: Evidence, listed: Iterable[Finding]) -> Iterator[str]:
    if not evidence.gaps:
        return
    spans = [f"{gap.start} to {gap.end}" for gap in evidence.gaps[-_GAPS:]]
    more = f" and {len(evidence.gaps) - _GAPS:,} times before" if len(evidence.gaps) > _GAPS else ""
    undated = sum(one.since is None and one.fact.partition(":")[0] not in LAUNCH_KINDS for one in listed)
    yield f"no daemon watched from {', '.join(spans)}{more}: who and when can't be told of that time"
    if undated:
        yield f"{_many(undated, 'difference')} without any mark in the log"


def attribute_lines(one: Finding) -> Iterator[str]:
    """`cuda: 12.8 → 13.0`, a line an attribute that changed."""
    if one.change == "changed":
        yield from (f"{name}: {_value(old)} → {_value(new)}" for name, (old, new) in sorted(one.attributes.items()))


def _value(value: Value | None) -> str:
    if value is None:
        return "none"
    if isinstance(value, str):
        return _DIGEST.sub(r"\1…", value)
    if isinstance(value, tuple):
        return "[" + ", ".join(map(_value, value)) + "]"
    return str(value).lower() if isinstance(value, bool) else str(value)


def _many(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'' if count == 1 else 's'}"
