"""Paths as a policy names them: by themselves or by glob, what is there and what a link leads to, stat in words.

Always holds: an absent path, one that could not be looked at, and one that is there are three different answers. A
glob that met an unreadable folder says so; no wildcard follows a link, a folder that the pattern spells out may be one.
Never: opens what is not a regular file, waits for one, or moves its atime where that can be helped.
"""

from __future__ import annotations

import errno
import os
import re
import stat
import time
from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import NamedTuple

from lockd import globs
from lockd.disk import Trouble
from lockd.facts import shown

_NOT_THERE = (errno.ENOENT, errno.ENOTDIR)
_TYPES = (
    (stat.S_ISREG, "file"),
    (stat.S_ISDIR, "folder"),
    (stat.S_ISLNK, "link"),
    (stat.S_ISFIFO, "fifo"),
    (stat.S_ISSOCK, "socket"),
)
_ESCAPE = r"\\(?:x([0-9a-f]{2})|u([0-9a-f]{4})|U([0-9a-f]{8})|(.))"


# -- names and globs


def is_glob(path: str) -> bool:
    """Does this path of a policy hold a wildcard?"""
    return any(character in path for character in "*?[")


def expand(pattern: str) -> tuple[list[str], list[Trouble]]:
    """The existing paths that an absolute glob matches, sorted, and the folders that could not be listed on the way."""
    found = {pattern} if os.path.lexists(pattern) else set()  # a name may look like a glob
    troubles: dict[str, Trouble] = {}
    parts = [part for part in pattern.split("/") if part]
    pending, visited = [("/", 0)], set()
    while pending:
        step = pending.pop()
        if step in visited:
            continue
        visited.add(step)
        folder, index = step
        if index == len(parts):
            found.add(folder)
            continue
        try:
            pending.extend(_steps(folder, parts, index))
        except OSError as error:
            if error.errno not in _NOT_THERE:
                troubles[folder] = Trouble(folder, reason(error))
    return sorted(found), [troubles[path] for path in sorted(troubles)]


def _steps(folder: str, parts: list[str], index: int) -> Iterable[tuple[str, int]]:
    """Where one component of the pattern leads from `folder`: (path, next component)."""
    part = parts[index]
    if not is_glob(part):
        path = os.path.join(folder, part)
        os.lstat(path)
        return [(path, index + 1)]
    with os.scandir(folder) as listing:
        entries = [(entry.path, entry.name, entry.is_dir(follow_symlinks=False)) for entry in listing]
    last = index + 1 == len(parts)
    if part == "**":
        deeper = [(path, index) for path, _, is_folder in entries if is_folder]
        here = [(path, index + 1) for path, _, _ in entries] if last else [(folder, index + 1)]
        return deeper + here
    matches = _matcher(part)
    return [(path, index + 1) for path, name, is_folder in entries if matches(name) and (last or is_folder)]


@lru_cache(maxsize=1024)
def _matcher(pattern: str) -> Callable[[str], bool]:
    return globs.matches((pattern,))


def covers(pattern: str, subject: str) -> bool:
    """Does a path or glob of the policy name the fact of this subject (escaped)? A glob's own spelling counts."""
    if shown(pattern) == subject:
        return True
    path = unshown(subject)
    if not is_glob(pattern) or ("**" not in pattern and pattern.count("/") != path.count("/")):
        return False
    return _matcher(pattern)(path.lstrip("/"))


def fixed_folder(pattern: str) -> str:
    """The folder of a path, or the part of a glob before its first wildcard: what `exclude` is relative to."""
    return globs.literal_root(pattern) if is_glob(pattern) else os.path.dirname(pattern)


def excluded(exclude: tuple[str, ...], folder: str, path: str) -> bool:
    """Is `path`, or a folder that it lies in, left out by one of the globs (relative to `folder`, or absolute)?"""
    if not exclude:
        return False
    relative = os.path.relpath(path, folder)
    return any(_matcher(one)(path.lstrip("/") if one.startswith("/") else relative) for one in exclude)


class Root(NamedTuple):
    """Where a rule's path leads: the folder to walk, what the path says if it is a link, and its type."""

    path: str
    target: str
    type: str


def find_root(path: str) -> Root | Trouble | None:
    """What a rule's path leads to. None: nothing is there, or a link to nothing."""
    status = lstat(path)
    if status is None or isinstance(status, Trouble):
        return status
    if not stat.S_ISLNK(status.st_mode):
        return Root(path, "", file_type(status.st_mode))
    try:
        target = os.readlink(path)
        real = os.path.realpath(path, strict=True)
        return Root(real, shown(target), file_type(os.stat(real).st_mode))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        return Trouble(path, reason(error))


def link_text(path: str) -> str:
    """What a link says; of one that went meanwhile, nothing."""
    try:
        return os.readlink(path)
    except OSError:
        return ""


def with_target(path: str) -> tuple[str, ...]:
    """A path, and what it leads to where that is another: both are to be watched."""
    real = os.path.realpath(path)
    return (path,) if real == path else (path, real)


def unshown(subject: str) -> str:
    """The name behind an escaped one (`facts.shown`)."""
    return re.sub(_ESCAPE, _unescaped, subject, flags=re.DOTALL)


def _unescaped(match: re.Match[str]) -> str:
    byte, short, long, plain = match.groups()
    if byte:
        point = int(byte, 16)
        return chr(point + 0xDC00 if point >= 0x80 else point)
    if short or long:
        return chr(int(short or long, 16))
    return {"n": "\n", "r": "\r", "t": "\t"}.get(plain, plain)


# -- stat in words


def lstat(path: str) -> os.stat_result | Trouble | None:
    """lstat of one path. None: it is not there; Trouble: nobody can tell."""
    try:
        return os.lstat(path)
    except OSError as error:
        return None if error.errno in _NOT_THERE else Trouble(path, reason(error))
    except ValueError as error:  # a NUL in the path
        return Trouble(path, str(error))


def inode(path: str) -> int:
    """The inode of what is at a path; 0 where nobody can tell."""
    found = lstat(path)
    return found.st_ino if isinstance(found, os.stat_result) else 0


def open_regular(path: str) -> int:
    """A descriptor of a regular file, opened without waiting, following a link or moving its atime; else OSError."""
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        descriptor = os.open(path, flags | os.O_NOATIME)
    except PermissionError:  # O_NOATIME is the owner's alone
        descriptor = os.open(path, flags)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "not a regular file")
    return descriptor


def file_type(mode: int) -> str:
    """file, folder, link, fifo, socket or device."""
    return next((word for test, word in _TYPES if test(mode)), "device")


def owner(status: os.stat_result) -> str:
    """`root:root`, or numbers for ids that have no name here."""
    return f"{_user(status.st_uid)}:{_group(status.st_gid)}"


@lru_cache(maxsize=256)
def _user(uid: int) -> str:
    if uid == 0:
        return "root"
    import pwd

    try:
        return shown(pwd.getpwuid(uid).pw_name)
    except KeyError:
        return str(uid)


@lru_cache(maxsize=256)
def _group(gid: int) -> str:
    if gid == 0:
        return "root"
    import grp

    try:
        return shown(grp.getgrgid(gid).gr_name)
    except KeyError:
        return str(gid)


def iso(nanoseconds: int) -> str:
    """A time of the file system as ISO UTC, to the second."""
    try:
        return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(nanoseconds // 1_000_000_000))
    except (OverflowError, OSError, ValueError):
        return f"{nanoseconds // 1_000_000_000} s since 1970"


def reason(error: OSError) -> str:
    """Why a path could not be read, in words."""
    return os.strerror(error.errno) if error.errno else str(error)
