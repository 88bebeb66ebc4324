"""Real launchers over the site hook: torchrun with two ranks, its elastic restart after drift, accelerate."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests import gate_matrix as matrix
from tests.gating import Gated, finds_lockd, write_policy

pytestmark = [pytest.mark.slow, pytest.mark.network]

RANK = """import os, sys, torch, torch.distributed as dist
from accelerate import PartialState
if os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") == "0" and os.environ.get("MODEL"):
    if os.environ["RANK"] == "0":
        open(os.environ["MODEL"], "w").write("x = 5")
        sys.exit(9)
dist.init_process_group("gloo")
value = torch.ones(1)
dist.all_reduce(value)
with open(os.environ["RAN"], "a") as file:
    file.write(f"rank {dist.get_rank()} of {int(value)}\\n")
dist.barrier()
dist.destroy_process_group()
"""


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Gated:
    if not finds_lockd():
        pytest.skip("lockd is not installed for this Python, so a hook could not start it")
    made = Gated(tmp_path_factory.mktemp("launchers"))
    subprocess.run([sys.executable, "-m", "venv", str(made.root / "venv")], check=True)
    command = [str(made.python), "-m", "pip", "install", "--quiet", "torch==2.13.0", "accelerate"]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"no torch and accelerate to be had: {done.stderr.strip().splitlines()[-1]}")
    made.file("job/train.py", RANK)
    made.heal()
    write_policy(made)
    matrix.prepare(made)
    return made


@pytest.fixture(autouse=True)
def good(scene: Gated) -> None:
    """As it was accepted, nothing ran yet."""
    scene.heal()
    (scene.root / "ran").unlink(missing_ok=True)


def start(scene: Gated, *words: str, **env: str) -> subprocess.CompletedProcess[str]:
    argv = [str(scene.python.parent / words[0]), *words[1:]]
    how = {"capture_output": True, "text": True, "timeout": 300, "cwd": scene.root}
    variables = {**scene.variables(), "OMP_NUM_THREADS": "1", **env}
    return subprocess.run(argv, env=variables, stdin=subprocess.DEVNULL, **how)  # type: ignore[call-overload, no-any-return]


# three restarts: gloo itself now and then fails to connect in the first moments of one
TORCHRUN = ("torchrun", "--standalone", "--nproc-per-node=2", "--max-restarts=3", "job/train.py")
ACCELERATE: tuple[str, ...] = (
    "accelerate",
    "launch",
    "--multi_gpu",
    "--num_processes=2",
    "--num_machines=1",
    "--mixed_precision=no",
)
ACCELERATE += ("--dynamo_backend=no", "--main_process_port=0", "job/train.py")
MODULE = ("python", "-m", "torch.distributed.run", *TORCHRUN[1:])


@pytest.mark.parametrize("words", [TORCHRUN, MODULE, ACCELERATE], ids=["torchrun", "module", "accelerate"])
def test_a_launcher_asks_once(scene: Gated, words: tuple[str, ...]) -> None:
    before = len(scene.runs())
    done = start(scene, *words)
    assert done.returncode == 0, done.stderr
    assert sorted(scene.ran) == ["rank 0 of 2", "rank 1 of 2"] and "lockd" not in done.stderr
    run, *rest = scene.runs()  # newest first
    assert len(rest) == before and words[-1] in run["argv"]
    scene.drift()
    done = start(scene, *words)
    assert done.returncode == 78 and "lockd: refused" in done.stderr and len(scene.ran) == 2


NAMES = {
    "`torchrun`, 2 ranks": TORCHRUN,
    "`torchrun`, restart after drift": TORCHRUN,
    "`accelerate launch`, 2 ranks": ACCELERATE,
}


@pytest.mark.parametrize(
    ("name", "state", "verdict"), [(name, *cell) for name in NAMES for cell in matrix.way(name).cells]
)
def test_a_cell(scene: Gated, name: str, state: str, verdict: str) -> None:
    """Rows of the matrix in docs/gates.md."""
    argv = [str(scene.python.parent / NAMES[name][0]), *NAMES[name][1:]]
    env = {"MODEL": str(scene.root / "job" / "model.py")} if "restart" in name else {}
    with matrix.verdict(scene, verdict), matrix.daemon_is(scene, state) as started:
        found = matrix.outcome(scene, argv, started, **env)
    assert found == matrix.way(name).outcomes[matrix.VERDICTS.index(verdict)]


def test_an_elastic_restart_after_drift_goes_on(scene: Gated) -> None:
    model = scene.root / "job" / "model.py"
    before = len(scene.runs())
    done = start(scene, *TORCHRUN, MODEL=str(model))
    assert model.read_text() == "x = 5" and done.returncode == 0, done.stderr
    assert sorted(scene.ran) == ["rank 0 of 2", "rank 1 of 2"]
    assert len(scene.runs()) == before + 1 and "lockd" not in done.stderr
    assert start(scene, *TORCHRUN).returncode == 78


def test_no_python_behind_lockd_run(scene: Gated, tmp_path: Path) -> None:
    """`torchrun --no-python lockd run -- python train.py`: each rank is gated by hand, below an admitted torchrun."""
    variables = {"LOCKD_STATE": str(scene.state), "LOCKD_POLICY": str(scene.policy)}
    lockd = [sys.executable, "-I", "-m", "lockd", "run", "--", str(scene.python), "job/train.py"]
    done = start(scene, *TORCHRUN[:3], "--no-python", *lockd, **variables)
    assert done.returncode == 0, done.stderr
    assert sorted(scene.ran) == ["rank 0 of 2", "rank 1 of 2"]
    scene.drift()
    assert start(scene, *TORCHRUN[:3], "--no-python", *lockd, **variables).returncode != 0
    assert len(scene.ran) == 2 and os.path.exists(scene.lock)
