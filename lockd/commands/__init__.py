"""The commands: one explicit table, verb → module, each imported only when it is called.

A command module holds `register(subparsers)`, which adds its parser with `set_defaults(run=run)`, and
`run(args) -> int`, which returns the exit code. It may hold `SWITCHES`, where all its options are without a value, and
`exit_code(error) -> int`, where the contract wants another code for an error (a gate's 125).
Always holds: heavy imports stand inside `run`. `args` has `policy`, `json` and `debug`.
Never: exits, or prints an error; those are raised.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from importlib import import_module
from types import ModuleType

# in the order of --help: first what is used first
VERBS: Mapping[str, str] = {
    "init": "lockd.commands.init",
    "verify": "lockd.commands.verify",
    "accept": "lockd.commands.accept",
    "status": "lockd.commands.status",
    "diff": "lockd.commands.diff",
    "log": "lockd.commands.log",
    "run": "lockd.commands.run",
    "runs": "lockd.commands.runs",
    "note": "lockd.commands.note",
    "restore": "lockd.commands.restore",
    "gate": "lockd.commands.gate",
    "policy": "lockd.commands.policy",
    "override": "lockd.commands.override",
    "gc": "lockd.commands.gc",
    "daemon": "lockd.commands.daemon",
    "service": "lockd.commands.service",
    "export": "lockd.commands.export",
    "report": "lockd.commands.report",
    "doctor": "lockd.commands.doctor",
}


def available() -> list[str]:
    """The verbs whose module is there."""
    return list(filter(is_available, VERBS))


def is_available(verb: str) -> bool:
    """Whether there is such a command."""
    module = VERBS.get(verb)
    return module is not None and os.path.exists(f"{os.path.dirname(__file__)}/{module.rpartition('.')[2]}.py")


def load(verb: str) -> ModuleType:
    """The module of one verb."""
    return import_module(VERBS[verb])
