"""check and look: what a verdict is held against, and what happens when something cannot be looked at."""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from lockd import check as checking
from lockd import lock as locks
from lockd import probes, state, store
from lockd.check import Report, check
from lockd.disk import Disk
from lockd.facts import Fact, Facts, Unknown
from lockd.findings import Breach, Difference
from lockd.held import hold
from lockd.lock import Lock
from lockd.look import Launch, Look, Sight, look_at, rule_fact
from lockd.probes import Seen
from lockd.rules import CacheRule, CommandRule, EnvRule, FileRule, LaunchRule, Policy, PythonRule
from lockd.state import State


def policy(tmp_path: Path, **sections: Any) -> Policy:
    path = tmp_path / "ct.toml"
    path.write_text("# held by the test\n")
    return Policy(name="ct", path=str(path), digest="sha256:" + "1" * 64, **sections)


def state_of(rules: Policy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> State:
    monkeypatch.setenv("LOCKD_STATE", str(tmp_path / "state"))
    opened = state.open(rules.path, create=True)
    assert opened is not None
    return opened


def lock_of(report: Report, rules: Policy, generation: int = 1) -> Lock:
    facts = Facts(report.sight.facts.known())
    return Lock(
        policy=rules.name,
        policy_digest=rules.digest,
        generation=generation,
        accepted_at="2026-11-30T19:04:11Z",
        by="root",
        why="test",
        environment=report.environment_full,
        launch=report.launch or "",
        facts=facts,
    )


def looked(rules: Policy, lock: Lock | None = None, *, kept: State | None = None, **how: Any) -> Report:
    how.setdefault("launch", Launch({}))
    return check(rules, state=kept, lock=lock, **how)


def names(report: Report) -> list[str]:
    return [one.fact for one in report.findings]


# -- what is held against the lock -------------------------------------------------------------------------------------


def test_the_same_state_has_the_same_id_whatever_came_beside_it(tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    cache.mkdir()
    (cache / "one").write_text("1")
    rules = policy(tmp_path, cache=(CacheRule(str(cache)),))
    lock = lock_of(looked(rules), rules)
    (cache / "two").write_text("2")
    report = looked(rules, lock)
    assert (report.verdict, report.environment) == ("ok", lock.environment)
    assert report.environment_full != lock.environment


def test_facts_under_record_do_not_move_the_id(tmp_path: Path) -> None:
    path = tmp_path / "a.py"
    path.write_text("1")
    rules = policy(tmp_path, file=(FileRule(str(path), on_drift="record"),))
    before = looked(rules).environment
    path.write_text("2")
    assert looked(rules).environment == before


def test_without_a_launch_its_facts_are_left_out_and_said(tmp_path: Path) -> None:
    rules = policy(tmp_path, env={"X": EnvRule(locked=True)}, launch=LaunchRule(scripts=("/none/train.py",)))
    lock = lock_of(looked(rules, launch=Launch({"X": "1"})), rules)
    report = looked(rules, lock, launch=None)
    assert (report.verdict, names(report), report.launch) == ("ok", [], None)
    assert any("env" in line for line in report.not_looked)
    assert names(looked(rules, lock, launch=Launch({"X": "2"}))) == ["env:X"]


def test_a_locked_interpreter_of_a_launch_needs_a_command_to_be_compared(tmp_path: Path) -> None:
    rules = policy(tmp_path, launch=LaunchRule(scripts=("/none/train.py",)))
    first = looked(rules)
    facts = [*first.sight.facts.known(), Fact("launch", "python", {"env": "train"})]
    lock = replace(lock_of(first, rules), facts=Facts(facts))
    assert names(looked(rules, lock)) == []


def test_locked_facts_that_no_rule_claims_are_counted_not_compared(tmp_path: Path) -> None:
    path = tmp_path / "a.py"
    path.write_text("1")
    rules = policy(tmp_path, file=(FileRule(str(path)),))
    first = looked(rules)
    facts = [*first.sight.facts.known(), Fact("file", "/gone.py", {"digest": "sha256:1"})]
    report = looked(rules, replace(lock_of(first, rules), facts=Facts(facts)))
    assert (report.verdict, report.unclaimed) == ("ok", ("file:/gone.py",))


def test_commands_run_only_under_a_policy_that_this_state_accepted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    canary = tmp_path / "canary"
    rules = policy(tmp_path, command=(CommandRule("one", ("touch", str(canary))),))
    kept = state_of(rules, tmp_path, monkeypatch)
    for report in (looked(rules), looked(rules, kept=kept), looked(rules, kept=kept, commands=False)):
        assert not canary.exists()
        assert not isinstance(report.sight.facts.get("command:one"), Fact)
    kept.accept_digest(rules.digest)
    assert isinstance(looked(rules, kept=kept).sight.facts["command:one"], Fact)
    assert canary.exists()


def test_commands_left_out_on_purpose_are_not_held_against_the_lock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rules = policy(tmp_path, command=(CommandRule("one", ("echo", "1")),))
    kept = state_of(rules, tmp_path, monkeypatch)
    kept.accept_digest(rules.digest)
    lock = lock_of(looked(rules, kept=kept), rules)
    report = looked(rules, lock, kept=kept, commands=False)
    assert (report.verdict, names(report)) == ("ok", [])
    assert any("command" in line for line in report.not_looked)


# -- probes that break -------------------------------------------------------------------------------------------------


class FragileProbe(ModuleType):
    """A probe of `[[file]]` whose look gives what it is told to, or raises."""

    KINDS = ("file",)
    ATTRIBUTES: Mapping[str, Mapping[str, str]] = {}

    def __init__(self, seen: Seen | Exception, breaches: Iterable[Breach] = ()) -> None:
        super().__init__("fragile")
        self.seen, self.pins = seen, tuple(breaches)

    def look(self, rule: Any, look: Look) -> Seen:
        if isinstance(self.seen, Exception):
            raise self.seen
        return self.seen

    def claims(self, rule: Any, kind: str, subject: str) -> bool:
        return subject.startswith("/pinned/")

    def severity(self, rule: Any, policy: Policy, kind: str, subject: str, change: str) -> str:
        return "block"

    def breaches(self, rule: Any, policy: Policy, found: Facts) -> Iterator[Breach]:
        yield from self.pins

    def word(self, difference: Difference) -> str:
        return difference.name

    def watched(self, rule: Any) -> Iterable[str]:
        return ()


def use(monkeypatch: pytest.MonkeyPatch, probe: FragileProbe) -> None:
    real = importlib.import_module

    def load(name: str) -> Any:
        return probe if name == probes.PROBES["file"] else real(name)

    monkeypatch.setattr(probes, "import_module", load)


def test_a_probe_that_breaks_is_unknown_and_the_look_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = tmp_path / "cache"
    cache.mkdir()
    rules = policy(tmp_path, file=(FileRule("/pinned/*.py"),), cache=(CacheRule(str(cache)),))
    use(monkeypatch, FragileProbe(ZeroDivisionError("boom")))
    report = looked(rules)
    unknown = report.sight.facts["file:/pinned/*.py"]
    assert isinstance(unknown, Unknown) and "ZeroDivisionError: boom" in unknown.reason
    assert isinstance(report.sight.facts[f"cache:{cache}"], Fact)
    assert len(report.sight.failures) == 1 and "Traceback" in report.sight.failures[0]


def test_what_hides_behind_a_rule_that_broke_is_one_unknown_not_many_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rules = policy(tmp_path, file=(FileRule("/pinned/*.py"),))
    seen = Seen((Fact("file", "/pinned/a.py", {"d": "1"}), Fact("file", "/pinned/b.py", {"d": "1"})))
    use(monkeypatch, FragileProbe(seen))
    lock = lock_of(looked(rules), rules)
    use(monkeypatch, FragileProbe(OSError(5, "Input/output error")))
    report = looked(rules, lock)
    assert (report.verdict, names(report)) == ("unknown", ["file:/pinned/*.py"])


def test_a_pin_that_cannot_be_judged_is_never_taken_as_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Unjudging(FragileProbe):
        def breaches(self, rule: Any, policy: Policy, found: Facts) -> Iterator[Breach]:
            raise ValueError("no such specifier")

    use(monkeypatch, Unjudging(Seen((Fact("file", "/pinned/a.py", {"d": "1"}),))))
    with pytest.raises(ValueError, match="no such specifier"):
        looked(policy(tmp_path, file=(FileRule("/pinned/*.py"),)))


def test_two_rules_for_one_file_give_one_fact_and_the_one_that_names_it_answers(tmp_path: Path) -> None:
    path = tmp_path / "a.py"
    path.write_text("1")
    glob, literal = FileRule(str(tmp_path / "*.py"), on_drift="ignore"), FileRule(str(path), on_drift="warn")
    for listed in ((glob, literal), (literal, glob)):
        rules = policy(tmp_path, file=listed)
        sight = look_at(Look(rules, Disk()))
        assert list(sight.facts) == [f"file:{path}"]
        assert sight.claimed[f"file:{path}"] == ("file", literal)


def test_the_fact_of_a_whole_rule_has_the_rules_own_name() -> None:
    assert rule_fact("python", PythonRule("train", "/v")) == ("python", "train")
    assert rule_fact("file", FileRule("/a\n*")) == ("file", "/a\\n*")
    assert rule_fact("env", {}) == ("env", "*")
    assert rule_fact("launch", LaunchRule()) == ("launch", "path")


# -- what the store adds -----------------------------------------------------------------------------------------------


def keep(kept: State, lock: Lock, manifests: Mapping[str, Mapping[str, str]]) -> Lock:
    text = locks.dumps(lock)
    lock = replace(lock, digest=locks.digest_of(text) or "")
    opened = store.open(kept.store_path)
    assert opened is not None
    with opened:
        opened.prepare(lock, text, manifests, {})
        opened.settle(lock, text)
    return locks.parse(text, "test")


def test_files_are_counted_where_the_store_has_the_manifest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = tmp_path / "cache"
    cache.mkdir()
    for name in "abc":
        (cache / name).write_text(name)
    rules = policy(tmp_path, cache=(CacheRule(str(cache), change="exact"),))
    kept = state_of(rules, tmp_path, monkeypatch)
    first = looked(rules, kept=kept)
    lock = keep(kept, lock_of(first, rules), dict(first.sight.manifests()))
    (cache / "a").write_text("changed")
    (cache / "b").unlink()
    (cache / "d").write_text("new")
    (finding,) = looked(rules, lock, kept=kept).findings
    assert finding.files is not None
    assert (finding.files.changed, finding.files.added, finding.files.missing) == (1, 1, 1)
    assert set(finding.files.examples) == {"a", "b", "d"}
    (bare,) = looked(rules, lock).findings
    assert (bare.fact, bare.files) == (finding.fact, None)


def test_a_corrupt_store_explains_less_and_decides_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.py"
    path.write_text("1")
    rules = policy(tmp_path, file=(FileRule(str(path)),))
    kept = state_of(rules, tmp_path, monkeypatch)
    lock = keep(kept, lock_of(looked(rules, kept=kept), rules), {})
    path.write_text("2")
    Path(kept.store_path).write_bytes(b"no database" * 1000)
    report = looked(rules, lock, kept=kept)
    assert (report.verdict, names(report)) == ("block", [f"file:{path}"])


def test_a_set_too_large_for_the_lock_is_unknown_without_its_store_never_ok(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(locks, "ENTRIES", 2)
    cache = tmp_path / "cache"
    cache.mkdir()
    for name in "abcd":
        (cache / name).write_text(name)
    rules = policy(tmp_path, cache=(CacheRule(str(cache)),))
    kept = state_of(rules, tmp_path, monkeypatch)
    first = looked(rules, kept=kept)
    lock = keep(kept, lock_of(first, rules), dict(first.sight.manifests()))
    (fact,) = lock.facts.known()
    assert fact.tokens is None
    assert looked(rules, lock).verdict == "ok"  # nothing moved: the digest of the whole decides
    (cache / "e").write_text("new")
    assert looked(rules, lock, kept=kept).verdict == "ok"
    assert looked(rules, lock).verdict == "unknown"
    (cache / "a").unlink()
    assert looked(rules, lock, kept=kept).verdict == "block"
    assert looked(rules, lock).verdict == "unknown"


def test_no_state_no_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.py"
    path.write_text("1")
    rules = policy(tmp_path, file=(FileRule(str(path)),))
    before = sorted(os.listdir(tmp_path))
    looked(rules)
    assert sorted(os.listdir(tmp_path)) == before


def test_the_counted_severity_follows_what_is_known(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A package that `extra = "ignore"` lets come does not move the id; one that the lock knows does."""
    rules = policy(tmp_path, python=(PythonRule("train", "/v", extra="ignore"),))
    found = Facts([Fact("package", "train/torch", {"version": "1"}), Fact("package", "train/helper", {"version": "1"})])
    sight = SimpleNamespace(facts=found, claimed=dict.fromkeys(found, ("python", rules.python[0])))
    locked = Facts([Fact("package", "train/torch", {"version": "1"})])
    same = checking.environment(rules, sight, locked, found)  # type: ignore[arg-type]
    assert same == checking.environment(rules, sight, locked, locked)  # type: ignore[arg-type]
    assert same != checking.environment(rules, sight, None, found)  # type: ignore[arg-type]


def test_a_secret_under_another_states_key_is_unknown_not_changed(tmp_path: Path) -> None:
    """A lock that was copied to a machine without its state cannot tell whether a secret is the same."""
    rules = policy(tmp_path, env={"HF_TOKEN": EnvRule(secret=True)})
    locked = Fact("env", "HF_TOKEN", {"digest": "hmac-sha256:aaaaaaaa:1111"})
    lock = replace(lock_of(looked(rules), rules), facts=Facts([locked]))

    def held(found: Fact) -> tuple[bool, str]:
        sight = Sight(Facts([found]), {found.name: ("env", rules.env)}, dict)
        fact = hold(rules, lock, sight, Launch({}), commands=True).found[found.name]
        return isinstance(fact, Unknown), fact.name

    assert held(Fact("env", "HF_TOKEN", {"digest": "hmac-sha256:bbbbbbbb:1111"})) == (True, "env:HF_TOKEN")
    assert held(Fact("env", "HF_TOKEN", {"digest": "hmac-sha256:aaaaaaaa:2222"})) == (False, "env:HF_TOKEN")
    assert held(Fact("env", "HF_TOKEN", {"absent": True})) == (False, "env:HF_TOKEN")
