"""`[[command]]`: the output of a command as a fact.

Always holds: a command runs with a fixed PATH and environment, in `/`, without input, in a session of its own that is
killed whole when it ends or its time is up; of its output no more than 1 MiB is read. Whatever is not a plain success
(another exit code, a signal, too slow, too much) is an Unknown with the reason. Secrets in what it printed are
masked.
Never: runs where the look does not allow commands, or through a shell.
"""

from __future__ import annotations

import hashlib
import os
import signal
import time
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, NamedTuple

from lockd import secrets
from lockd.facts import Fact, Facts, Unknown, Value, shown
from lockd.probes import Seen, common, paths

if TYPE_CHECKING:
    import subprocess

    from lockd.findings import Breach, Difference
    from lockd.look import Look
    from lockd.rules import CommandRule, Policy, Severity

KINDS = ("command",)
ATTRIBUTES: Mapping[str, Mapping[str, str]] = {
    "command": {
        "digest": "sha256 of what the command wrote to its standard output",
        "output": "the output itself, where it is one line of at most 200 bytes",
        "lines": "told: the first lines of the output",
        "stderr": "told: the first line of what it wrote to its standard error",
        "run": "told: the command line",
    }
}

PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
ENVIRONMENT: Mapping[str, str] = {"PATH": PATH, "LANG": "C.UTF-8", "HOME": "/"}
LIMIT = 1 << 20  # bytes of output
SHORT = 200  # bytes of an output that is shown whole
LINES = 5
_BUFFER = 1 << 16


class Ended(NamedTuple):
    """How a command ended. problem: why it gave no fact, in words; empty when it did."""

    stdout: bytes
    stderr: bytes
    problem: str = ""


def look(rule: CommandRule, look: Look) -> Seen:
    """Run one command."""
    subject = shown(rule.name)
    if not look.commands:
        look.not_looked.append(f"command:{subject} (commands do not run in this look)")
        return Seen(())
    ended = run(rule.run, rule.timeout)
    told: dict[str, Value] = {"run": tuple(shown(one) for one in secrets.mask_argv(rule.run))}
    first = _lines(ended.stderr)[:1]
    if ended.problem:
        return Seen((Unknown("command", subject, ": ".join([ended.problem, *first])),))
    told.update({"lines": _lines(ended.stdout)[:LINES], **({"stderr": first[0]} if first else {})})
    return Seen((Fact("command", subject, _attributes(ended.stdout), told),))


def claims(rule: CommandRule, kind: str, subject: str) -> bool:
    """Is it this rule's command?"""
    return kind == "command" and subject == shown(rule.name)


def severity(rule: CommandRule, policy: Policy, kind: str, subject: str, change: str) -> Severity:
    """The rule's own word, else the policy's."""
    return common.severity(rule, policy)


def breaches(rule: CommandRule, policy: Policy, found: Facts) -> Iterator[Breach]:
    """A command has no pins of its own."""
    return iter(())


def word(difference: Difference) -> str:
    """`command nccl-topology: "8 GPUs" → "7 GPUs"`."""
    subject = f"command {difference.name.partition(':')[2]}"
    if isinstance(difference.found, Unknown):
        return f"{subject} gave no answer: {difference.found.reason}"
    if difference.change in ("missing", "added"):
        return f"{subject} {'was not run' if difference.change == 'missing' else 'is new'}"
    was, now = _first_changed(difference)
    return f'{subject}: "{was}" → "{now}"' if was != now else f"{subject}: other output, the same in its first lines"


def watched(rule: CommandRule) -> Iterable[str]:
    """Nothing: what a command reads is not known."""
    return ()


# -- running


def run(argv: tuple[str, ...], timeout: str) -> Ended:
    """Run a command to its end or `timeout` ("5s"), whichever is first, and kill what it left behind."""
    import shutil
    import subprocess

    # 1. the program: absolute, or a bare name on the fixed PATH
    program = argv[0] if argv[0].startswith("/") else "" if "/" in argv[0] else shutil.which(argv[0], path=PATH)
    if not program:
        where = f"in {PATH}" if "/" not in argv[0] else "by a relative path: name it absolutely"
        return Ended(b"", b"", f"{shown(argv[0])} is not to be found {where}")
    try:
        deadline = time.monotonic() + common.seconds(timeout)
        process = subprocess.Popen(
            argv,
            executable=program,
            env=ENVIRONMENT,
            cwd="/",
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
    except OSError as error:
        return Ended(b"", b"", f"{shown(program)} does not start: {paths.reason(error)}")
    except ValueError as error:  # a NUL in an argument, no duration
        return Ended(b"", b"", shown(str(error)))
    # 2. its output, its end, and the end of all that it started
    with process:
        try:
            return _followed(process, deadline, timeout)
        finally:
            _kill(process)


def _followed(process: subprocess.Popen[bytes], deadline: float, timeout: str) -> Ended:
    output = _gather(process, deadline)
    if output is None:
        return Ended(b"", b"", f"it did not end within {timeout}")
    stdout, stderr = output
    if len(stdout) > LIMIT:
        return Ended(b"", stderr, f"it wrote more than {LIMIT:,} bytes")
    code = _code(process, deadline)
    if code is None:
        return Ended(stdout, stderr, f"it closed its output, but did not end within {timeout}")
    if code < 0:
        return Ended(stdout, stderr, f"killed by {_signal(-code)}")
    return Ended(stdout, stderr, f"exit code {code}" if code else "")


def _gather(process: subprocess.Popen[bytes], deadline: float) -> tuple[bytes, bytes] | None:
    """Both outputs up to their end, or to more than LIMIT bytes of the first. None: the time was up before."""
    import selectors

    assert process.stdout is not None and process.stderr is not None
    kept = {process.stdout.fileno(): bytearray(), process.stderr.fileno(): bytearray()}
    with selectors.DefaultSelector() as selector:
        for descriptor in kept:
            selector.register(descriptor, selectors.EVENT_READ)
        while selector.get_map():
            remaining = deadline - time.monotonic()
            ready = selector.select(remaining) if remaining > 0 else []
            if not ready:
                return None
            for key, _ in ready:
                piece = os.read(key.fd, _BUFFER)
                if not piece:
                    selector.unregister(key.fd)
                elif len(kept[key.fd]) <= LIMIT:  # of stderr the rest is read and dropped
                    kept[key.fd] += piece
            if len(kept[process.stdout.fileno()]) > LIMIT:
                break
    stdout, stderr = kept.values()
    return bytes(stdout), bytes(stderr)


def _code(process: subprocess.Popen[bytes], deadline: float) -> int | None:
    """The exit code; None: still running at the deadline. It is left unreaped: its group stays its own."""
    flags = os.WEXITED | os.WNOWAIT | os.WNOHANG
    pause = 0.001
    while (status := os.waitid(os.P_PID, process.pid, flags)) is None:
        remaining = deadline - time.monotonic()
        if remaining <= 0:
            return None
        time.sleep(min(pause, remaining))
        pause = min(pause * 2, 0.05)
    return status.si_status if status.si_code == os.CLD_EXITED else -status.si_status


def _kill(process: subprocess.Popen[bytes]) -> None:
    """End the session's process group, which the unreaped leader still names."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        pass


def _signal(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


# -- output


def _attributes(stdout: bytes) -> dict[str, Value]:
    attributes: dict[str, Value] = {"digest": f"sha256:{hashlib.sha256(stdout).hexdigest()}"}
    text = stdout.removesuffix(b"\n")
    if len(text) <= SHORT and b"\n" not in text:
        attributes["output"] = _line(text)
    return attributes


def _lines(output: bytes) -> tuple[str, ...]:
    return tuple(_line(line[:SHORT]) for line in output[: LINES * SHORT * 4].splitlines())


def _line(line: bytes) -> str:
    return shown(secrets.mask(os.fsdecode(line)))


def _first_changed(difference: Difference) -> tuple[str, str]:
    """The first line that is not what it was."""
    old, new = _shown_lines(difference.expected), _shown_lines(difference.found)
    pairs = zip((*old, *[""] * len(new)), (*new, *[""] * len(old)), strict=True)
    return next(((was, now) for was, now in pairs if was != now), ("", ""))


def _shown_lines(fact: Fact | Unknown | None) -> tuple[str, ...]:
    if not isinstance(fact, Fact):
        return ()
    lines = fact.told.get("lines", ())
    output = fact.attributes.get("output")
    return (str(output),) if output is not None else lines if isinstance(lines, tuple) else ()
