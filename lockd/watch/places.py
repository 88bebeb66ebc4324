"""What is watched where: the kernel's keys, the folders and files behind them, and what each target wants of them.

Always holds: a folder is watched before it is listed, excluded folders are never entered, every path has at most one
key, and what could not be watched stands in its target's state with the reason. Placing a target again finds what it
missed and lets go of what is gone.
Never: reads an event, hints, or descends into a network or FUSE file system.
"""

from __future__ import annotations

import errno
import os
import stat
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from lockd.globs import matches
from lockd.watch import inotify
from lockd.watch.hints import Key, Mode, Raw, Target, WatchState
from lockd.watch.mounts import Mount, blindness, over, within
from lockd.watch.routes import Route, route

# a file system that fanotify cannot take may still take inotify
_OTHER_WAY = frozenset({errno.ENODEV, errno.EXDEV, errno.EOPNOTSUPP, errno.EOVERFLOW, errno.EINVAL})
_FULL = frozenset({errno.ENOSPC, errno.EMFILE, errno.ENFILE, errno.ENOMEM})
_ODD = "fanotify cannot take this file system"
_PATIENCE = 100  # times that a way may change while it is being watched
_VANISHED = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ELOOP})


class Interface(Protocol):
    """A kernel interface: `Fanotify` or `Inotify`."""

    fd: int
    mode: str

    def watch_folder(self, path: str, *, names_only: bool = False) -> Key:
        """Watch a folder, raises OSError."""

    def watch_file(self, path: str) -> Key:
        """Watch a file by itself, raises OSError."""

    def forget(self, key: Key) -> None:
        """Let go of a watch."""

    def read(self) -> Iterator[Raw]:
        """What waits now."""

    def close(self) -> None:
        """Let go of all."""


@dataclass
class _Interest:
    """What is wanted of one watched path: all of it, for those targets, or single names, each for some targets."""

    whole: set[int] = field(default_factory=set)
    names: dict[str, set[int]] = field(default_factory=dict)

    def without(self, index: int) -> None:
        """Drop a target's interest."""
        self.whole.discard(index)
        for name in [name for name, wanting in self.names.items() if index in wanting]:
            self.names[name].discard(index)
            if not self.names[name]:
                del self.names[name]

    def everybody(self) -> set[int]:
        """The targets that are interested."""
        return self.whole.union(*self.names.values())


class Concern(NamedTuple):
    """What an event is to the targets. inside: those that it lies in; at: those that it is itself, or the way to."""

    path: str
    inside: tuple[int, ...]
    at: tuple[int, ...]


class Places:
    """The watched places of all targets. For one thread at a time; `states` may be read from any."""

    def __init__(
        self, targets: Sequence[Target], interfaces: Sequence[Interface], why: str, mounts: Iterable[Mount]
    ) -> None:
        """`interfaces`: the better one first; `why`: the reason for having no better one."""
        self.targets, self._interfaces, self._why = tuple(targets), tuple(interfaces), why
        self.mounts = tuple(mounts)
        self.states: dict[int, WatchState] = {}
        self.real: dict[int, str | None] = {}  # target → where it really lies; None: not there
        self._excluded = [matches(target.exclude) if target.exclude else None for target in targets]
        self._interests: dict[str, _Interest] = {}
        self._keys: dict[str, Key] = {}
        self._paths: dict[Key, list[str]] = {}
        self.uses: Counter[str] = Counter()  # "f" and "i": how many places are watched by which interface
        self._held: dict[int, set[str]] = {index: set() for index in range(len(self.targets))}
        self._full: set[int] = set()  # targets at which a limit was reached
        self._saying: list[WatchState] = []

    # placing

    def place(self, index: int) -> None:
        """Watch a target, anew if it was watched before: nothing is let go that still is wanted."""
        before, self._held[index] = self._held[index], set()
        for path in before:
            self._interests[path].without(index)
        self._full.discard(index)
        self._saying = []
        self._place(index, self.targets[index])
        self.states[index] = self._saying[0]
        for path in before - self._held[index]:
            self._let_go(path)

    def _place(self, index: int, target: Target) -> None:
        if not self._interfaces:
            self.real[index] = target.path
            self._polled(index, self._why)
            return
        if not self.mounts:  # watched as well as can be, but never called so
            self._polled(index, "the mount table cannot be read: what file system this is on is not known")
        if not self._see_through(target.path, target.path):
            self.real[index] = target.path  # not even touched: a dead server would hang us
            return
        way = self._watch_way(index, target.path)
        self.real[index] = way.real
        if way.real is None:
            self._saying.append(WatchState(self._mode(index), "not there; its coming is watched"))
        elif os.path.isdir(way.real):
            self._place_folder(index, target, way.real)
        else:
            self._see_through(way.real, way.real)
            if stat.S_ISREG(_mode_of(target.path)) and self._hold(index, target.path, file=True):
                self._interests[target.path].whole.add(index)
        mode = self._mode(index)
        self._saying.append(WatchState(mode, self._why or (_ODD if mode == "inotify" else "")))

    def _watch_way(self, index: int, path: str) -> Route:
        """Watch every name on the way to a path; looked at again after watching, since a name may come in between."""
        way, before = route(path), None
        for _ in range(_PATIENCE):
            for folder, name in way.steps:
                if self._hold(index, folder, names_only=True):
                    self._interests[folder].names.setdefault(name, set()).add(index)
            way, before = route(path), way
            if way == before:
                break
        return way

    def _place_folder(self, index: int, target: Target, real: str) -> None:
        if self._see_through(real, real) and target.deep:
            for _ in self.walk(index, target.path, real):
                pass
        else:
            self._watch_whole(index, target.path)

    def walk(self, index: int, folder: str, real: str | None = None) -> Iterator[os.DirEntry[str]]:
        """Watch a folder of a deep target and all below it, each before it is listed; gives every entry that is not
        excluded.
        """
        real = real or os.path.realpath(folder)
        inner = {mount.point for mount in self.mounts if mount.point != real and within(mount.point, real)}
        waiting = [folder]
        while waiting and index not in self._full:
            here = waiting.pop()
            there = real + here[len(folder) :]
            if there in inner and not self._see_through(there, real, index):
                continue
            if not self._watch_whole(index, here):
                continue
            for entry in self._list(index, here):
                if not self.excludes(index, entry.path):
                    if is_folder(entry):
                        waiting.append(entry.path)
                    yield entry

    def excludes(self, index: int, path: str) -> bool:
        """Is a path below this target none of its business?"""
        target, excluded = self.targets[index], self._excluded[index]
        below = path[len(target.path) :].lstrip("/")
        if target.only and not target.deep and below:
            return not target.only(below)
        return bool(excluded and below and excluded(below))

    def _list(self, index: int, folder: str) -> list[os.DirEntry[str]]:
        try:
            with os.scandir(folder) as entries:
                return list(entries)
        except OSError as error:
            if error.errno not in _VANISHED:
                self._polled(index, f"cannot list {folder}: {error.strerror}")
            return []

    def _see_through(self, path: str, root: str, index: int | None = None) -> bool:
        """Say it when the file system of a real path hides changes. False: watching below it is not worth it."""
        mount = over(self.mounts, path)
        reason, worth = blindness(mount.kind) if mount else ("", True)
        if reason:
            self._polled(index, reason if path == root else f"{path}: {reason}")
        return worth

    def _polled(self, index: int | None, why: str) -> None:
        state = WatchState("polled", why)
        self._saying.append(state)
        if index in self.states and self.states[index].mode != "polled":
            self.states[index] = state

    def _mode(self, index: int) -> Mode:
        kinds = {self._keys[path][0] for path in self._held[index] if path in self._keys}
        if not kinds:
            return "polled"
        return "fanotify" if kinds == {"f"} else "inotify"

    # one place

    def _watch_whole(self, index: int, folder: str) -> bool:
        held = self._hold(index, folder)
        if held:
            self._interests[folder].whole.add(index)
        return held

    def _hold(self, index: int, path: str, *, names_only: bool = False, file: bool = False) -> bool:
        try:
            key = self._ask(path, names_only, file)
        except OSError as error:
            if error.errno in _FULL:
                self._full.add(index)
            if error.errno not in _VANISHED:
                self._polled(index, refusal(error, path))
            return False
        if self._keys.get(path) != key:
            self._forget(path)
            self._keys[path] = key
            self.uses[key[0]] += 1
            self._paths.setdefault(key, []).append(path)
        self._interests.setdefault(path, _Interest())
        self._held[index].add(path)
        return True

    def _ask(self, path: str, names_only: bool, file: bool) -> Key:
        failure = OSError(errno.ENOSYS, "neither fanotify nor inotify can be had", path)
        for interface in self._interfaces:
            try:
                return interface.watch_file(path) if file else interface.watch_folder(path, names_only=names_only)
            except OSError as error:
                failure = error
                if error.errno not in _OTHER_WAY:
                    break
        raise failure

    def _let_go(self, path: str) -> None:
        interest = self._interests.get(path)
        if interest and not interest.whole and not interest.names:
            del self._interests[path]
            self._forget(path)

    def _forget(self, path: str) -> None:
        key = self._keys.pop(path, None)
        if key is None:
            return
        self.uses[key[0]] -= 1
        self._paths[key].remove(path)
        if not self._paths[key]:
            del self._paths[key]
            for interface in self._interfaces:
                if interface.mode[0] == key[0]:
                    interface.forget(key)

    # events

    def lose(self, path: str, *, below: bool) -> None:
        """A folder is gone from here (`below`: with all in it, by a rename); what is there later must be placed
        anew.
        """
        gone = [known for known in self._interests if within(known, path)] if below else [path]
        for known in gone:
            interest = self._interests.pop(known, None)
            if interest:
                for index in interest.everybody():
                    self._held[index].discard(known)
                self._forget(known)

    def dropped(self, key: Key) -> None:
        """The kernel let go of a watch by itself."""
        for path in list(self._paths.get(key, ())):
            self.lose(path, below=False)

    def paths_of(self, key: Key | None) -> tuple[str, ...]:
        """The watched paths behind a key."""
        return tuple(self._paths.get(key, ())) if key else ()

    def concerns(self, raw: Raw) -> Iterator[Concern]:
        """What an event means to the targets, once for each path under which its place is watched."""
        for folder in self.paths_of(raw.key):
            interest = self._interests[folder]
            path = os.path.join(folder, raw.name) if raw.name else folder
            inside = tuple(index for index in sorted(interest.whole) if not self.excludes(index, path))
            yield Concern(path, inside, tuple(sorted(interest.names.get(raw.name, ()))))
        for path in self.paths_of(raw.child):
            if not raw.folder:
                yield Concern(path, tuple(sorted(self._interests[path].whole)), ())


def is_folder(entry: os.DirEntry[str]) -> bool:
    """A folder, no link to one. Where the file system does not say so in its listing, what cannot be asked is none."""
    try:
        return entry.is_dir(follow_symlinks=False)
    except OSError:
        return False


def _mode_of(path: str) -> int:
    try:
        return os.stat(path).st_mode
    except OSError:
        return 0


def refusal(error: OSError, path: str) -> str:
    """Why a path is not watched, in words."""
    if error.errno in _FULL:
        reason = inotify.refusal(error) if error.errno == errno.ENOSPC else str(error.strerror)
        return f"{reason}; not watched from {path} on"
    return f"cannot watch {path}: {error.strerror}"
