"""The state that a run started on, as if it had just been looked at: what `accept --from` and `--env-of run:N` take.

Always holds: good needs evidence. A state is taken only if somebody looked at the end of the run and it still was the
same, or nobody looked but it is the same to this moment and no drift was recorded in between. What the record of a run
does not hold whole (a masked variable, the entries of a growing set) is an error, never made up.
Never: writes anything, or takes the output of commands from a run: gates do not run them.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from lockd import check, runs
from lockd.compare import compare
from lockd.errors import LookError, RefusedError
from lockd.facts import Fact, Facts, Unknown
from lockd.plain import replace
from lockd.secrets import MASK
from lockd.verdict import owner

if TYPE_CHECKING:
    from lockd.check import Report
    from lockd.look import Launch
    from lockd.probes import Manifest
    from lockd.runs import Run
    from lockd.state import State
    from lockd.store import Store

_TOO_MANY = "accept it while it is as it was: lockd accept --only FACT"
_NOT_KEPT = "lockd run --wait looks again at the end of a run"


def started_on(report: Report, run: Run, store: Store, state: State | None, launch: Launch) -> Report:
    """The report as it would be on the state that the run started on. RefusedError without evidence."""
    recorded = {fact.name: fact for fact in runs.facts(store, run).values() if fact.name != "launch:python"}
    now = report.sight.facts
    facts = {name: _whole(fact, report, run) for name, fact in recorded.items()}
    commands = {fact.name: fact for fact in now.values() if fact.kind == "command"}
    _check_evidence(run, store, Facts(facts.values()), now)
    return _restated(report, {**facts, **commands}, run, store, state, launch)


def variables_of(report: Report, run: Run, store: Store, state: State | None, launch: Launch) -> Report:
    """The report with the variables that the run was launched with."""
    recorded = {fact.name: fact for fact in runs.facts(store, run).values() if fact.kind == "env"}
    others = {fact.name: fact for fact in report.sight.facts.values() if fact.kind != "env"}
    whole = {name: _whole(fact, report, run) for name, fact in recorded.items()}
    return _restated(report, {**others, **whole}, run, store, state, launch)


def apart(before: Report, after: Report) -> frozenset[str]:
    """Names of facts that the machine has otherwise than the state that was taken."""
    a, b = before.sight.facts, after.sight.facts
    return frozenset(name for name in {*a, *b} if not _same(a.get(name), b.get(name)))


def _check_evidence(run: Run, store: Store, facts: Facts, now: Facts) -> None:
    if run.end is None:
        raise RefusedError(f"{run.name} still runs: nobody knows how it will end", hint=_NOT_KEPT)
    end = run.body.get("end_environment")
    if end is not None:
        if end != run.environment:
            what = f"the state was not the same at the end of {run.name}: {run.environment} became {end}"
            raise RefusedError(what, hint=f"lockd diff {run.name} now; lockd log shows when it changed")
        return
    differing = [one.name for one in compare(_lasting(facts), _lasting(now))]
    moved = store.events("kind = 'drift' AND at >= ?", run.start)
    if differing or moved:
        which = ", ".join([*differing, *(str(one.event.fact) for one in moved)][:3])
        what = f"nobody looked at the end of {run.name}, and the state has changed since ({which})"
        raise RefusedError(what, hint=_NOT_KEPT)


def _lasting(facts: Facts) -> Facts:
    return Facts(fact for fact in facts.values() if fact.kind not in ("env", "launch", "command"))


def _whole(fact: Fact | Unknown, report: Report, run: Run) -> Fact | Unknown:
    """A recorded fact as it may be accepted; what the record of a run does not hold whole is an error."""
    if isinstance(fact, Unknown):
        return fact
    if MASK in str(fact.attributes.get("value", "")):
        hint = "record it from the running process: --env-of PID"
        raise LookError(f"the value of {fact.subject} was not kept with {run.name}: it looks like a secret", hint=hint)
    known: Mapping[str, Fact | Unknown] = report.lock.facts if report.lock is not None else {}
    for other in (report.sight.facts.get(fact.name), known.get(fact.name)):
        if isinstance(other, Fact) and dict(other.attributes) == dict(fact.attributes):
            return other
    owned = owner(report.policy, fact.name, report.sight.claimed)
    growing = owned is not None and getattr(owned[1], "change", "") == "grow"
    if growing and not fact.absent and fact.tokens is None:
        raise LookError(
            f"the entries of {fact.name} at the start of {run.name} are too many to be kept", hint=_TOO_MANY
        )
    return fact


def _restated(
    report: Report, facts: Mapping[str, Fact | Unknown], run: Run, store: Store, state: State | None, launch: Launch
) -> Report:
    manifests = dict(_manifests(report, facts, run, store))
    sight = replace(report.sight, facts=Facts(facts.values()), manifests=lambda: manifests)
    how: dict[str, Any] = {"state": state, "lock": report.lock, "launch": launch, "started": time.monotonic()}
    return check.judged_sight(report.policy, sight, **how)


def _manifests(
    report: Report, facts: Mapping[str, Fact | Unknown], run: Run, store: Store
) -> Iterator[tuple[str, Manifest]]:
    now = report.sight.manifests()
    for name, fact in facts.items():
        if _same(fact, report.sight.facts.get(name)):
            found = now.get(name)
        else:
            found = None if run.state is None else store.state_manifest(run.state, name)
            if found is None and run.generation is not None:
                found = store.manifest(run.generation, name)
        if found is not None:
            yield name, found


def _same(a: Fact | Unknown | None, b: Fact | Unknown | None) -> bool:
    if isinstance(a, Fact) and isinstance(b, Fact):
        return dict(a.attributes) == dict(b.attributes)
    return a == b
