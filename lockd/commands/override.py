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
    from lockd import cli, overrides, policy
    from lockd import state as states
    from lockd.errors import LookError, UsageError
    from lockd.session import find_policy

    given = [args.list, args.end, args.duration is not None]
    if sum(given) != 1 or (args.why is not None) != (args.duration is not None):
        hint = 'lockd override --for 2h "deadline"; lockd override --list; lockd override --end'
        raise UsageError("say for how long and why, or --list, or --end", where="override", hint=hint)
    path = find_policy(args)
    loaded = policy.load(path, trust_unmapped=args.trust_unmapped)
    if not states.may_accept(loaded.owner):  # the state is somebody else's: their daemon keeps it
        code = _through_the_daemon(args, path)
        if code is not None:
            return code
        if not args.list:
            overrides.check_may(loaded)
            cli.warn("no daemon of the policy's owner answers: this stands for launches of this user alone")
    state = _state(path, create=not args.list)
    if args.list:
        return _list(args, state)
    if state is None:
        raise LookError("there is no place for the state of this user", hint="set HOME, XDG_STATE_HOME or LOCKD_STATE")
    return _end(args, loaded, state) if args.end else _give(args, loaded, state)


def _state(path: str, *, create: bool) -> State | None:
    from lockd import state

    return state.open(path, create=create, guest=True)


def _through_the_daemon(args: argparse.Namespace, path: str) -> int | None:
    """Let the daemon of the policy's owner do it, in their state; None where none answers."""
    from lockd import cli, client
    from lockd.errors import LockdError, LookError, RefusedError, UsageError
    from lockd.session import this_launch

    deed = "list" if args.list else "end" if args.end else "give"
    told = client.ask(
        path,
        {
            **client.question(path, this_launch(), trust_unmapped=args.trust_unmapped),
            "ask": "override",
            "deed": deed,
            "why": args.why or "",
            "seconds": _seconds(args) if deed == "give" else 0,
            "only": args.only,
        },
    )
    if told is None:
        return None
    if "problem" in told:
        kinds: dict[str, type[LockdError]] = {"usage": UsageError, "refused": RefusedError}
        kind = kinds.get(str(told["problem"]), LookError)
        raise kind(str(told["what"]), where=str(told["where"]), hint=str(told["hint"]))
    if deed == "end":
        _say_ended(args, bool(told["ended"]))
    elif args.json:
        from lockd.report import json

        cli.emit(json.dumps({"schema": 1, "override": told["override"]}))
    else:
        _say(told["override"], str(told["by"]))
    return 0


def _seconds(args: argparse.Namespace) -> float:
    from lockd import wellformed
    from lockd.errors import UsageError

    try:
        wellformed.duration(args.duration)
        return wellformed.seconds(args.duration)
    except ValueError as error:
        raise UsageError(f"{args.duration!r}: {error}", where="--for", hint="30m, 2h, 1d") from None


def _give(args: argparse.Namespace, policy: Policy, state: State) -> int:
    from lockd import origin, overrides

    overrides.check_may(policy)
    seconds = _seconds(args)
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
    from lockd import origin, overrides

    overrides.check_may(policy)
    _say_ended(args, overrides.end(state, origin.current()))
    return 0


def _say_ended(args: argparse.Namespace, ended: bool) -> None:
    from lockd import cli

    if args.json:
        from lockd.report import json

        cli.emit(json.dumps({"schema": 1, "override": None, "ended": ended}))
    else:
        cli.emit("the override has ended" if ended else "there was no override")


def _list(args: argparse.Namespace, state: State | None) -> int:
    from lockd import overrides

    found = overrides.kept(state)
    _print(args, found if found is not None and overrides.in_time(found) else None)
    return 0


def _print(args: argparse.Namespace, one: Override | None) -> None:
    from lockd import cli
    from lockd.report import json

    told = None if one is None else one.document()
    if args.json:
        cli.emit(json.dumps({"schema": 1, "override": told}))
    else:
        _say(told, "" if one is None else one.by)


def _say(told: dict[str, Any] | None, by: str) -> None:
    from lockd import cli
    from lockd.report.text import safe

    if told is None:
        cli.emit("no override stands")
        return
    cli.emit(safe(f"overridden until {told['until']} by {by}: {told['why']}"))
    for fact in told["facts"]:
        cli.emit(safe(f"  {fact}"))
