"""A mount whose server is silent: bounded waits, `unknown` with its reason, and nothing hangs. A real FUSE mount."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from lockd import policy_check
from lockd.look import look_at
from lockd.probes import mounted
from lockd.rules import CacheRule, FileRule, TreeRule
from tests.deadmount import dead_mount
from tests.probing import looking, policy

LOCKD = [sys.executable, "-m", "lockd"]
BOUND = 30.0  # seconds for a command on a busy machine; one that hangs never ends


@pytest.fixture
def dead(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A mount point whose server is silent."""
    monkeypatch.setattr(mounted, "SECONDS", 0.5)
    monkeypatch.setattr(mounted, "_known", {})
    try:
        with dead_mount(tmp_path / "dead") as point:
            yield point
    except (PermissionError, FileNotFoundError) as error:
        pytest.skip(f"needs root and /dev/fuse: {error}")


def test_a_tree_on_a_dead_mount_is_unknown_by_every_way_to_it(dead: Path) -> None:
    above = dead.parent
    (above / "link").symlink_to("dead/data")
    (above / "up").symlink_to(above / "x" / ".." / "link")
    (above / "x").mkdir()
    ways = [dead, dead / "data" / "a", above / "link" / "b", above / "up", above]
    held = policy(tree=tuple(TreeRule(str(way)) for way in ways), file=(FileRule(f"{dead}/*.json"),))
    began = time.monotonic()
    facts = look_at(looking(held)).facts
    assert time.monotonic() - began < 5  # one question for all of them
    reason = f"{dead} (fuse) gave no answer within 0.5 s"
    names = [f"tree:{way}" for way in ways] + [f"file:{dead}/*.json"]
    assert {name: getattr(facts[name], "reason", None) for name in names} == dict.fromkeys(names, reason)


def test_what_lies_beside_a_dead_mount_is_read(dead: Path) -> None:
    beside = dead.parent / "deadly"  # its name begins as the mount's does
    beside.mkdir()
    (beside / "x").write_text("1")
    facts = look_at(looking(policy(tree=(TreeRule(str(beside)),)))).facts
    assert facts[f"tree:{beside}"].attributes["files"] == 1  # type: ignore[union-attr]


def test_a_mount_that_answers_with_an_error_is_not_silent(dead: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gone = mounted.Mount(str(dead.parent / "gone"), "nfs4", "7")  # `stat` says ENOENT at once
    assert mounted.answers(gone) == ""
    monkeypatch.setattr(mounted, "_known", {})
    assert "gave no answer" in mounted.answers(mounted.Mount(str(dead), "fuse", "8"))


def test_policy_check_says_it_and_ends(dead: Path) -> None:
    held = policy(cache=(CacheRule(f"{dead}/c", "inductor"),))
    assert any("cache[0].path" in line and "gave no answer" in line for line in policy_check.regrets(held))


def test_only_foreign_file_systems_are_asked(tmp_path: Path) -> None:
    table = tmp_path / "mountinfo"
    rows = ["1 0 8:1 / / rw - ext4 /dev/sda rw", "2 1 0:5 / /mnt/a\\040b rw shared:1 - nfs4 srv:/x rw"]
    rows += ["3 1 0:6 / /auto rw - autofs systemd-1 rw", "4 1 0:7 / /f rw - fuse.sshfs s rw", "torn"]
    table.write_text("\n".join(rows) + "\n")
    assert [(one.point, one.kind) for one in mounted.foreign(str(table))] == [
        ("/mnt/a b", "nfs4"),
        ("/f", "fuse.sshfs"),
    ]
    assert mounted.foreign(str(tmp_path / "none")) == ()


def test_a_link_that_leads_in_circles_ends(dead: Path) -> None:
    (dead.parent / "a").symlink_to("b")
    (dead.parent / "b").symlink_to("a")
    assert mounted.silent(str(dead.parent / "a" / "c")) == ""


def test_verify_accept_doctor_and_the_daemon_do_not_hang(tmp_path: Path) -> None:
    shutil.copy(sys.executable, tmp_path / "some.bin")
    rules = [f'[[{kind}]]\npath = "{tmp_path}/dead/{kind}"\n' for kind in ("tree", "git", "file")]
    rules += [f'[[python]]\nname = "t"\npath = "{tmp_path}/dead/venv"\n', f'[[file]]\npath = "{tmp_path}/some.bin"\n']
    written = tmp_path / "p.toml"
    written.write_text('schema = 1\nname = "dead"\n' + "".join(rules))
    env = {**os.environ, "LOCKD_STATE": str(tmp_path / "state"), "LOCKD_RUNTIME": str(tmp_path / "run")}

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        command = [*LOCKD, "--policy", str(written), *words]
        return subprocess.run(command, env=env, capture_output=True, text=True, timeout=BOUND, check=False)

    try:
        with dead_mount(tmp_path / "dead"):
            verified = run("verify")
            assert verified.returncode == 3 and verified.stdout.count("gave no answer within 3 s") == 4
            accepted = run("accept", "-m", "x", "--yes")
            assert accepted.returncode == 3 and "could not be read" in accepted.stderr
            assert "mounts: p.toml" in run("doctor").stdout
            daemon = subprocess.Popen([*LOCKD, "--policy", str(written), "daemon"], env=env, stderr=subprocess.DEVNULL)
            try:
                end = time.monotonic() + BOUND
                while "pid " not in (told := run("status").stdout) and time.monotonic() < end:
                    time.sleep(0.2)
                assert f"pid {daemon.pid}" in told and "gave no answer" in told
                assert run("verify").returncode == 3
            finally:
                daemon.terminate()
                assert daemon.wait(BOUND) == 0
    except (PermissionError, FileNotFoundError) as error:
        pytest.skip(f"needs root and /dev/fuse: {error}")


def test_without_foreign_mounts_a_look_asks_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mounted, "MOUNTINFO", str(tmp_path / "none"))
    monkeypatch.setattr("lockd.probes.bounded.ask", lambda *_: pytest.fail("asked"))
    assert f"tree:{tmp_path}" in look_at(looking(policy(tree=(TreeRule(str(tmp_path)),)))).facts
