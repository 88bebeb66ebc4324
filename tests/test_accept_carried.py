"""What an accept leaves as it was keeps its files, and what healed before it stands in the log."""

from __future__ import annotations

from pathlib import Path

import pytest

from lockd.lock import ENTRIES
from tests.scene import Scene


def trees(root: Path, files: int = 3, rule: str = "") -> tuple[Scene, Path, Path]:
    """Two trees under one policy, accepted."""
    scene = Scene(root)
    rules = ""
    for name in ("a", "b"):
        for number in range(files):
            scene.file(f"{name}/{number}.txt", f"{number}\n")
        rules += f'[[tree]]\npath = "{root / name}"\ncheck = "full"\n{rule}\n'
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


def test_accept_only_carries_over_the_entries_that_the_lock_leaves_to_the_store(tmp_path: Path) -> None:
    scene, a, b = trees(tmp_path, ENTRIES + 1, 'change = "grow"')
    (a / "1.txt").write_text("other\n")
    scene.file("b/new.txt")
    assert scene.accept("--only", f"tree:{a}").code == 0
    assert scene.verify().document["verdict"] == "ok"
    (b / "2.txt").unlink()
    (finding,) = scene.verify().document["findings"]
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
