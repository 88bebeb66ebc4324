"""The packed record of a tree and its file."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockd.statcache import (
    COLUMNS,
    NO_DIGEST,
    Page,
    Record,
    load,
    packed,
    prune,
    read_packed,
    store,
    unpacked,
    write_packed,
)

KEY = ("root", ())


def record(filesystem: int = 7) -> Record:
    rows = packed([0o100644, 1, 2, 3, 4, 1, 0, 0o040755, 9, 9, 9, 9, 2, 0])
    page = Page("bad\udcff\nname\0folder", rows)
    page.keep(0, b"d" * 32)
    return Record(
        filesystem,
        rows[: len(rows) // 2],
        {"": [page], "folder": []},
        {"folder"},
        {"folder": "permission denied"},
        {"bad\udcff\nname": b"u" * 32},
        {"bad\udcff\nname": b"s" * 32},
    )


def plain(found: Record) -> object:
    pages = {folder: [(p.names, p.rows, bytes(p.digests)) for p in pages] for folder, pages in found.folders.items()}
    return pages, found.root_row, found.unsure, found.troubles, found.untrusted, found.salted, found.nonce, found.stamp


def test_a_record_reads_back_as_it_was_written(tmp_path: Path) -> None:
    written = record()
    store(f"{tmp_path}/file", KEY, written)
    found = load(f"{tmp_path}/file", KEY, 7)
    assert found is not None and plain(found) == plain(written)
    assert not found.dirty and found.stamp == written.stamp != ""
    assert os.listdir(tmp_path) == ["file"]


def test_a_record_is_not_read_under_another_key_or_for_another_file_system(tmp_path: Path) -> None:
    store(f"{tmp_path}/file", KEY, record())
    assert load(f"{tmp_path}/file", ("other", ()), 7) is None
    assert load(f"{tmp_path}/file", KEY, 8) is None
    assert load(f"{tmp_path}/none", KEY, 7) is None


def test_a_file_cut_anywhere_or_with_any_byte_changed_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "file"
    store(str(path), KEY, record())
    whole = path.read_bytes()
    for index in range(0, len(whole), 7):
        path.write_bytes(whole[:index])
        assert read_packed(str(path), KEY) is None
        path.write_bytes(whole[:index] + bytes([whole[index] ^ 0x41]) + whole[index + 1 :])
        assert read_packed(str(path), KEY) is None


def test_a_file_of_another_user_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_packed(f"{tmp_path}/file", KEY, 1)
    assert read_packed(f"{tmp_path}/file", KEY) == 1
    monkeypatch.setattr(os, "geteuid", lambda: 4242)
    assert read_packed(f"{tmp_path}/file", KEY) is None


def test_a_failed_write_leaves_the_old_file_and_nothing_aside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_packed(f"{tmp_path}/file", KEY, 1)

    def full(source: str, target: str) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "rename", full)
    with pytest.raises(OSError, match="No space"):
        write_packed(f"{tmp_path}/file", KEY, 2)
    assert (read_packed(f"{tmp_path}/file", KEY), os.listdir(tmp_path)) == (1, ["file"])


def test_the_stamp_is_over_everything_that_was_seen() -> None:
    base = record()
    stamps = {base.stamped()}
    for change in range(7):
        other = record()
        other.nonce = base.nonce
        page = other.folders[""][0]
        if change == 0:
            page.names = page.names.replace("bad", "bed")
        elif change == 1:
            page.rows = packed([0o100644, 1, 2, 3, 5, 1, 0, 0o040755, 9, 9, 9, 9, 2, 0])
        elif change == 2:
            other.root_row = b"x"
        elif change == 3:
            other.troubles = {}
        elif change == 4:
            other.salted = {}
        elif change == 5:
            other.folders["new"] = []
        else:
            other.nonce = os.urandom(16)
        stamps.add(other.stamped())
    assert len(stamps) == 8


def test_what_is_not_trusted_is_no_part_of_the_stamp() -> None:
    one, other = record(), record()
    other.nonce = one.nonce
    other.untrusted, other.unsure = {}, set()
    other.folders[""][0].keep(0, NO_DIGEST)
    assert one.stamped() == other.stamped()


ROWS = st.lists(st.lists(st.integers(-(1 << 63), (1 << 63) - 1), min_size=COLUMNS, max_size=COLUMNS), max_size=5)


@given(ROWS)
def test_rows_unpack_as_they_were_packed(rows: list[list[int]]) -> None:
    assert list(unpacked(packed([number for row in rows for number in row]))) == [tuple(row) for row in rows]


def test_inodes_of_64_bits_are_taken() -> None:
    (row,) = unpacked(packed([0o100644, (1 << 64) - 2, 0, 0, 0, 1, 0]))
    assert row[1] % (1 << 64) == (1 << 64) - 2


def test_digests_of_a_page() -> None:
    page = Page("a\0b", packed([0] * 14))
    assert (page.digest(0), page.digest(1)) == (b"", b"")
    page.keep(1, b"x" * 32)
    assert (page.digest(0), page.digest(1)) == (b"", b"x" * 32)
    page.keep(1, NO_DIGEST)
    assert page.digest(1) == b""


def test_dropping_a_folder_drops_all_below() -> None:
    folder = packed([0o040755, 1, 0, 0, 0, 1, 0])
    tree = Record(1, folders={"": [Page("a", folder)], "a": [Page("b", folder)], "a/b": []})
    tree.untrusted["a/b"] = b""
    tree.unsure.add("a/b")
    tree.drop("a")
    assert (list(tree.folders), tree.untrusted, tree.unsure) == ([""], {}, set())


def test_pruning_removes_the_oldest_and_what_was_left_aside(tmp_path: Path) -> None:
    now = time.time()
    for age in range(5):
        (tmp_path / f"{age}.stat").touch()
        os.utime(tmp_path / f"{age}.stat", (now - age, now - age))
    for name, age in (("old.stat.1.tmp", 7200), ("new.stat.2.tmp", 1)):
        (tmp_path / name).touch()
        os.utime(tmp_path / name, (now - age, now - age))
    (tmp_path / "other").touch()
    prune(str(tmp_path), (".stat",), 3)
    assert sorted(os.listdir(tmp_path)) == ["0.stat", "1.stat", "2.stat", "new.stat.2.tmp", "other"]
