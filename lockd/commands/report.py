"""`lockd report`: verdict, differences, known-good states, runs and log as one HTML page for people."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import argparse

    from lockd.check import Report
    from lockd.report.page import Told
    from lockd.session import Session

_RUNS, _EVENTS = 100, 300  # that a page shows; it says how many it leaves out


def register(subparsers: argparse._SubParsersAction[Any]) -> None:
    parser = subparsers.add_parser("report", help="one HTML page for people: verdict, differences, runs, log")
    parser.add_argument("-o", "--output", metavar="FILE", help="write it there (else stdout); replaces only a report")
    parser.add_argument("--since", metavar="TIME", help="the log from then on: `2 days ago`, an ISO time")
    parser.add_argument("--full", action="store_true", help="read every byte again")
    parser.add_argument("--exit-code", action="store_true", help="exit with the verdict's code")
    parser.add_argument("--trust-unmapped", action="store_true", help="trust files owned outside this user namespace")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    from lockd import cli, history
    from lockd.errors import UsageError
    from lockd.progress import checked
    from lockd.report.page import page
    from lockd.session import open_session
    from lockd.verdict import EXIT

    if args.json:
        raise UsageError("a report is HTML", where="--json", hint="lockd verify --json, lockd export, lockd log --json")
    since = _since(args.since)
    if args.output is not None:
        _check_replaced(args.output)
    session = open_session(args)
    report = checked(session, "lockd report", full=args.full)
    history.remember(session.state, report, cli.warn)
    for note in session.notes:
        cli.warn(note)
    text = page(_told(session, report, since))
    if args.output is None:
        cli.emit(text)
    else:
        _write(args.output, text)
    covered = report.override is not None
    return EXIT["ok"] if covered or not args.exit_code else EXIT[report.verdict]


def _since(text: str | None) -> Any:
    from datetime import datetime, timezone

    from lockd.history import parse_time

    return parse_time(text, datetime.now(timezone.utc)) if text else None


def _told(session: Session, report: Report, since: Any) -> Told:
    """Everything that the page is made of. What can't be read of the state is a note on it."""
    from itertools import islice

    from lockd import __version__, cli, history, ranking, runs
    from lockd.clock import stamp
    from lockd.errors import LockdError
    from lockd.report.page import Told

    notes: list[str] = []
    generations: list[Any] = []
    ran: list[Any] = []
    events: list[Any] = []
    count = 0
    try:
        store = None if session.state is None else session.state.store()
        if store is None:
            notes.append("no state of this user holds a history of this policy")
        else:
            with store:
                generations = store.generations()[::-1]
                ran = runs.listed(store, _RUNS)
                timeline = history.timeline(store, history.Query(since=since))
                events = list(islice(timeline, _EVENTS))
                count = len(events) + sum(1 for _ in timeline)
    except LockdError as error:
        cli.warn(f"the history could not be read: {error}")
        notes.append(f"the history could not be read: {error}")
    return Told(
        report,
        report.verdict,
        ranking.grouped(report.findings),
        generations,
        ran,
        events,
        count,
        stamp(),
        __version__,
        notes,
    )


def _check_replaced(path: str) -> None:
    """Only an earlier report is written over."""
    import os
    import stat

    from lockd.errors import UsageError
    from lockd.report.page import MARK

    head = b""
    try:
        if stat.S_ISREG(os.lstat(path).st_mode):  # to open a FIFO would wait for its writer
            with open(path, "rb") as file:
                head = file.read(1000)
    except FileNotFoundError:
        return
    except OSError as error:
        raise UsageError(f"is there and can't be replaced: {error.strerror}", where=path) from None
    if MARK.encode() not in head:
        raise UsageError("is there and is no report of lockd", where=path, hint="name another file, or take it away")


def _write(path: str, text: str) -> None:
    """Whole or not at all; the owner's alone, as it tells of command lines and paths."""
    from lockd import atomic
    from lockd.errors import LockdError

    try:
        atomic.write(path, text.encode("utf-8", "backslashreplace"), mode=0o600)
    except OSError as error:
        raise LockdError(f"the report could not be written: {error.strerror}", where=path) from None
