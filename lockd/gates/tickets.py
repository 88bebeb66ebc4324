"""Tickets: the part of a run's record by which the site hook knows what belongs to an admitted launch.

Always holds: a ticket names one process by pid, start time and boot, and its run; it lies in the state of whoever
records runs (0700), under the pid. It is written once its run is; 0 stands for a launch that started without a record.
One of a process that is gone is removed by the next writer, and proves nothing before that: the start time differs.
Never: decides anything, or outlives a boot.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from lockd import atomic, lineage

if TYPE_CHECKING:
    from lockd.state import State

FOLDER = "launches"


def give(state: State, run: int, processes: Iterable[Mapping[str, Any]]) -> None:
    """Let what descends from these processes (`lineage.identity`) pass. OSError where the state takes no file."""
    folder = os.path.join(state.folder, FOLDER)
    os.makedirs(folder, mode=0o700, exist_ok=True)
    _prune(folder)
    for process in processes:
        if process.get("start") is not None and process.get("boot"):
            text = f"{process['start']} {process['boot']} {run}\n"
            atomic.write_scratch(os.path.join(folder, str(process["pid"])), text.encode("ascii"))


def _prune(folder: str) -> None:
    for name in os.listdir(folder):
        if not (name.isdecimal() and _lives(folder, int(name))):
            try:
                os.unlink(os.path.join(folder, name))
            except FileNotFoundError:  # another launch was quicker
                pass


def _lives(folder: str, pid: int) -> bool:
    try:
        with open(os.path.join(folder, str(pid)), encoding="ascii") as file:
            start, boot, _ = file.read(200).split()
    except (OSError, ValueError):
        return False
    return lineage.alive({"pid": pid, "start": int(start), "boot": boot}) is not False
