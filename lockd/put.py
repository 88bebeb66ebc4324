"""Files, links and folders put in their place: written aside, renamed in, removed.

Always holds: a file is whole, its digest checked, and on disk before it gets its name; it never gets setuid or setgid
bits; a link or folder that stands there is not followed. Killed anywhere, a path is as it was or as it should be, and
at most one half-written file is left for each, under a name that `aside_name` tells.
Never: decides what should be there.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import stat
from collections.abc import Iterable

from lockd.facts import shown
from lockd.place import LINK, PLAIN, Folders, PlaceError, Row, acting_as, aside_name, dress, given, remove_empty_at

_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


def write_aside(folders: Folders, row: Row, pieces: Iterable[bytes]) -> None:
    """A file under its aside name. PlaceError where the pieces are not what the row says."""
    folder, name = os.path.split(row.path)
    at = folders.open(folder, make=True)
    aside = aside_name(name)
    _unlink(at, aside)
    try:
        with acting_as(os.fstat(at), row.uid, row.gid):
            descriptor = os.open(aside, _NEW, 0o600, dir_fd=at)
        try:
            _fill(descriptor, row, pieces)
            dress(descriptor, row.uid, row.gid, row.mode)
            os.utime(descriptor, ns=(row.mtime, row.mtime))
        finally:
            os.close(descriptor)
    except BaseException:
        _unlink(at, aside)
        raise


def flush(folders: Folders, rows: Iterable[Row]) -> None:
    """Bring files that were written aside to the disk: one flush of a file system costs less than one of each file."""
    flushed: set[int] = set()
    for row in rows:
        at = folders.open(os.path.dirname(row.path))
        device = os.fstat(at).st_dev
        if device not in flushed:
            flushed.add(device)
            flush_all(at)


def flush_all(descriptor: int) -> None:
    """Everything that was written to the file system of an open folder."""
    call = getattr(ctypes.CDLL(None, use_errno=True), "syncfs", None)
    if call is None or call(descriptor) != 0:
        os.sync()


def move_in(folders: Folders, row: Row) -> None:
    """Give a file that was written aside its name."""
    folder, name = os.path.split(row.path)
    at = folders.open(folder)
    os.rename(aside_name(name), name, src_dir_fd=at, dst_dir_fd=at)


def discard(folders: Folders, row: Row) -> None:
    """Forget a file that was written aside; one that has its name already is left."""
    folder, name = os.path.split(row.path)
    try:
        _unlink(folders.open(folder), aside_name(name))
    except (FileNotFoundError, NotADirectoryError):
        pass


def put_other(folders: Folders, row: Row) -> None:
    """Put a link or a FIFO, likewise aside first."""
    folder, name = os.path.split(row.path)
    at = folders.open(folder, make=True)
    aside = aside_name(name)
    _unlink(at, aside)
    with acting_as(os.fstat(at), row.uid, row.gid):
        if row.kind == LINK:
            os.symlink(row.content, aside, dir_fd=at)
        else:
            os.mkfifo(aside, row.mode & PLAIN, dir_fd=at)
    try:
        made = os.stat(aside, dir_fd=at, follow_symlinks=False)
        if (made.st_uid, made.st_gid) != (row.uid, row.gid):
            given(lambda: os.chown(aside, row.uid, row.gid, dir_fd=at, follow_symlinks=False))
        os.utime(aside, ns=(row.mtime, row.mtime), dir_fd=at, follow_symlinks=False)
        os.rename(aside, name, src_dir_fd=at, dst_dir_fd=at)
    except BaseException:
        _unlink(at, aside)
        raise


def put_folder(folders: Folders, row: Row) -> None:
    """Make a folder, as the rows that `folders` was given have it; its time is set last, by `set_time`."""
    folders.open(row.path, make=True)


def set_time(folders: Folders, row: Row) -> None:
    """A folder's time, once all is in it."""
    os.utime(folders.open(row.path), ns=(row.mtime, row.mtime))


def remove(folders: Folders, path: str) -> None:
    """Take away what is at a path, a folder with all that is in it. Nothing there is as well."""
    folder, name = os.path.split(path)
    try:
        at = folders.open(folder)
        status = os.stat(name, dir_fd=at, follow_symlinks=False)
        if stat.S_ISDIR(status.st_mode):
            for inner in os.listdir(folders.open(path)):
                remove(folders, f"{path}/{inner}")
            folders.forget(path)
            os.rmdir(name, dir_fd=at)
        else:
            os.unlink(name, dir_fd=at)
    except (FileNotFoundError, NotADirectoryError):
        pass


def remove_empty(folders: Folders, path: str) -> bool:
    """Take away a folder if nothing is in it."""
    folder, name = os.path.split(path)
    folders.forget(path)
    try:
        return remove_empty_at(folders.open(folder), name)
    except OSError:
        return False


def sync(folders: Folders, path: str) -> None:
    """Make renames in a folder durable; a file system that can't is left alone."""
    try:
        os.fsync(folders.open(path))
    except OSError:
        pass


def _fill(descriptor: int, row: Row, pieces: Iterable[bytes]) -> None:
    digest = hashlib.sha256()
    for piece in pieces:
        digest.update(piece)
        view = memoryview(piece)
        while view:
            view = view[os.write(descriptor, view) :]
    if digest.hexdigest() != row.content:
        hint = "nothing was put there; another source may hold it (--wheels, --generation)"
        raise PlaceError("the bytes to put there are not the locked ones", where=shown(row.path), hint=hint)


def _unlink(at: int, name: str) -> None:
    try:
        os.unlink(name, dir_fd=at)
    except FileNotFoundError:
        pass
