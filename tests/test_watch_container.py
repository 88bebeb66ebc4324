"""Watching inside real containers: what each kind is told of its own processes' edits, and of the host's."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from tests.container import Container, Kind, container
from tests.watching import REPOSITORY, Remote

__all__ = ["container"]
pytestmark = pytest.mark.container

Make = Callable[[Kind], Container]
ROOT = "/root/venv"


@pytest.fixture(params=["privileged", "unprivileged"])
def inside(request: pytest.FixtureRequest, container: Make) -> Container:
    """A container with lockd's code and what watching needs, put in from the host."""
    made = container(request.param)
    if not (made.path / "opt/lockd").exists():
        watchdog = find_spec("watchdog")
        assert watchdog and watchdog.origin
        made.push(Path(watchdog.origin).parent, "/opt/lockd/watchdog")
        made.push(Path(REPOSITORY) / "lockd", "/opt/lockd/lockd")
        made.push(Path(REPOSITORY) / "tests" / "watch_child.py", "/opt/lockd/tests/watch_child.py")
        made.run("mkdir", "-p", ROOT + "/lib")
    return made


@pytest.fixture
def watched(inside: Container) -> Iterator[Remote]:
    prefix = inside.attach("env", PYTHONPATH="/opt/lockd", PYTHONDONTWRITEBYTECODE="1")
    with Remote([ROOT], "/run/lockd-cookies", prefix=prefix, python="/usr/bin/python3") as remote:
        yield remote


def about(answer: Any, path: str) -> list[dict[str, Any]]:
    assert answer["synced"]
    return [hint["who"] for hint in answer["hints"] if hint["path"] == path]


def test_the_interface_is_the_best_that_the_kind_allows(inside: Container, watched: Remote) -> None:
    mode, why = watched.ready[ROOT]
    if inside.kind == "privileged":
        assert (mode, why) == ("fanotify", "")
    else:
        assert mode == "inotify" and "CAP_SYS_ADMIN" in why


def test_a_writer_inside_is_named_where_the_kernel_tells_it(inside: Container, watched: Remote) -> None:
    inside.run("sh", "-c", f"echo > {ROOT}/lib/inside; sleep 0.3")
    (who, *_) = about(watched.ask("sync"), f"{ROOT}/lib/inside")
    if inside.kind == "privileged":
        assert who["confidence"] == "observed" and who["user"] == "root"
        assert who["cmdline"][:2] == ["sh", "-c"] and who["origin"] == "pct exec/lxc-attach"
    else:
        assert who["confidence"] == "not observed" and "CAP_SYS_ADMIN" in who["reason"]


def test_a_unit_inside_is_named(inside: Container, watched: Remote) -> None:
    inside.run("systemd-run", "--wait", "-q", "-u", "train-ct200", "sh", "-c", f"echo > {ROOT}/lib/unit; sleep 0.3")
    (who, *_) = about(watched.ask("sync"), f"{ROOT}/lib/unit")
    if inside.kind == "privileged":
        assert who["origin"] == "unit train-ct200.service"
    else:
        assert who["confidence"] == "not observed"


def test_an_edit_from_the_host_is_seen_and_is_from_outside(inside: Container, watched: Remote) -> None:
    (inside.path / ROOT[1:] / "lib" / "host").write_text("edited on the host")
    (who, *_) = about(watched.ask("sync"), f"{ROOT}/lib/host")
    assert who["confidence"] == "not observed" and "pid" not in who
    if inside.kind == "privileged":
        assert "from outside this container" in who["reason"]


def test_a_folder_pushed_from_the_host_is_seen_whole(inside: Container, watched: Remote, tmp_path: Path) -> None:
    (tmp_path / "new" / "deep").mkdir(parents=True)
    (tmp_path / "new" / "deep" / "f.py").write_text("x")
    inside.push(tmp_path / "new", f"{ROOT}/pushed-{os.getpid()}")
    assert about(watched.ask("sync"), f"{ROOT}/pushed-{os.getpid()}/deep/f.py")


def test_mounts_inside_are_seen(inside: Container, watched: Remote) -> None:
    inside.run("mount", "-t", "tmpfs", "none", ROOT)
    try:
        kinds = {hint["kind"] for hint in watched.ask("sync")["hints"] if hint["path"] == ROOT}
        assert "mounts" in kinds
    finally:
        inside.run("umount", ROOT)
