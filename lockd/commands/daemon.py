"""`lockd daemon`: watch in the foreground, keep the standing verdict, answer."""

from __future__ import annotations

import argparse
from typing import Any


def register(subparsers: argparse._SubParsersAction[Any]) -> None:
    parser = subparsers.add_parser("daemon", help="watch in the foreground, keep the verdict, answer (units run this)")
    parser.add_argument("--trust-unmapped", action="store_true", help="trust files owned outside this user namespace")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    from lockd.daemon import serve
    from lockd.session import find_policy

    return serve.run(find_policy(args), trust_unmapped=args.trust_unmapped)
