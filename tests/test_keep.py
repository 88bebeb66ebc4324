"""Kept content: what accept puts into the store, its quota, gc, and texts for the owner alone."""

from __future__ import annotations

import os
import random
import subprocess
import zlib
from pathlib import Path

import pytest

from lockd import keep, objects, store
from lockd.errors import LockdError, RefusedError
from lockd.keep import Wanted
from lockd.objects import Keeping, quota_of
from lockd.place import Folders, Row
from lockd.store import Store
from tests.restoring import CACHE, Near, changes_of, killed, pinned_file
from tests.scene import Scene


def opened(scene: Scene) -> Store:
    (path,) = scene.state.glob("*/store.sqlite")
    found = store.open(str(path), create=False)
    assert found is not None
    return found


def object_files(scene: Scene) -> list[Path]:
    return [path for path in scene.state.glob("*/objects/*/*") if path.is_file()]


def new_store(tmp_path: Path) -> Store:
    found = store.open(str(tmp_path / "store.sqlite"))
    assert found is not None
    return found


def test_accept_keeps_a_file_with_mode_owner_and_time(tmp_path: Path) -> None:
    scene, path = pinned_file(tmp_path, "keep = true")
    path.chmod(0o640)
    assert scene.accept().code == 0
    with opened(scene) as kept:
        (row,) = keep.rows_of(kept, 1, f"file:{path}") or []
        assert objects.whole(kept, row.content) == path.read_bytes()
    status = path.stat()
    assert row[1:] == ("f", row.content, status.st_size, 0o640, status.st_uid, status.st_gid, status.st_mtime_ns)


def test_nothing_is_kept_unasked(tmp_path: Path) -> None:
    scene, path = pinned_file(tmp_path)
    assert scene.accept().code == 0
    assert object_files(scene) == []
    with opened(scene) as kept:
        assert keep.rows_of(kept, 1, f"file:{path}") is None


def test_the_real_cache_comes_to_a_third_at_most(tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    _unpack(cache)
    scene = Near(tmp_path)
    scene.write_policy(f'[[cache]]\npath = "{cache}"\nkind = "inductor"\nkeep = true\n')
    assert scene.accept().code == 0
    original = sum(path.stat().st_size for path in cache.rglob("*") if path.is_file())
    assert sum(path.stat().st_size for path in object_files(scene)) <= 0.35 * original


def _unpack(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    subprocess.run(["tar", "xzf", str(CACHE), "-C", str(folder)], check=True)


def test_an_object_never_shares_an_inode_with_the_live_file(tmp_path: Path) -> None:
    scene, path = pinned_file(tmp_path, "keep = true")
    assert scene.accept().code == 0
    assert path.stat().st_nlink == 1
    path.write_text("x = 2\n")
    with opened(scene) as kept:
        assert keep.text_of(kept, 1, f"file:{path}") == "x = 1\n"


def test_a_second_accept_keeps_equal_contents_once(tmp_path: Path) -> None:
    scene, path = pinned_file(tmp_path, "keep = true")
    other = scene.file("job/other.py", "y = 1\n")
    scene.write_policy(f'[[file]]\npath = "{path.parent}/*.py"\nkeep = true\n')
    scene.accept()
    before = {one.name for one in object_files(scene)}
    other.write_text("y = 2\n")
    assert scene.accept().code == 0
    added = {one.name for one in object_files(scene)} - before
    assert len(added) == 2  # the new text, and the rows that name it
    with opened(scene) as kept:
        assert [keep.text_of(kept, number, f"file:{other}") for number in (1, 2)] == ["y = 1\n", "y = 2\n"]
        assert keep.text_of(kept, 2, f"file:{path}") == "x = 1\n"


def test_accept_only_carries_what_the_others_kept(tmp_path: Path) -> None:
    scene, path = pinned_file(tmp_path)
    other = scene.file("job/other.py", "y = 1\n")
    scene.write_policy(f'[[file]]\npath = "{path.parent}/*.py"\nkeep = true\n')
    scene.accept()
    other.write_text("y = 2\n")
    path.write_text("x = 9\n")
    assert scene.accept("--only", f"file:{other}").code == 0
    with opened(scene) as kept:
        assert keep.text_of(kept, 2, f"file:{path}") == "x = 1\n"


def test_over_the_quota_nothing_is_recorded(tmp_path: Path) -> None:
    scene, path = pinned_file(tmp_path, "keep = true")
    path.write_bytes(os.urandom(200_000))
    answer = scene.accept(env={"LOCKD_KEEP_QUOTA": "100K"})
    assert answer.code == 1
    assert "quota" in answer.err and "LOCKD_KEEP_QUOTA" in answer.err
    assert not scene.lock.exists() and object_files(scene) == []
    with opened(scene) as kept:
        assert kept.generations() == []
    assert scene.accept(env={"LOCKD_KEEP_QUOTA": "1M"}).code == 0


def test_a_quota_that_is_no_size_is_said(tmp_path: Path) -> None:
    scene, _ = pinned_file(tmp_path, "keep = true")
    answer = scene.accept(env={"LOCKD_KEEP_QUOTA": "much"})
    assert answer.code == 2 and "LOCKD_KEEP_QUOTA" in answer.err


def test_the_default_quota_is_bounded_by_the_room(tmp_path: Path) -> None:
    room = os.statvfs(tmp_path)
    free = room.f_bavail * room.f_frsize
    assert quota_of(str(tmp_path), 0) <= max(64 << 20, min(20 << 30, free // 4 + (1 << 30)))


def test_what_is_not_recorded_is_taken_away(tmp_path: Path) -> None:
    with new_store(tmp_path) as kept:
        with pytest.raises(ZeroDivisionError), Keeping(kept) as keeping:
            digest = keeping.add_bytes(b"a thought")
            assert os.path.exists(objects.path_of(kept, digest))
            _ = 1 / 0
        assert not os.path.exists(objects.path_of(kept, digest))


def test_a_damaged_object_is_never_given_out(tmp_path: Path) -> None:
    with new_store(tmp_path) as kept:
        with Keeping(kept) as keeping:
            digest = keeping.add_bytes(b"good" * 1000)
            keeping.finish()
            with kept.transaction():
                keeping.record()
            keeping.keep()
        path = Path(objects.path_of(kept, digest))
        path.write_bytes(zlib.compress(b"evil" * 1000))
        with pytest.raises(LockdError, match="damaged"):
            objects.whole(kept, digest)
        path.write_bytes(path.read_bytes()[:-5])
        with pytest.raises(LockdError, match="read"):
            objects.whole(kept, digest)


def test_a_file_that_is_not_what_was_seen_refuses(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("now")
    with new_store(tmp_path) as kept, Keeping(kept) as keeping, Folders() as folders:
        with pytest.raises(RefusedError, match="changes"):
            keep.keep_path(keeping, folders, Wanted(str(path.resolve()), "0" * 64))
        path.unlink()
        with pytest.raises(RefusedError, match="went"):
            keep.keep_path(keeping, folders, Wanted(str(path.resolve()), "0" * 64))


def test_rows_of_any_name_come_back() -> None:
    rows = [Row("/a/\udcff\n\u2028", "f", "00", 1, 0o644, 0, 0, 5), Row("/a", "d"), Row("/a/l", "l", "to \udc80")]
    assert keep.unpack(keep.pack(rows)) == sorted(rows)


def test_gc_frees_what_only_older_generations_keep(tmp_path: Path) -> None:
    scene, path = pinned_file(tmp_path, "keep = true")
    for number in range(4):
        path.write_text(f"x = {number}\n")
        assert scene.accept().code == 0
    assert scene.lockd("gc").code == 0
    with opened(scene) as kept:
        assert keep.text_of(kept, 1, f"file:{path}") == "x = 0\n"
    dry = scene.lockd("gc", "--keep", "2", "--dry-run")
    assert "would free 0 manifests, 4 objects" in dry.out and len(object_files(scene)) == 8
    assert scene.lockd("gc", "--keep", "2").code == 0
    assert len(object_files(scene)) == 4
    with opened(scene) as kept:
        assert [keep.text_of(kept, number, f"file:{path}") for number in (2, 3, 4)] == [None, "x = 2\n", "x = 3\n"]
    assert scene.lockd("gc", "--keep", "0").code == 2


def test_gc_keeps_the_generation_of_a_good_run(tmp_path: Path) -> None:
    """`restore --generation` and `accept --from` of a run that is noted as good need what was kept then."""
    scene, path = pinned_file(tmp_path, "keep = true")
    for number in range(4):
        path.write_text(f"x = {number}\n")
        assert scene.accept().code == 0
        if number == 1:
            assert lockd_process(scene, "run", "--wait", "--", "true") == 0
            assert scene.lockd("note", "last", "good=true").code == 0
    assert scene.lockd("gc", "--keep", "1").code == 0
    with opened(scene) as kept:
        told = [keep.text_of(kept, number, f"file:{path}") for number in (1, 2, 3, 4)]
    assert told == [None, "x = 1\n", None, "x = 3\n"]
    answer = scene.lockd("accept", "--from", "good", "-m", "the good run", "--yes")
    assert answer.code == 0, answer.err
    assert scene.lockd("restore", "--apply").code == 0 and path.read_text() == "x = 1\n"


def lockd_process(scene: Scene, *args: str) -> int:
    """A lockd that becomes, or starts, another program cannot run inside of the test."""
    return Scene(scene.root).lockd(*args).code


def test_gc_keeps_the_generation_of_an_older_lock(tmp_path: Path) -> None:
    """A checkout of an older lock makes that one the known-good again."""
    scene, path = pinned_file(tmp_path, "keep = true")
    scene.accept()
    first = scene.lock.read_bytes()
    path.write_text("x = 2\n")
    scene.accept()
    scene.lock.write_bytes(first)
    scene.lockd("gc", "--keep", "1")
    with opened(scene) as kept:
        assert keep.text_of(kept, 1, f"file:{path}") == "x = 1\n"


def test_gc_frees_what_a_killed_accept_left(tmp_path: Path) -> None:
    scene, path = pinned_file(tmp_path, "keep = true")
    stray = next(iter(scene.state.glob("*")), None)
    assert stray is None
    scene.accept()
    path.write_text("x = 2\n")
    folder = next(scene.state.glob("*/objects")) / "ab"
    folder.mkdir()
    (folder / ("ab" * 32)).write_bytes(b"left by a killed accept")
    assert scene.lockd("gc").code == 0
    assert not (folder / ("ab" * 32)).exists()
    with opened(scene) as kept:
        assert keep.text_of(kept, 1, f"file:{path}") == "x = 1\n"


def test_diff_shows_what_changed_inside_a_kept_file(tmp_path: Path) -> None:
    scene, path = pinned_file(tmp_path, "keep = true")
    scene.accept()
    path.write_text("x = 2\x1b[31m\n")
    answer = scene.lockd("diff")
    assert "-x = 1" in answer.out and "+x = 2\\x1b[31m" in answer.out
    assert "x = 2" not in scene.lockd("diff", "--json").out
    scene.accept()
    assert "-x = 1" in scene.lockd("diff", "@1", "@2").out


def test_diff_of_binary_contents_shows_none(tmp_path: Path) -> None:
    scene, path = pinned_file(tmp_path, "keep = true")
    path.write_bytes(b"\0one")
    scene.accept()
    path.write_bytes(b"\0two")
    answer = scene.lockd("diff")
    assert "contents changed" in answer.out and "@@" not in answer.out


def accepts_whole_after_a_kill(tmp_path: Path, points: int) -> None:
    """Killed anywhere, an accept has happened or not; a second one comes to its end and keeps everything."""
    scene, path = pinned_file(tmp_path, "keep = true")
    cache = scene.root / "cache"
    for number in range(4):
        scene.file(f"cache/ab/c{number}.py", f"{number}\n")
    scene.write_policy(f'[[file]]\npath = "{path}"\nkeep = true\n[[cache]]\npath = "{cache}"\nkeep = true\n')
    assert scene.accept().code == 0
    for number in (-2, -1):  # the second one is like those that follow: Python's own byte-code is written by then
        path.write_text(f"x = {number}\n")
        total = changes_of(scene, "accept", "-m", "one", "--yes")
    hits, chance = 0, random.Random(points)
    for number in range(4 * points):
        path.write_text(f"x = {number}\n")
        hits += killed(scene, chance.randint(1, total), "accept", "-m", "next", "--yes")
        verdict = scene.verify()
        assert verdict.code in (0, 1), verdict.err
        assert scene.accept().code == 0
        assert scene.verify().code == 0
        generation = scene.verify().document["lock"]["generation"]
        with opened(scene) as kept:
            assert keep.text_of(kept, generation, f"file:{path}") == f"x = {number}\n"
            assert len(keep.rows_of(kept, generation, f"cache:{cache}") or []) == 6
        assert scene.lockd("log", "--check").code in (0, 2)
        if hits == points:
            break
    assert hits == points


def test_an_accept_that_is_killed_leaves_the_old_or_the_new(tmp_path: Path) -> None:
    accepts_whole_after_a_kill(tmp_path, 4)


@pytest.mark.slow
def test_an_accept_that_is_killed_at_fifty_points(tmp_path: Path) -> None:
    accepts_whole_after_a_kill(tmp_path, 50)
