"""`lockd status`: what stands, how it is watched, what drifted since when and by whom, and what runs."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lockd.rules import Policy


def register(subparsers: argparse._SubParsersAction[Any]) -> None:
    parser = subparsers.add_parser("status", help="daemon, watch mode, standing verdict, open findings, launches")
    parser.add_argument(
        "--exit-code", action="store_true", help="exit with the verdict: 0 ok or warn, 1 block, 3 unknown"
    )
    parser.add_argument("--trust-unmapped", action="store_true", help="trust files owned outside this user namespace")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    import sys

    from lockd import cli
    from lockd.report import json, status
    from lockd.report.text import wants_colour
    from lockd.verdict import EXIT

    told = _told(args)
    cli.emit(json.dumps(told) if args.json else status.status(told, wants_colour(sys.stdout)))
    return EXIT[told["verdict"]] if args.exit_code else 0


def _told(args: argparse.Namespace) -> dict[str, Any]:
    """The daemon's document, else that of a direct look; with the launches that run now."""
    from lockd import client
    from lockd.session import find_policy

    path = find_policy(args)
    told = client.ask(path, {"ask": "status"}) if client.there(path) else None
    policy, trouble = _policy(args)
    if told is None:
        if trouble is not None:
            raise trouble
        told = _direct(args)
    elif trouble is not None:
        told["verdict"], told["trouble"] = "unknown", told["trouble"] or str(trouble).splitlines()[0]
    return {**told, "running": [] if policy is None else _running(policy, told["findings"])}


def _policy(args: argparse.Namespace) -> tuple[Policy | None, Exception | None]:
    from lockd import policy
    from lockd.errors import LockdError
    from lockd.session import find_policy

    try:
        return policy.load_cached(find_policy(args), None, trust_unmapped=args.trust_unmapped), None
    except LockdError as error:
        return None, error


def _direct(args: argparse.Namespace) -> dict[str, Any]:
    """A direct look, in the daemon's words; nothing of it is recorded."""
    from lockd import overrides
    from lockd.check import check
    from lockd.report import json
    from lockd.session import open_session

    session = open_session(args)
    report = check(session.policy, state=session.state, lock=session.lock, launch=None, commands=False)
    return {
        "schema": json.SCHEMA,
        "verdict": report.verdict,
        "settled": True,
        "trouble": "",
        "environment": report.environment,
        "generation": report.lock.generation if report.lock else None,
        "age_s": 0.0,
        **json.policy_and_lock(report),
        "findings": [json.finding(one) for one in (*report.findings, *report.recorded)],
        "not_looked": list(report.not_looked),
        "override": overrides.told(session.state),
        "daemon": None,
        "watch": {},
        "looks": None,
        "resources": None,
    }


def _running(policy: Policy, findings: list[dict[str, Any]]) -> list[dict[str, Any]]:
    from lockd import running

    return [one.document(running.differing(one, policy, findings)) for one in running.launches(policy)]
