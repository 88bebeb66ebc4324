"""Cookies: the proof that every event up to now was read.

Always holds: a cookie is a file of lockd's own in a watched folder, made after the question; its event comes through
the same queues as all others, so that whoever waited for it has been given every earlier hint. What was lost in an
overflow is asked again.
Never: touches a folder that is not lockd's, or leaves a file behind.
"""

from __future__ import annotations

import itertools
import os
import threading
import time

_AGAIN = 0.5  # seconds after which a cookie is taken to be lost in an overflow, and another one written
_PREFIX = "cookie-"


class Cookies:
    """The cookies that are waited for. `bake` and `wait` for askers, `seen` for the reader, `delivered` for the
    dispatcher.
    """

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self._numbers = itertools.count(1)
        self._waiting: dict[str, threading.Event] = {}
        self._seen: dict[str, set[str]] = {}
        self._lock = threading.Lock()

    def sync(self, timeout: float) -> bool:
        """True once every event up to this call was given to the hint receiver, False after `timeout` seconds."""
        deadline = time.monotonic() + timeout
        while (left := deadline - time.monotonic()) > 0:
            name, arrived = self._bake()
            if name is None:
                return False
            try:
                if arrived.wait(min(left, _AGAIN)):
                    return True
            finally:
                with self._lock:
                    self._waiting.pop(name, None)
                    self._seen.pop(name, None)
        return False

    def _bake(self) -> tuple[str | None, threading.Event]:
        arrived = threading.Event()
        with self._lock:
            name = f"{_PREFIX}{os.getpid()}-{next(self._numbers)}"
            self._waiting[name] = arrived
        path = os.path.join(self.folder, name)
        try:
            os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600))
            os.unlink(path)
        except OSError:  # a full or vanished folder proves nothing
            with self._lock:
                del self._waiting[name]
            return None, arrived
        return name, arrived

    def seen(self, name: str, mode: str, needed: frozenset[str]) -> bool:
        """The reader met a cookie on one interface. True: it was met on all that are needed, deliver it now."""
        with self._lock:
            if name not in self._waiting:
                return False
            met = self._seen.setdefault(name, set())
            met.add(mode)
            return met >= needed

    def delivered(self, name: str) -> None:
        """Everything before it was given to the receiver."""
        with self._lock:
            arrived = self._waiting.get(name)
        if arrived:
            arrived.set()
