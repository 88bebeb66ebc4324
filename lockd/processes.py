"""A running process as a launch: its variables, folder and command line, from /proc; and whether it is a Python.

Always holds: what is given was read from that very process; a launch that is gone, or another user's, is an error.
Never: reads memory, or stops a process.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator

from lockd.errors import LookError, UsageError
from lockd.look import Launch
from lockd.probes.argv import PYTHON

_EXTENSION = re.compile(r"\.(?:cpython-3|abi3|pypy3)[^/]*\.so$")  # mapped where Python is at work


def launch_of(pid: int) -> Launch:
    """The launch environment that a process was started with."""
    folder = f"/proc/{pid}"
    try:
        rows = _read(f"{folder}/environ").split("\0")
        argv = _read(f"{folder}/cmdline").split("\0")[:-1]
        cwd = os.readlink(f"{folder}/cwd")
    except (FileNotFoundError, ProcessLookupError):
        raise UsageError(f"there is no process {pid}", hint="`ps` lists those that run") from None
    except OSError as error:
        hint = "its user and root may read it"
        raise LookError(f"process {pid} could not be read: {error.strerror}", where=folder, hint=hint) from None
    environ = dict(row.split("=", 1) for row in rows if "=" in row)
    return Launch(environ, cwd, tuple(argv), f"pid {pid}")


def is_python(pid: int, argv: Iterable[str]) -> bool:
    """Is it an interpreter: by the name it was started by, that of its file, or an extension module that it has mapped?

    An editor or a pager that has a script open is none. Of another user's process this user sees the first alone.
    """
    if PYTHON.fullmatch(os.path.basename(next(iter(argv), ""))):
        return True
    try:
        exe = os.path.basename(os.readlink(f"/proc/{pid}/exe"))
        return bool(PYTHON.fullmatch(exe)) or any(map(_EXTENSION.search, mapped(pid)))
    except OSError:
        return False


def mapped(pid: int) -> Iterator[str]:
    """The paths that it has mapped, devices with them, one a mapping. OSError for a gone one, or another user's."""
    with open(f"/proc/{pid}/maps", encoding="utf-8", errors="surrogateescape") as file:
        for line in file:
            _, slash, rest = line.rstrip("\n").partition("/")
            if slash:
                yield slash + rest


def _read(path: str) -> str:
    with open(path, "rb") as file:
        return os.fsdecode(file.read())
