"""A real `lockd daemon` as a process on a scene, and what its socket says; the fixtures `scene` and `daemon`."""

from __future__ import annotations

import json
import os
import signal
import socket as sockets
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

import pytest

from lockd import protocol
from tests.scene import LOCKD, Scene, pinned_file

GOOD = "x = 1\n"  # what `scene` accepts
PATIENCE = 30.0  # seconds that a busy machine may take


def until(true: Callable[[], Any], what: str, seconds: float = PATIENCE) -> Any:
    """Wait until something holds; gives it."""
    end = time.monotonic() + seconds
    while not (found := true()):
        assert time.monotonic() < end, f"waited in vain for {what}"
        time.sleep(0.01)
    return found


@dataclass
class Daemon:
    """One daemon; `with` ends it."""

    scene: Scene
    options: tuple[str, ...] = ()
    prefix: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    process: subprocess.Popen[bytes] = field(init=False)

    def __post_init__(self) -> None:
        words = {
            "PATH": os.environ["PATH"],
            "HOME": str(self.scene.root / "home"),
            "LOCKD_STATE": str(self.scene.state),
            "LOCKD_RUNTIME": str(self.scene.root / "run"),
            "LOCKD_POLICY": str(self.scene.policy),
            **self.scene.environ,
            **self.env,
        }
        self.log_path = self.scene.root / "daemon.log"
        with open(self.log_path, "ab") as log:
            self.process = subprocess.Popen(
                [*self.prefix, *self.command(), "daemon", *self.options],
                env=words,
                cwd=self.scene.root,
                stdin=-3,
                stderr=log,
            )

    def command(self) -> Sequence[str]:
        """How lockd is started."""
        return LOCKD

    @property
    def place(self) -> Path:
        return Path(protocol.folder(str(self.scene.root / "run"), str(self.scene.policy)))

    @property
    def socket(self) -> Path:
        return self.place / "socket"

    def ready(self) -> Daemon:
        """Wait until it answers what stands."""

        def answers() -> bool:
            assert self.process.poll() is None, self.log_path.read_text()
            try:
                return self.standing()["age_s"] is not None
            except (FileNotFoundError, ConnectionRefusedError):
                return False

        until(answers, "the daemon to be ready")
        return self

    def log(self, event: str) -> list[dict[str, Any]]:
        """The log's lines of one event."""
        lines = [json.loads(line) for line in self.log_path.read_text().splitlines() if line.startswith("{")]
        return [line for line in lines if line["event"] == event]

    def connect(self) -> sockets.socket:
        connection = sockets.socket(sockets.AF_UNIX)
        connection.settimeout(PATIENCE)
        with protocol.Address(str(self.socket)) as name:
            connection.connect(name)
        return connection

    def ask(self, **request: Any) -> dict[str, Any]:
        """The last frame of the answer to one request."""
        with self.connect() as connection:
            connection.sendall(protocol.encode(request))
            return self.hear(connection)

    @staticmethod
    def hear(connection: sockets.socket) -> dict[str, Any]:
        buffer = bytearray()
        while data := connection.recv(65536):
            buffer += data
            for message in protocol.frames(buffer, protocol.ANSWER_LIMIT):
                if "looking" not in message:
                    return message
        return {}

    def standing(self) -> dict[str, Any]:
        return dict(self.ask(ask="standing").get("answer", {"age_s": None}))

    def status(self) -> dict[str, Any]:
        return dict(self.ask(ask="status")["answer"])

    def wait_for(self, verdict: str) -> None:
        until(lambda: self.standing()["verdict"] == verdict, f"the verdict {verdict}")

    def stop(self, how: int = signal.SIGTERM) -> int:
        if self.process.poll() is None:
            self.process.send_signal(how)
        return self.process.wait(timeout=PATIENCE)

    def __enter__(self) -> Daemon:
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(timeout=PATIENCE)


@pytest.fixture
def scene(tmp_path: Path) -> tuple[Scene, Path]:
    """A scene with one pinned file, accepted."""
    made, path = pinned_file(tmp_path)
    assert made.accept().code == 0
    return made, path


@pytest.fixture
def daemon(scene: tuple[Scene, Path]) -> Iterator[Daemon]:
    """A daemon on it that answers."""
    with Daemon(scene[0]) as running:
        yield running.ready()


def edit(path: Path, text: str) -> None:
    """Another process writes the file: one that lives long enough to be seen."""
    code = "import sys, time; open(sys.argv[1], 'w').write(sys.argv[2]); time.sleep(0.05)"
    subprocess.run([sys.executable, "-S", "-c", code, str(path), text], check=True)
