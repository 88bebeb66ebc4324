"""`lockd policy check|schema`: is the policy right, what would be regretted, and its JSON Schema for an editor.

Always holds: `check` exits 0 with what a person would regret on stdout, 2 with every mistake on stderr.
Never: looks at facts, or needs a lock.
"""

from __future__ import annotations

import argparse
import json
from typing import Any

_MANY = {name: f"{name}s" for name in ("python", "file", "cache", "tree", "command")}


def register(subparsers: Any) -> None:
    parser = subparsers.add_parser("policy", help="check the policy, or print its JSON Schema")
    verbs = parser.add_subparsers(dest="policy_verb", metavar="check|schema", required=True)
    check = verbs.add_parser("check", help="all mistakes at once, and what a person would regret")
    check.add_argument("file", nargs="?", help="the policy; by default the one that every command finds")
    check.add_argument("--trust-unmapped", action="store_true", help="trust files owned outside this container")
    verbs.add_parser("schema", help="print the JSON Schema, so that an editor completes and checks the file")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    return _schema() if args.policy_verb == "schema" else _check(args)


def _schema() -> int:
    from lockd.cli import emit

    emit(schema_text().rstrip("\n"))
    return 0


def schema_text() -> str:
    """The schema as it is printed, and as it stands in docs/schemas."""
    from lockd.policy_schema import schema

    return json.dumps(schema(), indent=2) + "\n"


def _check(args: argparse.Namespace) -> int:
    from lockd import policy, policy_check, trust
    from lockd.cli import emit, find_policy
    from lockd.report.text import safe

    path = args.file or find_policy(args)
    found = policy.load(path, trust_unmapped=args.trust_unmapped)
    regrets = policy_check.regrets(found)
    note = trust.check(path, "policy", trust_unmapped=args.trust_unmapped)
    if args.json:
        document = {
            "schema": 1,
            "policy": {"name": found.name, "path": found.path, "digest": found.digest},
            "warnings": regrets,
            "note": note,
        }
        emit(json.dumps(document, indent=2))
        return 0
    lines = [f"{safe(found.path)}: policy {found.name} is valid: {_counted(found)}"]
    lines += [f"warning: {safe(line)}" for line in ([note] if note else []) + regrets]
    emit("\n".join(lines))
    return 0


def _counted(found: Any) -> str:
    from lockd.policy_sense import RULES

    words = []
    for section in RULES:
        value = getattr(found, section)
        count = len(value) if hasattr(value, "__len__") else int(value is not None)
        if count:
            words.append(f"{count} {section if count == 1 else _MANY.get(section, section)}")
    return ", ".join(words)
