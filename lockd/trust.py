"""Who may write: a policy or a lock counts only when nobody but root and the user could have written or replaced it.

Always holds: the real file is judged, and every folder and link on the way to it, to the root of the file system. In a
user namespace uid 65534 is somebody unknown, unless the inode is unmapped there and the caller said to trust that.
Never: opens a file for writing, changes a mode, or passes what it could not stat.
"""

from __future__ import annotations

import errno
import os
import stat
import struct
from collections.abc import Iterator
from typing import Literal

from lockd.errors import LockdError, LockError, PolicyError

What = Literal["policy", "lock"]
OUTSIDE = "owned outside this container"
_OVERFLOW = 65534
_CAP_FOWNER = 3
_ACL_USER, _ACL_GROUP_OBJ, _ACL_GROUP, _ACL_WRITE = 0x02, 0x04, 0x08, 2
_LINKS = 40  # as many as the kernel follows


class _Distrust(Exception):
    """Why a path can't be trusted, and the command that mends it."""

    def __init__(self, path: str, reason: str, hint: str) -> None:
        super().__init__(reason)
        self.path, self.reason, self.hint = path, reason, hint


def check(path: str, what: What, *, trust_unmapped: bool = False) -> str | None:
    """Raise PolicyError or LockError when others could have written `path`. Returns a note to print, or None."""
    notes: set[str] = set()
    try:
        for folder, name in _steps(os.path.abspath(path)):
            _check_step(folder, name, trust_unmapped, notes)
        _check_file(os.path.realpath(path), trust_unmapped, notes)
    except _Distrust as found:
        place = "" if found.path == os.path.abspath(path) else f"{found.path} is "
        raise _error(what, path, f"not trusted: {place}{found.reason}", found.hint) from None
    except OSError as error:
        raise _error(what, path, f"could not look who may write it: {error.strerror}: {error.filename}") from None
    return next(iter(notes), None)


def outside(*paths: str) -> tuple[str, ...]:
    """What is trusted only since the caller said so, in one line, the files first: `PATH, …: owned outside …`."""
    notes: set[str] = set()
    for path in paths:
        try:
            for folder, name in _steps(os.path.abspath(path)):
                _check_step(folder, name, True, notes)
            _check_file(os.path.realpath(path), True, notes)
        except (_Distrust, OSError):  # not there, or refused by `check` already
            continue
    named = sorted((note.removesuffix(f": {OUTSIDE}") for note in notes), key=lambda name: (-name.count("/"), name))
    return (f"{', '.join(named)}: {OUTSIDE}",) if named else ()


def _error(what: What, path: str, text: str, hint: str = "") -> LockdError:
    if what == "policy":
        return PolicyError([f"{path}: the policy is {text}"], where=path, hint=hint)
    return LockError(f"the lock is {text}", where=path, hint=hint)


def _steps(path: str) -> Iterator[tuple[str, str]]:
    """Every (folder, name) that the kernel passes on the way to `path`, those behind links included."""
    folder, ahead, links = "/", path.strip("/").split("/"), 0
    while ahead:
        name = ahead.pop(0)
        if name in ("", "."):
            continue
        if name == "..":
            folder = os.path.dirname(folder)
            continue
        yield folder, name
        here = os.path.join(folder, name)
        if stat.S_ISLNK(os.lstat(here).st_mode):
            links += 1
            if links > _LINKS:
                raise _Distrust(path, "behind a circle of links", "")
            target = os.readlink(here)
            folder = "/" if target.startswith("/") else folder
            ahead = [*target.split("/"), *ahead]
        else:
            folder = here


def _check_step(folder: str, name: str, trust_unmapped: bool, notes: set[str]) -> None:
    """A folder must not let others put something else in the place of `name`."""
    found = os.stat(folder)
    _check_owner(folder, found, trust_unmapped, notes)
    writers = _others_who_write(folder, found)
    if not writers:
        return
    if not found.st_mode & stat.S_ISVTX:
        raise _Distrust(folder, f"a folder writable by {writers}", f"chmod {_fix(folder, found)} {folder}")
    # sticky: only the owner of the entry, of the folder, and root can move the entry away
    entry = os.path.join(folder, name)
    try:
        _check_owner(entry, os.lstat(entry), trust_unmapped, notes)
    except _Distrust as found_out:
        raise _Distrust(entry, f"{found_out.reason}, in a folder writable by {writers}", found_out.hint) from None


def _check_file(path: str, trust_unmapped: bool, notes: set[str]) -> None:
    found = os.stat(path)
    _check_owner(path, found, trust_unmapped, notes)
    writers = _others_who_write(path, found)
    if writers:
        mode = stat.S_IMODE(found.st_mode)
        raise _Distrust(path, f"writable by {writers} (mode {mode:04o})", f"chmod {_fix(path, found)} {path}")


def _check_owner(path: str, found: os.stat_result, trust_unmapped: bool, notes: set[str]) -> None:
    user, owner = os.geteuid(), found.st_uid
    if owner == _overflow_uid() and _in_user_namespace():
        if not _unmapped(path):
            raise _Distrust(path, f"owned by uid {owner}, which may be anybody in this container", f"chown 0 {path}")
        if not trust_unmapped:
            hint = f"chown 0 {path}; or, if the host's owner is trusted, add --trust-unmapped"
            raise _Distrust(path, f"{OUTSIDE} (uid {owner} here)", hint)
        notes.add(f"{path}: {OUTSIDE}")
    elif owner not in (0, user):
        who = "root" if user == 0 else f"root nor {_user(user)}"
        raise _Distrust(path, f"owned by {_user(owner)}, not by {who}", f"chown {user} {path}")


def _others_who_write(path: str, found: os.stat_result) -> str:
    """Who besides the owner and root can write here, in words; empty where nobody can."""
    if found.st_mode & stat.S_IWOTH:
        return "everybody"
    if not found.st_mode & stat.S_IWGRP:
        return ""
    entries = _acl(path)
    if not entries:
        return "" if _private_group(found) else f"group {_group(found.st_gid)}"
    for tag, permissions, who in entries:  # with an ACL the group bits are only its mask
        if not permissions & _ACL_WRITE:
            continue
        if tag == _ACL_USER and who not in (0, found.st_uid, os.geteuid()):
            return f"{_user(who)} (by its ACL)"
        if tag == _ACL_GROUP:
            return f"group {_group(who)} (by its ACL)"
        if tag == _ACL_GROUP_OBJ and not _private_group(found):
            return f"group {_group(found.st_gid)}"
    return ""


def _acl(path: str) -> list[tuple[int, int, int]]:
    """(tag, permissions, id) of each entry of the POSIX ACL; empty where there is none."""
    try:
        raw = os.getxattr(path, "system.posix_acl_access")
    except OSError:  # none, or a file system without ACLs: the mode says it all
        return []
    return [(tag, bits, who) for tag, bits, who in struct.iter_unpack("<HHI", raw[4 : 4 + (len(raw) - 4) // 8 * 8])]


def _private_group(found: os.stat_result) -> bool:
    """Is the group the owner's own: same name, the owner's primary one, nobody else in it?"""
    import grp
    import pwd

    try:
        owner, group = pwd.getpwuid(found.st_uid), grp.getgrgid(found.st_gid)
    except KeyError:
        return False
    if group.gr_name != owner.pw_name or owner.pw_gid != found.st_gid or set(group.gr_mem) - {owner.pw_name}:
        return False
    return all(user.pw_uid == found.st_uid for user in pwd.getpwall() if user.pw_gid == found.st_gid)


def _fix(path: str, found: os.stat_result) -> str:
    return "go-w" if found.st_mode & stat.S_IWOTH else "g-w"


def _in_user_namespace() -> bool:
    return _uid_map() != [(0, 0, 0xFFFFFFFF)]


def _uid_map() -> list[tuple[int, ...]]:
    """(inside, outside, count) of each range of this user namespace."""
    try:
        with open("/proc/self/uid_map", encoding="ascii") as file:
            return [tuple(int(word) for word in line.split()) for line in file]
    except FileNotFoundError:  # a kernel without user namespaces
        return [(0, 0, 0xFFFFFFFF)]


def _overflow_uid() -> int:
    try:
        with open("/proc/sys/kernel/overflowuid", encoding="ascii") as file:
            return int(file.read())
    except (OSError, ValueError):
        return _OVERFLOW


def _unmapped(path: str) -> bool:
    """Is the inode's owner outside this user namespace, and so out of reach for everybody in it?

    Where no range holds 65534, nobody's own files can't be here. Else O_NOATIME tells: it is the owner's right, which
    the namespace's root has over every mapped inode, and over no other. Without it nothing can be told: False.
    """
    overflow = _overflow_uid()
    if not any(inside <= overflow < inside + count for inside, _, count in _uid_map()):
        return True
    if not _has_fowner():
        return False
    try:
        os.close(os.open(path, os.O_RDONLY | os.O_NOATIME | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC))
    except OSError as error:
        return error.errno == errno.EPERM
    return False


def _has_fowner() -> bool:
    try:
        with open("/proc/self/status", encoding="ascii", errors="replace") as file:
            effective = next(int(line.split()[1], 16) for line in file if line.startswith("CapEff:"))
    except (OSError, StopIteration):
        return False
    return bool(effective >> _CAP_FOWNER & 1)


def _user(uid: int) -> str:
    import pwd

    try:
        return f"user {pwd.getpwuid(uid).pw_name} (uid {uid})"
    except KeyError:
        return f"uid {uid}"


def _group(gid: int) -> str:
    import grp

    try:
        return f"{grp.getgrgid(gid).gr_name} (gid {gid})"
    except KeyError:
        return str(gid)
