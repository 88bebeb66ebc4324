"""The daemon under load: a queue that runs over, hundreds of writers, and a day of benign acts in fast motion."""

from __future__ import annotations

import compileall
import importlib.util
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.daemons import Daemon, until
from tests.scene import Scene
from tests.watching import needs_fanotify, needs_user_namespace

pytestmark = pytest.mark.slow

QUEUE = Path("/proc/sys/fs/inotify/max_queued_events")
MODULES = 20


def files(root: Path, number: int) -> tuple[Scene, list[Path]]:
    """A scene with that many pinned modules, byte code left out, accepted."""
    scene = Scene(root)
    paths = [scene.file(f"job/m{one}.py") for one in range(number)]
    scene.write_policy(f'[[file]]\npath = "{root}/job/**/*.py"\n')
    assert scene.accept().code == 0
    return scene, paths


def log(scene: Scene, kind: str) -> list[dict[str, Any]]:
    return list(scene.lockd("log", "--json", "--kind", kind).document)


@needs_user_namespace
def test_a_burst_beyond_the_queue_is_told_and_the_final_state_is_right(tmp_path: Path) -> None:
    """More edits than the kernel's queue holds, while the daemon is stopped: only a new look can tell what is."""
    scene, paths = files(tmp_path, 50)
    with Daemon(scene, prefix=("unshare", "-Ur")) as daemon:
        daemon.ready()
        daemon.process.send_signal(signal.SIGSTOP)
        edits = max(20_000, int(QUEUE.read_text()) + 4_000)
        try:
            for number in range(edits):
                paths[number % 50].write_text(f"x = {number}\n")
            for path in paths[1:]:
                path.write_text("x = 1\n")
        finally:
            daemon.process.send_signal(signal.SIGCONT)
        daemon.wait_for("block")
        status = daemon.status()
        assert [one["fact"] for one in status["findings"]] == [f"file:{paths[0]}"]
        assert {one["mode"] for one in status["watch"].values()} <= {"inotify", "polled"}
        until(lambda: [one for one in log(scene, "look") if "overflow" in one["message"]], "the overflow to be told")
        paths[0].write_text("x = 1\n")
        daemon.wait_for("ok")
        paths[7].write_text("x = 2\n")
        daemon.wait_for("block")  # it is watched again


@needs_fanotify
def test_300_writers_that_live_a_moment_are_named(tmp_path: Path) -> None:
    scene, paths = files(tmp_path, 300)
    code = "import sys, time; open(sys.argv[1], 'w').write('y'); time.sleep(0.05)"

    def write(path: Path) -> int:
        with subprocess.Popen([sys.executable, "-S", "-c", code, str(path)]) as writer:
            assert writer.wait() == 0
            return writer.pid

    with Daemon(scene) as daemon:
        daemon.ready()
        with ThreadPoolExecutor(8) as pool:
            wrote = dict(zip(map(str, paths), pool.map(write, paths), strict=True))
        until(lambda: len(daemon.status()["findings"]) == 300, "300 findings")
        found = {one["fact"].removeprefix("file:"): one["by"] for one in daemon.status()["findings"]}
    named = {path: by for path, by in found.items() if by["confidence"] != "not observed"}
    assert {path: by["pid"] for path, by in named.items()} == {path: wrote[path] for path in named}
    whole = [path for path, by in named.items() if path in by.get("cmdline", ())]
    print(f"{len(named)} of 300 attributed, {len(whole)} with their command line")
    assert len(named) >= 297


@needs_fanotify
def test_writers_that_are_gone_at_once_are_never_named_wrongly(tmp_path: Path) -> None:
    scene, paths = files(tmp_path, 100)
    with Daemon(scene) as daemon:
        daemon.ready()
        for path in paths:
            subprocess.run(["/bin/sh", "-c", 'echo y > "$0"', str(path)], check=True)
        until(lambda: len(daemon.status()["findings"]) == 100, "100 findings")
        for one in daemon.status()["findings"]:
            by = one["by"]
            assert one["fact"].removeprefix("file:") in by.get("cmdline", one["fact"]), one


@needs_fanotify
def test_writers_of_one_burst_are_told_apart(tmp_path: Path) -> None:
    """Two writers take turns within each gathered burst; each finding has the one that wrote its file."""
    scene, paths = files(tmp_path, 40)
    code = "import sys, time\nfor path in sys.argv[2:]:\n  open(path, 'w').write(sys.argv[1]); time.sleep(0.005)\n"
    code += "time.sleep(0.3)"
    with Daemon(scene) as daemon:
        daemon.ready()
        turns = {"one": paths[::2], "two": paths[1::2]}
        writers = [
            subprocess.Popen([sys.executable, "-S", "-c", code, name, *map(str, turn)]) for name, turn in turns.items()
        ]
        assert [writer.wait() for writer in writers] == [0, 0]
        until(lambda: len(daemon.status()["findings"]) == 40, "40 findings")
        by = {one["fact"].removeprefix("file:"): one["by"]["pid"] for one in daemon.status()["findings"]}
    assert by == {str(path): writer.pid for writer, turn in zip(writers, turns.values(), strict=True) for path in turn}


def test_a_day_of_benign_acts_raises_no_alarm_and_grows_nothing(tmp_path: Path) -> None:
    """10,000 acts: imports, byte code made anew, caches and logs that grow, touches, whole files put in place."""
    scene, paths = files(tmp_path, MODULES)
    with Daemon(scene) as daemon:
        daemon.ready()
        act = Benign(scene, paths)
        for number in range(2_000):
            act(number)
        before = _settled(daemon)
        for number in range(2_000, 10_000):
            act(number)
            if number % 100 == 0:
                assert daemon.standing()["verdict"] == "ok", number
        after = _settled(daemon)
        assert daemon.status()["findings"] == []
    print(f"before {before}, after {after}")
    assert log(scene, "drift") == [] and log(scene, "heal") == []
    assert after["descriptors"] <= before["descriptors"] + 2 and after["threads"] <= before["threads"]
    assert after["rss"] <= before["rss"] + (4 << 20)


class Benign:
    """One act after another, of six kinds."""

    def __init__(self, scene: Scene, paths: list[Path]) -> None:
        self.scene, self.paths = scene, paths
        (scene.root / "job" / "cache").mkdir()

    def __call__(self, number: int) -> None:
        path, kind = self.paths[number % MODULES], number % 50
        if kind == 0:  # a process that imports it
            words = [sys.executable, "-S", "-c", f"import {path.stem}"]
            subprocess.run(words, check=True, env={"PYTHONPATH": str(path.parent)})
        elif kind < 10:
            Path(importlib.util.cache_from_source(str(path))).unlink(missing_ok=True)
            compileall.compile_file(str(path), quiet=2)
        elif kind < 20:
            self.scene.file(f"job/cache/entry{number}", "triton")
        elif kind < 35:
            with open(self.scene.root / "job" / "train.log", "a") as file:
                file.write(f"step {number}\n")
        elif kind < 48:
            os.utime(path)
        else:  # the same bytes, put in place as an editor does
            aside = path.with_suffix(".new")
            aside.write_text("x = 1\n")
            aside.replace(path)


def _settled(daemon: Daemon) -> dict[str, Any]:
    """What it uses once it has caught up."""
    until(lambda: daemon.standing()["settled"], "quiet")
    time.sleep(1)
    return dict(daemon.status()["resources"])
