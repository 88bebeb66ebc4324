"""verdict: severities by rule and by pin, what they come to, the order, and words that never lose a finding."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockd.compare import compare
from lockd.facts import ABSENT, Fact, Facts, Unknown
from lockd.findings import Breach, FileChanges, Finding
from lockd.hints import hint
from lockd.plain import replace
from lockd.rules import CacheRule, EnvRule, FileRule, PackagePin, Policy, PythonRule, Severity, TreeRule
from lockd.verdict import EXIT, Judged, judge, severity_of, strict, verdict_of, word

WORDS: list[Severity] = ["block", "warn", "record", "ignore"]


def policy(**sections: Any) -> Policy:
    return Policy(name="ct", path="/etc/ct.toml", digest="sha256:0", **sections)


def one_file(severity: Severity | None = None, default: Severity = "block") -> Policy:
    return policy(file=(FileRule("/a", on_drift=severity),), on_drift=default)


def moved(name: str = "/a") -> tuple[Facts, Facts]:
    old, new = {"type": "file", "digest": "sha256:1"}, {"type": "file", "digest": "sha256:2"}
    return Facts([Fact("file", name, old)]), Facts([Fact("file", name, new)])


def judged(rules: Policy, locked: Facts | None, found: Facts, pins: list[Breach] | None = None, **how: bool) -> Judged:
    return judge(rules, compare(locked, found, pins or []), {}, **how)


@pytest.mark.parametrize("default", WORDS)
@pytest.mark.parametrize("own", [None, *WORDS])
def test_the_rules_own_word_wins_over_the_policys(own: Severity | None, default: Severity) -> None:
    expected = own or default
    result = judged(one_file(own, default), *moved())
    assert [one.severity for one in result.findings] == ([expected] if expected in ("block", "warn") else [])
    assert [one.severity for one in result.recorded] == (["record"] if expected == "record" else [])
    assert result.verdict == {"block": "block", "warn": "warn"}.get(expected, "ok")


def test_what_could_not_be_read_under_block_is_unknown_and_under_warn_a_warning() -> None:
    locked, _ = moved()
    found = Facts([Unknown("file", "/a", "mode 000")])
    assert judged(one_file("block"), locked, found).verdict == "unknown"
    assert judged(one_file("warn"), locked, found).verdict == "warn"
    assert judged(one_file("record"), locked, found).verdict == "ok"


def test_block_beats_unknown_beats_warn() -> None:
    def finding(severity: Severity, change: Any) -> Finding:
        return Finding("file:/a", change, severity, ("lock",), "m", "h")

    blocks, unread, warns = finding("block", "changed"), finding("block", "unreadable"), finding("warn", "changed")
    assert verdict_of([warns, unread, blocks]) == "block"
    assert verdict_of([warns, unread]) == "unknown"
    assert verdict_of([warns]) == "warn"
    assert verdict_of([]) == "ok"
    assert {strict(verdict_of([warns])), strict("ok"), strict("unknown")} == {"block", "ok", "unknown"}
    assert [EXIT[verdict] for verdict in ("ok", "warn", "block", "unknown")] == [0, 0, 1, 3]


@given(st.lists(st.tuples(st.sampled_from(["block", "warn"]), st.sampled_from(["changed", "unreadable"])), max_size=6))
def test_the_verdict_does_not_hang_on_the_order(pairs: list[tuple[Any, Any]]) -> None:
    listed = [
        Finding(f"file:/{at}", change, severity, ("lock",), "m", "h") for at, (severity, change) in enumerate(pairs)
    ]
    assert verdict_of(listed) == verdict_of(listed[::-1])


# -- pins --------------------------------------------------------------------------------------------------------------


def torch(version: str) -> Fact:
    return Fact("package", "train/torch", {"version": version})


def pinned(**rule: Any) -> Policy:
    lines = {"python[0].packages.torch": 21}
    return policy(python=(PythonRule("train", "/root/venv", **rule),), lines=lines)


def breach(severity: Severity | None = None) -> Breach:
    text = "torch 2.11.0+cu130, pinned 2.11.0+cu128"
    key = "python[0].packages.torch"
    return Breach("package:train/torch", key, text, "version", "2.11.0+cu128", "2.11.0+cu130", on_drift=severity)


def test_a_pins_own_severity_counts_for_the_pin_and_the_rules_for_the_lock() -> None:
    rules = pinned(on_drift="warn", packages={"torch": PackagePin("2.11.0+cu128", on_drift="block")})
    new = Facts([torch("2.11.0+cu130")])
    assert judged(rules, new, new, [breach("block")]).verdict == "block"
    softer = pinned(packages={"torch": PackagePin("2.11.0+cu128", on_drift="warn")})
    assert judged(softer, new, new, [breach("warn")]).verdict == "warn"


def test_a_broken_pin_names_its_policy_line_and_never_says_accept() -> None:
    result = judged(pinned(), Facts([torch("2.11.0+cu128")]), Facts([torch("2.11.0+cu130")]), [breach()])
    (one,) = result.findings
    assert "or, if 2.11.0+cu130 is meant, edit ct.toml:21 first" in one.hint
    assert "lockd restore torch" in one.hint and "lockd diff" in one.hint
    assert "accept" not in one.hint + one.message
    assert one.attributes["version"] == ("2.11.0+cu128", "2.11.0+cu130")


def test_without_a_lock_a_broken_pin_still_blocks() -> None:
    assert judged(pinned(), None, Facts([torch("2.11.0+cu130")]), [breach()]).verdict == "block"


def test_extra_packages_have_a_severity_of_their_own() -> None:
    helper = Fact("package", "train/helper", {"version": "1"})
    for extra in WORDS:
        result = judged(pinned(extra=extra), Facts(), Facts([helper]))
        assert [one.severity for one in (*result.findings, *result.recorded)] == ([extra] if extra != "ignore" else [])


def test_a_fact_that_no_rule_answers_for_is_ignored() -> None:
    assert severity_of(policy(), "file:/a", "changed", {}) == "ignore"


def test_a_new_match_under_an_edited_policy_says_so_and_does_not_say_accept_it() -> None:
    _, found = moved()
    (one,) = judged(one_file(), Facts(), found, edited=True).findings
    assert "the policy was edited since the last accept" in one.message
    (one,) = judged(one_file(), Facts(), found).findings
    assert "edited" not in one.message


# -- order and words ---------------------------------------------------------------------------------------------------


def test_worst_first_and_what_was_brought_after_its_cause() -> None:
    def package(name: str, version: str, *requires: str) -> Fact:
        return Fact("package", f"train/{name}", {"version": version}, {"requires": requires})

    rules = policy(python=(PythonRule("train", "/v"),), file=(FileRule("/a", on_drift="warn"), FileRule("/z")))
    old = [package("torch", "1", "aaa==1"), package("aaa", "1"), *moved()[0].values(), *moved("/z")[0].values()]
    new = [package("torch", "2", "aaa==2"), package("aaa", "2"), *moved()[1].values(), *moved("/z")[1].values()]
    findings = judged(rules, Facts(old), Facts(new)).findings
    assert [one.fact for one in findings] == ["package:train/torch", "package:train/aaa", "file:/z", "file:/a"]
    assert findings[1].because == "package:train/torch"


class BrokenProbe:
    """A probe that cannot word anything."""

    def word(self, difference: object) -> str:
        raise KeyError("digest")


def test_a_probe_that_cannot_word_a_finding_does_not_hide_it() -> None:
    (difference,) = compare(*moved())
    text = word(difference, BrokenProbe())  # type: ignore[arg-type]
    assert "file:/a" in text and "sha256:1 → sha256:2" in text and "KeyError" in text


@pytest.mark.parametrize("change", ["changed", "missing", "added", "unreadable"])
def test_no_hint_tells_anybody_to_accept(change: str) -> None:
    old, new = moved()
    gone = Facts([Fact("file", "/a", ABSENT)])
    sides = {
        "changed": (old, new),
        "missing": (old, gone),
        "added": (gone, new),
        "unreadable": (old, Facts([Unknown("file", "/a", "mode 000")])),
    }
    (difference,) = compare(*sides[change])
    assert "accept" not in hint(difference, one_file())
    assert "lockd" in hint(difference, one_file())


def test_the_hint_of_a_variable_says_how_it_has_to_stand() -> None:
    rules = policy(env={"X": EnvRule(locked=True)})
    set_, unset = Facts([Fact("env", "X", {"value": "/lib"})]), Facts([Fact("env", "X", ABSENT)])
    (one,) = compare(set_, unset)
    assert "with X=/lib" in hint(one, rules)
    (one,) = compare(unset, set_)
    assert "without X" in hint(one, rules)


@pytest.mark.parametrize("keep", [True, False])
def test_a_hint_promises_no_restore_of_what_was_not_kept(keep: bool) -> None:
    changed, came = compare(*moved())[0], compare(Facts([Fact("file", "/a", ABSENT)]), moved()[1])[0]
    rules = policy(file=(FileRule("/a", keep=keep),))
    (one,) = judged(rules, *moved()).findings
    assert ("lockd restore file:/a" in one.hint) == keep and ("was not kept" in one.hint) != keep
    assert hint(changed, rules, rules.file[0]) == one.hint
    assert "lockd restore file:/a" in hint(came, rules, rules.file[0])  # what came can be taken away
    cache = CacheRule("/c", change="exact", keep=keep)
    (gone,) = compare(Facts([Fact("cache", "/c", {"entries": 2})]), Facts([Fact("cache", "/c", ABSENT)]))
    assert ("lockd restore cache:/c" in hint(gone, rules, cache)) == keep
    more = replace(gone, files=FileChanges(0, 1, 0, ()))
    assert "lockd restore cache:/c" in hint(more, rules, cache)
    (grown,) = compare(Facts([Fact("tree", "/d", {"files": 2})]), Facts([Fact("tree", "/d", {"files": 3})]))
    assert "no copy of data" in hint(grown, rules, TreeRule("/d"))


def test_the_hint_quotes_odd_names_for_the_shell() -> None:
    (one,) = compare(*moved("/a b'c"))
    assert """lockd restore 'file:/a b'"'"'c'""" in hint(one, one_file())
