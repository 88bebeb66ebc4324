"""The wall clock is set while a real daemon runs: a clock of its own, put under the process."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from lockd import clock
from lockd.clock import stamp
from lockd.daemon import reader
from tests.daemons import GOOD, Daemon, edit, scene, until
from tests.scene import Scene

__all__ = ["scene"]

DAY = 86_400.0

# the daemon's own clock: the machine's, and as many seconds more as a file says
_RUN = """
import sys, time
path, real, gmtime = sys.argv.pop(1), time.time, time.gmtime
def now():
    with open(path) as file:
        return real() + float(file.read() or 0)
time.time = now
time.gmtime = lambda at=None: gmtime(now() if at is None else at)
from lockd.__main__ import main
sys.exit(main())
"""


class Clocked(Daemon):
    """A daemon whose wall clock `set` moves."""

    @property
    def file(self) -> Path:
        return self.scene.root / "clock"

    def command(self) -> Sequence[str]:
        self.set(0)
        return (sys.executable, "-P" if sys.version_info >= (3, 11) else "-s", "-c", _RUN, str(self.file))

    def set(self, ahead: float) -> None:
        new = self.file.with_name("clock.new")
        new.write_text(str(ahead))
        new.rename(self.file)


@pytest.fixture
def clocked(scene: tuple[Scene, Path]) -> Iterator[Clocked]:
    running = Clocked(scene[0])
    with running:
        running.ready()
        until(lambda: running.log("full_read"), "the first full read")
        yield running


@pytest.mark.parametrize("ahead", [-400 * DAY, -3600.0, 3600.0, 400 * DAY])
def test_a_clock_that_is_set_holds_up_nothing(scene: tuple[Scene, Path], clocked: Clocked, ahead: float) -> None:
    made, path = scene
    edit(path, "x = 2\n")
    clocked.wait_for("block")
    until(lambda: len(_marks(made)) == 1, "the first mark")
    clocked.set(ahead)
    edit(path, GOOD)
    clocked.wait_for("ok")
    until(lambda: len(_marks(made)) == 2, "the second mark")
    edit(path, "x = 3\n")
    clocked.wait_for("block")
    until(lambda: len(_marks(made)) == 3, "the third mark")

    told = clocked.status()
    assert 0 <= told["age_s"] < 60 and 0 <= told["looks"]["full"]["age_s"] < 60
    assert made.verify("--json").document["daemon"] is True
    assert len(clocked.log("full_read")) == 1  # none is due, whatever the date

    # the journal says it once, the log too; the log's order is that in which it happened, whatever the stamps say
    (said,) = clocked.log("clock_stepped")
    assert said["seconds"] == pytest.approx(ahead, abs=1)
    rows = made.lockd("log", "--json", "--reverse").document
    kinds = [row["kind"] for row in rows if row["kind"] in ("drift", "heal")]
    assert kinds == ["drift", "heal", "drift"]
    (row,) = [row for row in rows if "the clock was put" in json.dumps(row)]
    assert ("back" if ahead < 0 else "forward") in json.dumps(row)
    assert [row["id"] for row in rows] == sorted(row["id"] for row in rows)
    first, second = (row["at"] for row in _marks(made)[:2])
    assert (second < first) is (ahead < 0)
    assert made.lockd("log", "--check").code == 0


def _marks(made: Scene) -> list[dict[str, str]]:
    rows = made.lockd("log", "--json", "--reverse").document
    return [row for row in rows if row["kind"] in ("drift", "heal")]


def test_a_clock_that_is_slewed_is_not_said_to_be_set(monkeypatch: pytest.MonkeyPatch) -> None:
    ahead = 0.0
    real = time.time
    monkeypatch.setattr(time, "time", lambda: real() + ahead)
    steps = clock.Steps()
    for _ in range(20):
        ahead += 0.2
        assert steps.taken() == 0.0
    ahead -= 30.0
    assert steps.taken() == pytest.approx(-30.0, abs=0.5)
    assert steps.taken() == 0.0


def test_a_pass_that_ended_in_the_future_is_begun_anew_and_one_of_the_past_keeps_its_age(tmp_path: Path) -> None:
    """The place that an earlier daemon kept, under the clock of that time."""
    from types import SimpleNamespace

    for done, age in ((time.time() + DAY, None), (time.time() - 100, 100), (0.0, None)):
        place = {"after": "", "began": 0.0, "done": done, "bytes": 0, "files": 0, "differ": 0}
        (tmp_path / "full-read.json").write_text(json.dumps(place))
        state = SimpleNamespace(folder=str(tmp_path))
        one = reader.Reader(None, state, lambda *_, **__: None)  # type: ignore[arg-type]
        one._recall()
        told = one.told()
        assert told["age_s"] == age and told["done"] == (stamp(done) if age else None)
        assert (one._left() <= 0) is (age is None)
