"""`lockd service`: the units of the daemon, put in place and taken away."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lockd.service import Service


def register(subparsers: argparse._SubParsersAction[Any]) -> None:
    parser = subparsers.add_parser("service", help="the daemon's systemd units: install, remove, status")
    parser.add_argument("action", choices=("install", "remove", "status"))
    parser.add_argument("--name", metavar="NAME", help="lockd@NAME.service, for /etc/lockd/NAME.toml")
    parser.add_argument("--now", action="store_true", help="install: start it, too")
    parser.add_argument("--socket", action="store_true", help="install: the first question starts it")
    parser.add_argument("--trust-unmapped", action="store_true", help="trust files owned outside this user namespace")
    parser.add_argument("--root", default="/", metavar="DIR", help="another machine's root folder; nothing is started")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    from lockd import service
    from lockd.session import find_policy

    one = service.service(args.name, "" if args.name or args.action == "remove" else find_policy(args), args.root)
    return {"install": _install, "remove": _remove, "status": _status}[args.action](args, one)


def _install(args: argparse.Namespace, one: Service) -> int:
    from lockd import cli, policy, service

    loaded = policy.load(one.policy, trust_unmapped=args.trust_unmapped)
    files = service.install(one, loaded, socket=args.socket, trust_unmapped=args.trust_unmapped)
    if one.is_live:
        service.enable(one, now=args.now, socket=args.socket)
    _tell(args, one, "installed", files)
    if one.is_live and not args.now and not args.json:
        cli.warn(f"systemctl start {one.unit} starts it; so does the next boot")
    return 0


def _remove(args: argparse.Namespace, one: Service) -> int:
    from lockd import service
    from lockd.errors import LockdError

    if one.is_live:
        try:
            service.disable(one)
        except LockdError:  # no systemd runs: there is nothing to stop
            pass
    files = service.remove(one)
    if one.is_live and files:
        try:
            service.systemctl("daemon-reload")
        except LockdError:
            pass
    _tell(args, one, "removed", files)
    return 0


def _status(args: argparse.Namespace, one: Service) -> int:
    """0: installed, and on a machine that runs also active; 1 otherwise."""
    import os

    from lockd import cli, service
    from lockd.errors import LockdError

    installed = service.is_ours(one.file)
    active = "not told"
    if one.is_live:
        try:
            active = service.systemctl("is-active", one.unit)[1] or "unknown"
        except LockdError as error:
            active = str(error)
    told = {"schema": 1, "unit": one.unit, "installed": installed, "active": active, "file": one.file}
    if args.json:
        from lockd.report import json

        cli.emit(json.dumps(told))
    else:
        where = one.file if installed else "not installed" + (" by lockd" if os.path.lexists(one.file) else "")
        cli.emit(f"{one.unit}: {where}; {active}")
    return 0 if installed and (not one.is_live or active == "active") else 1


def _tell(args: argparse.Namespace, one: Service, what: str, files: list[str]) -> None:
    from lockd import cli

    if args.json:
        from lockd.report import json

        cli.emit(json.dumps({"schema": 1, "unit": one.unit, what: files}))
    else:
        cli.emit(f"{one.unit}: " + (f"{what} {', '.join(files)}" if files else "nothing of lockd's is there"))
