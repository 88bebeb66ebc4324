"""What an edit of torch does to the compile caches that its environment fills, told before the launch."""

from __future__ import annotations

import shutil
import tarfile
from pathlib import Path

import pytest

from lockd import consequences
from lockd.facts import Attributes, Fact, Facts, Unknown
from lockd.findings import FileChanges, Finding
from lockd.rules import CacheRule, Policy, PythonRule
from tests.scene import Scene
from tests.wheels import Env, Wheel, build_venv, install

CACHE = Path(__file__).parent / "data" / "torchinductor_root.tgz"
TRACE = "torch/fx/_symbolic_trace.py"


def torch(label: str = "+cu128") -> Wheel:
    files = {
        "torch/__init__.py": "from .version import __version__\n",
        "torch/version.py": f"__version__ = '2.11.0{label}'\ncuda = '12.8'\n",
        "torch/fx/__init__.py": "",
        TRACE: "def is_fx_symbolic_tracing():\n    return flag\n",
        "torch/lib/readme.txt": "no module\n",
    }
    return Wheel("torch", "2.11.0", files)


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("cache")
    with tarfile.open(CACHE) as archive:
        archive.extractall(folder)
    return folder / "torchinductor_root"


@pytest.fixture
def job(tmp_path: Path, cache: Path) -> tuple[Scene, Env, Path]:
    """A venv with a torch, and the compile cache of a real run, accepted."""
    scene, env = Scene(tmp_path), build_venv(tmp_path / "venv")
    install(env, torch(), by="pip")
    here = tmp_path / "torchinductor_root"
    shutil.copytree(cache, here)
    scene.write_policy(
        f'[[python]]\nname = "train"\npath = "{env.prefix}"\n'
        f'[[cache]]\npath = "{here}"\nkind = "inductor"\npython = "train"\n'
    )
    assert scene.accept().code == 0
    return scene, env, here


def told(scene: Scene) -> dict[str, str]:
    return {one["fact"]: one["message"] for one in scene.verify().document["findings"]}


def test_a_hand_patch_orphans_the_cache_and_the_bytes_bring_it_back(job: tuple[Scene, Env, Path]) -> None:
    scene, env, here = job
    # the 2 FX graphs, 1 AOTAutograd entry and 8 autotuned choices that a real H200 compiled anew after such an edit; it
    # found the 303 other entries again
    count = 11
    path = env.site / TRACE
    old = path.read_text()
    path.write_text(old.replace("return flag", "return False"))
    message = told(scene)["package:train/torch"]
    assert TRACE in message
    assert f"orphans {count} entries of {here}; restoring the file brings them back" in message
    assert f"orphans {count} entries" in scene.lockd("diff").out
    path.write_text(old)
    assert told(scene) == {}


def test_a_file_that_is_no_module_orphans_nothing(job: tuple[Scene, Env, Path]) -> None:
    scene, env, _ = job
    (env.site / "torch/lib/readme.txt").write_text("edited\n")
    assert "orphans" not in told(scene)["package:train/torch"]


def test_a_module_of_nobody_in_torch_orphans_too(job: tuple[Scene, Env, Path]) -> None:
    scene, env, here = job
    (env.site / "torch/planted.py").write_text("x = 1\n")
    message = told(scene)["unowned:train"]
    assert f"entries of {here}; removing the files brings them back" in message


def test_another_build_orphans_what_the_locked_one_filled(job: tuple[Scene, Env, Path]) -> None:
    scene, env, _ = job
    install(env, torch("+cu130"), by="pip")
    message = told(scene)["package:train/torch"]
    assert message.startswith("torch 2.11.0+cu128 → 2.11.0+cu130") and "restoring the locked build brings" in message


def test_the_lock_tells_what_the_cache_was_filled_under(job: tuple[Scene, Env, Path]) -> None:
    scene, env, here = job
    first = scene.lock.read_text()
    (line,) = {line for line in first.splitlines() if "torch_key" in line and str(here) in line} or {""}
    assert scene.verify().document["environment"] in first
    # another torch is accepted over the same cache: that one was still filled under the first
    path = env.site / TRACE
    path.write_text(path.read_text() + "# edited\n")
    assert scene.lockd("accept", "-m", "meant", "--yes", "--allow-modified", "torch").code == 0
    keys = [row for row in scene.lockd("export", "lock", "--format", "json").document["facts"] if "told" in row]
    by_name = {row["fact"]: row["told"] for row in keys}
    assert by_name[f"cache:{here}"]["torch_key"] != by_name["package:train/torch"]["torch_key"]
    assert by_name[f"cache:{here}"]["environment"].startswith("env1:") and line is not None


# -- over facts made here


POLICY = Policy(
    "ct",
    python=(PythonRule("train", "/venv"),),
    cache=(CacheRule("/c", "inductor", python="train"), CacheRule("/t", "triton", python="train")),
)


def facts(torch_key: str, triton_key: str = "t", filed: int = 2) -> Facts:
    inductor: Attributes = {"filed_torch_key": filed, "filed_triton_key": filed}
    return Facts(
        [
            Fact("package", "train/torch", {}, {"torch_key": torch_key} if torch_key else {}),
            Fact("package", "train/triton", {}, {"triton_key": triton_key}),
            Fact("cache", "/c", {"entries": 5}, inductor),
            Fact("cache", "/t", {"entries": 2}, {"filed_triton_key": 2}),
        ]
    )


def finding(fact: str, files: int = 1) -> Finding:
    return Finding(fact, "changed", "block", ("lock",), "moved", "", files=FileChanges(files))


def said(before: Facts, after: Facts, *names: str) -> list[str]:
    return [one.message for one in consequences.added(POLICY, [finding(name) for name in names], before, after)]


def test_only_entries_that_the_lock_knows_and_that_are_there_count() -> None:
    assert said(facts("a"), facts("b", filed=1), "package:train/torch") == [
        "moved; orphans 1 entry of /c; restoring the file brings it back"
    ]
    assert said(facts("a", filed=1), facts("b", filed=9), "package:train/torch") == [
        "moved; orphans 1 entry of /c; restoring the file brings it back"
    ]
    assert said(facts("a"), facts("b", filed=0), "package:train/torch") == ["moved"]


def test_triton_orphans_both_kinds_and_torch_its_own() -> None:
    (message,) = said(facts("a"), facts("a", "u"), "package:train/triton")
    assert "2 entries of /c, 2 entries of /t" in message
    both = said(facts("a"), facts("b", "u"), "package:train/torch", "package:train/triton")
    assert ["/c" in text for text in both] == [True, True] and "/t" not in both[0]


@pytest.mark.parametrize(("before", "after"), [("a", "a"), ("", "b"), ("a", "")])
def test_without_two_keys_that_differ_nothing_is_said(before: str, after: str) -> None:
    assert said(facts(before), facts(after), "package:train/torch") == ["moved"]


def test_a_cache_that_could_not_be_read_is_not_counted() -> None:
    after = Facts([*(one for one in facts("b").values() if one.name != "cache:/c"), Unknown("cache", "/c", "why")])
    assert said(facts("a"), after, "package:train/torch") == ["moved"]
