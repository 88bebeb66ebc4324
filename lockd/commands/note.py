"""`lockd note RUN key=value …`: numbers and words about a run, such as `ktok_s=12.8` or `good=true`."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import argparse

_LONGEST = 200


def register(subparsers: argparse._SubParsersAction[Any]) -> None:
    parser = subparsers.add_parser("note", help="note numbers and words about a run: lockd note last ktok_s=12.8")
    parser.add_argument("noted", metavar="RUN", help="a number, run:N, last, running or good")
    parser.add_argument("values", nargs="+", metavar="KEY=VALUE", help="ktok_s=12.8, good=true, …")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    from lockd import cli, origin, runs
    from lockd.commands.runs import opened
    from lockd.errors import LookError
    from lockd.gates import ending
    from lockd.report import json
    from lockd.report.text import safe

    values = dict(_value(word) for word in args.values)
    with opened(args) as (state, store):
        if state is None or store is None:
            raise LookError(f"{args.noted}: no run is recorded", hint="lockd run -- CMD records one")
        ending.settle(state, store)
        found = runs.resolve(store, args.noted)
        runs.note(store, found.number, values, origin.current())
        if args.json:
            cli.emit(json.dumps({"schema": 1, "run": found.number, "notes": {**found.notes, **values}}))
        else:
            said = ", ".join(f"{name}={runs.spoken(value)}" for name, value in values.items())
            cli.emit(safe(f"{found.name}: {said}"))
    return 0


def _value(word: str) -> tuple[str, Any]:
    from lockd import runs
    from lockd.errors import UsageError
    from lockd.facts import shown

    name, equals, text = word.partition("=")
    if not equals or not re.fullmatch(r"[A-Za-z_][\w.\-]{0,63}", name):
        raise UsageError(f"{word!r} is no KEY=VALUE", where="note", hint="lockd note last ktok_s=12.8")
    if len(text) > _LONGEST:
        raise UsageError(f"a note has at most {_LONGEST} characters", where=f"note {name}")
    return name, runs.value(shown(text))
