"""`lockd diff [A] [B]`: what differs between two states, by default between the lock and now, most telling first."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import argparse

    from lockd.check import Report
    from lockd.evidence import Evidence
    from lockd.facts import Facts
    from lockd.findings import Difference, Finding
    from lockd.session import Session
    from lockd.sources import Source

_WORDS = "lock, now, good, @N, run:N, a time, an exported file"


def register(subparsers: argparse._SubParsersAction[Any]) -> None:
    parser = subparsers.add_parser("diff", help="what differs between two states")
    parser.add_argument("a", nargs="?", default="lock", help=f"{_WORDS}; lock is the default")
    parser.add_argument("b", nargs="?", default="now", help="one of the same; now is the default")
    parser.add_argument("--stat", action="store_true", help="one line a fact, with the number of files")
    parser.add_argument("--exit-code", action="store_true", help="exit 1 when there is a difference")
    parser.add_argument("--trust-unmapped", action="store_true", help="trust files owned outside this user namespace")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    from lockd import consequences, ranking
    from lockd.session import open_session
    from lockd.sources import source

    # 1. the two states
    session = open_session(args)
    look = _looker(session)
    a, b = source(args.a, session, look), source(args.b, session, look)
    # 2. what differs, and what that does to the compile caches
    worded = _worded(session, _differences(session, a, b, args, look))
    findings = consequences.added(session.policy, worded, a.facts, b.facts)
    names = {one.fact for one in findings}
    orphaning = {one.fact for one in consequences.orphaned(session.policy, names, a.facts, b.facts)}
    # 3. when and by whom, as far as that was seen
    evidence = _evidence(session, findings, a, b)
    groups = ranking.grouped(evidence.findings, orphaning)
    _print(args, (a.label, b.label), groups, evidence)
    if not (args.json or args.stat):
        _print_texts(session, a, b, evidence.findings)
    return 1 if args.exit_code and findings else 0


def _looker(session: Session) -> Callable[[], Report]:
    """One look for both sides, made when it is first needed; what it finds belongs in the timeline."""
    from functools import cache

    from lockd import cli, history
    from lockd.progress import checked

    @cache
    def look() -> Report:
        report = checked(session, "lockd diff")
        history.remember(session.state, report, cli.warn)
        return report

    return look


def _differences(
    session: Session, a: Source, b: Source, args: argparse.Namespace, look: Callable[[], Report]
) -> tuple[Difference, ...]:
    """Of the lock and now just what a verify finds, broken pins with it; else the two states alone."""
    from lockd.compare import compare, file_changes
    from lockd.plain import replace
    from lockd.sources import manifests

    if (args.a, args.b) == ("lock", "now"):
        return look().differences
    differences = compare(_comparable(a, b), _comparable(b, a))
    changed = [one.name for one in differences if one.change == "changed"]
    old = manifests(a, session, changed)
    new = manifests(b, session, [name for name in changed if name in old])
    files = {name: file_changes(old[name], new[name]) for name in new}
    return tuple(replace(one, files=files[one.name]) if _counted(files.get(one.name)) else one for one in differences)


def _comparable(one: Source, other: Source) -> Facts:
    """The facts of a state that the other could have as well: not every look is for a launch, or runs commands."""
    from lockd.facts import Facts

    kinds = {fact.kind for fact in other.facts.values()}
    sparse = {kind for kind in ("env", "command") if kind not in kinds}
    return Facts(
        fact
        for name, fact in one.facts.items()
        if fact.kind not in sparse and (fact.kind != "launch" or name in other.facts)
    )


def _counted(files: Any) -> bool:
    return files is not None and files.total > 0


def _worded(session: Session, differences: tuple[Difference, ...]) -> tuple[Finding, ...]:
    from lockd.verdict import worded

    return worded(session.policy, differences, {})


def _evidence(session: Session, findings: tuple[Finding, ...], a: Source, b: Source) -> Evidence:
    """What the log tells of the time between the states; nothing where one of them has no time, or none is kept."""
    from lockd import cli, evidence, launch_evidence
    from lockd.clock import stamp
    from lockd.errors import LockdError

    start, end = a.at, stamp() if b.label == "now" else b.at
    if a.label == "now":
        start = stamp()
    nothing = evidence.Evidence(findings, {}, ())
    if not findings or start is None or end is None or session.state is None:
        return nothing
    try:
        store = session.state.store()
        if store is None:
            return nothing
        with store:
            told = evidence.of(store, findings, min(start, end), max(start, end))
            later = b if start <= end else a
            return launch_evidence.added(store, told, later.facts, later.label, max(start, end))
    except LockdError as error:
        cli.warn(f"the log could not be read: {error}")
        return nothing


def _print(args: argparse.Namespace, labels: tuple[str, str], groups: Any, evidence: Evidence) -> None:
    import sys

    from lockd import cli
    from lockd.report import difference, json, text

    if args.json:
        cli.emit(json.dumps(difference.document(*labels, groups, evidence)))
        return
    colour = text.wants_colour(sys.stdout)
    for line in difference.stat(groups) if args.stat else difference.lines(*labels, groups, evidence, colour=colour):
        cli.emit(line)


def _print_texts(session: Session, a: Source, b: Source, findings: tuple[Finding, ...]) -> None:
    """What changed inside kept files, for the policy's owner."""
    from lockd import cli, texts
    from lockd.report.text import safe

    for line in texts.unified(session, a, b, findings):
        cli.emit(safe(line))
