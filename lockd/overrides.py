"""Break-glass: a reasoned, recorded, expiring leave to start on what a policy blocks.

Always holds: an override is given for findings that stood when it was given, fact by fact. It covers a verdict only
while each blocking finding is one of them, unchanged; when its time is up, or the drift that it was given for changes
or heals, it ends for good, and the log says so. The verdict stays what it is.
Never: makes a verdict of `unknown` pass, or comes back because a clock was put back before its beginning.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from lockd.errors import LockdError, RefusedError, UsageError
from lockd.plain import dataclass, replace

if TYPE_CHECKING:
    from lockd.findings import Finding
    from lockd.origin import Origin
    from lockd.rules import Policy
    from lockd.state import State

LONGEST = 30 * 86400  # seconds; who needs longer changes the policy
_FLEETING = ("env", "launch", "command")  # kinds that differ from shell to shell, or that not every look has
_SLACK = 60  # seconds that a clock may be set back without ending an override


@dataclass(frozen=True)
class Override:
    """One override. at, until: seconds since the epoch. drift: fact → key of the finding that it was given for.

    once: given for one launch alone (`lockd run --override`); such a one is never kept.
    """

    why: str
    by: str
    at: float
    until: float
    drift: Mapping[str, str]
    only: tuple[str, ...] = ()
    once: bool = False

    def document(self) -> dict[str, Any]:
        """As `verify --json` and run records show it."""
        from lockd.clock import stamp

        told: dict[str, Any] = {"why": self.why, "by": self.by, "at": stamp(self.at), "facts": sorted(self.drift)}
        if self.only:
            told["only"] = list(self.only)
        return told if self.once else {**told, "until": stamp(self.until)}


def may(policy: Policy, uid: int | None = None, gid: int | None = None) -> bool:
    """Whether a user (None: this one) may override: root, the policy's owner, members of `launch.override_group`.

    gid: a group that the kernel says the user is in, whatever the account's are.
    """
    user = os.geteuid() if uid is None else uid
    group = policy.launch.override_group
    return user in (0, policy.owner) or (group is not None and _is_member(user, group, gid))


def check_may(policy: Policy, uid: int | None = None, gid: int | None = None) -> None:
    """RefusedError for who may not."""
    if may(policy, uid, gid):
        return
    group = policy.launch.override_group
    who = f"root, the owner of the policy{f' and members of {group}' if group else ''} may"
    raise RefusedError("this user may not override the policy", where=policy.path, hint=who)


def _is_member(user: int, group: str, gid: int | None) -> bool:
    """By the groups of this process, or for somebody else by `gid` and those of the account."""
    import grp
    import pwd

    try:
        number = grp.getgrnam(group).gr_gid
        if user == os.geteuid():
            return number in (os.getegid(), *os.getgroups())
        if number == gid:
            return True
        account = pwd.getpwuid(user)
        return number in os.getgrouplist(account.pw_name, account.pw_gid)
    except (KeyError, OSError):
        return False


# -- the kept one


def kept(state: State | None) -> Override | None:
    """The override of this state, valid or not. None: there is none."""
    return None if state is None else _read(state.override_path)


def told(state: State | None) -> dict[str, Any] | None:
    """The one in force, for `status`; None where there is none."""
    found = kept(state)
    return found.document() if found is not None and in_time(found) else None


def _read(path: str) -> Override | None:
    try:
        with open(path, encoding="utf-8") as file:
            told = json.load(file)
        drift = {str(fact): str(key) for fact, key in told["drift"].items()}
        only = tuple(map(str, told.get("only", ())))
        return Override(str(told["why"]), str(told["by"]), float(told["at"]), float(told["until"]), drift, only)
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError, AttributeError):  # what can't be read gives no leave
        return None


def standing(state: State | None, findings: Iterable[Finding], policy: Policy) -> Override | None:
    """The override that covers a verdict of `block` made of these findings; None where none does.

    Whoever has seen it cover a verdict (a daemon) ends it at the first change: the very drift that comes again finds
    none. Of others this look may be older than the override, which only a look that is recorded ends.
    In a guest's own state anything may have been written, so there the policy is asked again.
    """
    found = kept(state)
    if found is None or not in_time(found) or (state is not None and state.guest and not may(policy)):
        return None
    blocking = keys(findings)
    if _changed(found, blocking):
        if state is not None and (state.folder, found.at) in _seen:
            _put_aside(state)
        return None
    if not blocking or any(found.drift.get(fact) != key for fact, key in blocking.items()):
        return None
    _seen.update({(state.folder, found.at)} if state is not None else ())
    return found


_seen: set[tuple[str, float]] = set()  # (folder, at) of those that this process gave, or has seen in force


def in_time(one: Override) -> bool:
    """Not yet over; a clock put back before its beginning makes nothing valid again."""
    return one.at - _SLACK <= time.time() < one.until


def keys(findings: Iterable[Finding]) -> dict[str, str]:
    """Of each blocking finding that stands for a fact: a key that is equal while it differs in the same way."""
    return {one.fact: _key(one) for one in findings if one.severity == "block"}


def _key(finding: Finding) -> str:
    what: list[Any] = [finding.change, sorted(finding.attributes.items())]
    return hashlib.sha256(json.dumps(what, default=list).encode()).hexdigest()[:32]


def _changed(one: Override, blocking: Mapping[str, str]) -> bool:
    """Has the drift moved for which it was given? Variables and the like differ between shells and are no move."""
    lasting, now = _lasting(one.drift), _lasting(blocking)
    came = {} if one.only else {fact: key for fact, key in now.items() if fact not in lasting}
    return bool(came) or any(now.get(fact) != key for fact, key in lasting.items())


def _lasting(drift: Mapping[str, str]) -> dict[str, str]:
    return {fact: key for fact, key in drift.items() if fact.partition(":")[0] not in _FLEETING}


def new(findings: Iterable[Finding], why: str, who: Origin, seconds: float, only: Iterable[str] = ()) -> Override:
    """An override for what blocks now, not kept yet. `only`: names of facts, or their ends. UsageError for none."""
    from lockd import names

    blocking = keys(findings)
    if not why.strip():
        raise UsageError("an override says why", hint='lockd override --for 2h "deadline; torch is being rebuilt"')
    if not blocking:
        raise UsageError("nothing blocks, so there is nothing to override", hint="lockd verify shows the verdict")
    if not 0 < seconds <= LONGEST:
        raise UsageError("an override lasts from a second to 30 days", hint="--for 2h; for longer, edit the policy")
    chosen = tuple(names.resolve_all(blocking, only)) if only else ()
    drift = {fact: key for fact, key in blocking.items() if not chosen or fact in chosen}
    at = time.time()
    return Override(" ".join(why.split())[:500], who.by, at, at + seconds, drift, chosen)


def once(one: Override) -> Override:
    """The same for one launch alone; it is recorded with that run and never kept."""
    return replace(one, once=True)


def keep(state: State, one: Override, who: Origin) -> None:
    """Let it stand, in place of an earlier one, and log it."""
    from lockd import atomic
    from lockd.clock import stamp

    told = {name: getattr(one, name) for name in ("why", "by", "at", "until", "only")}
    data = json.dumps({**told, "drift": dict(one.drift)}).encode()
    _log(state, f"given until {stamp(one.until)} for {', '.join(sorted(one.drift))}: {one.why}", who.data())
    atomic.write(state.override_path, data, mode=0o600)
    _seen.add((state.folder, one.at))


def end(state: State, who: Origin) -> bool:
    """End the kept one by hand. False: there was none."""
    found = kept(state)
    _remove(state.override_path)
    if found is None:
        return False
    _log(state, f"ended by hand: {found.why}", who.data())
    return True


def settle(state: State | None, findings: Iterable[Finding]) -> str | None:
    """End a kept override whose time is up or whose drift has changed; what was said about it, else None."""
    if state is None:
        return None
    aside = _read(state.override_over_path)
    if aside is not None:
        _remove(state.override_over_path)
        return _say_over(state, aside, _MOVED)
    found = kept(state)
    if found is None:
        return None
    late, changed = not in_time(found), _changed(found, keys(findings))
    if not late and not changed:
        return None
    _remove(state.override_path)
    return _say_over(state, found, "its time is up" if late else _MOVED)


def settle_over(state: State | None) -> None:
    """Tell the log of one that was put aside, or whose time is up: nobody's look is needed for that."""
    found = kept(state)
    if state is None:
        return
    if os.path.exists(state.override_over_path) or (found is not None and not in_time(found)):
        settle(state, ())


_MOVED = "the drift that it was given for has changed"


def _say_over(state: State, one: Override, reason: str) -> str:
    text = f"ended, {reason}: {one.why}"
    try:
        _log(state, text, None)
    except LockdError:  # it is over, whether or not a full disk takes the line
        pass
    return text


def _log(state: State, message: str, by: Mapping[str, Any] | None) -> None:
    from lockd.clock import stamp
    from lockd.store import Event

    store = state.store(create=True)
    assert store is not None  # it is made where missing
    with store:
        store.append(Event(stamp(), "override", message, by=by))


def _put_aside(state: State) -> None:
    """Out of force at once; who writes the history says so."""
    try:
        os.rename(state.override_path, state.override_over_path)
    except OSError:  # a read-only disk: then each look says again that it covers nothing
        pass


def _remove(path: str) -> None:
    try:
        os.unlink(path)
    except FileNotFoundError:
        pass
