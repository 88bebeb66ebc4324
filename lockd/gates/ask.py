"""`python -I -m lockd.gates.ask`: what the site hook starts where no daemon answers.

The request is on standard input, parts that end with NUL: version of the hook, pid of the launch, policy, folders of
state and runtime, flags, folder, number of arguments, these, then the variables. The answer goes to standard output:
`\\1TEXT` while the look gets on, at last `\\1CODE\\nLINES\\0`; the code is a word where lockd itself can't answer.
Always holds: the launch's variables are data; nothing of lockd reads them as its own. A sign of life is sent only when
something was done since the last: bytes read, or time spent by the processor on this look.
Never: starts the launch, or answers before the run was recorded.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from lockd.gates.admit import Answer
    from lockd.look import Launch

VERSION = 1  # of the request: the hook's own
_BEAT = 0.25  # seconds
_GIB = 1 << 30


class Request(NamedTuple):
    """What a hook asks. state, runtime: folders as they stood when the hook was installed; "" for the default."""

    pid: int
    policy: str
    state: str
    runtime: str
    trust_unmapped: bool
    launch: Launch


class Mismatch(ValueError):
    """The hook is of another version, or what came is no request."""


def main() -> int:
    """Read the request, decide, answer."""
    try:
        request = parse(sys.stdin.buffer.read())
    except Mismatch as error:
        _send(f"\1fault\n{error}\0")
        return 1
    os.environ["LOCKD_STATE"] = request.state
    if request.runtime:
        os.environ["LOCKD_RUNTIME"] = request.runtime
    home = request.launch.environ.get("HOME", "")
    if os.path.isabs(home):  # where the launch's user site would be
        os.environ["HOME"] = home
    beat = Beat()
    beat.start()
    try:
        answer = decide(request, beat)
    finally:
        beat.stop()
    _send("\1" + "\n".join([str(answer.code), *spoken(answer)]) + "\0")
    return 0


def parse(data: bytes) -> Request:
    """The request in these bytes. Mismatch for anything else."""
    from lockd.look import Launch

    version, _, rest = data.partition(b"\0")
    if version != str(VERSION).encode():
        raise Mismatch(f"the hook is of another version; `lockd gate install site` puts in this one's ({VERSION})")
    parts = [os.fsdecode(part) for part in rest.split(b"\0")]
    try:
        pid, policy, state, runtime, flags, cwd, count = parts[:7]
        argv, rows = parts[7 : 7 + int(count)], parts[7 + int(count) : -1]
        if len(argv) < int(count):
            raise ValueError(count)
        environ = dict(row.split("=", 1) for row in rows)
        launch = Launch(environ, cwd, tuple(argv), f"pid {int(pid)}")
        return Request(int(pid), policy, state, runtime, flags == "unmapped", launch)
    except ValueError:
        raise Mismatch("the hook's request is not whole") from None


def decide(request: Request, beat: Beat | None = None) -> Answer:
    """The gate's answer; what was admitted gets its ticket."""
    from lockd.gates.admit import Asked, admit

    progress = None if beat is None else beat.progress
    asked = Asked(
        request.policy,
        request.launch,
        "site",
        request.pid,
        trust_unmapped=request.trust_unmapped,
        progress=progress,
    )
    answer = admit(asked)
    give_ticket(answer, request.pid)
    return answer


def give_ticket(answer: Answer, pid: int) -> None:
    """Let what descends from an admitted launch pass without a question."""
    from lockd import lineage
    from lockd.gates import tickets

    if answer.outcome != "admitted" or answer.state is None:
        return
    run, processes = answer.run, [lineage.identity(pid)]
    if answer.inside is not None:
        run, processes = answer.inside.number, list(answer.inside.body.get("processes", ()))
    try:
        tickets.give(answer.state, run or 0, processes)  # 0: `on_fault` let it start without a record
    except OSError:  # a full disk: its ranks ask for themselves
        pass


def spoken(answer: Answer) -> list[str]:
    """The lines that a person is told, safe on a terminal."""
    from lockd.report.text import safe

    lines = [line if line.startswith(" ") else f"  {line}" for line in answer.lines]
    return [safe(f"lockd: {line[2:]}" if number == 0 else line) for number, line in enumerate(lines)]


class Beat:
    """Signs of life from a thread of its own, from `start` to `stop`, while the look gets on."""

    def __init__(self) -> None:
        self._text, self._bytes = "", 0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._over.set()
        self._thread.join()

    def progress(self, done: int, total: int) -> None:
        """As `check` calls it: bytes read, bytes to read."""
        self._bytes = done
        self._text = f"a look at the environment: {done / _GIB:.2f} of {total / _GIB:.2f} GiB"

    def _run(self) -> None:
        known: tuple[float, int] | None = None
        while not self._over.wait(_BEAT):
            measure = self._measure()
            if known is None or measure[1] != known[1] or measure[0] - known[0] > 0.001:
                known = measure
                _send("\1" + self._text)

    def _measure(self) -> tuple[float, int]:
        """Processor time of all but this thread, and bytes read."""
        return time.process_time() - time.thread_time(), self._bytes


def _send(text: str) -> None:
    data = text.encode("utf-8", "backslashreplace")
    try:
        while data:
            data = data[os.write(1, data) :]
    except BrokenPipeError:  # the launch was ended meanwhile
        os._exit(0)


if __name__ == "__main__":
    sys.exit(main())
