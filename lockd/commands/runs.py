"""`lockd runs`: what was launched, on what, and what became of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import argparse

    from lockd.findings import Difference
    from lockd.runs import Run
    from lockd.state import State
    from lockd.store import Store


def register(subparsers: argparse._SubParsersAction[Any]) -> None:
    parser = subparsers.add_parser(
        "runs", help="runs with verdict, duration, exit, findings and noted numbers; --json tells their conditions"
    )
    parser.add_argument("-n", dest="max", type=int, metavar="N", help="the last N")
    parser.add_argument("--compare", action="store_true", help="numbers by environment, and what differs between them")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    from lockd import cli, runs
    from lockd.clock import stamp
    from lockd.errors import UsageError
    from lockd.report import json
    from lockd.report import runs as report

    if args.max is not None and args.max < 1:
        raise UsageError("at least one", where="-n")
    with opened(args) as (state, store):
        listed = [] if state is None or store is None else _listed(state, store, args.max)
        listed = _with_guests(args, listed)
        if args.compare and store is not None:
            _compare(args, store, listed)
        elif args.json:
            cli.emit(json.dumps([runs.document(one) for one in listed]))
        else:
            cli.emit(report.table(listed, stamp()))
    return 0


@contextmanager
def opened(args: argparse.Namespace, *, create: bool = False) -> Iterator[tuple[State | None, Store | None]]:
    """The state in which this user's runs of the policy stand, and its store; None where nothing was recorded yet."""
    from lockd import state as states
    from lockd.session import find_policy

    state = states.open(find_policy(args), create=create, guest=True)
    store = None if state is None else state.store(create=create)
    try:
        yield state, store
    finally:
        if store is not None:
            store.close()


def _listed(state: State, store: Store, limit: int | None) -> list[Run]:
    """The runs, those that have ended meanwhile with their end."""
    from lockd import cli, runs
    from lockd.errors import LockdError
    from lockd.gates import ending

    try:
        ending.settle(state, store)
    except (LockdError, OSError) as error:  # a full disk hides no run
        cli.warn(f"ends and notes of runs could not be recorded: {error}")
    return runs.listed(store, limit)


def _with_guests(args: argparse.Namespace, listed: list[Run]) -> list[Run]:
    """For root: those that other users recorded in states of their own, among the others by their start."""
    from lockd import cli, guests
    from lockd.session import find_policy

    found = list(listed)
    for guest in guests.guests(find_policy(args)):
        try:
            found += guests.runs_of(guest)
        except OSError as error:
            cli.warn(f"the runs of {guest.name} could not be read: {error.strerror}")
    return found if len(found) == len(listed) else sorted(found, key=lambda one: one.start, reverse=True)[: args.max]


def _compare(args: argparse.Namespace, store: Store, listed: Sequence[Run]) -> None:
    from lockd import cli
    from lockd.report import json
    from lockd.report import runs as report

    found = report.groups(listed)
    changes = dict(_changes(store, found))
    if not args.json:
        cli.emit(report.comparison(found, changes))
        return
    cli.emit(json.dumps([_group(environment, members, changes) for environment, members in found.items()]))


def _changes(store: Store, found: Mapping[str, Sequence[Run]]) -> Iterator[tuple[str, Sequence[Difference] | str]]:
    """What differs between each environment's newest run and that of the environment before."""
    from lockd import runs
    from lockd.compare import compare
    from lockd.errors import LookError

    before: Run | None = None
    for environment, members in found.items():
        if before is not None:
            try:
                yield environment, compare(runs.facts(store, before), runs.facts(store, members[-1]))
            except LookError as error:
                yield environment, str(error)
        before = members[-1]


def _group(
    environment: str, members: Sequence[Run], changes: Mapping[str, Sequence[Difference] | str]
) -> dict[str, Any]:
    from lockd.report import runs as report
    from lockd.verdict import word

    numbers = {name: report.summary(found) for name, found in report.numbers_of(members).items()}
    group: dict[str, Any] = {"environment": environment, "runs": [one.number for one in members], "metrics": numbers}
    told = changes.get(environment)
    if isinstance(told, str):
        return {**group, "unknown": told}
    if told is not None:
        group["differences"] = [{"fact": one.name, "change": one.change, "message": word(one)} for one in told]
    return group
