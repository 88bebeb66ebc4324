"""One policy on two machines: what differs is told from an exported file, and equal ids mean equal environments."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.reports.ground import plain, torch, train
from tests.scene import Scene

TORCH = torch("2.6.0+cu124", "12.4")


def node(root: Path, *versions: str) -> Scene:
    """A machine of its own, with its own folders and state; packages `ray` and `msgpack` of the given versions."""
    root.mkdir()
    scene = Scene(root)
    train(scene, TORCH, *(plain(name, version) for name, version in zip(("ray", "msgpack"), versions, strict=True)))
    return scene


def exported(scene: Scene) -> Path:
    answer = scene.lockd("export")
    assert answer.code == 0, answer.err
    return scene.file("state-of-this-node.json", answer.out)


@pytest.mark.parametrize("behind", ["ray", "msgpack"])
def test_a_worker_of_another_version_is_named(tmp_path: Path, behind: str) -> None:
    """ray-project/ray#1263, dask/distributed#3767: versions differ between nodes, and workers are silently dead."""
    versions = {"ray": "2.40.0", "msgpack": "1.1.0"}
    head = node(tmp_path / "head", *versions.values())
    worker = node(tmp_path / "worker", *{**versions, behind: "0.9.9"}.values())
    file = exported(head)
    answer = worker.lockd("diff", str(file), "now", "--json", "--exit-code")
    assert answer.code == 1, answer.out + answer.err
    assert [one["fact"] for one in answer.document["differences"]] == [f"package:train/{behind}"]
    text = worker.lockd("diff", str(file), "now").out
    assert f"{behind} {versions[behind]} → 0.9.9" in text, text
    assert head.verify().document["environment"] != worker.verify().document["environment"]


def test_two_equal_nodes_have_one_id_and_no_difference(tmp_path: Path) -> None:
    """ray-project/ray#1263, the good state: where a venv lies and when it was made is no difference."""
    head, worker = node(tmp_path / "head", "2.40.0", "1.1.0"), node(tmp_path / "elsewhere", "2.40.0", "1.1.0")
    answer = worker.lockd("diff", str(exported(head)), "now", "--exit-code")
    assert (answer.code, answer.out[:13]) == (0, "no difference"), answer.out
    assert head.verify().document["environment"] == worker.verify().document["environment"]
