"""Facts of commands: their output, and every way in which one can fail to give an answer."""

from __future__ import annotations

import hashlib
import os
import time
from pathlib import Path

import pytest

from lockd.facts import Fact
from lockd.probes import commands
from lockd.rules import CommandRule, Policy
from tests.probing import drift, fact, facts, looking, policy, seen, unknown, words


def pinned(*run: str, **rule: str) -> Policy:
    return policy(command=(CommandRule("value", run, **rule),))  # type: ignore[arg-type]


def shell(script: str, **rule: str) -> Policy:
    return pinned("sh", "-c", script, **rule)


def gone(pid: int) -> bool:
    """Has the process ended, a zombie of somebody else's aside?"""
    for _ in range(200):
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except FileNotFoundError:
            return True
        if state in "ZX":
            return True
        time.sleep(0.01)
    return False


def test_the_output_is_the_fact_whole_when_it_is_short() -> None:
    found = fact(pinned("printf", "8 GPUs\\n"), "command:value")
    digest = hashlib.sha256(b"8 GPUs\n").hexdigest()
    assert found.attributes == {"digest": f"sha256:{digest}", "output": "8 GPUs"}
    long = fact(shell("seq 1 1000"), "command:value")
    assert set(long.attributes) == {"digest"} and long.told["lines"] == ("1", "2", "3", "4", "5")
    assert set(long.told) | set(found.told) <= set(commands.ATTRIBUTES["command"])


def test_another_output_is_drift_and_the_first_line_that_differs_is_named(tmp_path: Path) -> None:
    value = tmp_path / "value"
    value.write_text("a\nb\nc\n")
    held = pinned("cat", str(value))
    before = seen(looking(held))
    assert drift(held, before[0]) == []
    value.write_text("a\nB\nc\n")
    assert words(held, before) == ['command value: "b" → "B"']
    value.write_text("a\n")
    assert words(held, before) == ['command value: "b" → ""']


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        ("echo no device >&2; exit 3", "exit code 3: no device"),
        ("kill -SEGV $$", "killed by SIGSEGV"),
        ("exit 255", "exit code 255"),
        ("echo partial; false", "exit code 1"),
    ],
)
def test_what_ended_badly_is_unknown_with_the_reason(script: str, reason: str) -> None:
    assert unknown(shell(script), "command:value").reason == reason


def test_a_command_that_is_not_there_or_no_program_is_unknown(tmp_path: Path) -> None:
    assert "not to be found" in unknown(pinned("no-such-program-here"), "command:value").reason
    assert "No such file" in unknown(pinned(str(tmp_path / "none")), "command:value").reason
    (tmp_path / "text").write_text("no program")
    assert "does not start" in unknown(pinned(str(tmp_path / "text")), "command:value").reason
    assert "relative" in unknown(pinned("./text"), "command:value").reason


def test_a_command_that_takes_too_long_is_killed_with_its_children(tmp_path: Path) -> None:
    note = tmp_path / "pid"
    held = shell(f"sleep 300 & echo $! > {note}; wait", timeout="500ms")
    assert unknown(held, "command:value").reason == "it did not end within 500ms"
    assert gone(int(note.read_text()))


def test_what_a_command_leaves_behind_is_killed(tmp_path: Path) -> None:
    note = tmp_path / "pid"
    held = shell(f"sleep 300 >/dev/null 2>&1 & echo $! > {note}; echo done")
    assert fact(held, "command:value").attributes["output"] == "done"
    assert gone(int(note.read_text()))


def test_a_command_that_closes_its_output_and_runs_on_is_ended_in_time(tmp_path: Path) -> None:
    note = tmp_path / "pid"
    held = shell(f"echo $$ > {note}; exec >&- 2>&-; sleep 300", timeout="500ms")
    assert "closed its output" in unknown(held, "command:value").reason
    assert gone(int(note.read_text()))


def test_a_background_child_that_holds_the_output_is_no_answer(tmp_path: Path) -> None:
    assert "did not end" in unknown(shell("sleep 300 & echo done", timeout="500ms"), "command:value").reason


def test_endless_output_is_unknown_and_bounded() -> None:
    assert unknown(pinned("yes"), "command:value").reason == "it wrote more than 1,048,576 bytes"
    assert fact(shell("yes | head -c 1048576"), "command:value").attributes["digest"]


def test_endless_complaints_do_not_block_the_answer() -> None:
    held = shell("yes | head -c 3000000 >&2; echo fine")
    assert fact(held, "command:value").attributes["output"] == "fine"


def test_path_environment_folder_input_and_session_are_fixed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    fake = tmp_path / "uname"
    fake.write_text("#!/bin/sh\necho forged\n")
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setenv("LD_PRELOAD_CANARY", "1")
    monkeypatch.chdir(tmp_path)
    assert fact(pinned("uname"), "command:value").attributes["output"] == "Linux"
    environment = fact(shell("env | sort | grep -v -e ^_= -e ^PWD= -e ^SHLVL= -e ^OLDPWD="), "command:value").told[
        "lines"
    ]
    assert environment == ("HOME=/", "LANG=C.UTF-8", f"PATH={commands.PATH}")
    assert fact(pinned("pwd"), "command:value").attributes["output"] == "/"
    assert fact(pinned("cat"), "command:value").attributes["output"] == "", "no input"
    assert (
        fact(shell("test $(cut -d' ' -f6 /proc/$$/stat) = $$ && echo own"), "command:value").attributes["output"]
        == "own"
    )


def test_odd_output_is_escaped_and_secrets_in_it_are_masked() -> None:
    odd = fact(pinned("printf", "caf\\351\\033[2J"), "command:value").attributes["output"]
    assert odd == "caf\\xe9\\x1b[2J"
    masked = fact(shell("echo HF_TOKEN=hunter2 ok"), "command:value")
    assert masked.attributes["output"] == "HF_TOKEN=*** ok"
    assert "hunter2" not in repr(fact(pinned("echo", "--token=hunter2"), "command:value").told)


def test_where_commands_may_not_run_none_does_and_that_is_said(tmp_path: Path) -> None:
    canary = tmp_path / "canary"
    look = looking(pinned("touch", str(canary)), commands=False)
    assert dict(seen(look)[0]) == {}
    assert not canary.exists()
    assert look.not_looked == ["command:value (commands do not run in this look)"]


def test_a_timeout_that_is_no_duration_is_unknown_not_a_crash() -> None:
    assert "no duration" in unknown(pinned("true", timeout="soon"), "command:value").reason


def test_nothing_of_a_command_stays_open() -> None:
    before = len(os.listdir("/proc/self/fd"))
    for held in (pinned("true"), pinned("false"), shell("sleep 9", timeout="50ms"), pinned("no-such-program")):
        facts(held)
    assert len(os.listdir("/proc/self/fd")) == before
    assert all(isinstance(one, Fact) for one in facts(pinned("true")).values())
