"""inotify through ctypes: one instance for everything, where fanotify is not permitted.

Always holds: one instance, close-on-exec, non-blocking; only changes are asked for. A watch descriptor that the
kernel dropped is told (`forgotten`), so is a full queue. Parsing is pure and checks every length against the buffer.
See inotify(7).
Never: follows a link in the last component of a folder, or hides ENOSPC and EMFILE.
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct
from collections.abc import Iterator
from functools import cache
from typing import Any

from lockd.watch.hints import Key, Raw

MODIFY, ATTRIB, CLOSE_WRITE, MOVED_FROM, MOVED_TO, CREATE, DELETE = 0x2, 0x4, 0x8, 0x40, 0x80, 0x100, 0x200
UNMOUNT, Q_OVERFLOW, IGNORED, ISDIR = 0x2000, 0x4000, 0x8000, 0x40000000
_ONLYDIR, _MASK_ADD = 0x1000000, 0x20000000

_NAMES_ONLY = CREATE | DELETE | MOVED_FROM | MOVED_TO
_FILE_ONLY = MODIFY | ATTRIB | CLOSE_WRITE
_EVENT = struct.Struct("iIII")  # struct inotify_event up to its name

_KINDS: tuple[tuple[int, str, bool], ...] = (
    (CREATE, "created", False),
    (MOVED_TO, "moved", False),
    (MODIFY | CLOSE_WRITE, "changed", False),
    (ATTRIB, "attrib", False),
    (MOVED_FROM, "moved", True),
    (DELETE, "removed", True),
    (UNMOUNT, "unmounted", False),
    (IGNORED, "forgotten", False),
    (Q_OVERFLOW, "overflow", False),
)


@cache
def _libc() -> Any:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.inotify_add_watch.argtypes = [ctypes.c_int, ctypes.c_char_p, ctypes.c_uint32]
    return libc


class Inotify:
    """One instance. Raises OSError (EMFILE: too many instances for this user) where there can be none."""

    mode = "inotify"

    def __init__(self) -> None:
        self.fd = _libc().inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        if self.fd < 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number), "inotify_init1")

    def watch_folder(self, path: str, *, names_only: bool = False) -> Key:
        """Watch a folder: its names, and unless `names_only` what happens to the files in it."""
        return self._add(path, _ONLYDIR | (_NAMES_ONLY if names_only else _NAMES_ONLY | _FILE_ONLY))

    def watch_file(self, path: str) -> Key:
        """Watch a regular file by itself: edits through another hard link are then seen."""
        return self._add(path, _FILE_ONLY)

    def _add(self, path: str, mask: int) -> Key:
        # IN_MASK_ADD: a folder that is watched for its names only must not lose what another place asked of it
        number = _libc().inotify_add_watch(self.fd, os.fsencode(path), mask | _MASK_ADD)
        if number < 0:
            reason = ctypes.get_errno()
            raise OSError(reason, os.strerror(reason), path)
        return ("i", number)

    def forget(self, key: Key) -> None:
        """Drop a watch; one that the kernel dropped already is no error."""
        _libc().inotify_rm_watch(self.fd, key[1])

    def read(self) -> Iterator[Raw]:
        """The events that wait now, at most one buffer of them; nothing when none wait."""
        try:
            return parse(os.read(self.fd, 1 << 18))
        except BlockingIOError:
            return iter(())

    def close(self) -> None:
        """End the instance and its watches."""
        os.close(self.fd)


def parse(buffer: bytes) -> Iterator[Raw]:
    """Events of one read. A record that does not fit its buffer is an overflow: something was told that could not
    be read.
    """
    offset = 0
    while offset < len(buffer):
        if len(buffer) - offset < _EVENT.size:
            yield Raw("overflow", None)
            return
        number, mask, _, length = _EVENT.unpack_from(buffer, offset)
        offset += _EVENT.size
        if length > len(buffer) - offset:
            yield Raw("overflow", None)
            return
        name = os.fsdecode(buffer[offset : offset + length].split(b"\0", 1)[0])
        offset += length
        key = None if number < 0 else ("i", number)
        for bits, kind, gone in _KINDS:
            if mask & bits:
                yield Raw(kind, key, name, None, bool(mask & ISDIR), gone)  # type: ignore[arg-type]


def refusal(error: OSError) -> str:
    """Why a path has no inotify watch, in words."""
    if error.errno == errno.ENOSPC:
        return "watch limit reached: raise fs.inotify.max_user_watches"
    if error.errno == errno.EMFILE:
        return "too many inotify instances for this user: raise fs.inotify.max_user_instances"
    return f"no watch: {os.strerror(error.errno or 0)}"
