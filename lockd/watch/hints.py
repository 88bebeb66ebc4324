"""The words of watching: what to watch, what was hinted, by whom, and how well a path is watched.

Always holds: a hint says "look again here"; it is never a fact. `Who.confidence` says how the writer is known; where
the kernel told nothing there is a reason instead of a guess. Paths are absolute, surrogateescape strings in the form
in which they were asked for.
Never: reads the machine.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

Kind = Literal[
    "changed",  # contents
    "created",
    "removed",
    "moved",  # came or went by a rename
    "attrib",  # mode, owner, times, link count
    "overflow",  # events were lost: anything under `path` may have changed
    "unmounted",  # the file system under `path` went away
    "mounts",  # something was mounted over, under or off `path`
    "watch-lost",  # changes under `path` no longer raise hints; `detail` says why; the watch state is `polled`
]
Mode = Literal["fanotify", "inotify", "polled"]
Confidence = Literal["observed", "likely", "not observed"]

LOSSES: frozenset[str] = frozenset(
    {"overflow", "unmounted", "mounts", "watch-lost"}
)  # `path` stands for all that lies under it


@dataclass(frozen=True)
class Who:
    """The process behind a change. With confidence "not observed" only `reason` says something.

    cmdline: secrets masked. login_uid: None where unset. parents: (pid, name) from the parent upward. origin: the
    session in words ("ssh", "ssh, tmux, claude", "systemd unit train.service"). started: clock ticks since boot, with
    `pid` the identity.
    """

    confidence: Confidence
    reason: str = ""
    pid: int | None = None
    exe: str = ""
    cmdline: tuple[str, ...] = ()
    uid: int | None = None
    user: str = ""
    login_uid: int | None = None
    started: int = 0
    parents: tuple[tuple[int, str], ...] = ()
    origin: str = ""

    def as_dict(self) -> dict[str, Any]:
        """For JSON (`by`): what is known, and nothing else."""
        told: dict[str, Any] = {"confidence": self.confidence}
        values: dict[str, Any] = {
            "pid": self.pid,
            "exe": self.exe,
            "cmdline": list(self.cmdline),
            "uid": self.uid,
            "user": self.user,
        }
        values |= {"login_uid": self.login_uid, "origin": self.origin, "reason": self.reason}
        values["parents"] = [{"pid": pid, "name": name} for pid, name in self.parents]
        return told | {name: value for name, value in values.items() if value not in (None, "", [])}


_TRUST = {"observed": 2, "likely": 1, "not observed": 0}
NO_PROCESS = Who("not observed", "no process: found by looking")


@dataclass(frozen=True)
class Hint:
    """Look again at `path`. folder: it is a folder. at: seconds since the epoch at which the event was read."""

    path: str
    kind: Kind
    pid: int | None = None
    who: Who = NO_PROCESS
    folder: bool = False
    detail: str = ""
    at: float = field(default=0.0, compare=False)


def writer(hints: Iterable[Hint]) -> Who:
    """Who is behind a change of many hints: the process known best, and of those the one behind most of them."""
    known: dict[Who, int] = {}
    for hint in hints:
        if hint.kind not in LOSSES:
            known[hint.who] = known.get(hint.who, 0) + 1
    return max(known, key=lambda who: (_TRUST[who.confidence], bool(who.exe), known[who]), default=NO_PROCESS)


@dataclass(frozen=True)
class Target:
    """What to watch: a file, a folder with all below it (`deep`) or without, or a path that is not there yet.

    exclude: globs relative to `path`; an excluded folder is not entered, an excluded name gives no hint.
    only: for the names directly in a shallow folder, those of interest (`*.py` of a glob rule); None is every name.
    """

    path: str
    exclude: tuple[str, ...] = ()
    deep: bool = True
    only: Callable[[str], bool] | None = None


@dataclass(frozen=True)
class WatchState:
    """How well a path is watched, and why not better. `polled`: look on a timer; whatever events still come are a
    bonus.
    """

    mode: Mode
    why: str


Key = tuple[Any, ...]  # what the kernel calls a watched thing: ("i", wd) or ("f", fsid, type, handle)


class Raw(NamedTuple):
    """One event as a kernel interface told it, without its path.

    key: the watched thing (None: overflow, or a thing that the kernel didn't name). name: within the folder `key`, ""
    for `key` itself.
    child: the key of the named thing, where told. pid: None where the interface tells none, 0 where the kernel hides
    it.
    pidfd: an open descriptor that the reader must close, or negative.
    """

    kind: Literal["changed", "created", "removed", "moved", "attrib", "overflow", "unmounted", "forgotten"]
    key: Key | None
    name: str = ""
    child: Key | None = None
    folder: bool = False
    gone: bool = False  # of moved: the name left this folder
    pid: int | None = None
    pidfd: int = -1
