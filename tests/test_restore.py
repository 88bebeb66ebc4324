"""Restore of files and caches: the plan touches nothing, the deed brings every byte back, undo takes it back."""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from lockd import journal
from lockd.state import State
from tests.restoring import CACHE, Near, changes_of, contents, killed, pinned_file, tree
from tests.scene import LOCKD, Scene


def cache_scene(root: Path, rule: str = "", kind: str = "inductor") -> tuple[Scene, Path]:
    """A scene with a small kept cache, accepted."""
    scene = Near(root)
    cache = scene.file("cache/ab/cabc.py", "one\n").parents[1]
    scene.file("cache/triton/0/KEY/k.cubin", "two\n").chmod(0o640)
    scene.file("cache/triton/0/KEY/k.json", "{}\n")
    scene.write_policy(f'[[cache]]\npath = "{cache}"\nkind = "{kind}"\nkeep = true\n{rule}\n')
    assert scene.accept().code == 0
    return scene, cache


def restored(scene: Scene, *args: str) -> None:
    answer = scene.lockd("restore", "--apply", *args)
    assert answer.code == 0, answer.out + answer.err
    assert scene.verify().code == 0


def state_of(scene: Scene) -> State:
    (folder,) = scene.state.glob("ct-*")
    return State(str(folder))


# -- plan and deed


def test_the_plan_names_every_path_and_touches_nothing(tmp_path: Path) -> None:
    scene, path = pinned_file(tmp_path, "keep = true")
    scene.accept()
    path.write_text("x = 22\n")
    before = tree(path.parent)
    answer = scene.lockd("restore")
    assert answer.code == 0 and str(path) in answer.out and "6 bytes" in answer.out and "generation 1" in answer.out
    assert tree(path.parent) == before
    document = scene.lockd("restore", "--json").document
    assert document["applied"] is False
    ((step,),) = (document["restore"],)
    assert step["paths"] == [{"path": str(path), "does": "write", "bytes": 6, "source": "kept at generation 1"}]


def test_a_file_comes_back_with_mode_owner_and_time(tmp_path: Path) -> None:
    scene, path = pinned_file(tmp_path, "keep = true")
    path.chmod(0o750)
    os.utime(path, ns=(10**18, 1_234_567_890_123_456_789))
    good = tree(path.parent)
    scene.accept()
    path.write_text("x = 2\n")
    path.chmod(0o600)
    restored(scene)
    assert tree(path.parent) == good


@pytest.mark.parametrize("how", ["gone", "folder", "fifo", "link", "parent"])
def test_whatever_is_in_its_place_goes_and_can_be_had_back(tmp_path: Path, how: str) -> None:
    scene, path = pinned_file(tmp_path, "keep = true")
    good = contents(path.parent)
    scene.accept()
    path.unlink()
    if how == "folder":
        (path / "inner").mkdir(parents=True)
        (path / "inner" / "thought.txt").write_text("mine")
    elif how == "fifo":
        os.mkfifo(path)
    elif how == "link":
        path.symlink_to("/etc/passwd")
    elif how == "parent":
        path.parent.rmdir()
    bad = contents(path.parent)
    restored(scene)
    assert contents(path.parent) == good
    assert scene.lockd("restore", "--undo").code == 1
    assert contents(path.parent) == bad


def test_a_link_comes_back_with_what_it_led_to(tmp_path: Path) -> None:
    scene = Near(tmp_path)
    target = scene.file("real/model.py", "good\n")
    link = tmp_path / "job" / "model.py"
    link.parent.mkdir()
    link.symlink_to("../real/model.py")
    scene.write_policy(f'[[file]]\npath = "{link}"\nkeep = true\n')
    scene.accept()
    link.unlink()
    link.write_text("copied in\n")
    target.write_text("bad\n")
    restored(scene)
    assert os.readlink(link) == "../real/model.py" and target.read_text() == "good\n"


def test_entries_of_a_cache_come_back_and_new_ones_stay(tmp_path: Path) -> None:
    scene, cache = cache_scene(tmp_path)
    good = tree(cache)
    (cache / "triton/0/KEY/k.cubin").unlink()
    (cache / "ab/cabc.py").write_text("truncated")
    (cache / "ab/cnew.py").write_text("new")
    restored(scene)
    assert (cache / "ab/cnew.py").read_text() == "new"
    (cache / "ab/cnew.py").unlink()
    assert tree(cache) == good


def test_a_cache_that_was_deleted_comes_back_whole(tmp_path: Path) -> None:
    scene, cache = cache_scene(tmp_path)
    good = tree(cache)
    shutil.rmtree(cache)
    restored(scene)
    assert tree(cache) == good


def test_the_real_cache_comes_back_byte_for_byte(tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    cache.mkdir()
    subprocess.run(["tar", "xzf", str(CACHE), "-C", str(cache)], check=True)
    scene = Near(tmp_path)
    scene.write_policy(f'[[cache]]\npath = "{cache}"\nkind = "inductor"\nkeep = true\n')
    scene.accept()
    good = tree(cache)
    shutil.rmtree(cache)
    restored(scene)
    assert tree(cache) == good


def test_an_exact_cache_loses_what_was_added(tmp_path: Path) -> None:
    scene, cache = cache_scene(tmp_path, 'change = "exact"')
    good = tree(cache)
    (cache / "ab/cnew.py").write_text("new")
    assert "take away" in scene.lockd("restore").out
    restored(scene)
    assert tree(cache) == good
    scene.lockd("restore", "--undo")
    assert (cache / "ab/cnew.py").read_text() == "new"


def test_names_of_any_bytes_come_back(tmp_path: Path) -> None:
    scene, cache = cache_scene(tmp_path)
    odd = [b"bad\xff", b"line\nbreak", b"esc\x1b[31m", "ümläut".encode()]
    for name in odd:
        Path(cache, os.fsdecode(name)).write_text("odd")
    scene.accept()
    good = tree(cache)
    shutil.rmtree(cache)
    answer = scene.lockd("restore")
    assert "bad\\xff" in answer.out and "\x1b" not in answer.out
    restored(scene)
    assert tree(cache) == good


def test_a_single_fact_by_its_short_name(tmp_path: Path) -> None:
    scene, path = pinned_file(tmp_path)
    other = scene.file("job/other.py", "y = 1\n")
    scene.write_policy(f'[[file]]\npath = "{path.parent}/*.py"\nkeep = true\n')
    scene.accept()
    path.write_text("x = 2\n")
    other.write_text("y = 2\n")
    assert scene.lockd("restore", "model.py", "--apply").code == 1
    assert (path.read_text(), other.read_text()) == ("x = 1\n", "y = 2\n")
    assert scene.lockd("restore", "no-such-fact").code == 2


def test_what_is_edited_all_day_is_put_back_only_by_name(tmp_path: Path) -> None:
    scene, path = pinned_file(tmp_path, 'keep = true\non_drift = "record"')
    scene.accept()
    path.write_text("x = 2\n")
    assert scene.lockd("restore", "--apply").code == 0
    assert path.read_text() == "x = 2\n"
    assert scene.lockd("restore", f"file:{path}", "--apply").code == 0
    assert path.read_text() == "x = 1\n"


def test_a_new_match_of_a_glob_goes_only_when_asked(tmp_path: Path) -> None:
    scene, path = pinned_file(tmp_path)
    scene.write_policy(f'[[file]]\npath = "{path.parent}/*.py"\nkeep = true\n')
    scene.accept()
    new = scene.file("job/new.py", "mine\n")
    answer = scene.lockd("restore", "--apply")
    assert answer.code == 1 and new.exists() and "left alone" in answer.out
    restored(scene, "--all")
    assert not new.exists()
    scene.lockd("restore", "--undo")
    assert new.read_text() == "mine\n"


def test_what_was_not_kept_is_said_not_tried(tmp_path: Path) -> None:
    scene, path = pinned_file(tmp_path)
    scene.accept()
    path.write_text("x = 2\n")
    answer = scene.lockd("restore", "--apply")
    assert answer.code == 1 and "no source" in answer.out and "keep = true" in answer.out
    assert path.read_text() == "x = 2\n"


def test_what_has_no_source_says_the_wanted_value(tmp_path: Path) -> None:
    scene = Near(tmp_path)
    scene.file("data/a.bin")
    scene.write_policy(f'[[tree]]\npath = "{tmp_path}/data"\n[env]\nNCCL_DEBUG = "INFO"\n')
    answer = scene.lockd("accept", "-m", "good", "--yes", env={"NCCL_DEBUG": "INFO"})
    assert answer.code == 0, answer.err
    scene.file("data/b.bin")
    answer = scene.lockd("restore")
    assert "tree:" in answer.out and "files 1" in answer.out and "env:NCCL_DEBUG" in answer.out and "INFO" in answer.out
    (whole,) = {
        f"sha256:{word}"
        for one in scene.lockd("restore", "--json").document["no_source"]
        for word in re.findall(r"sha256:([0-9a-f]{64})", one["wanted"])
    }
    assert whole not in answer.out and f"{whole[:19]}…" in answer.out


def test_an_older_generation(tmp_path: Path) -> None:
    scene, path = pinned_file(tmp_path, "keep = true")
    scene.accept()
    path.write_text("x = 2\n")
    scene.accept()
    assert scene.lockd("restore", "--generation", "@1", "--apply").code == 1  # the lock still is generation 2
    assert path.read_text() == "x = 1\n"
    assert scene.lockd("restore", "--generation", "7").code == 3
    assert scene.lockd("restore", "--generation", "x").code == 2


def test_without_a_lock_there_is_nothing_to_go_back_to(tmp_path: Path) -> None:
    scene, _ = pinned_file(tmp_path, "keep = true")
    answer = scene.lockd("restore")
    assert answer.code == 3 and "no known-good" in answer.err


def test_the_log_tells_of_it_between_drift_and_heal(tmp_path: Path) -> None:
    scene, path = pinned_file(tmp_path, "keep = true")
    scene.accept()
    path.write_text("x = 2\n")
    restored(scene)
    told = scene.lockd("log", "--json", "--reverse").document
    assert [one["kind"] for one in told] == ["accept", "drift", "restore", "heal"]
    assert told[2]["by"]["user"] and told[3]["by"] == told[2]["by"]  # who restored is who healed


def test_json_of_a_deed_holds_the_verdict(tmp_path: Path) -> None:
    scene, path = pinned_file(tmp_path, "keep = true")
    scene.accept()
    path.write_text("x = 2\n")
    document = json.loads(scene.lockd("restore", "--apply", "--json").out)
    assert document["applied"] is True and document["verify"]["verdict"] == "ok"


# -- undo


def test_undo_leaves_what_came_since(tmp_path: Path) -> None:
    scene, cache = cache_scene(tmp_path)
    shutil.rmtree(cache)
    restored(scene)
    (cache / "ab/later.py").write_text("after the restore")
    assert scene.lockd("restore", "--undo").code == 1
    assert contents(cache) == {"ab": ("d", b""), "ab/later.py": ("-", b"after the restore")}


def test_undo_takes_back_one_restore_after_another(tmp_path: Path) -> None:
    scene, path = pinned_file(tmp_path, "keep = true")
    scene.accept()
    for text in ("x = 2\n", "x = 3\n"):
        path.write_text(text)
        restored(scene)
    scene.lockd("restore", "--undo")
    assert path.read_text() == "x = 3\n"
    scene.lockd("restore", "--undo")
    assert path.read_text() == "x = 2\n"
    answer = scene.lockd("restore", "--undo")
    assert answer.code == 1 and "no restore" in answer.err


def test_gc_keeps_what_undo_needs(tmp_path: Path) -> None:
    scene, path = pinned_file(tmp_path, "keep = true")
    scene.accept()
    path.write_text("x = 2\n")
    restored(scene)
    scene.lockd("gc", "--keep", "1")
    scene.lockd("restore", "--undo")
    assert path.read_text() == "x = 2\n"


# -- safety


def test_a_link_put_on_the_way_is_refused_before_anything_changes(tmp_path: Path) -> None:
    scene = Near(tmp_path)
    path, other = scene.file("job/a/model.py"), scene.file("job/b/model.py")
    scene.write_policy(f'[[file]]\npath = "{tmp_path}/job/*/model.py"\nkeep = true\n')
    scene.accept()
    other.write_text("x = 2\n")
    victim = tmp_path / "victim"
    victim.mkdir()
    shutil.rmtree(path.parent)
    path.parent.symlink_to(victim)
    answer = scene.lockd("restore", "--apply")
    assert answer.code == 3 and "link" in answer.err and str(path.parent) in answer.err
    assert list(victim.iterdir()) == [] and other.read_text() == "x = 2\n"


def test_a_link_in_place_of_a_kept_folder_is_replaced_not_followed(tmp_path: Path) -> None:
    scene, cache = cache_scene(tmp_path)
    good = tree(cache)
    victim = tmp_path / "victim"
    shutil.move(cache / "triton", victim)
    (cache / "triton").symlink_to(victim)
    (victim / "0/KEY/k.cubin").write_text("planted")
    restored(scene)
    assert tree(cache) == good and (victim / "0/KEY/k.cubin").read_text() == "planted"
    scene.lockd("restore", "--undo")
    assert os.readlink(cache / "triton") == str(victim)


def test_setuid_is_never_put_back(tmp_path: Path) -> None:
    scene, path = pinned_file(tmp_path, "keep = true")
    path.chmod(0o4755)
    scene.accept()
    path.write_text("x = 2\n")
    restored(scene)
    assert path.stat().st_mode & 0o7777 == 0o755


def test_a_hard_link_elsewhere_keeps_its_bytes(tmp_path: Path) -> None:
    """An installer's cache shares inodes with environments: putting a file back must not write through."""
    scene, path = pinned_file(tmp_path, "keep = true")
    scene.accept()
    path.write_text("x = 2\n")
    os.link(path, tmp_path / "elsewhere")
    restored(scene)
    assert (tmp_path / "elsewhere").read_text() == "x = 2\n"


def test_damaged_content_is_not_put_anywhere(tmp_path: Path) -> None:
    scene, path = pinned_file(tmp_path, "keep = true")
    scene.accept()
    path.write_text("x = 2\n")
    import hashlib
    import zlib

    digest = hashlib.sha256(b"x = 1\n").hexdigest()
    (found,) = scene.state.glob(f"*/objects/*/{digest}")
    found.write_bytes(zlib.compress(b"evil!\n"))
    answer = scene.lockd("restore", "--apply")
    assert answer.code == 3 and "locked ones" in answer.err
    assert path.read_text() == "x = 2\n" and os.listdir(path.parent) == ["model.py"]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file to somebody else")
def test_root_restores_as_the_owner_of_the_tree(tmp_path: Path) -> None:
    scene, path = pinned_file(tmp_path, "keep = true")
    os.chown(path.parent, 1234, 1234)
    os.chown(path, 1234, 1234)
    scene.accept()
    path.unlink()
    restored(scene)
    assert (path.stat().st_uid, path.stat().st_gid) == (1234, 1234)


def test_a_launch_that_runs_is_not_pulled_from_under(tmp_path: Path) -> None:
    scene, path = pinned_file(tmp_path)
    script = scene.file("job/train.py", "import sys\nsys.stdin.read()\n")
    scene.write_policy(f'[launch]\nscripts = ["{script}"]\n[[file]]\npath = "{path}"\nkeep = true\n')
    scene.accept()
    path.write_text("x = 2\n")
    with subprocess.Popen([sys.executable, "train.py"], cwd=script.parent, stdin=subprocess.PIPE) as job:
        assert job.stdin is not None
        try:
            answer = scene.lockd("restore", "--apply")
            assert answer.code == 1 and str(job.pid) in answer.err and "--force" in answer.err
            assert path.read_text() == "x = 2\n"
            assert scene.lockd("restore").code == 0  # a plan is only read
            assert scene.lockd("restore", "--apply", "--force").code == 0
        finally:
            job.stdin.close()
    path.write_text("x = 2\n")
    restored(scene)


def test_a_recorded_run_is_a_launch_whatever_it_started(tmp_path: Path) -> None:
    """`lockd run -- CMD` of no script that the policy names: /proc alone would not tell it from a shell."""
    scene, path = pinned_file(tmp_path, "keep = true")
    scene.accept()
    words = {"PATH": os.environ["PATH"], "LOCKD_STATE": str(scene.state), "LOCKD_POLICY": str(scene.policy)}
    command = [*LOCKD, "run", "--", "sh", "-c", "echo started; read line"]
    with subprocess.Popen(command, env=words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as job:
        assert job.stdin is not None and job.stdout is not None and job.stdout.readline() == b"started\n"
        path.write_text("x = 2\n")
        try:
            answer = scene.lockd("restore", "--apply")
            assert answer.code == 1 and f"run:1, pid {job.pid}: sh -c" in answer.err, answer.err
            assert path.read_text() == "x = 2\n"
        finally:
            job.stdin.close()
    restored(scene)


# -- killed anywhere


def restores_whole_after_a_kill(tmp_path: Path, points: int) -> None:
    """Killed anywhere, a second run ends whole, leaves nothing half-written, and undo brings back what was there."""
    scene, cache = cache_scene(tmp_path, 'change = "exact"')
    path = scene.file("job/model.py", "x = 1\n")
    with scene.policy.open("a") as policy:
        policy.write(f'[[file]]\npath = "{path}"\nkeep = true\n')
    scene.accept()
    good = tree(cache), tree(path.parent)

    def spoil(number: int) -> None:
        path.unlink()
        path.mkdir()
        (path / "thought.txt").write_text(f"mine {number}")
        (cache / "ab/cabc.py").write_text(f"bad {number}")
        (cache / "ab/cnew.py").write_text(f"new {number}")
        shutil.rmtree(cache / "triton")

    for number in (-2, -1):  # the second one is like those that follow
        spoil(number)
        total = changes_of(scene, "restore", "--apply")
    hits, chance = 0, random.Random(points)
    for number in range(4 * points):
        spoil(number)
        bad = contents(cache), contents(path.parent)
        hits += killed(scene, chance.randint(1, total), "restore", "--apply")
        restored(scene)
        assert (tree(cache), tree(path.parent)) == good
        assert scene.lockd("restore", "--undo").code == 1
        assert (contents(cache), contents(path.parent)) == bad
        restored(scene)
        if hits == points:
            break
    assert hits == points
    assert journal.unfinished(state_of(scene)) is None


def test_a_restore_that_is_killed_goes_on(tmp_path: Path) -> None:
    restores_whole_after_a_kill(tmp_path, 3)


@pytest.mark.slow
def test_a_restore_that_is_killed_at_fifty_points(tmp_path: Path) -> None:
    restores_whole_after_a_kill(tmp_path, 50)
