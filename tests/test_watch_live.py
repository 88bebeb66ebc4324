"""A watcher over real folders, by each interface that the kernel grants: what happens is hinted, nothing is lost."""

from __future__ import annotations

import errno
import os
import subprocess
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from lockd.watch.fanotify import Fanotify
from lockd.watch.hints import Target, WatchState
from lockd.watch.inotify import Inotify
from lockd.watch.routes import Route, route
from lockd.watch.watcher import Watcher, as_target
from tests.watching import Collector, eventually, fanotify_permitted, needs_fanotify, outside

MODES = ["best", "inotify"] if fanotify_permitted() else ["inotify"]


@pytest.fixture(params=MODES)
def use(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def got() -> Collector:
    return Collector()


def watching(tmp_path: Path, targets: list[Any], got: Collector, use: Any) -> Watcher:
    return Watcher(targets, on_hint=got, cookie_folder=str(tmp_path / "lockd-cookies"), use=use)


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    root = tmp_path / "venv"
    (root / "lib" / "torch").mkdir(parents=True)
    (root / "lib" / "torch" / "version.py").write_text("a")
    return root


def test_edit_create_remove_rename_and_chmod_are_hinted(tmp_path: Path, tree: Path, got: Collector, use: str) -> None:
    torch = tree / "lib" / "torch"
    with watching(tmp_path, [str(tree)], got, use) as watcher:
        outside(
            f"cd {torch}; echo b >> version.py; echo > new.py; mv new.py newer.py; chmod 600 version.py; rm newer.py"
        )
        assert watcher.sync(20)
    assert {"changed", "attrib"} <= got.kinds(torch / "version.py")
    assert {"created", "moved"} <= got.kinds(torch / "new.py")
    assert {"moved", "removed"} <= got.kinds(torch / "newer.py")


def test_a_new_folder_that_is_already_full_is_told_and_watched(
    tmp_path: Path, tree: Path, got: Collector, use: str
) -> None:
    full = tmp_path / "full"
    (full / "deep" / "er").mkdir(parents=True)
    (full / "deep" / "er" / "x.py").write_text("x")
    with watching(tmp_path, [str(tree)], got, use) as watcher:
        outside(f"mv {full} {tree}/full")
        assert watcher.sync(20)
        assert "created" in got.kinds(tree / "full" / "deep" / "er" / "x.py")
        got.hints.clear()
        outside(f"echo y > {tree}/full/deep/er/x.py")
        assert watcher.sync(20)
    assert "changed" in got.kinds(tree / "full" / "deep" / "er" / "x.py")


def test_a_tree_made_fast_is_seen_to_its_last_file(tmp_path: Path, tree: Path, got: Collector, use: str) -> None:
    with watching(tmp_path, [str(tree)], got, use) as watcher:
        outside(f"for i in 1 2 3 4 5 6 7 8 9; do mkdir -p {tree}/n$i/a/b/c; echo > {tree}/n$i/a/b/c/f; done")
        assert watcher.sync(20)
    for number in range(1, 10):
        assert got.about(tree / f"n{number}" / "a" / "b" / "c" / "f"), number


def test_reading_and_importing_raise_no_hint(tmp_path: Path, tree: Path, got: Collector, use: str) -> None:
    with watching(tmp_path, [str(tree), str(tree / "lib/torch/version.py")], got, use) as watcher:
        outside(f"find {tree} -type f -exec cat {{}} + > /dev/null; ls -lR {tree} > /dev/null")
        assert watcher.sync(20)
    assert got.hints == []


def test_excluded_folders_are_not_watched_and_excluded_names_give_no_hint(
    tmp_path: Path, tree: Path, got: Collector, use: str
) -> None:
    (tree / "wandb" / "run").mkdir(parents=True)
    target = Target(str(tree), exclude=("wandb/**", "**/*.log"))
    with watching(tmp_path, [target], got, use) as watcher:
        outside(f"echo > {tree}/wandb/run/f; mkdir {tree}/wandb/new; echo > {tree}/lib/x.log; echo > {tree}/lib/x.py")
        assert watcher.sync(20)
    assert {hint.path for hint in got.hints} == {str(tree / "lib" / "x.py")}


def test_a_pinned_file_alone_in_a_busy_folder(tmp_path: Path, got: Collector, use: str) -> None:
    script = tmp_path / "train.py"
    script.write_text("one")
    with watching(tmp_path, [str(script)], got, use) as watcher:
        outside(f"for i in 1 2 3; do echo noise > {tmp_path}/noise$i; done; echo two > {script}")
        assert watcher.sync(20)
    assert {hint.path for hint in got.hints} == {str(script)}
    assert "changed" in got.kinds(script)


def test_rename_over_a_pinned_file_and_edits_of_what_came(tmp_path: Path, got: Collector, use: str) -> None:
    script = tmp_path / "train.py"
    script.write_text("one")
    with watching(tmp_path, [str(script)], got, use) as watcher:
        outside(f"echo two > {tmp_path}/.swap; mv {tmp_path}/.swap {script}")
        assert watcher.sync(20)
        assert "moved" in got.kinds(script)
        got.hints.clear()
        outside(f"echo three >> {script}")
        assert watcher.sync(20)
        assert "changed" in got.kinds(script)
        got.hints.clear()
        outside(f"rm {script}")
        assert watcher.sync(20)
        assert "removed" in got.kinds(script)
        assert "not there" in watcher.state()[str(script)].why
        outside(f"echo four > {script}")
        assert watcher.sync(20)
        assert "created" in got.kinds(script)


def test_an_edit_through_a_hard_link_elsewhere(tmp_path: Path, got: Collector, use: str) -> None:
    script, elsewhere = tmp_path / "train.py", tmp_path / "cache" / "blob"
    script.write_text("one")
    elsewhere.parent.mkdir()
    os.link(script, elsewhere)
    with watching(tmp_path, [str(script)], got, use) as watcher:
        outside(f"echo two >> {elsewhere}")
        assert watcher.sync(20)
    assert "changed" in got.kinds(script)


def test_a_store_through_mmap_is_told_when_its_file_is_closed(tmp_path: Path, got: Collector, use: str) -> None:
    script = tmp_path / "model.bin"
    script.write_bytes(b"x" * 8192)
    store = f"import mmap; f=open({str(script)!r},'r+b'); m=mmap.mmap(f.fileno(),0); m[0:1]=b'y'; m.close(); f.close()"
    with watching(tmp_path, [str(script)], got, use) as watcher:
        outside(f'python3 -c "{store}"')
        assert watcher.sync(20)
    assert "changed" in got.kinds(script)


def test_a_path_that_comes_later_with_all_its_parents(tmp_path: Path, got: Collector, use: str) -> None:
    wanted = tmp_path / "a" / "b" / "cache"
    with watching(tmp_path, [str(wanted)], got, use) as watcher:
        assert "not there" in watcher.state()[str(wanted)].why
        outside(f"mkdir -p {wanted}/x; echo > {wanted}/x/f")
        assert watcher.sync(20)
        assert got.about(wanted)
        got.hints.clear()
        outside(f"echo 2 > {wanted}/x/f")
        assert watcher.sync(20)
    assert "changed" in got.kinds(wanted / "x" / "f")


def test_a_root_that_moves_away_is_lost_and_found_again(tmp_path: Path, tree: Path, got: Collector, use: str) -> None:
    with watching(tmp_path, [str(tree)], got, use) as watcher:
        outside(f"mv {tree} {tmp_path}/aside")
        assert watcher.sync(20)
        assert {"moved", "watch-lost"} <= got.kinds(tree)
        assert "not there" in watcher.state()[str(tree)].why
        got.hints.clear()
        outside(f"echo > {tmp_path}/aside/lib/nobody-asked")
        assert watcher.sync(20)
        assert got.hints == []
        outside(f"mv {tmp_path}/aside {tree}")
        assert watcher.sync(20)
        assert "moved" in got.kinds(tree)
        outside(f"echo > {tree}/lib/again")
        assert watcher.sync(20)
    assert "created" in got.kinds(tree / "lib" / "again")


def test_a_folder_above_the_root_moves_and_comes_back(tmp_path: Path, got: Collector, use: str) -> None:
    root = tmp_path / "home" / "me" / "venv"
    root.mkdir(parents=True)
    with watching(tmp_path, [str(root)], got, use) as watcher:
        outside(f"mv {tmp_path}/home {tmp_path}/away")
        assert watcher.sync(20)
        assert "watch-lost" in got.kinds(root)
        outside(f"mkdir -p {root}; echo > {root}/f")
        assert watcher.sync(20)
        got.hints.clear()
        outside(f"echo 2 > {root}/f")
        assert watcher.sync(20)
    assert "changed" in got.kinds(root / "f")


def test_inner_folders_that_move_keep_their_right_names(tmp_path: Path, tree: Path, got: Collector, use: str) -> None:
    with watching(tmp_path, [str(tree)], got, use) as watcher:
        outside(f"mv {tree}/lib {tree}/lib64; mkdir -p {tree}/lib/torch")
        assert watcher.sync(20)
        got.hints.clear()
        outside(f"echo 1 > {tree}/lib64/torch/version.py; echo 2 > {tree}/lib/torch/version.py")
        assert watcher.sync(20)
    assert "changed" in got.kinds(tree / "lib64" / "torch" / "version.py")
    assert "created" in got.kinds(tree / "lib" / "torch" / "version.py")


def test_two_folders_exchanged_are_both_still_watched(tmp_path: Path, tree: Path, got: Collector, use: str) -> None:
    (tree / "one").mkdir()
    (tree / "two").mkdir()
    exchange = (
        "import ctypes; libc=ctypes.CDLL(None); "
        f"raise SystemExit(libc.renameat2(-100, b'{tree}/one', -100, b'{tree}/two', 2))"
    )
    with watching(tmp_path, [str(tree)], got, use) as watcher:
        if subprocess.run(["python3", "-c", exchange]).returncode:
            pytest.skip("this file system exchanges no names")
        assert watcher.sync(20)
        got.hints.clear()
        outside(f"echo 1 > {tree}/one/f; echo 2 > {tree}/two/f")
        assert watcher.sync(20)
    assert got.about(tree / "one" / "f") and got.about(tree / "two" / "f")


def test_a_link_on_the_way_is_watched_too(tmp_path: Path, got: Collector, use: str) -> None:
    for name in ("old", "new"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "f").write_text(name)
    current = tmp_path / "current"
    current.symlink_to("old")
    with watching(tmp_path, [str(current)], got, use) as watcher:
        outside(f"echo >> {tmp_path}/old/f")
        assert watcher.sync(20)
        assert "changed" in got.kinds(current / "f")
        got.hints.clear()
        outside(f"ln -sfn new {current}")
        assert watcher.sync(20)
        assert got.about(current)
        got.hints.clear()
        outside(f"echo >> {tmp_path}/new/f; echo >> {tmp_path}/old/f")
        assert watcher.sync(20)
    assert "changed" in got.kinds(current / "f")


def test_names_that_are_not_utf8_come_through(tmp_path: Path, tree: Path, got: Collector, use: str) -> None:
    with watching(tmp_path, [str(tree)], got, use) as watcher:
        subprocess.run(["touch", os.fsencode(tree) + b"/odd\xff\nname"], check=True)
        assert watcher.sync(20)
    assert [hint for hint in got.hints if os.fsencode(hint.path).endswith(b"/odd\xff\nname")]


def test_globs_stand_for_the_folder_above_them(tmp_path: Path, got: Collector, use: str) -> None:
    assert as_target("/root/*.py") == Target("/root", deep=False)
    assert as_target("/root/**/*.py") == Target("/root", deep=True)
    assert as_target("/root/venv/") == Target("/root/venv")
    (tmp_path / "conf").mkdir()
    with watching(tmp_path, [f"{tmp_path}/conf/*.json"], got, use) as watcher:
        outside(f"echo > {tmp_path}/conf/a.json")
        assert watcher.sync(20)
    assert got.about(tmp_path / "conf" / "a.json")


def test_a_relative_path_is_refused(got: Collector) -> None:
    with pytest.raises(ValueError, match="not absolute"):
        Watcher(["venv"], on_hint=got)


def test_sync_is_never_true_without_proof(tmp_path: Path, tree: Path, got: Collector, use: str) -> None:
    watcher = watching(tmp_path, [str(tree)], got, use)
    assert not watcher.sync(0.1)
    watcher.start()
    assert watcher.sync(20)
    outside(f"rm -r {tmp_path}/lockd-cookies")
    assert not watcher.sync(1)
    watcher.retry()
    outside(f"while [ ! -d {tmp_path}/lockd-cookies ]; do sleep 0.02; done")
    assert watcher.sync(20)
    watcher.stop()
    assert not watcher.sync(0.1)
    assert {state.mode for state in watcher.state().values()} == {"polled"}
    assert os.listdir(tmp_path / "lockd-cookies") == []


def test_a_slow_receiver_has_had_every_earlier_hint_when_sync_is_true(tmp_path: Path, tree: Path, use: str) -> None:
    seen: list[str] = []
    gate = threading.Event()

    def slow(hint: Any) -> None:
        gate.wait(20)
        seen.append(hint.path)

    with Watcher([str(tree)], on_hint=slow, cookie_folder=str(tmp_path / "c"), use=use) as watcher:  # type: ignore[arg-type]
        outside(f"echo > {tree}/x")
        assert not watcher.sync(1)
        gate.set()
        assert watcher.sync(20)
        assert f"{tree}/x" in seen


def _descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def _no_more_than(number: int) -> bool:
    return _descriptors() <= number


@pytest.fixture
def settled() -> Iterator[int]:
    yield _descriptors()


def test_no_descriptor_or_thread_is_left(tmp_path: Path, tree: Path, use: str, settled: int) -> None:
    threads = threading.active_count()
    for _ in range(3):
        with watching(tmp_path, [str(tree), str(tree / "lib/torch/version.py")], Collector(), use) as watcher:
            outside(f"for i in 1 2 3 4 5 6 7 8 9; do (echo > {tree}/f$i) & done; wait")
            assert watcher.sync(20)
            running = _descriptors()
            outside(f"for i in 1 2 3 4 5 6 7 8 9; do sh -c 'echo > {tree}/g'; done")
            assert watcher.sync(20)
            assert eventually(partial(_no_more_than, running))  # an event under way holds one for a moment
    assert eventually(partial(_no_more_than, settled))
    assert threading.active_count() == threads


def test_descriptors_are_not_inherited(tmp_path: Path, tree: Path, got: Collector, use: str) -> None:
    with watching(tmp_path, [str(tree)], got, use):
        listed = subprocess.run(["ls", "-l", "/proc/self/fd"], capture_output=True, text=True, close_fds=False).stdout
    assert "inotify" not in listed and "fanotify" not in listed


@needs_fanotify
def test_lockd_itself_is_no_news(tmp_path: Path, tree: Path, got: Collector) -> None:
    with watching(tmp_path, [str(tree)], got, "best") as watcher:
        (tree / "mine").mkdir()
        (tree / "mine" / "f").write_text("x")
        assert watcher.sync(20)
        assert got.hints == []
        outside(f"echo > {tree}/mine/theirs")
        assert watcher.sync(20)
    assert got.about(tree / "mine" / "theirs")


def test_a_way_that_comes_while_it_is_being_watched_is_not_missed(
    tmp_path: Path, got: Collector, use: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = tmp_path / "a" / "b" / "cache"
    (tmp_path / "a").mkdir()
    looked: list[str] = []

    def route_then_come(path: str) -> Route:
        way = route(path)
        if path == str(wanted) and not looked:
            (tmp_path / "a" / "b").mkdir()  # after the look, before its folder is watched
        looked.append(path)
        return way

    monkeypatch.setattr("lockd.watch.places.route", route_then_come)
    with watching(tmp_path, [str(wanted)], got, use) as watcher:
        outside(f"mkdir {wanted}")
        assert watcher.sync(20)
    assert "created" in got.kinds(wanted)


def test_churn_leaves_no_watch_behind(tmp_path: Path, tree: Path, got: Collector, use: str) -> None:
    with watching(tmp_path, [str(tree)], got, use) as watcher:
        assert watcher.sync(20)
        places = watcher._places
        assert places
        before = len(places._keys), len(places._paths), len(places._interests), dict(places.uses)
        for _ in range(3):
            outside(f"cd {tree}; mkdir -p x/$(seq -s/ 40) y/z; mv y x/y; rm -r x")
        outside(f"mkdir -p {tree}/away/with/it; mv {tree}/away {tmp_path}/elsewhere")
        assert watcher.sync(20)
        assert (len(places._keys), len(places._paths), len(places._interests), dict(places.uses)) == before


@needs_fanotify
def test_an_interface_that_nothing_needs_is_not_needed_for_proof(
    tmp_path: Path, tree: Path, got: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    def at_the_limit(self: Inotify, path: str, *, names_only: bool = False) -> Any:
        raise OSError(errno.ENOSPC, "No space left on device", path)

    monkeypatch.setattr(Inotify, "watch_folder", at_the_limit)
    with watching(tmp_path, [str(tree)], got, "best") as watcher:
        assert watcher.state()[str(tree)].mode == "fanotify"
        assert watcher.sync(20)


@needs_fanotify
def test_a_file_system_that_fanotify_refuses_is_watched_by_inotify_beside_it(
    tmp_path: Path, tree: Path, got: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "odd" / "fs").mkdir(parents=True)
    mark = Fanotify._mark

    def refusing(self: Fanotify, path: str, flags: int, mask: int) -> Any:
        if path.startswith(f"{tmp_path}/odd"):
            raise OSError(errno.ENODEV, "No such device", path)
        return mark(self, path, flags, mask)

    monkeypatch.setattr(Fanotify, "_mark", refusing)
    odd = tmp_path / "odd"
    with watching(tmp_path, [str(tree), str(odd)], got, "best") as watcher:
        assert watcher.state()[str(tree)].mode == "fanotify"
        assert watcher.state()[str(odd)] == WatchState("inotify", "fanotify cannot take this file system")
        outside(f"echo > {odd}/fs/f; echo > {tree}/lib/f")
        assert watcher.sync(20)
    assert got.about(odd / "fs" / "f")[0].who.confidence == "not observed"
    assert got.about(tree / "lib" / "f")
