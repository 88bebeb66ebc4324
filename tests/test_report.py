"""Text for a tired person, and JSON by the names of the contract."""

from __future__ import annotations

import io
import json as stdlib_json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockd.check import Report
from lockd.errors import LockdError, LockError, PolicyError
from lockd.facts import Fact, Facts, Unknown, short
from lockd.findings import FileChanges, Finding
from lockd.lock import Lock
from lockd.look import Sight
from lockd.report import json, text
from lockd.rules import Policy

ENV = "env1:" + "0" * 32


def finding(fact: str, severity: Any = "block", **more: Any) -> Finding:
    settings: dict[str, Any] = {
        "change": "changed",
        "against": ("lock",),
        "message": f"{fact} moved",
        "hint": "lockd diff",
    }
    return Finding(fact=fact, severity=severity, **{**settings, **more})


def report(*findings: Finding, recorded: tuple[Finding, ...] = (), lock: bool = True, **more: Any) -> Report:
    held = Lock("ct", "sha256:1", 12, "2026-11-30T19:04:11Z", "root", "fast", ENV, "launch1:" + "1" * 32, Facts())
    settings: dict[str, Any] = {
        "policy": Policy("ct200", "/root/policies/ct200.toml", "sha256:" + "2" * 64),
        "lock": held if lock else None,
        "sight": Sight(Facts([Fact("file", "/a", {})]), {}, dict),
        "differences": (),
        "verdict": "block" if findings else "ok",
        "findings": findings,
        "recorded": recorded,
        "environment": ENV,
        "environment_full": ENV,
        "launch": "launch1:" + "1" * 32,
        "look": "stat",
        "elapsed": 0.11,
        "not_looked": (),
    }
    return Report(**{**settings, **more})


def said(one: Report, **how: Any) -> str:
    return text.verify(one, one.verdict, colour=False, **how)


# -- text --------------------------------------------------------------------------------------------------------------


def test_the_ok_line_names_policy_id_facts_generation_look_and_recorded() -> None:
    first, *rest = said(report(recorded=(finding("file:/a", "record"),))).splitlines()
    for word in ("ok", "ct200", "/root/policies/ct200.toml", ENV, "1 fact", "generation 12", "stat look"):
        assert word in first
    assert "1 recorded change" in rest[0]


def test_the_first_line_names_the_policy_and_the_verdict() -> None:
    first = said(report(finding("file:/a"))).splitlines()[0]
    assert first.startswith("block") and "ct200.toml" in first and "1 finding" in first


def test_a_build_that_a_new_package_brought_is_told_with_its_versions() -> None:
    """sglang is only new, a warning; that it moved torch is why the launch is refused."""
    lines = said(
        report(
            finding("package:t/sglang", "warn", change="added", message="sglang 0.5.11 is new"),
            finding("package:t/cu13", "warn", change="added", because="package:t/sglang"),
            finding("package:t/torch", because="package:t/sglang", attributes={"version": ("2.11.0", "2.12.0")}),
            verdict="block",
        )
    ).splitlines()
    assert "          and 2 packages that it brought: torch 2.11.0 → 2.12.0, cu13 (added); 1 of them blocks" in lines


def test_what_a_package_brought_folds_into_one_line() -> None:
    brought = [finding(f"package:train/nvidia-{at:02}", because="package:train/torch") for at in range(14)]
    lines = said(report(finding("package:train/torch"), *brought)).splitlines()
    assert "15 findings, 1 cause" in lines[0]
    (folded,) = [line for line in lines if "that it brought" in line]
    assert "and 14 packages that it brought: nvidia-00 (changed)" in folded and folded.endswith("…")
    assert sum("moved" in line for line in lines) == 1


def test_a_child_whose_cause_is_no_finding_stands_by_itself() -> None:
    lines = said(report(finding("package:train/b", because="package:train/a")))
    assert "package:train/b moved" in lines


def test_no_lock_is_said_with_what_records_one() -> None:
    assert "no known-good yet" in said(report(lock=False, verdict="unknown"))


def test_files_since_by_and_what_was_not_looked_at_are_told() -> None:
    by = {"cmdline": ["uv", "pip", "install"], "user": "root", "origin": "ssh"}
    files = FileChanges(3, 0, 1, ("torch/version.py",))
    one = finding("package:train/torch", files=files, since="2026-11-30T21:15:40Z", by=by)
    told = said(report(one, not_looked=("tree:/data (41 min old)",), unclaimed=("file:/x",)))
    assert "3 changed, 1 missing" in told and "torch/version.py" in told
    assert "since 2026-11-30T21:15:40Z, by uv pip install (root, ssh)" in told
    assert "tree:/data (41 min old)" in told and "file:/x" in told


def test_unreadable_under_block_is_marked_unknown() -> None:
    assert "  unknown " in said(report(finding("file:/a", change="unreadable"), verdict="unknown"))


@given(st.text())
def test_no_text_brings_a_control_character(words: str) -> None:
    one = finding("file:/a", message=words, hint=words)
    told = said(report(one))
    assert all(character.isprintable() or character == "\n" for character in told)


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


def test_colour_is_for_terminals_that_want_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    assert text.wants_colour(Terminal()) and not text.wants_colour(io.StringIO())
    monkeypatch.setenv("NO_COLOR", "1")
    assert not text.wants_colour(Terminal())
    coloured = text.verify(report(finding("file:/a")), "block", colour=True)
    assert "\x1b[31;1mblock" in coloured


def test_an_error_has_a_place_a_line_each_and_a_hint() -> None:
    told = text.problem(PolicyError(["a.toml:1: x: wrong", "a.toml:2: y: wrong"], hint="mend it"))
    assert told.splitlines() == ["lockd: a.toml:1: x: wrong", "lockd: a.toml:2: y: wrong", "  hint: mend it"]
    assert text.problem(LockError("cut short", where="/a.lock")) == "lockd: /a.lock: cut short"


# -- JSON --------------------------------------------------------------------------------------------------------------


def test_since_by_because_and_files_are_there_only_when_known() -> None:
    bare = json.finding(finding("file:/a"))
    assert not {"since", "by", "because", "files"} & bare.keys()
    whole = json.finding(
        finding("file:/a", since="2026-11-30T21:15:40Z", by={"pid": 1}, because="x:y", files=FileChanges())
    )
    assert {"since", "by", "because", "files"} <= whole.keys()


def test_attributes_are_old_and_new() -> None:
    moved = {"version": ("1", "2"), "pth": (None, ("a", "b"))}
    assert json.finding(finding("python:x", attributes=moved))["attributes"] == {
        "pth": [None, ["a", "b"]],
        "version": ["1", "2"],
    }


@given(st.text())
def test_json_is_utf8_and_one_document(words: str) -> None:
    document = json.verify(report(finding("file:/a", message=words + "\udcff")), "block")
    told = json.dumps(document)
    told.encode("utf-8")
    message = stdlib_json.loads(told)["findings"][0]["message"]
    assert message.endswith("\\xff") and (message.startswith(words[:1]) or not words[:1].isprintable())


def test_json_steers_no_terminal_and_breaks_no_string() -> None:
    told = json.dumps(json.error(LockdError("a\udcff\x9b\x1b\u202e", where="/p\udcfe\x7f", hint="é →\xa0")))
    assert stdlib_json.loads(told)["error"] == {
        "what": "a\\xff\\u009b\\x1b\\u202e",
        "where": "/p\\xfe\\x7f",
        "hint": "é →\\u00a0",
    }
    assert stdlib_json.loads(json.dumps({"why": "a\udcff\x9b\u202eé\n"})) == {"why": "a\\xff\\u009b\\u202eé\n"}


def test_a_word_that_no_line_has_room_for_is_cut_in_its_middle() -> None:
    path = "/a/" + "d" * 4000 + "/end.py"
    line = short(f"{path}: file name too long")
    assert len(line) < 400 and line.startswith("/a/ddd") and line.endswith("/end.py: file name too long")
    assert short("/a/b.py: gone " * 40) == "/a/b.py: gone " * 40


def test_an_export_reads_back_the_same(tmp_path: Path) -> None:
    facts = Facts(
        [
            Fact("cache", "/c", {"entries": 2, "digest": "sha256:1"}, {"bytes": 9}, frozenset({"0" * 16, "1" * 16})),
            Fact("package", "train/torch", {"version": "1", "pth": ("a",), "system_site": True}, {"requires": ("x",)}),
            Unknown("file", "/x", "mode 000"),
        ]
    )
    document = stdlib_json.loads(json.dumps(json.export(facts, state="now")))
    assert list(json.imported(document).values()) == list(facts.values())


@pytest.mark.parametrize("document", [[], {}, {"schema": 2, "facts": []}, {"schema": 1, "facts": [{"fact": "x"}]}])
def test_what_is_no_export_is_refused(document: Any) -> None:
    with pytest.raises((ValueError, KeyError)):
        json.imported(document)
