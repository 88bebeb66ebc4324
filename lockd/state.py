"""Where lockd keeps things for one policy, and whose they are.

Always holds: root's state lies in /var/lib/lockd, a user's in XDG state, and it serves only policies that its owner
may accept: their own, and for root every one. A folder that another could write to, or that is a link, is refused,
never used. One folder a policy.
Never: follows a link into the state, loosens a mode, or opens the store.
"""

from __future__ import annotations

import hashlib
import io
import os
import re
import stat
from typing import TYPE_CHECKING

from lockd import atomic
from lockd.errors import LookError
from lockd.plain import dataclass

if TYPE_CHECKING:
    from lockd.store import Store

ROOT_STATE, ROOT_RUNTIME = "/var/lib/lockd", "/run/lockd"


@dataclass(frozen=True)
class State:
    """The folder of one policy (0700). `cache_dir` below it may be deleted at any time; the rest is the history."""

    folder: str
    guest: bool = False  # the policy is somebody else's: runs are recorded here, nothing is accepted

    @property
    def cache_dir(self) -> str:
        return os.path.join(self.folder, "cache")

    @property
    def store_path(self) -> str:
        return os.path.join(self.folder, "store.sqlite")

    @property
    def objects_dir(self) -> str:
        return os.path.join(self.folder, "objects")

    @property
    def standing_path(self) -> str:
        return os.path.join(self.folder, "standing.json")

    @property
    def override_path(self) -> str:
        return os.path.join(self.folder, "override.json")

    @property
    def override_over_path(self) -> str:
        """Where one that is over waits until the log has said so."""
        return os.path.join(self.folder, "override.over.json")

    @property
    def accept_lock_path(self) -> str:
        return os.path.join(self.folder, "accept.lock")

    @property
    def secret_key_path(self) -> str:
        return os.path.join(self.folder, "secret.key")

    def store(self, *, create: bool = False) -> Store | None:
        """The store, opened; None where there is none yet. Whoever asks closes it."""
        from lockd import store

        return store.open(self.store_path, create=create)

    def accepted_digests(self) -> frozenset[str]:
        """The digests of policies that were accepted here: their `[[command]]` may run."""
        try:
            with io.open(os.path.join(self.folder, "accepted-policies"), encoding="ascii") as file:  # noqa: UP020
                return frozenset(file.read().split())
        except (FileNotFoundError, UnicodeDecodeError):
            return frozenset()

    def accept_digest(self, digest: str) -> None:
        """Remember that the owner has seen and accepted the policy with this digest."""
        known = self.accepted_digests()
        if digest not in known:
            text = "".join(f"{line}\n" for line in sorted({*known, digest}))
            atomic.write(os.path.join(self.folder, "accepted-policies"), text.encode("ascii"), mode=0o600)


def open(policy_path: str, *, create: bool, guest: bool = False) -> State | None:
    """The state for a policy. None: this user has none for it, or may not have one; then look without.

    create: make what is missing. guest: also for a policy of somebody else, for records of this user's own launches.
    A hostile folder, or one that can't be made, is a LookError.
    """
    path = os.path.abspath(policy_path)
    base = base_dir()
    may = base is not None and _may(path)
    if base is None or not (may or guest):
        return None
    folder = os.path.join(base, folder_name(path))
    state = State(folder, guest=not may)
    if not create and not os.path.lexists(folder):
        return None
    if create:
        _make(base, folder, state.cache_dir)
    for part in (base, folder, state.cache_dir):
        if os.path.lexists(part):
            _check(part)
    return state


def folder_name(path: str) -> str:
    """`ct200-` and 12 hex digits of the policy's absolute path."""
    name = os.path.basename(path)
    stem = (
        re.sub(r"[^A-Za-z0-9._-]", "_", name[: -len(".toml")] if name.endswith(".toml") else name)[:80].lstrip(".")
        or "policy"
    )
    return f"{stem}-{hashlib.sha256(os.fsencode(path)).hexdigest()[:12]}"


def base_dir() -> str | None:
    """`$LOCKD_STATE`, else by user. None where a user has no home that could hold it."""
    moved = os.environ.get("LOCKD_STATE")
    if moved:
        return os.path.abspath(moved)
    if os.geteuid() == 0:
        return ROOT_STATE
    asked = os.environ.get("XDG_STATE_HOME", "")
    if os.path.isabs(asked):
        return os.path.join(asked, "lockd")
    home = _home()
    return os.path.join(home, ".local", "state", "lockd") if home else None


def runtime_dir() -> str | None:
    """Where sockets lie: `$LOCKD_RUNTIME`, /run/lockd for root, `$XDG_RUNTIME_DIR/lockd`. None: no place."""
    moved = os.environ.get("LOCKD_RUNTIME")
    if moved:
        return os.path.abspath(moved)
    if os.geteuid() == 0:
        return ROOT_RUNTIME
    asked = os.environ.get("XDG_RUNTIME_DIR", "")
    return os.path.join(asked, "lockd") if os.path.isabs(asked) else None


def may_accept(owner: int) -> bool:
    """Whether this process may change the known-good of a policy: its owner and root may."""
    return os.geteuid() in (0, owner)


def _may(path: str) -> bool:
    try:
        return may_accept(os.stat(path).st_uid)
    except FileNotFoundError:  # a deleted policy's state still is its maker's
        return True
    except OSError:
        return False


def _home() -> str | None:
    home = os.environ.get("HOME", "")
    if os.path.isabs(home):
        return home
    import pwd

    try:
        return pwd.getpwuid(os.geteuid()).pw_dir
    except KeyError:
        return None


def _make(base: str, *inside: str) -> None:
    try:
        os.makedirs(base, mode=0o700, exist_ok=True)
        for folder in inside:
            try:
                os.mkdir(folder, 0o700)
            except FileExistsError:
                pass
    except OSError as error:
        hint = "make the folder, or set LOCKD_STATE to one of yours"
        raise LookError(
            f"the state folder could not be made: {error.strerror}", where=error.filename or base, hint=hint
        ) from None


def _check(folder: str) -> None:
    """A folder, not a link, ours, and written to by nobody else."""
    hint = "look at who made it, then remove it or give it back: lockd makes it anew"
    try:
        row = os.lstat(folder)
    except OSError as error:
        raise LookError(f"the state folder could not be read: {error.strerror}", where=folder) from None
    if stat.S_ISLNK(row.st_mode) or not stat.S_ISDIR(row.st_mode):
        raise LookError("the state folder is a link or no folder, and is not used", where=folder, hint=hint)
    if row.st_uid != os.geteuid():
        raise LookError(f"the state folder belongs to uid {row.st_uid}, and is not used", where=folder, hint=hint)
    if row.st_mode & 0o022:
        raise LookError(
            "the state folder is writable by others, and is not used", where=folder, hint=f"chmod go-w {folder}"
        )
