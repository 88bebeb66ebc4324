"""Verdict, differences, generations, runs and log as one HTML page for people, to be kept, mailed or printed.

Always holds: the page stands alone (no script, nothing fetched); all that came from the machine is escaped; a file's
content is never in it; it says when and by which lockd it was made, and how much it leaves out.
Never: reads the machine or the store, or writes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from html import escape
from typing import TYPE_CHECKING

from lockd.facts import safe
from lockd.plain import dataclass
from lockd.report import difference, text
from lockd.report import runs as run_report
from lockd.runs import spoken

if TYPE_CHECKING:
    from lockd.check import Report
    from lockd.findings import Finding
    from lockd.runs import Run
    from lockd.store import Generation, Logged

MARK = '<meta name="generator" content="lockd report">'
_CHART = (240, 40)  # width and height of a chart in CSS pixels
_STYLE = """
:root { color-scheme: light dark; --line: #8884; --block: #c62828; --warn: #b26a00; --unknown: #7b3fa0; --ok: #2e7d32; }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 75rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.15rem; margin-top: 2rem; border-bottom: 1px solid var(--line); }
table { border-collapse: collapse; width: 100%; } caption { text-align: left; opacity: .7; }
th, td { text-align: left; vertical-align: top; padding: .2rem .8rem .2rem 0; border-bottom: 1px solid var(--line); }
td, code, li { overflow-wrap: anywhere; } code { font-size: .9em; } .dim { opacity: .7; }
.mark { font-weight: 600; } .block { color: var(--block); } .warn { color: var(--warn); } .ok { color: var(--ok); }
.unknown { color: var(--unknown); } polyline { fill: none; stroke: currentColor; stroke-width: 2; }
@media (prefers-color-scheme: dark) {
  :root { --block: #ff8a80; --warn: #ffcc80; --unknown: #ce93d8; --ok: #a5d6a7; }
}
@media print { body { margin: 0; max-width: none; } details { display: block; } }
"""


@dataclass(frozen=True)
class Told:
    """What the page is made of.

    groups: the differences to the lock by cause, as `lockd diff` has them. generations, runs, events: newest first;
    `events_in_all`: how many the log has of the time that was asked for. at: ISO UTC. version: of this lockd.
    notes: what could not be shown, and why.
    """

    report: Report
    verdict: str
    groups: Sequence[tuple[str, Sequence[Finding]]]
    generations: Sequence[Generation]
    runs: Sequence[Run]
    events: Sequence[Logged]
    events_in_all: int
    at: str
    version: str
    notes: Sequence[str] = ()


def page(told: Told) -> str:
    """The whole document."""
    name = _text(told.report.policy.name)
    parts = [
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        MARK,
        f"<title>{_text(told.verdict)}: {name}</title>\n<style>{_STYLE}</style>\n</head>\n<body>",
        *_head(told),
        *_findings(told.report),
        *_differences(told),
        *_generations(told),
        *_runs(told),
        *_log(told),
        f"<footer class=dim><p>Made {_text(told.at)} by lockd {_text(told.version)}.</p></footer>\n</body>\n</html>",
    ]
    return "\n".join(parts)


def _text(word: object) -> str:
    return escape(safe(str(word)))


def _head(told: Told) -> Iterator[str]:
    report = told.report
    yield f"<h1>{_marked(told.verdict)} {_text(report.policy.name)}</h1>"
    if report.override is not None:
        one = report.override.document()
        yield f"<p class=warn>Overridden until {_text(one['until'])} by {_text(one['by'])}: {_text(one['why'])}</p>"
    rows = [("policy", report.policy.path)]
    if report.lock is None:
        rows.append(("lock", "no known-good yet"))
    else:
        lock = report.lock
        rows.append(("lock", f"generation {lock.generation}, {lock.accepted_at} by {lock.by}: {lock.why}"))
        rows.append(("known good", lock.environment))
    rows.append(("environment", report.environment))
    if report.launch is not None:
        rows.append(("launch", report.launch))
    rows.append(("look", f"{report.look}, {report.elapsed:.2f} s" + (", by the daemon" if report.by_daemon else "")))
    rows += [("not looked at", line) for line in report.not_looked]
    rows += [("the lock's, of no rule", name) for name in report.unclaimed]
    rows += [("not shown", note) for note in told.notes]
    yield "<table>"
    yield from (f"<tr><th>{_text(name)}</th><td>{_text(value)}</td></tr>" for name, value in rows)
    yield "</table>"


def _marked(severity: str) -> str:
    return f'<span class="mark {_text(severity)}">{_text(severity)}</span>'


def _findings(report: Report) -> Iterator[str]:
    yield f"<h2>Findings: {len(report.findings)}</h2>"
    if not report.findings:
        yield "<p>Nothing differs.</p>"
    yield from _causes([*report.findings, *report.recorded])


def _causes(listed: Sequence[Finding]) -> Iterator[str]:
    """A line a cause; what it brought is folded beneath it."""
    yield "<ul>"
    for one, brought in text.causes(listed):
        yield f"<li>{_cause(one)}"
        if brought:
            lines = "".join(f"<li>{_cause(other)}</li>" for other in brought)
            yield f"<details><summary>{len(brought)} that it brought</summary><ul>{lines}</ul></details>"
        yield "</li>"
    yield "</ul>"


def _cause(one: Finding) -> str:
    lines = [f"{_marked(text.mark(one))} {_text(one.message)}"]
    if one.files is not None and one.files.examples:
        lines.append(f"<span class=dim>{_text(text.files_line(one.files))}</span>")
    seen = text.observed(one)
    lines += [f"<span class=dim>{_text(seen)}</span>"] if seen else []
    lines += [f"→ <code>{_text(one.hint)}</code>"] if one.hint else []
    return "<br>".join(lines)


def _differences(told: Told) -> Iterator[str]:
    if not told.groups:
        return
    yield "<h2>What differs from the lock, by what can move throughput</h2>"
    for group, listed in told.groups:
        yield f"<h3>{_text(group)}</h3>\n<ul>"
        for one in listed:
            values = "".join(f"<li><code>{_text(line.strip())}</code></li>" for line in difference.attribute_lines(one))
            yield f"<li>{_text(one.message)}{f'<ul>{values}</ul>' if values else ''}</li>"
        yield "</ul>"


def _generations(told: Told) -> Iterator[str]:
    yield f"<h2>Known-good states: {len(told.generations)}</h2>"
    rows = ((one.number, one.at, one.by, one.why, one.environment) for one in told.generations)
    yield from _table(("generation", "accepted", "by", "why", "environment"), rows)


def _runs(told: Told) -> Iterator[str]:
    yield f"<h2>Runs: {len(told.runs)}</h2>"
    for name, numbers in sorted(run_report.numbers_of(told.runs).items()):
        if len(numbers) > 1:
            yield f"<p>{_text(name)} {_chart(numbers[::-1])} {numbers[-1]:g} … {numbers[0]:g}</p>"
    heads = (
        "run",
        "start",
        "end",
        "verdict",
        "exit",
        "generation",
        "findings",
        "notes",
        "user",
        "environment",
        "command",
    )
    yield from _table(heads, (_run(one) for one in told.runs))


def _run(run: Run) -> tuple[object, ...]:
    notes = ", ".join(f"{name}={spoken(value)}" for name, value in run.notes.items())
    end, code = ("runs", "-") if run.end is None else (run.end, run.exit)
    generation = "-" if run.generation is None else run.generation
    found = (run_report.found_at(run), notes or "-", run_report.user_of(run))
    return run.name, run.start, end, run_report.verdict_of(run), code, generation, *found, run.environment, run.command


def _chart(numbers: Sequence[float]) -> str:
    """A line through the numbers, oldest first, from nought to the largest."""
    width, height = _CHART
    top = max(map(abs, numbers)) or 1
    step = width / (len(numbers) - 1)
    points = " ".join(
        f"{at * step:.1f},{height - 2 - abs(value) / top * (height - 4):.1f}" for at, value in enumerate(numbers)
    )
    label = f"{len(numbers)} numbers from {numbers[0]:g} to {numbers[-1]:g}"
    return f'<svg role="img" aria-label="{label}" width="{width}" height="{height}"><polyline points="{points}"/></svg>'


def _log(told: Told) -> Iterator[str]:
    left = told.events_in_all - len(told.events)
    yield f"<h2>Log: {told.events_in_all} entries{f', {left} older ones not shown' if left else ''}</h2>"
    rows = (
        (entry.id, entry.event.at, entry.event.kind, entry.event.fact or "", entry.event.message, _who(entry))
        for entry in told.events
    )
    yield from _table(("entry", "at", "kind", "fact", "what", "who"), rows)


def _who(entry: Logged) -> str:
    return text.whom(dict(entry.event.by)) if entry.event.by else ""


def _table(heads: Sequence[str], rows: Iterable[Sequence[object]]) -> Iterator[str]:
    listed = list(rows)
    if not listed:
        yield "<p>None is recorded.</p>"
        return
    yield f"<table>\n<tr>{''.join(f'<th>{_text(head)}</th>' for head in heads)}</tr>"
    yield from (f"<tr>{''.join(f'<td>{_text(cell)}</td>' for cell in row)}</tr>" for row in listed)
    yield "</table>"
