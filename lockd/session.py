"""What a command opens first: which policy, its state, its lock, and the launch that it looks for.

Always holds: the policy is found by `--policy`, else `$LOCKD_POLICY`, else `./lockd.toml`, else
`/etc/lockd/policy.toml`, and read only where nobody else could have written it. A user without a state of their own
still gets an answer.
Never: looks at the machine's facts, or prints.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from lockd.errors import LookError, UsageError
from lockd.plain import dataclass

if TYPE_CHECKING:
    from lockd.lock import Lock
    from lockd.look import Launch
    from lockd.rules import Policy
    from lockd.state import State

SYSTEM_POLICY = "/etc/lockd/policy.toml"
LOCAL_POLICY = "lockd.toml"


@dataclass(frozen=True)
class Session:
    """The policy with what belongs to it.

    lock None: nothing was accepted yet. notes: what a person should be told besides.
    """

    policy: Policy
    state: State | None
    lock: Lock | None
    notes: tuple[str, ...] = ()


def find_policy(args: Any) -> str:
    """The absolute path of the policy that a command is about. UsageError where there is none to be found."""
    named = getattr(args, "policy", None) or os.environ.get("LOCKD_POLICY")
    try:
        if named:
            return os.path.abspath(named)
        found = next((path for path in (LOCAL_POLICY, SYSTEM_POLICY) if os.path.lexists(path)), None)
        if found:
            return os.path.abspath(found)
    except FileNotFoundError:
        raise UsageError(
            "the current folder is gone", hint="name the policy by an absolute path: --policy FILE"
        ) from None
    hint = "lockd init writes one; or name it with --policy FILE or LOCKD_POLICY"
    raise UsageError(f"no policy: none was named, and neither ./{LOCAL_POLICY} nor {SYSTEM_POLICY} is there", hint=hint)


def open_session(args: Any) -> Session:
    """Open the policy, its state and its lock. Raises what is wrong with any of them."""
    from lockd import lock, policy

    path = find_policy(args)
    trust_unmapped = bool(getattr(args, "trust_unmapped", False))
    state, notes = _state(path)
    cache = None if state is None else state.cache_dir
    loaded = policy.load_cached(path, cache, trust_unmapped=trust_unmapped)
    known = lock.read_cached(loaded.lock_path, cache, policy=loaded.name, trust_unmapped=trust_unmapped)
    if known is None and state is not None:
        notes = (*notes, *_lost_lock(state, loaded.lock_path))
    return Session(loaded, state, known, (*notes, *outside(args, path, loaded.lock_path)))


def _lost_lock(state: State, path: str) -> tuple[str, ...]:
    """Said where this state remembers an accept, but the lock that it wrote is not there."""
    from lockd import store
    from lockd.errors import LockdError

    try:
        opened = store.open(state.store_path, create=False)
        if opened is None:
            return ()
        with opened:
            known = opened.generations()
    except (LockdError, OSError):
        return ()
    if not known:
        return ()
    last = known[-1]
    told = f"generation {last.number} of {last.at}, accepted by {last.by}"
    return (f"{path} is gone: it held {told}; put it back: `git checkout` it, or a copy of it",)


def outside(args: Any, *paths: str) -> tuple[str, ...]:
    """What `--trust-unmapped` let pass, to be said whenever it does."""
    if not getattr(args, "trust_unmapped", False):
        return ()
    from lockd import trust

    return trust.outside(*paths)


def this_launch() -> Launch:
    """The launch environment of this very process."""
    from lockd.look import Launch

    try:
        cwd = os.getcwd()
    except FileNotFoundError:
        cwd = "/"
    return Launch(dict(os.environ), cwd)


def _state(path: str) -> tuple[State | None, tuple[str, ...]]:
    """The state, made if need be; where the file system takes none, an answer without it, and a note."""
    from lockd import state

    try:
        own = state.open(path, create=os.path.exists(path))
    except LookError as error:
        if isinstance(error.__context__, OSError):  # read-only or full; a hostile folder stays an error
            return None, (f"no state is kept: {error}",)
        raise
    if own is not None:
        return own, ()
    try:
        return state.open(path, create=False, guest=True), ()
    except LookError as error:  # the policy is somebody else's, and so is the folder: look directly, without state
        return None, (f"looked without state: {error}",)
