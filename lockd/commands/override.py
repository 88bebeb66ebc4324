"""`lockd override`: break-glass for a while: launches start in spite of what blocks now, and every verdict says so."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import argparse

    from lockd.check import Report
    from lockd.overrides import Override
    from lockd.rules import Policy
    from lockd.state import State


def register(subparsers: argparse._SubParsersAction[Any]) -> None:
    parser = subparsers.add_parser("override", help="break-glass: let launches start for a while, with a reason")
    parser.add_argument("why", nargs="?", metavar="WHY", help="the reason; it stands in the log and in every verdict")
    parser.add_argument("--for", dest="duration", metavar="TIME", help="how long: 30m, 2h, 1d")
    parser.add_argument("--only", action="append", default=[], metavar="FACT", help="for this finding alone")
    parser.add_argument("--list", action="store_true", help="what stands now")
    parser.add_argument("--end", action="store_true", help="end it now")
    parser.add_argument("--trust-unmapped", action="store_true", help="trust files owned outside this user namespace")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    from lockd import policy
    from lockd.errors import LookError, UsageError
    from lockd.session import find_policy

    given = [args.list, args.end, args.duration is not None]
    if sum(given) != 1 or (args.why is not None) != (args.duration is not None):
        hint = 'lockd override --for 2h "deadline"; lockd override --list; lockd override --end'
        raise UsageError("say for how long and why, or --list, or --end", where="override", hint=hint)
    path = find_policy(args)
    loaded = policy.load(path, trust_unmapped=args.trust_unmapped)
    state = _state(path, create=not args.list)
    if args.list:
        return _list(args, state)
    if state is None:
        raise LookError("there is no place for the state of this user", hint="set HOME, XDG_STATE_HOME or LOCKD_STATE")
    return _end(args, loaded, state) if args.end else _give(args, loaded, state)


def _state(path: str, *, create: bool) -> State | None:
    from lockd import state

    return state.open(path, create=create, guest=True)


def _give(args: argparse.Namespace, policy: Policy, state: State) -> int:
    from lockd import origin, overrides, wellformed
    from lockd.errors import UsageError

    overrides.check_may(policy)
    try:
        wellformed.duration(args.duration)
        seconds = wellformed.seconds(args.duration)
    except ValueError as error:
        raise UsageError(f"{args.duration!r}: {error}", where="--for", hint="30m, 2h, 1d") from None
    report = _look(args, policy, state)
    _record(state, report)
    who = origin.current()
    one = overrides.new(report.findings, args.why, who, seconds, args.only)
    overrides.keep(state, one, who)
    _print(args, one)
    return 0


def _look(args: argparse.Namespace, policy: Policy, state: State) -> Report:
    from lockd import lock
    from lockd.check import check
    from lockd.progress import Progress
    from lockd.session import this_launch

    known = lock.read(policy.lock_path, policy=policy.name, trust_unmapped=args.trust_unmapped)
    with Progress("lockd override") as progress:
        return check(policy, state=state, lock=known, launch=this_launch(), progress=progress)


def _record(state: State, report: Report) -> None:
    """The drift stands in the timeline before it is overridden, so that its healing is seen and ends the override."""
    from lockd import cli, history

    try:
        history.record(state, report)
    except OSError as error:
        cli.warn(f"the history could not be written: {error.strerror}")


def _end(args: argparse.Namespace, policy: Policy, state: State) -> int:
    from lockd import cli, origin, overrides

    overrides.check_may(policy)
    ended = overrides.end(state, origin.current())
    if args.json:
        from lockd.report import json

        cli.emit(json.dumps({"schema": 1, "override": None, "ended": ended}))
    else:
        cli.emit("the override has ended" if ended else "there was no override")
    return 0


def _list(args: argparse.Namespace, state: State | None) -> int:
    from lockd import overrides

    found = overrides.kept(state)
    _print(args, found if found is not None and overrides.in_time(found) else None)
    return 0


def _print(args: argparse.Namespace, one: Override | None) -> None:
    from lockd import cli
    from lockd.report import json
    from lockd.report.text import safe

    if args.json:
        cli.emit(json.dumps({"schema": 1, "override": None if one is None else one.document()}))
    elif one is None:
        cli.emit("no override stands")
    else:
        told = one.document()
        cli.emit(safe(f"overridden until {told['until']} by {one.by}: {one.why}"))
        for fact in told["facts"]:
            cli.emit(safe(f"  {fact}"))
