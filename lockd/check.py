"""Look → compare → judge: the one way to a verdict, for the command line, the daemon and the gates.

Always holds: what a lock is held against is what `held` says. Commands run only under a policy that this machine's
state has accepted. The store is opened only where there is a difference to explain; without it the lock still
decides, it only explains less.
Never: prints, exits, or accepts.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Literal

from lockd.compare import compare, restricted
from lockd.facts import Fact, Facts, Unknown, environment_id, launch_id
from lockd.findings import Breach, Difference, Finding
from lockd.held import hold
from lockd.look import Launch, Look, Memo, Sight, look_at
from lockd.plain import dataclass, field, replace
from lockd.probes import probe, rules
from lockd.verdict import Verdict, judge, severity_of

if TYPE_CHECKING:
    from lockd.disk import Disk
    from lockd.lastlook import LastLooks
    from lockd.lock import Lock
    from lockd.overrides import Override
    from lockd.rules import Policy
    from lockd.state import State

Progress = Callable[[int, int], None]  # bytes done, bytes to do
Explained = Callable[[tuple[Difference, ...], Sight, "State", "Lock"], tuple[Difference, ...]]  # adds files

_NOT_ACCEPTED = "the policy as it stands was not accepted here; its commands do not run"
_NO_STATE = "no state of this user has accepted this policy; its commands do not run"


@dataclass(frozen=True)
class Report:
    """All that one check came to.

    environment: as verify shows it, grow sets restricted to the lock and packages that a rule lets come left out;
    environment_full: with every found entry. launch: None where the look had no launch. elapsed: seconds.
    unclaimed: names of locked facts that no rule of this policy claims. recorded: changes that are noted and no
    finding. override: what covers a verdict of `block` for now. by_daemon: it looked, in memory, after its last event.
    healed: who put facts back, as far as that was observed.
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
    override: Override | None = None
    by_daemon: bool = False
    healed: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)


def check(
    policy: Policy,
    *,
    state: State | None,
    lock: Lock | None,
    launch: Launch | None,
    full: bool = False,
    commands: bool = True,
    progress: Progress | None = None,
    may_age: bool = False,
) -> Report:
    """Look at what the policy names and hold it against the lock and the pins.

    may_age: take the last look at large trees whose rules allow it; what differs in such a one is looked at again, so
    that nobody is refused for what has been mended since. Writes nothing but lockd's own caches.
    """
    started = time.monotonic()
    how: dict[str, Any] = {"launch": launch, "full": full, "commands": commands}
    sight = see(policy, state=state, progress=progress, may_age=lambda fact: may_age, **how)
    report = judged_sight(policy, sight, state=state, lock=lock, started=started, **how)
    old = {one.name for one in report.differences} & set(sight.aged)
    if not old:
        return report
    sight = see(policy, state=state, progress=progress, may_age=lambda fact: may_age and fact not in old, **how)
    return judged_sight(policy, sight, state=state, lock=lock, started=started, **how)


def judged_sight(
    policy: Policy,
    sight: Sight,
    *,
    state: State | None,
    lock: Lock | None,
    launch: Launch | None,
    full: bool = False,
    commands: bool = True,
    started: float,
    explained: Explained | None = None,
) -> Report:
    """What one look comes to. started: when it began, by the monotonic clock. explained: in place of `explain`."""
    # 1. compare with the lock and with the policy's pins
    held = hold(policy, lock, sight, launch, commands=commands, state=state)
    breaches = sorted_breaches(policy, sight.facts)
    differences = compare(held.expected, held.found, breaches)
    if differences and state is not None and lock is not None:
        differences = (explained or _explain)(differences, sight, state, lock)
    # 2. judge
    judged = judge(policy, differences, sight.claimed, edited=lock is not None and lock.policy_digest != policy.digest)
    findings, recorded = judged.findings, judged.recorded
    if held.expected is not None and policy.cache and (findings or recorded):
        from lockd import consequences

        findings = consequences.added(policy, findings, held.expected, held.found)
        recorded = consequences.added(policy, recorded, held.expected, held.found)
    verdict: Verdict = "unknown" if lock is None and judged.verdict != "block" else judged.verdict
    return Report(
        policy=policy,
        lock=lock,
        sight=sight,
        differences=differences,
        verdict=verdict,
        findings=findings,
        recorded=recorded,
        environment=environment(policy, sight, held.expected, held.found),
        environment_full=environment(policy, sight, None, sight.facts),
        launch=launch_id(sight.facts.values()) if launch is not None else None,
        look="full" if full else "stat",
        elapsed=time.monotonic() - started,
        not_looked=sight.not_looked,
        unclaimed=held.unclaimed,
        override=_override(policy, state, verdict, findings),
    )


def _override(policy: Policy, state: State | None, verdict: Verdict, findings: tuple[Finding, ...]) -> Override | None:
    if verdict == "unknown" or state is None or not os.path.exists(state.override_path):
        return None
    from lockd import overrides

    return overrides.standing(state, findings, policy)


def _explain(differences: tuple[Difference, ...], sight: Sight, state: State, lock: Lock) -> tuple[Difference, ...]:
    from lockd.explain import explain

    return explain(differences, sight, state, lock)


def see(
    policy: Policy,
    *,
    state: State | None,
    launch: Launch | None,
    full: bool = False,
    commands: bool = True,
    progress: Progress | None = None,
    disk: Disk | None = None,
    memo: Memo | None = None,
    only: frozenset[str] | None = None,
    may_age: Callable[[str], bool] = lambda fact: False,
) -> Sight:
    """One look with lockd's caches, saved afterwards; commands run only where this state has accepted the policy.

    disk, memo: those of whoever looks again and again, who saves them. only: the sections to look at. may_age: may that
    fact be one of the last look?
    """
    from lockd.disk import Disk

    folder = None if state is None or disk is not None else state.cache_dir
    disk = disk or Disk(full=full, cache_dir=folder, progress=progress)
    may_run = commands and _accepted(policy, state)
    look = Look(
        policy,
        disk,
        launch,
        commands=may_run,
        memo=memo or _memo(folder),
        secret_key=_secret_key(policy, state),
        only=only,
        hooks=_hooks(policy, state),
        last=_last_looks(policy, state),
        may_age=may_age,
    )
    sight = look_at(look)
    if folder is not None:
        disk.save()
    if commands and not may_run and policy.command and (only is None or "command" in only):
        sight = _without_commands(policy, sight, _NO_STATE if state is None else _NOT_ACCEPTED)
    return sight


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


def _counts(policy: Policy, sight: Sight, name: str, expected: Facts | None) -> bool:
    change = "added" if expected is not None and name not in expected else "changed"
    return severity_of(policy, name, change, sight.claimed) in ("block", "warn")


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
    if not policy.env or state is None or state.guest:
        return None
    from lockd import secrets

    return secrets.key(state.secret_key_path)


def _hooks(policy: Policy, state: State | None) -> Mapping[str, str]:
    if state is None or not policy.python:
        return {}
    from lockd.probes.python import hook

    return hook.recorded(state.folder)


def _last_looks(policy: Policy, state: State | None) -> LastLooks | None:
    if state is None or all(rule.max_age is None for rule in policy.tree):
        return None
    from lockd.lastlook import LastLooks

    return LastLooks(os.path.join(state.cache_dir, "last"))


def _memo(folder: str | None) -> Memo:
    if folder is None:
        return Memo()
    from lockd.memo import StateMemo

    return StateMemo(os.path.join(folder, "memo"))
