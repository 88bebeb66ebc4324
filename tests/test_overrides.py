"""Break-glass: who may, what it covers, that every verdict says so, and that it ends."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest

from lockd import overrides
from lockd.errors import RefusedError, UsageError
from lockd.findings import Finding
from lockd.origin import Origin
from lockd.rules import LaunchRule, Policy
from lockd.state import State
from tests.scene import Scene, pinned_file

WHO = Origin("ana", 1000, 1)
POLICY = Policy("ct", owner=os.geteuid())


def finding(fact: str = "file:/a", severity: Any = "block", **attributes: Any) -> Finding:
    return Finding(fact, "changed", severity, ("lock",), f"{fact} changed", "", attributes or {"digest": ("1", "2")})


@pytest.fixture
def state(tmp_path: Path) -> State:
    return State(str(tmp_path))


def given(state: State, *findings: Finding, seconds: float = 3600, only: tuple[str, ...] = ()) -> overrides.Override:
    one = overrides.new(findings, "the deadline", WHO, seconds, only)
    overrides.keep(state, one, WHO)
    return one


# -- what it covers


def test_it_covers_what_it_was_given_for(state: State) -> None:
    one = given(state, finding(), finding("file:/b"))
    assert overrides.standing(state, [finding("file:/b"), finding()], POLICY) == one


@pytest.mark.parametrize(
    "now",
    [
        [finding(digest=("1", "3"))],
        [finding(), finding("file:/new")],
        [finding("file:/other")],
        [finding("env:NEW", value=("1", "2")), finding()],
    ],
    ids=["changed again", "another came", "another", "a variable of this shell"],
)
def test_it_covers_nothing_else(state: State, now: list[Finding]) -> None:
    given(state, finding())
    assert overrides.standing(state, now, POLICY) is None


def test_of_two_findings_one_that_healed_ends_it(state: State) -> None:
    given(state, finding(), finding("file:/b"))
    assert overrides.standing(state, [finding()], POLICY) is None
    assert "has changed" in str(overrides.settle(state, [finding()]))
    assert overrides.kept(state) is None


def test_for_one_finding_alone(state: State) -> None:
    one = given(state, finding("file:/x/a"), finding("file:/b"), only=("a",))
    assert one.only == ("file:/x/a",) and overrides.standing(state, [finding("file:/x/a")], POLICY) == one
    assert overrides.standing(state, [finding("file:/x/a"), finding("file:/b")], POLICY) is None  # /b still blocks
    assert overrides.settle(state, [finding("file:/x/a"), finding("file:/new")]) is None


def test_variables_of_another_shell_do_not_end_it(state: State) -> None:
    given(state, finding(), finding("env:MODE", value=("fast", "slow")))
    assert overrides.settle(state, [finding()]) is None
    assert overrides.standing(state, [finding()], POLICY) is not None


def test_warnings_neither_count_nor_matter(state: State) -> None:
    given(state, finding(), finding("file:/w", "warn"))
    assert overrides.standing(state, [finding(), finding("file:/v", "warn")], POLICY) is not None


def test_it_ends_by_itself_and_says_so_once(state: State, monkeypatch: pytest.MonkeyPatch) -> None:
    given(state, finding(), seconds=60)
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now + 61)
    assert overrides.standing(state, [finding()], POLICY) is None
    assert "time is up" in str(overrides.settle(state, [finding()]))
    assert overrides.settle(state, [finding()]) is None
    store = state.store()
    assert store is not None
    with store:
        assert [one.event.message.split(",")[0].split(" ")[0] for one in store.events("kind = 'override'")] == [
            "given",
            "ended",
        ]


def test_a_clock_put_back_before_its_beginning_gives_nothing(state: State, monkeypatch: pytest.MonkeyPatch) -> None:
    given(state, finding())
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now - 86400)
    assert overrides.standing(state, [finding()], POLICY) is None


@pytest.mark.parametrize("text", ["", "nonsense", "[]", '{"drift": {}}', '{"drift": [], "why": 1}', "\udcff"])
def test_a_broken_file_gives_no_leave(state: State, text: str) -> None:
    Path(state.override_path).write_bytes(text.encode("utf-8", "surrogateescape"))
    assert overrides.kept(state) is None and overrides.standing(state, [finding()], POLICY) is None


def test_what_makes_no_override(state: State) -> None:
    for findings, why, seconds in (([], "why", 60), ([finding()], "  ", 60), ([finding()], "why", 0)):
        with pytest.raises(UsageError):
            overrides.new(findings, why, WHO, seconds)
    with pytest.raises(UsageError):
        overrides.new([finding()], "why", WHO, 31 * 86400)
    with pytest.raises(UsageError):
        overrides.new([finding()], "why", WHO, 60, ["file:/other"])


# -- who may


def test_who_may(monkeypatch: pytest.MonkeyPatch) -> None:
    import grp

    own = grp.getgrgid(os.getegid()).gr_name
    monkeypatch.setattr(os, "geteuid", lambda: 4242)
    for policy, allowed in (
        (Policy("ct", owner=4242), True),
        (Policy("ct", owner=1), False),
        (Policy("ct", owner=1, launch=LaunchRule(override_group=own)), True),
        (Policy("ct", owner=1, launch=LaunchRule(override_group="no-such-group")), False),
    ):
        assert overrides.may(policy) is allowed
        if not allowed:
            with pytest.raises(RefusedError):
                overrides.check_may(policy)


def test_a_guests_own_file_is_no_leave(state: State, monkeypatch: pytest.MonkeyPatch) -> None:
    given(state, finding())
    guest = State(state.folder, guest=True)
    monkeypatch.setattr(os, "geteuid", lambda: 4242)
    assert overrides.standing(guest, [finding()], Policy("ct", owner=1)) is None


# -- the command


def override(scene: Scene, *words: str) -> Any:
    return scene.lockd("override", *words)


def test_every_verdict_says_it_and_the_exit_code_is_0(tmp_path: Path) -> None:
    scene, path = pinned_file(tmp_path)
    scene.accept()
    path.write_text("x = 2\n")
    assert scene.verify().code == 1
    assert override(scene, "--for", "2h", "rebuilding torch").code == 0
    answer = scene.verify()
    assert (answer.code, answer.document["verdict"]) == (0, "block")
    told = answer.document["override"]
    assert told["why"] == "rebuilding torch" and told["facts"] == [f"file:{path}"] and told["until"] > told["at"]
    assert "rebuilding torch" in scene.lockd("verify").out
    answer = scene.lockd("run", "--", "sh", "-c", "exit 7")
    assert answer.code == 7 and "rebuilding torch" in answer.err
    (run,) = scene.lockd("runs", "--json").document
    assert run["override"]["why"] == "rebuilding torch" and run["verdict"] == "block"
    assert json.loads(override(scene, "--list", "--json").out)["override"]["facts"] == [f"file:{path}"]


def test_it_never_outlives_a_change_of_the_drift(tmp_path: Path) -> None:
    scene, path = pinned_file(tmp_path)
    scene.accept()
    path.write_text("x = 2\n")
    override(scene, "--for", "2h", "why")
    path.write_text("x = 3\n")
    assert scene.verify().code == 1
    path.write_text("x = 2\n")  # the very drift again: it was over
    assert scene.verify().code == 1
    assert "no override" in override(scene, "--list").out
    messages = [one["message"] for one in scene.lockd("log", "--json", "--kind", "override").document]
    assert [message.split()[0] for message in messages] == ["ended,", "given"]


def test_it_never_outlives_its_healing(tmp_path: Path) -> None:
    scene, path = pinned_file(tmp_path)
    scene.accept()
    path.write_text("x = 2\n")
    override(scene, "--for", "2h", "why")
    path.write_text("x = 1\n")
    assert scene.verify().code == 0
    path.write_text("x = 2\n")
    assert scene.verify().code == 1


def test_it_is_ended_by_hand(tmp_path: Path) -> None:
    scene, path = pinned_file(tmp_path)
    scene.accept()
    path.write_text("x = 2\n")
    override(scene, "--for", "2h", "why")
    assert scene.verify().code == 0
    assert override(scene, "--end").code == 0
    assert scene.verify().code == 1 and "no override" in override(scene, "--end").out.replace("there was", "")


@pytest.mark.parametrize(
    "words",
    [
        (),
        ("--for", "2h"),
        ("why",),
        ("--for", "soon", "why"),
        ("--list", "--end"),
        ("--for", "2h", "why", "--list"),
        ("--for", "60d", "why"),
    ],
)
def test_wrong_usage(tmp_path: Path, words: tuple[str, ...]) -> None:
    scene, path = pinned_file(tmp_path)
    scene.accept()
    path.write_text("x = 2\n")
    assert override(scene, *words).code == 2 and scene.verify().code == 1


def test_nothing_to_override(tmp_path: Path) -> None:
    scene, _ = pinned_file(tmp_path)
    scene.accept()
    assert override(scene, "--for", "2h", "why").code == 2


def test_what_could_not_be_looked_at_stays_unknown(tmp_path: Path) -> None:
    scene, _ = pinned_file(tmp_path)
    override(scene, "--for", "2h", "why")
    assert scene.verify().code == 3
