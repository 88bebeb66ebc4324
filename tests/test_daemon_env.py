"""The daemon over a virtualenv: one that is deleted under it, and built again."""

from __future__ import annotations

import shutil
from pathlib import Path

from tests.daemons import Daemon, edit
from tests.scene import Scene
from tests.wheels import Wheel, build_venv, install

TORCH = Wheel("torch", "2.11.0", {"torch/__init__.py": "x = 1\n", "torch/a.py": "x = 1\n"})


def test_a_watched_venv_deleted_and_built_again(tmp_path: Path) -> None:
    env = build_venv(tmp_path / "venv")
    install(env, TORCH, compiled=False)
    scene = Scene(tmp_path)
    scene.write_policy(f'[[python]]\nname = "train"\npath = "{env.prefix}"\n')
    assert scene.accept().code == 0
    with Daemon(scene) as daemon:
        daemon.ready()
        for _ in range(2):
            shutil.rmtree(env.prefix)
            daemon.wait_for("block")
            assert "python:train" in [one["fact"] for one in daemon.status()["findings"]]
            assert scene.verify().code == 1
            install(build_venv(env.prefix), TORCH, compiled=False)
            daemon.wait_for("ok")
        edit(env.site / "torch" / "a.py", "x = 2\n")
        daemon.wait_for("block")  # it is watched again
        (finding,) = daemon.status()["findings"]
        assert finding["fact"] == "package:train/torch"
        assert {one["mode"] for one in daemon.status()["watch"].values()} <= {"fanotify", "inotify"}
        assert daemon.stop() == 0
