"""`lockd run` with a daemon up: the daemon looks, decides and records; where it is not the one to ask, lockd does."""

from __future__ import annotations

import grp
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.daemons import GOOD, Daemon, daemon, scene, until
from tests.scene import LOCKD, Scene, pinned_file

__all__ = ["daemon", "scene"]  # fixtures


def runs(scene: Scene) -> list[dict[str, Any]]:
    return list(scene.lockd("runs", "--json").document)


def tickets(scene: Scene) -> list[str]:
    """Pids of launches that the daemon let go: it alone gives `lockd run` a ticket."""
    return [path.name for path in scene.state.glob("*/launches/*")]


def test_the_daemon_decides_and_records_the_very_process(scene: tuple[Scene, Path], daemon: Daemon) -> None:
    made, _ = scene
    answer = made.lockd("run", "--", "sh", "-c", "echo $$; exit 7")
    assert (answer.code, answer.err) == (7, "")
    assert tickets(made) == [answer.out.strip()]
    (run,) = runs(made)
    assert (run["gate"], run["verdict"], run["argv"][0]) == ("run", "ok", "sh")


def test_an_edit_is_refused_at_once(scene: tuple[Scene, Path], daemon: Daemon) -> None:
    made, path = scene
    for _ in range(3):  # the answer is never older than the edit
        path.write_text("x = 2\n")
        answer = made.lockd("run", "--", "echo", "started")
        assert (answer.code, answer.out) == (78, "")
        assert answer.err.startswith("lockd: refused: 1 finding blocks this launch") and str(path) in answer.err
        path.write_text(GOOD)
        assert made.lockd("run", "--", "true").code == 0
    assert len(tickets(made)) and [row["kind"] for row in made.lockd("log", "--json").document].count("refuse") == 3


def test_an_override_goes_through_the_daemon(scene: tuple[Scene, Path], daemon: Daemon) -> None:
    made, path = scene
    path.write_text("x = 2\n")
    answer = made.lockd("run", "--override", "deadline", "--", "echo", "started")
    assert (answer.code, answer.out) == (0, "started\n") and "deadline" in answer.err
    (run,) = runs(made)
    assert run["verdict"] == "block" and len(tickets(made)) == 1


def test_what_it_starts_passes_after_drift(scene: tuple[Scene, Path], daemon: Daemon) -> None:
    made, path = scene
    inner = [*LOCKD, "run", "--", "echo", "inner"]
    code = f"import subprocess, sys; open({str(path)!r}, 'w').write('x = 2'); sys.exit(subprocess.call({inner!r}))"
    answer = made.lockd("run", "--", sys.executable, "-S", "-c", code)
    assert (answer.code, answer.out) == (0, "inner\n")
    assert len(runs(made)) == 1


def test_what_the_kernel_refuses_ends_the_run_that_the_daemon_recorded(
    scene: tuple[Scene, Path], daemon: Daemon
) -> None:
    made, _ = scene
    script = made.file("bad.sh", "#!/nowhere/interpreter\n")
    script.chmod(0o755)
    assert made.lockd("run", "--", str(script)).code == 127
    (run,) = runs(made)
    assert run["exit"] == 127


def test_a_stopped_daemon_is_not_waited_for_and_records_nothing_later(
    scene: tuple[Scene, Path], daemon: Daemon
) -> None:
    made, path = scene
    daemon.process.send_signal(signal.SIGSTOP)
    try:
        assert made.lockd("run", "--", "true").code == 0
        path.write_text("x = 2\n")
        assert made.lockd("run", "--", "true").code == 78
        assert tickets(made) == []
    finally:
        daemon.process.send_signal(signal.SIGCONT)
    daemon.wait_for("block")  # by then it has read what was asked meanwhile
    assert len(runs(made)) == 1
    assert [row["kind"] for row in made.lockd("log", "--json").document].count("refuse") == 1


@pytest.mark.parametrize(
    ("options", "env"),
    [(("--trust-unmapped",), {}), (("--wait",), {}), ((), {"LOCKD_STATE": "{root}/elsewhere"})],
)
def test_lockd_decides_itself_where_the_daemon_is_not_the_one_to_ask(
    scene: tuple[Scene, Path], daemon: Daemon, options: tuple[str, ...], env: dict[str, str]
) -> None:
    made, _ = scene
    env = {name: value.format(root=made.root) for name, value in env.items()}
    assert made.lockd("run", *options, "--", "true", env=env).code == 0
    assert tickets(made) == []
    assert len(made.lockd("runs", "--json", env=env).document) == 1


def test_a_large_environment_is_looked_at_directly(scene: tuple[Scene, Path], daemon: Daemon) -> None:
    """More than one message may have: the limit is the daemon's, not the launch's."""
    made, _ = scene
    env = {f"LARGE_{number}": "x" * 100_000 for number in range(12)}
    assert made.lockd("run", "--", "true", env=env).code == 0
    assert tickets(made) == [] and len(runs(made)) == 1


def test_a_member_of_the_group_launches_and_overrides_in_roots_state(tmp_path: Path) -> None:
    if os.geteuid() != 0 or shutil.which("setpriv") is None:
        pytest.skip("needs root and setpriv, to become somebody else")
    made, path = pinned_file(tmp_path)
    made.write_policy(f'[launch]\noverride_group = "{grp.getgrgid(1).gr_name}"\n[[file]]\npath = "{path}"\n')
    assert made.accept().code == 0
    who = ("setpriv", "--reuid=65534", "--regid=1", "--clear-groups")
    can_read = ("--inh-caps=+dac_read_search", "--ambient-caps=+dac_read_search")  # the scene lies in a closed folder
    env = {"PATH": os.environ["PATH"], "LOCKD_RUNTIME": str(made.root / "run"), "HOME": "/nonexistent"}

    def run(*words: str) -> int:
        argv = [*who, *can_read, "--", *LOCKD, "--policy", str(made.policy), "run", *words, "--", "true"]
        return subprocess.run(argv, env=env, cwd="/", capture_output=True).returncode

    with Daemon(made) as running:
        running.ready()
        assert run() == 0
        path.write_text("x = 2\n")
        assert run() == 78
        assert run("--override", "deadline") == 0
    told = runs(made)
    assert [(row["user"], row["verdict"]) for row in told] == [("nobody", "block"), ("nobody", "ok")]
    assert any(
        row["kind"] == "override" and "deadline" in row["message"] for row in made.lockd("log", "--json").document
    )


def test_a_daemon_killed_between_two_launches(scene: tuple[Scene, Path], daemon: Daemon) -> None:
    made, _ = scene
    assert made.lockd("run", "--", "true").code == 0
    daemon.stop(signal.SIGKILL)
    assert made.lockd("run", "--", "true").code == 0
    until(lambda: len(runs(made)) == 2, "both runs")
