"""Ways to start a training × verdicts × states of the daemon: the documented outcomes, and the table made of them.

`test_gate_matrix` holds each cell against the real thing; docs/gates.md holds the table as it is rendered here.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from lockd import protocol
from tests.gating import Gated, daemon
from tests.scene import LOCKD, Scene

STARTS, WARNED, REFUSED, BLIND, UNGATED = "starts", "starts, warned", "refused, 78", "refused, 125", "starts, not gated"
VERDICTS = ("ok", "warn", "block", "unknown", "override")
GATED = (STARTS, WARNED, REFUSED, BLIND, WARNED)
DAEMONS = ("down", "up", "stopped", "killed in the middle", "of another version")
DOCUMENT = Path(__file__).parents[1] / "docs" / "gates.md"
BEGIN, END = "<!-- the table begins: made by tests/test_gate_matrix.py -->", "<!-- the table ends -->"

POOL = """import multiprocessing, os
def work(number):
    return number
if __name__ == "__main__":
    with multiprocessing.get_context("{method}").Pool(2) as pool:
        assert pool.map(work, [1, 2]) == [1, 2]
    open(os.environ["RAN"], "a").write("x\\n")
"""


@dataclass(frozen=True)
class Way:
    """One way to start the training. outcomes: by verdict. needs: the marker of its test, "" for none.

    fewer: verdicts that alone are tried where the daemon neither is up nor down: the others take minutes, and there
    differ by nothing that the quick rows do not show.
    """

    name: str
    outcomes: Sequence[str] = GATED
    needs: str = ""
    gate: str = "site hook"
    fewer: Sequence[str] = ()

    @property
    def cells(self) -> list[tuple[str, str]]:
        """(state of the daemon, verdict) of each cell that has a test."""
        return [
            (state, verdict)
            for state in DAEMONS
            for verdict in VERDICTS
            if not self.fewer or state in ("down", "up") or verdict in self.fewer
        ]

    @property
    def tried(self) -> str:
        """In which states of the daemon, for the table."""
        if not self.fewer:
            return "in all five"
        rest = DAEMONS[2:]
        return f"down, up; {' and '.join(self.fewer)} also {', '.join(rest)}"


WAYS = (
    Way("`python train.py`"),
    Way("`python -m pkg.train`"),
    Way("multiprocessing, spawn"),
    Way("multiprocessing, forkserver"),
    Way("in tmux"),
    Way("another venv, same script", (UNGATED,) * 5, gate="none: the daemon records it"),
    Way("another venv, `lockd run --`", (REFUSED,) * 5, gate="`lockd run`: launch:python"),
    Way("`torchrun`, 2 ranks", needs="torch", fewer=("ok", "block")),
    Way("`torchrun`, restart after drift", needs="torch", fewer=("ok", "block")),
    Way("`accelerate launch`, 2 ranks", needs="torch", fewer=("ok", "block")),
    Way("systemd unit", needs="container", gate="drop-in"),
    Way("`lxc-attach` from the host", needs="container"),
    Way("Slurm `srun`", (STARTS, WARNED, "FAILED 78:0", "FAILED 125:0", WARNED), needs="slurm", gate="TaskProlog"),
    Way("Slurm `sbatch`", (STARTS, WARNED, "FAILED 78:0", "FAILED 125:0", WARNED), needs="slurm", gate="TaskProlog"),
)


def way(name: str) -> Way:
    return next(one for one in WAYS if one.name == name)


def rendered() -> str:
    """The table of docs/gates.md."""
    heads = ["launch", "gate", *VERDICTS, "daemon"]
    rows = [heads, ["---"] * len(heads), *([one.name, one.gate, *one.outcomes, one.tried] for one in WAYS)]
    lines = [f"| {' | '.join(row)} |" for row in rows]
    return "\n".join(lines)


def documented() -> str:
    """The table as it stands in docs/gates.md."""
    return DOCUMENT.read_text().partition(BEGIN)[2].partition(END)[0].strip()


def write() -> None:
    """Put the table into docs/gates.md."""
    head, _, rest = DOCUMENT.read_text().partition(BEGIN)
    DOCUMENT.write_text(f"{head}{BEGIN}\n{rendered()}\n{END}{rest.partition(END)[2]}")


# -- verdicts


@contextlib.contextmanager
def verdict(scene: Scene, name: str) -> Iterator[None]:
    """Bring the scene into a state with this verdict, and back."""
    away = scene.root / "away.lock"
    if name == "warn":
        scene.file("job/notes.py", "changed\n")
    elif name in ("block", "override"):
        scene.file("job/model.py", "x = 2\n")
        if name == "override":
            assert scene.lockd("override", "--for", "1h", "for the test").code == 0
    elif name == "unknown":
        scene.lock.rename(away)
    try:
        yield
    finally:
        if name == "override":
            assert scene.lockd("override", "--end").code == 0
        if away.exists():
            away.rename(scene.lock)
        scene.file("job/notes.py", "n = 1\n")
        scene.file("job/model.py")


# -- states of the daemon


@contextlib.contextmanager
def daemon_is(scene: Scene, state: str) -> Iterator[Callable[[], None]]:
    """A daemon in this state; what is given has to be called once the launch was started."""
    if state == "down":
        yield lambda: None
    elif state == "of another version":
        with daemon(scene, [protocol.encode({"error": {"what": "version 2, not 1"}})]):
            yield lambda: None
    else:
        with _real(scene) as process:
            if state != "up":
                _stop(scene, process)
            yield (lambda: None) if state != "killed in the middle" else lambda: _kill_soon(process)


def _stop(scene: Scene, process: subprocess.Popen[bytes]) -> None:
    """SIGSTOP, but not in the middle of a write: whoever is stopped there keeps the store, and `on_fault` decides."""
    (path,) = scene.state.glob("*/store.sqlite")
    store = sqlite3.connect(path, timeout=60, isolation_level=None)
    store.execute("BEGIN IMMEDIATE")
    process.send_signal(signal.SIGSTOP)
    while not _is_stopped(process.pid):
        time.sleep(0.01)
    store.execute("ROLLBACK")
    store.close()


def _is_stopped(pid: int) -> bool:
    """Every thread of it: a signal is sent before it is obeyed."""
    rows = [path.read_text() for path in Path(f"/proc/{pid}/task").glob("*/stat")]
    return all(row.rpartition(")")[2].split()[0] in "tT" for row in rows)


def _kill_soon(process: subprocess.Popen[bytes]) -> None:
    time.sleep(0.1)  # the hook is asking by now, or about to
    process.kill()


@contextlib.contextmanager
def _real(scene: Scene) -> Iterator[subprocess.Popen[bytes]]:
    variables = {"PATH": os.environ["PATH"], "HOME": str(scene.root / "home")}
    variables |= {"LOCKD_STATE": str(scene.state), "LOCKD_RUNTIME": str(scene.root / "run")}
    log = open(scene.root / "daemon.log", "ab")  # noqa: SIM115
    process = subprocess.Popen(
        [*LOCKD, "daemon", "--policy", str(scene.policy)],
        env=variables,
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=log,
    )
    path = Path(protocol.folder(str(scene.root / "run"), str(scene.policy))) / "socket"
    try:
        end = time.monotonic() + 60
        while not _answers(scene) and process.poll() is None:
            assert time.monotonic() < end, "the daemon does not answer"
            time.sleep(0.05)
        assert process.poll() is None and path.exists(), (scene.root / "daemon.log").read_text()[-2000:]
        yield process
    finally:
        process.kill()
        process.wait()
        log.close()
        path.unlink(missing_ok=True)


def _answers(scene: Scene) -> bool:
    from lockd import client

    os.environ["LOCKD_RUNTIME"] = str(scene.root / "run")
    try:
        return client.ask(str(scene.policy), {"ask": "standing"}) is not None
    finally:
        del os.environ["LOCKD_RUNTIME"]


# -- launches


def outcome(scene: Gated, argv: list[str], started: Callable[[], None], **env: str) -> str:
    """Start it, and say in the table's words what became of it."""
    (scene.root / "ran").unlink(missing_ok=True)
    variables = {**scene.variables(), "OMP_NUM_THREADS": "1", **env}
    with open(scene.root / "err", "wb") as err:
        process = subprocess.Popen(
            argv, env=variables, cwd=scene.root, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=err
        )
        threading.Thread(target=started, daemon=True).start()
        code = process.wait(300)
    return words(code, bool(scene.ran), (scene.root / "err").read_text())


def words(code: int, ran: bool, err: str) -> str:
    """What is seen of a launch, in the table's words."""
    assert "Traceback" not in err or ran, err
    if code in (78, 125) and not ran:
        assert "lockd: refused" in err, err
        return f"refused, {code}"
    assert code == 0 and ran, f"exit {code}\n{err}"
    return WARNED if "lockd: " in err else STARTS


def command(scene: Gated, name: str, other: Path) -> list[str]:
    """The command line of a local way."""
    python = str(scene.python)
    if name == "`python -m pkg.train`":
        return [python, "-m", "pkg.train"]
    if name.startswith("multiprocessing"):
        method = name.rpartition(" ")[2]
        return [python, str(scene.file(f"more/step_{len(method) % 10}.py", POOL.format(method=method)))]
    if name == "in tmux":
        return [sys.executable, "-c", _TMUX, str(scene.root / "tmux"), python, str(scene.train)]
    if name.startswith("another venv"):
        run = [sys.executable, "-I", "-m", "lockd", "run", "--policy", str(scene.policy), "--"]
        return [*(run if "lockd run" in name else []), str(other / "bin" / "python"), str(scene.train)]
    return [python, str(scene.train)]


# what a person does in tmux: a session of its own server, a command in it, its exit code and its screen afterwards
_TMUX = """import os, shlex, subprocess, sys
folder, *argv = sys.argv[1:]
os.makedirs(folder, exist_ok=True)
socket, out = os.path.join(folder, "s"), os.path.join(folder, "out")
quoted = shlex.quote(out)
line = f"{shlex.join(argv)} 2>{quoted}; echo $? >{quoted}.code; tmux -S {shlex.quote(socket)} wait-for -S done"
subprocess.run(["tmux", "-S", socket, "-f", "/dev/null", "new-session", "-d", line], check=True)
subprocess.run(["tmux", "-S", socket, "wait-for", "done"], check=True)
sys.stderr.write(open(out).read())
sys.exit(int(open(out + ".code").read()))
"""


def prepare(scene: Gated) -> None:
    """Every verdict can be had from this policy: a file besides only warns, another environment is a finding."""
    scene.file("job/notes.py", "n = 1\n")
    more = f'[[file]]\npath = "{scene.root}/job/notes.py"\non_drift = "warn"\n'
    text = scene.policy.read_text().replace("[[python]]", 'python = "train"\n[[python]]', 1)
    scene.policy.write_text(text + more)
    assert scene.accept().code == 0
    scene.install()
