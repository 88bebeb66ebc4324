"""Who made a change: from the pid that an event bears to a process, its user and the session that it belongs to.

Always holds: asked at once when the event is read. A process that lived, under its pidfd, while it was read is
"observed"; one that had ended but was read for an earlier event moments ago is "likely"; all else is "not observed"
with the reason. Nothing is attributed to a number that may have been reused. The cache is bounded.
Never: keeps a descriptor, or guesses.
"""

from __future__ import annotations

import os
import select
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import Any, NamedTuple

from lockd import origin as sessions
from lockd.watch.hints import Who
from lockd.watch.process import Glance, Mark, Process, ancestors, glance, read_process

OUTSIDE = "from outside this container, or pid not told by the kernel"
ENDED = "the process had ended before it could be looked at"

_CACHED = 512
_RECENT = 5.0  # seconds in which a pid number is not taken to be another process; numbers are handed out in turn


class _Seen(NamedTuple):
    mark: Mark
    who: Who
    at: float


class Asker:
    """Remembers who was seen a moment ago. `now` is a monotonic clock. Not for several threads."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._seen: OrderedDict[int, _Seen] = OrderedDict()
        self._parents: OrderedDict[int, tuple[Mark, Process]] = OrderedDict()

    def ask(self, pid: int | None, pidfd: int, no_pid: str = OUTSIDE) -> Who:
        """Who has this pid. `pidfd` (negative: none) stays the caller's. `no_pid` is the reason where the kernel
        told no pid.
        """
        if not pid or pid < 0:
            return Who("not observed", no_pid if pid is None else OUTSIDE)
        if pidfd < 0:
            return self._recall(pid)
        seen, first = self._seen.get(pid), glance(pid)
        if first and first.mark.exe and seen and seen.mark == first.mark:
            return self._keep(pid, first.mark, seen.who)
        process = read_process(pid, first)
        if process is None or (_ended(pidfd) and process.exe):
            return self._recall(pid)  # what /proc shows now may be another process of that number
        if not process.exe:  # ended, not yet reaped: its name and parents are still there, the rest may be remembered
            remembered = self._recall(pid)
            return remembered if remembered.started == process.stat.started else _who(process, self._parent)
        return self._keep(pid, _mark(process, first), _who(process, self._parent))

    def _keep(self, pid: int, mark: Mark, who: Who) -> Who:
        self._seen[pid] = _Seen(mark, who, self._now())
        _bound(self._seen, pid)
        return who

    def _parent(self, pid: int) -> Process | None:
        """A parent, read once: shells and agents start many writers."""
        first, known = glance(pid), self._parents.get(pid)
        if first and known and known[0] == first.mark:
            return known[1]._replace(stat=first.stat)
        found = read_process(pid, first)
        if found is not None and first is not None and _mark(found, first) == first.mark:
            self._parents[pid] = first.mark, found
            _bound(self._parents, pid)
        return found

    def _recall(self, pid: int) -> Who:
        seen = self._seen.get(pid)
        if seen is None or self._now() - seen.at > _RECENT:
            return Who("not observed", ENDED, pid=pid)
        values = {
            **vars(seen.who),
            "confidence": "likely",
            "reason": "it had ended; known from its earlier change (an exec since then would not be seen)",
        }
        return Who(**values)


def _bound(cache: OrderedDict[int, Any], newest: int) -> None:
    cache.move_to_end(newest)
    while len(cache) > _CACHED:
        cache.popitem(last=False)


def _mark(process: Process, first: Glance | None) -> Mark:
    """What tells this process from the next of its number, and from what it was before an exec during the reading."""
    if first and (first.stat.started, first.mark.exe) == (process.stat.started, process.exe):
        return first.mark
    return Mark(process.stat.started, process.exe, "")


def _ended(pidfd: int) -> bool:
    """A pidfd reads as ready once its process has ended."""
    poll = select.poll()
    poll.register(pidfd, select.POLLIN)
    return bool(poll.poll(0))


def describe(pid: int) -> Who | None:
    """A living process by its number, as `Who`; None if there is none. For the daemon's running launches and its
    clients.
    """
    process = read_process(pid)
    return None if process is None else _who(process, read_process)


def _who(process: Process, read: Callable[[int], Process | None]) -> Who:
    chain = tuple(ancestors(process.stat, read))
    return Who(
        "observed",
        f"it had ended: only its name, {process.stat.comm}, was left" if process.zombie else "",
        pid=process.pid,
        exe=process.exe,
        cmdline=process.cmdline,
        uid=process.uid,
        user="" if process.uid is None else user_name(process.uid),
        login_uid=process.login_uid,
        started=process.stat.started,
        parents=tuple((parent.pid, _name(parent)) for parent in chain),
        origin=origin(process, chain),
    )


def origin(process: Process, chain: Iterable[Process]) -> str:
    """The session in words, nearest first ("agent claude, tmux/screen, ssh"), as everywhere in lockd; "" where
    nothing tells.
    """
    lineage = (process, *chain)
    rows = [
        sessions.Process(member.pid, name, member.stat.parent, 0, 0)
        for member in lineage
        for name in (*_scripts(member), _name(member), member.stat.comm)
    ]
    return ", ".join(sessions.ways_in(rows, sessions.parse_unit(f"0::{process.cgroup}")))


def _scripts(process: Process) -> Iterable[str]:
    """What an interpreter runs: `node /usr/lib/…/claude`, and npm packages by the name of their folder."""
    for word in process.cmdline[:3]:
        if "/node_modules/" in word:
            yield from word.rpartition("/node_modules/")[2].split("/")[:2]
        elif "/" in word:
            yield os.path.basename(word)


def _name(process: Process) -> str:
    return os.path.basename(process.exe.removesuffix(" (deleted)")) or process.stat.comm


@lru_cache(maxsize=256)
def user_name(uid: int) -> str:
    """The account's name, looked up once: writers are asked for in bursts."""
    return sessions.user_name(uid)
