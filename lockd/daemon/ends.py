"""The ends of recorded runs, at the moment they come: each process of an open run is held by a pidfd.

Always holds: a descriptor is of the very process that was recorded, by its start time. A run has ended when each of its
processes has. Whoever supervises it writes its end first; this is for those that became their command. The exit code
is what the kernel tells of the last one (PIDFD_GET_INFO, since 6.15, once the parent has reaped it), else unknown.
Never: signals, waits for or reaps a process.
"""

from __future__ import annotations

import fcntl
import os
import select
import struct
import threading
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from lockd import lineage, runs
from lockd.errors import LockdError
from lockd.gates import ending
from lockd.protocol import identity

if TYPE_CHECKING:
    from lockd.daemon.scribe import Scribe
    from lockd.runs import Run
    from lockd.state import State
    from lockd.store import Store

EVERY = 0.5  # seconds between two glances at whether the store has changed
REAPED = 2.0  # seconds that the parent of an ended process has to reap it, which tells its code
MOST = 1_024  # descriptors; what is beyond is found by the rounds
_INFO = struct.Struct("=QQ11Ii")  # struct pidfd_info, its first version: mask, cgroup, 11 ids, exit code
_GET_INFO = (3 << 30) | (64 << 16) | (0xFF << 8) | 11  # _IOWR(PIDFS_IOCTL_MAGIC, 11, struct pidfd_info)
_EXIT = 1 << 3

Key = tuple[int, int]  # pid and start time


class Ends(threading.Thread):
    """Watches from start to stop."""

    def __init__(self, state: State | None, scribe: Scribe, say: Callable[..., None]) -> None:
        super().__init__(name="ends", daemon=True)
        self._state, self._scribe, self._say = state, scribe, say
        self._end = threading.Event()
        self._poll = select.poll()
        self._held: dict[Key, int] = {}
        self._ended: dict[Key, float] = {}  # by the monotonic clock; not yet reaped
        self._codes: dict[Key, int | None] = {}
        self._open: dict[int, tuple[Key, ...]] = {}
        self._store: Any = ()

    def stop(self) -> None:
        """End."""
        self._end.set()

    def run(self) -> None:
        """Watch, until stopped."""
        while not self._end.is_set():
            try:
                self.turn()
            except (LockdError, OSError, ValueError) as error:  # tried again: the store may be locked or gone
                self._say("history_unreadable", error=f"{type(error).__name__}: {error}")
                self._end.wait(10 * EVERY)
        for descriptor in self._held.values():
            os.close(descriptor)

    def turn(self) -> None:
        """Wait a moment for ends, and take up runs that began."""
        if self._held:
            self._hear(self._poll.poll(EVERY * 1000))
        else:
            self._end.wait(EVERY)
        self._finish()
        if self._moved():
            self._take_up()

    def _moved(self) -> bool:
        path = "" if self._state is None else self._state.store_path
        now = (identity(path), identity(f"{path}-wal")) if path else ()
        before, self._store = self._store, now
        return bool(now != before)

    def _take_up(self) -> None:
        store = None if self._state is None else self._state.store()
        if store is None:
            return
        try:
            with store:
                found = runs.running_or_lost(store)
        except LockdError:
            self._store = ()
            raise
        self._open = {run.number: keys for run in found if (keys := _keys(run))}
        wanted = {key for keys in self._open.values() for key in keys}
        for key in wanted - self._held.keys() - self._codes.keys():
            self._hold(key)
        for key in (self._held.keys() | self._codes.keys()) - wanted:
            self._let_go(key)
            self._codes.pop(key, None)

    def _hold(self, key: Key) -> None:
        if len(self._held) >= MOST:
            return
        try:
            descriptor = os.pidfd_open(key[0])
        except OSError:  # gone, or a kernel without it: the rounds find its end
            return
        found = lineage.row(key[0])
        if found is None or found.start != key[1]:
            os.close(descriptor)
            return
        self._held[key] = descriptor
        self._poll.register(descriptor, select.POLLIN)

    def _let_go(self, key: Key) -> None:
        descriptor = self._held.pop(key, None)
        self._ended.pop(key, None)
        if descriptor is not None:
            self._poll.unregister(descriptor)
            os.close(descriptor)

    def _hear(self, heard: list[tuple[int, int]]) -> None:
        by_descriptor = {descriptor: key for key, descriptor in self._held.items()}
        now = time.monotonic()
        for descriptor, _ in heard:
            self._ended.setdefault(by_descriptor[descriptor], now)
            self._poll.modify(descriptor, 0)  # from now on its being reaped counts alone
        for key, at in list(self._ended.items()):
            told = _exit_code(self._held[key])
            if told is not None or now - at >= REAPED:
                self._let_go(key)
                self._codes[key] = told

    def _finish(self) -> None:
        for number, keys in list(self._open.items()):
            if all(key in self._codes for key in keys):
                del self._open[number]
                self._scribe.do(self._ending(number, self._codes[keys[-1]]))

    def _ending(self, number: int, code: int | None) -> Callable[[Store], None]:
        def end(store: Store) -> None:
            run = runs.get(store, number)
            if self._state is None or run is None or runs.living(run) is not False:
                return  # a process may have joined it meanwhile
            ending.collect(self._state, store, number)
            runs.finish(store, number, code)

        return end


def _keys(run: Run) -> tuple[Key, ...]:
    """Its processes, where each one can be told from another that got its number."""
    boot, known = lineage.boot(), run.body.get("processes", ())
    keys = tuple((int(one["pid"]), int(one["start"])) for one in known if _is_whole(one, boot))
    return keys if len(keys) == len(known) else ()


def _is_whole(one: Mapping[str, Any], boot: str | None) -> bool:
    return one.get("start") is not None and one.get("boot") == boot


def _exit_code(descriptor: int) -> int | None:
    """The code as a shell tells it, 128 + n where signal n ended it. None: the kernel does not tell (yet)."""
    buffer = bytearray(_INFO.pack(_EXIT, *[0] * 13))
    try:
        fcntl.ioctl(descriptor, _GET_INFO, buffer)
    except OSError:
        return None
    mask, *_, status = _INFO.unpack(buffer)
    if not mask & _EXIT:
        return None
    code = os.waitstatus_to_exitcode(status)
    return 128 - code if code < 0 else code
