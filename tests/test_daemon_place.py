"""The runtime folder of a real daemon: full, taken away, hostile, another's; and what may no longer be read."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.daemons import GOOD, Daemon, daemon, edit, scene, until
from tests.scene import Scene, pinned_file

__all__ = ["daemon", "scene"]


@pytest.fixture
def small(scene: tuple[Scene, Path]) -> Iterator[Callable[[], None]]:
    """The runtime folder is a file system of its own; the function fills it to the last byte."""
    run = scene[0].root / "run"
    run.mkdir(mode=0o755)
    options = "size=64k,nr_inodes=64,mode=755"
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(run)], capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"no tmpfs can be mounted: {done.stderr.strip()}")

    def fill() -> None:
        with open(run / "filler", "wb", buffering=0) as file, pytest.raises(OSError, match="No space left"):
            while True:
                file.write(bytes(4096))

    yield fill
    subprocess.run(["umount", "-l", str(run)], check=True)


def test_a_runtime_folder_that_is_full_holds_up_nothing(scene: tuple[Scene, Path], small: Callable[[], None]) -> None:
    made, path = scene
    small()
    with Daemon(made) as running:
        running.ready()
        edit(path, "x = 2\n")
        running.wait_for("block")
        answer = made.verify("--json")
        assert answer.code == 1 and answer.document["daemon"] is True
        with Daemon(made) as second:
            assert second.process.wait(timeout=30) == 2
        assert running.stop() == 0


def test_where_no_file_can_be_made_it_says_so_in_a_line(scene: tuple[Scene, Path], small: Callable[[], None]) -> None:
    made, _ = scene
    run = made.root / "run"
    (run / "a").touch()
    with pytest.raises(OSError, match="No space left"):
        for number in range(100):
            (run / f"filler{number}").touch()
    (run / "a").unlink()  # room for the folder, and for nothing in it
    with Daemon(made) as running:
        assert running.process.wait(timeout=30) == 3
        (line, *_) = running.log_path.read_text().splitlines()
        assert "runtime folder" in line and "No space left" in line and str(run) in line


@pytest.mark.parametrize("what", ["", "socket", "cookies"])
def test_what_is_taken_away_is_made_anew(scene: tuple[Scene, Path], daemon: Daemon, what: str) -> None:
    made, path = scene
    run = made.root / "run"
    gone = daemon.place / what if what else run
    gone.unlink() if what == "socket" else shutil.rmtree(gone)
    edit(path, "x = 2\n")
    assert made.verify().code == 1  # by the daemon or not
    if what != "cookies":  # without a cookie nothing is proved, and everything is looked at
        until(lambda: daemon.log("socket_back"), "it to be there again")
        assert daemon.socket.exists()
    daemon.wait_for("block")
    answer = made.verify("--json")
    assert answer.code == 1 and answer.document["daemon"] is True
    edit(path, GOOD)
    daemon.wait_for("ok")
    with Daemon(made) as second:
        assert second.process.wait(timeout=30) == 2
    assert daemon.process.poll() is None
    assert daemon.stop() == 0 and not daemon.socket.exists()


def test_a_hostile_folder_in_its_place_is_not_used_and_said(scene: tuple[Scene, Path], daemon: Daemon) -> None:
    made, path = scene
    run = made.root / "run"
    run.rename(made.root / "old")
    run.mkdir()
    run.chmod(0o777)
    (said,) = until(lambda: daemon.log("socket_lost"), "it to be said")
    assert "others may write" in said["error"] and list(run.iterdir()) == []
    edit(path, "x = 2\n")
    assert made.verify().code == 1
    assert len(daemon.log("socket_lost")) == 1 and daemon.process.poll() is None
    run.rmdir()
    until(lambda: daemon.log("socket_back"), "it to be there again")
    assert daemon.standing()["verdict"] == "block"


def test_where_another_daemon_took_the_place_this_one_ends(scene: tuple[Scene, Path], daemon: Daemon) -> None:
    daemon.process.send_signal(signal.SIGSTOP)  # or it would be there again first
    shutil.rmtree(daemon.place)
    with Daemon(scene[0]) as second:
        second.ready()
        daemon.process.send_signal(signal.SIGCONT)
        assert daemon.process.wait(timeout=30) == 3
        assert f"pid {second.process.pid}" in daemon.log("failed")[-1]["error"]
        assert second.standing()["verdict"] == "ok"  # its socket was left alone


def test_a_file_that_may_no_longer_be_read_is_unknown_with_its_reason(tmp_path: Path) -> None:
    """A daemon without the capability to read all the same, as a plain user's is."""
    if os.geteuid() != 0 or shutil.which("setpriv") is None:
        pytest.skip("capabilities are dropped by setpriv, as root")
    made, path = pinned_file(tmp_path)
    assert made.accept().code == 0
    caps = "-dac_override,-dac_read_search"
    prefix = ("setpriv", f"--bounding-set={caps}", f"--inh-caps={caps}", "--no-new-privs")
    with Daemon(made, prefix=prefix) as running:
        running.ready()
        path.chmod(0)
        running.wait_for("unknown")
        (finding,) = running.status()["findings"]
        assert finding["change"] == "unreadable" and "ermission denied" in finding["message"]
        (said,) = until(lambda: running.log("drift"), "the journal to say why")
        assert said["verdict"] == "unknown" and "ermission denied" in said["text"]
        path.write_text("x = 2\n")  # nobody can say what it holds
        path.parent.chmod(0)
        running.ask(ask="status")
        assert running.standing()["verdict"] == "unknown"
        path.parent.chmod(0o755)
        path.chmod(0o644)
        running.wait_for("block")
        edit(path, GOOD)
        running.wait_for("ok")


def test_a_state_disk_that_fills_under_it_costs_the_history_alone(tmp_path: Path) -> None:
    made, path = pinned_file(tmp_path)
    made.state.mkdir(parents=True, exist_ok=True)
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m,mode=700", "tmpfs", str(made.state)])
    if done.returncode:
        pytest.skip("no tmpfs can be mounted")
    try:
        assert made.accept().code == 0
        with Daemon(made) as running:
            running.ready()
            filler = made.state / "filler"
            with open(filler, "wb", buffering=0) as file, pytest.raises(OSError, match="No space left"):
                while True:
                    file.write(bytes(4096))
            for number in range(40):  # the room that the store has left in its own files is soon used up
                edit(path, f"x = {number + 2}\n" * 50)
                running.wait_for("block")
                if running.log("history_unwritable"):
                    break
                edit(path, GOOD)
                running.wait_for("ok")
            else:
                pytest.fail("the store was never full")
            assert "full" in running.log("history_unwritable")[0]["error"]
            assert running.standing()["verdict"] == "block" and running.status()["daemon"]["history"] != "ok"
            filler.unlink()
            until(lambda: running.log("history_writable"), "the history to be written again", 90)
            assert running.status()["daemon"]["history"] == "ok"
            assert made.lockd("log", "--check").code == 0
            edit(path, GOOD)
            running.wait_for("ok")
            assert running.stop() == 0
    finally:
        subprocess.run(["umount", "-l", str(made.state)], check=True)
