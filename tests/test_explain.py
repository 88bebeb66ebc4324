"""What the store adds to a difference: the files left of a package that is gone, and bits that alone moved."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.daemons import Daemon, until
from tests.reports.ground import accepted, plain, told, train
from tests.scene import Scene
from tests.wheels import Env, Wheel


@pytest.fixture
def made(tmp_path: Path) -> tuple[Scene, Env]:
    scene = Scene(tmp_path)
    tool = Wheel("tool", "1.0", {"tool/__init__.py": "", "tool/bin/x": "#!/bin/sh\n"}, executable=("tool/bin/x",))
    env = train(scene, plain("alpha", "1.0", alpha__more="y = 1\n"), plain("beta", "1.0"), tool)
    accepted(scene)
    return scene, env


def findings(scene: Scene) -> dict[str, Any]:
    return {one["fact"]: one for one in scene.verify().document["findings"]}


def test_a_package_of_which_only_the_metadata_was_removed_is_one_cause(made: tuple[Scene, Env]) -> None:
    """Both stay findings, so that neither's severity is lost; the files bear the package as their cause."""
    scene, env = made
    shutil.rmtree(env.info("alpha"))
    answer = scene.verify()
    found = {one["fact"]: one for one in answer.document["findings"]}
    assert answer.code == 1 and list(found) == ["package:train/alpha", "unowned:train"]
    said = "alpha 1.0 is gone; its removal left alpha/__init__.py, alpha/more.py"
    assert found["package:train/alpha"]["message"] == said and "because" not in found["package:train/alpha"]
    assert found["unowned:train"]["because"] == "package:train/alpha"
    text = scene.lockd("verify").out.splitlines()
    assert "2 findings, 1 cause" in text[0]
    assert text[2].strip().startswith("and files of train that belong to no package: 2 new")


def test_files_of_a_package_that_is_gone_which_were_edited_are_a_cause_of_their_own(made: tuple[Scene, Env]) -> None:
    scene, env = made
    shutil.rmtree(env.info("alpha"))
    (env.site / "alpha/more.py").write_text("y = 2\n")
    assert "because" not in findings(scene)["unowned:train"]


def test_a_new_file_beside_what_a_removal_left_is_a_cause_of_its_own(made: tuple[Scene, Env]) -> None:
    scene, env = made
    shutil.rmtree(env.info("alpha"))
    (env.site / "mine.py").write_text("")
    assert "because" not in findings(scene)["unowned:train"]


def test_a_lock_without_its_store_tells_both_and_folds_nothing(made: tuple[Scene, Env]) -> None:
    scene, env = made
    shutil.rmtree(env.info("alpha"))
    shutil.rmtree(scene.state)
    found = findings(scene)
    assert list(found) == ["package:train/alpha", "unowned:train"] and "because" not in found["unowned:train"]


def test_an_execute_bit_alone_is_said_to_be_one(made: tuple[Scene, Env]) -> None:
    scene, env = made
    (env.site / "tool/bin/x").chmod(0o644)
    told(scene, "package:train/tool", "changed", "tool 1.0: 1 file lost its execute bit: tool/bin/x")
    (env.site / "tool/bin/x").chmod(0o755)
    for path in (env.site / "beta/__init__.py", env.site / "tool/__init__.py"):
        path.chmod(0o755)
    found = findings(scene)
    assert found["package:train/beta"]["message"] == "beta 1.0: 1 file gained its execute bit: beta/__init__.py"
    (env.site / "tool/__init__.py").write_text("z = 1\n")
    assert "execute" not in findings(scene)["package:train/tool"]["message"], "its contents moved too"


def test_the_daemon_tells_what_a_removal_left_and_forgets_it_with_its_cause(made: tuple[Scene, Env]) -> None:
    """Looks come one at a time: the package may be known to be gone before its files are seen, and the other way."""
    scene, env = made
    with Daemon(scene) as daemon:
        daemon.ready()
        kept = scene.root / "kept"

        def told_so(because: str | None, *facts: str) -> bool:
            answer = scene.verify().document
            found = {one["fact"]: one for one in answer["findings"]}
            return list(found) == [*facts] and found[facts[-1]].get("because") == because

        env.info("alpha").rename(kept)
        until(lambda: told_so("package:train/alpha", "package:train/alpha", "unowned:train"), "one cause")
        (env.site / "mine.py").write_text("")
        until(lambda: told_so(None, "package:train/alpha", "unowned:train"), "two causes")
        (env.site / "mine.py").unlink()
        until(lambda: told_so("package:train/alpha", "package:train/alpha", "unowned:train"), "one cause again")
        shutil.rmtree(env.site / "alpha")
        until(lambda: told_so(None, "package:train/alpha"), "the package alone")
        assert findings(scene)["package:train/alpha"]["message"] == "alpha 1.0 is gone"
