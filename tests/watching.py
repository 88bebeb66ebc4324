"""Means of the watching tests: a collector of hints, and a watcher in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from lockd.watch.fanotify import Fanotify
from lockd.watch.hints import Hint
from lockd.watch.watcher import Watcher

REPOSITORY = str(Path(__file__).resolve().parent.parent)


class Collector:
    """Receives hints, and says what it got."""

    def __init__(self) -> None:
        self.hints: list[Hint] = []

    def __call__(self, hint: Hint) -> None:
        self.hints.append(hint)

    def kinds(self, path: str | Path) -> set[str]:
        return {hint.kind for hint in self.hints if hint.path == str(path)}

    def about(self, path: str | Path) -> list[Hint]:
        return [hint for hint in self.hints if hint.path == str(path)]


def fanotify_permitted() -> bool:
    try:
        Fanotify().close()
    except OSError:
        return False
    return True


needs_fanotify = pytest.mark.skipif(not fanotify_permitted(), reason="fanotify with pidfd is not permitted here")


def user_namespace_permitted() -> bool:
    try:
        return subprocess.run(["unshare", "-Ur", "true"], capture_output=True).returncode == 0
    except FileNotFoundError:
        return False


needs_user_namespace = pytest.mark.skipif(not user_namespace_permitted(), reason="no unprivileged user namespaces here")


def outside(command: str, **env: str) -> None:
    """Run a shell command in another process: a watcher has no hints of its own process's deeds."""
    subprocess.run(["sh", "-c", command], check=True, env={**os.environ, **env})


def eventually(true: Callable[[], bool], watcher: Watcher | None = None, seconds: float = 20.0) -> bool:
    """Wait for something that no cookie can prove, such as a mount's hint."""
    end = time.monotonic() + seconds
    while not true():
        if time.monotonic() > end:
            return False
        time.sleep(0.02)
    return True


class Remote:
    """A watcher in a child process, for other privileges or to be stopped and continued. Lines in, JSON lines out."""

    def __init__(
        self,
        paths: Sequence[str],
        cookies: str,
        *,
        prefix: Sequence[str] = (),
        use: str = "best",
        python: str = sys.executable,
    ) -> None:
        argv = [*prefix, python, "-m", "tests.watch_child", use, cookies, *paths]
        self.process = subprocess.Popen(argv, cwd=REPOSITORY, stdin=-1, stdout=-1, text=True)
        self.ready = self._line()

    def _line(self) -> Any:
        assert self.process.stdout
        return json.loads(self.process.stdout.readline())

    def ask(self, word: str) -> Any:
        """`sync`: hints since the last, with the answer; `state`; `retry`."""
        assert self.process.stdin
        self.process.stdin.write(word + "\n")
        self.process.stdin.flush()
        return self._line()

    def close(self) -> None:
        assert self.process.stdin and self.process.stdout
        self.process.stdin.close()
        self.process.stdout.close()
        self.process.wait(timeout=20)

    def __enter__(self) -> Remote:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
