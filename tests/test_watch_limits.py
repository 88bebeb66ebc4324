"""What the kernel cannot tell (full queues, limits, privileges, mounts) is said, and mended where it can be."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lockd.watch.hints import Hint
from lockd.watch.places import refusal
from lockd.watch.watcher import Watcher
from tests.watching import Collector, Remote, fanotify_permitted, needs_fanotify, needs_user_namespace, outside

MODES = ["best", "inotify"] if fanotify_permitted() else ["inotify"]
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="mounts: root only")


def burst(folder: Path, edits: int) -> None:
    """Edits of alternating files, so that the kernel cannot merge them."""
    edit = f"fd=os.open(f'{folder}/f{{i % 50}}', os.O_WRONLY|os.O_CREAT); os.write(fd, b'x'); os.close(fd)"
    script = f"import os\nfor i in range({edits}): {edit}"
    subprocess.run(["python3", "-c", script], check=True)


def queue_limit() -> int:
    return int(Path("/proc/sys/fs/inotify/max_queued_events").read_text())


def test_an_overflow_is_told_and_everything_is_watched_again(tmp_path: Path) -> None:
    root = tmp_path / "venv"
    root.mkdir()
    with Remote([str(root)], str(tmp_path / "c"), use="inotify") as remote:
        os.kill(remote.process.pid, signal.SIGSTOP)
        try:
            burst(root, max(20_000, queue_limit()))
            outside(f"mkdir -p {root}/unseen/deep")  # its events are lost: only walking again finds it
        finally:
            os.kill(remote.process.pid, signal.SIGCONT)
        answer = remote.ask("sync")
        assert answer["synced"]
        overflows = [hint for hint in answer["hints"] if hint["kind"] == "overflow"]
        assert [(hint["path"], hint["detail"]) for hint in overflows] == [
            (str(root), "inotify queue overflow: events were lost")
        ]
        outside(f"echo > {root}/unseen/deep/f")
        after = remote.ask("sync")
        assert after["synced"] and f"{root}/unseen/deep/f" in {hint["path"] for hint in after["hints"]}
        assert after["states"][str(root)][0] == "inotify"


@needs_fanotify
def test_fanotify_loses_nothing_of_the_same_burst(tmp_path: Path) -> None:
    root = tmp_path / "venv"
    root.mkdir()
    with Remote([str(root)], str(tmp_path / "c")) as remote:
        os.kill(remote.process.pid, signal.SIGSTOP)
        try:
            burst(root, 20_000)
            outside(f"echo > {root}/last")
        finally:
            os.kill(remote.process.pid, signal.SIGCONT)
        answer = remote.ask("sync")
    assert answer["synced"] and f"{root}/last" in {hint["path"] for hint in answer["hints"]}
    assert "overflow" not in {hint["kind"] for hint in answer["hints"]}


def test_a_receiver_that_cannot_keep_up_gets_one_overflow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lockd.watch.emitter.QUEUED", 10)
    root, got = tmp_path / "venv", Collector()
    root.mkdir()

    def slow(hint: Hint) -> None:
        time.sleep(0.005)
        got(hint)

    with Watcher([str(root)], on_hint=slow, cookie_folder=str(tmp_path / "c")) as watcher:
        outside(f"for i in $(seq 200); do echo > {root}/f$i; done")
        assert watcher.sync(30)
        assert "overflow" in got.kinds(root)
        got.hints.clear()
        outside(f"echo > {root}/again")
        assert watcher.sync(30)
    assert got.about(root / "again")


@needs_user_namespace
def test_without_privileges_it_is_inotify_and_says_why(tmp_path: Path) -> None:
    root = tmp_path / "venv"
    root.mkdir()
    with Remote([str(root)], str(tmp_path / "c"), prefix=["unshare", "-Ur"]) as remote:
        mode, why = remote.ready[str(root)]
        assert mode == "inotify" and "CAP_SYS_ADMIN" in why
        outside(f"echo > {root}/f")
        (hint, *_) = remote.ask("sync")["hints"]
    assert hint["who"]["confidence"] == "not observed"
    assert "CAP_SYS_ADMIN" in hint["who"]["reason"] and "pid" not in hint["who"]


def limited(limit: str, value: int) -> list[str]:
    return ["unshare", "-Ur", "sh", "-c", f'echo {value} > /proc/sys/user/{limit}; exec "$@"', "sh"]


@needs_user_namespace
def test_at_the_watch_limit_a_path_is_polled_with_the_reason_and_the_others_are_watched(tmp_path: Path) -> None:
    big, small = tmp_path / "big", tmp_path / "small"
    small.mkdir()
    for number in range(300):
        (big / f"d{number}").mkdir(parents=True)
    prefix = limited("max_inotify_watches", 200)
    with Remote([str(small), str(big)], str(tmp_path / "c"), prefix=prefix) as remote:
        assert remote.ready[str(small)][0] == "inotify"
        mode, why = remote.ready[str(big)]
        assert mode == "polled" and "watch limit reached" in why and "max_user_watches" in why
        outside(f"echo > {small}/f")
        answer = remote.ask("sync")
    assert answer["synced"] and f"{small}/f" in {hint["path"] for hint in answer["hints"]}


@needs_user_namespace
def test_a_path_that_grows_over_the_limit_is_lost_aloud(tmp_path: Path) -> None:
    root = tmp_path / "grows"
    root.mkdir()
    with Remote([str(root)], str(tmp_path / "c"), prefix=limited("max_inotify_watches", 60)) as remote:
        assert remote.ready[str(root)][0] == "inotify"
        outside(f"mkdir -p $(seq -f {root}/d%.0f 100)")
        answer = remote.ask("sync")
        lost = [hint for hint in answer["hints"] if hint["kind"] == "watch-lost"]
        assert [hint["path"] for hint in lost] == [str(root)] and "watch limit reached" in lost[0]["detail"]
        assert answer["states"][str(root)][0] == "polled"
        outside(f"rmdir $(seq -f {root}/d%.0f 2 100)")
        assert remote.ask("retry")["states"][str(root)][0] == "inotify"


@needs_user_namespace
def test_without_any_instance_everything_is_polled_and_nothing_is_proved(tmp_path: Path) -> None:
    with Remote([str(tmp_path)], str(tmp_path / "c"), prefix=limited("max_inotify_instances", 0)) as remote:
        mode, why = remote.ready[str(tmp_path)]
        assert mode == "polled" and "instances" in why


def test_without_a_mount_table_nothing_is_called_watched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lockd.watch.mounts.MOUNTINFO", str(tmp_path / "nowhere"))
    got = Collector()
    with Watcher([str(tmp_path)], on_hint=got, cookie_folder=str(tmp_path / "c")) as watcher:
        state = watcher.state()[str(tmp_path)]
    assert state.mode == "polled" and "mount table" in state.why


def test_refusals_are_in_words() -> None:
    failing = OSError(errno.EMFILE, os.strerror(errno.EMFILE), "x")
    assert refusal(failing, "/x") == "Too many open files; not watched from /x on"
    assert "max_user_watches" in refusal(OSError(errno.ENOSPC, "full", "x"), "/x")
    assert refusal(OSError(errno.EACCES, "Permission denied"), "/x") == "cannot watch /x: Permission denied"


@needs_root
@pytest.mark.parametrize("use", MODES)
def test_a_mount_put_over_a_path_and_taken_off_again(tmp_path: Path, use: Any) -> None:
    root, got = tmp_path / "venv", Collector()
    (root / "lib").mkdir(parents=True)
    with (
        mounted(root) as mount,
        Watcher([str(root)], on_hint=got, cookie_folder=str(tmp_path / "c"), use=use) as watcher,
    ):
        mount("mount", "-t", "tmpfs", "none", str(root))
        assert watcher.sync(20)
        assert "mounts" in got.kinds(root)
        outside(f"mkdir {root}/over; echo > {root}/over/f")
        assert watcher.sync(20)
        assert "created" in got.kinds(root / "over" / "f")
        got.hints.clear()
        mount("umount", str(root))
        assert watcher.sync(20)
        assert "mounts" in got.kinds(root)
        outside(f"echo > {root}/lib/under")
        assert watcher.sync(20)
    assert "created" in got.kinds(root / "lib" / "under")


@needs_root
def test_an_overlay_is_watched_but_called_polled(tmp_path: Path) -> None:
    got, merged = Collector(), tmp_path / "merged"
    for name in ("lower", "upper", "work", "merged"):
        (tmp_path / name).mkdir()
    (tmp_path / "lower" / "f").write_text("x")
    with mounted(merged) as mount:
        options = f"lowerdir={tmp_path}/lower,upperdir={tmp_path}/upper,workdir={tmp_path}/work"
        mount("mount", "-t", "overlay", "overlay", "-o", options, str(merged))
        with Watcher([str(merged)], on_hint=got, cookie_folder=str(tmp_path / "c")) as watcher:
            state = watcher.state()[str(merged)]
            assert state.mode == "polled" and "lower layer" in state.why
            outside(f"echo y > {merged}/f")
            assert watcher.sync(20)
    assert got.about(merged / "f")


@needs_root
def test_a_file_system_that_hides_changes_below_a_target_makes_it_polled(tmp_path: Path) -> None:
    root, got = tmp_path / "data", Collector()
    (root / "remote").mkdir(parents=True)
    with mounted(root / "remote") as mount:
        mount("mount", "-t", "proc", "proc", str(root / "remote"))
        with Watcher([str(root)], on_hint=got, cookie_folder=str(tmp_path / "c")) as watcher:
            state = watcher.state()[str(root)]
            assert state.mode == "polled" and str(root / "remote") in state.why and "proc" in state.why
            mount("umount", str(root / "remote"))
            assert watcher.sync(20)
            assert watcher.state()[str(root)].mode != "polled"


class mounted:  # noqa: N801: reads as a word of the test
    """Runs mount commands, and takes off whatever is left on a path at the end."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __enter__(self) -> mounted:
        return self

    def __call__(self, *command: str) -> None:
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode and command[0] == "mount":
            pytest.skip(f"cannot mount here: {done.stderr.strip()}")
        assert done.returncode == 0, done.stderr

    def __exit__(self, *_: object) -> None:
        while os.path.ismount(self.path):
            subprocess.run(["umount", "-l", str(self.path)], check=True)


@pytest.fixture(scope="module")
def many_folders(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    root = tmp_path_factory.mktemp("many")
    for number in range(50):
        for inner in range(110):
            (root / f"p{number}" / f"q{inner}").mkdir(parents=True)
    yield root


@pytest.mark.parametrize("use", MODES)
def test_5500_folders_are_all_watched(many_folders: Path, tmp_path: Path, use: Any) -> None:
    got = Collector()
    with Watcher([str(many_folders)], on_hint=got, cookie_folder=str(tmp_path / "c"), use=use) as watcher:
        assert watcher.state()[str(many_folders)].mode != "polled"
        outside(f"for i in 0 13 49; do echo > {many_folders}/p$i/q109/f; echo > {many_folders}/p$i/q0/f; done")
        assert watcher.sync(30)
    for number in (0, 13, 49):
        assert got.about(many_folders / f"p{number}" / "q109" / "f") and got.about(
            many_folders / f"p{number}" / "q0" / "f"
        )
