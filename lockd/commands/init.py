"""`lockd init`: write a first policy from what is on the machine, or from a running job.

Always holds: exit 0 with where it lies, what was found and what to do next; 2 where a file is there already, the pid
can't be read, or nothing was found.
Never: overwrites.
"""

from __future__ import annotations

import argparse
import json
import os
from typing import Any


def register(subparsers: Any) -> None:
    parser = subparsers.add_parser("init", help="look at the machine and write a first policy")
    parser.add_argument("--from-pid", type=int, metavar="PID", help="from a running job instead")
    parser.add_argument("-o", "--output", metavar="FILE", help="where to write it (./lockd.toml); never overwrites")
    parser.add_argument("--name", default="", help="the name of the policy (the host's)")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    from lockd.cli import emit
    from lockd.facts import shown
    from lockd.init import init

    written = init(
        args.output or getattr(args, "policy", None) or "lockd.toml",
        name=args.name,
        pid=args.from_pid,
        environ=os.environ,
    )
    if args.json:
        policy = {"name": written.name, "path": shown(written.path)}
        emit(json.dumps({"schema": 1, "policy": policy, "found": written.found}, indent=2))
        return 0
    here = os.path.join(os.getcwd(), "lockd.toml") == written.path
    option = "" if here else f" --policy {shown(written.path)}"
    lines = [f"wrote {shown(written.path)}, the policy {written.name}", *(f"  {line}" for line in written.found)]
    lines += ["next: read it, then", f"  lockd{option} policy check", f'  lockd{option} accept -m "first known-good"']
    emit("\n".join([*lines, f"  lockd{option} verify"]))
    return 0
