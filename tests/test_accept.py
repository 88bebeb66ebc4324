"""Accept: what becomes known good, what never does, and that a kill or a full disk leaves the old or the new."""

from __future__ import annotations

import json
import os
import random
import re
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from lockd import accept, accept_record, cli, lock, names, origin, state, store
from lockd.accept import Stamp, Wish
from lockd.check import Report
from lockd.errors import LockdError, LookError, RefusedError, UsageError
from lockd.facts import ABSENT, Fact, Facts, Unknown
from lockd.findings import Difference
from lockd.lock import Lock
from lockd.look import Sight
from lockd.rules import EnvRule, FileRule, PackagePin, Policy, PythonRule
from tests.scene import pinned_file

STAMP = Stamp(2, "2026-11-30T19:04:11Z", "root (ssh)", "ct200")


# -- the plan, over facts made here


def package(name: str, version: str = "1.0", **told: Any) -> Fact:
    return Fact(
        "package", f"train/{name}", {"version": version, "state": told.pop("state", "")}, {"modified": 0, **told}
    )


PYTHON = Fact("python", "train", {"version": "3.12"})
TORCH, TRITON, ENV = package("torch"), package("triton"), Fact("env", "A", {"value": "locked"})
POLICY = Policy(
    "ct200",
    path="/p/ct200.toml",
    digest="sha256:p",
    python=(PythonRule("train", "/root/venv"),),
    env={"A": EnvRule(locked=True)},
    file=(FileRule("/root/*.py"),),
)


def locked(*facts: Fact, policy: Policy = POLICY) -> Lock:
    return Lock(
        "ct200", policy.digest, 1, "2026", "root", "first", "env1:old", "launch1:old", Facts(facts), digest="sha256:1"
    )


def seen(
    *facts: Fact | Unknown, before: Lock | None, policy: Policy = POLICY, because: dict[str, str] | None = None
) -> Report:
    """A report of a look that gave these facts."""
    known = before.facts if before is not None else {}
    found = Facts(facts)
    moved = [name for name in sorted({*known, *found}) if known.get(name) != found.get(name)]
    return Report(
        policy=policy,
        lock=before,
        sight=Sight(found, {}, dict),
        differences=tuple(
            Difference(name, "changed", None, found.get(name), ("lock",), because=(because or {}).get(name))
            for name in moved
        ),
        verdict="block",
        findings=(),
        recorded=(),
        environment="env1:shown",
        environment_full="env1:full",
        launch="launch1:x",
        look="stat",
        elapsed=0.0,
        not_looked=(),
    )


def facts_of(report: Report, **wish: Any) -> dict[str, Any]:
    return dict(accept.plan(report, Wish(**wish), STAMP).lock.facts)


def test_a_first_accept_takes_all_and_says_whose_variables() -> None:
    made = accept.plan(seen(PYTHON, TORCH, ENV, before=None), Wish("good"), STAMP)
    assert list(made.lock.facts) == ["env:A", "package:train/torch", "python:train"]
    assert (made.lock.generation, made.lock.by, made.lock.why, made.lock.previous) == (2, "root (ssh)", "good", None)
    assert "the launch's variables are recorded from this process" in made.notes


def test_the_lock_before_is_named_by_its_digest() -> None:
    assert accept.plan(seen(TORCH, before=locked(TORCH)), Wish(), STAMP).lock.previous == "sha256:1"


def test_variables_stay_as_locked_unless_asked_for() -> None:
    other = Fact("env", "A", {"value": "of this shell"})
    report = seen(TORCH, other, before=locked(TORCH, ENV))
    assert facts_of(report)["env:A"] == ENV
    assert facts_of(report, environ=True)["env:A"] == other
    assert facts_of(report, only=("env:A",))["env:A"] == other


def test_a_variable_of_a_glob_that_is_set_in_this_shell_alone_does_not_creep_in() -> None:
    stray = Fact("env", "NCCL_DEBUG", {"value": "INFO"})
    policy = replace(POLICY, env={"NCCL_*": EnvRule(locked=True)})
    assert "env:NCCL_DEBUG" not in facts_of(seen(TORCH, stray, before=locked(TORCH), policy=policy))


def test_a_variable_that_an_edited_policy_names_now_is_recorded() -> None:
    edited = replace(POLICY, digest="sha256:edited")
    assert facts_of(seen(TORCH, ENV, before=locked(TORCH), policy=edited))["env:A"] == ENV


def test_what_went_from_the_machine_goes_from_the_lock() -> None:
    assert list(facts_of(seen(PYTHON, TORCH, before=locked(PYTHON, TORCH, TRITON)))) == [
        "package:train/torch",
        "python:train",
    ]


def test_only_takes_one_fact_and_leaves_the_rest_as_locked() -> None:
    report = seen(package("torch", "2.0"), package("triton", "2.0"), before=locked(TORCH, TRITON))
    made = accept.plan(report, Wish(only=("torch",)), STAMP)
    assert made.lock.facts["package:train/torch"].attributes["version"] == "2.0"  # type: ignore[union-attr]
    assert made.lock.facts["package:train/triton"] == TRITON
    assert "package:train/triton still differs" in made.notes


def test_only_with_a_plus_takes_what_it_brought() -> None:
    report = seen(
        *(package(name, "2.0") for name in ("torch", "triton", "numpy")),
        before=locked(TORCH, TRITON, package("numpy")),
        because={"package:train/triton": "package:train/torch"},
    )
    assert accept.plan(report, Wish(only=("torch+",)), STAMP).chosen == {"package:train/torch", "package:train/triton"}


def test_only_of_something_gone_takes_it_from_the_lock() -> None:
    assert "package:train/triton" not in facts_of(seen(TORCH, before=locked(TORCH, TRITON)), only=("triton",))


def test_only_without_a_lock_is_wrong_usage() -> None:
    with pytest.raises(UsageError, match="needs a lock"):
        accept.plan(seen(TORCH, before=None), Wish(only=("torch",)), STAMP)


@pytest.mark.parametrize("expect", ["env1:shown", "env1:full"])
def test_the_reviewed_state_may_be_named_by_either_id(expect: str) -> None:
    accept.plan(seen(TORCH, before=None), Wish(expect=expect), STAMP)


def test_another_state_than_the_reviewed_one_is_refused() -> None:
    with pytest.raises(RefusedError, match="not the one that was reviewed") as caught:
        accept.plan(seen(TORCH, before=None), Wish(expect="env1:else"), STAMP)
    assert caught.value.code == 1


PINNED = replace(
    POLICY,
    python=(PythonRule("train", "/root/venv", packages={"torch": PackagePin(version="==2.11.0")}),),
    lines={"python[0].packages.torch": 21},
)


def test_a_broken_pin_is_refused_with_the_line_to_edit() -> None:
    with pytest.raises(RefusedError, match=r"ct200\.toml:21") as caught:
        accept.plan(seen(PYTHON, package("torch", "2.13.0"), before=None, policy=PINNED), Wish(), STAMP)
    assert "edit ct200.toml:21 if the intent has changed" in caught.value.hint


def test_only_checks_the_pins_of_that_alone() -> None:
    report = seen(
        PYTHON,
        package("torch", "2.13.0"),
        package("triton", "2.0"),
        before=locked(PYTHON, TORCH, TRITON),
        policy=PINNED,
    )
    accept.plan(report, Wish(only=("triton",)), STAMP)
    with pytest.raises(RefusedError, match="policy's own pins"):
        accept.plan(report, Wish(only=("torch",)), STAMP)


def test_a_package_that_differs_from_its_own_record_needs_leave() -> None:
    report = seen(package("torch", modified=1, modified_files=("torch/fx/x.py",)), before=None)
    with pytest.raises(RefusedError, match=r"train/torch: 1 of its files \(torch/fx/x.py\)") as caught:
        accept.plan(report, Wish(), STAMP)
    assert "--allow-modified torch" in caught.value.hint
    for allowed in ("torch", "Torch", "all"):
        assert any("allowed" in note for note in accept.plan(report, Wish(allow_modified=(allowed,)), STAMP).notes)
    with pytest.raises(RefusedError):
        accept.plan(report, Wish(allow_modified=("triton",)), STAMP)


def test_leave_given_once_holds_while_the_package_stays_the_same() -> None:
    patched = package("torch", modified=1)
    accept.plan(seen(patched, before=locked(patched)), Wish(), STAMP)
    with pytest.raises(RefusedError):
        accept.plan(seen(package("torch", "2.0", modified=1), before=locked(patched)), Wish(), STAMP)


@pytest.mark.parametrize("wrong", ["broken: METADATA missing", "duplicate: a, b", "malformed rows"])
def test_a_broken_installation_needs_leave_too(wrong: str) -> None:
    report = seen(package("torch", state=f"{wrong}; unverifiable: no RECORD"), before=None)
    with pytest.raises(RefusedError, match=re.escape(wrong)):
        accept.plan(report, Wish(), STAMP)


def test_what_merely_cannot_be_checked_needs_none() -> None:
    accept.plan(seen(package("torch", state="unverifiable: no RECORD"), before=None), Wish(), STAMP)


def test_what_could_not_be_read_is_never_known_good() -> None:
    with pytest.raises(LookError, match=r"file:/root/a\.py: no right") as caught:
        accept.plan(seen(PYTHON, Unknown("file", "/root/a.py", "no right"), before=None), Wish(), STAMP)
    assert caught.value.code == 3


def test_only_is_not_stopped_by_what_another_fact_hides() -> None:
    report = seen(package("torch", "2.0"), Unknown("file", "/root/a.py", "no right"), before=locked(TORCH))
    accept.plan(report, Wish(only=("torch",)), STAMP)


def test_an_unreadable_fact_that_is_only_recorded_stays_out_of_the_lock() -> None:
    policy = replace(POLICY, file=(FileRule("/root/*.py", on_drift="record"),))
    made = accept.plan(
        seen(PYTHON, Unknown("file", "/root/a.py", "no right"), before=None, policy=policy), Wish(), STAMP
    )
    assert list(made.lock.facts) == ["python:train"]
    assert any("left out of the lock" in note for note in made.notes)


def test_a_baseline_of_nothing_is_refused() -> None:
    with pytest.raises(RefusedError, match="nothing at all"):
        accept.plan(seen(before=None), Wish(), STAMP)


def test_an_environment_that_is_not_there_is_no_baseline() -> None:
    with pytest.raises(RefusedError, match="train: nothing at /root/venv"):
        accept.plan(seen(Fact("python", "train", ABSENT), before=None), Wish(), STAMP)


def test_an_absent_file_is_recorded_and_said() -> None:
    made = accept.plan(seen(PYTHON, Fact("file", "/root/a.py", ABSENT), before=None), Wish(), STAMP)
    assert "file:/root/a.py is not there, and is recorded as absent" in made.notes


def test_a_touch_moves_no_line_of_the_lock() -> None:
    touched = Fact("file", "/root/a.py", {"digest": "1"}, {"mtime": "2026", "size": 1})
    assert facts_of(seen(PYTHON, touched, before=None))["file:/root/a.py"].told == {"size": 1}


# -- names


KNOWN = [
    "package:train/torch",
    "package:infer/torch",
    "package:train/torch-geometric",
    "file:/root/a/b.py",
    "file:/b.py",
    "env:A",
]


@pytest.mark.parametrize(
    ("word", "fact"),
    [
        ("package:train/torch", "package:train/torch"),
        ("train/torch", "package:train/torch"),
        ("Torch_Geometric", "package:train/torch-geometric"),
        ("a/b.py", "file:/root/a/b.py"),
        ("/b.py", "file:/b.py"),
        ("A", "env:A"),
        ("env:A", "env:A"),
    ],
)
def test_a_word_that_fits_one_fact_names_it(word: str, fact: str) -> None:
    assert names.resolve(KNOWN, word) == fact


@pytest.mark.parametrize("word", ["torch", "b.py", "train/*"])
def test_a_word_that_fits_several_is_refused_with_all_of_them(word: str) -> None:
    with pytest.raises(UsageError, match="fits several") as caught:
        names.resolve(KNOWN, word)
    assert caught.value.what.count(":") >= 3


def test_a_glob_names_several_where_several_are_wanted() -> None:
    assert names.resolve_all(KNOWN, ["train/*", "A"]) == [
        "env:A",
        "package:train/torch",
        "package:train/torch-geometric",
    ]


def test_a_word_that_fits_none_is_answered_with_the_nearest() -> None:
    with pytest.raises(UsageError, match="no fact is called") as caught:
        names.resolve(KNOWN, "torch-geometrics")
    assert "package:train/torch-geometric" in caught.value.hint


# -- the command, over real files


@dataclass
class Place:
    """A policy over two real files, and the command line."""

    root: Path
    capsys: pytest.CaptureFixture[str]
    out: str = ""
    err: str = ""

    @property
    def policy(self) -> Path:
        return self.root / "ct.toml"

    @property
    def lock_path(self) -> Path:
        return self.root / "ct.lock"

    def lockd(self, *words: str) -> int:
        code = cli.main(["--policy", str(self.policy), *words])
        self.out, self.err = self.capsys.readouterr()
        assert "Traceback" not in self.out + self.err
        return code

    def accept(self, *words: str) -> int:
        return self.lockd("accept", "-m", "good", "--yes", *words)

    def locked(self) -> Lock:
        found = lock.read(str(self.lock_path))
        assert found is not None
        return found

    def log(self) -> list[tuple[str, str]]:
        assert self.lockd("log", "--json", "--reverse") == 0
        return [(row["kind"], row.get("fact", "")) for row in json.loads(self.out)]


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Place:
    tmp_path.chmod(0o755)
    monkeypatch.setenv("LOCKD_STATE", str(tmp_path / "state"))
    (tmp_path / "job").mkdir()
    (tmp_path / "job" / "a.py").write_text("a = 1\n")
    (tmp_path / "job" / "b.py").write_text("b = 1\n")
    found = Place(tmp_path, capsys)
    found.policy.write_text(f'schema = 1\nname = "ct"\n[[file]]\npath = "{tmp_path}/job/*.py"\n')
    return found


def test_accept_then_verify_is_ok_and_in_the_log(place: Place) -> None:
    assert place.accept() == 0
    assert place.lockd("verify") == 0
    assert place.lockd("log", "--json") == 0
    (row,) = json.loads(place.out)
    assert (row["id"], row["kind"], row["generation"], row["message"]) == (
        1,
        "accept",
        1,
        "generation 1 accepted: good",
    )
    assert row["by"]["user"] == origin.current().user
    assert place.lock_path.stat().st_mode & 0o777 == 0o644


def test_a_second_generation_follows_the_first(place: Place) -> None:
    place.accept()
    first = place.locked()
    (place.root / "job" / "a.py").write_text("a = 2\n")
    assert place.lockd("verify") == 1
    assert place.accept() == 0
    assert "a.py" in place.out
    assert (place.locked().generation, place.locked().previous) == (2, first.digest)
    assert place.lockd("verify") == 0
    assert [kind for kind, _ in place.log()] == ["accept", "drift", "accept"]
    assert place.lockd("log", "--check") == 0


def test_only_one_file(place: Place) -> None:
    place.accept()
    for name in ("a.py", "b.py"):
        (place.root / "job" / name).write_text("x = 2\n")
    assert place.accept("--only", "a.py") == 0
    assert place.lockd("verify", "--json") == 1
    assert [one["fact"] for one in json.loads(place.out)["findings"]] == [f"file:{place.root}/job/b.py"]


def test_expect_takes_the_id_that_verify_shows(place: Place) -> None:
    place.accept()
    reviewed = place.locked().environment
    (place.root / "job" / "a.py").write_text("a = 2\n")
    before = place.lock_path.read_bytes()
    assert place.accept("--expect", reviewed) == 1
    assert place.lock_path.read_bytes() == before
    place.lockd("verify", "--json")
    assert place.lockd("accept", "-m", "seen", "--expect", json.loads(place.out)["environment"]) == 0


def test_without_a_terminal_somebody_must_say_yes(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    assert place.lockd("accept", "-m", "x") == 2
    assert "--expect" in place.err
    assert not place.lock_path.exists()


def with_lockd() -> dict[str, str]:
    """The environment of a child that runs this lockd."""
    paths = [os.getcwd(), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}


def on_a_terminal(place: Place, answer: bytes, *words: str) -> tuple[int, str]:
    """Run the command on a terminal of its own and answer its questions."""
    ours, theirs = os.openpty()
    command = [sys.executable, "-m", "lockd", "--policy", str(place.policy), *words]
    process = subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, env=with_lockd())
    os.close(theirs)
    os.write(ours, answer)
    said = b""
    try:
        while part := os.read(ours, 4096):
            said += part
    except OSError:  # the terminal's other end is closed
        pass
    os.close(ours)
    return process.wait(), said.decode()


@pytest.mark.parametrize(("answer", "code"), [(b"y\n", 0), (b"n\n", 1), (b"\n", 1), (b"\x04", 1)])
def test_on_a_terminal_it_shows_and_asks(place: Place, answer: bytes, code: int) -> None:
    ended, said = on_a_terminal(place, answer, "accept", "-m", "good")
    assert ended == code, said
    assert "Make this the known-good? [y/N]" in said
    assert place.lock_path.exists() == (code == 0)


def test_on_a_terminal_commands_are_asked_about_first(place: Place) -> None:
    proof = place.root / "ran"
    with place.policy.open("a") as file:
        file.write(f'[[command]]\nname = "touch"\nrun = ["/usr/bin/touch", "{proof}"]\n')
    ended, said = on_a_terminal(place, b"n\n", "accept", "-m", "good")
    assert ended == 1
    assert "Run them?" in said
    assert not proof.exists()
    assert on_a_terminal(place, b"y\ny\n", "accept", "-m", "good")[0] == 0


def test_why_is_asked_for(place: Place) -> None:
    assert place.lockd("accept", "--yes") == 2
    assert place.lockd("accept", "--yes", "-m", "  ") == 2


def test_a_dry_run_records_nothing_at_all(place: Place) -> None:
    assert place.lockd("accept", "--dry-run") == 0
    assert "was not recorded" in place.out
    assert sorted(os.listdir(place.root)) == ["ct.toml", "job"]


def test_json_is_one_document_alone_on_stdout(place: Place) -> None:
    assert place.accept("--json") == 0
    document = json.loads(place.out)
    assert (document["recorded"], document["generation"], document["why"]) == (True, 1, "good")
    assert document["environment"] == place.locked().environment


def test_a_broken_lock_is_replaced_by_a_whole_accept_only(place: Place) -> None:
    place.accept()
    place.lock_path.write_bytes(place.lock_path.read_bytes()[:-20])
    assert place.lockd("verify") == 2
    assert place.accept("--only", "a.py") == 2
    assert place.accept() == 0
    assert place.locked().generation == 2
    assert place.lockd("verify") == 0


def test_the_lock_of_another_policy_is_never_replaced(place: Place) -> None:
    place.accept()
    place.policy.write_text(place.policy.read_text().replace('"ct"', '"other"'))
    before = place.lock_path.read_bytes()
    assert place.accept() == 2
    assert place.lock_path.read_bytes() == before


def test_new_commands_are_shown_before_they_run(place: Place) -> None:
    proof = place.root / "ran"
    with place.policy.open("a") as file:
        file.write(f'[[command]]\nname = "touch"\nrun = ["/usr/bin/touch", "{proof}"]\n')
    assert place.lockd("accept", "--dry-run") == 0
    assert f"/usr/bin/touch {proof}" in place.err
    assert not proof.exists()
    assert place.lockd("verify") == 3
    assert not proof.exists()
    assert place.accept() == 0
    assert f"/usr/bin/touch {proof}" in place.err
    assert proof.exists()
    assert place.accept() == 0
    assert "touch" not in place.err


def test_a_lost_store_stops_nothing_and_a_corrupt_one_is_said(place: Place) -> None:
    place.accept()
    where = state.open(str(place.policy), create=False)
    assert where is not None
    os.unlink(where.store_path)
    assert place.lockd("verify") == 0
    (place.root / "job" / "a.py").write_text("a = 2\n")
    assert place.lockd("verify") == 1
    Path(where.store_path).write_bytes(b"junk" * 5000)
    assert place.accept() == 0
    assert "the store was corrupt" in place.err
    assert place.locked().generation == 2


def test_the_variables_of_a_running_job(place: Place) -> None:
    with place.policy.open("a") as file:
        file.write('[env]\nJOB_MODE = "locked"\n')
    place.accept()
    job = subprocess.Popen(["/bin/sleep", "60"], env={"JOB_MODE": "fast"})
    try:
        time.sleep(0.1)  # until it has exec'd
        assert place.accept("--env-of", str(job.pid)) == 0
    finally:
        job.kill()
        job.wait()
    fact = place.locked().facts["env:JOB_MODE"]
    assert isinstance(fact, Fact)
    assert fact.attributes["value"] == "fast"
    assert place.accept("--env-of", str(job.pid)) == 2
    assert "no process" in place.err
    assert place.accept() == 0  # and they stay
    assert place.locked().facts["env:JOB_MODE"] == fact


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a policy away")
def test_others_than_owner_and_root_may_not(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 65533)
    assert place.accept() == 1
    assert "may accept" in place.err
    assert place.lockd("gc") == 1


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a policy away")
def test_root_leaves_a_users_lock_to_the_user(place: Place) -> None:
    os.chown(place.policy, 65533, 65533)
    loaded = Policy("ct", path=str(place.policy), owner=65533)
    recorded(place, loaded, plan_for(loaded, 1, None), "")
    assert place.lock_path.stat().st_uid == 65533


# -- recording: races, kills, a full disk


def plan_for(policy: Policy, number: int, before: Lock | None) -> accept.Plan:
    facts = Facts(Fact("file", f"/f{one}", {"digest": f"{number}-{one}"}) for one in range(200))
    header = {
        "policy": policy.name,
        "policy_digest": policy.digest,
        "generation": number,
        "accepted_at": "2026",
        "by": "root",
    }
    made = Lock(**header, why="w", environment="env1:e", launch="launch1:l", facts=facts)  # type: ignore[arg-type]
    made = replace(made, previous=before.digest if before is not None else None)
    return accept.Plan(before, made, frozenset(facts), (), ())


def recorded(place: Place, policy: Policy, plan: accept.Plan, seen_before: str) -> Lock:
    where = state.open(policy.path, create=True)
    assert where is not None
    manifests = {"file:/f1": {f"{one}": f"{plan.lock.generation}-{one}" for one in range(500)}}
    with accept_record.alone(where, lambda _: None):
        opened = where.store(create=True)
        assert opened is not None
        with opened:
            return accept_record.record(policy, opened, plan, seen_before, manifests, origin.Origin("root", 0, 1))


def policy_of(place: Place) -> Policy:
    return Policy("ct", path=str(place.policy), digest="sha256:p")


def seen_now(place: Place) -> str:
    return accept_record.fingerprint(place.lock_path.read_bytes() if place.lock_path.exists() else None)


def test_of_two_accepts_at_once_the_second_is_refused(place: Place) -> None:
    policy = policy_of(place)
    before = seen_now(place)
    recorded(place, policy, plan_for(policy, 1, None), before)
    with pytest.raises(RefusedError, match="another one came first"):
        recorded(place, policy, plan_for(policy, 1, None), before)
    assert place.locked().generation == 1


def test_many_accepts_at_once_give_one_generation_each_or_none(place: Place) -> None:
    policy = policy_of(place)
    before = seen_now(place)
    children = [forked(lambda: recorded(place, policy, plan_for(policy, 1, None), before)) for _ in range(6)]
    codes = sorted(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children)
    assert codes == [0, 1, 1, 1, 1, 1]


def test_an_accept_of_what_another_one_just_recorded_is_no_error(tmp_path: Path) -> None:
    """Started together over one state, each of them ends well; what they accepted is there."""
    scene, _ = pinned_file(tmp_path)
    with ThreadPoolExecutor(4) as threads:
        ended = [one.result() for one in [threads.submit(scene.accept) for _ in range(4)]]
    assert [one.code for one in ended] == [0] * 4, ended
    assert scene.verify().code == 0


def test_an_accept_that_comes_second_with_the_same_state_is_told_of_the_first(place: Place) -> None:
    policy = policy_of(place)
    before = seen_now(place)
    first = recorded(place, policy, plan_for(policy, 1, None), before)
    assert accept_record.overtaken(policy, plan_for(policy, 1, None), before) == first
    assert accept_record.overtaken(policy, plan_for(policy, 2, first), seen_now(place)) is None, "nobody came between"


def test_an_accept_that_does_not_end_is_waited_for_but_not_for_ever(place: Place) -> None:
    where = state.open(str(place.policy), create=True)
    assert where is not None
    said: list[str] = []
    with (
        accept_record.alone(where, said.append),
        pytest.raises(LookError, match="does not end"),
        accept_record.alone(where, said.append, wait=0.3),
    ):
        pass
    assert said == ["waiting for another accept to end"]


def forked(deed: Callable[[], object]) -> int:
    """Run a deed in a child: exit code 0, that of a LockdError, or 99."""
    child = os.fork()
    if child:
        return child
    code = 99
    try:
        deed()
        code = 0
    except LockdError as error:
        code = error.code
    finally:
        os._exit(code)


def test_kill_9_anywhere_leaves_the_old_or_the_new_whole(place: Place) -> None:
    policy = policy_of(place)
    before = recorded(place, policy, plan_for(policy, 1, None), "")
    chance, outcomes = random.Random(7), set()
    scale = 0.02
    for number in range(2, 48):
        plan, fingerprint = plan_for(policy, number, before), seen_now(place)
        child = forked(lambda plan=plan, fingerprint=fingerprint: recorded(place, policy, plan, fingerprint))  # type: ignore[misc]
        time.sleep(chance.uniform(0, 2 * scale))
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        after = place.locked()  # whole, or this raises
        assert after.generation in (before.generation, number)
        outcomes.add(after.generation == number)
        scale *= 0.7 if after.generation == number else 1.4  # stay around the rename
        check_store(place, after)
        before = after
    assert outcomes == {True, False}, "the kills hit only one side of the rename"
    recorded(place, policy, plan_for(policy, 99, before), seen_now(place))
    assert sorted(os.listdir(place.root)) == ["ct.lock", "ct.toml", "job", "state"]


def check_store(place: Place, standing: Lock) -> None:
    where = state.open(str(place.policy), create=False)
    assert where is not None
    opened = where.store()
    assert opened is not None
    with opened:
        opened.settle(standing, place.lock_path.read_bytes())
        assert opened.rows("PRAGMA integrity_check") == [("ok",)]
        assert opened.check_chain() is None
        known = [one.number for one in opened.generations()]
        assert known[-1] == standing.generation
        assert len(set(known)) == len(known) == len(opened.events("kind = 'accept'"))
        manifest = opened.manifest(standing.generation, "file:/f1") or {}
        assert manifest["7"] == f"{standing.generation}-7"


@pytest.mark.parametrize("limit", [1_000, 10_000, 20_000])
def test_a_full_disk_loses_nothing(place: Place, limit: int) -> None:
    policy = policy_of(place)
    before = recorded(place, policy, plan_for(policy, 1, None), "")
    data, fingerprint = place.lock_path.read_bytes(), seen_now(place)

    def full() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
        recorded(place, policy, plan_for(policy, 2, before), fingerprint)

    code = os.waitstatus_to_exitcode(os.waitpid(forked(full), 0)[1])
    assert code == 3
    assert place.lock_path.read_bytes() == data
    check_store(place, before)
    assert not [name for name in os.listdir(place.root) if name.endswith(".aside")]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount")
def test_a_full_file_system_under_the_lock_loses_nothing(place: Place) -> None:
    folder = place.root / "small"
    folder.mkdir()
    script = f"""mount -t tmpfs -o size=64k none {folder} && cp {place.policy} {folder}/ct.toml || exit 77
    {sys.executable} -m lockd --policy {folder}/ct.toml accept -m one --yes || exit 1
    cp {folder}/ct.lock {place.root}/kept; echo x = 2 > {place.root}/job/a.py
    head -c 1M /dev/zero > {folder}/filler
    {sys.executable} -m lockd --policy {folder}/ct.toml accept -m two --yes; code=$?
    cmp {folder}/ct.lock {place.root}/kept || exit 2
    rm {folder}/filler
    {sys.executable} -m lockd --policy {folder}/ct.toml accept -m two --yes || exit 4
    exit $code"""
    done = subprocess.run(["unshare", "--mount", "sh", "-c", script], env=with_lockd(), capture_output=True, text=True)
    if done.returncode == 77:
        pytest.skip(f"no private mounts here: {done.stderr}")
    assert done.returncode == 3, done.stderr
    assert "make room" in done.stderr


def test_a_lock_that_cannot_be_written_is_said(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    policy = replace(policy_of(place), path="/proc/ct.toml")
    with pytest.raises(LockdError, match="could not be written") as caught:
        accept_record._put("/proc/ct.lock", b"x", SimpleNamespace(path=str(place.policy)))  # type: ignore[arg-type]
    assert caught.value.code == 3
    assert policy.lock_path == "/proc/ct.lock"


def test_gc_and_log_answer_before_anything_was_accepted(place: Place) -> None:
    assert place.lockd("log") == 0
    assert place.lockd("log", "--json") == 0
    assert json.loads(place.out) == []
    assert place.lockd("log", "--check") == 0
    assert place.lockd("gc", "--dry-run") == 0


@pytest.mark.parametrize("words", [("--since", "soon"), ("--kind", "drifts")])
def test_log_refuses_what_it_does_not_understand(place: Place, words: tuple[str, str]) -> None:
    assert place.lockd("log", *words) == 2


def test_log_check_names_the_first_broken_entry(place: Place) -> None:
    place.accept()
    place.accept()
    where = state.open(str(place.policy), create=False)
    assert where is not None
    opened = store.open(where.store_path)
    assert opened is not None
    with opened, opened.transaction():
        opened.change("UPDATE events SET message = 'nothing' WHERE id = 1")
    assert place.lockd("log", "--check") == 1
    assert "entry 1 " in place.out
