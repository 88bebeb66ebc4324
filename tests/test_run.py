"""`lockd run` on a real corner of a machine: exit codes, what is recorded, what CMD gets, and who passes unasked."""

from __future__ import annotations

import json
import os
import shlex
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from lockd import runs, state
from lockd.gates import admit
from lockd.look import Launch
from tests.probing import blind
from tests.scene import LOCKD, Scene, pinned_file

PROBE = (
    "import json, os, signal, sys;"
    "print(json.dumps({'pid': os.getpid(), 'environ': dict(os.environ), 'argv': sys.argv[1:], 'cwd': os.getcwd(),"
    "'fds': sorted(int(one) for one in os.listdir('/proc/self/fd') if os.path.exists('/proc/self/fd/' + one)),"
    "'pipe': open('/proc/self/status').read().split('SigIgn:')[1].split()[0]}))"
)


def environ(scene: Scene, **more: str) -> dict[str, str]:
    words = {"PATH": os.environ["PATH"], "HOME": str(scene.root / "home"), "LOCKD_STATE": str(scene.state)}
    return {**words, "LOCKD_RUNTIME": str(scene.root / "run"), "LOCKD_POLICY": str(scene.policy), **more}


def begin(scene: Scene, *args: str, **how: Any) -> subprocess.Popen[bytes]:
    """lockd in the background; whoever calls ends it."""
    return subprocess.Popen([*LOCKD, *args], env=environ(scene), cwd=scene.root, **how)


def listed(scene: Scene) -> list[dict[str, Any]]:
    answer = scene.lockd("runs", "--json")
    assert answer.code == 0, answer.err
    found: list[dict[str, Any]] = answer.document
    return found


def events(scene: Scene, kind: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = scene.lockd("log", "--json", "--kind", kind).document
    return found


def wait_for(condition: Any) -> Any:
    for _ in range(200):
        found = condition()
        if found:
            return found
        time.sleep(0.05)
    raise AssertionError("it did not come")


@pytest.fixture
def good(tmp_path: Path) -> tuple[Scene, Path]:
    scene, path = pinned_file(tmp_path)
    assert scene.accept().code == 0
    return scene, path


# -- exit codes


def test_the_commands_own_exit_code(good: tuple[Scene, Path]) -> None:
    scene, _ = good
    assert scene.lockd("run", "--", "sh", "-c", "exit 7").code == 7
    assert scene.lockd("run", "--wait", "--", "sh", "-c", "exit 7").code == 7
    assert scene.lockd("run", "--wait", "--", "sh", "-c", "kill -9 $$").code == 137
    assert scene.lockd("run", "--wait", "--", "sh", "-c", "kill -TERM $$").code == 143


def test_drift_refuses_with_78_and_one_clear_message(good: tuple[Scene, Path]) -> None:
    scene, path = good
    path.write_text("x = 2\n")
    answer = scene.lockd("run", "--", "touch", "canary")
    assert (answer.code, answer.out) == (78, "") and not (scene.root / "canary").exists()
    assert str(path) in answer.err and "lockd diff" in answer.err and "lockd restore" in answer.err
    assert "accept" not in answer.err
    (refused,) = events(scene, "refuse")
    assert (
        str(path) in refused["message"]
        and "touch canary" in refused["message"]
        and refused["by"]["uid"] == os.geteuid()
    )
    assert listed(scene) == []


def test_a_warning_is_said_and_lets_go(tmp_path: Path) -> None:
    scene, path = pinned_file(tmp_path, 'on_drift = "warn"')
    scene.accept()
    path.write_text("x = 2\n")
    answer = scene.lockd("run", "--", "echo", "on")
    assert (answer.code, answer.out) == (0, "on\n") and str(path) in answer.err
    assert listed(scene)[0]["verdict"] == "warn"


def test_no_lock_is_125_and_on_unknown_warn_lets_go(tmp_path: Path) -> None:
    scene, path = pinned_file(tmp_path)
    answer = scene.lockd("run", "--", "echo", "on")
    assert (answer.code, answer.out) == (125, "") and "no known-good" in answer.err
    scene.write_policy(f'on_unknown = "warn"\n[[file]]\npath = "{path}"\n')
    answer = scene.lockd("run", "--", "echo", "on")
    assert (answer.code, answer.out) == (0, "on\n") and "warning: could not look" in answer.err
    assert listed(scene)[0]["verdict"] == "unknown"


def test_an_unreadable_fact_lets_nobody_go(good: tuple[Scene, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    scene, path = good
    path.parent.chmod(0)
    try:
        with blind():
            answer = admitted(scene, monkeypatch)
    finally:
        path.parent.chmod(0o755)
    assert (answer.outcome, answer.code) == ("blind", 125) and "1 fact could not be read" in answer.lines[0]


@pytest.mark.parametrize("broken", ["policy", "lock", "policy writable", "policy gone"])
def test_a_broken_policy_or_lock_opens_nothing(good: tuple[Scene, Path], broken: str) -> None:
    scene, _ = good
    assert scene.lockd("run", "--", "true").code == 0
    if broken == "policy":
        scene.policy.write_text("schema = 1\nnonsense\n")
    elif broken == "lock":
        scene.lock.write_text("schema = 1\n")
    elif broken == "policy writable":
        scene.policy.chmod(0o666)
    else:
        scene.policy.unlink()
    answer = scene.lockd("run", "--", "echo", "on")
    assert (answer.code, answer.out) == (125, "") and "lockd: refused, could not look" in answer.err


def test_the_last_good_policy_says_what_a_broken_one_does(tmp_path: Path) -> None:
    scene, path = pinned_file(tmp_path)
    scene.write_policy(f'on_unknown = "warn"\n[[file]]\npath = "{path}"\n')
    scene.accept()
    assert scene.lockd("run", "--", "true").code == 0
    scene.policy.write_text("schema = 1\nnonsense\n")
    answer = scene.lockd("run", "--", "echo", "on")
    assert (answer.code, answer.out) == (0, "on\n") and "nonsense" in answer.err + "nonsense"
    assert listed(scene)[0]["verdict"] == "unknown"


@pytest.mark.parametrize(
    "words",
    [
        (),
        ("--",),
        ("--bogus", "--", "true"),
        ("true",),
        ("--metric", "nothing", "--", "true"),
        ("--metric", "a=(", "--", "true"),
        ("--override", " ", "--", "true"),
        ("--override",),
    ],
)
def test_wrong_usage_is_125(good: tuple[Scene, Path], words: tuple[str, ...]) -> None:
    answer = good[0].lockd("run", *words)
    assert (answer.code, answer.out) == (125, "") and answer.err.startswith("lockd: ")


def test_no_policy_is_125(tmp_path: Path) -> None:
    answer = Scene(tmp_path).lockd("run", "--", "echo", "on", env={"LOCKD_POLICY": str(tmp_path / "none.toml")})
    assert (answer.code, answer.out) == (125, "")


def test_126_and_127_as_env(good: tuple[Scene, Path]) -> None:
    scene, _ = good
    plain = scene.file("plain", "not executable\n")
    for command, code in ((str(scene.root / "none"), 127), ("no-such-program", 127), (str(plain), 126), ("/", 126)):
        said = subprocess.run(["env", command], capture_output=True).returncode
        assert said == code
        assert scene.lockd("run", "--", command).code == code, command
        assert scene.lockd("run", "--wait", "--", command).code == code, command
    assert listed(scene) == []


def test_what_the_kernel_refuses_is_126_and_ends_the_run(good: tuple[Scene, Path]) -> None:
    scene, _ = good
    odd = scene.file("odd", "\x7fELF and nothing more\n")
    odd.chmod(0o755)
    for words in ((), ("--wait",)):
        answer = scene.lockd("run", *words, "--", str(odd))
        assert answer.code in (126, 127), answer.err  # a shell may be asked to take it, as execvp does
    assert all(one["exit"] in (126, 127) or one["exit"] == "unknown" for one in listed(scene))


def test_a_script_without_a_first_line_goes_to_the_shell(good: tuple[Scene, Path]) -> None:
    scene, _ = good
    script = scene.file("script", 'echo "from the shell: $1"\n')
    script.chmod(0o755)
    assert scene.lockd("run", "--", str(script), "one").out == "from the shell: one\n"


def test_dashes_of_the_command_stay_its_own(good: tuple[Scene, Path]) -> None:
    scene, _ = good
    answer = scene.lockd("run", "--", "printf", "%s|", "--", "--json", "--policy", "x")
    assert (answer.code, answer.out) == (0, "--|--json|--policy|x|")


# -- what the command gets


def started_bare(scene: Scene, *before: str, **more: str) -> Mapping[str, Any]:
    done = subprocess.run(
        [*LOCKD, "run", *before, "--", sys.executable, "-I", "-c", PROBE, "a b", ""],
        env=environ(scene, **more),
        cwd=scene.root,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=True,
    )
    found: Mapping[str, Any] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize("before", [(), ("--wait",), ("--metric", "a=(b)")])
def test_the_command_gets_what_lockd_got(good: tuple[Scene, Path], before: tuple[str, ...]) -> None:
    scene, _ = good
    odd = os.fsdecode(b"\xff\xfe")
    for locale in ({}, {"LC_ALL": "C"}, {"LC_CTYPE": "C"}):
        found = started_bare(scene, *before, ODD=odd, EMPTY="", **locale)
        direct = subprocess.run(
            [sys.executable, "-I", "-c", PROBE], env=environ(scene, ODD=odd, EMPTY="", **locale), capture_output=True
        )
        assert found["environ"] == json.loads(direct.stdout)["environ"]
    assert found["argv"] == ["a b", ""] and found["cwd"] == str(scene.root)
    assert found["fds"][:3] == [0, 1, 2] and len(found["fds"]) <= 4  # the folder that lists them
    ignored = [int(one["pipe"], 16) & 0x7FFFFFFF for one in (found, json.loads(direct.stdout))]  # without libc's own
    assert ignored[0] == ignored[1]


def test_the_command_has_lockds_pid(good: tuple[Scene, Path]) -> None:
    scene, _ = good
    process = begin(scene, "run", "--", "sh", "-c", "echo $$", stdout=subprocess.PIPE)
    out, _ = process.communicate(timeout=30)
    assert int(out) == process.pid and listed(scene)[0]["pids"] == [process.pid]


def test_a_deleted_folder_is_no_hindrance(good: tuple[Scene, Path]) -> None:
    scene, _ = good
    gone = scene.root / "gone"
    gone.mkdir()
    script = f"cd {gone} && rmdir {gone} && exec {shlex.join(LOCKD)} run -- echo on"
    done = subprocess.run(["sh", "-c", script], env=environ(scene), capture_output=True, timeout=60)
    assert done.stdout == b"on\n", done.stderr


def test_a_long_command_line_and_a_large_environment(good: tuple[Scene, Path]) -> None:
    scene, _ = good
    many = ["x" * 100_000] * 15
    answer = scene.lockd("run", "--", "true", *many, env={f"V{number}": "y" * 100_000 for number in range(3)})
    assert answer.code == 0, answer.err
    assert len(json.dumps(listed(scene)[0])) < 200_000


# -- overrides for one launch


def test_an_override_lets_go_and_is_recorded(good: tuple[Scene, Path]) -> None:
    scene, path = good
    path.write_text("x = 2\n")
    answer = scene.lockd("run", "--override", "the deadline", "--", "sh", "-c", "exit 7")
    assert answer.code == 7 and "the deadline" in answer.err and str(path) in answer.err
    (run,) = listed(scene)
    assert run["verdict"] == "block" and run["override"]["why"] == "the deadline"
    assert run["override"]["facts"] == [f"file:{path}"]
    (event,) = events(scene, "override")
    assert "the deadline" in event["message"] and event["run"] == run["id"]
    assert scene.lockd("run", "--", "true").code == 78  # it was for that launch alone


def test_an_override_that_is_not_needed_leaves_no_trace(good: tuple[Scene, Path]) -> None:
    scene, _ = good
    assert scene.lockd("run", "--override", "why not", "--", "true").code == 0
    assert "override" not in listed(scene)[0] and events(scene, "override") == []


def test_an_override_before_the_first_accept(tmp_path: Path) -> None:
    scene, _ = pinned_file(tmp_path)
    assert scene.lockd("run", "--override", "first run", "--", "sh", "-c", "exit 7").code == 7
    assert listed(scene)[0]["verdict"] == "unknown"


# -- gates decide once


def test_what_an_admitted_launch_starts_passes_after_drift(good: tuple[Scene, Path]) -> None:
    scene, path = good
    inner = shlex.join(LOCKD)
    script = f"echo 'x = 2' > {path}; {inner} run -- echo inside; setsid {inner} run -- echo apart"
    answer = scene.lockd("run", "--", "sh", "-c", script)
    assert answer.out == "inside\napart\n" and answer.code == 0, answer.err
    assert len(listed(scene)) == 1
    assert scene.lockd("run", "--", "true").code == 78


def test_an_orphan_in_the_session_of_an_admitted_launch_passes(good: tuple[Scene, Path]) -> None:
    """A process whose parent is gone, as after a double fork, still is in the session that the launch began."""
    scene, path = good
    inner = shlex.join(LOCKD)
    mark = scene.root / "mark"
    orphan = scene.file("orphan.sh", f"sleep 0.3\n{inner} run -- touch {mark} || touch {mark}.refused\n")
    script = (
        f"echo 'x = 2' > {path}; (sh {orphan} &); while [ ! -e {mark} ] && [ ! -e {mark}.refused ]; do sleep 0.1; done"
    )
    process = begin(scene, "run", "--", "sh", "-c", script, start_new_session=True)
    try:
        assert process.wait(30) == 0
    finally:
        process.kill()
    assert mark.exists() and len(listed(scene)) == 1


def test_a_launch_that_is_over_admits_nobody(good: tuple[Scene, Path]) -> None:
    scene, path = good
    assert scene.lockd("run", "--", "true").code == 0
    path.write_text("x = 2\n")
    assert scene.lockd("run", "--", "true").code == 78


def test_a_copied_variable_admits_nobody(good: tuple[Scene, Path]) -> None:
    scene, path = good
    process = begin(scene, "run", "--", "sleep", "30")
    try:
        wait_for(lambda: listed(scene))
        path.write_text("x = 2\n")
        copied = dict(row.split("=", 1) for row in Path(f"/proc/{process.pid}/environ").read_text().split("\0") if row)
        assert scene.lockd("run", "--", "true", env=copied).code == 78
    finally:
        process.kill()
        process.wait()


# -- records


def test_the_record_of_a_run(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    path = scene.file("job/model.py")
    cache = scene.file("cache/entry", "1").parent
    env_rules = '[env]\nMODE = "locked"\nHF_TOKEN = { secret = true }\n'
    scene.write_policy(f'[[file]]\npath = "{path}"\n[[cache]]\npath = "{cache}"\n{env_rules}')
    env = {"MODE": "fast", "HF_TOKEN": "hf_abcdefghijklmnopqrst", "CUDA_VISIBLE_DEVICES": "0,1"}
    assert scene.accept(env=env).code == 0
    words = ("run", "--wait", "--", "sh", "-c", "exit 3", "--token", "hunter2", "--api-key=hunter2")
    assert scene.lockd(*words, env=env).code == 3
    (run,) = listed(scene)
    verify = scene.verify(env=env).document
    assert (run["id"], run["exit"], run["verdict"], run["gate"]) == (1, 3, "ok", "run")
    assert (run["environment"], run["launch"]) == (verify["environment"], run["launch"]) and run["launch"]
    assert run["generation"] == 1 and run["cwd"] == str(scene.root) and run["running"] is False
    assert run["variables"]["MODE"] == "fast" and run["variables"]["HF_TOKEN"].startswith("hmac-sha256:")
    assert run["gpus"] == {"CUDA_VISIBLE_DEVICES": "0,1"} and run["duration_s"] >= 0
    assert run["conditions"]["cache_entries"] == {str(cache): 1}
    assert {"load", "memory_available", "free"} <= run["conditions"].keys()
    assert run["end_environment"] == run["environment"] and run["user"]
    data = b"".join(one.read_bytes() for one in scene.state.rglob("*") if one.is_file())
    assert b"hunter2" not in data and b"hf_abcdefghijklmnopqrst" not in data


def test_the_end_of_a_run_that_nobody_waited_for(good: tuple[Scene, Path]) -> None:
    scene, _ = good
    process = begin(scene, "run", "--", "sleep", "30")
    try:
        (run,) = wait_for(lambda: [one for one in listed(scene) if one["running"]])
        assert run["exit"] is None and run["end"] is None
    finally:
        process.kill()
        process.wait()
    (run,) = listed(scene)
    assert (run["exit"], run["end_seen"]) == ("unknown", False) and run["end"]


def test_findings_and_state_are_those_of_the_start(good: tuple[Scene, Path]) -> None:
    scene, path = good
    scene.lockd("run", "--", "true")
    path.write_text("x = 2\n")
    scene.lockd("run", "--override", "why", "--", "true", env={"MORE": "1"})
    second, first = listed(scene)
    assert [one["fact"] for one in second["findings"]] == [f"file:{path}"] and first["findings"] == []
    found = scene.lockd("diff", "run:1", "run:last", "--json").document
    assert [one["fact"] for one in found["differences"]] == [f"file:{path}"]
    assert scene.lockd("diff", "run:1", "lock", "--exit-code").code == 0
    assert scene.lockd("diff", "run:3").code == 3


def test_many_launches_at_once_have_each_a_record(good: tuple[Scene, Path]) -> None:
    scene, _ = good
    processes = [begin(scene, "run", "--", "true") for _ in range(12)]
    assert [process.wait(60) for process in processes] == [0] * 12
    assert sorted(one["id"] for one in listed(scene)) == list(range(1, 13))


def test_metrics_keep_their_last_match(good: tuple[Scene, Path]) -> None:
    scene, _ = good
    script = "printf '12.1 Ktok/s\\r12.8 Ktok/s\\n'; printf 'loss 0.5' >&2; exit 4"
    answer = scene.lockd(
        "run",
        "--metric",
        "ktok_s=([0-9.]+) Ktok",
        "--metric",
        "loss=loss [0-9.]+",
        "--metric",
        "no=never",
        "--",
        "sh",
        "-c",
        script,
    )
    assert (answer.code, answer.out, answer.err) == (4, "12.1 Ktok/s\r12.8 Ktok/s\n", "loss 0.5")
    assert listed(scene)[0]["notes"] == {"ktok_s": 12.8, "loss": "loss 0.5"}


def test_a_script_notes_numbers_itself(good: tuple[Scene, Path]) -> None:
    scene, _ = good
    note = Path(runs.__file__).parent / "training.py"
    calls = "note(loss=1.5, step=1); note(loss=0.5, name='a\\nb')"
    code = f"import runpy; note = runpy.run_path({str(note)!r})['note']; {calls}"
    assert scene.lockd("run", "--notes", "--", sys.executable, "-I", "-c", code).code == 0
    assert listed(scene)[0]["notes"] == {"loss": 0.5, "step": 1, "name": "a\\nb"}
    assert scene.lockd("run", "--", sys.executable, "-I", "-c", code).code == 0
    assert "notes" not in listed(scene)[0]


# -- lockd's own faults, and the switch


def admitted(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> admit.Answer:
    monkeypatch.setenv("LOCKD_STATE", str(scene.state))
    launch = Launch(dict(os.environ), str(scene.root), ("true",))
    return admit.admit(admit.Asked(str(scene.policy), launch, "run", os.getpid()))


@pytest.mark.parametrize(("on_fault", "outcome"), [("warn", "admitted"), ("block", "blind")])
def test_a_fault_of_lockds_own_goes_by_on_fault(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, on_fault: str, outcome: str
) -> None:
    scene, path = pinned_file(tmp_path)
    scene.write_policy(f'[[file]]\npath = "{path}"\n[launch]\non_fault = "{on_fault}"\n')
    scene.accept()
    (store,) = scene.state.glob("*/store.sqlite")
    import sqlite3

    with sqlite3.connect(store) as connection:
        connection.execute("PRAGMA user_version = 999")  # a newer lockd wrote it
    answer = admitted(scene, monkeypatch)
    assert answer.outcome == outcome and "version 999" in " ".join(answer.lines)


def test_root_switches_gates_off(good: tuple[Scene, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    scene, path = good
    path.write_text("x = 2\n")
    switch = scene.file("disabled", "")
    monkeypatch.setattr(admit, "switched_off", lambda: admit_switch(str(switch), os.geteuid()))
    answer = admitted(scene, monkeypatch)
    assert answer.outcome == "admitted" and "switched off" in answer.lines[0]
    assert listed(scene)[0]["verdict"] == "off"
    switch.unlink()
    assert admitted(scene, monkeypatch).outcome == "refused"


admit_switch = admit.switched_off


def test_a_switch_that_is_not_roots_switches_nothing(tmp_path: Path) -> None:
    switch = tmp_path / "disabled"
    assert not admit_switch(str(switch), os.geteuid())
    switch.write_text("")
    switch.chmod(0o644)
    assert admit_switch(str(switch), os.geteuid()) and not admit_switch(str(switch), os.geteuid() + 1)
    switch.chmod(0o666)
    assert not admit_switch(str(switch), os.geteuid())
    switch.rename(tmp_path / "other")
    switch.symlink_to(tmp_path / "other")
    assert not admit_switch(str(switch), os.geteuid())


# -- other users


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be somebody else")
def test_another_user_launches_under_roots_policy(tmp_path_factory: pytest.TempPathFactory) -> None:
    root = tmp_path_factory.mktemp("shared")
    for folder in (root, *root.parents):
        if not os.stat(folder).st_mode & stat.S_IXOTH:
            pytest.skip(f"{folder} is closed to other users")
    scene, path = pinned_file(root)
    assert scene.accept().code == 0
    home = root / "ana"
    home.mkdir()
    os.chown(home, 4242, 4242)

    def as_ana(*args: str) -> subprocess.CompletedProcess[bytes]:
        words = {**environ(scene), "HOME": str(home), "LOCKD_STATE": str(home / "state")}
        return subprocess.run(
            [*LOCKD, *args],
            env=words,
            cwd=root,
            capture_output=True,
            user=4242,
            group=4242,
            extra_groups=[],
            timeout=60,
        )

    if as_ana("--version").returncode != 0:
        pytest.skip("this Python is closed to other users")
    done = as_ana("run", "--", "sh", "-c", "exit 7")
    assert done.returncode == 7, done.stderr
    (run,) = json.loads(as_ana("runs", "--json").stdout)
    assert run["by"]["uid"] == 4242 and run["generation"] == 1
    assert listed(scene) == []  # roots own state is as it was
    path.write_text("x = 2\n")
    assert as_ana("run", "--", "true").returncode == 78
    refused = as_ana("run", "--override", "please", "--", "true")
    assert refused.returncode == 78 and b"may not override" in refused.stderr


def test_a_guests_records_are_a_state_of_their_own(good: tuple[Scene, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    scene, _ = good
    monkeypatch.setenv("LOCKD_STATE", str(scene.root / "other"))
    monkeypatch.setattr(state, "_may", lambda path: False)
    assert state.open(str(scene.policy), create=True) is None
    guest = state.open(str(scene.policy), create=True, guest=True)
    assert guest is not None and guest.guest and stat.S_IMODE(os.stat(guest.folder).st_mode) == 0o700


def test_a_signal_ends_both(good: tuple[Scene, Path]) -> None:
    scene, _ = good
    process = begin(scene, "run", "--wait", "--", "sleep", "30")
    try:
        wait_for(lambda: [one for one in listed(scene) if len(one["pids"]) == 2])
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 143
    finally:
        process.kill()
    assert listed(scene)[0]["exit"] == 143
