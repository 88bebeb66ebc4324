"""Another build of torch under the same version, and what was compiled against the one before."""

from __future__ import annotations

from pathlib import Path

from tests.reports.ground import accepted, plain, says, swap, told, torch, train
from tests.scene import Scene
from tests.wheels import Wheel


def test_the_local_label_of_torch_names_the_slower_build(tmp_path: Path) -> None:
    """pytorch/pytorch#119458: training twice as slow on cu121 as on cu118, under one version of torch."""
    scene = Scene(tmp_path)
    env = train(scene, torch("2.2.0+cu118", "11.8"))
    accepted(scene)
    swap(env, torch("2.2.0+cu121", "12.1"))
    found = told(scene, "package:train/torch", "changed", "torch 2.2.0+cu118 → 2.2.0+cu121", "CUDA 11.8 → 12.1")
    assert found["attributes"]["version"] == ["2.2.0+cu118", "2.2.0+cu121"]
    assert "git" not in found["attributes"]
    assert says(scene, found)


def test_a_build_that_metadata_does_not_name_is_named_all_the_same(tmp_path: Path) -> None:
    """pytorch/pytorch#119458, the same drift from the public index, whose METADATA says plain 2.2.0: `pip list` and
    a look at the folder's name see nothing."""
    scene = Scene(tmp_path)
    env = train(scene, torch("2.2.0+cu118", "11.8", labelled=False))
    accepted(scene)
    swap(env, torch("2.2.0+cu121", "12.1", labelled=False))
    found = told(scene, "package:train/torch", "changed", "torch 2.2.0+cu118 → 2.2.0+cu121 (CUDA 11.8 → 12.1")
    assert "metadata_version" not in found["attributes"]


def test_a_cpu_build_in_place_of_the_cuda_build(tmp_path: Path) -> None:
    """invoke-ai/InvokeAI#5065: torch+cu121 became torch+cpu; the application still worked, on the CPU."""
    scene = Scene(tmp_path)
    env = train(scene, torch("2.1.0+cu121", "12.1"), rule='[python.packages]\ntorch = { cuda = "12.1" }')
    accepted(scene)
    swap(env, torch("2.1.0+cpu", None))
    found = told(scene, "package:train/torch", "changed", "torch 2.1.0+cu121 → 2.1.0+cpu", "CUDA 12.1 → none")
    assert found["against"] == ["lock", "policy"] and "ct.toml:9" in found["hint"]


def test_a_requirements_file_replaces_torch(tmp_path: Path) -> None:
    """Comfy-Org/ComfyUI#99, baichuan-inc/Baichuan2#307: requirements.txt uninstalls the cu118 build and installs
    another; by pip, as the reporters did."""
    scene = Scene(tmp_path)
    env = train(scene, torch("2.0.1+cu118", "11.8"), plain("xformers", "0.0.20"), by="pip")
    accepted(scene)
    swap(env, torch("2.1.0+cu121", "12.1"), by="pip")
    told(scene, "package:train/torch", "changed", "torch 2.0.1+cu118 → 2.1.0+cu121", "CUDA 11.8 → 12.1")


def test_torch_moved_under_an_extension_that_was_built_for_another(tmp_path: Path) -> None:
    """Dao-AILab/flash-attention#1644: `undefined symbol _ZN3c105Error…` in flash_attn after torch cu124 → cu126. The
    wheel that fails did not move, and is not told; torch did, and is."""
    scene = Scene(tmp_path)
    env = train(scene, torch("2.6.0+cu124", "12.4"), flash_attention("FALSE"))
    accepted(scene)
    swap(env, torch("2.6.0+cu126", "12.6"))
    told(scene, "package:train/torch", "changed", "torch 2.6.0+cu124 → 2.6.0+cu126", "CUDA 12.4 → 12.6")


def test_the_abi_of_an_extension_is_named(tmp_path: Path) -> None:
    """Dao-AILab/flash-attention#1783: the wheel of the other C++11 ABI, under one version."""
    scene = Scene(tmp_path)
    env = train(scene, torch("2.6.0+cu124", "12.4"), flash_attention("FALSE"))
    accepted(scene)
    swap(env, flash_attention("TRUE"))
    found = told(scene, "package:train/flash-attn", "changed", "C++11 ABI FALSE → TRUE")
    assert found["attributes"]["abi"] == ["FALSE", "TRUE"]


def flash_attention(abi: str) -> Wheel:
    label = f"2.7.4.post1+cu12torch2.6cxx11abi{abi.lower()}"
    return Wheel("flash-attn", label, {"flash_attn/__init__.py": "", "flash_attn_2_cuda.so": f"\x7fELF {abi}\n"})
