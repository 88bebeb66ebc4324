"""What the daemon is about: one policy, its state and its lock, the last good ones of each.

Always holds: policy and lock are replaced only by ones that were read and judged whole; `trouble` says why the present
files are not those. A lock that is not there is a fact, not a trouble.
Never: takes a policy for unchanged whose file moved while it was read.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from lockd import lock as locks
from lockd import policy as policies
from lockd.errors import LockdError
from lockd.protocol import Identity, identity

if TYPE_CHECKING:
    from lockd.lock import Lock
    from lockd.rules import Policy
    from lockd.state import State


class Subject:
    """The policy at `path`. Used by the deciding thread alone, but for the identities."""

    def __init__(self, path: str, state: State | None, *, trust_unmapped: bool = False) -> None:
        self.path, self.state, self.trust_unmapped = path, state, trust_unmapped
        self.lock_path = path.removesuffix(".toml") + ".lock"
        self.policy: Policy | None = None
        self.lock: Lock | None = None
        self.trouble = ""
        self.policy_identity: Identity | None = None
        self.lock_identity: Identity | None = None

    def moved(self) -> bool:
        """Are the files others than those that were read?"""
        return (identity(self.path), identity(self.lock_path)) != (self.policy_identity, self.lock_identity)

    def load(self) -> None:
        """Read both. What is bad leaves the last good one, and `trouble`."""
        self.policy_identity, self.lock_identity = identity(self.path), identity(self.lock_path)
        cache = None if self.state is None else self.state.cache_dir
        troubles = []
        try:
            found = policies.load_cached(self.path, cache, trust_unmapped=self.trust_unmapped)
            if self.policy is None or self.policy != found:
                self.policy = found
        except (LockdError, OSError) as error:
            troubles.append(_told(error))
        try:
            name = self.policy.name if self.policy else None
            self.lock = locks.read_cached(self.lock_path, cache, policy=name, trust_unmapped=self.trust_unmapped)
        except (LockdError, OSError) as error:
            troubles.append(_told(error))
        self.trouble = "; ".join(troubles)

    def override(self) -> Identity | None:
        """Moves when an override comes or goes."""
        return None if self.state is None else identity(os.path.join(self.state.folder, "override.json"))


def _told(error: Exception) -> str:
    lines = str(error).splitlines() or [type(error).__name__]
    return lines[0] + (f" (and {len(lines) - 1} more)" if len(lines) > 1 else "")
