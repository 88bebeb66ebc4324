"""A file system whose server never answers: FUSE over a descriptor that nobody reads, as a hung server leaves it."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_DETACH = 2  # MNT_DETACH: whoever waits keeps waiting, the path is free


@contextmanager
def dead_mount(point: Path) -> Iterator[Path]:
    """Mount it at `point`, a folder that is made; raises PermissionError where this machine does not let us."""
    point.mkdir(parents=True)
    server = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)
    try:
        libc = ctypes.CDLL(None, use_errno=True)
        options = f"fd={server},rootmode=40000,user_id=0,group_id=0".encode()
        if libc.mount(b"dead", os.fsencode(point), b"fuse", 0, options):
            raise PermissionError(ctypes.get_errno(), "no FUSE mount here")
        try:
            yield point
        finally:
            libc.umount2(os.fsencode(point), _DETACH)
    finally:
        os.close(server)
