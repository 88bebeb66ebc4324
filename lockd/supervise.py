"""A command run beneath lockd: waited for, signals forwarded, its output watched for metrics.

Without metrics the command has lockd's own descriptors, and so its terminal. With metrics its output goes through
lockd: through a pseudo-terminal where there is a terminal (one that changes no byte; the command stays in the session
and the foreground of the real one, so that keys and job control work), else through a pipe; stdout and stderr apart
unless they are one.
Always holds: every byte is passed on, in order, before it is searched. A signal from another process is forwarded; one
from the terminal reaches the command by itself. Stopped with the command, continued with it. Its exit code is kept,
128 + n where signal n ended it.
A signal that is sent to the whole process group reaches the command twice, as from any wrapper in that group.
Never: buffers output, changes it, or waits for ever for a grandchild that keeps a pipe open.
"""

from __future__ import annotations

import errno
import os
import re
import select
import selectors
import signal
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from lockd.errors import UsageError

FORWARDED = (
    "SIGINT",
    "SIGTERM",
    "SIGHUP",
    "SIGQUIT",
    "SIGUSR1",
    "SIGUSR2",
    "SIGALRM",
    "SIGCONT",
    "SIGTSTP",
    "SIGWINCH",
)
_BLOCK = 1 << 16
_LONGEST = 1 << 16  # bytes of a line that are searched
_QUIET = 2.0  # seconds without output, after the command's end, until a kept-open pipe is left
_JOB_CONTROL = (signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU)
_FROM_KERNEL = 0x80  # SI_KERNEL: a key on the terminal, which the command gets itself


class Metric:
    """`NAME=REGEX`: the last match in the output counts, its first group or the whole of it."""

    def __init__(self, name: str, pattern: re.Pattern[bytes]) -> None:
        self.name, self.pattern = name, pattern
        self.last: str | None = None

    def search(self, lines: bytes) -> None:
        found = None
        for match in self.pattern.finditer(lines):
            found = match
        if found is not None:
            text = found[1] if self.pattern.groups and found[1] is not None else found[0]
            self.last = text.decode("utf-8", "backslashreplace").strip()[:200]


def metric(word: str) -> Metric:
    """A metric as it stands on the command line. UsageError where it is none."""
    name, equals, pattern = word.partition("=")
    hint = "--metric 'ktok_s=([0-9.]+) Ktok/s'"
    if not equals or not re.fullmatch(r"[A-Za-z_][\w.\-]{0,63}", name) or not pattern:
        raise UsageError(f"{word!r} is no NAME=REGEX", where="--metric", hint=hint)
    try:
        return Metric(name, re.compile(os.fsencode(pattern), re.MULTILINE))
    except re.error as error:
        what = f"{pattern!r} is no regular expression: {error}"
        raise UsageError(what, where=f"--metric {name}", hint=hint) from None


class Watch:
    """Lines of one stream for the metrics: what ends in a newline or a carriage return is a line."""

    def __init__(self, metrics: Sequence[Metric]) -> None:
        self._metrics, self._rest = metrics, b""

    def feed(self, data: bytes) -> None:
        text = self._rest + data
        end = max(text.rfind(b"\n"), text.rfind(b"\r")) + 1
        self._search(text[:end])
        self._rest = text[end:][-_LONGEST:]

    def end(self) -> None:
        self._search(self._rest)
        self._rest = b""

    def _search(self, lines: bytes) -> None:
        if lines:
            for one in self._metrics:
                one.search(lines)


def supervise(
    start: Callable[[], Any], metrics: Sequence[Metric] = (), started: Callable[[int], None] = lambda pid: None
) -> int:
    """Run a command to its end and give its exit code. started: is told its pid.

    start: becomes the command, in the child, and must not return; what it raises ends the child with the exception's
    `code`, or 126.
    """
    forwarded = {getattr(signal, name) for name in FORWARDED}
    reaped = signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # ignored, nobody would be told how the command ended
    before = signal.pthread_sigmask(signal.SIG_BLOCK, forwarded)
    streams = Streams(metrics) if metrics else None
    pid = os.fork()
    if pid == 0:
        signal.signal(signal.SIGCHLD, reaped)
        _child(start, streams, before)
    child = _Child(pid, forwarded, streams)
    try:
        started(pid)
        status = child.wait()
    finally:
        child.close()
        if streams is not None:
            streams.end()
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        signal.signal(signal.SIGCHLD, reaped)
    return os.WEXITSTATUS(status) if os.WIFEXITED(status) else 128 + os.WTERMSIG(status)


def _child(start: Callable[[], Any], streams: Streams | None, mask: set[Any]) -> None:
    code = 126
    try:
        if streams is not None:
            streams.child()
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        start()
    except BaseException as error:
        code = int(getattr(error, "code", 126) or 126)
        os.write(2, f"lockd: {error}\n".encode("utf-8", "backslashreplace"))
    finally:
        os._exit(code)


class _Child:
    """The running command, and the thread that forwards signals to it."""

    def __init__(self, pid: int, forwarded: set[signal.Signals], streams: Streams | None) -> None:
        self._pid, self._forwarded, self._streams = pid, forwarded, streams
        self._ended, self._lock = False, threading.Lock()
        if streams is not None:
            streams.begin()
        self._thread = threading.Thread(target=self._forward, daemon=True)
        self._thread.start()

    def wait(self) -> int:
        """The status of the ended command. While a key has stopped it, lockd stands still, too."""
        while True:
            told = os.waitid(os.P_PID, self._pid, os.WEXITED | os.WSTOPPED | os.WNOWAIT)
            if told is not None and told.si_code == os.CLD_STOPPED:
                _, status = os.waitpid(self._pid, os.WUNTRACED)
                if os.WIFSTOPPED(status) and os.WSTOPSIG(status) in _JOB_CONTROL:
                    os.kill(os.getpid(), signal.SIGSTOP)
                continue
            with self._lock:  # from here on its pid may be anybody's
                self._ended = True
                return os.waitpid(self._pid, 0)[1]

    def close(self) -> None:
        """End the thread."""
        with self._lock:
            self._ended = True
        signal.pthread_kill(self._thread.ident or 0, signal.SIGCONT)
        self._thread.join()

    def _forward(self) -> None:
        """Signals that another process sent go on to the command. Those of the terminal went to its whole group."""
        while True:
            told = signal.sigwaitinfo(self._forwarded)
            if told.si_signo == signal.SIGWINCH and self._streams is not None:
                self._streams.resize()
            with self._lock:
                if self._ended:
                    return
                if told.si_code != _FROM_KERNEL or told.si_signo == signal.SIGWINCH:
                    os.kill(self._pid, told.si_signo)


class _Stream(NamedTuple):
    """One stream of the command: our end, the command's, its descriptors there, and what watches it."""

    ours: int
    theirs: int
    targets: tuple[int, ...]
    terminal: bool
    watch: Watch


class Streams:
    """The command's output on its way through lockd; made before the fork, each side closes what it does not use."""

    def __init__(self, metrics: Sequence[Metric]) -> None:
        self._over = False
        self._waking, self._wake = os.pipe()
        groups: tuple[tuple[int, ...], ...] = ((1, 2),) if _one_file(1, 2) else ((1,), (2,))
        self._streams = {one.ours: one for one in (_stream(targets, metrics) for targets in groups)}
        self._thread = threading.Thread(target=self._pump, daemon=True)
        self.resize()

    def resize(self) -> None:
        """The pseudo-terminals are as large as the real one."""
        import fcntl
        import struct
        import termios

        for one in self._streams.values():
            if one.terminal:
                try:
                    size = fcntl.ioctl(one.targets[0], termios.TIOCGWINSZ, struct.pack("HHHH", 0, 0, 0, 0))
                    fcntl.ioctl(one.ours, termios.TIOCSWINSZ, size)
                except OSError:
                    pass

    def child(self) -> None:
        """In the command: its output is our input. The originals close when it is executed."""
        for one in self._streams.values():
            for target in one.targets:
                os.dup2(one.theirs, target)

    def begin(self) -> None:
        """In lockd: only the command has the other ends."""
        for one in self._streams.values():
            os.close(one.theirs)
        self._thread.start()

    def end(self) -> None:
        """The command is over: what is still under way is passed on, then no more."""
        self._over = True
        os.write(self._wake, b"x")
        self._thread.join()
        for descriptor in (self._wake, self._waking):
            os.close(descriptor)

    def _pump(self) -> None:
        with selectors.DefaultSelector() as selector:
            for descriptor in (self._waking, *self._streams):
                selector.register(descriptor, selectors.EVENT_READ)
            left = set(self._streams)
            while left:
                ready = {key.fd for key, _ in selector.select(_QUIET if self._over else None)}
                if self._waking in ready:
                    selector.unregister(self._waking)
                elif not ready:
                    break
                for ours in ready & left:
                    if not self._pass_on(self._streams[ours]):
                        selector.unregister(ours)
                        os.close(ours)
                        left.remove(ours)
        for ours in left:
            os.close(ours)
        for one in self._streams.values():
            one.watch.end()

    def _pass_on(self, one: _Stream) -> bool:
        """One block. False at the end of the stream, or where our own reader is gone: the command shall see that."""
        try:
            data = os.read(one.ours, _BLOCK)
        except OSError:  # EIO: nobody has the pseudo-terminal any more
            data = b""
        written = bool(data) and _write(one.targets[0], data)
        one.watch.feed(data)
        return written


def _stream(targets: tuple[int, ...], metrics: Sequence[Metric]) -> _Stream:
    import termios

    terminal = os.isatty(targets[0])
    ours, theirs = os.openpty() if terminal else os.pipe()
    if terminal:
        how = termios.tcgetattr(theirs)
        how[1] &= ~termios.OPOST  # the real terminal does that
        termios.tcsetattr(theirs, termios.TCSANOW, how)
    return _Stream(ours, theirs, targets, terminal, Watch(metrics))


def _write(target: int, data: bytes) -> bool:
    view = memoryview(data)
    while view:
        try:
            view = view[os.write(target, view) :]
        except BlockingIOError:  # somebody who shares it made it so
            select.select([], [target], [])
        except OSError as error:
            if error.errno != errno.EPIPE:  # the command sees no more than that nobody reads
                _say(f"the command's output could not be written: {error.strerror}")
            return False
    return True


def _say(text: str) -> None:
    try:
        os.write(2, f"lockd: {text}\n".encode())
    except OSError:
        pass


def _one_file(one: int, other: int) -> bool:
    """`2>&1`: the same open file, whose order must be kept."""
    try:
        a, b = os.fstat(one), os.fstat(other)
    except OSError:
        return False
    return (a.st_dev, a.st_ino) == (b.st_dev, b.st_ino)


def values(metrics: Sequence[Metric]) -> Mapping[str, str]:
    """What was found, by name."""
    return {one.name: one.last for one in metrics if one.last is not None}
