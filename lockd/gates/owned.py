"""Small files that lockd puts into other programs' folders: unit drop-ins, Slurm's scripts.

Always holds: each begins with a line that says whose it is; one without that line is somebody else's. Written whole or
not at all; removed with the folders that were made for them, where nothing else is in these.
Never: overwrites or removes what lockd did not write.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

from lockd import atomic
from lockd.errors import LockdError, RefusedError
from lockd.plain import dataclass

MARK = "# written by `lockd gate`; `lockd gate remove` takes it away"


@dataclass(frozen=True)
class Told:
    """What became of a gate. installed: it is in place. sound: what was asked for holds."""

    text: str
    installed: bool
    sound: bool = True


def write(path: str, text: str, *, mode: int = 0o644) -> None:
    """Put a file, its folder made if need be. RefusedError where another's lies there."""
    if os.path.lexists(path) and not is_ours(path):
        hint = "move it away, or merge its lines by hand"
        raise RefusedError("a file that lockd did not write is in the way", where=path, hint=hint)
    try:
        os.makedirs(os.path.dirname(path), mode=0o755, exist_ok=True)
        atomic.write(path, text.encode(), mode=mode)
    except OSError as error:
        raise LockdError(f"could not be written: {error.strerror}", where=path, hint="run this as root") from None


def remove(path: str) -> bool:
    """Take a file away, and its folder if that is empty now. False: there was none."""
    if not os.path.lexists(path):
        return False
    if not is_ours(path):
        raise RefusedError("this file was not written by lockd", where=path, hint="remove it by hand")
    try:
        os.unlink(path)
    except OSError as error:
        raise LockdError(f"could not be removed: {error.strerror}", where=path, hint="run this as root") from None
    try:
        os.rmdir(os.path.dirname(path))
    except OSError:  # something else is in it
        pass
    return True


def is_ours(path: str) -> bool:
    """Did lockd write this file?"""
    text = read(path)
    return text is not None and MARK in text.splitlines()[:3]


def read(path: str) -> str | None:
    """The text of a small file; None where it can't be read."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read(1 << 20)
    except OSError:
        return None


def state_of(files: Mapping[str, str]) -> str:
    """How files stand against what they should hold: `in place`, `gone`, or what differs."""
    found = {path: read(path) for path in files}
    if all(text is None for text in found.values()):
        return "gone"
    differing = [path for path, text in found.items() if text != files[path]]
    return "in place" if not differing else f"not as lockd would write it now: {', '.join(differing)}"
