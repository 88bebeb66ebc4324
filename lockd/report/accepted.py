"""An accept in words and as JSON: the difference that a person reads first, and what was recorded.

Always holds: names from the machine are safe on a terminal; causes stand first, what they brought beneath them.
Never: reads the machine, asks, or prints.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from lockd.report.text import safe
from lockd.verdict import word

if TYPE_CHECKING:
    from lockd.accept import Plan
    from lockd.lock import Lock
    from lockd.rules import Policy


def difference(policy: Policy, plan: Plan, notes: tuple[str, ...]) -> Iterator[str]:
    """What would become known good, and what should be read before saying yes."""
    yield safe(f"policy {policy.name} ({policy.path})")
    if plan.before is None:
        what = "first accept" if plan.lock.generation == 1 else "no lock to compare with"
        yield f"  {what}: {_facts(plan.lock)}"
    elif not plan.differences:
        yield f"  nothing differs from generation {plan.before.generation}"
    yield from (f"  {safe(line)}" for line in _differences(plan))
    for note in (*notes, *plan.notes):
        first, *more = note.split("\n")
        yield safe(f"note: {first}")
        yield from (f"  {safe(line)}" for line in more)


def result(policy: Policy, lock: Lock, plan: Plan, *, recorded: bool) -> Iterator[str]:
    """What was recorded, or would have been."""
    number = f"generation {lock.generation}"
    dry = "nothing was recorded" if lock is not plan.lock else f"dry run: {number} was not recorded"
    deed = f"{number} accepted" if recorded else dry
    yield safe(f"{deed}: {lock.why}" if lock.why else deed)
    before = plan.before.environment if plan.before is not None else lock.environment
    was = f" (was {before})" if before != lock.environment else ""
    yield safe(f"{lock.environment}{was}, {_facts(lock)}, {policy.lock_path}")


def _facts(lock: Lock) -> str:
    return f"{len(lock.facts):,} fact{'' if len(lock.facts) == 1 else 's'}"


def document(policy: Policy, lock: Lock, plan: Plan, notes: tuple[str, ...], *, recorded: bool) -> dict[str, Any]:
    """`lockd accept --json`."""
    names = ("generation", "accepted_at", "by", "why", "environment", "launch")
    return {
        "schema": 1,
        "recorded": recorded,
        "policy": {"name": policy.name, "path": policy.path, "digest": policy.digest},
        "lock": policy.lock_path,
        **{name: getattr(lock, name) for name in names},
        "facts": len(lock.facts),
        "differences": [{"fact": one.name, "change": one.change, "message": word(one)} for one in plan.differences],
        "notes": [*notes, *plan.notes],
    }


def _differences(plan: Plan) -> Iterator[str]:
    if plan.before is None:
        return
    for one in plan.differences:
        if one.because not in plan.chosen:
            yield word(one)
            yield from (f"  {word(child)}" for child in plan.differences if child.because == one.name)
