"""fanotify through ctypes: notification of changes in folders and files, with the process that made them.

Always holds: one group, close-on-exec, non-blocking, queue and marks unlimited; only changes are asked for, so that
reading raises nothing. Parsing is pure and checks every length against the buffer. See fanotify(7), fanotify_init(2),
fanotify_mark(2).
Never: asks for a permission event, marks a mount or a file system (inside a container that would show the host), or
follows a name.
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
Q_OVERFLOW, EVENT_ON_CHILD, ONDIR = 0x4000, 0x8000000, 0x40000000
_CLOEXEC, _NONBLOCK, _UNLIMITED_QUEUE, _UNLIMITED_MARKS = 0x1, 0x2, 0x10, 0x20
_REPORT_PIDFD, _REPORT_FID, _REPORT_DIR_FID, _REPORT_NAME = 0x80, 0x200, 0x400, 0x800
_MARK_ADD, _MARK_REMOVE = 0x1, 0x2
_AT_FDCWD, _AT_EMPTY_PATH = -100, 0x1000
_MAX_HANDLE = 128  # MAX_HANDLE_SZ of <linux/exportfs.h>

_NAMES_ONLY = CREATE | DELETE | MOVED_FROM | MOVED_TO | ONDIR
_FILE_ONLY = MODIFY | ATTRIB | CLOSE_WRITE
_FOLDER_ALL = _NAMES_ONLY | _FILE_ONLY | EVENT_ON_CHILD

_HEADER = struct.Struct("=IBBHQii")  # struct fanotify_event_metadata
_INFO = struct.Struct("=BBH")  # struct fanotify_event_info_header
_HANDLE = struct.Struct("=8sIi")  # fsid, then struct file_handle up to its bytes
_VERSION = 3
_FID, _DFID_NAME, _DFID, _PIDFD = 1, 2, 3, 4

_KINDS = ((CREATE, "created"), (MOVED_TO, "moved"), (MODIFY | CLOSE_WRITE, "changed"), (ATTRIB, "attrib"))
_ENDINGS = ((MOVED_FROM, "moved"), (DELETE, "removed"))


class _FileHandle(ctypes.Structure):
    _fields_ = (("size", ctypes.c_uint), ("type", ctypes.c_int), ("handle", ctypes.c_ubyte * _MAX_HANDLE))


@cache
def _libc() -> Any:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.fanotify_init.argtypes = [ctypes.c_uint, ctypes.c_uint]
    libc.fanotify_mark.argtypes = [ctypes.c_int, ctypes.c_uint, ctypes.c_uint64, ctypes.c_int, ctypes.c_char_p]
    return libc


def _raise(call: str, path: str = "") -> None:
    number = ctypes.get_errno()
    raise OSError(number, f"{call}: {os.strerror(number)}", path)


class Fanotify:
    """One notification group. Raises OSError where the kernel or the privileges don't allow one that tells
    processes.
    """

    mode = "fanotify"

    def __init__(self) -> None:
        flags = _CLOEXEC | _NONBLOCK | _UNLIMITED_QUEUE | _UNLIMITED_MARKS
        flags |= _REPORT_PIDFD | _REPORT_FID | _REPORT_DIR_FID | _REPORT_NAME
        self.fd = _libc().fanotify_init(flags, os.O_RDONLY | os.O_CLOEXEC)
        if self.fd < 0:
            _raise("fanotify_init")

    def watch_folder(self, path: str, *, names_only: bool = False) -> Key:
        """Mark a folder: its names, and unless `names_only` what happens to the files in it."""
        return self._mark(path, os.O_DIRECTORY, _NAMES_ONLY if names_only else _FOLDER_ALL)

    def watch_file(self, path: str) -> Key:
        """Mark a regular file by itself: edits through another hard link are then seen."""
        return self._mark(path, 0, _FILE_ONLY)

    def _mark(self, path: str, flags: int, mask: int) -> Key:
        # by descriptor, so that mark and key are of one inode whatever happens to the name meanwhile
        opened = os.open(path, flags | os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
        try:
            if _libc().fanotify_mark(self.fd, _MARK_ADD, mask, opened, None) < 0:
                _raise("fanotify_mark", path)
            return _key_of(opened, path)
        finally:
            os.close(opened)

    def forget(self, key: Key) -> None:
        """Nothing: a mark goes with its inode, and events of unknown keys are dropped by the reader."""

    def read(self) -> Iterator[Raw]:
        """The events that wait now, at most one buffer of them; nothing when none wait."""
        try:
            return parse(os.read(self.fd, 1 << 18))
        except BlockingIOError:
            return iter(())

    def close(self) -> None:
        """End the group and its marks."""
        os.close(self.fd)


def _key_of(opened: int, path: str) -> Key:
    handle, mount = _FileHandle(size=_MAX_HANDLE), ctypes.c_int()
    if _libc().name_to_handle_at(opened, b"", ctypes.byref(handle), ctypes.byref(mount), _AT_EMPTY_PATH) < 0:
        _raise("name_to_handle_at", path)
    return ("f", _fsid(opened), handle.type, bytes(handle.handle[: handle.size]))


def _fsid(opened: int) -> bytes:
    """f_fsid as fanotify reports it. os.fstatvfs gives it as one number, low word first."""
    return struct.pack("=Q", os.fstatvfs(opened).f_fsid & 0xFFFFFFFFFFFFFFFF)


def parse(buffer: bytes) -> Iterator[Raw]:
    """Events of one read. A record that does not fit its buffer is an overflow: something was told that could not
    be read.
    """
    offset = 0
    while offset < len(buffer):
        if len(buffer) - offset < _HEADER.size:
            yield Raw("overflow", None)
            return
        length, version, _, header, mask, _, pid = _HEADER.unpack_from(buffer, offset)
        if version != _VERSION or not _HEADER.size <= header <= length <= len(buffer) - offset:
            yield Raw("overflow", None)
            return
        yield from _event(mask, pid, buffer[offset + header : offset + length])
        offset += length


def _event(mask: int, pid: int, infos: bytes) -> Iterator[Raw]:
    if mask & Q_OVERFLOW:
        yield Raw("overflow", None)
        return
    parsed = _infos(infos)
    if parsed is None:
        yield Raw("overflow", None)
        return
    key, name, child, pidfd = parsed
    if key is None:
        key, child = child, None
    kinds = [(kind, False) for bits, kind in _KINDS if mask & bits] + [
        (kind, True) for bits, kind in _ENDINGS if mask & bits
    ]
    for kind, gone in kinds:
        inside = "" if name == "." else name
        yield Raw(kind, key, inside, child, bool(mask & ONDIR), gone, pid, pidfd)  # type: ignore[arg-type]
        pidfd = -1  # it is one descriptor, owned by the first
    if not kinds:  # nothing that was asked for, but the descriptor is the reader's to close
        yield Raw("attrib", None, pid=pid, pidfd=pidfd)


def _infos(data: bytes) -> tuple[Key | None, str, Key | None, int] | None:
    """(folder key, name, child key, pidfd) of an event's info records; None when they do not fit."""
    key, name, child, pidfd, offset = None, "", None, -1, 0
    while offset < len(data):
        if len(data) - offset < _INFO.size:
            return None
        kind, _, length = _INFO.unpack_from(data, offset)
        if not _INFO.size <= length <= len(data) - offset:
            return None
        body, offset = data[offset + _INFO.size : offset + length], offset + length
        if kind == _PIDFD and len(body) >= 4:
            (pidfd,) = struct.unpack_from("=i", body)
        elif kind in (_FID, _DFID_NAME, _DFID):
            parsed = _fid(body)
            if parsed is None:
                return None
            if kind == _FID:
                child = parsed[0]
            else:
                key, name = parsed
    return key, name, child, pidfd


def _fid(body: bytes) -> tuple[Key, str] | None:
    if len(body) < _HANDLE.size:
        return None
    fsid, size, kind = _HANDLE.unpack_from(body)
    end = _HANDLE.size + size
    if size > _MAX_HANDLE or end > len(body):
        return None
    return ("f", fsid, kind, body[_HANDLE.size : end]), os.fsdecode(body[end:].split(b"\0", 1)[0])


def refusal(error: OSError) -> str:
    """Why there is no fanotify here, in words."""
    if error.errno == errno.EPERM:
        return "no CAP_SYS_ADMIN in the initial user namespace: fanotify would name no process"
    if error.errno == errno.ENOSYS:
        return "this kernel has no fanotify"
    if error.errno == errno.EINVAL:
        return "this kernel's fanotify tells neither names nor processes (needs 5.15)"
    return f"no fanotify: {os.strerror(error.errno or 0)}"
