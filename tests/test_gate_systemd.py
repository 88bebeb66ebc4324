"""The drop-in: what it says for any unit, and in a real container that a refused unit stays down."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from lockd.errors import LockdError, UsageError
from lockd.gates import owned, systemd
from tests import gate_matrix as matrix
from tests.container import Container, Kind, container
from tests.scene import ROOT, Scene

__all__ = ["container"]

ETC, LIB = "etc/systemd/system", "usr/lib/systemd/system"


def unit(root: Path, text: str, name: str = "train.service", folder: str = ETC) -> systemd.Unit:
    path = root / folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return systemd.find(name, str(root))


def drop_in(root: Path, text: str, name: str) -> None:
    path = root / ETC / "train.service.d" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def gate(policy: str = "/etc/lockd/policy.toml") -> str:
    return f"{sys.executable} -I -m lockd run --policy {policy} --"


def exec_lines(found: systemd.Unit) -> list[str]:
    return [line for line in Path(found.drop_in).read_text().splitlines() if line.startswith("ExecStart=")]


def test_the_command_stands_behind_lockd_run(tmp_path: Path) -> None:
    found = unit(
        tmp_path, "[Unit]\nExecStart=no\n[Service]\nExecStart = /v/bin/python /t.py --n %i \\\n  $X\nRestart=always\n"
    )
    told = systemd.install(found, "/etc/lockd/policy.toml")
    assert told.sound and "daemon-reload" in told.text
    assert exec_lines(found) == ["ExecStart=", f"ExecStart={gate()} /v/bin/python /t.py --n %i    $X"]
    assert "RestartPreventExitStatus=78 125" in Path(found.drop_in).read_text().splitlines()
    assert systemd.status(found).sound
    assert not systemd.remove(found).installed
    assert not Path(found.drop_in).parent.exists() and not systemd.status(found).sound


def test_prefixes_stay_in_front(tmp_path: Path) -> None:
    found = unit(tmp_path, "[Service]\nType=oneshot\nExecStart=-/bin/a\nExecStart=!!:/bin/b c\n")
    systemd.install(found, "/p.toml")
    assert exec_lines(found)[1:] == [f"ExecStart=-{gate('/p.toml')} /bin/a", f"ExecStart=!!:{gate('/p.toml')} /bin/b c"]


def test_other_drop_ins_count_and_their_change_is_told(tmp_path: Path) -> None:
    unit(tmp_path, "[Service]\nExecStart=/bin/old\n", folder=LIB)
    drop_in(tmp_path, "[Service]\nExecStart=\n# not this\nExecStart=/bin/new\n", "10-new.conf")
    found = systemd.find("train", str(tmp_path))
    systemd.install(found, "/p.toml", trust_unmapped=True)
    assert exec_lines(found)[1].endswith("--trust-unmapped -- /bin/new")
    assert systemd.status(systemd.find("train", str(tmp_path))).sound
    drop_in(tmp_path, "[Service]\nExecStart=\nExecStart=/bin/newer\n", "10-new.conf")
    changed = systemd.find("train", str(tmp_path))
    assert not systemd.status(changed).sound and "install systemd train.service" in systemd.status(changed).text
    systemd.install(changed, "/p.toml", trust_unmapped=True)
    assert systemd.status(changed).sound


def test_the_units_of_one_policy_are_found_by_their_drop_ins(tmp_path: Path) -> None:
    """Those of another policy, of another tool, and one whose own file is gone are left out."""
    for name, policy in (("b", "/p.toml"), ("a", "/p.toml"), ("other", "/q.toml"), ("lost", "/p.toml")):
        systemd.install(unit(tmp_path, "[Service]\nExecStart=/bin/x\n", name=f"{name}.service"), policy)
    (tmp_path / ETC / "lost.service").unlink()
    drop_in(tmp_path, "[Service]\nExecStart=\nExecStart=/bin/y\n", systemd.NAME)
    assert [one.name for one in systemd.gated("/p.toml", str(tmp_path))] == ["a.service", "b.service"]


def test_an_instance_of_a_template(tmp_path: Path) -> None:
    unit(tmp_path, "[Service]\nExecStart=/bin/train %i\n", name="train@.service")
    found = systemd.find("train@a.service", str(tmp_path))
    systemd.install(found, "/p.toml")
    assert found.drop_in.endswith("/train@a.service.d/50-lockd.conf") and exec_lines(found)[1].endswith("/bin/train %i")


@pytest.mark.parametrize(
    ("word", "quoted"),
    [("/a b", '"/a b"'), ("100%", "100%%"), ("$x", "$$x"), ('q"\\', '"q\\"\\\\"'), ("/plain-1.2", "/plain-1.2")],
)
def test_words_as_systemd_reads_them(word: str, quoted: str) -> None:
    assert systemd.quoted(word) == quoted


@pytest.mark.parametrize("name", ["absent", "train.timer", "../train.service"])
def test_no_such_unit(tmp_path: Path, name: str) -> None:
    with pytest.raises(UsageError):
        systemd.find(name, str(tmp_path))


def test_what_can_not_be_gated(tmp_path: Path) -> None:
    for text in ("[Service]\nType=oneshot\n", "[Service]\nExecStart=@/bin/a b\n"):
        with pytest.raises(UsageError):
            systemd.install(unit(tmp_path, text), "/p.toml")
    assert not (tmp_path / ETC / "train.service.d").exists()


def test_a_file_of_somebody_else_stays(tmp_path: Path) -> None:
    found = unit(tmp_path, "[Service]\nExecStart=/bin/a\n")
    drop_in(tmp_path, "[Service]\nNice=5\n", systemd.NAME)
    with pytest.raises(LockdError):
        systemd.install(found, "/p.toml")
    with pytest.raises(LockdError):
        systemd.remove(found)
    assert owned.read(found.drop_in) == "[Service]\nNice=5\n"


def test_the_command(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    path = scene.file("job/model.py")
    scene.write_policy(f'[[file]]\npath = "{path}"\n')
    unit(tmp_path / "root", "[Service]\nExecStart=/bin/true\n")
    words = ("systemd", "train.service", "--root", str(tmp_path / "root"))
    assert scene.lockd("gate", "status", *words).code == 1
    answer = scene.lockd("gate", "install", *words, "--json")
    assert answer.code == 0 and answer.document["installed"] is True
    assert f"--policy {scene.policy} --" in Path(answer.document["drop_in"]).read_text()
    assert scene.lockd("gate", "status", *words).code == 0
    assert scene.lockd("gate", "remove", *words).code == 0
    assert scene.lockd("gate", "install", "systemd", "no-such", "--root", str(tmp_path)).code == 2


# -- a real systemd

POLICY = """schema = 1
name = "ct"
[[file]]
path = "/root/model.py"
"""
UNIT = "[Service]\nExecStart=/usr/bin/python3 -c 'import time; time.sleep(1000)'\nRestart=always\nRestartSec=100ms\n"
LOCKD = ("/opt/lockd/bin/python", "-I", "-m", "lockd", "--policy", "/etc/lockd/policy.toml")


def _with_lockd(box: Container) -> None:
    """lockd in a virtualenv of its own inside, from this source tree; it needs no other package to look and to gate."""
    box.run("python3", "-m", "venv", "--without-pip", "/opt/lockd")
    (site,) = (box.path / "opt/lockd/lib").glob("python3*/site-packages")
    inside = "/" + str(site.relative_to(box.path))
    for package in (
        "pydantic",
        "pydantic_core",
        "annotated_types",
        "typing_extensions.py",
        "typing_inspection",
        "packaging",
        "watchdog",
        "structlog",
    ):
        box.push(_package(package), f"{inside}/{package}")
    box.push(ROOT / "lockd", f"{inside}/lockd")


def _package(name: str) -> Path:
    import packaging

    return Path(packaging.__file__).parents[1] / name


NOTES = '[[file]]\npath = "/root/notes.py"\non_drift = "warn"\n'
SCENE = {
    "ok": "true",
    "warn": "echo 'n = 2' > /root/notes.py",
    "block": "echo 'x = 2' > /root/model.py",
    "unknown": "mv /etc/lockd/policy.lock /etc/lockd/away.lock",
    "override": "echo 'x = 2' > /root/model.py",
}
WAYS = ("systemd unit", "`lxc-attach` from the host")


@pytest.fixture(scope="module")
def box(container: Callable[[Kind], Container]) -> Container:
    """A training container with lockd, a venv with the hook, and a gated unit that ends by itself."""
    if sys.version_info[:2] != (3, 11):
        pytest.skip("the container's Python is 3.11, and takes the compiled packages of no other")
    made = container("unprivileged")
    _with_lockd(made)
    made.run("mkdir", "-p", "/etc/lockd")
    made.run("python3", "-m", "venv", "--without-pip", "/root/venv")
    rest = '[launch]\nscripts = ["/root/train.py"]\n[[python]]\nname = "train"\npath = "/root/venv"\n'
    unit = "[Service]\nType=oneshot\nExecStart=/usr/bin/python3 /root/train.py\n"
    _write(made, "/etc/lockd/policy.toml", POLICY + NOTES + rest)
    _write(made, "/root/train.py", "open('/root/ran', 'a').write('x')\n")
    _write(made, f"/{ETC}/once.service", unit)
    made.run("sh", "-c", f"{GOOD} && rm -f /etc/lockd/policy.lock")
    made.run(*LOCKD, "accept", "-m", "good", "--yes")
    made.run(*LOCKD, "gate", "install", "systemd", "once.service")
    made.run(*LOCKD, "gate", "install", "site")
    return made


GOOD = "echo 'x = 1' > /root/model.py; echo 'n = 1' > /root/notes.py; rm -f /root/ran"


def _write(box: Container, path: str, text: str) -> None:
    box.run("sh", "-c", f"cat > {path} <<'END'\n{text}END")


@pytest.mark.container
@pytest.mark.parametrize("state", matrix.DAEMONS)
@pytest.mark.parametrize("way", WAYS)
def test_cells(box: Container, way: str, state: str) -> None:
    """Rows of the matrix in docs/gates.md: a daemon in this state, and under it one verdict after the other."""
    found = {}
    with contextlib.ExitStack() as stack:
        if state != "killed in the middle":
            stack.enter_context(_daemon_is(box, state))
        for verdict in matrix.VERDICTS:
            found[verdict] = _cell(box, way, state, verdict)
    assert found == dict(zip(matrix.VERDICTS, matrix.way(way).outcomes, strict=True))


def _cell(box: Container, way: str, state: str, verdict: str) -> str:
    box.run("sh", "-c", f"{GOOD}; {SCENE[verdict]}")
    if verdict == "override":
        box.run(*LOCKD, "override", "--for", "1h", "for the test")
    try:
        with contextlib.ExitStack() as stack:
            if state == "killed in the middle":
                stack.enter_context(_daemon_is(box, "up"))
                kill = box.attach("sh", "-c", f"sleep 0.2; systemctl kill -s KILL {DAEMON}")
                stack.callback(subprocess.Popen(kill, stdin=subprocess.DEVNULL).wait, 30)
            return _start_unit(box) if way == WAYS[0] else _attach(box)
    finally:
        if verdict == "override":
            box.run(*LOCKD, "override", "--end")
        box.run("sh", "-c", "if test -e /etc/lockd/away.lock; then mv /etc/lockd/away.lock /etc/lockd/policy.lock; fi")


DAEMON = "lockd-of-the-test"
ANSWERS = (
    "from lockd import client; raise SystemExit(client.ask('/etc/lockd/policy.toml', {'ask': 'standing'}) is None)"
)
# not in the middle of a write: whoever is stopped there keeps the store, and `on_fault` decides
STOP = """import glob, os, signal, sqlite3, sys, time
store = sqlite3.connect(glob.glob("/var/lib/lockd/policy-*/store.sqlite")[0], timeout=60, isolation_level=None)
store.execute("BEGIN IMMEDIATE")
os.kill(int(sys.argv[1]), signal.SIGSTOP)
tasks = glob.glob(f"/proc/{sys.argv[1]}/task/*/stat")
while any(open(path).read().rpartition(")")[2].split()[0] not in "tT" for path in tasks):
    time.sleep(0.01)
store.execute("ROLLBACK")
"""
OTHER = """import os, socket
from lockd import protocol
folder = protocol.folder("/run/lockd", "/etc/lockd/policy.toml")
os.makedirs(folder, exist_ok=True)
path = os.path.join(folder, "socket")
if os.path.exists(path):
    os.unlink(path)
server = socket.socket(socket.AF_UNIX)
server.bind(path)
server.listen()
while True:
    client, _ = server.accept()
    client.recv(1 << 20)
    client.sendall(protocol.encode({"error": {"what": "version 2, not 1"}}))
    client.close()
"""


@contextlib.contextmanager
def _daemon_is(box: Container, state: str) -> Iterator[None]:
    """A daemon of the container in this state, as a unit of its own."""
    if state == "down":
        yield
        return
    python, start = LOCKD[0], ("systemd-run", "--quiet", "--collect", f"--unit={DAEMON}", "--")
    try:
        if state == "of another version":
            box.run(*start, python, "-I", "-c", OTHER)
            _wait(box, "sh", "-c", "test -S /run/lockd/policy-*/socket")
        else:
            box.run(*start, *LOCKD, "daemon")
            _wait(box, python, "-I", "-c", ANSWERS)
        if state == "stopped":
            pid = box.run("systemctl", "show", DAEMON, "-p", "MainPID", "--value").stdout.strip()
            box.run(python, "-I", "-c", STOP, pid)
        yield
    finally:
        box.run("sh", "-c", f"systemctl kill -s KILL {DAEMON}; systemctl stop {DAEMON}; true")
        box.run("sh", "-c", "rm -f /run/lockd/policy-*/socket")


def _wait(box: Container, *command: str) -> None:
    end = time.monotonic() + 20
    while box.run(*command, check=False).returncode:
        assert time.monotonic() < end, box.run("journalctl", "-u", DAEMON, "-n", "30", "-o", "cat").stdout
        time.sleep(0.1)


def _ran(box: Container) -> bool:
    return box.run("test", "-e", "/root/ran", check=False).returncode == 0


def _attach(box: Container) -> str:
    done = box.run("/root/venv/bin/python", "/root/train.py", check=False)
    return matrix.words(done.returncode, _ran(box), done.stderr)


def _start_unit(box: Container) -> str:
    before = _journal(box)
    box.run("systemctl", "start", "once", check=False)
    code = int(box.run("systemctl", "show", "once", "-p", "ExecMainStatus", "--value").stdout)
    return matrix.words(code, _ran(box), _journal(box).removeprefix(before))


def _journal(box: Container) -> str:
    box.run("journalctl", "--sync")
    return box.run("journalctl", "-u", "once", "-o", "cat").stdout


@pytest.mark.container
@pytest.mark.parametrize("kind", ["privileged", "unprivileged"])
def test_a_refused_unit_is_not_restarted(container: Callable[[Kind], Container], kind: Kind) -> None:
    if sys.version_info[:2] != (3, 11):
        pytest.skip("the container's Python is 3.11, and takes the compiled packages of no other")
    box = container(kind)
    _with_lockd(box)
    box.run("mkdir", "-p", "/etc/lockd")
    for path, text in {"/etc/lockd/policy.toml": POLICY, "/root/model.py": "x = 1\n"}.items():
        box.run("sh", "-c", f"cat > {path} <<'END'\n{text}END")
    box.run("sh", "-c", f"cat > /{ETC}/train.service <<'END'\n{UNIT}END")
    box.run(*LOCKD, "accept", "-m", "good", "--yes")
    box.run(*LOCKD, "gate", "install", "systemd", "train.service")

    def state() -> str:
        properties = "ActiveState,NRestarts,ExecMainStatus,MainPID"
        return box.run("systemctl", "show", "train", "-p", properties).stdout

    box.run("systemctl", "start", "train")
    pid = box.run("systemctl", "show", "train", "-p", "MainPID", "--value").stdout.strip()
    for _ in range(100):
        words = box.run("cat", f"/proc/{pid}/cmdline").stdout.split("\0")
        if "lockd" not in words and "-c" in words:  # until then these words are arguments of lockd's
            break
        time.sleep(0.1)
    assert "ActiveState=active" in state() and f"MainPID={pid}" in state()  # lockd became it: the same pid
    assert '"running": true' in box.run(*LOCKD, "runs", "--json").stdout
    box.run("sh", "-c", "echo 'x = 2' > /root/model.py")
    assert "ActiveState=active" in state()  # what runs is left alone
    box.run("systemctl", "restart", "train", check=False)
    for _ in range(100):
        if "ActiveState=failed" in state():
            break
        time.sleep(0.1)
    time.sleep(1)  # ten times RestartSec
    assert "ActiveState=failed" in state() and "ExecMainStatus=78" in state() and "NRestarts=0" in state()
    journal = box.run("journalctl", "-u", "train", "-o", "cat").stdout
    assert "lockd: refused" in journal and "model.py" in journal
    box.run(*LOCKD, "gate", "remove", "systemd", "train.service")
    box.run("systemctl", "restart", "train")
    assert "ActiveState=active" in state()
    assert not os.path.exists(box.path / ETC / "train.service.d")
