"""Since when and by whom: the findings that stand, each with the hints that explain it.

Always holds: a finding keeps its `since` and `by` as long as the same thing differs in the same way; a new one gets the
time of its first hint and the process known best; what was found by looking alone says so.
Never: guesses a writer from another path's hints while the finding's own paths had some.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from lockd.clock import stamp
from lockd.facts import LAUNCH_KINDS
from lockd.history import key_of, seen_of
from lockd.plain import replace
from lockd.probes import mounted
from lockd.watch.hints import LOSSES, NO_PROCESS, Hint, writer

if TYPE_CHECKING:
    from lockd.check import Report
    from lockd.findings import Finding
    from lockd.look import Sight

Manifests = Callable[[], Mapping[str, Mapping[str, str]]]


@dataclass(frozen=True)
class Mark:
    """What is remembered of one finding. key: `history.key_of`. by: as JSON; None where nothing was observed.

    unseen: when a look found it before any event did (seconds since the epoch), else 0.
    """

    key: str
    since: str
    by: Mapping[str, Any] | None = None
    unseen: float = 0.0


Marks = Mapping[str, Mark]
Healed = Mapping[str, Mapping[str, Any]]  # fact → by
_LATE = 1.0  # seconds that the event of a change may come after the look that found it
_HEALED = 1_000  # facts of which it is remembered who put them back


def mark(
    report: Report,
    before: Marks,
    hints: Iterable[Hint],
    manifests: Manifests,
    owned: Mapping[str, list[Hint]] | None = None,
) -> Marks:
    """The marks of a report's findings. hints: those since the last look. manifests: of the last look. owned: of facts
    of which it is known already which hints are theirs; then no other fact has any.
    """
    listed, now = tuple(hints), stamp()

    def own(fact: str) -> list[Hint]:
        return _own(fact, report.sight, listed, manifests) if owned is None else owned.get(fact, [])

    marks: dict[str, Mark] = {}
    for finding in (*report.findings, *report.recorded):
        if finding.fact.partition(":")[0] in LAUNCH_KINDS:
            continue
        key, old = key_of(finding), before.get(finding.fact)
        if old is not None and old.key == key and not old.unseen:
            marks[finding.fact] = old
        elif old is not None and old.key == key:
            late = [hint for hint in own(finding.fact) if abs(hint.at - old.unseen) <= _LATE]
            marks[finding.fact] = Mark(key, old.since, writer(late).as_dict()) if late else old
        else:
            marks[finding.fact] = _new(finding, key, old, own(finding.fact), now)
    return marks


def _new(finding: Finding, key: str, old: Mark | None, hints: list[Hint], now: str) -> Mark:
    """One that differs in another way than before stands since the first difference only if nothing is known of it."""
    if not hints:
        return Mark(key, now, old.by) if old else Mark(key, now, NO_PROCESS.as_dict(), time.time())
    return Mark(key, stamp(min(hint.at for hint in hints)), writer(hints).as_dict())


def _own(fact: str, sight: Sight, hints: tuple[Hint, ...], manifests: Manifests) -> list[Hint]:
    """The hints about a fact's own paths; of a package its files, now or before; else all under its rule."""
    section, rule = sight.claimed.get(fact, ("", None))
    roots = tuple(path.rstrip("/") for path in mounted.watched(section, rule)) if section else ()
    subject = fact.partition(":")[2]
    exact = [hint for hint in hints if hint.path == subject and hint.kind not in LOSSES]
    if exact:
        return exact
    if fact.startswith("file:"):  # another file's writer is not this one's; what moved a folder above it may be
        return [hint for hint in hints if hint.folder and hint.kind not in LOSSES and _is_below(subject, hint.path)]
    below = [hint for hint in hints if hint.kind not in LOSSES and any(_is_below(hint.path, one) for one in roots)]
    if fact.startswith("package:") and _several(below):
        names = {*sight.manifests().get(fact, ()), *manifests().get(fact, ())}
        return [hint for hint in below if _is_in(hint.path, names)] if names else below
    return below


def _is_below(path: str, folder: str) -> bool:
    return path.startswith(f"{folder}/")


def _several(hints: list[Hint]) -> bool:
    """Was there more than one process at work? Only then it matters whose files are whose."""
    return len({(hint.who.pid, hint.who.started) for hint in hints}) > 1


def _is_in(path: str, names: set[str]) -> bool:
    """Is it one of the manifest's files, whose names are relative to a site folder?"""
    parts = path.split("/")
    return any("/".join(parts[start:]) in names for start in range(len(parts) - 1, 0, -1))


def healed(report: Report, marks: Marks, known: Healed, hints: Iterable[Hint], last: Sight | None) -> Healed:
    """Who put right what no longer differs, where hints tell. marks: before this look. last: the sight before it."""
    differing = {one.fact for one in (*report.findings, *report.recorded)}
    found = {fact: by for fact, by in known.items() if fact not in differing}
    listed = tuple(hints)
    for fact in marks.keys() - differing if listed else ():
        sight = report.sight if last is None or fact in report.sight.claimed else last
        own = _own(fact, sight, listed, sight.manifests if last is None else last.manifests)
        if own:
            found[fact] = writer(own).as_dict()
    return dict(list(found.items())[-_HEALED:])


def apply(report: Report, marks: Marks, healed: Healed = MappingProxyType({})) -> Report:
    """The report with `since` and `by` at the findings that are marked for the very same difference, and who healed."""
    return replace(
        report,
        by_daemon=True,
        healed=healed,
        findings=tuple(_applied(one, marks) for one in report.findings),
        recorded=tuple(_applied(one, marks) for one in report.recorded),
    )


def _applied(finding: Finding, marks: Marks) -> Finding:
    found = marks.get(finding.fact)
    if found is None or found.key != key_of(finding):
        return finding
    return replace(finding, since=found.since, by=found.by)


def keys(report: Report) -> tuple[Any, ...]:
    """What the history tells apart: the generation, each lasting finding with how it differs, and the state seen."""
    lasting = (*report.findings, *report.recorded)
    rows = {one.fact: key_of(one) for one in lasting if one.fact.partition(":")[0] not in LAUNCH_KINDS}
    return (report.lock.digest if report.lock else None, tuple(sorted(rows.items())), seen_of(report))


def remembered(rows: Mapping[str, Mapping[str, str]], by: Mapping[str, Mapping[str, Any] | None]) -> Marks:
    """Marks from what the history kept of the findings that stood when the last daemon or look ended."""
    return {fact: Mark(row["key"], row["since"], by.get(fact)) for fact, row in rows.items()}
