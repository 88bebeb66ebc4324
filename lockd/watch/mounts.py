"""What is mounted where, which file systems hide changes, and when a mount changes.

Always holds: the deepest mount over a path decides; of two on one point, the later. Reasons are in words for people.
Never: follows a link (callers pass real paths), or touches a file system in order to judge it (a dead NFS server
would hang us).
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from typing import NamedTuple

_CLUSTERED = frozenset(
    ("ceph", "afs", "coda", "lustre", "gpfs", "beegfs", "glusterfs", "ocfs2", "gfs2", "orangefs", "pvfs2")
)
_NETWORK = _CLUSTERED | {"nfs", "nfs4", "cifs", "smb3", "smbfs", "ncpfs", "9p", "virtiofs", "vboxsf", "davfs"}
_MADE_UP = frozenset(["proc", "sysfs", "cgroup", "cgroup2", "securityfs", "debugfs", "tracefs", "configfs", "efivarfs"])
_OCTAL = re.compile(r"\\([0-7]{3})")
MOUNTINFO = "/proc/self/mountinfo"


class Mount(NamedTuple):
    """One row of mountinfo: where (absolute), what (type), which (id, root within its file system, device)."""

    point: str
    kind: str
    number: int
    root: str
    device: str


def parse(text: str) -> tuple[Mount, ...]:
    """Rows of /proc/PID/mountinfo, in its order; see proc_pid_mountinfo(5). Rows that are no rows are left out."""
    return tuple(mount for mount in map(_row, text.splitlines()) if mount)


def _row(line: str) -> Mount | None:
    left, separator, right = line.partition(" - ")
    fields, types = left.split(" "), right.split(" ")
    if not separator or len(fields) < 6 or not fields[0].isdigit():
        return None
    return Mount(_plain(fields[4]), types[0], int(fields[0]), _plain(fields[3]), fields[2])


def _plain(escaped: str) -> str:
    return os.fsdecode(_OCTAL.sub(lambda found: chr(int(found[1], 8)), escaped).encode("utf-8", "surrogateescape"))


def over(mounts: Iterable[Mount], path: str) -> Mount | None:
    """The mount that a real path lies on."""
    best = None
    for mount in mounts:
        if within(path, mount.point) and (best is None or len(mount.point) >= len(best.point)):
            best = mount
    return best


def within(path: str, folder: str) -> bool:
    """Is `path` the folder, or below it?"""
    return path == folder or path.startswith(folder if folder.endswith("/") else folder + "/")


def blindness(kind: str) -> tuple[str, bool]:
    """Why changes on a file system of this type may raise no event ("" if they do), and whether watching it still
    is worth it.
    """
    if kind in _NETWORK:
        return f"{kind}: changes from other machines raise no event", False
    if kind == "fuse" or kind.startswith("fuse.") or kind == "fuseblk":
        return f"{kind}: changes behind a FUSE file system raise no event", False
    if kind in _MADE_UP:
        return f"{kind}: the kernel makes its contents up, they raise no event", False
    if kind in ("overlay", "aufs"):
        return f"{kind}: writes to a lower layer raise no event", True
    return "", True


class MountTable:
    """The mounts of this process, and what changed in them. `fd` becomes ready (POLLPRI) when they do."""

    def __init__(self) -> None:
        self.fd = os.open(MOUNTINFO, os.O_RDONLY | os.O_CLOEXEC)
        self.mounts: tuple[Mount, ...] = ()
        self.refresh()

    def refresh(self) -> tuple[Mount, ...]:
        """Read the table anew; returns the mounts that came or went. Reading it arms `fd` again."""
        before, self.mounts = self.mounts, parse(os.fsdecode(self._read()))
        return tuple(set(before) ^ set(self.mounts))

    def _read(self) -> bytes:
        os.lseek(self.fd, 0, os.SEEK_SET)
        return b"".join(iter(lambda: os.read(self.fd, 1 << 16), b""))

    def close(self) -> None:
        """Let go of the table."""
        os.close(self.fd)
