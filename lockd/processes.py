"""A running process as a launch: its variables, folder and command line, from /proc.

Always holds: what is given was read from that very process; one that is gone, or another user's, is an error.
Never: reads memory, or stops a process.
"""

from __future__ import annotations

import os

from lockd.errors import LookError, UsageError
from lockd.look import Launch


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


def _read(path: str) -> str:
    with open(path, "rb") as file:
        return os.fsdecode(file.read())
