"""Runs that became their command: the daemon sees them end, and tells how where the kernel does."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lockd.daemon import ends
from tests.daemons import Daemon, until
from tests.scene import LOCKD, Scene, pinned_file


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Daemon]:
    scene, _ = pinned_file(tmp_path)
    assert scene.accept().code == 0
    with Daemon(scene) as running:
        yield running.ready()


def code_is_told() -> bool:
    """Does this kernel tell how a process ended that somebody else reaped?"""
    process = subprocess.Popen(["/bin/sh", "-c", "exit 7"])
    descriptor = os.pidfd_open(process.pid)
    try:
        process.wait()
        return ends._exit_code(descriptor) == 7
    finally:
        os.close(descriptor)


def begin(scene: Scene, *command: str) -> subprocess.Popen[bytes]:
    words = {"PATH": os.environ["PATH"], "HOME": str(scene.root / "home"), "LOCKD_STATE": str(scene.state)}
    words |= {"LOCKD_RUNTIME": str(scene.root / "run"), "LOCKD_POLICY": str(scene.policy)}
    return subprocess.Popen(
        [*LOCKD, "run", "--", *command], env=words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=scene.root
    )


def the_run(scene: Scene) -> dict[str, Any]:
    """The only run, as the store has it; asking by lockd would look for its end itself."""
    from lockd import runs, store

    (path,) = scene.state.glob("*/store.sqlite")
    opened = store.open(str(path), create=False)
    assert opened is not None
    with opened:
        (run,) = runs.listed(opened)
    return runs.document(run)


def ended(scene: Scene) -> dict[str, Any]:
    return dict(until(lambda: (run := the_run(scene))["end"] and run, "the end of the run"))


JOB = "import sys; print(1, flush=True); sys.exit(int(sys.stdin.read()))"


@pytest.mark.parametrize("code", [0, 7])
def test_the_end_of_a_run_that_became_its_command(daemon: Daemon, code: int) -> None:
    process = begin(daemon.scene, sys.executable, "-S", "-c", JOB)
    assert process.stdout and process.stdout.readline() == b"1\n"
    until(lambda: _holds(daemon, process.pid), "the daemon to hold it")
    assert the_run(daemon.scene)["end"] is None
    process.communicate(str(code).encode())
    run = ended(daemon.scene)
    assert run["end_seen"] is True
    assert run["exit"] == (code if code_is_told() else "unknown")


def test_a_signal_is_told_as_a_shell_tells_it(daemon: Daemon) -> None:
    process = begin(daemon.scene, sys.executable, "-S", "-c", JOB)
    assert process.stdout and process.stdout.readline() == b"1\n"
    until(lambda: _holds(daemon, process.pid), "the daemon to hold it")
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert ended(daemon.scene)["exit"] == (137 if code_is_told() else "unknown")


def test_a_run_that_nobody_reaps_ends_without_its_code(daemon: Daemon) -> None:
    process = begin(daemon.scene, sys.executable, "-S", "-c", JOB)
    assert process.stdin and process.stdout and process.stdout.readline() == b"1\n"
    until(lambda: _holds(daemon, process.pid), "the daemon to hold it")
    process.stdin.close()
    run = ended(daemon.scene)
    assert run["exit"] == "unknown"
    process.stdout.close()
    process.wait()


def test_pidfds_are_let_go(daemon: Daemon) -> None:
    process = begin(daemon.scene, sys.executable, "-S", "-c", JOB)
    assert process.stdout and process.stdout.readline() == b"1\n"
    until(lambda: _holds(daemon, process.pid), "the daemon to hold it")
    process.communicate(b"0")
    ended(daemon.scene)
    until(lambda: not _holds(daemon, process.pid), "the descriptor to be closed")


def _holds(daemon: Daemon, pid: int) -> bool:
    """Has the daemon a pidfd of a process that lives, or that is gone (Pid: -1)?"""
    for path in Path(f"/proc/{daemon.process.pid}/fdinfo").iterdir():
        try:
            lines = path.read_text().splitlines()
        except FileNotFoundError:
            continue
        if f"Pid:\t{pid}" in lines or "Pid:\t-1" in lines:
            return True
    return False
