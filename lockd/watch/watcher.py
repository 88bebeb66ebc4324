"""The daemon's door to watching: give it targets, get hints, ask how well each is watched, prove that all was read.

    with Watcher([Target("/root/venv"), "/root/train.py"], on_hint=take, cookie_folder="/run/lockd/ct200/cookies") as
    watcher: watcher.sync(1.0)       # True: every event up to this call was given to `take` watcher.state()         #
    {"/root/venv": WatchState("fanotify", ""), …}

Always holds: once `start` returned, what `state` does not call `polled` is watched; hints come one at a time, in the
order of the events, in one thread of the watcher's own; nothing is lost in silence (hints of kind overflow, mounts,
unmounted, watch-lost); `stop` lets go of every thread and descriptor.
Never: looks at a file, asks for a permission event, or sets a timer: looking at what is `polled` is the caller's.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from types import TracebackType
from typing import Literal, cast

from watchdog.events import FileSystemEvent, FileSystemEventHandler
from watchdog.observers.api import BaseObserver, EventEmitter

from lockd.globs import literal_root
from lockd.watch import fanotify, inotify
from lockd.watch.cookie import Cookies
from lockd.watch.emitter import HintEmitter, HintEvent
from lockd.watch.fanotify import Fanotify
from lockd.watch.hints import Hint, Target, WatchState
from lockd.watch.inotify import Inotify
from lockd.watch.mounts import MountTable
from lockd.watch.places import Interface, Places

_QUIET = 60.0  # seconds between two turns of the reader while nothing happens; stop and retry wake it


class Watcher:
    """Watches from `start` to `stop`. Not restartable: make another one for other targets."""

    def __init__(
        self,
        targets: Iterable[str | Target],
        *,
        on_hint: Callable[[Hint], None],
        cookie_folder: str | None = None,
        use: Literal["best", "inotify"] = "best",
    ) -> None:
        """`on_hint` should be quick and must not raise. `cookie_folder`: one of lockd's own, made if need be; without
        it no sync.

        A string that holds a glob stands for the folder above the glob. Raises ValueError for a path that isn't
        absolute.
        """
        self.targets = tuple(
            dict.fromkeys(target if isinstance(target, Target) else as_target(target) for target in targets)
        )
        relative = [target.path for target in self.targets if not target.path.startswith("/")]
        if relative:
            raise ValueError(f"not absolute: {', '.join(relative)}")
        self._on_hint, self._use = on_hint, use
        self._cookies = Cookies(cookie_folder) if cookie_folder else None
        self._emitter: HintEmitter | None = None
        self._observer: BaseObserver | None = None
        self._places: Places | None = None

    def start(self) -> None:
        """Watch everything; returns when it is."""
        interfaces, why, no_pid = open_interfaces(self._use)
        mounts = _mount_table()
        self._places = Places(self.targets, interfaces, why, mounts.mounts if mounts else ())
        emitter = partial(
            HintEmitter, places=self._places, interfaces=interfaces, mounts=mounts, cookies=self._cookies, no_pid=no_pid
        )
        self._observer = BaseObserver(cast("type[EventEmitter]", emitter), timeout=_QUIET)
        self._observer.schedule(_Receiver(self._on_hint, self._cookies), "/", recursive=True)
        (self._emitter,) = cast("set[HintEmitter]", self._observer.emitters)
        try:
            self._observer.start()
        except BaseException:
            self._emitter.close()
            raise

    def stop(self) -> None:
        """End the threads and let go of every descriptor. Waiting syncs give False."""
        if self._observer is None or self._emitter is None:
            return
        self._observer.stop()
        for thread in (self._emitter, self._observer):
            if thread is not threading.current_thread() and thread.ident is not None:
                thread.join()
        self._emitter.close()
        self._observer = self._emitter = None

    def sync(self, timeout: float) -> bool:
        """True: every event up to this call was given to `on_hint`. False: not within `timeout` seconds, or it
        can't be proved here.
        """
        return self.alive and self._cookies is not None and self._cookies.sync(timeout)

    @property
    def alive(self) -> bool:
        """Do both threads run? False before start, after stop, and when one of them died of an error."""
        threads = (self._emitter, self._observer)
        return all(thread is not None and thread.is_alive() for thread in threads)

    def state(self) -> Mapping[str, WatchState]:
        """How each target is watched, by its path; of two targets of one path, the worse."""
        states: dict[str, WatchState] = {}
        for index, target in enumerate(self.targets):
            state = WatchState("polled", "not watched: the watcher does not run")
            if self.alive and self._places:
                state = self._places.states.get(index, WatchState("polled", "being placed"))
            if target.path not in states or state.mode == "polled":
                states[target.path] = state
        return states

    def retry(self) -> None:
        """Try again to watch what is polled: a limit may have been raised. Takes effect before the next sync
        returns.
        """
        if self._emitter:
            self._emitter.ring("again")

    def __enter__(self) -> Watcher:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


class _Receiver(FileSystemEventHandler):
    """The last step of watchdog's way: hints to the receiver, cookies to whoever waits."""

    def __init__(self, on_hint: Callable[[Hint], None], cookies: Cookies | None) -> None:
        self._on_hint, self._cookies = on_hint, cookies

    def dispatch(self, event: FileSystemEvent) -> None:
        """Called in watchdog's thread, one event at a time."""
        if not isinstance(event, HintEvent):
            return
        if event.hint:
            self._on_hint(event.hint)
        elif self._cookies:
            self._cookies.delivered(event.cookie)


def as_target(path: str) -> Target:
    """A target from a path or a glob: of a glob the folder above it, deep only if the glob goes deeper than one
    name.
    """
    path = path.rstrip("/") or "/"
    root = literal_root(path)
    if os.path.lexists(path) or root == path:
        return Target(path)
    rest = path[len(root) :].strip("/")
    return Target(root, deep="/" in rest or "**" in rest)


def open_interfaces(use: Literal["best", "inotify"]) -> tuple[list[Interface], str, str]:
    """The interfaces that this process may have, the better first; why no better one; and why no process is told
    where none is.
    """
    interfaces: list[Interface] = []
    why = "fanotify was not asked for"
    if use == "best":
        try:
            interfaces.append(Fanotify())
            why = ""
        except OSError as error:
            why = fanotify.refusal(error)
    no_pid = f"inotify names no process; {why or 'fanotify cannot take this file system'}"
    try:
        interfaces.append(Inotify())
    except OSError as error:
        why = "; ".join(filter(None, (why, inotify.refusal(error)))) if not interfaces else why
    return interfaces, why, no_pid


def _mount_table() -> MountTable | None:
    try:
        return MountTable()
    except OSError:
        return None
