"""Notes on their way from a running launch: one file of JSON lines a run, below the state.

Always holds: only what the state's owner could have written is read, at most a mebibyte, and no line can break more
than itself. The last value of a name counts.
Never: follows a link, or trusts a name or a value to be short or printable.
"""

from __future__ import annotations

import json
import os
import stat
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lockd.state import State

FOLDER = "notes"
_LIMIT = 1 << 20  # bytes that are read, from the end
_NAMES = 100
_LONGEST = 200  # characters of a name and of a word


def make(state: State, number: int) -> str:
    """An empty file for the notes of a run; gives its path."""
    folder = os.path.join(state.folder, FOLDER)
    os.makedirs(folder, mode=0o700, exist_ok=True)
    path = _path(state, number)
    os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600))
    return path


def read(state: State, number: int) -> dict[str, Any]:
    """What a run has noted so far."""
    try:
        descriptor = os.open(_path(state, number), os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return {}
    with os.fdopen(descriptor, "rb") as file:
        found = os.fstat(file.fileno())
        if not stat.S_ISREG(found.st_mode):
            return {}
        file.seek(max(0, found.st_size - _LIMIT))
        lines = file.read(_LIMIT).splitlines()
    noted: dict[str, Any] = {}
    for line in lines:
        noted.update(_values(line))
    return dict(list(noted.items())[:_NAMES])


def remove(state: State, number: int) -> None:
    """The run is over and its notes are in the store."""
    try:
        os.unlink(_path(state, number))
    except FileNotFoundError:
        pass


def _values(line: bytes) -> dict[str, Any]:
    from lockd.facts import shown

    try:
        values = json.loads(line)["values"]
        pairs = [(shown(str(name))[:_LONGEST], value) for name, value in values.items()]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return {}
    return {name: _plain(value) for name, value in pairs}


def _plain(value: Any) -> Any:
    from lockd.facts import shown

    if isinstance(value, float) and (value != value or abs(value) == float("inf")):
        return str(value)
    if value is None or isinstance(value, (bool, float)) or (isinstance(value, int) and abs(value) < 1 << 53):
        return value
    return shown(str(value))[:_LONGEST]


def _path(state: State, number: int) -> str:
    return os.path.join(state.folder, FOLDER, f"{number}.jsonl")
