"""One install that moves other packages under the user's feet: one cause, and what it brought beneath it."""

from __future__ import annotations

from pathlib import Path

from tests.reports.ground import accepted, nccl, plain, says, swap, told, torch, train
from tests.scene import Scene


def test_an_install_of_sglang_moves_torch_transformers_and_tokenizers(tmp_path: Path) -> None:
    """haotian-liu/LLaVA#1660, sgl-project/sglang#464: after `pip install sglang` LLaVA no longer runs; three packages
    were replaced that nobody named."""
    scene = Scene(tmp_path)
    stack = (torch("2.1.2+cu121", "12.1"), plain("transformers", "4.37.2"), plain("tokenizers", "0.15.1"))
    env = train(scene, *stack)
    accepted(scene)
    swap(
        env,
        plain("sglang", "0.3.0", "torch==2.4.0", "transformers==4.44.0"),
        torch("2.4.0+cu121", "12.1"),
        plain("transformers", "4.44.0", "tokenizers>=0.19"),
        plain("tokenizers", "0.19.1"),
    )
    told(scene, "package:train/sglang", "added", "sglang 0.3.0", brought=("torch", "transformers", "tokenizers"))
    text = scene.lockd("verify").out
    assert "and 3 packages that it brought: " in text, text
    assert "torch 2.1.2+cu121 → 2.4.0+cu121" in str(scene.verify().document)


def test_an_install_of_sglang_moves_the_set_of_cuda_packages(tmp_path: Path) -> None:
    """sgl-project/sglang#25069: sglang 0.5.11 needs cuda-python 13, torch 2.11.0+cu128 needs cuda-bindings below 13."""
    scene = Scene(tmp_path)
    env = train(
        scene,
        torch("2.11.0+cu128", "12.8", "cuda-bindings>=12.9,<13"),
        plain("cuda-python", "12.9.1", "cuda-bindings==12.9.1"),
        plain("cuda-bindings", "12.9.1"),
    )
    accepted(scene)
    swap(
        env,
        plain("sglang", "0.5.11", "cuda-python==13.0.0"),
        plain("cuda-python", "13.0.0", "cuda-bindings==13.0.0"),
        plain("cuda-bindings", "13.0.0"),
    )
    told(scene, "package:train/sglang", "added", "sglang 0.5.11", brought=("cuda-python", "cuda-bindings"))


def test_a_floating_triton_is_named(tmp_path: Path) -> None:
    """coreweave/ml-containers#64, pytorch/pytorch#123042: triton floated to 2.3.0: cannot import triton_key."""
    scene = Scene(tmp_path)
    env = train(scene, torch("2.2.0+cu121", "12.1", "triton>=2.2"), plain("triton", "2.2.0"))
    accepted(scene)
    swap(env, plain("triton", "2.3.0"))
    found = told(scene, "package:train/triton", "changed", "triton 2.2.0 → 2.3.0")
    assert found["attributes"]["version"] == ["2.2.0", "2.3.0"]
    assert says(scene, found)


def test_an_unpinned_upgrade_of_trl_brings_transformers(tmp_path: Path) -> None:
    """georgian-io/LLM-Finetuning-Toolkit#96: an unpinned upgrade breaks the import."""
    scene = Scene(tmp_path)
    env = train(scene, plain("trl", "0.7.11", "transformers>=4.31"), plain("transformers", "4.38.1"))
    accepted(scene)
    swap(env, plain("trl", "0.8.6", "transformers>=4.39"), plain("transformers", "4.40.0"))
    told(scene, "package:train/trl", "changed", "trl 0.7.11 → 0.8.6", brought=("transformers",))


def test_a_package_that_a_fix_button_upgraded(tmp_path: Path) -> None:
    """odysseus-dev/odysseus#191: the application's own "fix" upgraded `kernels`, and the import of transformers broke;
    an exact pin says which version was meant."""
    scene = Scene(tmp_path)
    env = train(
        scene,
        plain("transformers", "4.57.1", "kernels>=0.6"),
        plain("kernels", "0.9.0"),
        rule='[python.packages]\nkernels = "0.9.0"',
    )
    accepted(scene)
    swap(env, plain("kernels", "0.11.0"))
    found = told(scene, "package:train/kernels", "changed", "kernels 0.9.0 → 0.11.0")
    assert found["against"] == ["lock", "policy"] and "0.11.0 is meant, edit" in found["hint"]


def test_a_post_release_drags_transformers_to_a_release_candidate(tmp_path: Path) -> None:
    """sgl-project/sglang#14810: 0.5.6 → 0.5.6.post1 brought transformers 5.0 rc."""
    scene = Scene(tmp_path)
    env = train(scene, plain("sglang", "0.5.6", "transformers==4.57.1"), plain("transformers", "4.57.1"))
    accepted(scene)
    swap(env, plain("sglang", "0.5.6.post1", "transformers==5.0.0rc0"), plain("transformers", "5.0.0rc0"))
    told(scene, "package:train/sglang", "changed", "sglang 0.5.6 → 0.5.6.post1", brought=("transformers",))
    brought = next(one for one in scene.verify().document["findings"] if "because" in one)
    assert "transformers 4.57.1 → 5.0.0rc0" in brought["message"]


def test_a_tokenizer_that_encodes_otherwise(tmp_path: Path) -> None:
    """generative-computing/mellea#947, huggingface/transformers#45345: transformers 5 silently builds another
    tokenizer class. The fact is the ids of a golden sentence, by a `[[command]]`; versions are recorded alone here."""
    scene = Scene(tmp_path)
    old = plain("transformers", "4.57.1", transformers__tok="IDS = [1, 15043, 3186]\n")
    new = plain("transformers", "5.0.0", transformers__tok="IDS = [1, 22557, 1526]\n")
    rule = '\non_drift = "record"'
    env = train(scene, old, rule=rule)
    golden = scene.file("job/golden.py", "from transformers.tok import IDS\nprint('ids', *IDS)\n")
    policy = scene.policy.read_text()
    run = f'[[command]]\nname = "golden-ids"\nrun = ["{env.python}", "-I", "{golden}"]\ntimeout = "20s"\n'
    scene.policy.write_text(policy + run)
    accepted(scene)
    swap(env, new)
    told(scene, "command:golden-ids", "changed", "ids 1 15043 3186", "ids 1 22557 1526")


def test_another_nccl_alone_is_named(tmp_path: Path) -> None:
    """NVIDIA/nccl#770, #513, #378, #1997: 2.16.2 ten times slower, 2.8.4 and later a fifth; nothing else moved."""
    scene = Scene(tmp_path)
    env = train(scene, torch("1.13.1+cu117", "11.7", "nvidia-nccl-cu11"), nccl("2.14.3", "11"))
    accepted(scene)
    swap(env, nccl("2.16.2", "11"))
    told(scene, "package:train/nvidia-nccl-cu11", "changed", "nvidia-nccl-cu11 2.14.3 → 2.16.2")


def test_the_nccl_that_torch_holds_back_breaks_its_pin(tmp_path: Path) -> None:
    """marin-community/marin#5379: all-to-all was slow because a lock file held NCCL 2.27.5 through torch's own pin. The
    wish is in the policy: what was resolved is refused at once, before a baseline is made of it."""
    scene = Scene(tmp_path)
    stack = torch("2.9.0+cu128", "12.8", "nvidia-nccl-cu12==2.27.5"), nccl("2.27.5")
    train(scene, *stack, rule='[python.packages]\nnvidia-nccl-cu12 = ">=2.28.3"')
    told(scene, "package:train/nvidia-nccl-cu12", "changed", "2.27.5", ">=2.28.3")
    refused = scene.accept()
    assert refused.code == 1 and "2.27.5" in refused.err + refused.out, refused
    assert not scene.lock.exists()


def test_an_nccl_that_a_new_torch_brings_folds_beneath_it(tmp_path: Path) -> None:
    """marin-community/marin#5379, from the other side: torch moves, and the NCCL of its pin with it."""
    scene = Scene(tmp_path)
    env = train(scene, torch("2.9.0+cu128", "12.8", "nvidia-nccl-cu12==2.27.5"), nccl("2.27.5"))
    accepted(scene)
    swap(env, torch("2.10.0+cu128", "12.8", "nvidia-nccl-cu12==2.28.9"), nccl("2.28.9"))
    told(scene, "package:train/torch", "changed", "2.9.0+cu128 → 2.10.0+cu128", brought=("nvidia-nccl-cu12",))


def test_two_generations_of_nccl_in_one_path(tmp_path: Path) -> None:
    """pytorch/pytorch#186591: nvidia-nccl-cu12 2.29.3 and nvidia-nccl-cu13 2.29.7 in one environment: undefined symbol
    ncclCommResume. Both own nvidia/nccl/lib/libnccl.so.2, and the last one won."""
    scene = Scene(tmp_path)
    env = train(scene, torch("2.12.0+cu129", "12.9", "nvidia-nccl-cu12==2.29.3"), nccl("2.29.3"))
    accepted(scene)
    swap(env, nccl("2.29.7", "13"))
    found = scene.verify().document["findings"]
    by_name = {one["fact"]: one for one in found}
    assert set(by_name) == {"package:train/nvidia-nccl-cu12", "package:train/nvidia-nccl-cu13"}, found
    assert by_name["package:train/nvidia-nccl-cu13"]["change"] == "added"
    harmed = by_name["package:train/nvidia-nccl-cu12"]["message"]
    assert "libnccl.so.2" in harmed and "nvidia-nccl-cu13" in harmed, harmed
