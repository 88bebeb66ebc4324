"""Faults that were found by attacking gates, runs and restore, each kept from coming back: SIGCHLD ignored, secrets in
odd arguments, processes without a start, odd counts, a full output, links in a restore's way."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from lockd import lineage, secrets
from tests.restoring import Near
from tests.scene import LOCKD, Answer, Scene, pinned_file
from tests.wheels import build_venv

SECRET = "SEKRIT9"


@pytest.fixture
def good(tmp_path: Path) -> Scene:
    """A pinned file, accepted."""
    scene, _ = pinned_file(tmp_path)
    assert scene.accept().code == 0
    return scene


def lockd_under(scene: Scene, prelude: str, *args: str) -> Answer:
    """lockd, executed by a process that ran `prelude` first and left what it set to it."""
    words = {"PATH": os.environ["PATH"], "HOME": str(scene.root / "home"), "LOCKD_STATE": str(scene.state)}
    words |= {"LOCKD_RUNTIME": str(scene.root / "run"), "LOCKD_POLICY": str(scene.policy)}
    code = f"import os, signal, sys\n{prelude}\nos.execv(sys.argv[1], sys.argv[1:])"
    done = subprocess.run(
        [sys.executable, "-c", code, *LOCKD, *args], env=words, cwd=scene.root, capture_output=True, timeout=60
    )
    return Answer(done.returncode, done.stdout.decode(), done.stderr.decode())


# -- lockd run


@pytest.mark.parametrize("how", [("--wait",), ("--metric", "x=y")])
def test_the_exit_code_is_seen_where_sigchld_is_ignored(good: Scene, how: tuple[str, ...]) -> None:
    ignored = "signal.signal(signal.SIGCHLD, signal.SIG_IGN)"
    show = "import signal, sys; print(signal.getsignal(signal.SIGCHLD) == signal.SIG_IGN); sys.exit(3)"
    answer = lockd_under(good, ignored, "run", *how, "--", sys.executable, "-c", show)
    assert (answer.code, answer.out, answer.err) == (3, "True\n", "")
    (run,) = good.lockd("runs", "--json").document
    assert run["exit"] == 3 and not run["running"]


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="this system has no /dev/full")
def test_output_that_can_not_be_written_is_said(good: Scene) -> None:
    full = "os.dup2(os.open('/dev/full', os.O_WRONLY), 1)"
    answer = lockd_under(good, full, "run", "--metric", "x=y", "--", "sh", "-c", "echo a; sleep 1; echo b; exit 4")
    assert "the command's output could not be written: No space left on device" in answer.err


def test_a_process_whose_start_nobody_told_ends_with_its_pid() -> None:
    own = {"pid": os.getpid(), "boot": lineage.boot()}
    child = subprocess.Popen(["true"])
    child.wait()
    assert lineage.alive(own) is None
    assert lineage.alive({**own, "pid": child.pid}) is False
    assert lineage.alive({"pid": child.pid}) is False
    assert lineage.alive({**own, "boot": "another"}) is False


# -- secrets


@pytest.mark.parametrize(
    "argv",
    [
        ("train", f"--token=a words {SECRET}"),
        ("train", f"--api-key=x,{SECRET};y"),
        ("train", f"HF_TOKEN=q'{SECRET}"),
        ("train", f'--password="x {SECRET}'),
        ("train", f"+trainer.api_key=a {SECRET}"),
        ("train", f'{{"api_key": "{SECRET}", "lr": 1}}'),
        ("train", f'{{"password":"a\\"{SECRET}"}}'),
        ("train", f"api_key: {SECRET}"),
        ("sh", "-c", f"echo\nTOKEN={SECRET} train"),
        ("python", "-c", f"import os; os.environ['HF_TOKEN'] = '{SECRET}'"),
        ("train", f'env = {{HF_TOKEN = "{SECRET}"}}'),
    ],
)
def test_secrets_of_odd_arguments_reach_no_record(good: Scene, argv: tuple[str, ...]) -> None:
    assert SECRET not in " ".join(secrets.mask_argv(argv))
    assert good.lockd("run", "--", "true", *argv).code == 0
    Path(good.root, "job/model.py").write_text("x = 2\n")
    assert good.lockd("run", "--", "true", *argv).code == 78
    told = [good.lockd(*words) for words in (("runs",), ("runs", "--json"), ("log",), ("log", "--json"))]
    assert not any(SECRET in answer.out + answer.err for answer in told)
    kept = [path for path in good.state.rglob("*") if path.is_file()]
    assert kept and not any(SECRET.encode() in path.read_bytes() for path in kept)


@pytest.mark.parametrize("text", ["a" * 200_000, "'" * 200_000, 'key="' * 50_000, "key" + " " * 200_000, "a:" * 90_000])
def test_no_argument_takes_long_to_mask(text: str) -> None:
    """Quadratic patterns would not come to an end within the test's time: a minute for the first of these."""
    before = signal.signal(signal.SIGALRM, signal.default_int_handler)
    signal.alarm(30)
    try:
        secrets.mask(text)
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


# -- messages and numbers


def test_a_broken_lock_never_tells_a_gate_s_reader_to_accept(good: Scene) -> None:
    good.lock.write_text("garbage")
    answer = good.lockd("run", "--", "true")
    assert answer.code == 125 and "accept anew" not in answer.err and "git checkout" in answer.err


def test_any_count_of_log_entries(good: Scene) -> None:
    assert good.lockd("log", "--max", "-1").code == 2
    assert len(good.lockd("log", "--json", "--max", "9" * 30).document) == 1


# -- restore


@pytest.mark.parametrize("keep", ["true", "false"])
def test_nothing_goes_through_a_link_in_a_cache_s_place(tmp_path: Path, keep: str) -> None:
    scene, cache, victim = Near(tmp_path), tmp_path / "cache", tmp_path / "victim"
    scene.file("cache/entry", "1")
    scene.write_policy(f'[[cache]]\npath = "{cache}"\nkind = "directory"\nchange = "exact"\nkeep = {keep}\n')
    assert scene.accept().code == 0
    scene.file("victim/other", "v")
    shutil.rmtree(cache)
    cache.symlink_to(victim)
    scene.lockd("restore", "--apply")
    assert (victim / "other").read_text() == "v"
    if keep == "true":
        assert not cache.is_symlink() and os.listdir(cache) == ["entry"]
    else:
        assert "is a link to" in scene.lockd("restore").out


def test_a_cache_that_was_accepted_behind_a_link_is_put_back_there(tmp_path: Path) -> None:
    scene, cache = Near(tmp_path), tmp_path / "cache"
    entry = scene.file("disk/entry", "1")
    cache.symlink_to(tmp_path / "disk")
    scene.write_policy(f'[[cache]]\npath = "{cache}"\nkind = "directory"\nchange = "exact"\nkeep = true\n')
    assert scene.accept().code == 0
    entry.unlink()
    new = scene.file("disk/new", "2")
    assert scene.lockd("restore", "--apply").code == 0
    assert entry.read_text() == "1" and not new.exists() and cache.is_symlink()


def test_nothing_goes_through_a_link_in_a_site_folder_s_place(tmp_path: Path) -> None:
    env, scene, victim = build_venv(tmp_path / "venv"), Near(tmp_path), tmp_path / "victim"
    scene.write_policy(f'[[python]]\nname = "train"\npath = "{env.prefix}"\nextra = "block"\nunowned = "block"\n')
    assert scene.accept().code == 0
    scene.file("victim/other.py", "v")
    env.site.rename(tmp_path / "away")
    env.site.symlink_to(victim)
    assert "behind a link" in scene.lockd("restore").out
    scene.lockd("restore", "--apply")
    assert (victim / "other.py").read_text() == "v"
