"""Runs as a table, and their numbers by environment: what a person compares first.

Always holds: newest first, one line a run; a number that is noted shows with a bar against the largest of its name; an
end that nobody saw is told as such.
Never: reads the store, or prints.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from statistics import median
from typing import Any

from lockd.findings import Difference
from lockd.report.text import safe
from lockd.runs import Run, duration, spoken
from lockd.verdict import word

_BARS = "▁▂▃▄▅▆▇█"
_COMMAND = 60  # characters of a command line in the table
_ID = len("env1:") + 8
_FACTS = 2  # findings that a row names
_LONG = ("package", "file", "tree", "cache", "git", "env")  # whose last part tells a reader which
_SPARK = 40  # runs in one sparkline


def table(listed: Sequence[Run], now: str) -> str:
    """The runs, newest first, and beneath them a line for each noted number."""
    if not listed:
        return "no run is recorded; lockd run -- CMD records one"
    heads = ("run", "start", "took", "verdict", "exit", "gen", "findings", "environment", "user", "notes", "command")
    tops = {name: max(map(abs, numbers)) for name, numbers in numbers_of(listed).items()}
    rows = [heads, *(_row(run, tops, now) for run in listed)]
    widths = [max(len(row[at]) for row in rows) for at in range(len(heads))]
    lines = ["  ".join(f"{cell:{width}}" for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    return "\n".join([*lines, *sparklines(listed)])


def sparklines(listed: Sequence[Run]) -> list[str]:
    """`ktok_s  ▇█▇▂▂  12.8 … 4.3`, oldest to newest, for numbers that several runs noted."""
    found = {name: numbers[::-1] for name, numbers in numbers_of(listed).items() if len(numbers) > 1}
    width = max(map(len, found), default=0)
    return [
        f"{safe(name):{width}}  {spark(numbers[-_SPARK:])}  {numbers[0]:g} … {numbers[-1]:g}"
        for name, numbers in sorted(found.items())
    ]


def spark(numbers: Sequence[float]) -> str:
    """One bar a number, from nought to the largest."""
    top = max(map(abs, numbers), default=0)
    return "".join(_bar(number, top) for number in numbers)


def _bar(number: float, top: float) -> str:
    return _BARS[round(abs(number) / top * (len(_BARS) - 1))] if top else _BARS[0]


def numbers_of(listed: Iterable[Run]) -> dict[str, list[float]]:
    """Every noted number by its name, in the order of the runs."""
    found: dict[str, list[float]] = {}
    for run in listed:
        for name, value in run.notes.items():
            if isinstance(value, (int, float)) and not isinstance(value, bool):
                found.setdefault(name, []).append(value)
    return found


def _row(run: Run, tops: Mapping[str, float], now: str) -> tuple[str, ...]:
    command = run.command if len(run.command) <= _COMMAND else run.command[: _COMMAND - 1] + "…"
    notes = ", ".join(_note(name, value, tops) for name, value in run.notes.items())
    code = "-" if run.exit is None else str(run.exit)
    generation = "-" if run.generation is None else str(run.generation)
    environment = run.environment[:_ID] or "-"
    head = (run.name, run.start, _took(run, now), verdict_of(run), code, generation, found_at(run))
    return tuple(map(safe, (*head, environment, user_of(run), notes, command)))


def found_at(run: Run) -> str:
    """What differed as a run began, most telling first: `torch, model.py +3`."""
    listed = {str(one["fact"]): one for one in run.body.get("findings", ())}
    facts = [fact for fact, one in listed.items() if one.get("because") not in listed]
    more = f" +{len(facts) - _FACTS}" if len(facts) > _FACTS else ""
    return ", ".join(map(_short, facts[:_FACTS])) + more if facts else "-"


def _short(fact: str) -> str:
    kind, _, subject = fact.partition(":")
    return subject.rpartition("/")[2] or subject if kind in _LONG else fact


def verdict_of(run: Run) -> str:
    """The verdict that a run began with, and whether an override let it."""
    return str(run.body.get("verdict", "?")) + (" (overridden)" if "override" in run.body else "")


def user_of(run: Run) -> str:
    """Whose run it was."""
    return str(run.body.get("user", "?"))


def _note(name: str, value: Any, tops: Mapping[str, float]) -> str:
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return f"{name}={spoken(value)}" + (f" {_bar(value, tops[name])}" if number and name in tops else "")


def _took(run: Run, now: str) -> str:
    """`2h03m`; `≤2h03m` where the end was only noticed later; `2h03m+` while it runs."""
    seconds = duration(run, now) or 0
    minutes, hours = seconds // 60, seconds // 3600
    text = (
        f"{seconds}s"
        if minutes < 1
        else f"{minutes}m{seconds % 60:02}s"
        if hours < 1
        else f"{hours}h{minutes % 60:02}m"
    )
    if run.end is None:
        return f"{text}+"
    return text if run.body.get("end_seen") else f"≤{text}"


# -- by environment ----------------------------------------------------------------------------------------------------


def groups(listed: Iterable[Run]) -> dict[str, list[Run]]:
    """Runs by environment id, the environments in the order in which they first ran."""
    found: dict[str, list[Run]] = {}
    for run in sorted(listed, key=lambda one: one.number):
        if run.environment:
            found.setdefault(run.environment, []).append(run)
    return found


def summary(numbers: Sequence[float]) -> dict[str, Any]:
    """How many, the smallest, the middle and the largest."""
    return {"n": len(numbers), "min": min(numbers), "median": median(numbers), "max": max(numbers)}


def comparison(found: Mapping[str, Sequence[Run]], changes: Mapping[str, Sequence[Difference] | str]) -> str:
    """A paragraph an environment: its runs and numbers; before it, what differs from the environment before.

    changes: environment → the differences, or why nobody can tell them.
    """
    lines: list[str] = []
    for environment, listed in found.items():
        if environment in changes:
            lines += _changed(changes[environment])
        names = f"{listed[0].name}" if len(listed) == 1 else f"{listed[0].name} … {listed[-1].name}"
        lines.append(f"{environment}  {len(listed)} run{'' if len(listed) == 1 else 's'} ({names})")
        for name, numbers in sorted(numbers_of(listed).items()):
            told = summary(numbers)
            lines.append(f"  {safe(name)}  {told['median']:g}  {_range(told)}  {spark(numbers)}")
    return "\n".join(lines) or "no run with a known environment is recorded"


def _range(told: Mapping[str, Any]) -> str:
    return f"(n {told['n']}, {told['min']:g} … {told['max']:g})"


def _changed(differences: Sequence[Difference] | str) -> list[str]:
    if isinstance(differences, str):
        return [f"  ↓ {safe(differences)}"]
    causes = [one for one in differences if one.because is None]
    lines = [f"  ↓ {safe(word(one))}" for one in causes]
    more = len(differences) - len(causes)
    return [*lines, *([f"    and {more} that these brought"] if more else [])] or ["  ↓ no fact differs that is kept"]
