"""`lockd log`: one timeline of accepts, drift seen and healed, launches, refusals, overrides."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lockd.history import Query
    from lockd.session import Session
    from lockd.store import Logged, Store


def register(subparsers: argparse._SubParsersAction[Any]) -> None:
    parser = subparsers.add_parser("log", help="one timeline: accepts, drift seen and healed, launches")
    parser.add_argument("--since", metavar="TIME", help="`2 hours ago`, `yesterday 18:00`, an ISO time")
    parser.add_argument("--until", metavar="TIME", help="no later than this")
    parser.add_argument("--kind", action="append", default=[], help="accept, drift, heal, launch, …")
    parser.add_argument("--fact", action="append", default=[], help="about this fact")
    parser.add_argument("--reverse", action="store_true", help="oldest first")
    parser.add_argument("-n", "--max", type=int, metavar="COUNT", help="no more than this many")
    parser.add_argument("--check", action="store_true", help="prove that no entry was changed or removed")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    from lockd.session import open_session

    session = open_session(args)
    query = _query(args)
    store = None if session.state is None else session.state.store()
    if store is None:
        return _nothing(args)
    with store:
        _settle(session, store)
        if args.check:
            return _check(args, store)
        return _list(args, store, query)


def _query(args: argparse.Namespace) -> Query:
    """Times and kinds, checked before anything is opened."""
    from datetime import datetime, timezone

    from lockd.errors import UsageError
    from lockd.history import KINDS, Query, parse_time

    now = datetime.now(timezone.utc)
    if args.max is not None and args.max < 0:
        raise UsageError(f"{args.max} entries can't be shown", where="--max", hint="lockd log --max 20")
    unknown = [kind for kind in args.kind if kind not in KINDS]
    if unknown:
        raise UsageError(f"there is no kind {unknown[0]!r}", where="--kind", hint=f"one of {', '.join(KINDS)}")
    since, until = (parse_time(text, now) if text else None for text in (args.since, args.until))
    return Query(since, until, tuple(args.kind))


def _settle(session: Session, store: Store) -> None:
    """What a killed accept left, or a lock that came with a checkout, belongs in the timeline first."""
    from lockd import cli, lock
    from lockd.errors import LockdError

    data = lock.read_bytes(session.policy.lock_path) if session.lock is not None else None
    if session.lock is not None and data is not None and lock.digest_of(data) == session.lock.digest:
        try:
            store.settle(session.lock, data, forget=False)
        except LockdError as error:  # a full disk hides no entry
            cli.warn(f"the log is shown as it was recorded, nothing could be added: {error}")


def _nothing(args: argparse.Namespace) -> int:
    from lockd import cli

    if args.json:
        cli.emit('{"schema": 1, "broken": null, "entries": 0}' if args.check else "[]")
    else:
        cli.warn("nothing was recorded yet for this policy by this user")
    return 0


def _check(args: argparse.Namespace, store: Store) -> int:
    import json

    from lockd import cli
    from lockd.errors import BLOCK, OK

    broken = store.check_chain()
    entries = store.rows("SELECT count(*) FROM events")[0][0]
    if args.json:
        cli.emit(json.dumps({"schema": 1, "broken": broken, "entries": entries}))
    elif broken is None:
        cli.emit(f"{entries} entries, each bound to the one before: whole")
    else:
        cli.emit(f"entry {broken} was changed, moved or removed; what follows it proves nothing")
    return OK if broken is None else BLOCK


def _list(args: argparse.Namespace, store: Store, query: Query) -> int:
    import sys
    from dataclasses import replace
    from itertools import islice

    from lockd import cli, history, names
    from lockd.report import json

    facts = tuple(names.resolve_all(history.known_facts(store), args.fact)) if args.fact else ()
    most = None if args.max is None else min(args.max, sys.maxsize)
    events = islice(history.timeline(store, replace(query, facts=facts), oldest_first=args.reverse), most)
    if args.json:
        cli.emit(json.dumps([_row(entry) for entry in events]))
    elif sys.stdout.isatty():
        _page(list(events))
    else:
        for entry in events:
            cli.emit(_line(entry))
    return 0


def _page(events: list[Logged]) -> None:
    """On a terminal: through a pager where it would not fit."""
    import pydoc
    import shutil

    from lockd import cli

    text = "\n".join(map(_line, events))
    if len(events) >= shutil.get_terminal_size().lines:
        pydoc.pager(text)
    elif text:
        cli.emit(text)


def _row(entry: Logged) -> dict[str, Any]:
    """One entry; what does not apply is left out."""
    row = {"id": entry.id, **entry.event._asdict()}
    return {name: value for name, value in row.items() if value is not None}


def _line(entry: Logged) -> str:
    from lockd.report.text import safe

    event = entry.event
    subject = (event.fact or "").partition(":")[2]
    about = f" {event.fact}:" if event.fact and subject not in event.message else ""
    by = "" if event.by is None else f"  [{_who(dict(event.by))}]"
    line = f"{entry.id:>5}  {event.at}  {event.kind:<8}{about} {event.message}{by}"
    return safe(line.replace("\n", "\\n"))  # an entry is one line, whatever a command line held


def _who(by: dict[str, Any]) -> str:
    if by.get("confidence") == "not observed":
        return f"not observed: {by.get('reason', 'no reason told')}"
    words = [str(by[name]) for name in ("user", "sudo_user") if by.get(name)]
    command = by.get("cmdline")
    if isinstance(command, list) and command:
        words.append(" ".join(map(str, command))[:80])
    if by.get("origin"):
        words.append(str(by["origin"]))
    return ", ".join(words) or "not told"
