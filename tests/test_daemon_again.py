"""What a launch no longer waits for: judging the same again, and the disk."""

from __future__ import annotations

import os
from pathlib import Path

from lockd import check, store
from lockd.daemon.again import Judge
from lockd.daemon.launches import Kept
from lockd.facts import Fact, Facts
from lockd.lock import Lock
from lockd.look import Sight
from lockd.plain import replace
from lockd.rules import Policy
from lockd.state import State
from lockd.store import Event
from tests.scene import Scene


def _judged(judge: Judge, policy: Policy, sight: Sight, lock: Lock | None, state: State | None) -> check.Report:
    return judge(policy, sight, state=state, lock=lock, launch=None, started=0.0)


def test_the_same_facts_are_judged_once_and_others_anew(tmp_path: Path) -> None:
    from lockd import lock as locks
    from lockd import policy, state

    scene = Scene(tmp_path)
    scene.file("model.py", "x = 1\n")
    scene.write_policy(f'[[file]]\npath = "{scene.root}/model.py"\n')
    assert scene.accept().code == 0
    loaded = policy.load(str(scene.policy))
    lock = locks.read(loaded.lock_path, policy=loaded.name)
    os.environ["LOCKD_STATE"], before = str(scene.state), os.environ.get("LOCKD_STATE")
    try:
        own = state.open(str(scene.policy), create=False)
    finally:
        os.environ.pop("LOCKD_STATE")
        if before is not None:
            os.environ["LOCKD_STATE"] = before

    def look() -> Sight:
        return check.see(loaded, state=own, launch=None)

    judge, first, second = Judge(), look(), look()
    good = _judged(judge, loaded, first, lock, own)
    again = _judged(judge, loaded, second, lock, own)
    assert good.verdict == again.verdict == "ok"
    assert again.findings is good.findings and again.environment == good.environment and again.sight is second
    scene.file("model.py", "x = 2\n")
    other = _judged(judge, loaded, look(), lock, own)
    assert other.verdict == "block" and [one.fact for one in other.findings] == [f"file:{scene.root}/model.py"]
    assert _judged(judge, loaded, look(), lock, own) is not other  # a report with a finding is made each time
    assert _judged(judge, loaded, first, None, own).verdict == "unknown"  # another lock: none
    told = [replace(one, told={"x": 1}) if isinstance(one, Fact) else one for one in first.facts.values()]
    known = _judged(judge, loaded, first, lock, own)
    anew = _judged(judge, loaded, replace(first, facts=Facts(told)), lock, own)
    assert anew.verdict == "ok" and anew.sight.facts != known.sight.facts


def test_what_is_synced_later_stands_in_the_store_at_once(tmp_path: Path) -> None:
    path = str(tmp_path / "store.sqlite")
    opened = store.open(path)
    assert opened is not None
    opened.sync_later()
    opened.append(Event("2026-01-01T00:00:00Z", "note", "one"))
    with store.open(path) or opened as other:
        assert [one.event.message for one in other.events()] == ["one"]
    store.synced(path)
    opened.close()
    store.synced(path)  # nothing is left to put there


def test_a_store_that_took_another_s_place_is_held_in_its_stead(tmp_path: Path) -> None:
    own, kept = State(str(tmp_path)), Kept()
    for _ in range(2):
        for name in os.listdir(tmp_path):
            os.unlink(tmp_path / name)
        first = own.store(create=True)
        assert first is not None
        with first:
            kept.synced(own)
            first.append(Event("2026-01-01T00:00:00Z", "note", "one"))
        assert os.path.exists(f"{own.store_path}-wal")  # the close of the last but one moves nothing
        again = own.store()
        assert again is not None
        with again:
            assert len(again.events()) == 1
