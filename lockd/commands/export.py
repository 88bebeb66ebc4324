"""`lockd export`: the facts of one state for other tools, and for `lockd diff` to read back."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import argparse

    from lockd.check import Report
    from lockd.session import Session


def register(subparsers: argparse._SubParsersAction[Any]) -> None:
    parser = subparsers.add_parser("export", help="the facts, for other tools and for lockd diff")
    parser.add_argument("state", nargs="?", default="now", help="now (the default), lock, @N or a time")
    parser.add_argument("--format", choices=["json"], default="json", help="the form (json)")
    parser.add_argument("--trust-unmapped", action="store_true", help="trust files owned outside this user namespace")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    from lockd import cli
    from lockd.clock import stamp
    from lockd.facts import environment_id, launch_id
    from lockd.report import json
    from lockd.session import open_session
    from lockd.sources import source

    session = open_session(args)
    reports: list[Report] = []
    found = source(args.state, session, lambda: _look(session, reports))
    facts = found.facts.values()
    if args.state == "now":
        environment, launch = reports[0].environment, reports[0].launch
    elif args.state == "lock" and session.lock is not None:
        environment, launch = session.lock.environment, session.lock.launch
    else:
        environment, launch = environment_id(facts), launch_id(facts)
    head = {
        "policy": {"name": session.policy.name, "path": session.policy.path, "digest": session.policy.digest},
        "state": found.label,
        "at": found.at or stamp(),
        "environment": environment,
        "launch": launch,
    }
    cli.emit(json.dumps(json.export(found.facts, **head)))
    return 0


def _look(session: Session, reports: list[Report]) -> Report:
    from lockd import cli, history
    from lockd.progress import checked

    reports.append(checked(session, "lockd export"))
    history.remember(session.state, reports[0], cli.warn)
    return reports[0]
