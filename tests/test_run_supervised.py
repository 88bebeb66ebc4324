"""A command beneath lockd: bytes, signals, exit codes, a real pseudo-terminal, and job control of a real shell."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import shlex
import signal
import struct
import subprocess
import sys
import termios
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockd import supervise
from lockd.errors import UsageError
from tests.scene import LOCKD, Scene, pinned_file
from tests.test_run import begin, environ, listed, wait_for

METRIC = ("--metric", "a=(never)")


@pytest.fixture
def good(tmp_path: Path) -> Scene:
    scene, _ = pinned_file(tmp_path)
    assert scene.accept().code == 0
    return scene


# -- metrics


def watched(pattern: str, *blocks: bytes) -> str | None:
    one = supervise.metric(f"m={pattern}")
    watch = supervise.Watch([one])
    for block in blocks:
        watch.feed(block)
    watch.end()
    return one.last


@pytest.mark.parametrize(
    ("pattern", "blocks", "last"),
    [
        ("([0-9.]+) Ktok", (b"1 Ktok\n2 Ktok\n",), "2"),
        ("([0-9.]+) Ktok", (b"1 Kto", b"k\n"), "1"),
        ("([0-9.]+) Ktok", (b"1 Ktok\r2 Ktok\r3 Kt",), "2"),
        ("([0-9.]+) Ktok", (b"12.8 Ktok",), "12.8"),
        ("loss [0-9.]+", (b"loss 0.5\n",), "loss 0.5"),
        ("^x=(.)$", (b"a\nx=1\nb\nx=2\n",), "2"),
        ("a|(b)", (b"a\n",), "a"),
        ("nothing", (b"something\n",), None),
        ("é=(.+)", ("é=\xff\n".encode(),), "ÿ"),
    ],
)
def test_the_last_match_wins(pattern: str, blocks: tuple[bytes, ...], last: str | None) -> None:
    assert watched(pattern, *blocks) == last


@given(st.lists(st.integers(0, 99), min_size=1), st.data())
def test_how_output_is_cut_never_matters(numbers: list[int], data: st.DataObject) -> None:
    text = b"".join(b"%d Ktok\n" % number for number in numbers)
    cut = data.draw(st.integers(0, len(text)))
    assert watched("([0-9]+) Ktok", text[:cut], text[cut:]) == str(numbers[-1])


def test_a_line_without_end_needs_no_memory() -> None:
    one = supervise.metric("m=x")
    watch = supervise.Watch([one])
    for _ in range(100):
        watch.feed(b"y" * 100_000)
    assert len(watch._rest) <= 1 << 16


@pytest.mark.parametrize("word", ["", "a", "=x", "a=", "a b=x", "a=(", "1=x"])
def test_what_is_no_metric(word: str) -> None:
    with pytest.raises(UsageError):
        supervise.metric(word)


# -- bytes


def test_every_byte_passes_untouched_and_apart(good: Scene) -> None:
    code = (
        "import os, sys; data = bytes(range(256)) * 4096;"
        "[os.write(1, data[at:at + 5000]) for at in range(0, len(data), 5000)]; os.write(2, data[::-1][:300000])"
    )
    process = begin(
        good, "run", *METRIC, "--", sys.executable, "-I", "-c", code, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    out, err = process.communicate(timeout=60)
    data = bytes(range(256)) * 4096
    assert (process.returncode, out == data, err == data[::-1][:300000]) == (0, True, True)


def test_one_pipe_for_both_keeps_the_order(good: Scene) -> None:
    script = "for n in 1 2 3 4 5 6 7 8 9; do echo out $n; echo err $n >&2; done"
    process = begin(good, "run", *METRIC, "--", "sh", "-c", script, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    out, _ = process.communicate(timeout=30)
    assert out.decode().splitlines() == [f"{word} {n}" for n in range(1, 10) for word in ("out", "err")]


def test_stdin_is_the_commands(good: Scene) -> None:
    for words in (("--wait",), METRIC):
        process = begin(good, "run", *words, "--", "cat", stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert process.communicate(b"through\n", timeout=30)[0] == b"through\n"


def test_a_reader_that_leaves_is_seen_by_the_command(good: Scene) -> None:
    script = f"{shlex.join(LOCKD)} run --metric 'a=(x)' -- yes | head -n 1"
    done = subprocess.run(["sh", "-c", script], env=environ(good), capture_output=True, timeout=60)
    assert done.stdout == b"y\n"
    assert wait_for(lambda: listed(good)[0]["exit"]) in (141, 1)  # SIGPIPE, or yes says it


def test_a_grandchild_that_keeps_the_pipe_open_holds_nobody(good: Scene) -> None:
    process = begin(good, "run", *METRIC, "--", "sh", "-c", "sleep 60 & echo $!; exit 5", stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None
        left = int(process.stdout.readline())
        assert process.wait(30) == 5
    finally:
        process.kill()
        os.kill(left, signal.SIGKILL)


# -- signals


@pytest.mark.parametrize("words", [("--wait",), METRIC])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGHUP])
def test_signals_are_forwarded(good: Scene, words: tuple[str, ...], number: signal.Signals) -> None:
    mark = good.root / "mark"
    script = f"trap 'exit 9' {number.value}; touch {mark}; while :; do sleep 0.1; done"
    process = begin(good, "run", *words, "--", "sh", "-c", script, start_new_session=True)
    try:
        wait_for(mark.exists)
        process.send_signal(number)
        assert process.wait(30) == 9
    finally:
        process.kill()


def test_an_ignored_signal_stays_ignored(good: Scene) -> None:
    """As under nohup: whoever ignores SIGHUP before lockd still does so in the command."""
    inner = shlex.join(LOCKD)
    for words in ("", "--wait"):
        script = f"trap '' HUP; exec {inner} run {words} -- sh -c 'kill -HUP $$; echo survived'"
        done = subprocess.run(["sh", "-c", script], env=environ(good), capture_output=True, timeout=60)
        assert done.stdout == b"survived\n", done.stderr


# -- terminals


class Terminal:
    """lockd on a pseudo-terminal of its own, as its session leader."""

    def __init__(self, scene: Scene, *argv: str) -> None:
        self.text = b""
        self.pid, self.master = pty.fork()
        if self.pid == 0:
            os.chdir(scene.root)
            os.execve(argv[0], argv, environ(scene, TERM="xterm"))
        self.size(24, 80)

    def size(self, rows: int, columns: int) -> None:
        fcntl.ioctl(self.master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def until(self, wanted: bytes, seconds: float = 30) -> bytes:
        end = time.monotonic() + seconds
        while wanted not in self.text:
            if time.monotonic() > end or not select.select([self.master], [], [], max(0, end - time.monotonic()))[0]:
                raise AssertionError(f"{wanted!r} did not come: {self.text!r}")
            self.text += os.read(self.master, 4096)
        return self.text

    def wait(self) -> int:
        try:
            while True:
                self.text += os.read(self.master, 4096)
        except OSError:
            pass
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])

    def close(self) -> None:
        try:
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
        except (ProcessLookupError, ChildProcessError):
            pass
        os.close(self.master)


@pytest.mark.parametrize("words", [(), ("--wait",), METRIC])
def test_on_a_terminal_the_command_has_one(good: Scene, words: tuple[str, ...]) -> None:
    script = "test -t 0 && test -t 1 && test -t 2 && echo all three; stty size; stty size <&1; exit 6"
    terminal = Terminal(good, *LOCKD, "run", *words, "--", "sh", "-c", f"sleep 0.3; {script}")
    try:
        terminal.size(31, 97)
        assert terminal.wait() == 6
        assert terminal.text == b"all three\r\n31 97\r\n31 97\r\n"
    finally:
        terminal.close()


@pytest.mark.parametrize("words", [("--wait",), METRIC])
def test_a_key_interrupts_the_command_once(good: Scene, words: tuple[str, ...]) -> None:
    code = (
        "import signal, sys, time\n"
        "got = []\n"
        "signal.signal(signal.SIGINT, lambda *_: got.append(1))\n"
        "print('ready', flush=True)\n"
        "while not got: time.sleep(0.05)\n"
        "time.sleep(0.3)\n"
        "print('interrupts:', len(got), flush=True)\n"
    )
    terminal = Terminal(good, *LOCKD, "run", *words, "--", sys.executable, "-I", "-c", code)
    try:
        terminal.until(b"ready")
        os.write(terminal.master, b"\x03")
        terminal.until(b"interrupts: 1")
        assert terminal.wait() == 0
    finally:
        terminal.close()


def test_a_new_size_reaches_the_command(good: Scene) -> None:
    code = (
        "import os, signal, time\n"
        "signal.signal(signal.SIGWINCH, lambda *_: print('now', *os.get_terminal_size(1), flush=True))\n"
        "print('ready', flush=True)\n"
        "for _ in range(600): time.sleep(0.05)\n"
    )
    terminal = Terminal(good, *LOCKD, "run", *METRIC, "--", sys.executable, "-I", "-c", code)
    try:
        terminal.until(b"ready")
        terminal.size(40, 132)
        terminal.until(b"now 132 40")
    finally:
        terminal.close()


@pytest.mark.parametrize("words", ["--wait", "--metric 'a=(never)'"])
def test_a_real_shell_stops_and_continues_it(good: Scene, words: str) -> None:
    """Ctrl-Z stops lockd and the command, the shell has its prompt, `fg` goes on, the exit code comes through."""
    inner = shlex.join(LOCKD)
    # one process: a shell may be stopped in the middle of a vfork, which no shell notices
    job = "import time; print('begun', flush=True); time.sleep(1); print('ended', flush=True); raise SystemExit(5)"
    command = shlex.join([sys.executable, "-I", "-c", job])
    terminal = Terminal(good, "/bin/bash", "--norc", "--noprofile", "-i")
    try:
        os.write(terminal.master, b"PS1='ready> '; stty -echo\n")
        terminal.until(b"ready> ")
        os.write(terminal.master, f"{inner} run {words} -- {command}\n".encode())
        terminal.until(b"begun\r\n")
        os.write(terminal.master, b"\x1a")
        terminal.until(b"Stopped")
        os.write(terminal.master, b"fg\n")
        terminal.until(b"ended\r\n")
        os.write(terminal.master, b"echo code $?\n")  # not echoed
        terminal.until(b"code 5")
    finally:
        terminal.close()
