"""The lines of docs/gates.md for the launcher of DeepSpeed and for Ray, with the real tools."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.gating import Gated, finds_lockd, write_policy

pytestmark = [pytest.mark.slow, pytest.mark.network]

RANK = 'import os\nopen(os.environ["RAN"], "a").write("rank " + os.environ["RANK"] + "\\n")\n'
DRIVER = """import os, sys, ray
{gate}
names = ("LOCKD_STATE", "LOCKD_RUNTIME")
env = {{"worker_process_setup_hook": gate, "env_vars": {{name: os.environ[name] for name in names}}}}
ray.init(num_cpus=1, include_dashboard=False, _node_ip_address="127.0.0.1", runtime_env=env, logging_level="ERROR",
         _temp_dir=sys.argv[1])
@ray.remote(max_retries=0)
def work():
    open(os.environ["RAN"], "a").write("worked\\n")
ray.get(work.remote(), timeout=120)
"""


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Gated:
    if not finds_lockd():
        pytest.skip("lockd is not installed for this Python, so a hook could not start it")
    made = Gated(tmp_path_factory.mktemp("clusters"))
    subprocess.run([sys.executable, "-m", "venv", str(made.root / "venv")], check=True)
    pip = [str(made.python), "-m", "pip", "install", "--quiet"]
    variables = {**os.environ, "DS_BUILD_OPS": "0"}  # no kernel is compiled: the launcher is what is tried
    for words in (("torch==2.13.0", "ray", "setuptools", "wheel"), ("--no-build-isolation", "deepspeed")):
        done = subprocess.run([*pip, *words], env=variables, capture_output=True, text=True)
        if done.returncode:
            pytest.skip(f"no torch, Ray and DeepSpeed to be had: {done.stderr.strip().splitlines()[-1]}")
    made.file("job/train.py", RANK)
    made.heal()
    write_policy(made)
    made.policy.write_text(made.policy.read_text().replace("[[python]]", '[[python]]\nintegrity = "metadata"'))
    assert made.accept("--allow-modified", "all").code == 0
    made.install()
    return made


@pytest.fixture(autouse=True)
def good(scene: Gated) -> None:
    """As it was accepted, nothing ran yet."""
    scene.heal()
    (scene.root / "ran").unlink(missing_ok=True)


def start(scene: Gated, *words: str | Path, **env: str) -> subprocess.CompletedProcess[str]:
    variables = {**scene.variables(), **env}
    variables["PATH"] = f"{scene.python.parent}:{variables['PATH']}"
    argv = [str(scene.python.parent / words[0]), *map(str, words[1:])]
    how = {"capture_output": True, "text": True, "timeout": 300, "cwd": scene.root}
    return subprocess.run(argv, env=variables, stdin=subprocess.DEVNULL, **how)  # type: ignore[call-overload, no-any-return]


def test_deepspeed_asks_once(scene: Gated) -> None:
    """With the hook nothing at all: the launcher is the launch, its ranks pass."""
    words = ("deepspeed", "--num_gpus=2", "--master_addr=127.0.0.1", "job/train.py")
    done = start(scene, *words, DS_ACCELERATOR="cpu")
    assert done.returncode == 0 and sorted(scene.ran) == ["rank 0", "rank 1"], done.stderr
    (run,) = scene.runs()
    assert "lockd" not in done.stderr and "job/train.py" in run["argv"]
    scene.drift()
    refused = start(scene, *words, DS_ACCELERATOR="cpu")
    assert refused.returncode == 78 and "lockd: refused" in refused.stderr and len(scene.ran) == 2


def test_ray_s_workers_are_gated_by_their_setup_hook(scene: Gated) -> None:
    """The function of docs/gates.md as it stands there, but for where lockd and the policy lie."""
    text = (Path(__file__).parents[1] / "docs" / "gates.md").read_text()
    gate = text.partition("this runs first in each of them:\n```python\n")[2].partition("```")[0]
    gate = gate.replace("/opt/lockd/bin/python", sys.executable).replace("/etc/lockd/policy.toml", str(scene.policy))
    assert gate.startswith("def gate()") and str(scene.policy) in gate
    driver = scene.file("job/driver.py", DRIVER.format(gate=gate))
    lockd = {"LOCKD_STATE": str(scene.state), "LOCKD_RUNTIME": str(scene.root / "run")}
    folder = f"/tmp/lockd-ray-{os.getpid()}"
    try:
        done = start(scene, "python", driver, folder, **lockd)
        assert done.returncode == 0 and scene.ran == ["worked"], done.stderr
        scene.drift()
        refused = start(scene, "python", driver, folder, **lockd)
        assert refused.returncode != 0 and scene.ran == ["worked"] and "WorkerCrashedError" in refused.stderr
    finally:
        subprocess.run(["rm", "-rf", folder], check=True)
