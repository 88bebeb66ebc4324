"""Record a planned generation: the store first, then the lock renamed in, then the store again.

Always holds: killed anywhere, the lock is the old one or the new one, whole, and the store says which (`Store.settle`).
Two accepts never interleave: one file lock, and the lock on disk must still be the one that the plan was made from.
Never: decides what is recorded, or looks at the machine.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from lockd import atomic, keep, lock
from lockd.errors import LockdError, LookError, RefusedError
from lockd.facts import Fact
from lockd.store_file import StoreError

if TYPE_CHECKING:
    from lockd.accept import Plan
    from lockd.keep import Kept
    from lockd.lock import Lock
    from lockd.look import Sight
    from lockd.origin import Origin
    from lockd.probes import Manifest
    from lockd.rules import Policy
    from lockd.state import State
    from lockd.store import Store

WAIT = 60.0  # seconds that an accept waits for another one
_STEP = 0.1


def fingerprint(data: bytes | None) -> str:
    """What stood on disk when the plan was made."""
    return "" if data is None else hashlib.sha256(data).hexdigest()


@contextmanager
def alone(state: State, say: Callable[[str], None], wait: float = WAIT) -> Iterator[None]:
    """Hold the file lock between accepts. LookError when another accept does not end in `wait` seconds."""
    descriptor = os.open(state.accept_lock_path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        if not _locked(descriptor):
            say("waiting for another accept to end")
            deadline = time.monotonic() + wait
            while not _locked(descriptor):
                if time.monotonic() > deadline:
                    hint = "`lslocks` shows who holds it"
                    raise LookError("another accept does not end", where=state.accept_lock_path, hint=hint)
                time.sleep(_STEP)
        yield
    finally:
        os.close(descriptor)


def _locked(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def manifests_of(plan: Plan, sight: Sight) -> dict[str, Manifest]:
    """The files behind the facts that this look gave the lock; behind those that stay as they were, the store has them.

    A fact that stays, and is found just so, counts as given: its lock may have come from elsewhere, without files.
    """
    found, locked = sight.facts, plan.lock.facts

    def fresh(name: str) -> bool:
        there, stays = found.get(name), locked[name]
        same = isinstance(there, Fact) and isinstance(stays, Fact) and there.attributes == stays.attributes
        return name in plan.chosen or same

    return {name: rows for name, rows in sight.manifests().items() if name in locked and fresh(name)}


def overtaken(policy: Policy, plan: Plan, seen: str) -> Lock | None:
    """The lock of another accept that came first, inside `alone`, where it holds just what this one would record."""
    data = lock.read_bytes(policy.lock_path)
    if data is None or fingerprint(data) == seen:
        return None
    other = lock.parse(data, policy.lock_path)
    same = _held(other) == _held(plan.lock) and other.policy_digest == plan.lock.policy_digest
    return other if same else None


def _held(one: Lock) -> dict[str, Any]:
    return {name: (fact.attributes, fact.tokens) for name, fact in one.facts.items() if isinstance(fact, Fact)}


def record(
    policy: Policy,
    store: Store,
    plan: Plan,
    seen: str,
    manifests: Mapping[str, Manifest],
    origin: Origin,
    kept: Kept | None = None,
) -> Lock:
    """Make the plan the known-good, inside `alone`. `seen`: the fingerprint of the lock when the plan was made.

    Nothing is changed when this raises: RefusedError if another accept came first, LockdError if the disk is full.
    """
    path = policy.lock_path
    now = lock.read_bytes(path)
    if fingerprint(now) != seen:
        hint = "run it again, and look at the difference again"
        raise RefusedError("the lock changed while this accept looked: another one came first", where=path, hint=hint)
    data = lock.dumps(plan.lock)
    new = replace(plan.lock, digest=lock.digest_of(data) or "")
    # 1. the store knows the generation, pending
    store.settle(plan.before, now or b"")
    with store.transaction():
        store.prepare(new, data, manifests, origin.data(), plan.carried)
        if kept is not None:
            keep.attach(store, new, kept)
    if kept is not None:
        kept.keeping.keep()
    # 2. the lock: aside, fsync, rename. This is the moment.
    _put(path, data, policy)
    # 3. the store learns that it happened
    try:
        store.settle(new, data)
    except StoreError as error:
        what = f"generation {new.generation} is accepted, but the history could not be written: {error.what}"
        raise StoreError(what, where=error.where, hint=error.hint) from error
    return new


def _put(path: str, data: bytes, policy: Policy) -> None:
    try:
        aside = atomic.Aside(path, data, mode=0o644, owner=_owner(policy))
        try:
            aside.commit()
        except BaseException:
            aside.discard()
            raise
    except OSError as error:
        hint = "make room or rights, and accept again; the lock is as it was"
        raise LockdError(f"the lock could not be written: {error.strerror}", where=path, hint=hint) from error


def _owner(policy: Policy) -> tuple[int, int]:
    """A lock that root makes beside another user's policy is that user's."""
    row = os.stat(policy.path)
    return row.st_uid, row.st_gid
