"""The timeline: each change once, both marks, and the times that people type."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockd import clock, history, state
from lockd.errors import UsageError
from lockd.facts import Fact, Facts, Unknown
from lockd.findings import Finding
from lockd.state import State

NOW = datetime(2026, 11, 30, 22, 0, 0, tzinfo=timezone.utc)


def finding(fact: str, message: str = "is new", *, severity: Any = "block", **attributes: Any) -> Finding:
    return Finding(fact, "changed", severity, ("lock",), message, "lockd diff", attributes)


def report(*findings: Finding, recorded: tuple[Finding, ...] = (), manifests: dict[str, Any] | None = None) -> Any:
    """A check's report as far as the history reads it, over one real fact and one that could not be read."""
    facts = Facts([Fact("file", "/a", {"digest": "1"}), Unknown("file", "/b", "no right to read it")])
    sight = SimpleNamespace(facts=facts, manifests=lambda: manifests or {})
    lock = SimpleNamespace(generation=4)
    return SimpleNamespace(
        findings=findings,
        recorded=recorded,
        verdict="block",
        environment="env1:a",
        environment_full="env1:full",
        policy=SimpleNamespace(command=(), path="/nowhere/ct.toml"),
        by_daemon=False,
        healed={},
        sight=sight,
        lock=lock,
    )


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> State:
    tmp_path.chmod(0o700)
    monkeypatch.setenv("LOCKD_STATE", str(tmp_path / "s"))
    (tmp_path / "ct.toml").touch()
    found = state.open(str(tmp_path / "ct.toml"), create=True)
    assert found is not None
    return found


def marks(place: State) -> list[tuple[str, str | None]]:
    """(kind, fact) of every entry, oldest first."""
    store = place.store()
    if store is None:
        return []
    with store:
        assert store.check_chain() is None
        return [(one.event.kind, one.event.fact) for one in store.events()]


A, B = finding("file:/a", digest=("1", "2")), finding("file:/b", digest=("1", "2"))


def test_a_state_that_changes_and_changes_back_leaves_both_marks(place: State) -> None:
    for one in (report(), report(A), report(), report(A)):
        history.record(place, one)
    assert marks(place) == [("drift", "file:/a"), ("heal", "file:/a"), ("drift", "file:/a")]


def test_looking_again_records_nothing_again(place: State) -> None:
    for _ in range(3):
        history.record(place, report(A, B))
    assert marks(place) == [("drift", "file:/a"), ("drift", "file:/b")]


def test_another_drift_of_the_same_fact_is_a_new_entry(place: State) -> None:
    history.record(place, report(A))
    history.record(place, report(finding("file:/a", digest=("1", "3"))))
    assert marks(place) == [("drift", "file:/a"), ("drift", "file:/a")]


def test_where_nothing_changed_the_store_is_not_even_opened(place: State) -> None:
    history.record(place, report(A))
    os.unlink(place.store_path)
    history.record(place, report(A))
    assert not os.path.exists(place.store_path)
    history.record(place, report())
    assert os.path.exists(place.store_path)


def test_a_first_look_without_findings_makes_no_store(place: State) -> None:
    history.record(place, report())
    assert not os.path.exists(place.store_path)


def test_nothing_is_recorded_without_a_lock_or_without_a_state(place: State) -> None:
    unlocked = report(A)
    unlocked.lock = None
    history.record(place, unlocked)
    history.record(None, report(A))
    assert marks(place) == []


def test_recorded_changes_stand_in_the_timeline_too(place: State) -> None:
    history.record(place, report(recorded=(finding("file:/a", severity="record"),)))
    assert marks(place) == [("drift", "file:/a")]


def test_what_differs_from_shell_to_shell_is_no_drift_of_the_machine(place: State) -> None:
    history.record(place, report(finding("env:LD_LIBRARY_PATH"), finding("launch:python")))
    assert marks(place) == []


def test_when_and_by_whom_is_there_only_where_it_was_observed(place: State) -> None:
    seen = Finding("file:/b", "changed", "block", ("lock",), "m", "h", since="2026-11-30T21:15:40Z", by={"pid": 42})
    history.record(place, report(A, seen))
    store = place.store()
    assert store is not None
    with store:
        first, second = store.events()
    assert first.event.by is None
    assert (second.event.at, second.event.by) == ("2026-11-30T21:15:40Z", {"pid": 42})
    assert first.event.generation == 4


def test_the_observed_state_is_kept_with_the_manifests_of_what_moved(place: State) -> None:
    history.record(place, report(A, manifests={"file:/a": {"a": "x"}, "file:/c": {"c": "x"}}))
    history.record(place, report())
    store = place.store()
    assert store is not None
    with store:
        drift, heal = store.events()
        assert drift.event.state == heal.event.state  # equal states are kept once
        assert drift.event.state is not None
        kept = store.state_facts(drift.event.state) or ""
        assert '"reason"' not in kept
        assert "no right to read it" in kept
        assert store.rows("SELECT fact FROM state_manifests") == [("file:/a",)]


def test_two_lookers_at_once_record_once(place: State) -> None:
    children = []
    for _ in range(4):
        child = os.fork()
        if child == 0:
            try:
                history.record(place, report(A, B))
                os._exit(0)
            finally:
                os._exit(1)
        children.append(child)
    assert [os.waitpid(child, 0)[1] for child in children] == [0] * 4
    assert sorted(marks(place)) == [("drift", "file:/a"), ("drift", "file:/b")]


@pytest.mark.parametrize("text", ["", "{", "[]", '{"findings": 3}', '{"findings": {"file:/a": {}}}', "\0"])
def test_a_damaged_standing_file_is_read_anew_from_the_store(place: State, text: str) -> None:
    history.record(place, report(A))
    Path(place.standing_path).write_text(text)
    history.record(place, report(A))
    assert marks(place) == [("drift", "file:/a")]


def test_a_store_that_cannot_be_used_is_said_as_such(place: State) -> None:
    store = place.store(create=True)
    assert store is not None
    with store:
        store.rows("PRAGMA user_version = 99")
    with pytest.raises(OSError, match="version 99"):
        history.record(place, report(A))


def test_a_lost_standing_file_hides_no_heal(place: State) -> None:
    history.record(place, report(A))
    os.unlink(place.standing_path)
    history.record(place, report())
    assert marks(place) == [("drift", "file:/a"), ("heal", "file:/a")]


def test_after_an_accept_what_was_accepted_did_not_heal(place: State) -> None:
    history.record(place, report(A, B))
    store = place.store()
    assert store is not None
    with store:
        history.accepted(place, store, report(B))
    history.record(place, report(B))
    assert [kind for kind, _ in marks(place)] == ["drift", "drift"]
    history.record(place, report())
    assert marks(place)[-1] == ("heal", "file:/b")


@dataclass(frozen=True)
class Asked:
    query: history.Query
    numbers: list[int]


def at(text: str) -> datetime:
    return datetime.fromisoformat(text)


@pytest.mark.parametrize(
    "asked",
    [
        Asked(history.Query(), [4, 3, 2, 1]),
        Asked(history.Query(since=at("2026-11-30T12:00:00+00:00")), [4, 3]),
        Asked(history.Query(until=at("2026-11-30T12:00:00+00:00")), [3, 2, 1]),
        Asked(history.Query(kinds=("drift",)), [3, 1]),
        Asked(history.Query(kinds=("drift", "heal"), facts=("file:/a",)), [2, 1]),
    ],
)
def test_the_timeline_is_newest_first_and_asked_by_time_kind_and_fact(place: State, asked: Asked) -> None:
    from lockd.store import Event

    store = place.store(create=True)
    assert store is not None
    with store:
        store.append(Event("2026-11-30T10:00:00Z", "drift", "m", "file:/a"))
        store.append(Event("2026-11-30T11:00:00Z", "heal", "m", "file:/a"))
        store.append(Event("2026-11-30T12:00:00Z", "drift", "m", "file:/b"))
        store.append(Event("2026-11-30T13:00:00Z", "accept", "m"))
        assert [one.id for one in history.timeline(store, asked.query)] == asked.numbers
        turned = list(history.timeline(store, asked.query, oldest_first=True))
        assert [one.id for one in turned] == asked.numbers[::-1]
        assert history.known_facts(store) == ["file:/a", "file:/b"]


# -- times


@pytest.fixture(params=["UTC", "America/New_York", "Asia/Kolkata"])
def zone(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("TZ", request.param)
    time.tzset()
    yield request.param
    monkeypatch.undo()
    time.tzset()


def local(*when: int) -> datetime:
    return datetime(*when).astimezone(timezone.utc)  # type: ignore[arg-type, misc, unused-ignore]


@pytest.mark.parametrize(
    ("text", "back"),
    [
        ("now", timedelta(0)),
        ("2 hours ago", timedelta(hours=2)),
        ("an hour ago", timedelta(hours=1)),
        ("90m", timedelta(minutes=90)),
        ("  3   Days AGO ", timedelta(days=3)),
        ("1 week ago", timedelta(weeks=1)),
        ("30 s", timedelta(seconds=30)),
        ("5 min ago", timedelta(minutes=5)),
    ],
)
def test_spans_count_back_from_now(zone: str, text: str, back: timedelta) -> None:
    assert history.parse_time(text, NOW) == NOW - back


@pytest.mark.parametrize("text", ["18:00", "today 18:00", "today at 18:00", "Today 18:00:00"])
def test_a_time_of_day_is_local_and_of_today(zone: str, text: str) -> None:
    here = NOW.astimezone()
    assert history.parse_time(text, NOW) == local(here.year, here.month, here.day, 18)


def test_yesterday_is_the_day_before_in_local_time(zone: str) -> None:
    day = NOW.astimezone() - timedelta(days=1)
    assert history.parse_time("yesterday 18:00", NOW) == local(day.year, day.month, day.day, 18)
    assert history.parse_time("yesterday", NOW) == local(day.year, day.month, day.day)


def test_a_day_in_another_season_has_its_own_offset(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "America/New_York")
    time.tzset()
    try:
        after_the_change = datetime(2026, 11, 1, 17, 0, tzinfo=timezone.utc)  # clocks went back that morning
        asked = history.parse_time("yesterday 18:00", after_the_change)
        assert asked == datetime(2026, 10, 31, 22, 0, tzinfo=timezone.utc)
    finally:
        monkeypatch.undo()
        time.tzset()


@pytest.mark.parametrize("text", ["2026-11-30T18:00Z", "2026-11-30 18:00:00+00:00", "2026-11-30T20:00+02:00"])
def test_iso_times_mean_their_own_zone(zone: str, text: str) -> None:
    assert history.parse_time(text, NOW) == datetime(2026, 11, 30, 18, 0, tzinfo=timezone.utc)


def test_an_iso_time_without_a_zone_is_local(zone: str) -> None:
    assert history.parse_time("2026-11-30T18:00", NOW) == local(2026, 11, 30, 18)
    assert history.parse_time("2026-11-30", NOW) == local(2026, 11, 30)


@pytest.mark.parametrize(
    "text", ["", "soon", "25:00", "yesterday 18:61", "99999999999999 weeks ago", "2026-13-01", "5 fortnights"]
)
def test_what_is_no_time_is_refused_with_what_would_be(text: str) -> None:
    with pytest.raises(UsageError, match="is no time") as caught:
        history.parse_time(text, NOW)
    assert "2 hours ago" in caught.value.hint


@given(st.text(max_size=20))
def test_no_text_makes_it_crash(text: str) -> None:
    refuses: Callable[[], object] = lambda: history.parse_time(text, NOW)  # noqa: E731
    try:
        refuses()
    except UsageError:
        pass


def test_stamps_sort_as_their_times_do() -> None:
    times = [0, 1, 59, 3600, 86400 * 365, 1_700_000_000]
    assert sorted(map(clock.stamp, times)) == list(map(clock.stamp, times))
    assert clock.stamp(0) == "1970-01-01T00:00:00Z"


def test_recording_nothing_imports_no_sqlite(place: State) -> None:
    program = "import lockd.history, lockd.state, lockd.lock, lockd.lock_cache, sys; print('sqlite3' in sys.modules)"
    import subprocess

    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_an_entry_of_the_log_is_one_line_whatever_a_command_held() -> None:
    from lockd.commands.log import _line
    from lockd.store import Event, Logged

    by = {"user": "root", "cmdline": ["sh", "-c", "echo a\necho b"]}
    event = Event(at="2026-11-30T22:00:00Z", kind="drift", message="x\ny", by=by)
    assert "\n" not in _line(Logged(1, event, "", ""))
