"""The slow full read: every byte whose digest is taken on trust, again and again, at idle priority and a bounded rate.

Always holds: a file is judged only if its row was the same before and after reading; bytes that differ under the
same row are handed to the Disk and looked at as a change. It goes on where it stopped, over restarts. When it is due
and how old it is go by the clock that nobody sets, wherever the wall clock was set to meanwhile.
Never: holds up a look for longer than one folder's names take, or reads faster than RATE.
"""

from __future__ import annotations

import ctypes
import json
import os
import platform
import threading
import time
from collections.abc import Callable
from hashlib import sha256
from typing import TYPE_CHECKING, Any

from lockd import atomic
from lockd.clock import since_boot, stamp

if TYPE_CHECKING:
    from lockd.daemon.decide import Decider
    from lockd.state import State

RATE = 20 << 20  # bytes a second
EVERY = 24 * 3600.0  # seconds from the end of one pass to the next
_CHUNK = 1 << 20
_KEEP = 30.0  # seconds between two writings of the place
_IOPRIO_SET = {"x86_64": 251, "aarch64": 30}
_IDLE = 3 << 13  # IOPRIO_PRIO_VALUE(IOPRIO_CLASS_IDLE, 0)


class Reader(threading.Thread):
    """Reads from start to stop."""

    def __init__(
        self, decider: Decider, state: State | None, say: Callable[..., None], rate: int = RATE, every: float = EVERY
    ) -> None:
        super().__init__(name="reader", daemon=True)
        self._decider, self._state, self._say = decider, state, say
        self._rate, self._every = rate, every
        self._end = threading.Event()
        self._kept_at = 0.0
        self._done_at: float | None = None  # when the last pass ended, by the time since the boot
        self.place: dict[str, Any] = {"after": "", "began": 0.0, "done": 0.0, "bytes": 0, "files": 0, "differ": 0}

    def told(self) -> dict[str, Any]:
        """For status: when the last pass ended, and how far this one is."""
        place = self.place
        done, done_at = float(place["done"]), self._done_at
        return {
            "done": stamp(done) if done else None,
            "age_s": None if done_at is None else round(since_boot() - done_at),
            "reading": bool(place["began"]),
            "files": place["files"],
            "bytes": place["bytes"],
            "differ": place["differ"],
        }

    def stop(self) -> None:
        """End soon."""
        self._end.set()

    def run(self) -> None:
        """Pass after pass, until stopped."""
        _be_idle()
        self._recall()
        while not self._end.wait(self._pause()):
            if not self._decider.ready.is_set() or self._left() > 0:
                continue
            try:
                self.one_pass()
            except Exception as error:  # the boundary: reading is tried again, and its age grows
                self._say("look_failed", error=f"the full read stopped: {type(error).__name__}: {error}")
                self._end.wait(60.0)

    def _pause(self) -> float:
        """Seconds until it is worth another thought: an idle daemon sleeps."""
        left = self._left()
        return 1.0 if left < 60 or not self._decider.ready.is_set() else min(left, 600.0)

    def _left(self) -> float:
        """Seconds until the next pass is due."""
        return 0.0 if self._done_at is None else self._done_at + self._every - since_boot()

    def one_pass(self) -> None:
        """Read on from the kept place to the end."""
        if not self.place["began"]:
            self.place |= {"began": time.time(), "bytes": 0, "files": 0, "differ": 0}
        for folder in self._decider.eyes.folders(str(self.place["after"])):
            for known in self._decider.eyes.hashed_in(folder):
                if not self._one(*known):
                    return
            self.place["after"] = folder
            self._keep(_KEEP)
        self._say("full_read", files=self.place["files"], bytes=self.place["bytes"], differ=self.place["differ"])
        self.place |= {"after": "", "began": 0.0, "done": time.time()}
        self._done_at = since_boot()
        self._keep(0)
        self._mark()

    def _one(self, path: str, is_same: Callable[[os.stat_result], bool], digest: bytes) -> bool:
        """Read one file. False: stopped meanwhile."""
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError:
            return True  # gone or closed to us since: a look says so
        try:
            if not is_same(os.fstat(descriptor)):
                return True
            found = self._digest(descriptor)
            if found is None:
                return False
            same = is_same(os.fstat(descriptor))
        finally:
            os.close(descriptor)
        self.place["files"] += 1
        if same and found != digest:
            self.place["differ"] += 1
            self._say("bytes_differ", path=path)
            self._decider.eyes.disprove(path, found)
            self._decider.doubt()
        return True

    def _digest(self, descriptor: int) -> bytes | None:
        digest = sha256()
        while data := os.read(descriptor, _CHUNK):
            digest.update(data)
            self.place["bytes"] += len(data)
            if self._end.wait(len(data) / self._rate):
                return None
        return digest.digest()

    # -- the place, over restarts

    def _path(self) -> str | None:
        return None if self._state is None else os.path.join(self._state.folder, "full-read.json")

    def _recall(self) -> None:
        try:
            with open(self._path() or "", encoding="utf-8") as file:
                kept = json.load(file)
            self.place |= {name: type(value)(kept[name]) for name, value in self.place.items()}
        except (OSError, ValueError, KeyError, TypeError):
            pass  # from the beginning
        if self.place["done"] > time.time():  # the clock was put back
            self.place["done"] = 0.0
        done = float(self.place["done"])
        self._done_at = since_boot() - (time.time() - done) if done else None

    def _keep(self, every: float) -> None:
        path = self._path()
        if path is None or time.monotonic() - self._kept_at < every:
            return
        self._kept_at = time.monotonic()
        try:
            atomic.write_scratch(path, json.dumps(self.place).encode())
        except OSError:
            pass  # costs the next daemon some reading

    def _mark(self) -> None:
        """Where doctor looks for the time of the last full look."""
        if self._state is not None:
            from lockd.doctor import FULL_LOOK

            try:
                atomic.write_scratch(os.path.join(self._state.folder, FULL_LOOK), b"")
            except OSError:
                pass


def _be_idle() -> None:
    """This thread alone: idle I/O, lowest CPU."""
    try:
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 19)
    except OSError:
        pass
    number = _IOPRIO_SET.get(platform.machine())
    if number is not None:
        ctypes.CDLL(None, use_errno=True).syscall(number, 1, 0, _IDLE)
