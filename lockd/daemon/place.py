"""The runtime folder of a daemon: its socket, its cookies, and the lock that keeps a second one out.

Always holds: the folder is this user's own and nobody else can write to it; the lock is held as long as the process
lives; the socket belongs to the owner, or to the policy's `override_group` as well. A folder that was taken away is
made anew by `renew`, unless another daemon did.
Never: removes what another daemon uses, or follows a link.
"""

from __future__ import annotations

import fcntl
import os
import socket
import stat
from typing import TYPE_CHECKING

from lockd import protocol, state
from lockd.errors import LookError, UsageError

if TYPE_CHECKING:
    from lockd.rules import Policy

BACKLOG = 4096
_HINT = "remove it, or set LOCKD_RUNTIME to a folder of yours"


class Place:
    """Held from `open` to `close`."""

    def __init__(self, folder: str, descriptor: int) -> None:
        self.folder, self._descriptor = folder, descriptor
        self.socket = os.path.join(folder, "socket")
        self.cookies = os.path.join(folder, "cookies")
        self._bound: os.stat_result | None = None  # the socket that `listen` made

    def listen(self, policy: Policy) -> socket.socket:
        """A new listening socket at this place; what an earlier daemon left is replaced. LookError where there can be
        none.
        """
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        old = os.umask(0o177)
        try:
            if os.path.lexists(self.socket):
                os.unlink(self.socket)
            with protocol.Address(self.socket) as name:
                listener.bind(name)
            listener.listen(BACKLOG)
            self._bound = os.lstat(self.socket)
            self.share(policy)
        except OSError as error:
            listener.close()
            raise LookError(f"no socket can be made: {error.strerror}", where=self.socket, hint=_HINT) from None
        finally:
            os.umask(old)
        return listener

    def lost(self) -> bool:
        """Is the lock, or the socket that `listen` made, no longer there?"""
        return not (self._has("pid", os.fstat(self._descriptor)) and (not self._bound or self._has("socket")))

    def _has(self, name: str, row: os.stat_result | None = None) -> bool:
        """Is there a file of this name, and the one of that row?"""
        try:
            here = os.lstat(os.path.join(self.folder, name))
        except OSError:
            return False
        return row is None or os.path.samestat(here, row)

    def renew(self, policy_path: str, policy: Policy) -> socket.socket:
        """Folder, lock and socket anew, where they were. UsageError where another daemon has them, LookError where
        there can be none.
        """
        if not self._has("pid", os.fstat(self._descriptor)):
            new = take(policy_path)
            os.close(self._descriptor)
            self._descriptor = new._descriptor
        return self.listen(policy)

    def share(self, policy: Policy) -> str:
        """Let the policy's group in; what stands in the way, in words."""
        group = policy.launch.override_group
        if group is None:
            os.chmod(self.socket, 0o600)
            return ""
        import grp

        try:
            os.chown(self.socket, -1, grp.getgrnam(group).gr_gid)
            os.chmod(self.socket, 0o660)
        except (KeyError, OSError) as error:
            os.chmod(self.socket, 0o600)
            return f"the group {group} can't be let in: {error}"
        return ""

    def close(self) -> None:
        """Let go; the folder stays, it is nobody's else, and so does a socket that systemd made."""
        if self._bound and self._has("socket", self._bound):
            os.unlink(self.socket)
        os.close(self._descriptor)


def take(policy_path: str) -> Place:
    """The place of this policy's daemon. UsageError where one runs already, LookError where there can be none."""
    base = state.runtime_dir()
    if base is None:
        hint = "set LOCKD_RUNTIME to a folder of yours, or XDG_RUNTIME_DIR"
        raise LookError("there is no runtime folder for this user", hint=hint)
    folder = protocol.folder(base, policy_path)
    for one in (base, folder):
        _own(one)
    path = os.path.join(folder, "pid")
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        raise LookError(f"the runtime folder can't be used: {error.strerror}", where=path, hint=_HINT) from None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        pid = os.read(descriptor, 32).decode("ascii", "replace").strip()
        os.close(descriptor)
        hint = f"lockd --policy {policy_path} status shows it"
        raise UsageError(f"a daemon for this policy runs already (pid {pid or '?'})", where=folder, hint=hint) from None
    os.ftruncate(descriptor, 0)
    try:
        os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
    except OSError:
        pass  # a full folder: it is the lock that keeps a second one out, the number only tells whose it is
    return Place(folder, descriptor)


def _own(folder: str) -> None:
    try:
        if not os.path.lexists(folder):
            os.makedirs(folder, mode=0o755, exist_ok=True)
            os.chmod(folder, 0o755)  # noqa: S103  whatever the umask: the socket in it says who may ask
        row = os.lstat(folder)
    except OSError as error:
        raise LookError(f"the runtime folder can't be made: {error.strerror}", where=folder, hint=_HINT) from None
    if not stat.S_ISDIR(row.st_mode):
        raise LookError("the runtime folder is a link or no folder, and is not used", where=folder, hint=_HINT)
    if row.st_uid != os.geteuid() or row.st_mode & 0o022:
        raise LookError("others may write to the runtime folder, and it is not used", where=folder, hint=_HINT)
