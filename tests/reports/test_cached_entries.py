"""Caches and hub folders that hold something else than they did: models, data sets, compiled code."""

from __future__ import annotations

import tarfile
from pathlib import Path

from tests.reports.ground import accepted, says, told
from tests.scene import ROOT, Scene

OLD, NEW = "0e9e39f249a16976918f6564b8830bc894c89659", "d04e592bb4f6aa9cfee91e2e20afa771667e1d4b"


def hub(scene: Scene, repository: str, commit: str, **files: str) -> Path:
    """A repository as huggingface_hub caches it: blobs, a snapshot that links to them, the reference that names it."""
    folder = scene.root / "home/.cache/huggingface/hub" / repository
    snapshot = folder / "snapshots" / commit
    for part in (folder / "blobs", folder / "refs", snapshot):
        part.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        blob = folder / "blobs" / f"{commit[:8]}{name}"
        blob.write_text(text)
        (snapshot / f"{name}.json").symlink_to(f"../../blobs/{blob.name}")
    (folder / "refs/main").write_text(commit)
    return scene.root / "home/.cache/huggingface"


def hub_rule(folder: Path) -> str:
    return f'[[cache]]\npath = "{folder}"\nkind = "huggingface"\n'


def test_a_tokenizer_from_main_beside_pinned_weights(tmp_path: Path) -> None:
    """huggingface/trl#6978: the weights were pinned to a commit, the tokenizer was taken from main, and main moved. The
    pinned snapshot is as it was; the reference is named."""
    scene = Scene(tmp_path)
    folder = hub(scene, "models--org--drafter", OLD, config="{}", tokenizer='{"vocab": 1}')
    scene.write_policy(hub_rule(folder))
    accepted(scene)
    hub(scene, "models--org--drafter", NEW, config="{}", tokenizer='{"vocab": 2}')
    told(scene, f"cache:{folder}", "changed", "1 of ", "changed", "hub/models--org--drafter/refs/main")


def test_a_data_set_that_moved_on_the_hub(tmp_path: Path) -> None:
    """huggingface/datasets#6465: the data set changed on the hub, and an old cached copy was used on one machine: the
    commit that `main` stands for is the fact, on either side."""
    scene = Scene(tmp_path)
    folder = hub(scene, "datasets--org--tokens", OLD, info='{"rows": 900000}')
    scene.write_policy(hub_rule(folder))
    accepted(scene)
    hub(scene, "datasets--org--tokens", NEW, info='{"rows": 1100000}')
    told(scene, f"cache:{folder}", "changed", "changed", "hub/datasets--org--tokens/refs/main")


def test_a_file_of_a_data_set_that_is_another(tmp_path: Path) -> None:
    """huggingface/datasets#6465, the files themselves: one shard of the same name and size holds other rows."""
    scene = Scene(tmp_path)
    shard = scene.file("data/train-00000.arrow", "row 1\nrow 2\n")
    scene.file("data/train-00001.arrow", "row 3\nrow 4\n")
    scene.write_policy(f'[[tree]]\npath = "{scene.root}/data"\ncheck = "full"\n')
    accepted(scene)
    shard.write_text("row 1\nrow 9\n")
    told(scene, f"tree:{scene.root}/data", "changed", "1 changed", "train-00000.arrow")


def test_a_stale_entry_of_inductor(tmp_path: Path) -> None:
    """pytorch/pytorch#136883: wrong results until /tmp/torchinductor_… was deleted: an entry was not what the good run
    had left. The cache is that of a real job."""
    scene = Scene(tmp_path)
    with tarfile.open(ROOT / "tests/data/torchinductor_root.tgz") as archive:
        archive.extractall(scene.root)
    folder = scene.root / "torchinductor_root"
    scene.write_policy(f'[[cache]]\npath = "{folder}"\nkind = "inductor"\n')
    accepted(scene)

    compiled = max(folder.rglob("*.cubin"), key=lambda path: path.stat().st_size)

    content = bytearray(compiled.read_bytes())
    content[len(content) // 2] ^= 1
    compiled.write_bytes(content)
    told(scene, f"cache:{folder}", "changed", "1 of ", "entries changed", compiled.name)


def test_an_entry_of_inductor_that_the_good_run_never_made(tmp_path: Path) -> None:
    """pytorch/pytorch#136883: an entry of another configuration beside the good ones, where the cache has to be exactly
    that of the good run."""
    scene = Scene(tmp_path)
    folder = scene.file("torchinductor_bnell/ab/cab.py", "# generated\n").parents[1]
    scene.write_policy(f'[[cache]]\npath = "{folder}"\nkind = "inductor"\nchange = "exact"\n')
    accepted(scene)
    (folder / "cd").mkdir()
    (folder / "cd/ccd.py").write_text("# generated under another configuration\n")
    found = told(scene, f"cache:{folder}", "changed", "1 new", "cd/ccd.py")
    assert says(scene, found)
