"""`lockd diff [A] [B]`: what differs between two states, by default between the lock and now."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import argparse

    from lockd.check import Report
    from lockd.findings import Difference, Finding
    from lockd.session import Session
    from lockd.sources import Source


def register(subparsers: argparse._SubParsersAction[Any]) -> None:
    parser = subparsers.add_parser("diff", help="what differs between two states")
    parser.add_argument("a", nargs="?", default="lock", help="lock (the default), now, @N, a time, an exported file")
    parser.add_argument("b", nargs="?", default="now", help="now (the default), or one of the same")
    parser.add_argument("--stat", action="store_true", help="one line a fact, with the number of files")
    parser.add_argument("--exit-code", action="store_true", help="exit 1 when there is a difference")
    parser.add_argument("--trust-unmapped", action="store_true", help="trust files owned outside this user namespace")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    from lockd.session import open_session

    session = open_session(args)
    look = _looker(session)
    if (args.a, args.b) == ("lock", "now") and session.lock is not None:
        report = look()
        a, b = f"lock (generation {session.lock.generation})", "now"
        findings = _worded(session, report.differences)
        sides: tuple[int | None, int | None] = (session.lock.generation, None)
    else:
        first, second = _sources(args, session, look)
        a, b = first.label, second.label
        findings = _worded(session, _differences(session, first, second))
        sides = (first.generation, second.generation)
    _print(args, a, b, findings)
    if not (args.json or args.stat) and all(side or label == "now" for side, label in zip(sides, (a, b), strict=True)):
        _print_texts(session, sides, look, findings)
    return 1 if args.exit_code and findings else 0


def _print_texts(
    session: Session, sides: tuple[int | None, int | None], look: Callable[[], Report], findings: tuple[Finding, ...]
) -> None:
    """What changed inside kept files, for the policy's owner."""
    from lockd import cli, texts
    from lockd.report.text import safe

    now = look().sight.facts if None in sides else {}
    for line in texts.unified(session, *sides, now, findings):
        cli.emit(safe(line))


def _sources(args: argparse.Namespace, session: Session, look: Callable[[], Report]) -> tuple[Source, Source]:
    from lockd.sources import source

    return source(args.a, session, look), source(args.b, session, look)


def _looker(session: Session) -> Callable[[], Report]:
    """One look for both sides, made when it is first needed."""
    from functools import cache

    from lockd.check import check
    from lockd.progress import Progress
    from lockd.session import this_launch

    @cache
    def look() -> Report:
        with Progress("lockd diff") as progress:
            return check(
                session.policy, state=session.state, lock=session.lock, launch=this_launch(), progress=progress
            )

    return look


def _differences(session: Session, a: Source, b: Source) -> tuple[Difference, ...]:
    from lockd.compare import compare, file_changes
    from lockd.sources import manifest

    counted = []
    for one in compare(a.facts, b.facts):
        files = None
        if one.change == "changed":
            old, new = manifest(a, session, one.name), manifest(b, session, one.name)
            if old is not None and new is not None:
                files = file_changes(old, new)
        counted.append(replace(one, files=files if files is not None and files.total else None))
    return tuple(counted)


def _worded(session: Session, differences: tuple[Difference, ...]) -> tuple[Finding, ...]:
    from lockd.verdict import worded

    return worded(session.policy, differences, {})


def _print(args: argparse.Namespace, a: str, b: str, findings: tuple[Finding, ...]) -> None:
    import sys

    from lockd import cli
    from lockd.report import json, text

    if args.json:
        cli.emit(json.dumps(json.diff(a, b, findings)))
    elif args.stat:
        if findings:
            cli.emit(text.diff_stat(findings))
    else:
        cli.emit(text.diff(a, b, findings, colour=text.wants_colour(sys.stdout)))
