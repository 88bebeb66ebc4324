"""`max_age`: a gate takes the last look at a large tree; what a person asks for is looked at."""

from __future__ import annotations

from pathlib import Path

import pytest

from lockd import lastlook
from lockd.facts import Fact
from lockd.lastlook import ENTRIES, LastLooks
from tests.scene import Scene

FACT = Fact("tree", "/data", {"digest": "sha256:1", "entries": 2}, {"links": 0}, frozenset({"a", "b"}))


def large_tree(root: Path, names: int) -> Path:
    for number in range(names):
        folder = root / f"part-{number % 10}"
        if number < 10:
            folder.mkdir(parents=True)
        (folder / f"{number}").touch()
    return root


def accepted(root: Path, names: int, max_age: str) -> Scene:
    scene = Scene(root)
    data = large_tree(root / "data", names)
    scene.write_policy(f'[[tree]]\npath = "{data}"\nmax_age = "{max_age}"\n')
    answer = scene.accept()
    assert answer.code == 0, answer.err
    return scene


def test_a_gate_takes_the_last_look_at_a_large_tree_and_never_refuses_by_it(tmp_path: Path) -> None:
    scene = accepted(tmp_path, ENTRIES, "1h")  # and ten folders: more than 50,000 names
    data = tmp_path / "data"
    (data / "part-1" / "new").touch()
    # 1. the gate takes the look of the accept, and says so
    launch = scene.lockd("run", "--", "true")
    assert launch.code == 0, launch.err
    assert f"not looked at again: tree:{data} (" in launch.err and " s old)" in launch.err
    # 2. a person's question is looked at
    verified = scene.verify()
    assert verified.code == 1 and verified.facts == [f"tree:{data}"] and verified.document["not_looked"] == []
    # 3. what differed in the last look is looked at again, whatever its age: still there, then mended
    refused = scene.lockd("run", "--", "true")
    assert refused.code == 78 and "not looked at again" not in refused.err
    (data / "part-1" / "new").unlink()
    mended = scene.lockd("run", "--", "true")
    assert mended.code == 0 and "not looked at again" not in mended.err
    # 4. what is at the path is looked at in any case
    data.rename(tmp_path / "away")
    gone = scene.lockd("run", "--", "true")
    assert gone.code == 78 and f"{data}" in gone.err
    large_tree(data, 20)
    assert scene.lockd("run", "--", "true").code == 78, "another folder under the same name"


def test_a_last_look_that_is_too_old_or_a_small_tree_is_looked_at(tmp_path: Path) -> None:
    scene = accepted(tmp_path, 20, "1h")
    (tmp_path / "data" / "new").touch()
    assert scene.lockd("run", "--", "true").code == 78, "a small tree"


def test_the_age_of_a_look_is_told_by_the_clock_that_nobody_sets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = LastLooks(str(tmp_path / "last"))
    looks.keep(("tree", "/data"), (1000.0, "boot", 50.0), "stamp", FACT)

    def found(now: tuple[float, str, float], seconds: float = 3600) -> tuple[Fact, float] | None:
        monkeypatch.setattr(lastlook, "begin", lambda: now)
        return looks.find(("tree", "/data"), seconds)

    assert found((5.0, "boot", 50.0 + 41 * 60)) == (FACT, 41 * 60), "the calendar was set back"
    assert found((9e9, "boot", 50.0 + 3600)) == (FACT, 3600)
    assert found((1001.0, "boot", 50.0 + 3601)) is None, "too old, whatever the calendar says"
    assert found((1000.0 + 60, "next boot", 3.0)) == (FACT, 60)
    assert found((999.0, "next boot", 3.0)) is None, "a look from the future"
    monkeypatch.undo()
    assert looks.find(("tree", "/other"), 3600) is None
    assert LastLooks(None).find(("tree", "/data"), 3600) is None


def test_a_torn_last_look_is_none_and_a_forgotten_one_stays_forgotten(tmp_path: Path) -> None:
    looks = LastLooks(str(tmp_path / "last"))
    looks.keep(("a",), lastlook.begin(), "stamp", FACT)
    assert looks.find(("a",), 60) is not None
    looks.keep(("a",), lastlook.begin(), "stamp", FACT)
    assert looks.find(("a",), 60) is not None, "the fact of an equal stamp stands"
    (kept,) = (tmp_path / "last").glob("*.seen")
    kept.write_bytes(kept.read_bytes()[:-1])
    assert looks.find(("a",), 60) is None
    kept.unlink()
    looks.keep(("a",), lastlook.begin(), "stamp", FACT)
    assert looks.find(("a",), 60) is not None
    looks.forget(("a",))
    assert looks.find(("a",), 60) is None


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(0.4, "0 s old"), (59, "59 s old"), (41 * 60 + 59, "41 min old"), (3 * 3600, "3 h old"), (1e6, "11 days old")],
)
def test_ages_in_words(seconds: float, words: str) -> None:
    assert lastlook.old(seconds) == words
