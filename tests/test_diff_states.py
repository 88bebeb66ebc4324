"""`lockd diff`: two states by what can move the throughput, with when, by whom, and what nobody watched."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lockd import clock, evidence, ranking, store
from lockd.evidence import Span
from lockd.findings import Finding
from lockd.report import difference
from lockd.store import Event, Store
from tests.scene import Scene

POLICY = """
[[tree]]
path = "{root}/data"
[[file]]
path = "{root}/job/train.py"
keep = true
[[cache]]
path = "{root}/cache"
kind = "inductor"
[env]
TORCHINDUCTOR_CACHE_DIR = "locked"
"""


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    found = Scene(tmp_path)
    found.file("data/a.txt", "a\n")
    found.file("job/train.py", "lr = 1\n")
    for number in range(3):
        found.file(f"cache/ab/{number}.py", f"{number}\n")
    found.write_policy(POLICY.format(root=tmp_path))
    found.environ["TORCHINDUCTOR_CACHE_DIR"] = "/tmp/x"
    assert found.accept().code == 0
    return found


def groups(scene: Scene, *words: str, **how: Any) -> dict[str, list[str]]:
    told: dict[str, list[str]] = {}
    for row in scene.lockd("diff", "--json", *words, **how).document["differences"]:
        told.setdefault(row["group"], []).append(row["fact"])
    return told


def next_second() -> str:
    """Wait until the time that stamps have moved on; gives the second that ended."""
    now = then = clock.stamp()
    while now == then:
        time.sleep(0.05)
        now = clock.stamp()
    return then


def drift(scene: Scene) -> None:
    scene.file("data/a.txt", "another\n")
    scene.file("job/train.py", "lr = 2\n")
    (scene.root / "cache/ab/1.py").unlink()


def test_differences_stand_by_what_can_move_the_throughput(scene: Scene) -> None:
    drift(scene)
    told = groups(scene, env={"TORCHINDUCTOR_CACHE_DIR": "/elsewhere"})
    assert list(told) == [ranking.CACHE, ranking.LAUNCH, ranking.SCRIPTS, ranking.DATA]
    out = scene.lockd("diff").out
    assert out.index("compile caches:") < out.index("scripts:") < out.index("data:")
    assert scene.lockd("diff", "--stat").out.splitlines()[0].startswith("cache:")


def test_a_past_moment_can_be_compared_with_any_other(scene: Scene) -> None:
    drift(scene)
    scene.verify()
    then = next_second()
    scene.file("job/train.py", "lr = 3\n")
    scene.file("cache/ab/new.py", "grown\n")  # no drift, but another state
    scene.verify()
    assert groups(scene, then, "now") == {ranking.SCRIPTS: [f"file:{scene.root}/job/train.py"]}
    assert set(groups(scene, "@1", then)) == {ranking.CACHE, ranking.SCRIPTS, ranking.DATA}
    text = scene.lockd("diff", then, "now", "--exit-code")
    assert text.code == 1 and text.out.startswith("as seen at 20") and " → now: 1 difference" in text.out


def test_a_cache_that_only_grew_is_seen_as_such_between_past_states(scene: Scene) -> None:
    scene.file("cache/ab/new.py", "grown\n")
    assert scene.verify().code == 0  # nothing drifted; the state is kept all the same
    then = clock.stamp()
    assert groups(scene, "@1", then) == {}
    (scene.root / "cache/ab/new.py").unlink()
    assert groups(scene, then, "now") == {ranking.CACHE: [f"cache:{scene.root}/cache"]}


def test_when_is_told_and_what_nobody_watched(scene: Scene) -> None:
    next_second()
    drift(scene)
    scene.verify()
    document = scene.lockd("diff", "--json").document
    rows = document["differences"]
    assert all(row["since"] and row["unwatched"]["from"] <= row["unwatched"]["to"] == row["since"] for row in rows)
    (gap,) = document["gaps"]
    assert gap["from"] <= rows[0]["since"] <= gap["to"]
    assert f"no daemon watched from {gap['from']} to " in scene.lockd("diff").out


def test_the_text_of_kept_files_is_shown_between_any_two_states(scene: Scene) -> None:
    scene.file("job/train.py", "lr = 2\n")
    scene.accept()
    assert "-lr = 1\n+lr = 2\n" in scene.lockd("diff", "@1", "@2").out
    assert "-lr = 2\n+lr = 1\n" in scene.lockd("diff", "@2", "@1").out


def test_a_look_of_diff_records_what_it_finds(scene: Scene) -> None:
    drift(scene)
    scene.verify()
    scene.file("data/a.txt", "a\n")
    scene.lockd("diff")
    kinds = [(row["kind"], row["fact"]) for row in scene.lockd("log", "--json").document if "fact" in row]
    assert kinds[0] == ("heal", f"tree:{scene.root}/data")


def test_a_variable_of_a_launch_is_dated_by_the_runs(scene: Scene) -> None:
    """No watcher sees a shell: the runs tell which launch was the first without it, and who started it."""
    name = "TORCHINDUCTOR_CACHE_DIR"

    def run(value: str) -> None:
        assert scene.lockd("run", "--override", "try", "--", "true", env={name: value}).code == 0

    for value in ("/tmp/x", "/tmp/other", "/tmp/x", "/tmp/other", "/tmp/other"):
        run(value)
    (row,) = scene.lockd("diff", "run:1", "run:5", "--json").document["differences"]
    assert (row["fact"], row["launches"]) == (f"env:{name}", {"first": "run:4", "before": "run:3"})
    started = {one["id"]: one["start"] for one in scene.lockd("runs", "--json").document}
    assert row["since"] == started[4] and row["by"]["user"]
    text = scene.lockd("diff", "run:1", "run:5").out
    assert (
        f"since run:4, started {started[4]}, by {row['by']['user']}; run:3 of {started[3]} was not started so" in text
    )
    (row,) = scene.lockd("diff", "run:1", "run:2", "--json").document["differences"]
    assert row["launches"] == {"first": "run:2", "before": "run:1"}  # what came later says nothing
    (row,) = scene.lockd("diff", "run:1", "now", "--json", env={name: "/tmp/third"}).document["differences"]
    assert "launches" not in row and "since" not in row  # of this shell: no run was started so


# -- evidence over a log made here -------------------------------------------------------------------------------------


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Store]:
    tmp_path.chmod(0o700)
    opened = store.open(str(tmp_path / "store.sqlite"))
    assert opened is not None
    with opened:
        yield opened


def at(minute: int) -> str:
    return f"2026-11-30T20:{minute:02}:00Z"


def daemon(log: Store, minute: int, message: str) -> None:
    log.append(Event(at(minute), "daemon", message))


def finding(fact: str) -> Finding:
    return Finding(fact, "changed", "block", ("lock",), "moved", "")


def gone(pid: int, started: str) -> bool:
    """A daemon that does not live any more."""
    return False


def test_a_change_under_a_daemon_has_its_time_and_who(log: Store) -> None:
    daemon(log, 0, "started: lockd 1, pid 7")
    log.append(Event(at(5), "drift", "moved", "file:/a", {"exe": "/usr/bin/vim", "pid": 3}))
    daemon(log, 9, "stopped")
    told = evidence.of(log, [finding("file:/a"), finding("file:/b")], at(0), at(9), gone)
    assert told.findings[0].since == at(5) and told.findings[0].by == {"exe": "/usr/bin/vim", "pid": 3}
    assert told.findings[1].since is None and told.findings[1].by is None
    assert (told.unwatched, told.gaps) == ({}, ())


def test_what_a_daemon_finds_as_it_starts_happened_in_the_gap(log: Store) -> None:
    daemon(log, 0, "started: lockd 1, pid 7")
    daemon(log, 10, "stopped")
    daemon(log, 20, "started: lockd 1, pid 8")
    log.append(Event(at(20), "drift", "moved", "file:/a"))
    told = evidence.of(log, [finding("file:/a")], at(2), at(30), lambda pid, started: pid == 8)
    assert told.gaps == (Span(at(10), at(20)),)
    assert told.unwatched == {"file:/a": Span(at(10), at(20))}


def test_a_killed_daemon_is_known_to_its_last_word_only(log: Store) -> None:
    daemon(log, 0, "started: lockd 1, pid 7")
    log.append(Event(at(3), "look", "/a is looked at on a timer"))
    daemon(log, 20, "started: lockd 1, pid 8")
    told = evidence.of(log, [], at(0), at(30), gone)
    assert told.gaps == (Span(at(3), at(20)), Span(at(20), at(30)))


def test_without_a_daemon_the_look_before_bounds_the_change(log: Store) -> None:
    log.append(Event(at(1), "accept", "generation 1", generation=1))
    log.append(Event(at(4), "drift", "moved", "file:/b"))
    log.append(Event(at(8), "drift", "moved", "file:/a"))
    told = evidence.of(log, [finding("file:/a")], at(1), at(9), gone)
    assert told.unwatched == {"file:/a": Span(at(4), at(8))}
    assert told.gaps == (Span(at(1), at(9)),)


def test_events_outside_the_time_say_nothing(log: Store) -> None:
    log.append(Event(at(1), "drift", "moved", "file:/a"))
    log.append(Event(at(9), "drift", "moved", "file:/a"))
    assert evidence.of(log, [finding("file:/a")], at(2), at(8), gone).findings[0].since is None


def test_the_changes_before_the_last_are_told_back_to_where_it_was_as_locked(log: Store) -> None:
    by = {"user": "root", "cmdline": ["uv", "pip", "install"]}
    for minute, kind, message in (
        (2, "drift", "old"),
        (3, "heal", "back"),
        (4, "drift", "swapped"),
        (5, "drift", "patched"),
    ):
        log.append(Event(at(minute), kind, message, "file:/a", by))
    found = evidence.of(log, [finding("file:/a")], at(1), at(8), gone)
    assert found.findings[0].since == at(5)
    assert [(event.at, event.message) for event in found.earlier["file:/a"]] == [(at(4), "swapped")]
    groups = [("the rest", found.findings)]
    assert f"    before: {at(4)}, by uv pip install (root): swapped" in difference.lines(
        "a", "b", groups, found, colour=False
    )
    (row,) = difference.document("a", "b", groups, found)["differences"]
    assert row["earlier"] == [{"at": at(4), "message": "swapped", "by": by}]


# -- ranking -----------------------------------------------------------------------------------------------------------


def named(fact: str, because: str | None = None, **attributes: tuple[Any, Any]) -> Finding:
    return Finding(fact, "changed", "block", ("lock",), "moved", "", attributes, because=because)


def test_every_group_in_its_order() -> None:
    version = ("1", "2")
    listed = [
        named("command:x"),
        named("tree:/d"),
        named("file:/a"),
        named("gpu:driver"),
        named("launch:python"),
        named("env:A"),
        named("cache:/c"),
        named("package:t/transformers", version=version),
        named("package:t/nvidia-nccl-cu13", "package:t/torch", version=version),
        named("package:t/torch", version=version),
        named("unowned:t"),
    ]
    told = ranking.grouped(listed, {"unowned:t"})
    assert [group for group, _ in told] == list(ranking.GROUPS)
    assert [one.fact for one in told[0][1]] == ["package:t/torch", "package:t/nvidia-nccl-cu13"]
    assert sorted(one.fact for _, found in told for one in found) == sorted(one.fact for one in listed)
    assert [one.fact for one in told[-1][1]] == ["command:x", "package:t/transformers"]


def test_a_hand_patched_framework_is_no_other_build() -> None:
    patched = named("package:t/torch", content=("a", "b"))
    assert [group for group, _ in ranking.grouped([patched], {"package:t/torch"})] == [ranking.ORPHANED]
    assert [group for group, _ in ranking.grouped([patched])] == [ranking.REST]


def test_the_document_is_as_its_schema_says(scene: Scene) -> None:
    jsonschema = pytest.importorskip("jsonschema")
    schema = json.loads((Path(__file__).parents[1] / "docs/schemas/diff.schema.json").read_text())
    assert schema["properties"]["differences"]["items"]["properties"]["group"]["enum"] == list(ranking.GROUPS)
    drift(scene)
    for words in ((), ("@1", "now"), ("now", "lock")):
        jsonschema.validate(scene.lockd("diff", "--json", *words).document, schema)
