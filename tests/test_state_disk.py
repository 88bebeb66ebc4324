"""A state on a full disk or a read-only one: what was recorded is read, what decides decides, and one line says why."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from lockd import store, store_reading
from lockd.store import Event
from tests.scene import Scene, pinned_file

READING = (
    ("log",),
    ("log", "--check"),
    ("runs",),
    ("runs", "--json"),
    ("restore",),
    ("diff",),
    ("status",),
    ("export",),
)


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    """A state on a file system of its own, with a run in it, an accepted lock, and drift since."""
    made, path = pinned_file(tmp_path, "keep = true")
    made.state.mkdir(mode=0o700)
    mounted = ["mount", "-t", "tmpfs", "-o", "size=2m,mode=700", "tmpfs", str(made.state)]
    if os.geteuid() != 0 or subprocess.run(mounted, capture_output=True).returncode:
        pytest.skip("no file system can be mounted here")
    try:
        assert made.accept().code == 0
        assert made.lockd("run", "--wait", "--", "true").code == 0
        path.write_text("x = 2\n")
        assert made.verify().code == 1
        yield made
    finally:
        subprocess.run(["umount", "-l", str(made.state)], check=True)


def fill(scene: Scene) -> Path:
    """No byte is left."""
    path = scene.state / "fill"
    with open(path, "wb", buffering=0) as file:
        try:
            while file.write(b"x" * 4096):
                pass
        except OSError:
            pass
    return path


def remount(scene: Scene, how: str) -> None:
    subprocess.run(["mount", "-o", f"remount,{how}", str(scene.state)], check=True)


@pytest.fixture(params=["full", "read-only"])
def unwritable(request: pytest.FixtureRequest, scene: Scene) -> Iterator[tuple[Scene, str]]:
    if request.param == "full":
        fill(scene)
        yield scene, "the disk is full"
    else:
        remount(scene, "ro")
        yield scene, "its file system is read-only"
        remount(scene, "rw")


def test_what_was_recorded_is_read(unwritable: tuple[Scene, str]) -> None:
    scene, _ = unwritable
    for words in READING:
        answer = scene.lockd(*words)
        assert answer.code == 0 and "Traceback" not in answer.err, (words, answer)
    (run,) = scene.lockd("runs", "--json").document
    assert run["exit"] == 0 and run["argv"] == ["true"]
    kinds = [one["kind"] for one in scene.lockd("log", "--json").document]
    assert kinds == ["drift", "launch", "launch", "accept"]
    assert scene.lockd("gc", "--dry-run").code == 0


def test_what_has_to_write_says_why_not_in_a_line(unwritable: tuple[Scene, str]) -> None:
    scene, reason = unwritable
    for words in (("note", "last", "a=1"), ("override", "--for", "2h", "why")):
        answer = scene.lockd(*words)
        first, hint = answer.err.splitlines()
        assert answer.code == 3 and reason in first and hint.startswith("  hint: ")
    assert scene.lockd("override", "--list").out == "no override stands\n"


def test_a_gate_decides_all_the_same(unwritable: tuple[Scene, str]) -> None:
    scene, reason = unwritable
    refused = scene.lockd("run", "--", "true")
    assert refused.code == 78 and f"could not be recorded: {scene.state}" in refused.err and reason in refused.err
    scene.file("job/model.py")
    started = scene.lockd("run", "--", "sh", "-c", "exit 5")
    assert started.code == 5 and reason in started.err and started.err.count("\n") == 1  # on_fault = "warn"
    scene.policy.write_text(scene.policy.read_text() + '[launch]\non_fault = "block"\n')
    blocked = scene.lockd("run", "--", "sh", "-c", "exit 5")
    assert blocked.code in (78, 125) and "lockd: " in blocked.err


def test_a_look_says_that_its_history_is_not_kept(unwritable: tuple[Scene, str]) -> None:
    scene, reason = unwritable
    scene.file("job/model.py", "x = 3\n")
    answer = scene.lockd("verify")
    assert answer.code == 1 and reason in answer.err and answer.err.count("\n") == 1


def test_what_a_killed_writer_left_in_the_wal_is_read(scene: Scene) -> None:
    (path,) = scene.state.glob("*/store.sqlite")
    code = "import os, sys; from lockd import store; from lockd.store import Event; one = store.open(sys.argv[1]); "
    code += "one.append(Event('2026-12-01T00:00:00Z', 'note', 'the last words')); os._exit(0)"
    subprocess.run([sys.executable, "-c", code, str(path)], check=True)
    assert os.path.getsize(f"{path}-wal") > 0
    os.unlink(f"{path}-shm")
    fill(scene)
    assert scene.lockd("log", "--json").document[0]["message"] == "the last words"
    assert not list(Path("/dev/shm").glob("lockd-*/store*"))


def test_gc_makes_room_out_of_the_cache(scene: Scene) -> None:
    (folder,) = scene.state.glob("*/cache")
    (folder / "old").write_bytes(b"x" * (1 << 19))
    fill(scene)
    assert scene.lockd("gc").code == 0 and not list(folder.iterdir())
    fill(scene)
    answer = scene.lockd("gc")
    assert answer.code == 3 and "the disk is full" in answer.err and "by other means" in answer.err


def test_doctor_says_that_the_state_takes_nothing(unwritable: tuple[Scene, str]) -> None:
    scene, reason = unwritable
    assert reason in scene.lockd("doctor").out


def test_a_connection_for_reading_changes_nothing(tmp_path: Path) -> None:
    path = str(tmp_path / "store.sqlite")
    with store.open(path) as one:  # type: ignore[union-attr]
        one.append(Event("2026-12-01T00:00:00Z", "note", "one"))
        for _ in range(2):  # with a -wal beside it, then without
            connection = store_reading.connect(path)
            assert connection is not None
            with pytest.raises(Exception, match="readonly"), store.Store(path, connection) as reading:
                assert [entry.event.message for entry in reading.events()] == ["one"]
                reading.append(Event("2026-12-01T00:00:00Z", "note", "two"))
            one.close()
