"""The emitter beneath watchdog's observer: one thread that reads every kernel interface and turns events into hints.

Always holds: the writer is looked up as soon as its event was read; new folders are watched, then listed; after an
overflow everything is placed again before it is told; a path that is no longer watched is told; what can't be queued
any more becomes an overflow.
Never: looks at a file's contents, gives hints of lockd's own process, or keeps a pidfd.
"""

from __future__ import annotations

import os
import select
import sys
import threading
import time
from collections import deque
from collections.abc import Iterable
from typing import Any

from watchdog.events import FileSystemEvent
from watchdog.observers.api import EventEmitter, EventQueue, ObservedWatch

from lockd.watch.cookie import Cookies
from lockd.watch.hints import Hint, Key, Kind, Raw, WatchState, Who
from lockd.watch.mounts import MountTable, within
from lockd.watch.places import Concern, Interface, Places, is_folder
from lockd.watch.who import Asker

_UNTOLD = Who("not observed", "no process: the watching itself tells it")
_AHEAD = -15  # nice value of the reading thread alone
_TURN = 0.0005  # seconds until a thread that computes lets the reading one on; it asks /proc a few dozen times a writer
QUEUED = 100_000  # hints that may wait for the receiver; beyond, they are one overflow


class HintEvent(FileSystemEvent):
    """A hint, or a cookie, on its way through watchdog's queue."""

    def __init__(self, hint: Hint | None, cookie: str = "") -> None:
        super().__init__(hint.path if hint else cookie)
        self.hint, self.cookie = hint, cookie

    def _identity(self) -> tuple[Hint | None, str]:
        return self.hint, self.cookie

    def __eq__(self, other: object) -> bool:
        return isinstance(other, HintEvent) and self._identity() == other._identity()

    def __hash__(self) -> int:
        return hash(self._identity())


class HintEmitter(EventEmitter):
    """Owns the interfaces' reading, the places and the mount table between start and stop."""

    def __init__(
        self,
        event_queue: EventQueue,
        watch: ObservedWatch,
        *,
        timeout: float = 1.0,
        places: Places,
        interfaces: list[Interface],
        mounts: MountTable | None,
        cookies: Cookies | None,
        no_pid: str,
        **_: Any,
    ) -> None:
        super().__init__(event_queue, watch, timeout=timeout)
        self._places, self._interfaces, self._mounts = places, interfaces, mounts
        self._cookies, self._no_pid, self._asker = cookies, no_pid, Asker()
        self._cookie_keys: dict[Key, str] = {}
        self._asked: deque[str] = deque()
        self._told: dict[int, WatchState] = {}
        self._batch: dict[Hint, None] = {}
        self._flooded = self._remounted = False
        self._bell = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)

    # life: start places everything in the caller's thread, so that what start() returned from is watched

    def on_thread_start(self) -> None:
        """Watch every target, and listen."""
        self._place_cookies()
        for index in range(len(self._places.targets)):
            self._places.place(index)
        self._told = dict(self._places.states)
        self._poll = select.poll()
        for interface in self._interfaces:
            self._poll.register(interface.fd, select.POLLIN)
        self._poll.register(self._bell, select.POLLIN)
        if self._mounts:
            self._poll.register(self._mounts.fd, select.POLLPRI)

    def run(self) -> None:
        """Read until stopped, ahead of other work where that is allowed: a writer may end before it was looked at."""
        sys.setswitchinterval(_TURN)
        try:
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _AHEAD)
        except OSError:
            pass
        super().run()

    def on_thread_stop(self) -> None:
        """Wake the thread, which then ends."""
        self.ring("")

    def ring(self, word: str) -> None:
        """From any thread: "again" places anew what is polled."""
        self._asked.append(word)
        os.eventfd_write(self._bell, 1)

    def close(self) -> None:
        """Once the thread has ended: let go of every descriptor."""
        os.close(self._bell)
        for owner in (*self._interfaces, self._mounts):
            if owner:
                owner.close()

    def _place_cookies(self) -> None:
        """Watch the cookies' folder on every interface; where that fails, no sync succeeds."""
        self._cookie_keys = {}
        for interface in self._interfaces if self._cookies else ():
            key: Key = ("nowhere", interface.mode)
            try:
                os.makedirs(self._cookies.folder, mode=0o700, exist_ok=True)  # type: ignore[union-attr]
                key = interface.watch_folder(self._cookies.folder, names_only=True)  # type: ignore[union-attr]
            except OSError:
                pass
            self._cookie_keys[key] = interface.mode

    # reading

    def queue_events(self, timeout: float) -> None:
        """Wait for events and queue the hints that they give."""
        ready = self._ready(1.0 if self._flooded else timeout)
        for interface in self._interfaces:
            if interface.fd in ready:
                self._read(interface)
        self._look_up()
        self._flush()

    def _ready(self, timeout: float) -> set[int]:
        ready = {descriptor for descriptor, _ in self._poll.poll(timeout * 1000)}
        if self._mounts and self._mounts.fd in ready:
            self._remounted = True  # the kernel says it once, to whichever poll comes first
        return ready

    def _look_up(self) -> None:
        """What comes beside the events: mounts, the bell, and what was lost by now."""
        ready = self._ready(0)
        if self._mounts and self._remounted:
            self._remounted = False
            self._mounts_changed(self._mounts)
        if self._bell in ready:
            self._answer_bell()
        self._tell_losses()

    def _answer_bell(self) -> None:
        try:
            os.eventfd_read(self._bell)
        except BlockingIOError:
            pass
        while self._asked:
            if self._asked.popleft() == "again":
                self._place_cookies()
                self._place_again(index for index, state in self._places.states.items() if state.mode == "polled")

    def _read(self, interface: Interface) -> None:
        raws = list(interface.read())
        writers = self._writers(raws)
        now = time.time()
        for raw in raws:
            if raw.kind == "overflow":
                self._overflowed(f"{interface.mode} queue overflow: events were lost")
            elif raw.kind == "forgotten":
                self._places.dropped(raw.key or ())
            elif raw.key and raw.key in self._cookie_keys and raw.kind == "created":
                self._cookie(raw)
            else:
                self._take(raw, writers.get(raw.pid), now)

    def _writers(self, raws: Iterable[Raw]) -> dict[int | None, Who]:
        """Who is behind the events, asked once a process and at once: it may live for milliseconds only."""
        writers: dict[int | None, Who] = {}
        mine = os.getpid()
        for raw in raws:
            if raw.pid not in writers and raw.pid != mine:
                writers[raw.pid] = self._asker.ask(raw.pid, raw.pidfd, self._no_pid)
            if raw.pidfd >= 0:
                os.close(raw.pidfd)
        return writers

    def _cookie(self, raw: Raw) -> None:
        needed = frozenset(mode for mode in self._cookie_keys.values() if self._places.uses[mode[0]])
        mode = self._cookie_keys[raw.key]  # type: ignore[index]
        if self._cookies and self._cookies.seen(raw.name, mode, needed):
            self._look_up()
            self._flush(now_or_never=True)
            self.queue_event(HintEvent(None, raw.name))

    # events to hints

    def _take(self, raw: Raw, who: Who | None, now: float) -> None:
        """What one event means, in this order: let go of what left, place targets and their ways anew, tell, watch new
        folders. `who` None is lockd itself: its folders are watched like any other's, its changes are no news to it.
        """
        for concern in list(self._places.concerns(raw)):
            if raw.folder and raw.gone:
                self._places.lose(concern.path, below=raw.kind == "moved")
            for index in concern.at:
                self._at_target(index, raw, who, now)
            for index in concern.inside:
                if who:
                    self._tell(concern.path, raw.kind, who, raw.folder, now)  # type: ignore[arg-type]
                if self._is_new_folder(raw, concern.path):
                    self._new_folder(index, concern, who, now)

    @staticmethod
    def _is_new_folder(raw: Raw, path: str) -> bool:
        if not raw.folder or not raw.name or raw.kind not in ("created", "moved", "removed"):
            return False
        return not raw.gone or os.path.isdir(path)  # one that left may have been exchanged for another

    def _at_target(self, index: int, raw: Raw, who: Who | None, now: float) -> None:
        target, before = self._places.targets[index], self._places.real[index]
        if raw.kind in ("created", "moved", "removed"):
            self._places.place(index)
        after = self._places.real[index]
        if who is None or (before is None and after is None):
            return
        kind: Kind = raw.kind  # type: ignore[assignment]
        if after is None and raw.kind not in ("removed", "moved"):
            kind = "removed"
        self._tell(target.path, kind, who, raw.folder, now)
        if after is None and raw.folder:
            self._tell(target.path, "watch-lost", who, True, now, "it, or a folder above it, was moved or removed")

    def _new_folder(self, index: int, concern: Concern, who: Who | None, now: float) -> None:
        target = self._places.targets[index]
        if not target.deep or index in concern.at:  # the target itself was placed anew just now
            return
        for entry in self._places.walk(index, concern.path):
            if who:
                self._tell(entry.path, "created", who, is_folder(entry), now)

    # losses

    def _overflowed(self, why: str) -> None:
        self._place_again(range(len(self._places.targets)))
        for target in self._places.targets:
            self._tell(target.path, "overflow", _UNTOLD, True, time.time(), why)

    def _place_again(self, indices: Iterable[int]) -> None:
        for index in list(indices):
            self._places.place(index)

    def _mounts_changed(self, table: MountTable) -> None:
        changed = table.refresh()
        self._places.mounts = table.mounts
        for index, target in enumerate(self._places.targets):
            lies = {self._places.real[index] or target.path, target.path}
            points = sorted({mount.point for mount in changed if any(_touches(mount.point, path) for path in lies)})
            if points:
                self._places.place(index)
                detail = f"mounted or unmounted: {', '.join(points)}"
                self._tell(target.path, "mounts", _UNTOLD, True, time.time(), detail)

    def _tell_losses(self) -> None:
        """A target that came to be polled since the last time was lost."""
        for index, state in list(self._places.states.items()):
            before = self._told.get(index)
            if before != state:
                self._told[index] = state
                if state.mode == "polled":
                    self._tell(self._places.targets[index].path, "watch-lost", _UNTOLD, True, time.time(), state.why)

    # queueing

    def _tell(self, path: str, kind: Kind, who: Who, folder: bool, now: float, detail: str = "") -> None:
        # the same twice within one reading is once: what it asks for is a look, and that comes later than both
        self._batch.setdefault(Hint(path, kind, who.pid, who, folder, detail, now))

    def _flush(self, *, now_or_never: bool = False) -> None:
        """Queue what was told. While the receiver is far behind, hints are dropped, and one overflow a target told
        once it caught up.
        """
        waiting = self._event_queue.qsize()
        if self._batch and not self._flooded and waiting + len(self._batch) > QUEUED:
            self._flooded = True
        if self._flooded:
            self._batch = {}
            if waiting > QUEUED // 2 and not now_or_never:
                return
            self._flooded = False
            for target in self._places.targets:
                self._tell(
                    target.path, "overflow", _UNTOLD, True, time.time(), "more hints than the receiver could take"
                )
        batch, self._batch = self._batch, {}
        for hint in batch:
            self.queue_event(HintEvent(hint))


def _touches(point: str, path: str) -> bool:
    return within(path, point) or within(point, path)
