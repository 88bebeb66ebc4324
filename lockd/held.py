"""What of a lock one look can be held against.

Always holds: what was not looked at on purpose is not held against the lock. A locked fact that no rule of the policy
claims any more is counted, not compared. Behind a rule that could not be read as a whole nothing is called missing: its
one Unknown speaks for all. What only another machine's state could compare is unknown, never ok and never a change.
Never: looks at the machine, or judges.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from lockd.compare import relaxed
from lockd.facts import LAUNCH_FACTS, Fact, Facts, Unknown, set_digest
from lockd.look import Launch, Sight, rule_fact
from lockd.plain import replace
from lockd.verdict import owner

if TYPE_CHECKING:
    from lockd.lock import Lock
    from lockd.rules import Policy
    from lockd.state import State

_LARGE = "the lock leaves its many entries to the store of the machine that accepted it, which is not here"
_OTHER_KEY = "a secret that was recorded under the key of another state, so that nobody here can compare it"


class Held(NamedTuple):
    """What of a lock one look is held against, and what the look is to be read as."""

    expected: Facts | None
    found: Facts
    unclaimed: tuple[str, ...]


def hold(
    policy: Policy,
    lock: Lock | None,
    sight: Sight,
    launch: Launch | None,
    *,
    commands: bool,
    state: State | None = None,
) -> Held:
    """The locked facts that this look can be held against.

    Left out: what the look left out (the launch, the commands), what no rule claims any more, and what hides behind a
    rule that could not be read as a whole (its one Unknown speaks for all).
    """
    if lock is None:
        return Held(None, sight.facts, ())
    unread = _unread_rules(sight)
    expected: list[Fact | Unknown] = []
    unclaimed: list[str] = []
    for name, fact in lock.facts.items():
        if _left_out(fact.kind, name, launch, commands):
            continue
        if name not in sight.facts:
            owned = owner(policy, name, sight.claimed)
            if owned is None:
                unclaimed.append(name)
                continue
            if any(owned[1] is rule for rule in unread):
                continue
        expected.append(relaxed(fact, sight.facts.get(name)) if isinstance(fact, Fact) else fact)
    locked, found = _with_entries(Facts(expected), sight.facts, lock, state)
    return Held(locked, _without_foreign_secrets(locked, found), tuple(unclaimed))


def _left_out(kind: str, name: str, launch: Launch | None, commands: bool) -> bool:
    if kind in ("env", "launch") or name in LAUNCH_FACTS:
        return launch is None or (name == "launch:python" and not launch.argv)
    return kind == "command" and not commands


def _unread_rules(sight: Sight) -> list[Any]:
    """Rules whose own fact is an Unknown: nothing is known about anything else that they claim."""
    unread = []
    for unknown in sight.facts.unknown():
        section, rule = sight.claimed.get(unknown.name, ("", None))
        if section and rule_fact(section, rule) == (unknown.kind, unknown.subject):
            unread.append(rule)
    return unread


def _with_entries(expected: Facts, found: Facts, lock: Lock, state: State | None) -> tuple[Facts, Facts]:
    """Sets too large for the lock get their entries from the store; where it has none, nobody can tell, so: unknown."""
    from lockd.lock import LEFT_TO_STORE

    large = [fact for fact in expected.known() if LEFT_TO_STORE in fact.told and _has_tokens(found.get(fact.name))]
    if not large:
        return expected, found
    from lockd.explain import kept_entries

    kept = {} if state is None else kept_entries(state, lock, [fact.name for fact in large])
    whole: dict[str, Fact | Unknown] = dict(expected)
    seen: dict[str, Fact | Unknown] = dict(found)
    for fact in large:
        tokens, there = kept.get(fact.name, frozenset()), found[fact.name]
        if set_digest(tokens) == fact.attributes.get("digest"):
            whole[fact.name] = replace(fact, tokens=tokens)
        elif isinstance(there, Fact) and there.attributes != fact.attributes:
            seen[fact.name] = Unknown(fact.kind, fact.subject, _LARGE)
    return Facts(whole.values()), Facts(seen.values())


def _without_foreign_secrets(expected: Facts, found: Facts) -> Facts:
    """Keyed digests say something only under one key; under two, a change cannot be told from the same value."""
    foreign = {
        fact.name: Unknown(fact.kind, fact.subject, _OTHER_KEY)
        for fact in expected.known()
        if fact.kind == "env" and _key_of(fact) and _key_of(found.get(fact.name)) not in ("", _key_of(fact))
    }
    return Facts({**found, **foreign}.values()) if foreign else found


def _key_of(fact: Fact | Unknown | None) -> str:
    """The short name of the key in `hmac-sha256:KEY:DIGEST`; empty where there is no such digest."""
    digest = fact.attributes.get("digest") if isinstance(fact, Fact) else None
    parts = digest.split(":") if isinstance(digest, str) else []
    return parts[1] if len(parts) == 3 and parts[0].startswith("hmac-") else ""


def _has_tokens(fact: Fact | Unknown | None) -> bool:
    return isinstance(fact, Fact) and fact.tokens is not None
