"""A tool of the system asked for an answer within bounds: time, output, environment.

Always holds: what was begun works by itself until its answer is wanted. The tool gets a fixed environment, no input
and a session of its own, which is ended when the time is up. One that does not even end then (it hangs in the kernel,
as drivers do) is left behind, not waited for.
Never: goes through a shell, or runs what the policy or a user's PATH names.
"""

from __future__ import annotations

import os
import signal
import time
from typing import TYPE_CHECKING, NamedTuple

from lockd.facts import shown
from lockd.probes.paths import reason

if TYPE_CHECKING:
    import subprocess

PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin:/usr/local/nvidia/bin"
LIMIT = 8 << 20  # bytes of an answer
_LAST_WORD = 0.2  # seconds for a killed tool to be gone


class Answer(NamedTuple):
    """What a tool wrote. problem: why that is no answer, in words; empty when it is one. late: its time was up."""

    text: str
    problem: str = ""
    late: bool = False


class Question:
    """A tool at work: `answer` waits for it, `drop` ends it; one of the two is called, once."""

    def __init__(self, process: subprocess.Popen[bytes], seconds: float) -> None:
        self._process, self._seconds = process, seconds
        self._until = time.monotonic() + seconds

    def answer(self) -> Answer:
        """What it wrote, waiting for what is left of its time."""
        import subprocess

        process = self._process
        try:
            stdout, stderr = process.communicate(timeout=max(self._until - time.monotonic(), _LAST_WORD))
        except subprocess.TimeoutExpired:
            said = f"{_named(process)} gave no answer within {self._seconds:g} s"
            return Answer("", _ended(process, said), late=True)
        if process.returncode or len(stdout) > LIMIT:
            return Answer(_text(stdout), _failure(process.returncode, _text(stderr) or _text(stdout)))
        return Answer(_text(stdout))

    def drop(self) -> None:
        """Nobody wants the answer any more."""
        _ended(self._process, "")


class _NoTool(NamedTuple):
    """In the place of a tool that does not start."""

    problem: str

    def answer(self) -> Answer:
        return Answer("", self.problem)

    def drop(self) -> None:
        pass


Begun = Question | _NoTool


def ask(argv: tuple[str, ...], seconds: float) -> Answer:
    """Run a tool to its end, or for `seconds`."""
    return begin(argv, seconds).answer()


def begin(argv: tuple[str, ...], seconds: float) -> Begun:
    """Start a tool, which has `seconds` from now."""
    import shutil
    import subprocess

    program = argv[0] if argv[0].startswith("/") else shutil.which(argv[0], path=PATH)
    if program is None:
        return _NoTool(f"{argv[0]} is not installed")
    try:
        process = subprocess.Popen(
            (program, *argv[1:]),
            env={"PATH": PATH, "LC_ALL": "C.UTF-8", "HOME": "/"},
            cwd="/",
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
    except OSError as error:
        return _NoTool(f"{shown(program)} does not start: {reason(error)}")
    return Question(process, seconds)


def _named(process: subprocess.Popen[bytes]) -> str:
    return os.path.basename(str(process.args[0])) if isinstance(process.args, tuple) else "it"


def _ended(process: subprocess.Popen[bytes], said: str) -> str:
    """End a tool that took too long, and close its pipes, so that nothing of it is waited for."""
    import subprocess

    try:
        os.killpg(process.pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        pass
    for pipe in (process.stdout, process.stderr):
        if pipe is not None:
            pipe.close()
    try:
        process.wait(_LAST_WORD)
    except subprocess.TimeoutExpired:
        return f"{said}, and hangs in the kernel"
    return said


def _failure(code: int, said: str) -> str:
    first = next((line for line in said.splitlines() if line.strip()), "")
    how = f"killed by signal {-code}" if code < 0 else f"exit code {code}" if code else "too long an answer"
    return f"{how}: {shown(first.strip()[:200])}" if first else how


def _text(output: bytes) -> str:
    return output[:LIMIT].decode("utf-8", "surrogateescape")
