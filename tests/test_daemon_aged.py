"""`max_age` inside the daemon: a large tree that raises no events is not walked for each launch, nor at each poll."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from lockd.lastlook import ENTRIES
from tests.daemons import Daemon
from tests.scene import Scene
from tests.test_lastlook import large_tree
from tests.test_watch_limits import mounted

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="mounts: root only")


def test_a_gate_takes_the_daemons_last_look_at_a_large_polled_tree(tmp_path: Path) -> None:
    data = tmp_path / "data"
    for name in ("upper", "work", "data"):
        (tmp_path / name).mkdir()
    lower = large_tree(tmp_path / "lower", ENTRIES)
    scene = Scene(tmp_path)
    scene.write_policy(f'[[tree]]\npath = "{data}"\nmax_age = "1h"\n')
    with mounted(data) as mount:
        options = f"lowerdir={lower},upperdir={tmp_path}/upper,workdir={tmp_path}/work"
        mount("mount", "-t", "overlay", "overlay", "-o", options, str(data))
        answer = scene.accept()
        assert answer.code == 0, answer.err
        with Daemon(scene) as daemon:
            daemon.ready()
            watch = daemon.status()["watch"][str(data)]
            assert watch["mode"] == "polled" and "lower layer" in watch["why"]
            (lower / "part-1" / "new").touch()  # behind the overlay: no event tells it
            # 1. a gate takes the last look, and says so
            launch = scene.lockd("run", "--", "true")
            assert launch.code == 0 and f"not looked at again: tree:{data} (" in launch.err, launch.err
            # 2. a person's question is looked at
            verified = scene.verify()
            assert verified.code == 1 and verified.facts == [f"tree:{data}"] and verified.document["daemon"] is True
            # 3. what differed in the last look is looked at again, whatever its age: still there, then mended
            refused = scene.lockd("run", "--", "true")
            assert refused.code == 78 and "not looked at again" not in refused.err
            (lower / "part-1" / "new").unlink()
            mended = scene.lockd("run", "--", "true")
            assert mended.code == 0 and "not looked at again" not in mended.err
            assert list(scene.state.glob("*/launches/*"))  # it was the daemon that let it go
            assert daemon.stop() == 0
