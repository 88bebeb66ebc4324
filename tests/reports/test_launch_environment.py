"""What the launch brings with it: variables, plugins of the loader, modules beside the script."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.reports.ground import accepted, says, told, torch, train
from tests.scene import Scene


def test_a_variable_of_nccl_differs_on_one_rank(tmp_path: Path) -> None:
    """NVIDIA/nccl#1634, #1328: NCCL_* differs on some ranks: a hang, or an error about sizes."""
    scene = Scene(tmp_path)
    scene.write_policy('[env]\n"NCCL_*" = "locked"\n')
    accepted(scene, env={"NCCL_ALGO": "Ring", "NCCL_PROTO": "Simple"})
    found = told(
        scene,
        "env:NCCL_ALGO",
        "changed",
        'NCCL_ALGO "Ring" → "Tree"',
        env={"NCCL_ALGO": "Tree", "NCCL_PROTO": "Simple"},
    )
    assert "NCCL_ALGO=Ring" in found["hint"]


def test_a_variable_of_nccl_is_not_set_on_one_rank(tmp_path: Path) -> None:
    """NVIDIA/nccl#354: the variable was exported on one node alone."""
    scene = Scene(tmp_path)
    scene.write_policy('[env]\n"NCCL_*" = "locked"\n')
    accepted(scene, env={"NCCL_SOCKET_IFNAME": "eth0"})
    told(scene, "env:NCCL_SOCKET_IFNAME", "missing", "NCCL_SOCKET_IFNAME", "eth0", "not set")


def test_the_network_plugin_of_nccl_is_another_file(tmp_path: Path) -> None:
    """NVIDIA/nccl#1634: another libnccl-net.so on some ranks; the variables are the same."""
    scene = Scene(tmp_path)
    plugin = scene.file("opt/plugin/libnccl-net.so", "\x7fELF aws-ofi-nccl 1.9.1\n")
    scene.write_policy(f'[[file]]\npath = "{plugin}"\n[env]\n"NCCL_*" = "locked"\n')
    accepted(scene, env={"NCCL_NET_PLUGIN": str(plugin)})
    plugin.write_text("\x7fELF aws-ofi-nccl 1.7.4\n")
    told(scene, f"file:{plugin}", "changed", "libnccl-net.so", env={"NCCL_NET_PLUGIN": str(plugin)})


@pytest.fixture
def worker() -> Iterator[int]:
    """The pid of a worker whose parent set NCCL_CUMEM_ENABLE for it, in no shell."""
    parent = (
        "import os, subprocess, sys; os.environ['NCCL_CUMEM_ENABLE'] = '0'\n"
        "child = subprocess.Popen([sys.executable, '-I', '-c', 'print(flush=True); input()'], stdout=subprocess.PIPE)\n"
        "child.stdout.readline(); print(child.pid, flush=True); child.wait()"
    )
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-I", "-c", parent], stdin=pipe, stdout=pipe, text=True) as process:
        assert process.stdin and process.stdout
        yield int(process.stdout.readline())
        process.stdin.write("\n")
        process.stdin.close()


def test_a_variable_that_only_the_process_has_is_named(tmp_path: Path, worker: int) -> None:
    """vllm-project/vllm#16992: vLLM itself set NCCL_CUMEM_ENABLE=0 for its workers, and multi-node NVLink was lost;
    the shell that started it shows nothing. The worker's own environment is read, not the shell's."""
    scene = Scene(tmp_path)
    scene.write_policy('[env]\nNCCL_CUMEM_ENABLE = "locked"\n')
    accepted(scene)
    shown = scene.lockd("accept", "-m", "review", "--dry-run", "--env-of", str(worker))
    assert shown.code == 0, shown.err
    assert 'NCCL_CUMEM_ENABLE not set → "0"' in shown.out, shown.out


def test_a_folder_called_torch_shadows_torch(tmp_path: Path) -> None:
    """pytorch/pytorch#574: a folder called torch where the script lies is imported in place of the installed torch."""
    scene = Scene(tmp_path)
    script = scene.file("job/train.py", "import torch\n")
    train(scene, torch("2.6.0+cu124", "12.4"), more=f'[launch]\nscripts = ["{script}"]\npython = "train"')
    accepted(scene)
    scene.file("job/torch/__init__.py", "")
    found = told(scene, "launch:path", "changed", "torch", "job/torch")
    assert says(scene, found)


def test_a_debugging_variable_that_was_left_in(tmp_path: Path) -> None:
    """horenbergerb/BernoulliDiffusion#23, VeOmni#115, icefall#554: CUDA_LAUNCH_BLOCKING=1 left in: every launch of a
    kernel waits, and training is slow."""
    scene = Scene(tmp_path)
    scene.write_policy("[env]\nCUDA_LAUNCH_BLOCKING = { forbid = true }\n")
    accepted(scene)
    found = told(
        scene,
        "env:CUDA_LAUNCH_BLOCKING",
        "forbidden",
        'CUDA_LAUNCH_BLOCKING is set ("1")',
        env={"CUDA_LAUNCH_BLOCKING": "1"},
    )
    assert found["against"] == ["policy"] and "without CUDA_LAUNCH_BLOCKING" in found["hint"]
