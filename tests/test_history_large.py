"""The sizes of a long life: 100,000 events, 1,000 states of 38,000 files, and a diff of two of them. Prints numbers."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from lockd import clock, history, lock, state
from lockd.facts import Fact, Facts, Value
from lockd.store import Event, Store
from tests.scene import Scene

PACKAGES, FILES, STATES, EVENTS = 200, 38_000, 1_000, 100_000

pytestmark = pytest.mark.slow


def package(number: int, build: str = "0") -> Fact:
    digest = f"sha256:{number:032x}{build:0>32}"
    attributes = {"version": f"1.{number}+{build}", "tag": "cp311-cp311-linux_x86_64", "record": digest}
    requires = tuple(f"p{other}>=1" for other in range(number % 5))
    told: dict[str, Value] = {"files": FILES // PACKAGES, "requires": requires, "installer": "uv", "root": "/venv/lib"}
    return Fact("package", f"train/p{number}", {**attributes, "content": digest}, told)


def manifest(number: int, build: str = "0") -> dict[str, str]:
    return {f"p{number}/sub{one % 12}/module_{one}.py": f"{number * 1000 + one:062x}{build:0>2}" for one in range(190)}


def fill(store: Store, facts: Facts, events: int, states: int) -> None:
    """States that each have a package edited besides, and events about them."""
    at = 1_700_000_000.0
    with store.transaction():
        for number in range(states):
            edited, build = number % PACKAGES, str(1 + number // PACKAGES)
            now = Facts(
                [*(one for one in facts.values() if one.name != f"package:train/p{edited}"), package(edited, build)]
            )
            behind = {f"package:train/p{edited}": manifest(edited, build)}
            history.keep_facts(store, now, f"env1:{number}", clock.stamp(at + number * 60), behind)
        for number in range(events):
            fact = f"package:train/p{number % PACKAGES}"
            kind = ("drift", "heal")[number // PACKAGES % 2]
            message = f"p{number % PACKAGES} 1.0 → 1.{number} (190 files)"
            by = {"pid": number, "exe": "/root/.local/bin/uv", "user": "root", "cmdline": ["uv", "pip", "install"]}
            event = Event(clock.stamp(at + number), kind, message, fact, by, generation=1, state=1 + number % states)
            store.append(event)


def timed(scene: Scene, *words: str) -> float:
    """The best of five calls, seconds."""
    best = 60.0
    for _ in range(5):
        started = time.perf_counter()
        assert scene.lockd(*words).code == 0
        best = min(best, time.perf_counter() - started)
    return best


def test_a_long_history_stays_small_and_quick(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scene = Scene(tmp_path)
    path = scene.file("job/train.py")
    scene.write_policy(f'[[file]]\npath = "{path}"\n')
    assert scene.accept().code == scene.verify().code == 0
    commands = (("verify", "--json"), ("log", "-n", "10", "--json"), ("log", "--since", "1h", "--json"))
    before = {words: timed(scene, *words) for words in commands}
    monkeypatch.setenv("LOCKD_STATE", str(scene.state))
    place = state.open(str(scene.policy), create=True)
    opened = place.store() if place is not None else None
    assert place is not None and opened is not None
    facts = Facts(package(number) for number in range(PACKAGES))
    started = time.perf_counter()
    with opened:
        with opened.transaction():
            for number in range(PACKAGES):  # what a generation of such an environment has behind it
                name, digest = f"package:train/p{number}", opened._manifest(manifest(number))
                opened.change("INSERT INTO generation_manifests VALUES (1, ?, ?)", name, digest)
        fill(opened, facts, EVENTS, STATES)
        opened.rows("PRAGMA wal_checkpoint(TRUNCATE)")
    size = os.path.getsize(place.store_path) / 1e6
    after = {words: timed(scene, *words) for words in commands}
    print(f"\n{EVENTS:,} events, {STATES:,} states: {size:.0f} MB, filled in {time.perf_counter() - started:.0f} s")
    for words in commands:
        print(
            f"lockd {' '.join(words)}: {before[words] * 1000:.0f} ms with a few, {after[words] * 1000:.0f} ms with all"
        )
    assert size <= 200
    assert scene.lockd("log", "--check").code == 0
    assert scene.lockd("diff", "2023-11-15T00:00Z", "2023-11-15T12:00Z", "--exit-code").code == 1


def test_a_diff_of_two_large_states_is_quick(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two generations of 200 packages with 38,000 files, all of another build."""
    scene = Scene(tmp_path)
    path = scene.file("job/train.py")
    scene.write_policy(f'[[file]]\npath = "{path}"\n[[python]]\nname = "train"\npath = "{tmp_path}/none"\n')
    monkeypatch.setenv("LOCKD_STATE", str(scene.state))
    place = state.open(str(scene.policy), create=True)
    opened = place.store(create=True) if place is not None else None
    assert opened is not None
    with opened:
        for number, build in ((1, "0"), (2, "1")):
            facts = Facts(package(one, build) for one in range(PACKAGES))
            made = lock.Lock(
                "ct", "sha256:p", number, f"2026-11-30T00:00:0{number}Z", "root", "x", "env1:a", "launch1:b", facts
            )
            data = lock.dumps(made)
            made = lock.parse(data, "x")
            opened.prepare(made, data, {f"package:train/p{one}": manifest(one, build) for one in range(PACKAGES)}, {})
            opened.settle(made, data)
    best = 60.0
    for _ in range(5):
        started = time.perf_counter()
        answer = scene.lockd("diff", "@1", "@2", "--json")
        best = min(best, time.perf_counter() - started)
    rows = answer.document["differences"]
    bare = min(_python() for _ in range(5))
    print(f"\ndiff of {FILES:,} files, {PACKAGES} packages: {best * 1000:.0f} ms; a bare python: {bare * 1000:.0f} ms")
    assert len(rows) == PACKAGES and sum(row["files"]["changed"] for row in rows) == FILES


def _python() -> float:
    started = time.perf_counter()
    subprocess.run([sys.executable, "-c", "pass"], check=True)
    return time.perf_counter() - started
