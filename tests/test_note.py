"""`lockd note`, and `note()` for training scripts."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from lockd.training import note
from tests.scene import Scene, pinned_file


@pytest.fixture
def ran(tmp_path: Path) -> Scene:
    scene, _ = pinned_file(tmp_path)
    scene.accept()
    assert scene.lockd("run", "--", "true").code == 0
    return scene


def test_a_note_on_the_last_run(ran: Scene) -> None:
    answer = ran.lockd("note", "last", "ktok_s=12.8", "good=true", "text=a b=c")
    assert answer.code == 0, answer.err
    (run,) = ran.lockd("runs", "--json").document
    assert run["notes"] == {"ktok_s": 12.8, "good": True, "text": "a b=c"}
    assert ran.lockd("note", "1", "ktok_s=4", "--json").document["notes"]["ktok_s"] == 4
    first, second = ran.lockd("log", "--json", "--kind", "note").document
    assert second["run"] == 1 and "ktok_s=12.8" in second["message"] and "ktok_s=4" in first["message"]
    assert second["by"]["uid"] == os.geteuid()


def test_good_names_a_run(ran: Scene) -> None:
    assert ran.lockd("diff", "good", "now").code == 3
    ran.lockd("note", "run:1", "good=true")
    assert ran.lockd("diff", "good", "now", "--exit-code").code == 0
    ran.lockd("note", "run:1", "good=false")
    assert ran.lockd("diff", "good", "now").code == 3


@pytest.mark.parametrize(
    "words", [("last",), (), ("last", "x"), ("last", "=1"), ("last", "a b=1"), ("x", "a=1"), ("last", f"a={'x' * 300}")]
)
def test_wrong_usage(ran: Scene, words: tuple[str, ...]) -> None:
    assert ran.lockd("note", *words).code == 2


def test_a_run_that_is_not_there(ran: Scene) -> None:
    assert ran.lockd("note", "9", "a=1").code == 3


def test_control_characters_stay_off_the_terminal(ran: Scene) -> None:
    answer = ran.lockd("note", "last", "a=\x1b[31mred\n")
    assert answer.code == 0 and "\x1b" not in answer.out + ran.lockd("runs").out + ran.lockd("log").out


def test_a_script_without_lockd_notes_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("LOCKD_NOTES", raising=False)
    assert note(a=1) is False
    monkeypatch.setenv("LOCKD_NOTES", str(tmp_path / "none"))
    assert note(a=1) is False and not (tmp_path / "none").exists()
    spool = tmp_path / "spool"
    spool.touch()
    monkeypatch.setenv("LOCKD_NOTES", str(spool))
    assert note() is False and note(a=1, odd=spool) is True
    assert spool.read_text().count("\n") == 1


def test_notes_of_a_running_launch_are_seen_while_it_runs(ran: Scene) -> None:
    import subprocess
    import sys

    from lockd import training
    from tests.test_run import begin, wait_for

    code = f"import runpy, time; runpy.run_path({training.__file__!r})['note'](step=7); time.sleep(30)"
    process = begin(ran, "run", "--notes", "--", sys.executable, "-I", "-c", code, stdout=subprocess.DEVNULL)
    try:
        wait_for(lambda: ran.lockd("runs", "--json").document[0].get("notes") == {"step": 7})
    finally:
        process.kill()
        process.wait()
    (run, _) = ran.lockd("runs", "--json").document
    assert run["notes"] == {"step": 7} and run["exit"] == "unknown"
