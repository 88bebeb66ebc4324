"""Look → compare → judge: the one way to a verdict, for the command line, the daemon and the gates.

Always holds: what was not looked at is not held against the lock, and stands in `not_looked`. A locked fact that no
rule of the policy claims any more is counted, not compared. Commands run only under a policy that this machine's
state has accepted. The store is opened only where there is a difference to explain; without it the lock still
decides, it only explains less.
Never: prints, exits, or accepts.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from lockd.compare import compare, file_changes, restricted
from lockd.errors import LockdError
from lockd.facts import Fact, Facts, Unknown, environment_id, launch_id, set_digest
from lockd.findings import Breach, Difference, Finding
from lockd.look import Launch, Look, Memo, Sight, look_at, rule_fact
from lockd.plain import dataclass, replace
from lockd.probes import Manifest, probe, rules
from lockd.verdict import Verdict, judge, owner, severity_of

if TYPE_CHECKING:
    from lockd.lock import Lock
    from lockd.rules import Policy
    from lockd.state import State
    from lockd.store import Store

Progress = Callable[[int, int], None]  # bytes done, bytes to do

_NOT_ACCEPTED = "the policy has changed since the last accept; its commands do not run"
_NO_STATE = "no state of this user has accepted this policy; its commands do not run"


@dataclass(frozen=True)
class Report:
    """All that one check came to.

    environment: as verify shows it, grow sets restricted to the lock and packages that a rule lets come left out;
    environment_full: with every found entry. launch: None where the look had no launch. elapsed: seconds.
    unclaimed: names of locked facts that no rule of this policy claims. recorded: changes that are noted and no
    finding.
    """

    policy: Policy
    lock: Lock | None
    sight: Sight
    differences: tuple[Difference, ...]
    verdict: Verdict
    findings: tuple[Finding, ...]
    recorded: tuple[Finding, ...]
    environment: str
    environment_full: str
    launch: str | None
    look: Literal["stat", "full"]
    elapsed: float
    not_looked: tuple[str, ...]
    unclaimed: tuple[str, ...] = ()


class Held(NamedTuple):
    """What of a lock one look is held against, and what the look is to be read as."""

    expected: Facts | None
    found: Facts
    unclaimed: tuple[str, ...]


def check(
    policy: Policy,
    *,
    state: State | None,
    lock: Lock | None,
    launch: Launch | None,
    full: bool = False,
    commands: bool = True,
    progress: Progress | None = None,
) -> Report:
    """Look at what the policy names and hold it against the lock and the pins.

    Writes nothing but lockd's own caches.
    """
    started = time.monotonic()
    # 1. look
    sight = see(policy, state=state, launch=launch, full=full, commands=commands, progress=progress)
    # 2. compare with the lock and with the policy's pins
    held = hold(policy, lock, sight, launch, commands=commands, state=state)
    breaches = sorted_breaches(policy, sight.facts)
    differences = compare(held.expected, held.found, breaches)
    differences = explain(differences, sight, state, lock)
    # 3. judge
    judged = judge(policy, differences, sight.claimed, edited=lock is not None and lock.policy_digest != policy.digest)
    verdict: Verdict = "unknown" if lock is None and judged.verdict != "block" else judged.verdict
    return Report(
        policy=policy,
        lock=lock,
        sight=sight,
        differences=differences,
        verdict=verdict,
        findings=judged.findings,
        recorded=judged.recorded,
        environment=environment(policy, sight, held.expected, held.found),
        environment_full=environment(policy, sight, None, sight.facts),
        launch=launch_id(sight.facts.values()) if launch is not None else None,
        look="full" if full else "stat",
        elapsed=time.monotonic() - started,
        not_looked=sight.not_looked,
        unclaimed=held.unclaimed,
    )


def see(
    policy: Policy,
    *,
    state: State | None,
    launch: Launch | None,
    full: bool = False,
    commands: bool = True,
    progress: Progress | None = None,
) -> Sight:
    """One look with lockd's caches, saved afterwards; commands run only where this state has accepted the policy."""
    from lockd.disk import Disk

    folder = None if state is None else state.cache_dir
    disk = Disk(full=full, cache_dir=folder, progress=progress)
    may_run = commands and _accepted(policy, state)
    look = Look(policy, disk, launch, commands=may_run, memo=_memo(folder), secret_key=_secret_key(policy, state))
    sight = look_at(look)
    if folder is not None:
        disk.save()
    if commands and not may_run and policy.command:
        sight = _without_commands(policy, sight, _NO_STATE if state is None else _NOT_ACCEPTED)
    return sight


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
        expected.append(fact)
    return _with_entries(Facts(expected), sight.facts, lock, state, tuple(unclaimed))


def sorted_breaches(policy: Policy, found: Facts) -> list[Breach]:
    """Every pin of the policy that the found facts break.

    A probe that cannot say raises: a pin is never taken as kept.
    """
    breaches = {breach for section, rule in rules(policy) for breach in probe(section).breaches(rule, policy, found)}
    return sorted(breaches, key=lambda breach: (breach.fact, breach.key, breach.attribute, breach.text))


def environment(policy: Policy, sight: Sight, expected: Facts | None, found: Facts) -> str:
    """The environment id over the facts under block and warn rules; with a lock, what may come beside it left out."""
    facts = restricted(found, expected)
    return environment_id(fact for fact in facts if _counts(policy, sight, fact.name, expected))


def explain(
    differences: tuple[Difference, ...], sight: Sight, state: State | None, lock: Lock | None
) -> tuple[Difference, ...]:
    """Count and name the files behind changed facts, from the manifests of the lock's generation and of this look."""
    changed = [one for one in differences if one.change == "changed" and "lock" in one.against]
    if not changed or state is None or lock is None:
        return differences
    new = sight.manifests()
    old = dict(_kept_manifests(state, lock, [one.name for one in changed if one.name in new]))
    counted = {name: _counted(name, manifest, new[name], differences) for name, manifest in old.items()}
    return tuple(replace(one, files=counted.get(one.name)) for one in differences)


def _counted(name: str, old: Manifest, new: Manifest, differences: Iterable[Difference]) -> Any:
    one = next(difference for difference in differences if difference.name == name)
    grow = isinstance(one.found, Fact) and one.found.tokens is not None
    changes = file_changes(old, new, grow=grow)
    return changes if changes.total else None


def _kept_manifests(state: State, lock: Lock, names: Iterable[str]) -> Iterator[tuple[str, Manifest]]:
    """Those of the lock's own generation; a store that cannot be read explains nothing."""
    from lockd import store

    try:
        with _closing(store.open(state.store_path, create=False)) as kept:
            for name in names if kept is not None else ():
                manifest = kept.manifest(lock.generation, name) if kept is not None else None
                if manifest is not None:
                    yield name, manifest
    except (LockdError, OSError):
        return


@contextmanager
def _closing(kept: Store | None) -> Iterator[Store | None]:
    try:
        yield kept
    finally:
        if kept is not None:
            kept.close()


def _counts(policy: Policy, sight: Sight, name: str, expected: Facts | None) -> bool:
    change = "added" if expected is not None and name not in expected else "changed"
    return severity_of(policy, name, change, sight.claimed) in ("block", "warn")


def _left_out(kind: str, name: str, launch: Launch | None, commands: bool) -> bool:
    if kind in ("env", "launch"):
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


def _with_entries(expected: Facts, found: Facts, lock: Lock, state: State | None, unclaimed: tuple[str, ...]) -> Held:
    """Sets too large for the lock get their entries from the store; where it has none, nobody can tell, so: unknown."""
    from lockd.lock import LEFT_TO_STORE

    large = [fact for fact in expected.known() if LEFT_TO_STORE in fact.told and _has_tokens(found.get(fact.name))]
    if not large:
        return Held(expected, found, unclaimed)
    kept = {} if state is None else _kept_entries(state, lock, [fact.name for fact in large])
    whole: dict[str, Fact | Unknown] = dict(expected)
    seen: dict[str, Fact | Unknown] = dict(found)
    for fact in large:
        tokens = kept.get(fact.name, frozenset())
        if set_digest(tokens) == fact.attributes.get("digest"):
            whole[fact.name] = replace(fact, tokens=tokens)
        elif fact.attributes != seen[fact.name].attributes:  # type: ignore[union-attr]
            reason = "the lock leaves its many entries to the store of the machine that accepted it, which is not here"
            seen[fact.name] = Unknown(fact.kind, fact.subject, reason)
    return Held(Facts(whole.values()), Facts(seen.values()), unclaimed)


def _kept_entries(state: State, lock: Lock, names: Iterable[str]) -> dict[str, frozenset[str]]:
    from lockd import store

    try:
        with _closing(store.open(state.store_path, create=False)) as kept:
            entries = {name: kept.entries(lock.generation, name) for name in names} if kept is not None else {}
    except (LockdError, OSError):
        return {}
    return {name: tokens for name, tokens in entries.items() if tokens is not None}


def _has_tokens(fact: Fact | Unknown | None) -> bool:
    return isinstance(fact, Fact) and fact.tokens is not None


def _without_commands(policy: Policy, sight: Sight, reason: str) -> Sight:
    facts: Mapping[str, Fact | Unknown] = sight.facts
    unrun = {f"command:{rule.name}": Unknown("command", rule.name, reason) for rule in policy.command}
    claimed = {**sight.claimed, **{f"command:{rule.name}": ("command", rule) for rule in policy.command}}
    merged = {**facts, **unrun}
    not_looked = tuple(line for line in sight.not_looked if not line.startswith("command"))
    return replace(sight, facts=Facts(merged.values()), claimed=claimed, not_looked=not_looked)


def _accepted(policy: Policy, state: State | None) -> bool:
    return not policy.command or (state is not None and policy.digest in state.accepted_digests())


def _secret_key(policy: Policy, state: State | None) -> bytes | None:
    """What secret variables are digested with; it never leaves the state."""
    if not policy.env or state is None:
        return None
    from lockd import secrets

    return secrets.key(os.path.join(state.folder, "secret.key"))


def _memo(folder: str | None) -> Memo:
    if folder is None:
        return Memo()
    from lockd.memo import StateMemo

    return StateMemo(os.path.join(folder, "memo"))
