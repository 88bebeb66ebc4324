"""Launches that no gate saw: real processes, and the records that a daemon's round makes of them."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from lockd import conditions, policy, runs, ungated
from lockd.rules import Policy
from lockd.state import State
from tests.scene import Scene

JOB = "import mmap, os, sys\nmore = [open(name, 'rb') for name in sys.argv[1:]]\n"
JOB += "maps = [mmap.mmap(f.fileno(), 0, prot=mmap.PROT_READ) for f in more if 'uvm' in f.name]\n"
JOB += "print(1, flush=True)\nsys.stdin.read()\n"
Start = Callable[..., int]


@pytest.fixture
def start() -> Iterator[Start]:
    """Start a process in a session of its own, as a login does; gives its pid once it runs. Ended afterwards."""
    started: list[subprocess.Popen[bytes]] = []

    def begin(*argv: str | Path, **how: Any) -> int:
        words = [str(word) for word in argv]
        pipe = subprocess.PIPE
        one = subprocess.Popen(words, stdin=pipe, stdout=pipe, start_new_session=True, **how)
        started.append(one)
        assert one.stdout and one.stdout.readline()
        return one.pid

    yield begin
    for one in started:
        one.kill()
        one.communicate()


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    """A policy that names job/train.py and the module pkg.train."""
    made = Scene(tmp_path)
    script = made.file("job/train.py", JOB)
    made.write_policy(f'[launch]\nscripts = ["{script}"]\nmodules = ["pkg.train"]\n[[file]]\npath = "{script}"\n')
    assert made.accept().code == 0
    return made


def loaded(scene: Scene) -> Policy:
    return policy.load(str(scene.policy))


def found(scene: Scene) -> dict[int, str]:
    return {one.process.pid: one.why for one in ungated.suspects(loaded(scene))}


def test_the_script_in_any_interpreter(scene: Scene, start: Start) -> None:
    """By links, relatively, in another Python, and in one whose name says nothing, by what it maps."""
    script = scene.root / "job" / "train.py"
    (scene.root / "link.py").symlink_to(script)
    renamed = scene.root / "bin" / "trainer"
    renamed.parent.mkdir()
    shutil.copy(Path(sys.executable).resolve(), renamed)
    pids = [
        start(sys.executable, "train.py", cwd=script.parent),
        start(sys.executable, "-S", scene.root / "link.py"),
        start(renamed, script, env={"PYTHONHOME": sys.base_prefix}),
    ]
    if Path("/usr/bin/python3").exists():
        pids.append(start("/usr/bin/python3", "-I", script))
    told = found(scene)
    assert set(told) == set(pids) and all(why.startswith("it runs ") for why in told.values())


def test_a_module(scene: Scene, start: Start) -> None:
    scene.file("pkg/train.py", JOB)
    pid = start(sys.executable, "-m", "pkg.train", cwd=scene.root)
    assert found(scene) == {pid: "it runs pkg.train"}


def test_copies_by_content_and_by_name(scene: Scene, start: Start) -> None:
    same = scene.file("else/where.py", JOB)
    edited = scene.file("other/train.py", JOB + "print('faster now')\n")
    unlike = scene.file("third/train.py", "import sys\nprint(2, flush=True)\nsys.stdin.read()\na = 1\nb = 2\nc = 3\n")
    pids = [start(sys.executable, one) for one in (same, edited, unlike)]
    script = scene.root / "job" / "train.py"
    assert found(scene) == {
        pids[0]: f"it runs {same}, a copy of {script}",
        pids[1]: f"it runs {edited}, a changed copy of {script}",
    }


def test_an_editor_that_has_the_script_open_is_none(scene: Scene, start: Start) -> None:
    start("tail", "-f", scene.root / "job" / "train.py")
    assert found(scene) == {}


def test_of_a_launch_and_its_children_the_outermost_is_told(scene: Scene, start: Start) -> None:
    script = scene.root / "job" / "train.py"
    code = f"import subprocess, sys\nsubprocess.run([sys.executable, {str(script)!r}])\n"
    parent = scene.file("else/train.py", JOB.partition("print")[0] + code)
    pid = start(sys.executable, parent)
    assert list(found(scene)) == [pid]


@pytest.fixture
def devices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Device files under another root: what is read of processes is /proc's own."""
    folder = tmp_path / "dev"
    folder.mkdir()
    for name in ("nvidiactl", "nvidia-uvm", "nvidia0", "nvidia1"):
        (folder / name).write_text("device")
    monkeypatch.setattr(conditions, "DEVICES", str(folder / "nvidia"))
    return folder


def test_who_computes_on_a_gpu(scene: Scene, devices: Path, start: Start) -> None:
    """As seen on an H200: a reader of NVML holds the same devices; it maps no unified memory, as a context does."""
    other = scene.file("else/serve.py", JOB + "x = 1\n")
    uvm = devices / "nvidia-uvm"
    pid = start(sys.executable, other, devices / "nvidiactl", devices / "nvidia0", devices / "nvidia1", uvm)
    start(sys.executable, other, devices / "nvidiactl", devices / "nvidia0")
    start(sys.executable, other, uvm)
    assert found(scene) == {pid: f"it holds {devices}/nvidia0, {devices}/nvidia1"}
    (one,) = ungated.suspects(loaded(scene))
    assert one.gpus == (f"{devices}/nvidia0", f"{devices}/nvidia1")


def test_a_launch_of_another_policy_is_admitted_there(scene: Scene, start: Start) -> None:
    """One machine, two policies: a run of the other's is no launch that nobody saw."""
    other = Scene(scene.root / "second")
    other.environ["LOCKD_STATE"] = str(scene.state)
    other.write_policy(f'[[file]]\npath = "{other.file("a.py")}"\n', 'schema = 1\nname = "b"\n')
    assert other.accept().code == 0
    mine = next(folder for folder in scene.state.iterdir() if _is_of(folder, scene))
    theirs = next(folder for folder in scene.state.iterdir() if folder != mine)
    pid = start(sys.executable, scene.file("else/serve.py", JOB + "x = 1\n"))
    assert not ungated.is_admitted_elsewhere(State(str(mine)), pid)
    _admit(State(str(theirs)), pid)
    assert ungated.is_admitted_elsewhere(State(str(mine)), pid)
    assert not ungated.is_admitted_elsewhere(State(str(theirs)), pid)


def _is_of(folder: Path, scene: Scene) -> bool:
    from lockd.state import folder_name

    return folder.name == folder_name(str(scene.policy))


def _admit(state: State, pid: int) -> None:
    from lockd.look import Launch
    from lockd.origin import current

    store = state.store(create=True)
    assert store is not None
    with store:
        runs.begin(store, runs.Begun(Launch({}, "/", ("serve",)), None, "run", "ok", current(), pid))


def test_a_round_records_each_once_with_its_verdict(scene: Scene, devices: Path, start: Start) -> None:
    from lockd import check, lock
    from lockd.daemon.decide import Standing
    from lockd.daemon.rounds import Rounds
    from lockd.daemon.scribe import Scribe
    from lockd.state import folder_name

    class Decider:
        standing: Standing

    copy = scene.file("else/train.py", JOB)
    holder = scene.file("else/serve.py", JOB + "x = 1\n")
    start(sys.executable, copy, cwd=scene.root / "else")
    pid = start(sys.executable, holder, devices / "nvidia1", devices / "nvidia-uvm")
    scene.file("job/train.py", JOB + "# edited\n")
    state = State(str(scene.state / folder_name(str(scene.policy))))
    rules = loaded(scene)
    decider, said = Decider(), list[str]()
    decider.standing = Standing(check.check(rules, state=state, lock=lock.read(rules.lock_path), launch=None))
    scribe = Scribe(state, lambda event, **_: said.append(event))
    scribe.start()
    rounds = Rounds(decider, state, scribe, lambda event, **_: said.append(event), grace=0)  # type: ignore[arg-type]
    for _ in range(4):
        rounds.round()
    assert scribe.flush(20)
    scribe.stop(5)
    assert said == ["launch_ungated"] * 2
    second, first = sorted(scene.lockd("runs", "--json").document, key=lambda one: "devices" not in one)
    assert first["gate"] == second["gate"] == "none" and first["verdict"] == second["verdict"] == "block"
    assert first["cwd"] == str(scene.root / "else") and "a changed copy of" in first["why"]
    assert second["pids"] == [pid] and second["devices"] == [f"{devices}/nvidia1"] and not second["admitted"]
