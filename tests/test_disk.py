"""Trees: what lies under a root, whatever lies there."""

from __future__ import annotations

import ctypes
import os
import socket
import stat
import struct
import sys
from pathlib import Path
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lockd import walk
from lockd.disk import Disk, Entry, Tree, Trouble
from lockd.globs import matches

pytestmark = pytest.mark.alone


def naive(root: Path) -> dict[str, tuple[str, int, int]]:
    """Every path under root by os.walk: (kind, size, inode)."""
    found = {}
    for folder, folders, files in os.walk(root):
        for name in folders + files:
            path = os.path.join(folder, name)
            status = os.lstat(path)
            kind = {stat.S_IFREG: "f", stat.S_IFDIR: "d", stat.S_IFLNK: "l"}.get(stat.S_IFMT(status.st_mode), "o")
            found[os.path.relpath(path, root)] = (kind, status.st_size, status.st_ino)
    return found


def seen(tree: Tree) -> dict[str, tuple[str, int, int]]:
    return {path: (entry.kind, entry.size, entry.inode) for path, entry in tree.entries.items()}


def fill(root: Path) -> None:
    for path in ("a", "a-b", "a.d/x", "a.d/y/z", "b/c", "new\nline", "b/~", "A/q"):
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(path)
    (root / "empty").mkdir()
    (root / "link").symlink_to("b")
    (root / "gone").symlink_to("nowhere")


def test_a_tree_is_what_os_walk_finds(tmp_path: Path) -> None:
    fill(tmp_path)
    tree = Disk().tree(str(tmp_path))
    assert seen(tree) == naive(tmp_path)
    assert list(tree.entries) == sorted(naive(tmp_path)) == [path for path, _ in tree.entries.items()]
    assert len(tree.entries) == len(naive(tmp_path))
    assert (tree.troubles, tree.missing) == ((), False)


def test_one_path_is_found_as_all_are(tmp_path: Path) -> None:
    fill(tmp_path)
    entries = Disk().tree(str(tmp_path)).entries
    assert {path: entries[path] for path in entries} == dict(entries.items())
    for path in ("", "nothing", "a/x", "b", "b/", "/b", "b//c", "b/c/d", "0", "~"):
        assert (path in entries) is (path == "b")


NAMES = st.text("ab-./!~\n", min_size=1, max_size=3).filter(lambda name: "/" not in name and name not in (".", ".."))


@settings(max_examples=25, deadline=None)
@given(st.lists(st.lists(NAMES, min_size=1, max_size=3), max_size=12), st.randoms())
def test_any_tree_made_in_any_order_reads_the_same(
    tmp_path_factory: pytest.TempPathFactory, paths: list[list[str]], random: Random
) -> None:
    order = list(paths)
    random.shuffle(order)
    listings = []
    for sequence in (paths, order):
        root = tmp_path_factory.mktemp("tree")
        for path in sequence:
            root.joinpath(*path).mkdir(parents=True, exist_ok=True)
        tree = Disk().tree(str(root))
        assert seen(tree) == naive(root)
        listings.append(list(tree.entries))
    assert listings[0] == listings[1] == sorted(listings[0])


def test_a_name_of_bad_bytes_is_listed_and_hashed(tmp_path: Path) -> None:
    with open(os.fsencode(tmp_path) + b"/bad\xff\nname", "wb") as file:
        file.write(b"1")
    disk = Disk()
    tree = disk.tree(str(tmp_path))
    assert list(tree.entries) == ["bad\udcff\nname"]
    assert all(isinstance(answer, str) for answer in disk.digests([f"{tmp_path}/bad\udcff\nname"]).values())


def test_a_path_300_folders_deep(tmp_path: Path) -> None:
    deep = tmp_path
    for _ in range(300):
        deep = deep / "d"
        os.mkdir(deep)
    (deep / "file").write_text("1")
    disk = Disk()
    tree = disk.tree(str(tmp_path))
    last = "d/" * 300 + "file"
    assert len(tree.entries) == 301 and list(tree.entries)[-1] == last and not tree.troubles
    assert isinstance(disk.digests([f"{tmp_path}/{last}"])[f"{tmp_path}/{last}"], str)


def test_a_path_longer_than_the_kernel_takes_is_told(tmp_path: Path) -> None:
    here = os.open(tmp_path, os.O_RDONLY)
    for _ in range(20):
        os.mkdir("n" * 250, dir_fd=here)
        below = os.open("n" * 250, os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = below
    os.close(here)
    tree = Disk().tree(str(tmp_path))
    assert [trouble.reason for trouble in tree.troubles] == ["file name too long"]


def test_fifos_sockets_and_devices_are_other_and_never_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    os.mkfifo("fifo")
    with socket.socket(socket.AF_UNIX) as end:
        end.bind("socket")
        names = ["fifo", "socket"]
        if os.geteuid() == 0:
            try:
                os.mknod("device", 0o020600, os.makedev(1, 5))
                names.append("device")
            except PermissionError:  # a container's root
                pass
        disk = Disk()
        entries = disk.tree(str(tmp_path)).entries
        assert {entries[name].kind for name in names} == {"o"}
        answers = disk.digests([f"{tmp_path}/{name}" for name in names])
        assert all(isinstance(answer, Trouble) for answer in answers.values())
        assert isinstance(disk.read(f"{tmp_path}/fifo"), Trouble)


def test_links_are_not_followed(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "real" / "file").write_text("1")
    (tmp_path / "loop").symlink_to(".")
    (tmp_path / "real" / "up").symlink_to("..")
    assert list(Disk().tree(str(tmp_path)).entries) == ["loop", "real", "real/file", "real/up"]
    assert isinstance(Disk().digests([f"{tmp_path}/loop"])[f"{tmp_path}/loop"], Trouble)


def test_a_root_that_is_a_link_is_a_trouble_unless_it_is_to_be_followed(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "real" / "file").write_text("1")
    link = tmp_path / "link"
    link.symlink_to("real")
    disk = Disk()
    refused = disk.tree(str(link))
    assert [trouble.reason for trouble in refused.troubles] == ["a link, not a folder"] and not refused.entries
    followed = disk.tree(str(link), follow_root=True)
    assert list(followed.entries) == ["file"] and followed.root == str(link)
    assert (
        disk.digests([f"{link}/file"])[f"{link}/file"]
        == disk.digests([f"{tmp_path}/real/file"])[f"{tmp_path}/real/file"]
    )


def test_a_root_reached_through_links_above_it(tmp_path: Path) -> None:
    (tmp_path / "real" / "sub").mkdir(parents=True)
    (tmp_path / "real" / "sub" / "file").write_text("1")
    (tmp_path / "link").symlink_to("real")
    assert list(Disk().tree(f"{tmp_path}/link/sub").entries) == ["file"]


def test_a_root_that_is_not_there_a_file_or_a_loop(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "loop").symlink_to("loop")
    disk = Disk()
    assert disk.tree(f"{tmp_path}/none").missing
    assert disk.tree(f"{tmp_path}/file/below").missing
    assert disk.tree(f"{tmp_path}/file").troubles[0].reason == "a file, not a folder"
    assert disk.tree(f"{tmp_path}/loop", follow_root=True).troubles


def test_what_is_excluded_is_neither_listed_nor_entered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(tmp_path)
    (tmp_path / "b" / "skip").mkdir()
    (tmp_path / "b" / "skip" / "inner").touch()
    opened: list[str] = []
    real = os.open

    def noted(path: str, flags: int) -> int:
        opened.append(path)
        return real(path, flags)

    monkeypatch.setattr(os, "open", noted)
    patterns = ("**/skip/**", "a.d/**", "*~*")
    tree = Disk().tree(str(tmp_path), patterns)
    excluded = matches(patterns)
    assert set(tree.entries) == {path for path in naive(tmp_path) if not excluded(path)}
    assert "b/skip" not in tree.entries and "a.d" not in tree.entries
    assert opened and not [path for path in opened if "skip" in path or path.endswith("a.d")]


def without_privileges(script: str, *arguments: str) -> str:
    """Run Python in a child that may do no more than an ordinary owner of its files, and give what it printed."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            os.dup2(writing, 1)
            header, nothing = struct.pack("Ii", 0x20080522, 0), bytes(24)
            if ctypes.CDLL(None, use_errno=True).capset(header, nothing):
                raise OSError(ctypes.get_errno(), "capset")
            sys.argv = ["-", *arguments]
            exec(compile(script, "-", "exec"), {"__name__": "child"})
            code = 0
        finally:
            os._exit(code)
    os.close(writing)
    with open(reading, encoding="utf-8") as file:
        said = file.read()
    assert os.waitpid(pid, 0)[1] == 0
    return said


LOOK = """
import os, sys
from lockd.disk import Disk
os.write(1, repr((list((tree := Disk().tree(sys.argv[1])).entries), list(tree.troubles))).encode())
"""


def test_a_folder_that_may_not_be_read_is_a_trouble_and_the_rest_is_seen(tmp_path: Path) -> None:
    closed, listable = tmp_path / "closed", tmp_path / "listable"
    for folder in (closed, listable):
        folder.mkdir()
        (folder / "file").touch()
    (tmp_path / "plain").touch()
    closed.chmod(0)
    listable.chmod(0o444)  # names can be read, nothing below can be asked for
    try:
        entries, troubles = eval(without_privileges(LOOK, str(tmp_path)), {"Trouble": Trouble})
    finally:
        closed.chmod(0o755)
        listable.chmod(0o755)
    assert entries == ["closed", "listable", "plain"]
    denied = "permission denied"
    assert troubles == [Trouble(str(closed), denied), Trouble(f"{listable}/file", denied)]


def test_an_unreadable_file_is_a_trouble(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("1")
    (tmp_path / "secret").chmod(0)
    script = (
        "import os, sys\nfrom lockd.disk import Disk\nd = Disk()\n"
        "os.write(1, repr([d.digests(sys.argv[1:])[sys.argv[1]], d.read(sys.argv[1])]).encode())"
    )
    answers = eval(without_privileges(script, f"{tmp_path}/secret"), {"Trouble": Trouble})
    assert answers == [Trouble(f"{tmp_path}/secret", "permission denied")] * 2


def test_entry_of_one_path(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("123")
    (tmp_path / "link").symlink_to("file")
    disk = Disk()
    entry, link = disk.entry(f"{tmp_path}/file"), disk.entry(f"{tmp_path}/link")
    status = os.lstat(tmp_path / "file")
    assert entry == Entry("f", status.st_mode, 3, status.st_mtime_ns, status.st_ctime_ns, status.st_ino, 1)
    assert isinstance(link, Entry) and link.kind == "l"
    assert disk.entry(f"{tmp_path}/none") is None
    assert disk.entry(f"{tmp_path}/file/below") is None


def test_read_gives_bytes_or_says_why_not(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"12345")
    disk = Disk()
    assert disk.read(f"{tmp_path}/file", 5) == b"12345"
    assert disk.read(f"{tmp_path}/file", 4) == Trouble(f"{tmp_path}/file", "larger than 4 bytes")
    assert disk.read(f"{tmp_path}/none") == Trouble(f"{tmp_path}/none", "not there")
    assert disk.read(str(tmp_path)) == Trouble(str(tmp_path), "a folder, not a regular file")


def test_pages_of_a_large_flat_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(walk, "PAGE", 16)
    for number in range(70):
        (tmp_path / f"{number:05}").touch()
    disk = Disk()
    tree = disk.tree(str(tmp_path))
    assert list(tree.entries) == [f"{number:05}" for number in range(70)]
    assert "00015" in tree.entries and "00016" in tree.entries
    assert "16" not in tree.entries and "!" not in tree.entries
    os.unlink(tmp_path / "00016")
    os.unlink(tmp_path / "00069")
    (tmp_path / "00000a").touch()
    disk.new_look()
    assert seen(disk.tree(str(tmp_path))) == naive(tmp_path)
    for name in os.listdir(tmp_path):
        os.unlink(tmp_path / name)
    disk.new_look()
    assert seen(disk.tree(str(tmp_path))) == {}


def test_within_one_look_a_tree_is_looked_at_once(tmp_path: Path) -> None:
    disk = Disk()
    first = disk.tree(str(tmp_path))
    (tmp_path / "file").touch()
    assert disk.tree(str(tmp_path)) is first
    disk.new_look()
    assert list(disk.tree(str(tmp_path)).entries) == ["file"]
