"""`lockd gc`: free what nothing in the history refers to."""

from __future__ import annotations

import argparse
from typing import Any


def register(subparsers: argparse._SubParsersAction[Any]) -> None:
    parser = subparsers.add_parser("gc", help="free kept content that nothing refers to")
    parser.add_argument("--dry-run", action="store_true", help="count, free nothing")
    parser.add_argument(
        "--keep", type=int, metavar="N", help="of the newest N generations and the last restore alone content stays"
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    import json

    from lockd import cli, gc, lock, policy, state
    from lockd.errors import LockError, RefusedError, UsageError
    from lockd.session import find_policy

    if args.keep is not None and args.keep < 1:
        raise UsageError("at least one generation is kept", where="--keep", hint="lockd gc --keep 1")
    path = find_policy(args)
    loaded = policy.load(path)
    if not state.may_accept(loaded.owner):
        raise RefusedError(f"the policy belongs to uid {loaded.owner}", where=path, hint="its owner and root may gc")
    where = state.open(path, create=False)
    try:
        known = lock.read(loaded.lock_path, policy=loaded.name)
    except LockError:
        if args.keep is not None:  # which generation has to stay is not known
            raise
        known = None
    digest = known.digest if known is not None else ""
    freed = gc.Freed() if where is None else gc.collect(where, dry_run=args.dry_run, keep=args.keep, lock=digest)
    if args.json:
        cli.emit(json.dumps({"schema": 1, "dry_run": args.dry_run, **freed._asdict()}))
    else:
        verb = "would free" if args.dry_run else "freed"
        cli.emit(f"{verb} {freed.manifests} manifests, {freed.objects} objects, {freed.bytes} bytes")
    return 0
