"""`lockd gc`: free what nothing in the history refers to."""

from __future__ import annotations

import argparse
from typing import Any


def register(subparsers: argparse._SubParsersAction[Any]) -> None:
    parser = subparsers.add_parser("gc", help="free kept content that nothing refers to")
    parser.add_argument("--dry-run", action="store_true", help="count, free nothing")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    import json

    from lockd import cli, gc, policy, state
    from lockd.errors import RefusedError
    from lockd.session import find_policy

    path = find_policy(args)
    loaded = policy.load(path)
    if not state.may_accept(loaded.owner):
        raise RefusedError(f"the policy belongs to uid {loaded.owner}", where=path, hint="its owner and root may gc")
    where = state.open(path, create=False)
    freed = gc.Freed() if where is None else gc.collect(where, dry_run=args.dry_run)
    if args.json:
        cli.emit(json.dumps({"schema": 1, "dry_run": args.dry_run, **freed._asdict()}))
    else:
        verb = "would free" if args.dry_run else "freed"
        cli.emit(f"{verb} {freed.manifests} manifests, {freed.objects} objects, {freed.bytes} bytes")
    return 0
