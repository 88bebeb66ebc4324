"""What an accept leaves as it was keeps its files, and what healed before it stands in the log."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from lockd import cli, lock
from tests.scene import Scene
from tests.wheels import Wheel, build_venv, install


def trees(root: Path) -> tuple[Scene, Path, Path]:
    """Two trees under one policy, accepted."""
    scene = Scene(root)
    rules = ""
    for name in ("a", "b"):
        for number in range(3):
            scene.file(f"{name}/{number}.txt", f"{number}\n")
        rules += f'[[tree]]\npath = "{root / name}"\ncheck = "full"\n'
    scene.write_policy(rules)
    assert scene.accept().code == 0
    return scene, root / "a", root / "b"


def kinds(scene: Scene) -> list[tuple[str, str | None]]:
    return [(row["kind"], row.get("fact")) for row in scene.lockd("log", "--json", "--reverse").document]


def test_accept_only_carries_over_the_files_of_what_it_left(tmp_path: Path) -> None:
    scene, a, b = trees(tmp_path)
    (a / "1.txt").write_text("other\n")
    (b / "2.txt").write_text("other\n")
    assert scene.accept("--only", f"tree:{a}").code == 0
    for _ in range(2):  # over more than one generation
        (finding,) = scene.verify().document["findings"]
        assert finding["fact"] == f"tree:{b}"
        assert finding["files"] == {"changed": 1, "added": 0, "missing": 0, "examples": ["2.txt"]}
        (a / "1.txt").write_text("yet another\n")
        assert scene.accept("--only", f"tree:{a}").code == 0
    # what was accepted has its new files, and not those of before
    (a / "1.txt").write_text("other\n")
    changed = next(one for one in scene.verify().document["findings"] if one["fact"] == f"tree:{a}")
    assert changed["files"]["examples"] == ["1.txt"]


def test_accept_only_carries_over_the_entries_that_the_lock_leaves_to_the_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(lock, "ENTRIES", 2)  # of a hundred thousand: within this process
    monkeypatch.setenv("LOCKD_STATE", str(tmp_path / "state"))
    scene = Scene(tmp_path)
    for name in ("a", "b"):
        for number in range(3):
            scene.file(f"{name}/{number}.txt")
    rules = (f'[[tree]]\npath = "{tmp_path / name}"\ncheck = "full"\nchange = "grow"\n' for name in ("a", "b"))
    scene.write_policy("".join(rules))

    def lockd(*words: str) -> str:
        cli.main(["--policy", str(scene.policy), *words])
        return capsys.readouterr().out

    lockd("accept", "-m", "good", "--yes")
    assert "entries_in_store" in scene.lock.read_text()
    (tmp_path / "a" / "1.txt").write_text("other\n")
    scene.file("b/new.txt")
    lockd("accept", "-m", "good", "--yes", "--only", f"tree:{tmp_path}/a")
    assert json.loads(lockd("verify", "--json"))["verdict"] == "ok"
    (tmp_path / "b" / "2.txt").unlink()
    (finding,) = json.loads(lockd("verify", "--json"))["findings"]
    assert (finding["change"], finding["files"]["missing"], finding["files"]["added"]) == ("changed", 1, 0)


@pytest.mark.parametrize("accepts", [("-m", "again", "--yes"), ("-m", "again", "--yes", "--only", "job/a.py")])
def test_what_healed_before_an_accept_is_in_the_log_as_healed(tmp_path: Path, accepts: tuple[str, ...]) -> None:
    scene = Scene(tmp_path)
    scene.file("job/a.py")
    (tmp_path / "empty").mkdir()
    scene.write_policy(
        f'[[file]]\npath = "{tmp_path}/job/*.py"\n[[cache]]\npath = "{tmp_path}/empty"\nchange = "empty"\n'
    )
    assert scene.accept().code == 0
    new, planted = scene.file("job/b.py"), scene.file("empty/x")
    assert scene.verify().code == 1
    new.unlink()
    planted.unlink()
    assert scene.lockd("accept", *accepts).code == 0
    healed = {("heal", f"file:{new}"), ("heal", f"cache:{tmp_path}/empty")}
    assert set(kinds(scene)[3:5]) == healed
    assert [kind for kind, _ in kinds(scene)] == ["accept", "drift", "drift", "heal", "heal", "accept"]
    assert scene.verify().code == 0


def test_what_is_accepted_did_not_heal(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    path = scene.file("job/a.py")
    scene.write_policy(f'[[file]]\npath = "{path}"\n')
    scene.accept()
    path.write_text("x = 2\n")
    scene.verify()
    assert scene.accept().code == 0
    assert [kind for kind, _ in kinds(scene)] == ["accept", "drift", "accept"]


def test_a_dry_run_records_neither_drift_nor_heal(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    path = scene.file("job/a.py")
    scene.write_policy(f'[[file]]\npath = "{path}"\n')
    scene.accept()
    path.write_text("x = 2\n")
    assert scene.accept("--dry-run").code == 0
    assert [kind for kind, _ in kinds(scene)] == ["accept"]


def test_a_forbidden_package_that_went_before_an_accept_is_in_the_log_as_healed(tmp_path: Path) -> None:
    scene, env = Scene(tmp_path), build_venv(tmp_path / "venv")
    scene.write_policy(f'[[python]]\nname = "train"\npath = "{env.prefix}"\nforbid = ["sglang"]\n')
    assert scene.accept().code == 0
    install(env, Wheel("sglang", "0.5", {"sglang/__init__.py": ""}), by="pip")
    assert scene.verify().document["findings"][0]["change"] == "forbidden"
    for name in ("sglang", "sglang-0.5.dist-info"):
        shutil.rmtree(env.site / name)
    assert scene.accept().code == 0
    assert ("heal", "package:train/sglang") in kinds(scene)
    assert scene.lockd("log", "--check").code == 0
