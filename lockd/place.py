"""What is at a path, and the folders that lead to it, by descriptors: what keep and restore stand on.

Always holds: a path is walked from `/` one component at a time, and a link on the way is refused, so that nobody who
may write in a folder can lead a reader or writer elsewhere. A folder that is made has its owner and mode before it has
its name, and never setuid or setgid bits. Root makes what is another user's
in that user's folder as that user.
Never: follows a link, decides what should be there, or opens what is not a regular file.
"""

from __future__ import annotations

import errno
import hashlib
import os
import stat
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import NamedTuple

from lockd.errors import LockdError

FILE, LINK, FOLDER, FIFO, OTHER, NOTHING = "f", "l", "d", "p", "o", "-"

_FOLDER = os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
PLAIN = 0o1777  # setuid and setgid are never put back
_KINDS = {stat.S_IFREG: FILE, stat.S_IFLNK: LINK, stat.S_IFDIR: FOLDER, stat.S_IFIFO: FIFO}


class Row(NamedTuple):
    """What is, or should be, at a path: absolute, its folders without links.

    content: sha256 hex of a file, the text of a link. mode: permission bits. mtime: ns.
    """

    path: str
    kind: str
    content: str = ""
    size: int = 0
    mode: int = 0
    uid: int = 0
    gid: int = 0
    mtime: int = 0


class PlaceError(LockdError):
    """Something could not be put in its place, or read from it; what was there is as it was."""


def row_of(path: str, status: os.stat_result, content: str = "") -> Row:
    """The row of a path from its status."""
    kind = _KINDS.get(stat.S_IFMT(status.st_mode), OTHER)
    size = status.st_size if kind == FILE else 0
    mode = stat.S_IMODE(status.st_mode)
    return Row(path, kind, content, size, mode, status.st_uid, status.st_gid, status.st_mtime_ns)


def resolved(path: str) -> str:
    """A path with the links of its folders resolved, the last component left as it is."""
    folder, name = os.path.split(path)
    return os.path.join(os.path.realpath(folder), name)


class Folders:
    """Folders opened from `/` on without following links, the last few kept open. Close it, or use it in a `with`."""

    def __init__(self, rows: Mapping[str, Row] | None = None) -> None:
        self._open: dict[str, int] = {}
        self._rows = rows or {}  # how folders that are made should be

    def __enter__(self) -> Folders:
        return self

    def __exit__(self, *_: object) -> None:
        while self._open:
            os.close(self._open.popitem()[1])

    def open(self, path: str, *, make: bool = False) -> int:
        """A descriptor of a folder, which stays this object's. FileNotFoundError where it is not there."""
        known = self._open.get(path)
        if known is not None:
            return known
        descriptor = self._walk(path, make)
        if len(self._open) >= 32:
            os.close(self._open.pop(next(iter(self._open))))
        self._open[path] = descriptor
        return descriptor

    def forget(self, path: str) -> None:
        """Close what lies at or below a path that goes away."""
        for known in [one for one in self._open if one == path or one.startswith(path + "/")]:
            os.close(self._open.pop(known))

    def _walk(self, path: str, make: bool) -> int:
        at = os.open("/", os.O_RDONLY | _FOLDER)
        walked = ""
        try:
            for name in filter(None, path.split("/")):
                walked += f"/{name}"
                below = self._step(at, name, walked, make)
                os.close(at)
                at = below
        except BaseException:
            os.close(at)
            raise
        return at

    def _step(self, at: int, name: str, walked: str, make: bool) -> int:
        try:
            return _open_folder(at, name)
        except FileNotFoundError:
            if not make:
                raise
            self._make(at, name, walked)
            return _open_folder(at, name)
        except OSError as error:
            if error.errno in (errno.ELOOP, errno.ENOTDIR):
                raise NotADirectoryError(errno.ENOTDIR, "a link, or no folder", walked) from None
            raise

    def _make(self, at: int, name: str, walked: str) -> None:
        """Aside as well: a folder that stands has its owner and mode."""
        row = self._rows.get(walked)
        above = os.fstat(at)
        uid, gid = (row.uid, row.gid) if row else (above.st_uid, above.st_gid)
        aside = aside_name(name)
        remove_empty_at(at, aside)
        with acting_as(above, uid, gid):
            os.mkdir(aside, 0o700, dir_fd=at)
            made = os.open(aside, os.O_RDONLY | _FOLDER, dir_fd=at)
        try:
            dress(made, uid, gid, row.mode if row else 0o755)
        finally:
            os.close(made)
        os.rename(aside, name, src_dir_fd=at, dst_dir_fd=at)


def _open_folder(at: int, name: str) -> int:
    try:
        return os.open(name, os.O_RDONLY | _FOLDER, dir_fd=at)
    except PermissionError:  # a folder that may be passed, not listed
        return os.open(name, os.O_PATH | _FOLDER, dir_fd=at)


# -- reading


def look(folders: Folders, path: str) -> tuple[Row, os.stat_result | None]:
    """What is at a path now, a file's content left open; and its status."""
    folder, name = os.path.split(path)
    try:
        at = folders.open(folder)
        status = os.stat(name, dir_fd=at, follow_symlinks=False)
        text = os.readlink(name, dir_fd=at) if stat.S_ISLNK(status.st_mode) else ""
    except (FileNotFoundError, NotADirectoryError):
        return Row(path, NOTHING), None
    return row_of(path, status, text), status


def open_file(folders: Folders, path: str) -> int:
    """A descriptor of a regular file for reading. OSError for anything else."""
    folder, name = os.path.split(path)
    descriptor = os.open(name, _READ, dir_fd=folders.open(folder))
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "no regular file", path)
    return descriptor


def below(folders: Folders, path: str) -> Iterator[str]:
    """Every path under a folder, each folder before what is in it."""
    for name in sorted(os.listdir(folders.open(path))):
        inner = f"{path}/{name}"
        yield inner
        if look(folders, inner)[0].kind == FOLDER:
            yield from below(folders, inner)


# -- what making and writing share


def aside_name(name: str) -> str:
    """The name that a file has until it is whole: the same every time, so that a killed writer leaves at most one."""
    return f".lockd-{hashlib.sha256(os.fsencode(name)).hexdigest()[:16]}.aside"


@contextmanager
def acting_as(folder: os.stat_result, uid: int, gid: int) -> Iterator[None]:
    """As root, in another user's folder, for a file of theirs: be that user meanwhile."""
    if os.geteuid() != 0 or uid == 0 or folder.st_uid != uid:
        yield
        return
    try:
        os.setegid(gid)
        os.seteuid(uid)
    except OSError:  # an id that this user namespace does not map: root of the namespace writes
        os.setegid(0)
        yield
        return
    try:
        yield
    finally:
        os.seteuid(0)
        os.setegid(0)


def remove_empty_at(at: int, name: str) -> bool:
    """Likewise, in an open folder."""
    try:
        os.rmdir(name, dir_fd=at)
    except OSError:  # not empty, no folder, or not there: as well
        return False
    return True


def dress(descriptor: int, uid: int, gid: int, mode: int) -> None:
    made = os.fstat(descriptor)
    if (made.st_uid, made.st_gid) != (uid, gid):
        given(lambda: os.fchown(descriptor, uid, gid))
    os.fchmod(descriptor, mode & PLAIN)


def given(chown: Callable[[], None]) -> None:
    """A plain user can't give files away, nor a namespace to ids that it does not map: the owner is told, not drift."""
    try:
        chown()
    except OSError as error:
        if error.errno not in (errno.EPERM, errno.EINVAL):
            raise
