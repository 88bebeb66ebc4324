"""Break-glass through the daemon: a member of the override group, without rights on root's state; nobody else."""

from __future__ import annotations

import grp
import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.daemons import Daemon, until
from tests.scene import LOCKD, Answer, Scene, pinned_file

MEMBER, STRANGER = 1, 3  # groups: the policy's, and another one


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[tuple[Scene, Path, Daemon]]:
    """Root's policy for a group, a daemon, and two files that drifted."""
    if os.geteuid() != 0 or shutil.which("setpriv") is None:
        pytest.skip("needs root and setpriv, to become somebody else")
    made, path = pinned_file(tmp_path)
    other = made.file("job/other.py")
    rules = f'[[file]]\npath = "{path}"\n[[file]]\npath = "{other}"\n'
    made.write_policy(f'[launch]\noverride_group = "{grp.getgrgid(MEMBER).gr_name}"\n{rules}')
    assert made.accept().code == 0
    with Daemon(made) as daemon:
        daemon.ready()
        path.write_text("x = 2\n")
        other.write_text("x = 2\n")
        daemon.wait_for("block")
        yield made, path, daemon


def as_user(scene: Scene, group: int, *words: str) -> Answer:
    """lockd as `nobody` in a group; the scene lies in a closed folder, so it may at least read."""
    who = ["setpriv", "--reuid=65534", f"--regid={group}", "--clear-groups"]
    who += ["--inh-caps=+dac_read_search", "--ambient-caps=+dac_read_search", "--"]
    env = {"PATH": os.environ["PATH"], "LOCKD_RUNTIME": str(scene.root / "run"), "HOME": "/nonexistent"}
    argv = [*who, *LOCKD, "--policy", str(scene.policy), *words]
    done = subprocess.run(argv, env=env, cwd="/", capture_output=True, text=True, timeout=60)
    return Answer(done.returncode, done.stdout, done.stderr)


def events(scene: Scene) -> list[dict[str, Any]]:
    document = scene.lockd("log", "--json", "--kind", "override").document
    assert isinstance(document, list)
    return document


def test_a_member_gives_tells_and_ends_it_in_root_s_state(scene: tuple[Scene, Path, Daemon]) -> None:
    made, path, _ = scene
    assert as_user(made, MEMBER, "override", "--list").out == "no override stands\n"
    given = as_user(made, MEMBER, "override", "--for", "2h", "rebuilding")
    assert given.code == 0 and "by nobody: rebuilding" in given.out and f"file:{path}" in given.out, given
    for answer in (made.verify(), as_user(made, MEMBER, "verify", "--json")):  # for root and for everybody
        assert (answer.code, answer.document["verdict"]) == (0, "block")
        assert answer.document["override"]["why"] == "rebuilding"
    assert "rebuilding" in made.lockd("status").out
    assert made.lockd("run", "--", "true").code == 0
    assert events(made)[0]["by"]["user"] == "nobody"
    listed = json.loads(as_user(made, MEMBER, "override", "--list", "--json").out)
    assert listed["override"]["why"] == "rebuilding"
    assert as_user(made, MEMBER, "override", "--end").out == "the override has ended\n"
    assert made.verify().code == 1 and as_user(made, MEMBER, "override", "--end").out == "there was no override\n"


def test_for_one_finding_the_rest_still_blocks(scene: tuple[Scene, Path, Daemon]) -> None:
    made, path, _ = scene
    given = as_user(made, MEMBER, "override", "--for", "2h", "only this", "--only", "model.py", "--json")
    assert given.code == 0 and json.loads(given.out)["override"]["facts"] == [f"file:{path}"], given
    assert made.verify().code == 1 and made.lockd("run", "--", "true").code == 78
    made.file("job/other.py")
    until(lambda: made.verify().code == 0, "what else blocked to be healed")


def test_it_ends_with_a_change_of_the_drift(scene: tuple[Scene, Path, Daemon]) -> None:
    made, path, daemon = scene
    assert as_user(made, MEMBER, "override", "--for", "2h", "why").code == 0
    path.write_text("x = 3\n")
    until(lambda: made.verify().code == 1, "the override to end")
    path.write_text("x = 2\n")
    daemon.wait_for("block")
    assert made.verify().code == 1
    daemon.stop()
    assert made.verify().code == 1  # whoever records next says so, where the daemon's round has not
    assert "ended, the drift" in events(made)[0]["message"]


def test_a_stranger_may_not(scene: tuple[Scene, Path, Daemon]) -> None:
    made, _, _ = scene
    for words in (("override", "--for", "2h", "please"), ("override", "--end")):
        answer = as_user(made, STRANGER, *words)
        assert answer.code == 1 and "may not override" in answer.err, answer
    assert made.verify().code == 1 and events(made) == []


def test_who_speaks_to_the_socket_is_told_by_the_kernel(scene: tuple[Scene, Path, Daemon]) -> None:
    """Whatever a request says of itself: the peer's user and group decide."""
    from lockd.daemon.overriding import Overriding
    from lockd.daemon.server import Peer

    made, _, daemon = scene
    request: dict[str, Any] = {
        "launch": {"environ": {"USER": "root", "SUDO_USER": "root"}, "cwd": "/", "argv": []},
        "only": [],
    }
    request |= {"ask": "override", "deed": "give", "why": "I am root", "seconds": 60}
    assert "client's" in str(daemon.ask(**request)["error"])  # of no version, of no policy
    decider = _Decider(made)
    told: list[Any] = []
    Overriding(decider, lambda: True).ask(Peer(os.getpid(), 4242, STRANGER), request, told.append)  # type: ignore[arg-type]
    until(lambda: told, "an answer")
    assert told[0]["problem"] == "refused" and events(made) == []


class _Decider:
    """The deciding thread's look, at once."""

    def __init__(self, scene: Scene) -> None:
        from lockd.state import State, folder_name

        self.scene, self.subject = scene, self
        self.state = State(str(scene.state / folder_name(str(scene.policy))))

    def ask(self, question: Any) -> None:
        from lockd import check, lock, policy

        loaded = policy.load(str(self.scene.policy))
        known = lock.read(loaded.lock_path)
        question.answer(check.check(loaded, state=self.state, lock=known, launch=question.launch), None)


def test_wrong_words_are_wrong_usage(scene: tuple[Scene, Path, Daemon]) -> None:
    made, path, daemon = scene
    assert as_user(made, MEMBER, "override", "--for", "60d", "why").code == 2
    assert as_user(made, MEMBER, "override", "--for", "2h", "why", "--only", "nothing.py").code == 2
    path.write_text("x = 1\n")
    made.file("job/other.py")
    daemon.wait_for("ok")
    assert as_user(made, MEMBER, "override", "--for", "2h", "why").code == 2
