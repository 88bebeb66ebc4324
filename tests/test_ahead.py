"""Files read ahead of the questions: the same answers, no process left, and nothing lost when a process dies."""

from __future__ import annotations

import os
import signal
import time
from hashlib import sha256
from pathlib import Path

import pytest

from lockd import hashing, pool
from lockd.ahead import Ahead
from lockd.disk import Disk, Trouble

pytestmark = pytest.mark.alone


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """300 files, more than are read at once, and what has no digest."""
    root = tmp_path / "tree"
    for number in range(300):
        path = root / f"d{number % 7}" / f"{number}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"%d\n" % number * (number + 1) * 40)
        os.utime(path, (1, 1))
    (root / "d0" / "x.pyc").write_bytes(b"code")
    (root / "link").symlink_to("d0/0.py")
    os.mkfifo(root / "fifo")
    return root


def asked(root: Path) -> list[str]:
    return [str(path) for path in sorted(root.rglob("*.py"))]


def truth(root: Path) -> dict[str, str]:
    return {path: sha256(Path(path).read_bytes()).hexdigest() for path in asked(root)}


def children() -> set[int]:
    found = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
    return set(map(int, found))


def foreseen(root: Path) -> Disk:
    disk = Disk()
    before = children()
    disk.foresee(disk.tree(str(root)), lambda name: name.endswith(".py"))
    if pool.processors() < 2:
        pytest.skip("one processor: nothing is read ahead")
    assert children() > before
    return disk


def test_what_was_read_ahead_is_what_reading_gives(folder: Path) -> None:
    time.sleep(0.05)  # older than the clock's grain, so that the digests can be trusted
    disk = foreseen(folder)
    assert disk.digests(asked(folder)) == truth(folder)
    assert {path for _, _, digest in disk.hashed_in(str(folder / "d0")) for path in [digest.hex()]} == {
        digest for path, digest in truth(folder).items() if "/d0/" in path
    }


def test_nothing_else_than_what_is_wanted_is_read(folder: Path) -> None:
    disk = Disk()
    disk.foresee(disk.tree(str(folder)), lambda name: name.endswith(".py"))
    assert disk._ahead is not None
    assert {found.relative for found in disk._ahead[1]} == {os.path.relpath(path, folder) for path in asked(folder)}
    disk.save()


@pytest.mark.parametrize("end", ["save", "new_look"])
def test_no_process_is_left_when_nobody_asked(folder: Path, end: str) -> None:
    before = children()
    disk = foreseen(folder)
    getattr(disk, end)()
    assert children() == before


def test_a_process_that_dies_costs_its_head_start(folder: Path) -> None:
    before = children()
    disk = foreseen(folder)
    for child in children() - before:
        os.kill(child, signal.SIGKILL)
    assert disk.digests(asked(folder)) == truth(folder)
    assert children() == before


def test_a_file_that_changed_since_it_was_read_ahead_is_read_again_at_the_next_look(folder: Path) -> None:
    disk = foreseen(folder)
    paths = asked(folder)
    disk.digests(paths)
    Path(paths[0]).write_bytes(b"other bytes")
    disk.new_look()
    disk.tree(str(folder))
    assert disk.digests(paths) == truth(folder)


def test_a_file_that_goes_away_meanwhile_is_a_trouble(folder: Path) -> None:
    files = [(path, os.path.getsize(path)) for path in asked(folder)]
    os.unlink(files[3][0])
    ahead = Ahead(files, hashing.remote_devices())
    assert {index for index, _ in ahead.results()} | {3} == set(range(len(files)))
    ahead.end()
    disk = Disk()
    assert isinstance(disk.digests([files[3][0]])[files[3][0]], Trouble)


def test_a_tree_that_is_known_is_not_read_ahead(folder: Path, tmp_path: Path) -> None:
    time.sleep(0.05)
    first = Disk(cache_dir=str(tmp_path / "cache"))
    first.tree(str(folder))
    first.digests(asked(folder))
    assert first.save() is None
    again = Disk(cache_dir=str(tmp_path / "cache"))
    again.foresee(again.tree(str(folder)), lambda name: True)
    assert again._ahead is None
