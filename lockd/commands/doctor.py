"""`lockd doctor`: can lockd do its job here? One line a check; exit 1 when one fails."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import argparse

    from lockd.doctor import Check


def register(subparsers: argparse._SubParsersAction[Any]) -> None:
    parser = subparsers.add_parser("doctor", help="can lockd do its job here")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    from lockd import cli, doctor
    from lockd.report import json
    from lockd.session import find_policy

    checks = doctor.examine(lambda: find_policy(args))
    failed = any(check.status == "fail" for check in checks)
    if args.json:
        document = {"schema": 1, "ok": not failed, "checks": [check._asdict() for check in checks]}
        cli.emit(json.dumps(document))
    else:
        cli.emit("\n".join(_lines(checks)))
    return 1 if failed else 0


def _lines(checks: list[Check]) -> list[str]:
    import sys

    from lockd.report.text import paint, safe, wants_colour

    colour = wants_colour(sys.stdout)
    colours = {"ok": "ok", "warn": "warn", "fail": "block"}
    lines = []
    for check in checks:
        lines.append(f"{paint(f'{check.status:5}', colours[check.status], colour)} {check.name}: {safe(check.what)}")
        if check.hint:
            lines.append(paint(f"        → {safe(check.hint)}", "dim", colour))
    return lines
