"""`lockd accept`: show the difference, then record a new known-good generation."""

from __future__ import annotations

import argparse
import os
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lockd.accept import Plan, Wish
    from lockd.check import Report
    from lockd.lock import Lock
    from lockd.look import Launch
    from lockd.origin import Origin
    from lockd.rules import Policy
    from lockd.state import State
    from lockd.store import Store


@dataclass(frozen=True)
class Scene:
    """What one accept works on. seen: the fingerprint of the lock's bytes when it was read."""

    policy: Policy
    state: State | None
    before: Lock | None
    seen: str
    launch: Launch
    notes: tuple[str, ...]
    apart: frozenset[str] = frozenset()  # facts that the machine has otherwise than the run that is accepted


def register(subparsers: argparse._SubParsersAction[Any]) -> None:
    parser = subparsers.add_parser("accept", help="show the difference, then record a new known-good")
    parser.add_argument("-m", "--message", metavar="WHY", help="why this is good; stands in the lock and the log")
    parser.add_argument(
        "--only",
        action="append",
        default=[],
        nargs="+",
        metavar="FACT",
        help="accept these alone; `torch+`: and what it brought",
    )
    parser.add_argument("--expect", metavar="ENVID", help="refuse when the state is not the one reviewed")
    parser.add_argument(
        "--allow-modified",
        action="append",
        default=[],
        metavar="PKG|all",
        help="accept a package that differs from its own RECORD",
    )
    parser.add_argument("--env-of", metavar="PID|run:N", help="record the launch's variables of that process")
    parser.add_argument("--from", dest="source", metavar="run:N", help="accept the state that a run started on")
    parser.add_argument("--yes", action="store_true", help="do not ask")
    parser.add_argument("--dry-run", action="store_true", help="show what would be recorded, record nothing")
    parser.add_argument("--trust-unmapped", action="store_true", help="trust files owned outside this user namespace")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    from lockd import origin

    _check_usage(args)
    scene = _open(args)
    who = origin.current()
    commands = _commands_agreed(args, scene)
    report = _look(args, scene, commands)
    scene, report = _of_run(args, scene, report)
    plan = _plan(args, scene, report, who)
    _show(args, scene, plan)
    if args.dry_run:
        _result(args, scene, plan.lock, plan, recorded=False)
        return 0
    if not (args.yes or args.expect) and not _ask("Make this the known-good?"):
        print("lockd: nothing was recorded", file=sys.stderr)
        return 1
    return _record(args, scene, report, plan, who)


def _check_usage(args: argparse.Namespace) -> None:
    from lockd.errors import UsageError

    if args.source and args.env_of:
        raise UsageError("--from takes the variables of its run, too", where="--env-of", hint="leave one of them out")
    if args.dry_run:
        return
    if not (args.message or "").strip():
        raise UsageError("an accept says why", hint='lockd accept -m "torch 2.11.0+cu128, 12.8 Ktok/s"')
    if not (args.yes or args.expect) and not (sys.stdin.isatty() and sys.stderr.isatty()):
        hint = "--dry-run shows what would be recorded; then --expect ENVID, or --yes"
        raise UsageError("there is no terminal to ask on", hint=hint)


def _open(args: argparse.Namespace) -> Scene:
    """The policy, the state and the lock; a broken lock may be replaced by a whole accept."""
    from lockd import accept_record, lock, policy, state
    from lockd.errors import LookError, RefusedError
    from lockd.session import find_policy, outside

    path = find_policy(args)
    loaded = policy.load(path, trust_unmapped=args.trust_unmapped)
    if not state.may_accept(loaded.owner):
        hint = "the policy's owner and root may accept"
        raise RefusedError(f"the policy belongs to uid {loaded.owner}", where=path, hint=hint)
    where = state.open(path, create=not args.dry_run)
    if where is None and not args.dry_run:
        raise LookError("there is no place for the state of this user", hint="set HOME, XDG_STATE_HOME or LOCKD_STATE")
    data = lock.read_bytes(loaded.lock_path, trust_unmapped=args.trust_unmapped)
    notes = outside(args, path, loaded.lock_path)
    before = None
    try:
        before = (
            None if data is None else lock.of_policy(lock.parse(data, loaded.lock_path), loaded.name, loaded.lock_path)
        )
    except lock.BrokenLock as error:
        if args.only:
            raise
        notes += (f"the lock there {error.what}; it will be replaced",)
    launch = _launch(args.env_of)
    return Scene(loaded, where, before, accept_record.fingerprint(data), launch, notes)


def _launch(env_of: str | None) -> Launch:
    from lockd.errors import UsageError
    from lockd.session import this_launch

    if env_of is None or env_of.startswith("run:"):
        return this_launch()
    if not env_of.isdigit():
        raise UsageError(f"{env_of!r} is no process", where="--env-of", hint="a PID or run:N")
    from lockd.processes import launch_of

    return launch_of(int(env_of))


def _commands_agreed(args: argparse.Namespace, scene: Scene) -> bool:
    """Show the commands of a policy that was not accepted here yet; whether they may run."""
    policy, state = scene.policy, scene.state
    if not policy.command or (state is not None and policy.digest in state.accepted_digests()):
        return True
    from lockd import secrets
    from lockd.errors import RefusedError
    from lockd.facts import shown

    print("lockd: this policy runs commands, and was not accepted here yet:", file=sys.stderr)
    for rule in policy.command:
        print(f"  {rule.name}: {shown(' '.join(secrets.mask_argv(rule.run)))}", file=sys.stderr)
    if args.dry_run or state is None:
        print("lockd: they do not run in a dry run", file=sys.stderr)
        return False
    if not args.yes and not _ask("Run them?"):
        raise RefusedError("the policy's commands were not agreed to", where=policy.path, hint="--yes agrees to them")
    state.accept_digest(policy.digest)
    return True


def _look(args: argparse.Namespace, scene: Scene, commands: bool) -> Report:
    from lockd import cli, history
    from lockd.check import check
    from lockd.progress import Progress

    with Progress("lockd accept") as progress:
        report = check(
            scene.policy,
            state=scene.state,
            lock=scene.before,
            launch=scene.launch,
            commands=commands,
            progress=progress,
        )
    if not args.dry_run:  # what drifted or healed belongs in the timeline before what is accepted of it
        history.remember(scene.state, report, cli.warn)
    return report


def _of_run(args: argparse.Namespace, scene: Scene, report: Report) -> tuple[Scene, Report]:
    """With --from or --env-of run:N: the report as that run had it, and the names of what is otherwise now."""
    from dataclasses import replace

    from lockd import accept_run, runs
    from lockd.errors import LookError

    word = args.source or (args.env_of if (args.env_of or "").startswith("run:") else None)
    if word is None:
        return scene, report
    opened = None if scene.state is None else scene.state.store()
    if opened is None:
        raise LookError(f"{word}: no run is recorded", where=scene.policy.path, hint="lockd run -- CMD records one")
    with opened:
        runs.settle(opened)
        take = accept_run.started_on if args.source else accept_run.variables_of
        taken = take(report, runs.resolve(opened, word), opened, scene.state, scene.launch)
    return replace(scene, apart=accept_run.apart(report, taken)), taken


def _plan(args: argparse.Namespace, scene: Scene, report: Report, who: Origin) -> Plan:
    from lockd import accept, clock

    stamp = accept.Stamp(_next(scene), clock.stamp(), who.by, os.uname().nodename)
    return accept.plan(report, _wish(args), stamp)


def _wish(args: argparse.Namespace) -> Wish:
    from lockd.accept import Wish

    only = tuple(pattern for group in args.only for pattern in group)
    from lockd import secrets
    from lockd.report.text import safe

    why = safe(secrets.mask(" ".join((args.message or "").split())))
    return Wish(why, only, args.expect, tuple(args.allow_modified), bool(args.env_of or args.source))


def _next(scene: Scene) -> int:
    """One more than the lock, and than any generation that this state knows."""
    known = [scene.before.generation] if scene.before is not None else []
    state = scene.state
    if state is not None and os.path.exists(state.store_path):
        with _store(state) as store:
            known += [generation.number for generation in store.generations()]
    return max(known, default=0) + 1


def _show(args: argparse.Namespace, scene: Scene, plan: Plan) -> None:
    """What a person should read first. It is talk when JSON was asked for, else part of the result."""
    from lockd.report import accepted

    stream = sys.stderr if args.json else sys.stdout
    print("\n".join(accepted.difference(scene.policy, plan, scene.notes)), file=stream, flush=True)


def _ask(question: str) -> bool:
    print(f"{question} [y/N] ", end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def _record(args: argparse.Namespace, scene: Scene, report: Report, plan: Plan, who: Origin) -> int:
    from lockd import accept_record, cli, keep
    from lockd.objects import Keeping
    from lockd.progress import Progress

    state = scene.state
    assert state is not None  # _open saw to it
    with accept_record.alone(state, cli.warn):
        other = accept_record.overtaken(scene.policy, plan, scene.seen)
        if other is not None:
            cli.warn(
                f"generation {other.generation} of {other.by}, accepted meanwhile, is this very state: {other.why}"
            )
            _result(args, scene, other, plan, recorded=False)
            return 0
        manifests = accept_record.manifests_of(plan, report.sight)
        with _store(state) as opened:
            state.accept_digest(scene.policy.digest)
            with Keeping(opened) as keeping, Progress("lockd accept") as progress:
                kept = keep.gather(keeping, opened, report.sight, plan.lock, plan.chosen, plan.before, progress)
                new = accept_record.record(scene.policy, opened, plan, scene.seen, manifests, who, kept)
            again = _look_again(scene, new, opened)
    _result(args, scene, new, plan, recorded=True)
    _warn_of_hooks(scene)
    return _self_test(again, plan, scene.apart)


def _warn_of_hooks(scene: Scene) -> None:
    """A site hook that stands since an earlier policy refuses by that one, whatever was accepted now."""
    if not scene.policy.python:
        return
    from lockd import cli
    from lockd.gates import site

    for one in site.stale(scene.policy, scene.state):
        cli.warn(f"the site hook of {one.place.name}: {one.trouble}" + (f"; hint: {one.hint}" if one.hint else ""))


def _store(state: State) -> Store:
    """The store, made where missing, started anew where corrupt, which is said."""
    from lockd import cli, store

    opened = store.open(state.store_path, thorough=True)
    assert opened is not None  # it is made where missing
    for notice in opened.notices:
        cli.warn(notice)
    return opened


def _look_again(scene: Scene, new: Lock, store: Store) -> Report:
    """The new lock against the machine; what still differs stands in the history from here on."""
    from lockd import check, history

    again = check.check(scene.policy, state=scene.state, lock=new, launch=scene.launch)
    assert scene.state is not None
    history.accepted(scene.state, store, again)
    return again


def _self_test(again: Report, plan: Plan, apart: frozenset[str]) -> int:
    """What was just accepted must be what is there. If not, something changes it while lockd looks: unknown.

    apart: what an accepted run had otherwise than the machine has now.
    """
    from lockd.errors import OK, UNKNOWN
    from lockd.report.text import safe
    from lockd.verdict import word

    chosen = plan.chosen - apart
    wrong = [one for one in again.differences if one.name in chosen and "lock" in one.against]
    for one in wrong[:12]:
        print(safe(f"lockd: differs from what was just recorded: {word(one)}"), file=sys.stderr)
    if wrong:
        print("  hint: something changes it right now; wait for its end, and accept again", file=sys.stderr)
    return UNKNOWN if wrong else OK


def _result(args: argparse.Namespace, scene: Scene, lock: Lock, plan: Plan, *, recorded: bool) -> None:
    from lockd import cli
    from lockd.report import accepted, json

    if args.json:
        cli.emit(json.dumps(accepted.document(scene.policy, lock, plan, scene.notes, recorded=recorded)))
    else:
        cli.emit("\n".join(accepted.result(scene.policy, lock, plan, recorded=recorded)))
