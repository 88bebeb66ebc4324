"""Verdict and differences as text for a tired person: one line a cause, worst first, the way out beneath it.

Always holds: the first line names the policy and the verdict; what a package brought folds into one line; colour
stands only on a terminal that wants it; no control character of a name or a value reaches the terminal.
Never: reads the machine, or prints.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from typing import IO, TYPE_CHECKING, Any

from lockd.facts import safe as safe
from lockd.facts import short
from lockd.findings import FileChanges, Finding

if TYPE_CHECKING:
    from lockd.check import Report
    from lockd.errors import LockdError

_COLOURS: Mapping[str, str] = {"block": "31;1", "unknown": "35;1", "warn": "33", "ok": "32", "dim": "2", "record": "2"}
_NAMES = 6  # children that one folded line names


def wants_colour(stream: IO[str]) -> bool:
    """Colour on a terminal, unless NO_COLOR or a dumb terminal say otherwise."""
    return not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb" and stream.isatty()


def paint(text: str, name: str, colour: bool) -> str:
    """`text` in the colour of a severity, where colour is wanted."""
    return f"\x1b[{_COLOURS[name]}m{text}\x1b[0m" if colour and name in _COLOURS else text


def problem(error: LockdError) -> str:
    """An error for stderr: `lockd: WHERE: WHAT` a line each, then the hint."""
    lines = [f"lockd: {line}" for line in str(error).splitlines() or [type(error).__name__]]
    if error.hint:
        lines.append(f"  hint: {error.hint}")
    return safe("\n".join(lines))


def verify(report: Report, verdict: str, *, colour: bool, every: bool = False) -> str:
    """The whole answer of `lockd verify`."""
    lines = [_first_line(report, verdict, colour), *_override(report)]
    lines += findings([*report.findings, *(report.recorded if every else ())], colour)
    lines += [paint(f"  not looked at: {safe(line)}", "dim", colour) for line in report.not_looked]
    if report.recorded and not every:
        lines.append(paint(f"  {_many(len(report.recorded), 'recorded change')} (--all lists them)", "dim", colour))
    if report.unclaimed:
        shown = ", ".join(report.unclaimed[:3]) + (" …" if len(report.unclaimed) > 3 else "")
        lines.append(
            f"  the lock holds {_many(len(report.unclaimed), 'fact')} that no rule names any more: {safe(shown)}"
        )
    return "\n".join(lines)


def findings(listed: Sequence[Finding], colour: bool) -> list[str]:
    """The lines of findings: causes with what they brought folded beneath them."""
    return [line for one, brought in causes(listed) for line in _cause(one, brought, colour)]


def causes(listed: Sequence[Finding]) -> Iterator[tuple[Finding, list[Finding]]]:
    """Findings that no other one brought, each with those that it brought, in their order."""
    names = {one.fact for one in listed}
    children: dict[str, list[Finding]] = {}
    for one in listed:
        if one.because in names:
            children.setdefault(str(one.because), []).append(one)
    for one in listed:
        if one.because not in names:
            yield one, children.get(one.fact, [])


def mark(one: Finding) -> str:
    """The word in front of a finding."""
    return "unknown" if one.change == "unreadable" and one.severity == "block" else one.severity


def _first_line(report: Report, verdict: str, colour: bool) -> str:
    head = f"{paint(verdict, verdict, colour)}  {safe(report.policy.name)} ({safe(report.policy.path)})"
    parts = []
    if report.findings:
        causes = sum(one.because is None for one in report.findings)
        more = len(report.findings) - causes
        parts.append(_many(len(report.findings), "finding") + (f", {_many(causes, 'cause')}" if more else ""))
    if report.lock is None:
        parts.append("no known-good yet: `lockd accept -m WHY` records one, once this state is known to be good")
    else:
        lock = report.lock
        parts.append(f"generation {lock.generation} of {lock.accepted_at} by {safe(lock.by)}")
    parts.append(report.environment)
    by = " by the daemon" if report.by_daemon else ""
    parts.append(f"{_many(len(report.sight.facts), 'fact')}, {report.look} look{by}, {report.elapsed:.2f} s")
    return f"{head}: {' · '.join(parts)}"


def _override(report: Report) -> Iterator[str]:
    if report.override is not None:
        told = report.override.document()
        yield safe(f"  overridden until {told['until']} by {told['by']}: {told['why']}")


def _cause(one: Finding, brought: list[Finding], colour: bool) -> Iterator[str]:
    word = mark(one)
    yield f"  {paint(f'{word:7}', word, colour)} {safe(one.message)}"
    indent = " " * 10
    if one.files is not None and one.files.examples and "version" not in one.attributes:  # of a swap the number will do
        missing = [name for name in one.files.examples if name not in one.message]
        if missing:
            yield paint(f"{indent}{safe(files_line(one.files))}", "dim", colour)
    packages = [child for child in brought if child.fact.startswith("package:")]
    if packages:
        yield f"{indent}{safe(_brought(packages, one.severity))}"
    yield from (f"{indent}and {safe(child.message)}{_worse(child, one)}" for child in brought if child not in packages)
    seen = observed(one)
    if seen:
        yield f"{indent}{safe(seen)}"
    if one.hint:
        yield paint(f"{indent}→ {safe(one.hint)}", "dim", colour)


def files_line(files: FileChanges) -> str:
    """`files: 1 changed, 2 missing: a.py, b.py …`"""
    counts = [f"{count} {word}" for word, count in _counts(files) if count]
    rest = " …" if files.total > len(files.examples) else ""
    return short(f"files: {', '.join(counts)}: {', '.join(files.examples)}{rest}")


def _counts(files: FileChanges) -> Iterator[tuple[str, int]]:
    yield "changed", files.changed
    yield "added", files.added
    yield "missing", files.missing


def _brought(brought: list[Finding], severity: str) -> str:
    """`and 14 packages that it brought: torch 2.10.0 → 2.11.0, nvidia-nccl-cu13 (added), …`: those that moved first.

    severity: of the cause; what weighs more than that is said to.
    """
    listed = sorted(brought, key=lambda one: (one.severity != "block", "version" not in one.attributes))
    names = [_moved(one) for one in listed[:_NAMES]]
    rest = " …" if len(brought) > _NAMES else ""
    worse = sum(one.severity == "block" and one.change != "unreadable" for one in brought) if severity == "warn" else 0
    mark = f"; {worse} of them {'blocks' if worse == 1 else 'block'}" if worse else ""
    return f"and {_many(len(brought), 'package')} that it brought: {', '.join(names)}{rest}{mark}"


def _worse(child: Finding, cause: Finding) -> str:
    return " (blocks)" if (child.severity, cause.severity) == ("block", "warn") else ""


def _moved(one: Finding) -> str:
    name = one.fact.rpartition("/")[2]
    old, new = one.attributes.get("version", (None, None))
    return f"{name} {old} → {new}" if one.change == "changed" and old and new else f"{name} ({one.change})"


def observed(one: Finding) -> str:
    """`since 2026-11-30T21:15:40Z, by uv pip install … (root, ssh)`, as far as it was seen."""
    return ", ".join(part for part in (f"since {one.since}" if one.since else "", whom(one.by)) if part)


def whom(by: Mapping[str, Any] | None) -> str:
    """`by uv pip install … (root, ssh)`, or why that was not observed; "" where nothing is known."""
    if not by:
        return ""
    if by.get("confidence") == "not observed":
        return f"by whom was not observed ({by.get('reason', 'no reason told')})"
    command = by.get("cmdline") or ([by["exe"]] if by.get("exe") else [])
    told = ", ".join(str(by[name]) for name in ("user", "origin") if by.get(name))
    if not command:
        return f"by {told or '?'}"
    return f"by {' '.join(map(str, command))}" + (f" ({told})" if told else "")


def _many(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'' if count == 1 else 's'}"
