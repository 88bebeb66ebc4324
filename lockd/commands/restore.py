"""`lockd restore [FACT…]`: the plan to be good again, and with `--apply` the deed."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lockd.check import Report
    from lockd.lock import Lock
    from lockd.restore import Plan
    from lockd.rules import Policy
    from lockd.runs import Run
    from lockd.state import State
    from lockd.store import Store

_NAMED = 3  # launches that a refusal names
_LONGEST = 100  # characters of a command line in it


def register(subparsers: argparse._SubParsersAction[Any]) -> None:
    parser = subparsers.add_parser("restore", help="the plan to be good again; --apply does it")
    parser.add_argument(
        "facts", nargs="*", metavar="FACT", help="put these back alone; else all that breaks the verdict"
    )
    parser.add_argument("--apply", action="store_true", help="do it, then verify")
    parser.add_argument("--undo", action="store_true", help="take the last restore back")
    parser.add_argument("--generation", metavar="N", help="go back to generation N, not to the lock")
    parser.add_argument("--all", action="store_true", help="take everything away that was added")
    parser.add_argument("--wheels", metavar="DIR", default="", help="a folder with wheels to take packages from")
    parser.add_argument("--force", action="store_true", help="even while a launch of the policy runs")
    parser.add_argument("--trust-unmapped", action="store_true", help="trust files owned outside this user namespace")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    from lockd import cli, policy, state, wheels
    from lockd.errors import LookError, RefusedError, UsageError
    from lockd.session import find_policy

    if args.undo and (args.facts or args.generation or args.all):
        raise UsageError("--undo takes back the whole of the last restore", hint="lockd restore --undo")
    path = find_policy(args)
    loaded = policy.load(path, trust_unmapped=args.trust_unmapped)
    if not state.may_accept(loaded.owner):
        hint = "the policy's owner and root may restore"
        raise RefusedError(f"the policy belongs to uid {loaded.owner}", where=path, hint=hint)
    deed = args.apply or args.undo
    where = state.open(path, create=deed)
    if where is None and deed:
        raise LookError("there is no place for the state of this user", hint="set HOME, XDG_STATE_HOME or LOCKD_STATE")
    if deed and not args.force:
        _check_quiet(loaded, where)
    if where is not None and deed:
        return _deed(args, loaded, where)
    store = None if where is None else where.store()
    try:
        with wheels.stage(None) as stage:
            cli.emit(_told(args, _plan(args, loaded, where, store, stage)))
    finally:
        if store is not None:
            store.close()
    return 0


def _check_quiet(policy: Policy, state: State | None) -> None:
    """Files of a job that runs are not exchanged under it."""
    from lockd.errors import RefusedError
    from lockd.launched import launches

    running = [f"pid {pid}: {command}" for pid, command in launches(policy)] or list(_recorded(state))
    if running:
        more = f"; and {len(running) - _NAMED} more" if len(running) > _NAMED else ""
        what = f"a launch of this policy runs ({'; '.join(running[:_NAMED])}{more})"
        raise RefusedError(what, where=policy.path, hint="wait for its end, or stop it; --force restores beneath it")


def _recorded(state: State | None) -> Iterator[str]:
    """Runs that live by their records, whatever /proc calls them: CMD need not be a script of the policy."""
    from lockd import runs

    store = None if state is None else state.store()
    if store is not None:
        with store:
            yield from [_spoken(run) for run in runs.running_or_lost(store) if runs.living(run)]


def _spoken(run: Run) -> str:
    pids = ", ".join(str(process["pid"]) for process in run.body.get("processes", ()))
    return f"{run.name}, pid {pids}: {run.command[:_LONGEST]}"


def _plan(args: argparse.Namespace, policy: Policy, state: State | None, store: Store | None, stage: str) -> Plan:
    """Look, compare with the wanted generation, plan."""
    from lockd import check, restore
    from lockd.disk import Disk
    from lockd.progress import Progress
    from lockd.session import this_launch

    lock = _lock(args, policy, store)
    with Progress("lockd restore") as progress:
        report = check.check(policy, state=state, lock=lock, launch=this_launch(), progress=progress)
    if args.apply and state is not None and args.generation is None:
        _record(state, report)
    wish = restore.Wish(tuple(args.facts), args.all, args.wheels, fetch=args.apply)
    disk = Disk(cache_dir=None if state is None else state.cache_dir)
    return restore.plan(restore.Ground(report, lock, store, disk, wish, stage))


def _lock(args: argparse.Namespace, policy: Policy, store: Store | None) -> Lock:
    """The lock beside the policy, or that of the generation that was named."""
    from lockd import lock
    from lockd.errors import LookError, UsageError

    if args.generation is None:
        found = lock.read(policy.lock_path, policy=policy.name, trust_unmapped=args.trust_unmapped)
        if found is None:
            hint = "there is nothing to go back to; lockd accept -m WHY records a known-good"
            raise LookError("no known-good yet", where=policy.lock_path, hint=hint)
        return found
    number = args.generation.removeprefix("@")
    if not number.isdecimal():
        raise UsageError(f"{args.generation!r} is no generation", where="--generation", hint="a number, or @N")
    text = None if store is None else store.lock_text(int(number))
    if text is None:
        hint = "lockd log --kind accept lists those that are"
        raise LookError(f"generation {number} is not known here", where=policy.path, hint=hint)
    return lock.parse(text, policy.lock_path)


def _deed(args: argparse.Namespace, policy: Policy, state: State) -> int:
    """Plan and do it with nobody else at work, then look again."""
    from lockd import accept_record, cli, origin, restore_apply, store, wheels
    from lockd import journal as journals
    from lockd.disk import Disk
    from lockd.progress import Progress

    with accept_record.alone(state, cli.warn):
        opened = store.open(state.store_path)
        assert opened is not None  # it is made where missing
        with opened, wheels.stage(state) as stage, Progress("lockd restore") as progress:
            if args.undo:
                journal, plan = restore_apply.undo_plan(state, opened, Disk(cache_dir=state.cache_dir))
                restore_apply.apply(state, opened, plan, origin.current(), kind="undo", say=progress)
                journals.undone(state, journal)
            else:
                plan = _plan(args, policy, state, opened, stage)
                restore_apply.apply(state, opened, plan, origin.current(), say=progress)
    return _verify(args, policy, state, plan)


def _verify(args: argparse.Namespace, policy: Policy, state: State, plan: Plan) -> int:
    """The verdict afterwards, recorded as any look."""
    import sys

    from lockd import check, cli, lock, origin
    from lockd.plain import replace
    from lockd.report import json, restored, text
    from lockd.session import this_launch
    from lockd.verdict import EXIT

    known = lock.read(policy.lock_path, policy=policy.name, trust_unmapped=args.trust_unmapped)
    report = check.check(policy, state=state, lock=known, launch=this_launch())
    who = origin.current().data()
    report = replace(report, healed={step.fact: who for step in plan.steps if not plan.undo})  # seen: it was us
    _record(state, report)
    if args.json:
        cli.emit(json.dumps({**restored.document(plan, applied=True), "verify": json.verify(report, report.verdict)}))
    else:
        cli.emit(restored.text(plan, applied=True))
        cli.emit(text.verify(report, report.verdict, colour=text.wants_colour(sys.stdout)))
    return EXIT[report.verdict]


def _record(state: State, report: Report) -> None:
    """What drifted and healed goes into the history, before the deed and after it."""
    from lockd import cli, history

    try:
        history.record(state, report)
    except OSError as error:
        cli.warn(f"the history could not be written: {error.strerror}")


def _told(args: argparse.Namespace, plan: Plan) -> str:
    from lockd.report import json, restored

    return json.dumps(restored.document(plan, applied=False)) if args.json else restored.text(plan, applied=False)
