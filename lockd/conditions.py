"""What else was so when a launch began: load, memory, room in scratch folders, cache entries, how the GPUs were, and
who else used them.

Always holds: conditions are told with a run and are never drift; what could not be read is left out.
Never: runs a tool, or looks at anything that could hang (no NFS, no driver call).
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lockd.look import Sight

SCRATCH = ("/tmp", "/dev/shm")  # noqa: S108  asked for their free room alone
_USERS = 32  # processes on the GPUs that are named
DEVICES = "/dev/nvidia"
_OF_GPU = ("temperature", "clock", "throttle", "pcie_now")  # what the probe tells of this moment


def now(sight: Sight | None = None, own: int | None = None) -> dict[str, Any]:
    """The conditions of this moment. own: a process whose session is no other user of a GPU."""
    told = {
        "load": _load(),
        "memory_available": _memory(),
        "free": {path: free for path in SCRATCH if (free := _free(path)) is not None},
        "cache_entries": {} if sight is None else _entries(sight),
        "gpus": {} if sight is None else _gpus(sight),
        "gpu_users": list(gpu_users(own)),
    }
    return {name: value for name, value in told.items() if value not in (None, {}, [])}


def gpu_users(own: int | None = None) -> Iterator[dict[str, Any]]:
    """Other processes that hold a GPU device open, as far as this user may see."""
    if not os.path.exists("/dev/nvidiactl"):
        return
    left = _USERS
    for pid in _pids():
        held = devices(pid)
        if held and pid != own and left:
            left -= 1
            yield {"pid": pid, "name": _name(pid), "devices": held}


def _pids() -> list[int]:
    try:
        return [int(name) for name in os.listdir("/proc") if name.isdigit() and int(name) != os.getpid()]
    except OSError:
        return []


def devices(pid: int, *more: str) -> list[str]:
    """The numbered GPUs that a process has open, and those of `more`; `nvidiactl` and the like tell of none."""
    folder, found = f"/proc/{pid}/fd", set()
    try:
        for name in os.listdir(folder):
            target = os.readlink(f"{folder}/{name}")
            if target in more or (target.startswith(DEVICES) and target[len(DEVICES) :].isdigit()):
                found.add(target)
    except OSError:  # gone, or another user's
        pass
    return sorted(found)


def _name(pid: int) -> str:
    from lockd.facts import shown

    try:
        with open(f"/proc/{pid}/comm", encoding="utf-8", errors="surrogateescape") as file:
            return shown(file.read().rstrip("\n"))
    except OSError:
        return "?"


def _load() -> list[float] | None:
    try:
        return [round(one, 2) for one in os.getloadavg()]
    except OSError:
        return None


def _memory() -> int | None:
    """Bytes that could be had without swapping."""
    try:
        with open("/proc/meminfo", encoding="ascii") as file:
            return next(int(line.split()[1]) * 1024 for line in file if line.startswith("MemAvailable:"))
    except (OSError, StopIteration, ValueError):
        return None


def _free(path: str) -> int | None:
    try:
        found = os.statvfs(path)
    except OSError:
        return None
    return found.f_bavail * found.f_frsize


def _entries(sight: Sight) -> dict[str, int]:
    """Entries of each pinned cache, new ones under `grow` with them."""
    counted = {}
    for fact in sight.facts.known():
        number = fact.attributes.get("entries")
        if fact.kind == "cache" and isinstance(number, int):
            counted[fact.subject] = number
    return counted


def _gpus(sight: Sight) -> dict[str, dict[str, Any]]:
    """Clock, reasons for a lower one, temperature, a narrower link of each GPU, as the look's own probe was told."""
    told = {}
    for fact in sight.facts.known():
        if fact.kind == "gpu" and fact.subject.isdecimal():
            told[fact.subject] = {name: fact.told[name] for name in _OF_GPU if name in fact.told}
    return {index: found for index, found in told.items() if found}
