"""The stat cache: a look costs stats where nothing changed, and no change of content goes unseen."""

from __future__ import annotations

import hashlib
import mmap
import os
import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from lockd import hashing, walk
from lockd.disk import Disk, Tree, Trouble
from tests.test_disk import naive, seen

pytestmark = pytest.mark.alone


class Place(NamedTuple):
    """A tree to look at and the folder of its cache."""

    root: Path
    cache: Path

    def disk(self, full: bool = False) -> Disk:
        return Disk(cache_dir=str(self.cache), full=full)

    def path(self, name: str) -> str:
        return f"{self.root}/{name}"


@pytest.fixture
def place(tmp_path: Path) -> Place:
    root = tmp_path / "root"
    for name in ("one", "two", "sub/three", "sub/deeper/four"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(f"content of {name}")
    return Place(root, tmp_path / "cache")


@pytest.fixture
def hashed(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """The paths that were really read, in this process."""
    read: list[str] = []
    real = hashing.hash_file

    def counted(path: str, remote: frozenset[int] | None) -> hashing.Hashed | str:
        read.append(path)
        return real(path, remote)

    monkeypatch.setattr(hashing, "hash_file", counted)
    yield read


def settle() -> None:
    time.sleep(2 * hashing.GRAIN / 1e9)


def look(place: Place, full: bool = False) -> tuple[Tree, dict[str, str]]:
    """One look of a process of its own: the tree, and the digests of its files by relative path; the cache is saved."""
    disk = place.disk(full)
    tree = disk.tree(str(place.root))
    files = [place.path(path) for path, entry in tree.entries.items() if entry.kind == "f"]
    answers = disk.digests(files)
    digests = {os.path.relpath(path, place.root): str(answer) for path, answer in answers.items()}
    assert disk.save() is None
    return tree, digests


def truth(place: Place) -> dict[str, str]:
    return {
        path: hashlib.sha256((place.root / path).read_bytes()).hexdigest()
        for path, (kind, _, _) in naive(place.root).items()
        if kind == "f"
    }


def test_an_unchanged_tree_is_not_read_again(place: Place, hashed: list[str]) -> None:
    settle()
    first, digests = look(place)
    assert digests == truth(place) and len(hashed) == 4
    hashed.clear()
    second, again = look(place)
    assert (second.stamp, again, hashed) == (first.stamp, digests, [])
    assert seen(second) == seen(first)


def test_a_full_look_reads_every_byte_once(place: Place, hashed: list[str]) -> None:
    settle()
    look(place)
    hashed.clear()
    disk = place.disk(full=True)
    disk.tree(str(place.root))
    disk.digests([place.path("one")])
    disk.digests([place.path("one"), place.path("two")])
    assert sorted(hashed) == sorted(map(place.path, ("one", "two", "sub/three", "sub/deeper/four")))


def test_a_full_look_that_finds_the_same_bytes_proves_the_stamp(place: Place) -> None:
    settle()
    plain, _ = look(place)
    full, _ = look(place, full=True)
    assert full.stamp == plain.stamp
    assert look(place)[0].stamp == full.stamp


def test_a_full_look_finds_other_bytes_under_the_same_row(place: Place) -> None:
    """As after a store through a mapping that moved no time: only reading finds it, and moves the stamp."""
    settle()
    disk = place.disk()
    disk.tree(str(place.root))
    disk.digests([place.path("one")])
    ((page, index),) = [
        (page, at)
        for held in disk._held.values()
        for page in held.record.folders[""]
        for at, name in enumerate(page.listed())
        if name == "one"
    ]
    page.keep(index, b"\1" * 32)  # what was there when the row was seen
    assert disk.save() is None
    plain, believed = look(place)
    assert believed["one"] == "01" * 32
    full, digests = look(place, full=True)
    assert digests == truth(place)
    assert full.stamp != plain.stamp
    after, again = look(place)
    assert (after.stamp, again) == (full.stamp, digests)


def test_a_look_right_after_writing_keeps_its_stamp(place: Place) -> None:
    """Files hashed within the clock's grain of their ctime are read again, and being the same they move nothing."""
    (place.root / "one").write_text("just now")
    first, _ = look(place)
    settle()
    assert look(place)[0].stamp == first.stamp
    assert look(place)[0].stamp == first.stamp


def test_racy_files_are_read_again_until_they_are_old(place: Place, hashed: list[str]) -> None:
    (place.root / "one").write_text("just now")
    look(place)
    assert place.path("one") in hashed
    settle()
    hashed.clear()
    look(place)
    assert place.path("one") in hashed
    hashed.clear()
    look(place)
    assert hashed == []


def stop_the_clock(monkeypatch: pytest.MonkeyPatch, path: Path) -> None:
    """From here on the file's stat stays what it is, as it does for writes within one tick of the kernel's clock."""
    now = path.lstat()

    def freeze(name: str, real: Any) -> None:
        def frozen(*args: Any, **named: Any) -> os.stat_result:
            status: os.stat_result = real(*args, **named)
            return now if (status.st_ino, status.st_size) == (now.st_ino, now.st_size) else status

        monkeypatch.setattr(os, name, frozen)

    for name in ("stat", "fstat", "lstat"):
        freeze(name, getattr(os, name))


def test_a_change_within_the_clocks_tick_is_seen(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    path = place.root / "one"
    path.write_bytes(b"before")
    stop_the_clock(monkeypatch, path)
    first, digests = look(place)
    path.write_bytes(b"after!")
    second, again = look(place)
    assert again["one"] == hashlib.sha256(b"after!").hexdigest() != digests["one"]
    assert second.stamp != first.stamp
    assert second.entries["one"] == first.entries["one"], "the stat did tell: the test proved nothing"
    settle()
    third, _ = look(place)
    assert third.stamp == second.stamp, "trusted at last, and the stamp stays"


def test_a_racy_file_that_was_only_read_is_guarded_too(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    path = place.root / "one"
    path.write_bytes(b"before")
    stop_the_clock(monkeypatch, path)
    disk = place.disk()
    first = disk.tree(str(place.root))
    assert disk.read(str(path)) == b"before"
    disk.save()
    path.write_bytes(b"after!")
    assert place.disk().tree(str(place.root)).stamp != first.stamp


def test_a_store_through_a_living_mapping_is_seen(place: Place) -> None:
    path = place.root / "mapped"
    path.write_bytes(b"a" * mmap.PAGESIZE)
    with path.open("r+b") as file:
        mapping = mmap.mmap(file.fileno(), 0)
    mapping[0] = ord("b")  # the first store moves ctime, later ones nothing
    settle()
    first, digests = look(place)
    before = path.lstat()
    mapping[1] = ord("c")
    if hashing.identity_of(path.lstat()) != hashing.identity_of(before):
        pytest.skip("this file system moves ctime at every store")
    second, again = look(place)
    assert again["mapped"] == hashlib.sha256(path.read_bytes()).hexdigest() != digests["mapped"]
    assert second.stamp != first.stamp
    mapping.close()


def test_a_mapped_file_that_stays_the_same_keeps_the_stamp(place: Place) -> None:
    path = place.root / "mapped"
    path.write_bytes(b"a" * mmap.PAGESIZE)
    with path.open("r+b") as file, mmap.mmap(file.fileno(), 0):
        settle()
        first, _ = look(place)
        assert look(place)[0].stamp == first.stamp
    assert look(place)[0].stamp == first.stamp


def test_a_modification_time_put_back_hides_nothing(place: Place) -> None:
    settle()
    first, digests = look(place)
    path = place.root / "one"
    before = path.lstat()
    path.write_bytes(path.read_bytes()[::-1])
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    second, again = look(place)
    assert path.lstat().st_mtime_ns == before.st_mtime_ns
    assert again == truth(place) and again["one"] != digests["one"] and second.stamp != first.stamp


def test_a_file_of_the_same_size_renamed_over_is_seen(place: Place) -> None:
    settle()
    first, digests = look(place)
    path, other = place.root / "one", place.root.parent / "other"
    other.write_bytes(path.read_bytes()[::-1])
    os.utime(other, ns=(path.stat().st_atime_ns, path.stat().st_mtime_ns))
    os.rename(other, path)
    second, again = look(place)
    assert again == truth(place) and again["one"] != digests["one"] and second.stamp != first.stamp


def test_touch_moves_the_stamp_and_no_digest(place: Place) -> None:
    settle()
    first, digests = look(place)
    os.utime(place.root / "one")
    second, again = look(place)
    assert again == digests and second.stamp != first.stamp


@pytest.mark.parametrize("change", ["add", "remove", "rename", "folder", "to link", "chmod", "to folder", "deep"])
def test_every_kind_of_change_moves_the_stamp(place: Place, change: str) -> None:
    settle()
    first, _ = look(place)
    root = place.root
    if change == "add":
        (root / "sub" / "new").touch()
    elif change == "remove":
        (root / "one").unlink()
    elif change == "rename":
        (root / "sub" / "deeper").rename(root / "sub" / "moved")
    elif change == "folder":
        (root / "sub" / "empty").mkdir()
    elif change == "to link":
        (root / "one").unlink()
        (root / "one").symlink_to("two")
    elif change == "chmod":
        (root / "one").chmod(0o755)
    elif change == "to folder":
        (root / "one").unlink()
        (root / "one").mkdir()
        (root / "one" / "inside").touch()
    elif change == "deep":
        (root / "sub" / "deeper" / "four").write_text("x")
    second, digests = look(place)
    assert second.stamp != first.stamp
    assert seen(second) == naive(root) and digests == truth(place)


def test_any_sequence_of_changes_reads_as_a_first_look_would(place: Place) -> None:
    chance = random.Random(7)
    root = place.root
    for step in range(40):
        paths = sorted(naive(root))
        folders = ["."] + [path for path, found in naive(root).items() if found[0] == "d"]
        target = root / chance.choice(folders) / f"n{chance.randrange(6)}"
        victim = root / chance.choice(paths) if paths else root
        act = chance.randrange(5)
        if act == 0 and not target.exists():
            target.mkdir()
        elif act == 1 and not target.is_dir():
            target.write_text(str(step))
        elif act == 2 and victim.is_file():
            victim.unlink()
        elif act == 3 and victim.is_dir() and not os.listdir(victim) and victim != root:
            victim.rmdir()
        elif act == 4 and not target.exists() and victim not in (root, *target.parents):
            victim.rename(target)
        tree, digests = look(place)
        assert seen(tree) == naive(root) and digests == truth(place)
        assert not tree.troubles


def test_a_change_between_looks_of_one_disk_is_seen(place: Place) -> None:
    disk = place.disk()
    first = disk.tree(str(place.root)).stamp
    disk.new_look()
    assert disk.tree(str(place.root)).stamp == first
    (place.root / "sub" / "new").touch()
    disk.new_look()
    assert seen(disk.tree(str(place.root))) == naive(place.root)


def test_hints_look_only_where_they_point(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    settle()
    disk = place.disk()
    first = disk.tree(str(place.root)).stamp
    asked: list[str] = []
    real = os.stat

    def noted(name: str, *, dir_fd: int, follow_symlinks: bool) -> os.stat_result:
        asked.append(name)
        return real(name, dir_fd=dir_fd, follow_symlinks=follow_symlinks)

    monkeypatch.setattr(os, "stat", noted)
    disk.new_look([place.path("sub/three")])
    assert disk.tree(str(place.root)).stamp == first
    assert "three" in asked and "four" not in asked and "one" not in asked
    monkeypatch.undo()
    (place.root / "sub" / "three").write_text("another")
    (place.root / "sub" / "deeper" / "new").touch()
    disk.new_look([place.path("sub/three"), place.path("sub/deeper/new")])
    assert seen(disk.tree(str(place.root))) == naive(place.root)


def test_a_trouble_is_tried_again_at_each_look(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    settle()
    broken = True
    real = hashing._open

    def refusing(path: str) -> int:
        if broken and path.endswith("one"):
            raise OSError(5, "Input/output error")
        return real(path)

    monkeypatch.setattr(hashing, "_open", refusing)
    first, digests = look(place)
    assert digests["one"] == str(Trouble(place.path("one"), "input/output error"))
    assert look(place)[0].stamp == first.stamp
    broken = False
    second, again = look(place)
    assert again == truth(place) and second.stamp != first.stamp


def test_a_file_outside_all_trees_is_cached_by_itself(place: Place, hashed: list[str]) -> None:
    settle()
    for _ in range(2):
        disk = place.disk()
        assert disk.digests([place.path("one")]) == {place.path("one"): truth(place)["one"]}
        disk.save()
    assert hashed == [place.path("one")]
    (place.root / "one").write_text("another")
    assert place.disk().digests([place.path("one")]) == {place.path("one"): truth(place)["one"]}


def test_digests_of_what_is_not_there(place: Place) -> None:
    path = place.path("none")
    assert place.disk().digests([path]) == {path: Trouble(path, "not there")}


@pytest.mark.parametrize("harm", ["truncated", "flipped", "empty", "foreign", "removed"])
def test_a_cache_that_is_harmed_is_as_if_it_were_not_there(place: Place, hashed: list[str], harm: str) -> None:
    settle()
    first, digests = look(place)
    hashed.clear()
    for file in place.cache.iterdir():
        data = file.read_bytes()
        if harm == "removed":
            file.unlink()
            continue
        harmed = {"truncated": data[:-7], "empty": b"", "foreign": b"something else\n" * 9}.get(harm)
        file.write_bytes(data[:-20] + bytes([data[-20] ^ 1]) + data[-19:] if harmed is None else harmed)
    second, again = look(place)
    assert again == digests and len(hashed) == 4
    assert second.stamp != first.stamp, "a stamp of a lost cache must not be met again"
    assert look(place)[0].stamp == second.stamp


def test_a_cache_of_another_file_system_is_not_used(
    place: Place, hashed: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    settle()
    look(place)
    hashed.clear()

    class Other:
        f_fsid = 12345

    monkeypatch.setattr(os, "statvfs", lambda path: Other)
    assert look(place)[1] == truth(place) and len(hashed) == 4


def test_device_numbers_may_change_over_a_reboot(
    place: Place, hashed: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    settle()
    first, _ = look(place)
    hashed.clear()

    class Renumbered:
        def __init__(self, status: os.stat_result) -> None:
            self._status = status

        def __getattr__(self, name: str) -> object:
            value = getattr(self._status, name)
            return value + 3 if name == "st_dev" else value

    for name in ("stat", "lstat", "fstat"):
        real = getattr(os, name)
        monkeypatch.setattr(os, name, lambda *a, _real=real, **k: Renumbered(_real(*a, **k)))
    disk = place.disk()
    assert disk.tree(str(place.root)).stamp == first.stamp
    disk.digests([place.path("one")])
    assert hashed == []


def test_a_disk_without_a_cache_never_meets_a_stamp_again(place: Place) -> None:
    assert Disk().tree(str(place.root)).stamp != Disk().tree(str(place.root)).stamp


def test_a_cache_that_cannot_be_written_is_told(place: Place) -> None:
    place.cache.write_text("a file where the folder should be")
    disk = place.disk()
    disk.tree(str(place.root))
    assert isinstance(disk.save(), Trouble)


def test_saving_twice_writes_once(place: Place) -> None:
    disk = place.disk()
    disk.tree(str(place.root))
    disk.save()
    written = {file.name: file.stat().st_ino for file in place.cache.iterdir()}
    disk.save()
    assert {file.name: file.stat().st_ino for file in place.cache.iterdir()} == written and written


def test_a_large_tree_is_checked_in_processes_with_the_same_result(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    forks: list[int] = []
    fork = os.fork
    monkeypatch.setattr(os, "fork", lambda: forks.append(fork()) or forks[-1])  # type: ignore[func-returns-value]
    monkeypatch.setattr(walk, "_FORK_ABOVE", 50)
    monkeypatch.setattr(walk, "processors", lambda: 3)
    for folder in range(12):
        (place.root / f"f{folder}").mkdir()
        for number in range(30):
            os.close(os.open(place.root / f"f{folder}" / f"{number}", os.O_CREAT))
    settle()
    disk = place.disk()
    first = disk.tree(str(place.root))
    disk.save()
    assert place.disk().tree(str(place.root)).stamp == first.stamp
    (place.root / "f3" / "7").write_text("x")
    (place.root / "f5" / "8").unlink()
    (place.root / "f9" / "new").mkdir()
    second = place.disk().tree(str(place.root))
    assert second.stamp != first.stamp and seen(second) == naive(place.root)
    assert len(forks) == 6, "nothing was forked: the test proved nothing"


def test_two_trees_over_one_file_are_both_guarded(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    path = place.root / "sub" / "three"
    path.write_bytes(b"before")
    stop_the_clock(monkeypatch, path)
    roots = (str(place.root), place.path("sub"))
    disk = place.disk()
    first = [disk.tree(roots[0]).stamp]
    disk.digests([str(path)])
    first.append(disk.tree(roots[1]).stamp)
    disk.digests([str(path)])
    disk.save()
    path.write_bytes(b"after!")
    again = place.disk()
    assert not {again.tree(root).stamp for root in roots} & set(first)


def test_a_file_that_changes_between_the_looks_of_two_trees_is_read_anew(place: Place) -> None:
    settle()
    disk = place.disk()
    disk.tree(str(place.root))
    path = place.path("sub/three")
    disk.digests([path])
    (place.root / "sub" / "three").write_text("another")
    disk.tree(place.path("sub"))
    assert disk.digests([path]) == {path: truth(place)["sub/three"]}


def test_hints_find_what_is_new_from_the_nearest_folder_known(place: Place) -> None:
    disk = place.disk()
    disk.tree(str(place.root))
    new = place.root / "sub" / "new" / "er" / "file"
    new.parent.mkdir(parents=True)
    new.touch()
    disk.new_look([str(new), "/elsewhere"])
    assert seen(disk.tree(str(place.root))) == naive(place.root)


def test_paths_that_no_file_system_holds_are_troubles(place: Place) -> None:
    disk = place.disk()
    for path in ("/a\0b", "/a\ud800b"):
        assert isinstance(disk.digests([path])[path], Trouble)
        assert isinstance(disk.entry(path), Trouble)
        assert isinstance(disk.read(path), Trouble)
        assert disk.tree(path).troubles


def test_a_root_with_a_slash_behind_is_the_same_tree(place: Place) -> None:
    disk = place.disk()
    assert disk.tree(f"{place.root}/") is disk.tree(str(place.root))


def test_a_lasting_trouble_does_not_rewrite_the_cache(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    settle()
    real = os.open

    def refusing(path: str, flags: int, mode: int = 0o777) -> int:
        if path.endswith("deeper"):
            raise PermissionError(13, "Permission denied")
        return real(path, flags, mode)

    monkeypatch.setattr(os, "open", refusing)
    first, _ = look(place)
    assert [trouble.path for trouble in first.troubles] == [place.path("sub/deeper")]
    written = {file.name: file.stat().st_ino for file in place.cache.iterdir()}
    second, _ = look(place)
    assert second.troubles == first.troubles and second.stamp == first.stamp
    assert {file.name: file.stat().st_ino for file in place.cache.iterdir()} == written
    monkeypatch.undo()
    third, digests = look(place)
    assert (third.troubles, digests) == ((), truth(place)) and third.stamp != first.stamp


def test_a_folder_put_over_by_a_link_is_not_entered(place: Place) -> None:
    settle()
    look(place)
    (place.root / "sub").rename(place.root.parent / "away")
    (place.root / "sub").symlink_to("../away")
    tree, digests = look(place)
    assert list(tree.entries) == ["one", "sub", "two"] and digests == truth(place)


def test_a_name_that_comes_within_the_clocks_tick_is_seen(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    (place.root / "sub" / "first").touch()
    stop_the_clock(monkeypatch, place.root / "sub")
    first, _ = look(place)
    (place.root / "sub" / "second").touch()
    second, _ = look(place)
    assert "sub/second" in second.entries and second.stamp != first.stamp
    assert second.entries["sub"] == first.entries["sub"], "the stat did tell: the test proved nothing"


def test_a_file_that_changes_after_the_look_is_read_at_every_question(place: Place) -> None:
    settle()
    disk = place.disk()
    disk.tree(str(place.root))
    for content in ("second", "third!"):
        (place.root / "one").write_text(content)
        settle()
        assert disk.digests([place.path("one")]) == {place.path("one"): truth(place)["one"]}


def test_a_reading_from_before_the_look_does_not_answer_after_a_change(place: Place) -> None:
    disk = place.disk()
    disk.digests([place.path("one")])
    (place.root / "one").write_text("another")
    disk.tree(str(place.root))
    assert disk.digests([place.path("one")]) == {place.path("one"): truth(place)["one"]}


def test_a_new_name_beside_costs_its_own_reading_only(place: Place, hashed: list[str]) -> None:
    settle()
    look(place)
    hashed.clear()
    (place.root / "sub" / "new").write_text("1")
    look(place)
    assert hashed == [place.path("sub/new")]


def test_a_folder_that_became_a_file_leaves_nothing_behind(place: Place) -> None:
    settle()
    look(place)
    (place.root / "sub").rename(place.root.parent / "away")
    (place.root / "sub").write_text("a file now")
    tree, digests = look(place)
    assert seen(tree) == naive(place.root) and digests == truth(place)
    assert (len(tree.entries), tree.troubles) == (3, ())


def test_hints_find_what_came_and_went_in_a_folder_that_is_known(place: Place) -> None:
    """Its own row stands with its parent, where no hint points."""
    settle()
    disk = place.disk()
    disk.tree(str(place.root))
    disk.new_look([])
    assert seen(disk.tree(str(place.root))) == naive(place.root)
    (place.root / "sub" / "deeper" / "new").touch()
    disk.new_look([place.path("sub/deeper/new")])
    assert seen(disk.tree(str(place.root))) == naive(place.root)
    settle()
    (place.root / "sub" / "deeper" / "new").unlink()
    disk.new_look([place.path("sub/deeper/new")])
    assert seen(disk.tree(str(place.root))) == naive(place.root)
