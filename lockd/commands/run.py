"""`lockd run -- CMD …`: the gate by hand. Verify, record the run, then become CMD; or wait for it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from lockd.errors import CANNOT_LOOK, LockdError

if TYPE_CHECKING:
    import argparse

    from lockd.gates.admit import Answer
    from lockd.look import Launch
    from lockd.supervise import Metric

TAKES_COMMAND = True  # what stands behind `--` is another command's
SWITCHES = ("--wait", "--notes", "--trust-unmapped")
DEFAULTS: dict[str, Any] = {"override": None, "metric": ()}


def register(subparsers: argparse._SubParsersAction[Any]) -> None:
    usage = "lockd run [--override WHY] [--wait] [--metric NAME=REGEX] [--notes] -- CMD ..."
    parser = subparsers.add_parser("run", help="the gate by hand: verify, record the run, start CMD", usage=usage)
    parser.add_argument("--override", metavar="WHY", help="start in spite of the drift; recorded, with this reason")
    parser.add_argument("--wait", action="store_true", help="wait for CMD, and record how it ended")
    parser.add_argument(
        "--metric",
        action="append",
        default=[],
        metavar="NAME=REGEX",
        help="note the last match in CMD's output (its first group); waits",
    )
    parser.add_argument("--notes", action="store_true", help="set LOCKD_NOTES for CMD: lockd/training.py writes there")
    parser.add_argument("--trust-unmapped", action="store_true", help="trust files owned outside this user namespace")
    parser.set_defaults(run=run)


def exit_code(error: LockdError) -> int:
    """126 and 127 as `env`; whatever else keeps lockd from looking is 125, wrong usage too."""
    return error.code if error.code in (126, 127) else CANNOT_LOOK


def run(args: argparse.Namespace) -> int:
    from lockd.errors import UsageError
    from lockd.gates import run as gate

    argv = list(args.command)
    if not argv:
        raise UsageError("which command?", where="run", hint="lockd run -- python train.py")
    if args.override is not None and not args.override.strip():
        raise UsageError("an override says why", where="--override", hint='lockd run --override "deadline" -- CMD')
    metrics = _metrics(args.metric)
    launch = gate.launch(argv)
    path = gate.find(argv, launch.environ)
    supervised = bool(args.wait or metrics)  # who stays looks again at the end, with what this look knows
    answer = (None if supervised or args.notes or args.debug else _ask_daemon(args, launch)) or _ask(args, launch)
    _say(answer)
    if answer.outcome != "admitted":
        return answer.code
    if supervised:
        return _supervised(args, path, launch, answer, metrics)
    return _become(path, launch, answer, args)


def _metrics(words: Sequence[str]) -> list[Metric]:
    if not words:
        return []
    from lockd import supervise

    return [supervise.metric(word) for word in words]


def _ask_daemon(args: argparse.Namespace, launch: Launch) -> Answer | None:
    """The decision of a live daemon of this policy, which records it; it looks in memory, after its last event."""
    from lockd import client
    from lockd.session import find_policy

    told = client.launch(find_policy(args), launch, args.override, trust_unmapped=args.trust_unmapped, said=_waiting())
    if told is None:
        return None
    from lockd.gates.admit import Answer

    return Answer(told["outcome"], tuple(map(str, told["lines"])), run=told["run"])


def _waiting() -> Callable[[str], None] | None:
    """Says once what the daemon is doing, to a person at a terminal."""
    if not sys.stderr.isatty():
        return None
    told: list[str] = []

    def say(text: str) -> None:
        if not told:
            from lockd.report.text import safe

            told.append(text)
            print(safe(f"lockd: waiting for the daemon: {text}"), file=sys.stderr)

    return say


def _ask(args: argparse.Namespace, launch: Launch) -> Answer:
    import os

    from lockd.gates.admit import Asked, admit
    from lockd.progress import Progress
    from lockd.session import find_policy

    policy = find_policy(args)
    with Progress("lockd run") as progress:
        return admit(
            Asked(
                policy,
                launch,
                "run",
                os.getpid(),
                override=args.override,
                trust_unmapped=args.trust_unmapped,
                progress=progress,
            )
        )


def _say(answer: Answer) -> None:
    from lockd.report.text import safe

    for number, line in enumerate(answer.lines):
        print(safe(line if line.startswith(" ") else f"lockd: {line}" if number == 0 else f"  {line}"), file=sys.stderr)


def _become(path: str, launch: Launch, answer: Answer, args: argparse.Namespace) -> int:
    from lockd.gates import run as gate

    environ = _environ(launch, answer, args)
    sys.stdout.flush()
    sys.stderr.flush()
    try:
        gate.become(path, launch.argv, environ)
    except gate.NoProgram as error:
        _finish(_with_state(args, answer), error.code, look=False)
        raise


def _with_state(args: argparse.Namespace, answer: Answer) -> Answer:
    """The answer with the state that it is recorded in, where the daemon recorded it in this user's."""
    if answer.state is not None or answer.run is None:
        return answer
    from lockd import state
    from lockd.plain import replace
    from lockd.session import find_policy

    try:
        own = state.open(find_policy(args), create=False)
    except LockdError:
        return answer
    return replace(answer, state=own)


def _supervised(args: argparse.Namespace, path: str, launch: Launch, answer: Answer, metrics: Sequence[Metric]) -> int:
    from lockd import supervise
    from lockd.gates import run as gate

    environ = _environ(launch, answer, args)
    sys.stdout.flush()
    sys.stderr.flush()
    code = supervise.supervise(
        lambda: gate.become(path, launch.argv, environ), metrics, lambda pid: _add_process(answer, pid)
    )
    _finish(answer, code, supervise.values(metrics), look=True)
    return code


def _environ(launch: Launch, answer: Answer, args: argparse.Namespace) -> dict[str, str]:
    """The launch's own variables; LOCKD_NOTES with them only where that was asked for."""
    environ = dict(launch.environ)
    if args.notes and answer.state is not None and answer.run is not None:
        from lockd import cli, spool
        from lockd.training import VARIABLE

        try:
            environ[VARIABLE] = spool.make(answer.state, answer.run)
        except OSError as error:
            cli.warn(f"{VARIABLE} could not be set: {error.strerror}")
    return environ


def _add_process(answer: Answer, pid: int) -> None:
    from lockd import cli, runs

    if answer.state is None or answer.run is None:
        return
    try:
        store = answer.state.store()
        if store is not None:
            with store:
                runs.add_process(store, answer.run, pid)
    except (LockdError, OSError) as error:
        cli.warn(f"the process of run {answer.run} could not be recorded: {error}")


def _finish(answer: Answer, code: int, metrics: Any = None, *, look: bool) -> None:
    """How it ended; what went wrong with that changes no exit code."""
    from lockd import cli
    from lockd.gates import ending

    try:
        ending.finish(answer, code, metrics or {}, look=look)
    except (LockdError, OSError) as error:
        cli.warn(f"the end of this run could not be recorded: {error}")
