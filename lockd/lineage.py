"""Which process is which: pid and start time together, who still lives, and what descends from whom.

Always holds: a pid alone proves nothing, it is given again; with its start time and the boot it names one process.
What /proc does not tell is None, neither alive nor dead.
Never: signals a process, or trusts a variable of its environment.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

DEPTH = 128  # parents looked at, a bound against a torn /proc
_DEAD = "ZX"


class Row(NamedTuple):
    """Of /proc/PID/stat: start is in ticks since the boot."""

    pid: int
    state: str
    parent: int
    session: int
    start: int


def row(pid: int) -> Row | None:
    """One process; None where there is none, or nothing is told of it."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return parse(file.read(4096))
    except OSError:
        return None


def parse(text: bytes) -> Row | None:
    """A row of /proc/PID/stat. The name may hold blanks and parentheses, so it ends at the last one."""
    head, found, rest = text.rpartition(b")")
    fields = rest.split()
    try:
        pid = int(head.partition(b" ")[0])
        return Row(pid, fields[0].decode("ascii"), int(fields[1]), int(fields[3]), int(fields[19])) if found else None
    except (ValueError, IndexError):
        return None


def identity(pid: int) -> dict[str, Any]:
    """`pid`, and as far as /proc tells `start` and `boot`: what `alive` recognises a process by."""
    found = row(pid)
    told = {"pid": pid, "start": None if found is None else found.start, "boot": boot()}
    return {name: value for name, value in told.items() if value is not None}


def boot() -> str | None:
    """The id of this boot."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            return file.read().strip()
    except OSError:
        return None


def alive(known: Mapping[str, Any]) -> bool | None:
    """Does that very process still run? None: nobody can tell (no /proc, or its start was never known)."""
    if row(1) is None and boot() is None:
        return None
    if known.get("boot", boot()) != boot():
        return False
    found = row(int(known["pid"]))
    if known.get("start") is None:  # whoever has that pid now may be that process; where nobody has it, it is gone
        return None if found is not None else False
    return found is not None and found.start == known["start"] and found.state not in _DEAD


def same(known: Mapping[str, Any], found: Row) -> bool:
    """Is `found` the process of that identity?"""
    return known.get("start") == found.start and known.get("pid") == found.pid


def ancestors(pid: int) -> Iterator[Row]:
    """The process itself and its parents, nearest first; then the leader of its session and its parents.

    Who was orphaned has init or a reaper as parent, but still is in the session in which it was started.
    """
    seen: set[int] = set()
    first = row(pid)
    starts = [] if first is None else [pid, first.session]
    for start in starts:
        at: int | None = start
        while at and at not in seen and len(seen) < DEPTH:
            seen.add(at)
            found = row(at)
            if found is None:
                break
            yield found
            at = found.parent
