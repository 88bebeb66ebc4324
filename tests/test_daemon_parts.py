"""The daemon's parts by themselves: bursts, when a change is over, the history's writer, since and by."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from lockd import check, lock, policy, state
from lockd.check import Report
from lockd.daemon import gather, record, standing
from lockd.daemon.gather import Burst, Gatherer
from lockd.daemon.memo import HeldMemo
from lockd.daemon.record import Recorder
from lockd.daemon.scribe import Scribe
from lockd.daemon.targets import targets
from lockd.errors import LockdError
from lockd.lineage import row
from lockd.look import Memo
from lockd.memo import StateMemo
from lockd.watch.hints import Hint, Who
from tests.scene import Scene, pinned_file


@dataclass
class Clock:
    now: float = 100.0

    def __call__(self) -> float:
        return self.now


# -- bursts


def test_a_burst_is_due_when_it_is_quiet_and_in_any_case_after_the_bound() -> None:
    clock = Clock()
    gatherer = Gatherer(now=clock)
    assert gatherer.due() is None
    began = clock.now
    while clock.now < began + gather.BOUND:
        gatherer.put(Hint(f"/a/{clock.now}", "changed"))
        assert gatherer.due() == pytest.approx(min(gather.QUIET, began + gather.BOUND - clock.now))
        clock.now += gather.QUIET / 2
    assert gatherer.due() == 0
    burst = gatherer.take()
    assert len(burst.hints) > 50 and not burst.whole and gatherer.due() is None and not gatherer.waiting


def test_equal_hints_are_one_and_losses_ask_for_everything() -> None:
    gatherer = Gatherer(now=Clock())
    for _ in range(1000):
        gatherer.put(Hint("/a", "changed"))
    assert not any(gatherer.lost)
    gatherer.put(Hint("/b", "overflow", detail="queue overflow"))
    assert [hint.detail for hint in gatherer.lost] == ["queue overflow"]
    burst = gatherer.take()
    assert burst.paths == {"/a", "/b"} and burst.whole


def test_more_hints_than_can_be_held_are_a_loss(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gather, "MOST", 10)
    gatherer = Gatherer(now=Clock())
    for number in range(11):
        gatherer.put(Hint(f"/{number}", "changed"))
    burst = gatherer.take()
    assert len(burst.hints) == 10 and burst.whole


# -- when a change goes into the history


@dataclass
class Kept:
    """In the scribe's place."""

    reports: list[Report] = field(default_factory=list)

    def record(self, report: Report) -> None:
        self.reports.append(report)


@dataclass
class Recording:
    scene: Scene
    path: Path
    kept: Kept = field(default_factory=Kept)
    said: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    looks: int = 0

    def __post_init__(self) -> None:
        self.recorder = Recorder(self.kept, lambda event, **fields: self.said.append((event, fields)))  # type: ignore[arg-type]
        self.policy = policy.load(str(self.scene.policy))

    def report(self, text: str) -> Report:
        self.path.write_text(text)
        return check.check(self.policy, state=None, lock=lock.read(self.policy.lock_path), launch=None)

    def take(self, text: str, now: float, *hints: Hint) -> None:
        self.looks += 1
        self.recorder.take(self.report(text), Burst(hints), now, self.looks)

    @property
    def verdicts(self) -> list[str]:
        return [report.verdict for report in self.kept.reports]


@pytest.fixture
def recording(tmp_path: Path) -> Recording:
    scene, path = pinned_file(tmp_path)
    assert scene.accept().code == 0
    made = Recording(scene, path)
    made.take("x = 1\n", 0)
    assert made.recorder.over(1, 1)
    made.recorder.flush()
    return made


def test_what_did_not_change_is_not_recorded(recording: Recording) -> None:
    recording.take("x = 1\n", 1)
    assert recording.recorder.due(1, 9) is None and recording.verdicts == ["ok"]


def test_states_on_the_way_of_one_change_leave_no_mark(recording: Recording) -> None:
    for number in range(5):
        recording.take(f"x = 1{number}\n", 1 + number / 100)
    recording.take("x = 1\n", 1.1)  # undone before anybody saw it
    assert recording.recorder.due(2, 9) is None and recording.verdicts == ["ok"] and recording.said == []


def test_what_a_look_finds_in_the_middle_of_a_change_did_not_stand(recording: Recording) -> None:
    """On a busy machine the next look comes late; the change went on all the same."""
    late = 2 * record.STOOD
    recording.take("x = 2\n", 1)
    recording.take("x = 1\n", 1 + late, Hint(str(recording.path), "changed", at=time.time() - late + 0.01))
    recording.recorder.flush()
    assert recording.verdicts == ["ok"] and recording.said == []


@pytest.mark.parametrize("why", ["stood", "told"])
def test_what_stood_or_was_told_leaves_its_mark(recording: Recording, why: str) -> None:
    recording.take("x = 2\n", 1)
    if why == "told":
        recording.recorder.told(recording.looks)
    recording.take("x = 1\n", 1.01 if why == "told" else 1 + record.STOOD)
    recording.recorder.flush()
    assert recording.verdicts == ["ok", "block", "ok"]
    assert [event for event, _ in recording.said] == ["drift", "heal"]
    assert recording.said[0][1]["fact"] == f"file:{recording.path}"


def test_a_change_goes_on_while_its_writer_lives(recording: Recording) -> None:
    writer = subprocess.Popen([sys.executable, "-S", "-c", "input()"], stdin=subprocess.PIPE)
    try:
        found = row(writer.pid)
        assert found is not None
        who = Who("observed", pid=writer.pid, started=found.start)
        recording.take("x = 2\n", 1, Hint(str(recording.path), "changed", who=who))
        assert not recording.recorder.over(1.5, 0.5)
        assert recording.recorder.over(1 + record.LONG, record.LONG)  # it does nothing any more
        hints = [Hint(f"/venv/{number}", "created", who=who) for number in range(record.MANY)]
        recording.take("x = 3\n", 2, *hints)
        assert not recording.recorder.over(2 + record.LONG, record.LONG)  # an installer unpacks a large file elsewhere
        assert recording.recorder.over(2 + record.LONGER, record.LONGER)
    finally:
        writer.communicate(b"\n")
    assert recording.recorder.over(1.5, 0.5)


# -- since and by


def test_the_writer_is_that_of_the_findings_own_path(recording: Recording) -> None:
    report = recording.report("x = 2\n")
    mine = Who("observed", pid=7, exe="/bin/mine")
    other = Who("observed", pid=8, exe="/bin/other")
    hints = [Hint("/elsewhere/x", "changed", who=other, at=1.0)] * 5
    hints.append(Hint(str(recording.path), "changed", who=mine, at=1_800_000_000.0))
    beside = Hint(str(recording.path.with_name("other.py")), "changed", who=other)
    (unseen,) = standing.mark(report, {}, [beside], dict).values()
    assert unseen.by is not None and unseen.by["confidence"] == "not observed"  # never another file's writer
    event = Hint(str(recording.path), "changed", who=mine, at=unseen.unseen + 0.5)  # read just after the look
    (late,) = standing.mark(report, {f"file:{recording.path}": unseen}, [event], dict).values()
    assert late.by is not None and late.by["pid"] == 7 and late.since == unseen.since
    stranger = replace(event, at=unseen.unseen + 60)
    assert list(standing.mark(report, {f"file:{recording.path}": unseen}, [stranger], dict).values()) == [unseen]
    marks = standing.mark(report, {}, hints, dict)
    (mark,) = marks.values()
    assert mark.by is not None and mark.by["pid"] == 7 and mark.since == "2027-01-15T08:00:00Z"
    assert standing.mark(report, marks, [Hint(str(recording.path), "changed", who=other)], dict) == marks
    (finding,) = standing.apply(report, marks).findings
    assert finding.since == mark.since and finding.by == mark.by
    changed = standing.apply(recording.report("x = 3\n"), marks)
    assert changed.findings[0].since is None  # it differs in another way: those marks are not about it


# -- the history's writer


@pytest.fixture
def opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[state.State]:
    scene, _ = pinned_file(tmp_path)
    monkeypatch.setenv("LOCKD_STATE", str(scene.state))
    made = state.open(str(scene.policy), create=True)
    assert made is not None
    yield made


def test_what_could_not_be_written_is_written_later_and_in_order(
    opened: state.State, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lockd.daemon.scribe.AGAIN", 0.01)
    said: list[str] = []
    scribe = Scribe(opened, lambda event, **_: said.append(event))
    failing, done = threading.Event(), list[int]()

    def job(number: int) -> None:
        if not failing.is_set():
            raise LockdError("the store is locked")
        done.append(number)

    for number in range(5):
        scribe.do(lambda _, number=number: job(number))  # type: ignore[misc]
    scribe.start()
    assert not scribe.flush(0.2) and scribe.trouble == "the store is locked"
    failing.set()
    assert scribe.flush(20) and done == [0, 1, 2, 3, 4] and scribe.trouble == ""
    scribe.stop(5)
    assert not scribe.is_alive() and said == ["history_unwritable", "history_writable"]


def test_what_was_held_against_a_lock_that_is_no_more_is_not_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A slow daemon hands over a drift after it was accepted: the log would have it twice, and a heal after it."""
    scene, path = pinned_file(tmp_path)
    assert scene.accept().code == 0
    monkeypatch.setenv("LOCKD_STATE", str(scene.state))
    opened, loaded = state.open(str(scene.policy), create=True), policy.load(str(scene.policy))

    def judged() -> Report:
        return check.check(loaded, state=opened, lock=lock.read(loaded.lock_path), launch=None)

    path.write_text("x = 2\n")
    late = judged()
    assert late.findings and scene.accept().code == 0
    scribe = Scribe(opened, lambda *_, **__: None)
    scribe.start()
    for report in (late, judged()):
        scribe.record(report)
    path.write_text("x = 3\n")
    scribe.record(judged())
    assert scribe.flush(20)
    scribe.stop(5)
    rows = scene.lockd("log", "--json", "--reverse").document
    assert [row["kind"] for row in rows] == ["accept", "drift", "accept", "drift"]


def test_without_a_state_nothing_is_written() -> None:
    scribe = Scribe(None, lambda *_, **__: None)
    scribe.do(lambda _: pytest.fail("there is no store"))
    assert scribe.flush(0)


# -- what is watched


def test_targets_are_pruned_and_name_the_policy_and_the_lock(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    text = f'[[tree]]\npath = "{tmp_path}/data"\nexclude = ["wandb/**"]\n[[file]]\npath = "{tmp_path}/*.py"\n'
    loaded = policy.parse(f'schema = 1\nname = "ct"\n{text}', str(tmp_path / "ct.toml"))
    found = {target.path: target for target in targets(loaded)}
    assert found[f"{tmp_path}/data"].exclude == ("wandb/**",)
    glob = found[str(tmp_path)]
    assert not glob.deep and glob.only is not None and glob.only("x.py") and not glob.only("x.txt")
    assert {f"{tmp_path}/ct.toml", f"{tmp_path}/ct.lock"} <= found.keys()


def test_a_link_that_is_pinned_is_watched_at_both_ends(tmp_path: Path) -> None:
    (tmp_path / "real.py").write_text("x")
    os.symlink("real.py", tmp_path / "link.py")
    loaded = policy.parse(f'schema = 1\nname = "ct"\n[[file]]\npath = "{tmp_path}/link.py"\n', "/etc/lockd/ct.toml")
    assert {f"{tmp_path}/link.py", f"{tmp_path}/real.py"} <= {target.path for target in targets(loaded)}


# -- what is remembered


def test_the_held_memo_remembers_what_the_one_behind_keeps(tmp_path: Path) -> None:
    """Else an edit in a large environment has every package of it surveyed again."""
    held = HeldMemo(StateMemo(str(tmp_path / "memo")))
    assert held.remembers and not HeldMemo(Memo()).remembers
    held.keep(("python", "parts"), [("a", 1)])
    assert held.kept(("python", "parts")) == [("a", 1)]
    assert HeldMemo(StateMemo(str(tmp_path / "memo"))).kept(("python", "parts")) == [("a", 1)]
