"""Run records read back: names, the table, numbers by environment, and accepting what a run started on."""

from __future__ import annotations

import json
import os
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockd import lineage, origin, runs, spool
from lockd.errors import LookError, UsageError
from lockd.look import Launch
from lockd.report import runs as report
from lockd.state import State
from lockd.store import Store
from lockd.store import open as open_store
from tests.scene import Scene, pinned_file


@pytest.fixture
def store(tmp_path: Path) -> Store:
    opened = open_store(str(tmp_path / "store.sqlite"))
    assert opened is not None
    return opened


def begun(pid: int | None = None, **how: Any) -> runs.Begun:
    launch = Launch({"CUDA_VISIBLE_DEVICES": "3"}, "/", ("python", "train.py"))
    return runs.Begun(launch, None, "run", "ok", origin.current({}), os.getpid() if pid is None else pid, **how)


def test_names_of_runs(store: Store) -> None:
    first, second, third = (runs.begin(store, begun()) for _ in range(3))
    runs.finish(store, third, 0)
    runs.note(store, first, {"good": True})
    runs.note(store, second, {"good": False})
    names = {"1": first, "run:2": second, "last": third, "run:last": third, "running": second, "good": first}
    assert {word: runs.resolve(store, word).number for word in names} == names


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("9", "no such run"),
        ("run:0", "no such run"),
        ("good", "no run is noted as good"),
        ("run:running", "no run runs now"),
        ("run:9999999999999999999999", "no such run"),
    ],
)
def test_a_run_that_is_not_there(store: Store, word: str, said: str) -> None:
    runs.finish(store, runs.begin(store, begun()), 0)
    with pytest.raises(LookError, match=said):
        runs.resolve(store, word)


@pytest.mark.parametrize("word", ["run:", "", "run:x", "@1", "run:-1", "²"])
def test_what_is_no_name_of_a_run(store: Store, word: str) -> None:
    with pytest.raises(UsageError):
        runs.resolve(store, word)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("12.8", 12.8),
        ("7", 7),
        ("1e3", 1000.0),
        ("true", True),
        ("false", False),
        ("nan", "nan"),
        ("inf", "inf"),
        ("x", "x"),
    ],
)
def test_numbers_are_kept_as_numbers(text: str, value: object) -> None:
    found = runs.value(text)
    assert found == value and type(found) is type(value)


def test_an_end_is_written_once(store: Store) -> None:
    number = runs.begin(store, begun())
    runs.finish(store, number, 3)
    runs.finish(store, number, 4)
    run = runs.get(store, number)
    assert run is not None and run.exit == 3
    assert [one.event.message for one in store.events("kind = 'launch'")] == [
        "run 1 (ok): python train.py",
        "run 1 ended: exit 3",
    ]


def test_the_end_of_a_process_that_is_gone(store: Store) -> None:
    child = os.fork()
    if child == 0:
        os._exit(0)
    os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)  # it has ended; a zombie is no living launch
    gone = runs.begin(store, begun(child))
    here = runs.begin(store, begun())
    runs.settle(store)
    os.waitpid(child, 0)
    ended, living = runs.get(store, gone), runs.get(store, here)
    assert ended is not None and living is not None
    assert (ended.exit, living.exit) == ("unknown", None)


def test_only_an_admitted_run_admits_and_only_its_descendants(store: Store) -> None:
    parent = os.getppid()
    runs.begin(store, begun(parent, admitted=False))
    assert runs.admitting(store, os.getpid()) is None
    number = runs.begin(store, begun(parent))
    found = runs.admitting(store, os.getpid())
    assert found is not None and found.number == number
    runs.finish(store, number, 0)
    assert runs.admitting(store, os.getpid()) is None


def test_the_pid_of_an_older_process_admits_nobody(store: Store) -> None:
    number = runs.begin(store, begun(os.getppid()))
    run = runs.get(store, number)
    assert run is not None
    (process,) = run.body["processes"]
    body = {**run.body, "processes": [{**process, "start": process["start"] - 1}]}
    with store.transaction():
        store.change("UPDATE runs SET body = ? WHERE number = ?", json.dumps(body), number)
    assert runs.admitting(store, os.getpid()) is None


def test_rows_of_proc_with_odd_names() -> None:
    text = b"7 (a) b (c) S 1 7 5 0 -1 4194560 1 0 0 0 0 0 0 0 20 0 1 0 4242 0 0"
    assert lineage.parse(text) == lineage.Row(7, "S", 1, 5, 4242)
    for torn in (b"", b"7 (a", b"7 (a) S 1", text[:20]):
        assert lineage.parse(torn) is None


def test_identity_of_this_process() -> None:
    own = lineage.identity(os.getpid())
    assert lineage.alive(own) is True
    assert lineage.alive({**own, "boot": "another"}) is False
    assert lineage.alive({**own, "start": own["start"] + 1}) is False
    assert lineage.alive({"pid": os.getpid()}) is None
    assert next(iter(lineage.ancestors(os.getpid()))).pid == os.getpid()


# -- the spool


def test_the_spool_reads_only_what_a_script_could_mean(tmp_path: Path) -> None:
    state = State(str(tmp_path))
    path = Path(spool.make(state, 1))
    lines = [
        '{"values": {"a": 1}}',
        "nonsense",
        '{"values": 3}',
        '{"values": {"a": 2, "b": "\\u001b[31m", "c": [1]}}',
        "[]",
    ]
    path.write_bytes("\n".join(lines).encode() + b"\n\xff\xfe\n" + b'{"values": {"half')
    assert spool.read(state, 1) == {"a": 2, "b": "\\x1b[31m", "c": "[1]"}
    path.unlink()
    assert spool.read(state, 1) == {}
    path.symlink_to("/etc/passwd")
    assert spool.read(state, 1) == {}
    path.unlink()
    os.mkfifo(path)
    assert spool.read(state, 1) == {}


@given(st.binary(max_size=300))
def test_no_bytes_in_the_spool_break_anything(data: bytes) -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        state = State(folder)
        Path(spool.make(state, 1)).write_bytes(data)
        assert json.dumps(spool.read(state, 1))


# -- the table


def test_the_table_and_its_bars(store: Store) -> None:
    for number, value in ((1, 12.8), (2, 12.6), (3, 4.3)):
        runs.begin(store, begun())
        runs.note(store, number, {"ktok_s": value})
    runs.finish(store, 1, 0)
    runs.finish(store, 2, None, seen=False)
    text = report.table(runs.listed(store), "2099-01-01T00:00:00Z")
    first, third, second, _, sparkline = text.splitlines()
    assert first.split()[:3] == ["run", "start", "took"]
    assert third.startswith("run:3") and "+" in third and second.startswith("run:2") and "≤" in second
    assert re.search(r"ktok_s\s+█[▇█]▃  12.8 … 4.3", sparkline)


def test_the_table_tells_what_differed_at_each_start(store: Store) -> None:
    number = runs.begin(store, begun())
    found = [
        {"fact": "package:train/torch", "message": "…"},
        {"fact": "package:train/nvidia-nccl-cu13", "message": "…", "because": "package:train/torch"},
        {"fact": "file:/root/model.py", "message": "…"},
        {"fact": "launch:python", "message": "…"},
    ]
    good, bad = (replace(store_run(store, number), body=body) for body in ({}, {"findings": found}))
    assert (report.found_at(good), report.found_at(bad)) == ("-", "torch, model.py +1")
    assert "torch, model.py +1" in report.table([bad], "2099-01-01T00:00:00Z")


def store_run(store: Store, number: int) -> runs.Run:
    run = runs.get(store, number)
    assert run is not None
    return run


def test_an_empty_table() -> None:
    assert "lockd run" in report.table([], "2099-01-01T00:00:00Z")


@given(st.lists(st.floats(allow_nan=False, allow_infinity=False, width=32), max_size=30))
def test_a_sparkline_has_a_bar_a_number(numbers: list[float]) -> None:
    assert len(report.spark(numbers)) == len(numbers)


def test_numbers_by_environment_name_what_differs(tmp_path: Path) -> None:
    scene, path = pinned_file(tmp_path)
    scene.accept()
    for _ in range(2):
        scene.lockd("run", "--metric", "ktok_s=([0-9.]+)", "--", "echo", "12.8")
    path.write_text("x = 2\n")
    scene.lockd("run", "--override", "why", "--metric", "ktok_s=([0-9.]+)", "--", "echo", "4.3")
    good, slow = scene.lockd("runs", "--compare", "--json").document
    assert good["runs"] == [1, 2] and good["metrics"]["ktok_s"] == {"n": 2, "min": 12.8, "median": 12.8, "max": 12.8}
    assert slow["runs"] == [3] and slow["metrics"]["ktok_s"]["median"] == 4.3
    assert [one["fact"] for one in slow["differences"]] == [f"file:{path}"] and "differences" not in good
    assert str(path) in scene.lockd("runs", "--compare").out
    assert [one["id"] for one in scene.lockd("runs", "--json", "-n", "2").document] == [3, 2]
    assert scene.lockd("runs", "-n", "0").code == 2


def test_runs_and_notes_before_anything_ran(tmp_path: Path) -> None:
    scene, _ = pinned_file(tmp_path)
    assert scene.lockd("runs", "--json").document == []
    assert scene.lockd("runs").code == 0 and scene.lockd("runs", "--compare", "--json").document == []
    assert scene.lockd("note", "last", "a=1").code == 3


# -- accept --from, --env-of


def accepted_from(scene: Scene, *words: str) -> Any:
    return scene.lockd("accept", "-m", "it was fast", "--yes", "--json", *words)


def test_the_state_of_a_run_that_still_was_the_same_at_its_end(tmp_path: Path) -> None:
    scene, path = pinned_file(tmp_path)
    scene.accept()
    path.write_text("x = 2\n")
    assert scene.lockd("run", "--override", "try it", "--wait", "--", "true").code == 0
    path.write_text("x = 3\n")  # later: the run's own state is what counts
    answer = accepted_from(scene, "--from", "run:1")
    assert answer.code == 0, answer.err
    assert scene.lockd("diff", "run:1", "lock", "--exit-code").code == 0
    assert scene.verify().code == 1
    path.write_text("x = 2\n")
    assert scene.verify().code == 0


def test_a_state_that_was_another_at_the_end_is_refused(tmp_path: Path) -> None:
    scene, path = pinned_file(tmp_path)
    scene.accept()
    assert scene.lockd("run", "--wait", "--", "sh", "-c", f"echo 'x = 2' > {path}").code == 0
    answer = accepted_from(scene, "--from", "run:last")
    assert answer.code == 1 and "not the same at the end" in answer.err
    assert json.loads(scene.lockd("verify", "--json").out)["lock"]["generation"] == 1


def test_a_run_whose_end_nobody_saw(tmp_path: Path) -> None:
    scene, path = pinned_file(tmp_path)
    scene.accept()
    scene.lockd("run", "--", "true")
    assert accepted_from(scene, "--from", "run:1").code == 0
    path.write_text("x = 2\n")
    answer = accepted_from(scene, "--from", "run:1")
    assert answer.code == 1 and "nobody looked at the end" in answer.err
    scene.verify()  # sees the drift
    path.write_text("x = 1\n")
    answer = accepted_from(scene, "--from", "run:1")
    assert answer.code == 1, "it drifted and healed in between"


def test_a_run_that_is_unknown_or_still_runs(tmp_path: Path) -> None:
    import subprocess

    from tests.test_run import begin, wait_for

    scene, _ = pinned_file(tmp_path)
    assert accepted_from(scene, "--from", "run:1").code == 3
    scene.accept()
    assert accepted_from(scene, "--from", "run:7").code == 3
    process = begin(scene, "run", "--", "sleep", "30", stdout=subprocess.DEVNULL)
    try:
        wait_for(lambda: scene.lockd("runs", "--json").document)
        assert accepted_from(scene, "--from", "run:running").code == 1
    finally:
        process.kill()
        process.wait()


def test_variables_of_a_run(tmp_path: Path) -> None:
    scene, path = pinned_file(tmp_path)
    scene.write_policy(f'[[file]]\npath = "{path}"\n[env]\nMODE = "locked"\n')
    scene.accept(env={"MODE": "slow"})
    assert scene.lockd("run", "--override", "try", "--", "true", env={"MODE": "fast"}).code == 0
    assert accepted_from(scene, "--env-of", "run:1").code == 0
    assert scene.verify(env={"MODE": "fast"}).code == 0 and scene.verify(env={"MODE": "slow"}).code == 1
    assert accepted_from(scene, "--env-of", "run:1", "--from", "run:1").code == 2


def test_a_growing_cache_of_a_run(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    cache = scene.file("cache/one", "1").parent
    scene.write_policy(f'[[cache]]\npath = "{cache}"\nchange = "grow"\n')
    scene.accept()
    (cache / "two").write_text("2")
    scene.lockd("run", "--wait", "--", "sh", "-c", f"echo 3 > {cache}/three")
    answer = accepted_from(scene, "--from", "run:1")
    assert answer.code == 0, answer.err
    (cache / "three").unlink()  # came during the run
    assert scene.verify().code == 0
    (cache / "two").unlink()
    assert scene.verify().code == 1


# -- other users' records


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")
def test_the_runs_of_a_guest_are_read_as_that_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import shutil
    import tempfile

    from lockd import guests

    home = Path(tempfile.mkdtemp(dir="/tmp"))  # tmp_path is closed to other users
    try:
        own = home / ".local" / "state" / "lockd" / "ct-0"
        own.mkdir(parents=True)
        opened = open_store(str(own / "store.sqlite"))
        assert opened is not None
        with opened:
            runs.begin(opened, begun())
            runs.note(opened, 1, {"ktok_s": 12.8})
            odd = (
                "2026-01-01T00:00:00Z",
                "e",
                "l",
                json.dumps({"argv": 5, "notes": [], "user": "root", "verdict": None}),
            )
            opened.change("INSERT INTO runs (started, environment, launch, body) VALUES (?, ?, ?, ?)", *odd)
            opened.change("INSERT INTO runs (started, environment, launch, body) VALUES ('x', '', '', '[]')")
        for path in (home, *home.rglob("*")):
            os.chown(path, 4242, 4242)
        guest = guests.Guest("ana", 4242, 4242, str(own / "store.sqlite"))
        second, first = guests.runs_of(guest)
        assert (first.name, first.notes, first.body["user"]) == ("ana:1", {"ktok_s": 12.8}, "ana")
        assert (second.body["argv"], second.body["user"]) == ([], "ana")
        assert "ana:1" in report.table([second, first], "2099-01-01T00:00:00Z")
        assert runs.document(first)["recorded_by"] == "ana"
        os.chown(own / "store.sqlite", 0, 0)
        (own / "store.sqlite").chmod(0o600)
        with pytest.raises(OSError):  # root could read it; ana cannot
            guests.runs_of(guest)
    finally:
        shutil.rmtree(home)


def test_for_a_plain_user_there_are_no_guests(monkeypatch: pytest.MonkeyPatch) -> None:
    from lockd import guests

    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert guests.guests("/etc/lockd/policy.toml") == []
