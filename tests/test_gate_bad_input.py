"""Gates where the machine is not as they need it: each has its outcome and one clear line, and none breaks Python.

Policies and environments that moved, a read-only environment, two hooks before one interpreter, no /proc, a full and a
read-only state disk, command lines and environments of megabytes.
"""

from __future__ import annotations

import os
import resource
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from lockd.gates import site
from tests.gating import Gated, gated
from tests.scene import LOCKD, Answer
from tests.test_state_disk import fill

MIB = 1 << 20


@pytest.fixture
def scene(tmp_path: Path) -> Gated:
    return gated(tmp_path)


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Gated:
    return gated(tmp_path_factory.mktemp("shared"))


def mounted(*words: str) -> None:
    """Mount, or skip where that is not allowed."""
    if os.geteuid() != 0 or subprocess.run(["mount", *words], capture_output=True).returncode:
        pytest.skip("nothing can be mounted here")


def under(scene: Gated, prelude: Sequence[str], *argv: str | Path, **env: str) -> Answer:
    """A command behind another one that prepares its place."""
    words = {**scene.variables(), "LOCKD_STATE": str(scene.state), "LOCKD_RUNTIME": str(scene.root / "run")}
    words |= {"LOCKD_POLICY": str(scene.policy), **env}
    done = subprocess.run([*prelude, *map(str, argv)], env=words, cwd=scene.root, capture_output=True, timeout=120)
    return Answer(done.returncode, done.stdout.decode(), done.stderr.decode())


# -- policies and environments that moved


def test_a_policy_that_moved_refuses_until_the_hook_is_installed_anew(scene: Gated) -> None:
    """A move opens no gate; to install from its new place takes the old one out, and says so."""
    new = scene.policy.with_name("new.toml")
    scene.policy.rename(new)
    scene.lock.rename(new.with_name("new.lock"))
    refused = scene.launch(scene.train)
    assert refused.code == 125 and "no such policy" in refused.err and str(scene.policy) in refused.err
    answer = scene.lockd("gate", "install", "site", "--policy", str(new))
    assert answer.code == 0 and f"{scene.policy} is gone: the hook no longer serves that policy" in answer.err
    assert scene.launch(scene.train).code == 0
    assert scene.lockd("gate", "status", "site", "--policy", str(new)).code == 0


def test_a_policy_of_the_hook_that_is_gone_is_told(scene: Gated) -> None:
    other = scene.policy.with_name("other.toml")
    shutil.copy(scene.policy, other)
    assert scene.lockd("gate", "install", "site", "--policy", str(other)).code == 0
    other.unlink()
    answer = scene.lockd("gate", "status", "site")
    assert answer.code == 1 and f"a policy that is gone: {other}" in answer.err and "gate install site" in answer.err
    scene.install()
    assert scene.lockd("gate", "status", "site").code == 0


def test_the_hook_of_an_environment_that_moved(scene: Gated) -> None:
    """It still asks; what is told names the way: the policy's path first, then install or remove."""
    (scene.root / "venv").rename(scene.root / "moved")
    for deed in ("install", "status"):
        answer = scene.lockd("gate", deed, "site")
        assert answer.code == 3 and "is not there" in answer.err and "write its new path into the policy" in answer.err
    answer = scene.lockd("gate", "remove", "site", "--json")
    assert answer.code == 0 and answer.document["removed"] is False and "still holds its hook" in answer.err
    scene.policy.write_text(scene.policy.read_text().replace(f"{scene.root}/venv", f"{scene.root}/moved"))
    assert scene.lockd("gate", "remove", "site").code == 0
    assert not list((scene.root / "moved").rglob("*lockd*"))


def test_a_read_only_environment(scene: Gated) -> None:
    """Its hook asks as before, and can be neither put in nor taken out; the message says what can be done."""
    venv = str(scene.root / "venv")
    mounted("--bind", venv, venv)
    try:
        subprocess.run(["mount", "-o", "remount,bind,ro", venv], check=True)
        assert (scene.launch(scene.train).code, len(scene.ran)) == (0, 1)
        scene.drift()
        assert scene.launch(scene.train).code == 78
        scene.heal()
        for deed in ("install", "remove"):
            answer = scene.lockd("gate", deed, "site")
            assert answer.code == 3 and "Read-only file system" in answer.err and "lockd run -- CMD" in answer.err
        assert scene.lockd("gate", "status", "site").code == 0 and scene.verify().code == 0
    finally:
        subprocess.run(["umount", "-l", venv], check=True)


def test_of_two_hooks_before_one_interpreter_the_nearer_asks(scene: Gated, tmp_path: Path) -> None:
    """Documented: a module is imported once, so an environment's own hook stands for those of what it includes."""
    base = tmp_path / "base" / "site-packages"
    base.mkdir(parents=True)
    where = site.Place("base", str(base.parent), str(base))
    content = site.content_of(site.Place("train", str(scene.root / "venv"), str(scene.site_packages)))
    assert content is not None
    site.put(where, site.render({**content, "python": "/nowhere/python"}))
    (scene.site_packages / "zz-include.pth").write_text(f"import site; site.addsitedir({str(base)!r})\n")
    scene.accept("--allow-modified", "all")
    before = len(scene.runs())
    done = scene.launch(scene.train)
    assert (done.code, done.err) == (0, "") and len(scene.runs()) == before + 1
    scene.drift()
    assert scene.launch(scene.train).code == 78
    scene.lockd("gate", "remove", "site")
    assert "/nowhere/python" in scene.launch(scene.train).err  # now the other one asks


# -- no /proc


@pytest.fixture
def hidden() -> list[str]:
    """What runs a command without /proc, in a mount namespace of its own."""
    words = ["unshare", "-m", "sh", "-c", 'mount -t tmpfs tmpfs /proc && exec "$@"', "sh"]
    if os.geteuid() != 0 or subprocess.run([*words, "true"], capture_output=True).returncode:
        pytest.skip("/proc can not be hidden here")
    return words


def test_without_proc_each_launch_is_judged_by_itself(shared: Gated, hidden: list[str]) -> None:
    """Nobody can tell then what descends from what; who was admitted is no passport."""
    (shared.root / "ran").unlink(missing_ok=True)
    started = under(shared, hidden, shared.python, shared.train)
    assert (started.code, started.err, len(shared.ran)) == (0, "", 1)
    model = shared.root / "job" / "model.py"
    script = f"open({str(model)!r}, 'w').write('x = 2'); import subprocess, sys\n"
    script += f"raise SystemExit(subprocess.run([sys.executable, {str(shared.train)!r}]).returncode)\n"
    text = shared.train.read_text()
    parent = shared.file("more/step_1.py", script)
    done = under(shared, hidden, shared.python, parent)
    shared.heal()
    assert (
        done.code == 78 and "lockd: refused" in done.err and len(shared.ran) == 1 and shared.train.read_text() == text
    )


def test_without_proc_lockd_run_and_the_commands_work(shared: Gated, hidden: list[str]) -> None:
    assert under(shared, hidden, *LOCKD, "run", "--", "sh", "-c", "exit 4").code == 4
    assert under(shared, hidden, *LOCKD, "run", "--wait", "--", "sh", "-c", "exit 5").code == 5
    shared.drift()
    refused = under(shared, hidden, *LOCKD, "run", "--", "true")
    shared.heal()
    assert refused.code == 78 and "lockd: refused" in refused.err
    for words in (("verify",), ("runs",), ("status",), ("log",), ("doctor",)):
        answer = under(shared, hidden, *LOCKD, *words)
        assert answer.code == 0 and "Traceback" not in answer.err, answer
    waited, *_ = shared.runs()
    assert waited["exit"] == 5


# -- a state disk that takes nothing


@pytest.fixture(params=["full", "read-only"])
def unwritable(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[Gated, str]]:
    (tmp_path / "state").mkdir(mode=0o700)
    mounted("-t", "tmpfs", "-o", "size=2m,mode=700", "tmpfs", str(tmp_path / "state"))
    try:
        scene = gated(tmp_path)
        assert scene.launch(scene.train).code == 0
        if request.param == "full":
            fill(scene)
        else:
            subprocess.run(["mount", "-o", "remount,ro", str(scene.state)], check=True)
        yield scene, "the disk is full" if request.param == "full" else "its file system is read-only"
    finally:
        subprocess.run(["umount", "-l", str(tmp_path / "state")], check=True)


def test_the_hook_on_such_a_disk(unwritable: tuple[Gated, str]) -> None:
    """It still refuses; what it can't record is a fault, and goes by `on_fault`."""
    scene, reason = unwritable
    done = scene.launch(scene.train)
    assert (done.code, len(scene.ran)) == (0, 2) and reason in done.err and done.err.count("\n") == 1
    scene.drift()
    refused = scene.launch(scene.train)
    assert (refused.code, len(scene.ran)) == (78, 2) and "lockd: refused: 1 finding" in refused.err
    scene.heal()
    scene.policy.write_text(scene.policy.read_text().replace("[launch]", '[launch]\non_fault = "block"'))
    blocked = scene.launch(scene.train)
    assert (blocked.code, len(scene.ran)) == (125, 2) and "lockd itself failed" in blocked.err and reason in blocked.err


def test_a_launch_without_a_record_lets_its_ranks_pass(scene: Gated) -> None:
    """As while a daemon is stopped in the middle of a write: what on_fault let start is not stopped by later drift."""
    (folder,) = scene.state.iterdir()
    (folder / "store.sqlite").unlink()
    (folder / "store.sqlite").mkdir()
    rank = "import os, subprocess, sys\n"
    rank += f"open({str(scene.root / 'job' / 'model.py')!r}, 'w').write('x = 2')\n"
    rank += f"raise SystemExit(subprocess.run([sys.executable, {str(scene.train)!r}]).returncode)\n"
    done = scene.launch(scene.file("more/step_1.py", rank))
    assert done.code == 0 and len(scene.ran) == 1 and done.err.count("on_fault") == 1
    assert scene.launch(scene.train).code == 78


# -- megabytes


def _room() -> None:
    """The kernel gives a command line a quarter of the stack: 16 MiB of it."""
    resource.setrlimit(resource.RLIMIT_STACK, (64 * MIB, resource.getrlimit(resource.RLIMIT_STACK)[1]))


HUGE = ["x" * (100 << 10)] * 21  # more than 2 MiB, in words that the kernel takes


@pytest.mark.parametrize("state", ["down", "up"])
def test_two_megabytes_of_arguments_and_of_environment(shared: Gated, state: str) -> None:
    from tests.gate_matrix import daemon_is

    if resource.getrlimit(resource.RLIMIT_STACK)[1] not in (resource.RLIM_INFINITY,):
        pytest.skip("the stack can not be raised here")
    huge = {f"V{number}": "y" * (100 << 10) for number in range(21)}
    lockd = {"LOCKD_STATE": str(shared.state), "LOCKD_RUNTIME": str(shared.root / "run")}
    for env in ({}, huge):
        with daemon_is(shared, state):
            (shared.root / "ran").unlink(missing_ok=True)
            admitted = shared.launch(shared.train, *HUGE, env=env, preexec_fn=_room)
            assert (admitted.code, admitted.err, len(shared.ran)) == (0, "", 1)
            run, *_ = shared.runs()
            assert len(run["argv"][2]) <= 1 << 16
            words = ("run", "--policy", str(shared.policy), "--", str(shared.python), str(shared.train), *HUGE)
            argv = [sys.executable, "-I", "-m", "lockd", *words]
            variables = {**shared.variables(), **lockd, **env}
            shared.drift()
            for command in (argv, [str(shared.python), str(shared.train), *HUGE]):
                done = subprocess.run(command, env=variables, capture_output=True, text=True, preexec_fn=_room)
                assert done.returncode == 78 and done.stderr.startswith("lockd: refused: 1 finding"), done.stderr[:500]
            shared.heal()
    assert len(shared.ran) == 1
