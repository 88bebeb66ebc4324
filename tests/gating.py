"""A training environment under tmp_path with lockd's site hook in it, and launches as a person would start them."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
import venv
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from lockd import protocol
from lockd.gates import site
from tests.scene import Answer, Scene

TRAIN = """import os, sys
with open(os.environ["RAN"], "a", errors="surrogateescape") as file:
    file.write(" ".join(sys.argv[1:]) + "\\n")
"""


@cache
def finds_lockd() -> bool:
    """Does this Python find lockd as a hook starts it?"""
    return not subprocess.run([sys.executable, "-I", "-c", "import lockd.gates.ask"], capture_output=True).returncode


@dataclass
class Gated(Scene):
    """job/train.py is a launch; job/model.py is pinned, so that `drift` blocks it."""

    @property
    def python(self) -> Path:
        return self.root / "venv" / "bin" / "python"

    @property
    def site_packages(self) -> Path:
        return next(self.root.glob("venv/lib/python*/site-packages"))

    @property
    def train(self) -> Path:
        return self.root / "job" / "train.py"

    @property
    def hook(self) -> Path:
        return self.site_packages / "lockd_gate.py"

    @property
    def ran(self) -> list[str]:
        """One line for each time that the script ran."""
        path = self.root / "ran"
        return path.read_text().splitlines() if path.exists() else []

    def variables(self) -> dict[str, str]:
        return {"PATH": os.environ["PATH"], "HOME": str(self.root / "home"), "RAN": str(self.root / "ran")}

    def launch(
        self, *words: str | Path, cwd: Path | None = None, env: Mapping[str, str] | None = None, **how: Any
    ) -> Answer:
        """Run the environment's Python with these words, with a person's variables: none of lockd's."""
        argv = [str(self.python), *map(str, words)]
        how.setdefault("stdin", subprocess.DEVNULL)
        variables = {**self.variables(), **(env or {})}
        done = subprocess.run(argv, env=variables, cwd=cwd or self.root, capture_output=True, timeout=60, **how)
        return Answer(done.returncode, done.stdout.decode(), done.stderr.decode())

    def drift(self) -> None:
        self.file("job/model.py", "x = 2\n")

    def heal(self) -> None:
        self.file("job/model.py")

    def runs(self) -> list[dict[str, Any]]:
        document = self.lockd("runs", "--json").document
        assert isinstance(document, list)
        return document

    def install(self, *args: str) -> Answer:
        answer = self.lockd("gate", "install", "site", "--env", "train", *args)
        assert answer.code == 0, answer.err
        return answer

    def fill(self, **words: Any) -> None:
        """Write the hook anew with other words in it, as an install under other circumstances would have."""
        where = site.Place("train", str(self.root / "venv"), str(self.site_packages))
        content = site.content_of(where)
        assert content is not None
        policies = [{**one, **words.pop("policy", {})} for one in content["policies"]]
        site.put(where, site.render({**content, "policies": policies, **words}))


def gated(root: Path, head: str = "", launch: str = "") -> Gated:
    """A scene, accepted, with the hook put in."""
    if not finds_lockd():
        pytest.skip("lockd is not installed for this Python, so a hook could not start it")
    scene = Gated(root)
    venv.EnvBuilder(symlinks=True).create(root / "venv")
    scene.file("job/train.py", TRAIN)
    scene.heal()
    write_policy(scene, head, launch)
    assert scene.accept().code == 0
    scene.install()
    return scene


def write_policy(scene: Gated, head: str = "", launch: str = "") -> None:
    text = f"""{head}
[launch]
scripts = ["{scene.train}", "{scene.root}/more/**/step_[0-9].py"]
modules = ["pkg.train"]
{launch}
[[python]]
name = "train"
path = "{scene.root}/venv"
[[file]]
path = "{scene.root}/job/model.py"
"""
    scene.write_policy(text)


class Daemon:
    """One that speaks the protocol. replies: what it sends to a request, None: nothing, and the connection stays."""

    def __init__(self, scene: Scene, replies: list[bytes] | None, close: bool = True) -> None:
        folder = Path(protocol.folder(str(scene.root / "run"), str(scene.policy)))
        folder.mkdir(parents=True, exist_ok=True)
        self.path, self.replies, self.close = folder / "socket", replies, close
        self.requests: list[dict[str, Any]] = []
        self.kept: list[socket.socket] = []
        self.server = socket.socket(socket.AF_UNIX)
        with protocol.Address(str(self.path)) as name:
            self.server.bind(name)
        self.server.listen()
        self.thread = threading.Thread(target=self.serve, daemon=True)

    def serve(self) -> None:
        while True:
            try:
                client, _ = self.server.accept()
            except OSError:
                return
            self.kept.append(client)
            if self.replies is not None:
                buffer = bytearray()
                while not (frames := list(protocol.frames(buffer, protocol.LIMIT))):
                    data = client.recv(1 << 16)
                    if not data:
                        break
                    buffer += data
                self.requests += frames
                client.sendall(b"".join(self.replies))
                if self.close:
                    client.close()


@contextmanager
def daemon(scene: Scene, replies: list[bytes] | None, close: bool = True) -> Iterator[Daemon]:
    one = Daemon(scene, replies, close)
    one.thread.start()
    try:
        yield one
    finally:
        one.server.shutdown(socket.SHUT_RDWR)
        one.server.close()
        one.path.unlink()
        one.thread.join(5)
