"""The runtime folder of a daemon: its socket, its cookies, and the lock that keeps a second one out.

Always holds: the folder is this user's own and nobody else can write to it; the lock is held as long as the process
lives; the socket belongs to the owner, or to the policy's `override_group` as well.
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


class Place:
    """Held from `open` to `close`."""

    def __init__(self, folder: str, descriptor: int) -> None:
        self.folder, self._descriptor = folder, descriptor
        self.socket = os.path.join(folder, "socket")
        self.cookies = os.path.join(folder, "cookies")

    def listen(self, policy: Policy) -> socket.socket:
        """A new listening socket at this place; what an earlier daemon left is replaced."""
        try:
            os.unlink(self.socket)
        except FileNotFoundError:
            pass
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        old = os.umask(0o177)
        try:
            with protocol.Address(self.socket) as name:
                listener.bind(name)
        finally:
            os.umask(old)
        listener.listen(BACKLOG)
        self.share(policy)
        return listener

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

    def close(self, *, unlink: bool) -> None:
        """Let go; the folder stays, it is nobody's else."""
        if unlink:
            try:
                os.unlink(self.socket)
            except FileNotFoundError:
                pass
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
    descriptor = os.open(os.path.join(folder, "pid"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        pid = os.read(descriptor, 32).decode("ascii", "replace").strip()
        os.close(descriptor)
        hint = f"lockd --policy {policy_path} status shows it"
        raise UsageError(f"a daemon for this policy runs already (pid {pid or '?'})", where=folder, hint=hint) from None
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
    return Place(folder, descriptor)


def _own(folder: str) -> None:
    hint = "remove it, or set LOCKD_RUNTIME to a folder of yours"
    try:
        if not os.path.lexists(folder):
            os.makedirs(folder, mode=0o755, exist_ok=True)
            os.chmod(folder, 0o755)  # noqa: S103  whatever the umask: the socket in it says who may ask
        row = os.lstat(folder)
    except OSError as error:
        raise LookError(f"the runtime folder can't be made: {error.strerror}", where=folder, hint=hint) from None
    if not stat.S_ISDIR(row.st_mode):
        raise LookError("the runtime folder is a link or no folder, and is not used", where=folder, hint=hint)
    if row.st_uid != os.geteuid() or row.st_mode & 0o022:
        raise LookError("others may write to the runtime folder, and it is not used", where=folder, hint=hint)
