"""Pitfalls that people fell into, each by its name: what every installer and checker passes, lockd tells.

Those of a single module stand in its own tests; here are those that take the whole way from the machine to the line.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.reports.ground import BY, accepted, edit, nccl, plain, swap, told, torch, train
from tests.scene import Scene
from tests.wheels import UV, Wheel, build_venv, install, uninstall

CERTIFICATE = "-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----\n"


def test_no_installer_sees_an_edit_that_lockd_names(tmp_path: Path) -> None:
    """pypa/pip#1463, #13816: `pip check` and `uv pip check` pass after a file was edited."""
    scene = Scene(tmp_path)
    env = train(scene, torch("2.6.0+cu124", "12.4"))
    accepted(scene)
    edit(env.site / "torch/__init__.py", "from .version", "from  .version")
    if UV is not None:
        check = [UV, "pip", "check", "--offline", "--python", str(env.python)]
        assert subprocess.run(check, capture_output=True, cwd=tmp_path).returncode == 0
    told(scene, "package:train/torch", "changed", "1 file differs from its wheel: torch/__init__.py")


def test_a_cpu_build_satisfies_an_open_specifier_and_is_told_by_the_lock(tmp_path: Path) -> None:
    """unslothai/unsloth#5942, pytorch/pytorch#95135: torch 2.10.0+cpu satisfies torch>=2.4, so nobody replaces it."""
    scene = Scene(tmp_path)
    env = train(scene, torch("2.10.0+cu128", "12.8"), rule='[python.packages]\ntorch = ">=2.4"')
    accepted(scene)
    swap(env, torch("2.10.0+cpu", None))
    found = told(scene, "package:train/torch", "changed", "2.10.0+cu128 → 2.10.0+cpu (CUDA 12.8 → none")
    assert found["against"] == ["lock"], "the pin holds: it is too wide"


def test_a_new_name_is_told_even_where_everything_that_was_there_is_whole(tmp_path: Path) -> None:
    """pytorch/pytorch#92226, torchtriton: a package of a public index under a name that nobody had there before."""
    scene = Scene(tmp_path)
    env = train(scene, torch("1.14.0+cu117", "11.7"))
    accepted(scene)
    swap(env, plain("torchtriton", "3.0.0"))
    told(scene, "package:train/torchtriton", "added", "torchtriton 3.0.0 is new")


def test_two_packages_that_must_share_a_version(tmp_path: Path) -> None:
    """lightseekorg/tokenspeed#284: flashinfer-python 0.6.11 with flashinfer-jit-cache 0.6.9, and the check of it
    switched off by a variable. One glob pins the group, and the variable is forbidden."""
    scene = Scene(tmp_path)
    both = plain("flashinfer-python", "0.6.11"), plain("flashinfer-jit-cache", "0.6.11")
    group = '[python.packages]\n"flashinfer-*" = "==0.6.11"'
    env = train(scene, *both, rule=group, more="[env]\nFLASHINFER_DISABLE_VERSION_CHECK = { forbid = true }")
    accepted(scene)
    swap(env, plain("flashinfer-jit-cache", "0.6.9"))
    found = told(scene, "package:train/flashinfer-jit-cache", "changed", "flashinfer-jit-cache 0.6.11 → 0.6.9")
    assert found["against"] == ["lock", "policy"]
    bypassed = scene.verify(env={"FLASHINFER_DISABLE_VERSION_CHECK": "1"}).document["findings"]
    assert {"env:FLASHINFER_DISABLE_VERSION_CHECK"} < {one["fact"] for one in bypassed}


def test_a_compiler_that_the_path_finds_first(tmp_path: Path) -> None:
    """flashinfer-ai/flashinfer#5145, #3229, #4884: kernels built by the host's nvcc 13 for workers of CUDA 12.9."""
    scene = Scene(tmp_path)
    nvcc = scene.file("usr/local/cuda/bin/nvcc", "#!/bin/sh\necho release 12.9\n")
    scene.write_policy(f'[[file]]\npath = "{nvcc}"\n[env]\nCUDA_HOME = "locked"\n')
    good = {"CUDA_HOME": f"{scene.root}/usr/local/cuda"}
    accepted(scene, env=good)
    told(scene, "env:CUDA_HOME", "changed", "/usr/local/cuda-13", env={"CUDA_HOME": f"{scene.root}/usr/local/cuda-13"})
    nvcc.write_text("#!/bin/sh\necho release 13.0\n")
    told(scene, f"file:{nvcc}", "changed", "nvcc", env=good)


def test_an_old_cudnn_that_the_loader_is_told_to_find_first(tmp_path: Path) -> None:
    """pytorch/pytorch#80637: LD_LIBRARY_PATH wins over the wheel's own cuDNN."""
    scene = Scene(tmp_path)
    scene.write_policy('[env]\nLD_LIBRARY_PATH = "locked"\n')
    accepted(scene)
    told(scene, "env:LD_LIBRARY_PATH", "added", "/opt/cudnn-8/lib", env={"LD_LIBRARY_PATH": "/opt/cudnn-8/lib"})


def test_start_up_code_that_an_operator_injects_by_pythonpath(tmp_path: Path) -> None:
    """open-telemetry/opentelemetry-operator#1885, #1884: PYTHONPATH with a sitecustomize, from outside of every
    environment; no package of it is hidden, and it runs at every start."""
    scene = Scene(tmp_path)
    script = scene.file("job/train.py", "import torch\n")
    train(scene, torch("2.6.0+cu124", "12.4"), more=f'[launch]\nscripts = ["{script}"]\npython = "train"')
    accepted(scene)
    injected = scene.file("otel-auto-instrumentation/sitecustomize.py", "x = 1\n")
    env = {"PYTHONPATH": str(injected.parent)}
    told(scene, "launch:path", "changed", f"sitecustomize from {injected}", "run it at every start", env=env)


def test_remote_code_of_a_model_beside_its_main_file(tmp_path: Path) -> None:
    """huggingface/transformers#33162, #22661: only the main file of remote code is checked by the library; the modules
    that it imports are code as well."""
    scene = Scene(tmp_path)
    folder = scene.root / "home/.cache/huggingface"
    code = "home/.cache/huggingface/modules/transformers_modules/org/drafter/0e9e39f2"
    scene.file(f"{code}/modeling_drafter.py", "from .masks import mask\n")
    helper = scene.file(f"{code}/masks.py", "def mask():\n    return 1\n")
    scene.write_policy(f'[[cache]]\npath = "{folder}"\nkind = "huggingface"\n')
    accepted(scene)
    edit(helper, "return 1", "return 0")
    told(scene, f"cache:{folder}", "changed", "1 of 2 entries changed", "drafter/0e9e39f2/masks.py")


def test_an_appended_certificate_is_told_as_what_it_is(tmp_path: Path) -> None:
    """Start-up code of a base environment appended its own authority to certifi's bundle."""
    scene = Scene(tmp_path)
    bundle = Wheel("certifi", "2026.1.1", {"certifi/__init__.py": "", "certifi/cacert.pem": CERTIFICATE * 3})
    env = train(scene, bundle)
    accepted(scene)
    with (env.site / "certifi/cacert.pem").open("a") as file:
        file.write(CERTIFICATE.replace("MIIB", "MIIX"))
    told(scene, "package:train/certifi", "changed", "1 file differs from its wheel: certifi/cacert.pem")


def test_an_uninstall_that_takes_a_file_of_another_package(tmp_path: Path) -> None:
    """sgl-project/sglang#31035: nvidia-nvshmem-cu12 goes, and with it a file that nvshmem-cu13 owns as well; the
    metadata of cu13 stays, and every version check is green."""
    scene = Scene(tmp_path)
    env = train(scene, nccl("2.29.3", "12"), rule='extra = "warn"')
    swap(env, nccl("2.29.7", "13"))  # after the other: of two at once the winner is a race
    done = scene.accept("--allow-modified", "nvidia-nccl-cu12")
    assert done.code == 0, done.err
    uninstall(env, "nvidia-nccl-cu12", by=BY)
    found = {one["fact"]: one for one in scene.verify().document["findings"]}
    harmed = found["package:train/nvidia-nccl-cu13"]
    assert harmed["change"] == "changed" and "missing" in harmed["message"] and "libnccl.so.2" in harmed["message"]
    assert found["package:train/nvidia-nccl-cu12"]["change"] == "missing"


def test_what_two_wheels_own_with_other_bytes_is_not_accepted_unsaid(tmp_path: Path) -> None:
    """NVIDIA/cutlass#3259: two wheels own one path with different contents, and the winner is a race. One of them
    differs from its own RECORD, so the accept asks for leave, by its name."""
    scene = Scene(tmp_path)
    train(scene, nccl("2.29.3", "12"), nccl("2.29.7", "13"))
    refused = scene.accept()
    assert refused.code == 1 and "--allow-modified" in refused.err and "libnccl.so.2" in refused.err, refused.err
    assert not scene.lock.exists()


def test_a_shared_cache_of_the_installer_brings_an_edit_back(tmp_path: Path) -> None:
    """astral-sh/uv#15700, #10579, #10896: an edit in one venv goes through a hard link into uv's cache, and comes
    back with the reinstall. The line says so before anybody reinstalls."""
    if UV is None:
        pytest.skip("uv is not installed")
    scene = Scene(tmp_path)
    env = build_venv(scene.root / "venv")
    install(env, plain("drafter", "1.0"), by="uv", link="hardlink")
    scene.write_policy(f'[[python]]\nname = "train"\npath = "{env.prefix}"\n')
    accepted(scene)
    with (env.site / "drafter/__init__.py").open("a") as file:
        file.write("# by hand\n")
    told(scene, "package:train/drafter", "changed", "drafter/__init__.py", "uv cache clean drafter")


def test_a_compiled_cache_is_no_longer_found_after_another_torch(tmp_path: Path) -> None:
    """numba/numba#4807, vllm-project/vllm#41871: what was compiled under another build is stale; here the entries of an
    inductor cache, which carry torch's own key over its sources."""
    scene = Scene(tmp_path)
    folder = scene.file("cache/ab/cab.best_config", "{}").parents[1]
    rule = f'[[cache]]\npath = "{folder}"\nkind = "inductor"\npython = "train"\n'
    env = train(scene, torch("2.11.0+cu128", "12.8"), more=rule)
    accepted(scene)
    swap(env, torch("2.11.0+cu130", "13.0"))
    told(scene, "package:train/torch", "changed", "2.11.0+cu128 → 2.11.0+cu130", f"orphans 1 entry of {folder}")


def test_a_self_test_after_accept_finds_nothing_that_post_install_steps_left(tmp_path: Path) -> None:
    """conda/conda#16590: false alarms, because the digest was taken before the last post-install step: byte-code that
    the first run writes, and times that it moves, are no drift."""
    scene = Scene(tmp_path)
    env = train(scene, plain("drafter", "1.0"))
    accepted(scene)
    assert subprocess.run([env.python, "-c", "import drafter"], cwd=tmp_path, env={}).returncode == 0
    assert list(env.site.glob("drafter/__pycache__/*.pyc"))
    os.utime(env.site / "drafter/__init__.py")
    after = scene.verify("--full")
    assert (after.code, after.facts) == (0, []), after.out
