"""Slurm's gates: the scripts, and on a real slurmctld and slurmd what becomes of jobs and of the node."""

from __future__ import annotations

import stat
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from lockd.errors import RefusedError
from lockd.gates import slurm
from tests import gate_matrix as matrix
from tests.gating import finds_lockd
from tests.scene import Scene
from tests.slurm import NODE, Slurm, cluster


def test_scripts_come_and_go(tmp_path: Path) -> None:
    folder = tmp_path / "slurm"
    told = slurm.install(str(folder), "/etc/lockd/my policy.toml", trust_unmapped=True)
    assert f"TaskProlog={folder}/task-prolog" in told.text and "HealthCheckProgram=" in told.text
    for name in ("task-prolog", "health-check"):
        assert stat.S_IMODE((folder / name).stat().st_mode) == 0o755
        assert "--policy '/etc/lockd/my policy.toml'" in (folder / name).read_text()
    assert slurm.status(str(folder)).sound
    (folder / "task-prolog").write_text("#!/bin/sh\n")
    assert not slurm.status(str(folder)).sound
    with pytest.raises(RefusedError):
        slurm.install(str(folder), "/p.toml")
    (folder / "task-prolog").unlink()
    assert not slurm.remove(str(folder)).installed and not folder.exists()
    assert not slurm.status(str(folder)).sound


def test_the_command(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    scene.write_policy(f'[[file]]\npath = "{scene.file("job/model.py")}"\n')
    words = ("slurm", "--folder", str(tmp_path / "slurm"))
    assert scene.lockd("gate", "install", *words).code == 0
    assert scene.lockd("gate", "status", *words).code == 0
    assert scene.lockd("gate", "remove", *words).code == 0
    assert scene.lockd("gate", "status", *words).code == 1


@pytest.fixture(scope="module")
def gated(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Scene, Slurm]]:
    """A cluster whose steps ask about job/model.py, and whose node about the kernel."""
    if not finds_lockd():
        pytest.skip("lockd is not installed for this Python, so Slurm could not start it")
    root = tmp_path_factory.mktemp("slurm")
    scene = Scene(root)
    scene.file("job/model.py")
    _policy(scene)
    folder = root / "gates"
    with cluster(root, f"TaskProlog={folder}/task-prolog") as one:
        assert scene.accept().code == 0
        assert scene.lockd("gate", "install", "slurm", "--folder", str(folder)).code == 0
        yield scene, one


def _policy(scene: Scene, kernel: str = '"locked"') -> None:
    scene.file("job/notes.py", "n = 1\n")
    notes = f'[[file]]\npath = "{scene.root}/job/notes.py"\non_drift = "warn"\n'
    scene.write_policy(f'[host]\nkernel = {kernel}\n[[file]]\npath = "{scene.root}/job/model.py"\n{notes}')


@pytest.mark.slurm
@pytest.mark.parametrize("verdict", matrix.VERDICTS)
@pytest.mark.parametrize("state", matrix.DAEMONS)
@pytest.mark.parametrize("way", ["`srun`", "`sbatch`"])
def test_a_cell(gated: tuple[Scene, Slurm], way: str, state: str, verdict: str) -> None:
    """Rows of the matrix in docs/gates.md. The TaskProlog looks itself, beside whatever daemon has the same state."""
    scene, one = gated
    scene.file("job/model.py")
    scene.file("job/notes.py", "n = 1\n")
    with matrix.verdict(scene, verdict), matrix.daemon_is(scene, state) as started:
        threading.Thread(target=started, daemon=True).start()
        if way == "`srun`":
            done = one.run("srun", "-n1", "echo", "trained")
            code, text = done.returncode, done.stdout + done.stderr
        else:
            told, text = _batch(one, f"cell-{verdict}", "echo trained")
            code = int(told.partition(" ExitCode=")[2].partition(":")[0])
    wanted = matrix.way(f"Slurm {way}").outcomes[matrix.VERDICTS.index(verdict)]
    found = f"FAILED {code}:0" if code else matrix.WARNED if "lockd: " in text else matrix.STARTS
    assert found == wanted and ("trained" in text) is (code == 0), text
    assert one.wait_for("idle", "drained") == "idle"


@pytest.mark.slurm
def test_srun(gated: tuple[Scene, Slurm]) -> None:
    scene, one = gated
    scene.file("job/model.py")
    before = len(scene.lockd("runs", "--json").document)
    done = one.run("srun", "-n2", "echo", "trained")
    assert (done.returncode, done.stdout) == (0, "trained\n" * 2), done.stderr
    run, *rest = scene.lockd("runs", "--json").document
    assert len(rest) == before  # two tasks of one step are one launch
    assert run["gate"] == "slurm" and run["verdict"] == "ok"
    scene.file("job/model.py", "x = 2\n")
    done = one.run("srun", "-n1", "echo", "trained")
    assert done.returncode != 0 and "trained" not in done.stdout
    assert "lockd: refused" in done.stdout + done.stderr and "model.py" in done.stdout + done.stderr
    assert one.wait_for("idle", "drained") == "idle"


@pytest.mark.slurm
def test_sbatch(gated: tuple[Scene, Slurm]) -> None:
    scene, one = gated
    scene.file("job/model.py")
    assert _batch(one, "good", "echo trained")[1] == "trained\n"
    scene.file("job/model.py", "x = 2\n")
    state, out = _batch(one, "bad", "echo trained")
    assert "FAILED" in state and "lockd: refused" in out and "trained" not in out
    assert one.wait_for("idle", "drained") == "idle"


@pytest.mark.slurm
def test_a_job_that_runs_is_left_alone(gated: tuple[Scene, Slurm]) -> None:
    scene, one = gated
    scene.file("job/model.py")
    drift = f"echo x = 3 > {scene.root}/job/model.py"
    state, out = _batch(one, "drifts", f"{drift}; sleep 1; echo trained")
    assert "COMPLETED" in state and out == "trained\n"


@pytest.mark.slurm
def test_a_job_s_variables_move_nothing(gated: tuple[Scene, Slurm]) -> None:
    scene, one = gated
    scene.file("job/model.py", "x = 2\n")
    done = one.run("srun", "-n1", "true", env={"LOCKD_POLICY": "/nowhere", "LOCKD_STATE": str(scene.root / "else")})
    assert done.returncode != 0 and not (scene.root / "else").exists()


@pytest.mark.slurm
def test_the_health_check_drains_and_resumes(gated: tuple[Scene, Slurm]) -> None:
    scene, one = gated
    scene.file("job/model.py", "x = 2\n")  # a job's fault: the node stays
    assert _health(scene, one) == "idle"
    _policy(scene, kernel='"0.0.1"')
    assert _health(scene, one) == "drained"
    assert "lockd:" in one.run("scontrol", "show", "node", NODE).stdout
    _policy(scene)
    assert _health(scene, one) == "idle"
    one.run("scontrol", "update", f"NodeName={NODE}", "State=DRAIN", "Reason=memory")
    assert _health(scene, one) == "drained"  # somebody else's reason
    one.run("scontrol", "update", f"NodeName={NODE}", "State=RESUME")


def _health(scene: Scene, one: Slurm) -> str:
    done = one.run(str(scene.root / "gates" / "health-check"))
    assert done.returncode == 0, done.stderr
    return one.node()


def _batch(one: Slurm, name: str, script: str) -> tuple[str, str]:
    """State of the job when it is over, and its output."""
    path, out = one.root / f"{name}.sh", one.root / f"{name}.log.txt"
    path.write_text(f"#!/bin/sh\n{script}\n")
    number = one.run("sbatch", "--parsable", "-o", str(out), str(path)).stdout.strip()
    end = time.monotonic() + 60
    while True:
        told = one.run("scontrol", "show", "job", number).stdout
        if "JobState=COMPLETED" in told or "JobState=FAILED" in told:
            return told, out.read_text() if out.exists() else ""
        assert time.monotonic() < end, told
        time.sleep(0.2)


def test_a_broken_policy_is_one_line_on_the_node(tmp_path: Path) -> None:
    """Neither script ever shows a traceback: slurmd would keep it, and the reason would be lost in it."""
    for deed in ("task", "health"):
        command = [sys.executable, "-I", "-m", "lockd.gates.slurm", deed, "--policy", str(tmp_path / "none.toml")]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode != 0 and "Traceback" not in done.stderr
        assert "none.toml" in done.stderr + done.stdout
