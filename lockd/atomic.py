"""Files written whole or not at all: aside, fsync, rename, fsync of the folder.

Always holds: whoever reads the path sees the old bytes or the new ones, whatever is killed and whenever. A link at the
path stays a link; what it points to is replaced. An existing file keeps its owner and mode.
Never: leaves a half-written file under the real name, or follows a link that somebody put where the aside file goes.
"""

from __future__ import annotations

import errno
import os
import stat


class Aside:
    """New bytes for `path`, on disk under another name until `commit` renames them in. `discard` forgets them.

    One writer at a time is the caller's business (a file lock): the aside name is fixed, so that a killed writer leaves
    at most one.
    """

    def __init__(self, path: str, data: bytes, *, mode: int = 0o644, owner: tuple[int, int] | None = None) -> None:
        self.path = os.path.realpath(path)
        folder, name = os.path.split(self.path)
        self.folder, self.name = folder, os.path.join(folder, f".{name}.aside")
        _unlink(self.name)
        descriptor = os.open(self.name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            try:
                _fill(descriptor, data)
                _dress(descriptor, self.path, mode, owner)
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
        except BaseException:
            _unlink(self.name)
            raise

    def commit(self) -> None:
        """The one moment at which the new bytes take the place of the old."""
        os.rename(self.name, self.path)
        sync_folder(self.folder)

    def discard(self) -> None:
        """Forget the new bytes."""
        _unlink(self.name)


def write(path: str, data: bytes, *, mode: int = 0o644) -> None:
    """Write a whole file, or leave the old one."""
    aside = Aside(path, data, mode=mode)
    try:
        aside.commit()
    except BaseException:
        aside.discard()
        raise


def write_scratch(path: str, data: bytes) -> None:
    """The same without fsync, for caches, which may be lost but never half there. Of several writers the last wins."""
    aside = f"{path}.{os.getpid()}.tmp"
    descriptor = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        try:
            _fill(descriptor, data)
        finally:
            os.close(descriptor)
        os.rename(aside, path)
    except BaseException:
        _unlink(aside)
        raise


def sync_folder(folder: str) -> None:
    """Make renames in `folder` durable; a file system that can't fsync folders is left alone."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    except OSError:
        pass
    finally:
        os.close(descriptor)


def _fill(descriptor: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


def _dress(descriptor: int, path: str, mode: int, owner: tuple[int, int] | None) -> None:
    """Owner and mode of the file that is replaced, else the wanted ones."""
    try:
        old = os.lstat(path)
    except FileNotFoundError:
        if owner is not None and os.geteuid() == 0:
            _give(descriptor, *owner)
        os.fchmod(descriptor, mode)
        return
    made = os.fstat(descriptor)
    if (made.st_uid, made.st_gid) != (old.st_uid, old.st_gid):
        _give(descriptor, old.st_uid, old.st_gid)
    os.fchmod(descriptor, stat.S_IMODE(old.st_mode))


def _give(descriptor: int, uid: int, gid: int) -> None:
    """Where it can't be given it stays ours: the name is what matters."""
    try:
        os.fchown(descriptor, uid, gid)
    except PermissionError:  # a plain user replaces a file of another group of theirs
        pass
    except OSError as error:
        if error.errno != errno.EINVAL:  # that owner is outside this user namespace
            raise


def _unlink(path: str) -> None:
    try:
        os.unlink(path)
    except FileNotFoundError:
        pass
