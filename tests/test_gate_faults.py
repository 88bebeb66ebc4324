"""The site hook when lockd is gone, broken, stuck or slow, when the daemon is, and when the launch is strange."""

# mypy: allow-untyped-calls
from __future__ import annotations

import json
import os
import socket
import stat
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockd import globs, protocol
from lockd.gates.ask import Mismatch, parse
from lockd.gates.hook import gate, which
from tests.gating import Gated, daemon, gated

BLOCK = 'on_fault = "block"'


@pytest.fixture(scope="module", params=["warn", "block"])
def faulty(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Gated, str]:
    scene = gated(tmp_path_factory.mktemp(request.param), launch=f'on_fault = "{request.param}"')
    return scene, request.param


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Gated:
    return gated(tmp_path_factory.mktemp("shared"))


# -- lockd itself

PROGRAMS = {
    "gone": None,
    "crashes": "#!/bin/sh\nexit 3\n",
    "says nonsense": "#!/bin/sh\necho nonsense\n",
    "is stuck": "#!/bin/sh\nexec sleep 100\n",
    "of another version": "#!/bin/sh\nprintf '\\001fault\\nthe hook is of another version\\000'\n",
}
SAID = {
    "gone": "could not be started",
    "crashes": "without an answer",
    "says nonsense": "without an answer",
    "is stuck": "no progress",
    "of another version": "another version",
}


@pytest.mark.parametrize("how", PROGRAMS)
def test_a_fault_of_lockd_is_what_on_fault_says(faulty: tuple[Gated, str], how: str) -> None:
    scene, on_fault = faulty
    (scene.root / "ran").unlink(missing_ok=True)
    program = scene.root / "bin" / f"lockd-{how.replace(' ', '-')}"
    text = PROGRAMS[how]
    if text is not None:
        scene.file(str(program.relative_to(scene.root)), text).chmod(0o755)
    scene.fill(python=str(program), patience=1)
    done = scene.launch(scene.train)
    assert done.err.count("\n") == 1 and SAID[how] in done.err and "policy ct" in done.err
    assert (done.code, len(scene.ran)) == ((0, 1) if on_fault == "warn" else (125, 0))


def test_a_later_policy_s_on_fault_counts(shared: Gated) -> None:
    """What the last good policy said is kept in the state; the hook's own word is older."""
    assert shared.launch(shared.train).code == 0
    (kept,) = shared.state.glob("*/gate.json")
    before = kept.read_text()
    kept.write_text(json.dumps({"on_unknown": "block", "on_fault": "block"}))
    shared.fill(python="/nowhere/python")
    assert shared.launch(shared.train).code == 125
    kept.write_text(before)
    assert shared.launch(shared.train).code == 0
    shared.install()


def test_a_long_look_is_waited_for(shared: Gated) -> None:
    """Signs of life for longer than the patience, then the answer."""
    lines = "".join("printf '\\001reading'; sleep 0.4;" for _ in range(5))
    program = shared.file("bin/slow", f"#!/bin/sh\n{lines} printf '\\00178\\nlockd: refused at last\\000'\n")
    program.chmod(0o755)
    shared.fill(python=str(program), patience=1)
    done = shared.launch(shared.train)
    shared.install()
    assert (done.code, done.err) == (78, "lockd: refused at last\n")


def test_what_is_waited_for_is_said_on_a_terminal(shared: Gated) -> None:
    import pty

    lines = "".join("printf '\\001a look at the environment: 1 of 2 GiB'; sleep 0.5;" for _ in range(4))
    shared.file("bin/slow", f"#!/bin/sh\n{lines} printf '\\0010\\n\\000'\n").chmod(0o755)
    shared.fill(python=str(shared.root / "bin" / "slow"))
    mine, theirs = pty.openpty()
    argv = [str(shared.python), str(shared.train)]
    done = subprocess.run(argv, env=shared.variables(), stderr=theirs, timeout=60)
    os.close(theirs)
    text = os.read(mine, 1 << 16).decode()
    os.close(mine)
    shared.install()
    assert done.returncode == 0 and "waiting for a look at the environment: 1 of 2 GiB (policy ct" in text
    assert text.endswith("\x1b[K")


def test_switched_off(shared: Gated, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """/etc/lockd/disabled itself is not ours to touch: the hook is told of another place."""
    switch = tmp_path / "disabled"
    monkeypatch.setattr(gate, "DISABLED", str(switch))
    assert not gate.is_off()
    switch.touch()
    switch.chmod(0o644)
    assert gate.is_off() is (os.geteuid() == 0)  # only root's file switches
    switch.chmod(0o666)
    assert not gate.is_off()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root's file switches gates off")
def test_switched_off_is_announced(shared: Gated) -> None:
    switch = shared.file("disabled", "")
    switch.chmod(0o644)
    shared.hook.write_text(shared.hook.read_text().replace("/etc/lockd/disabled", str(switch)))
    shared.drift()
    done = shared.launch(shared.train)
    switch.unlink()
    refused = shared.launch(shared.train)
    shared.install()
    shared.heal()
    assert done.code == 0 and "switched off by" in done.err and refused.code == 78


# -- the daemon


def _answer(code: int, text: str = "") -> bytes:
    return protocol.encode({"answer": {"hook": "\n".join([str(code), *text.splitlines()])}})


@pytest.mark.parametrize(("code", "text"), [(0, ""), (78, "lockd: refused: \u201ctorch\u201d"), (125, "lockd: blind")])
def test_the_daemon_s_answer_counts(shared: Gated, code: int, text: str) -> None:
    looking = protocol.encode({"looking": "torch is being looked at"})
    before = len(shared.runs())
    with daemon(shared, [looking, _answer(code, text)]) as one:
        done = shared.launch(shared.train, "\udcff\U0001f600", env={"ODD": 'a"b\\\n\udcfe'})
    assert (done.code, done.err) == (code, f"{text}\n" if text else "")
    (request,) = one.requests
    assert request["ask"] == "launch" and request["policy"] == str(shared.policy)
    assert request["launch"]["argv"] == [str(shared.python), str(shared.train), "\udcff\U0001f600"]
    assert request["launch"]["environ"]["ODD"] == 'a"b\\\n\udcfe' and request["launch"]["cwd"] == str(shared.root)
    assert len(shared.runs()) == before  # nobody was asked besides


BROKEN_DAEMONS: dict[str, tuple[list[bytes] | None, bool]] = {
    "stopped": (None, False),
    "killed before its answer": ([], True),
    "killed in its answer": ([_answer(0)[:9]], True),
    "another version": ([protocol.encode({"error": {"what": "unknown request"}})], True),
    "garbage": ([b"HTTP/1.0 200 OK\r\n\r\n"], True),
    "a huge frame": ([b"\xff\xff\xff\xff" + b"x" * 100], True),
}


@pytest.mark.parametrize("how", BROKEN_DAEMONS)
def test_a_broken_daemon_is_passed_over(shared: Gated, how: str) -> None:
    shared.drift()
    with daemon(shared, *BROKEN_DAEMONS[how]):
        done = shared.launch(shared.train)
    shared.heal()
    assert done.code == 78 and "lockd: refused: 1 finding" in done.err


def test_a_socket_without_a_daemon(shared: Gated) -> None:
    with daemon(shared, []) as one:
        path = one.path
    with socket.socket(socket.AF_UNIX) as dead, protocol.Address(str(path)) as name:
        dead.bind(name)
    done = shared.launch(shared.train)
    path.unlink()
    assert (done.code, done.err) == (0, "")


# -- strange launches


def test_a_long_command_line_and_environment(shared: Gated) -> None:
    words = ["x" * 100_000] * 9
    shared.drift()
    done = shared.launch(shared.train, *words, env={f"V{number}": "y" * 100_000 for number in range(8)})
    shared.heal()
    assert done.code == 78 and done.err.count("\n") < 10


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_closed_streams(shared: Gated, closed: str) -> None:
    line = f'exec "{shared.python}" "{shared.train}" {closed}'
    done = subprocess.run(["sh", "-c", line], env=shared.variables(), timeout=60)
    shared.drift()
    refused = subprocess.run(["sh", "-c", line], env=shared.variables(), timeout=60, stderr=subprocess.DEVNULL)
    shared.heal()
    assert (done.returncode, refused.returncode) == (0, 78)


def test_the_launch_keeps_its_input_and_descriptors(shared: Gated) -> None:
    script = "import os, sys; print(sys.stdin.read(), sorted(map(int, os.listdir('/proc/self/fd')))[:-1])\n"
    text = shared.train.read_text()
    shared.file("job/train.py", script)
    done = shared.launch(shared.train, input=b"all of it", stdin=None)
    shared.file("job/train.py", text)
    assert done.out == "all of it [0, 1, 2]\n"


def test_a_deleted_folder(shared: Gated) -> None:
    """What lies above it is still found from there, by Python and by the hook."""
    shared.drift()
    gone = shared.root / "gone"
    line = f'mkdir "{gone}" && cd "{gone}" && rmdir "{gone}" && exec "{shared.python}" "$0"'
    how: dict[str, Any] = {"env": shared.variables(), "capture_output": True, "timeout": 60}
    relative = subprocess.run(["sh", "-c", line, "../job/train.py"], **how)
    absolute = subprocess.run(["sh", "-c", line, str(shared.train)], **how)
    shared.heal()
    assert (relative.returncode, absolute.returncode) == (78, 78), (relative, absolute)


def test_a_ctrl_c_while_lockd_looks_ends_the_launch(shared: Gated) -> None:
    import signal

    shared.file("bin/slow", f"#!/bin/sh\ntouch {shared.root}/started; exec sleep 100\n").chmod(0o755)
    shared.fill(python=str(shared.root / "bin" / "slow"))
    argv = [str(shared.python), str(shared.train)]
    process = subprocess.Popen(argv, env=shared.variables(), stderr=subprocess.PIPE, start_new_session=True)
    while not (shared.root / "started").exists() and process.poll() is None:
        threading.Event().wait(0.02)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=30)
    shared.install()
    assert (process.returncode, err) == (130, b"")


# -- what is asked


@given(st.text("ab*?[]!^-", max_size=8), st.text("ab-^", max_size=6))
def test_globs_are_the_policy_s(pattern: str, text: str) -> None:
    wanted = [path for path in ("x",) if globs.matches([pattern])(text)] if pattern and text else []
    if text and pattern and "/" not in pattern and pattern not in (".", "**"):
        assert which.like(pattern, text) is bool(wanted)


@pytest.mark.parametrize(
    ("pattern", "path", "fits"),
    [
        ("/a/**/t.py", "/a/t.py", True),
        ("/a/**/t.py", "/a/b/c/t.py", True),
        ("/a/**/t.py", "/b/t.py", False),
        ("/a/*/t.py", "/a/b/c/t.py", False),
        ("/a/*.py", "/a/.py", True),
        ("/a/**", "/a/b/c.py", True),
    ],
)
def test_globs_over_folders(pattern: str, path: str, fits: bool) -> None:
    assert which.fits(pattern.split("/"), path.split("/")) is fits


@pytest.mark.parametrize("data", [b"", b"2\0", b"1\0", b"1\0x\0p\0s\0r\0\0/\x000\0", b"1\0004\0p\0s\0r\0\0/\0009\0a\0"])
def test_a_request_that_is_none(data: bytes) -> None:
    with pytest.raises(Mismatch):
        parse(data)


def test_the_hook_runs_where_lockd_does_not(tmp_path: Path) -> None:
    """Python 3.8's grammar, no import but the standard library's, and none of lockd's."""
    import ast

    from lockd.probes.python import hook

    tree = ast.parse(hook.template(), feature_version=(3, 8))
    names = {
        name.partition(".")[0]
        for node in ast.walk(tree)
        for name in (
            [alias.name for alias in node.names]
            if isinstance(node, ast.Import)
            else [node.module or ""]
            if isinstance(node, ast.ImportFrom)
            else []
        )
    }
    assert names <= {"os", "sys", "_socket", "_json", "select", "time", "pwd"} <= set(sys.stdlib_module_names)


def test_every_part_is_in_the_order_of_its_imports() -> None:
    from lockd.gates import hook as parts
    from lockd.probes.python import hook

    assert hook.ORDER == parts.PARTS
    folder = Path(parts.__file__).parent
    for at, name in enumerate(parts.PARTS):
        lines = [line for line in (folder / f"{name}.py").read_text().splitlines() if "lockd.gates.hook." in line]
        assert {line.split()[1].rpartition(".")[2] for line in lines} <= set(parts.PARTS[:at])


@pytest.mark.slow
def test_a_hundred_launches_at_once(shared: Gated) -> None:
    """Each is decided for itself, each is recorded, none hangs."""
    (shared.root / "ran").unlink(missing_ok=True)
    before = len(shared.runs())
    argv = [str(shared.python), str(shared.train)]
    started = [subprocess.Popen(argv, env=shared.variables(), start_new_session=True) for _ in range(100)]
    assert [process.wait(300) for process in started] == [0] * 100
    assert len(shared.ran) == 100 and len(shared.runs()) - before == 100
    assert stat.S_ISDIR(next(shared.state.glob("*/launches")).stat().st_mode)
