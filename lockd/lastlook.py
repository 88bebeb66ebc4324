"""The last look at a large tree, kept with its time, so that a gate need not walk a dataset for each launch.

Always holds: a look is as old as its walk's begin; its age is told by the clock that no one sets while the machine is
up, and across a boot by the calendar's, never below zero. It counts for the same rule and the same folder alone. What
could not be read is never kept. A file that is torn or foreign is as if it were not there.
Never: decides whether a last look is good enough.
"""

from __future__ import annotations

import os
import time
from hashlib import sha256
from typing import Any

from lockd import __version__
from lockd.facts import Fact
from lockd.statcache import prune, read_packed, write_packed

ENTRIES = 50_000  # names; a smaller tree is walked whenever it is asked about
_KEPT = 64  # rules; each has two files
_BOOT = "/proc/sys/kernel/random/boot_id"


def begin() -> tuple[float, str, float]:
    """This moment: the calendar's seconds, the boot, and seconds since it."""
    return time.time(), _boot(), time.clock_gettime(time.CLOCK_BOOTTIME)


class LastLooks:
    """Last looks in `folder`, which only its owner can write. None: nothing is kept."""

    def __init__(self, folder: str | None) -> None:
        self._folder = folder

    def find(self, key: tuple[Any, ...], seconds: float) -> tuple[Fact, float] | None:
        """The fact of the last look under `key` and its age, where that is at most `seconds`."""
        path, full_key = self._path(key), (repr(key), __version__)
        told = read_packed(f"{path}.look", full_key) if path else None
        age = None if told is None else _age(*told[0])
        if told is None or age is None or age > seconds:
            return None
        kept = read_packed(f"{path}.seen", full_key)
        return (Fact(*kept[1]), age) if kept is not None and kept[0] == told[1] else None

    def keep(self, key: tuple[Any, ...], began: tuple[float, str, float], stamp: str, fact: Fact) -> None:
        """Remember what a walk gave that `began` then. The fact is written when it moved, the time each time."""
        path, full_key = self._path(key), (repr(key), __version__)
        if not path or self._folder is None:
            return
        try:
            os.makedirs(self._folder, mode=0o700, exist_ok=True)
            told = read_packed(f"{path}.look", full_key)
            if told is None or told[1] != stamp or not os.path.exists(f"{path}.seen"):
                fields = (fact.kind, fact.subject, dict(fact.attributes), dict(fact.told), fact.tokens)
                write_packed(f"{path}.seen", full_key, (stamp, fields))
                prune(self._folder, (".look", ".seen"), 2 * _KEPT)
            write_packed(f"{path}.look", full_key, (began, stamp))
        except OSError:  # disk full, read-only state: the next gate walks
            pass

    def forget(self, key: tuple[Any, ...]) -> None:
        """The last look was at something else: a small tree, or one that could not be read."""
        try:
            os.unlink(f"{self._path(key)}.look")
        except OSError:
            pass

    def _path(self, key: tuple[Any, ...]) -> str:
        name = repr(key).encode("utf-8", "backslashreplace")
        return os.path.join(self._folder, sha256(name).hexdigest()[:32]) if self._folder else ""


def old(seconds: float) -> str:
    """`41 min old`."""
    for size, word in ((86400, "days"), (3600, "h"), (60, "min")):
        if seconds >= 2 * size or (seconds >= size and word == "min"):
            return f"{seconds // size:.0f} {word} old"
    return f"{seconds:.0f} s old"


def _age(at: float, boot: str, since: float) -> float | None:
    now = begin()
    age = now[2] - since if boot and boot == now[1] else now[0] - at
    return age if age >= 0 else None


def _boot() -> str:
    try:
        with open(_BOOT, encoding="ascii") as file:
            return file.read().strip()
    except OSError:
        return ""
