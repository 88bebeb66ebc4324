"""`lockd status`: with a daemon and without one, and what the running launches loaded."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from lockd import running
from tests.daemons import Daemon, edit, until
from tests.scene import Scene, pinned_file

JOB = "import mmap, os, sys, time\nf = open(sys.argv[1], 'rb')\nm = mmap.mmap(f.fileno(), 0, prot=mmap.PROT_READ)\n"
JOB += "print(1, flush=True)\nsys.stdin.read()\n"


@pytest.fixture
def job(tmp_path: Path) -> Iterator[tuple[Scene, Path, Path]]:
    """A scene whose pinned script runs, with a library of its own mapped."""
    scene, script = pinned_file(tmp_path)
    script.write_text(JOB)
    library = scene.file("job/libjob.so", "machine code")
    scene.write_policy(f'[launch]\nscripts = ["{script}"]\n[[file]]\npath = "{script}"\n[[file]]\npath = "{library}"\n')
    assert scene.accept().code == 0
    argv = [sys.executable, "-S", str(script), str(library)]
    process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        assert process.stdout and process.stdout.readline() == b"1\n"
        yield scene, script, library
    finally:
        process.communicate()


def test_without_a_daemon_it_looks_itself(job: tuple[Scene, Path, Path]) -> None:
    scene, script, _ = job
    answer = scene.lockd("status", "--json")
    assert answer.code == 0
    told = answer.document
    assert told["verdict"] == "ok" and told["daemon"] is None
    (one,) = told["running"]
    assert one["script"] == str(script) and one["as_on_disk"] is True and one["mapped"] > 1
    text = scene.lockd("status")
    assert text.code == 0 and "none answers" in text.out and "those on disk" in text.out


def test_who_reads_the_script_is_no_launch_and_an_interpreter_of_any_name_is(tmp_path: Path) -> None:
    """A pager on the script runs nothing; a Python under another name does."""
    from lockd import launched, policy

    scene, script = pinned_file(tmp_path)
    script.write_text("import _json, select, sys\nprint(1, flush=True)\nsys.stdin.read()\n")
    scene.write_policy(f'[launch]\nscripts = ["{script}"]\n[[file]]\npath = "{script}"\n')
    renamed = tmp_path / "bin" / "trainer"
    renamed.parent.mkdir()
    shutil.copy(Path(sys.executable).resolve(), renamed)
    pipe, home = subprocess.PIPE, {"PYTHONHOME": sys.base_prefix}
    tail = subprocess.Popen(["tail", "-f", str(script)], stdin=pipe, stdout=pipe)
    job = subprocess.Popen([str(renamed), "-S", str(script)], stdin=pipe, stdout=pipe, env=home)
    try:
        assert tail.stdout and tail.stdout.readline() and job.stdout and job.stdout.readline()
        assert [one["pid"] for one in scene.lockd("status", "--json").document["running"]] == [job.pid]
        assert [pid for pid, _ in launched.launches(policy.load(str(scene.policy)))] == [job.pid]
    finally:
        for one in (tail, job):
            one.kill()
            one.communicate()


def test_exit_code_is_the_verdicts(job: tuple[Scene, Path, Path]) -> None:
    scene, script, _ = job
    script.write_text("x = 2\n")
    assert scene.lockd("status").code == 0
    assert scene.lockd("status", "--exit-code").code == 1
    scene.lock.unlink()
    assert scene.lockd("status", "--exit-code").code == 3


def test_a_library_replaced_under_a_running_job_is_told(job: tuple[Scene, Path, Path]) -> None:
    scene, _, library = job
    new = library.with_name("new")
    shutil.copy(library, new)
    os.replace(new, library)  # equal bytes, another file
    (one,) = scene.lockd("status", "--json").document["running"]
    assert one["replaced"] == [str(library)] and one["as_on_disk"] is False and one["differing"] == []
    library.unlink()
    (one,) = scene.lockd("status", "--json").document["running"]
    assert one["replaced"] == [str(library)] and one["differing"] == [f"file:{library}"]
    assert "gone from disk" in scene.lockd("status").out


def test_with_a_daemon_it_says_all_of_it(job: tuple[Scene, Path, Path]) -> None:
    scene, script, _ = job
    with Daemon(scene) as daemon:
        daemon.ready()
        edit(script, JOB + "\n")
        answer = scene.lockd("status", "--json", "--exit-code")
        told = answer.document
        assert answer.code == 1 and told["verdict"] == "block" and told["settled"] is True
        assert told["daemon"]["pid"] == daemon.process.pid and told["resources"]["rss"] > 0
        assert {one["mode"] for one in told["watch"].values()} <= {"fanotify", "inotify"}
        assert told["looks"]["count"] > 1 and told["looks"]["full"]["age_s"] in (None, *range(100))
        (finding,) = told["findings"]
        assert finding["since"] and finding["by"]["confidence"]
        (one,) = told["running"]
        assert one["script_changed"] is True and one["differing"] == [f"file:{script}"]
        text = scene.lockd("status").out
        assert f"pid {daemon.process.pid}" in text and "since" in text and "was changed after it started" in text


def test_a_launch_that_no_gate_saw_is_recorded_once(job: tuple[Scene, Path, Path]) -> None:
    """With the rounds of a daemon, driven by hand: a real store, a real process."""
    from lockd import check, lock, policy, state
    from lockd.daemon.decide import Standing
    from lockd.daemon.rounds import Rounds
    from lockd.daemon.scribe import Scribe

    class Decider:
        standing: Standing

    scene, script, _ = job
    os.environ["LOCKD_STATE"], before = str(scene.state), os.environ.get("LOCKD_STATE")
    try:
        opened = state.open(str(scene.policy), create=True)
    finally:
        del os.environ["LOCKD_STATE"]
        os.environ.update({"LOCKD_STATE": before} if before else {})
    loaded = policy.load(str(scene.policy))
    report = check.check(loaded, state=opened, lock=lock.read(loaded.lock_path), launch=None)
    decider, said = Decider(), list[str]()
    decider.standing = Standing(report)
    scribe = Scribe(opened, lambda event, **_: said.append(event))
    scribe.start()
    rounds = Rounds(decider, opened, scribe, lambda event, **_: said.append(event), grace=0)  # type: ignore[arg-type]
    for _ in range(4):
        rounds.round()
    assert scribe.flush(20)
    scribe.stop(5)
    assert said == ["launch_ungated"]
    (run,) = scene.lockd("runs", "--json").document
    assert run["gate"] == "none" and str(script) in run["argv"]


def test_maps_are_parsed_as_the_kernel_writes_them() -> None:
    text = (
        "7f00-7f01 r--p 00000000 08:01 42                         /lib/x.so\n"
        "7f01-7f02 r-xp 00001000 08:01 42                         /lib/x.so\n"
        "7f02-7f03 r--p 00000000 00:1f 7                          /a b/with blanks.so (deleted)\n"
        "7f03-7f04 rw-p 00000000 00:00 0                          [heap]\n"
        "7f04-7f05 rw-s 00000000 00:05 9                          /dev/nvidia0\n"
        "7f05-7f06 rw-s 00000000 00:01 3                          /memfd:x (deleted)\n"
        "rubbish\n"
    )
    found = running.parse_maps(text)
    assert [(one.path, one.inode, one.deleted) for one in found] == [
        ("/lib/x.so", 42, False),
        ("/a b/with blanks.so", 7, True),
    ]


def test_only_the_outermost_of_a_launch_is_told(tmp_path: Path) -> None:
    scene, script = pinned_file(tmp_path)
    script.write_text(
        "import subprocess, sys\n"
        "if len(sys.argv) > 1:\n    subprocess.run([sys.executable, '-S', __file__])\n"
        "else:\n    print(1, flush=True); sys.stdin.read()\n"
    )
    scene.write_policy(f'[launch]\nscripts = ["{script}"]\n[[file]]\npath = "{script}"\n')
    argv = [sys.executable, "-S", str(script), "launcher"]
    process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        assert process.stdout and process.stdout.readline() == b"1\n"
        told = until(lambda: scene.lockd("status", "--json").document["running"], "the launch")
        assert [one["pid"] for one in told] == [process.pid]
    finally:
        process.communicate()
