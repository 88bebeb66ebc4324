"""`lockd verify`: the pre-launch hook. Looks, compares, prints the verdict, exits with it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import argparse

    from lockd.check import Report
    from lockd.session import Session
    from lockd.state import State

_NO_LOCK = "no known-good yet: lockd accept -m WHY records one, once this state is known to be good"
SWITCHES = ("--full", "--strict", "--all", "--trust-unmapped")


def register(subparsers: argparse._SubParsersAction[Any]) -> None:
    parser = subparsers.add_parser("verify", help="look, compare, print the verdict: the pre-launch hook")
    parser.add_argument("--full", action="store_true", help="read every byte again")
    parser.add_argument("--strict", action="store_true", help="warnings count as block")
    parser.add_argument("--all", action="store_true", help="list changes under on_drift = record as well")
    parser.add_argument("--trust-unmapped", action="store_true", help="trust files owned outside this user namespace")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    answer = None if args.full or args.debug else _of_daemon(args)
    return _direct(args) if answer is None else answer


def _of_daemon(args: argparse.Namespace) -> int | None:
    """The exit code, where a live daemon of this policy answered; it looks in memory, after its last event."""
    import sys

    from lockd import cli, client
    from lockd.report.text import wants_colour
    from lockd.session import find_policy, outside, this_launch

    path = find_policy(args)
    if not client.there(path):
        return None
    how = {"commands": True, "every": args.all, "strict": args.strict, "json": args.json}
    request = client.question(
        path, this_launch(), trust_unmapped=args.trust_unmapped, colour=wants_colour(sys.stdout), **how
    )
    answer = client.ask(path, request)
    if answer is None:
        return None
    for note in outside(args, path, path.removesuffix(".toml") + ".lock"):
        cli.warn(note)
    if args.json and not answer["locked"]:
        cli.warn(_NO_LOCK)
    cli.emit(answer["text"])
    return int(answer["exit"])


def _direct(args: argparse.Namespace) -> int:
    from lockd import cli
    from lockd.progress import checked
    from lockd.session import open_session
    from lockd.verdict import EXIT, strict

    session = open_session(args)
    report = checked(session, "lockd verify", full=args.full)
    _record(session, report)
    if args.full and session.state is not None:
        _mark_full_look(session.state)
    for note in session.notes:
        cli.warn(note)
    if args.debug:
        for failure in report.sight.failures:
            cli.warn(failure)
    verdict = strict(report.verdict) if args.strict else report.verdict
    _print(report, verdict, args)
    return EXIT["ok"] if report.override is not None else EXIT[verdict]


def _print(report: Report, verdict: str, args: argparse.Namespace) -> None:
    import sys

    from lockd import cli

    if args.json:
        from lockd.report import json

        if report.lock is None:
            cli.warn(_NO_LOCK)

        cli.emit(json.dumps(json.verify(report, verdict, every=args.all)))
    else:
        from lockd.report import text

        cli.emit(text.verify(report, verdict, colour=text.wants_colour(sys.stdout), every=args.all))


def _mark_full_look(state: State) -> None:
    """Remember when every byte was read last, for doctor."""
    import os

    from lockd import cli
    from lockd.doctor import FULL_LOOK

    try:
        with open(os.path.join(state.folder, FULL_LOOK), "w", encoding="ascii"):
            pass
    except OSError as error:
        cli.warn(f"the time of this full look could not be kept: {error.strerror}")


def _nothing_stands(state: State, report: Report) -> bool:
    """Whether nothing differs, nothing did, and the state is the one seen last: told by the standing file's bytes."""
    if report.findings or report.recorded or report.policy.command:
        return False
    try:
        with open(state.standing_path, "rb") as file:
            text = file.read()  # inside a JSON string the quotes would be escaped
            return b'"findings": {}' in text and f'"seen": "{report.environment_full}"'.encode() in text
    except OSError:
        return False


def _record(session: Session, report: Report) -> None:
    """Drift that came or healed goes into the history; a history that cannot be written changes no verdict."""
    if session.state is None or _nothing_stands(session.state, report):
        return
    from lockd import cli, history

    try:
        history.record(session.state, report)
    except OSError as error:
        cli.warn(f"the history could not be written: {error.strerror}")
