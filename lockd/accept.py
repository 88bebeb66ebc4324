"""What an accept would record, and whether it may: the plan of a new generation.

Always holds: a state that breaks the policy's own pins, holds a fact that could not be read, or a package that differs
from its own RECORD without leave, makes no plan but an error that says what to do. Facts that nobody chose come from
the lock before, unchanged; so do the variables of the launch, unless they were asked for.
Never: writes anything (`accept_record` does), asks, or reads the machine.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

from lockd import check, consequences, names, requirements
from lockd.errors import LookError, RefusedError, UsageError
from lockd.facts import Fact, Facts, Unknown, launch_id, short
from lockd.findings import Breach, Difference
from lockd.lock import Lock
from lockd.probes import rules
from lockd.verdict import owner, severity_of

if TYPE_CHECKING:
    from lockd.check import Report

_WRONG = ("broken", "missing", "malformed", "duplicate")  # first words of a package's state that need leave
_FLEETING = ("mtime", "newest")  # told, and moved by a touch: no line of a lock should change for that
_UNREAD = "lockd verify names the way out of each; lockd doctor says what else lockd cannot read"
_LISTED = 12  # facts that one message spells out


@dataclass(frozen=True)
class Wish:
    """What was asked for.

    only: names or ends of facts, `torch+` with what it brought; empty: everything. environ: take the launch's
    variables as they are in this look.
    """

    why: str = ""
    only: tuple[str, ...] = ()
    expect: str | None = None
    allow_modified: tuple[str, ...] = ()
    environ: bool = False


class Stamp(NamedTuple):
    """Who and when, for the header of the lock."""

    generation: int
    at: str
    by: str
    host: str


@dataclass(frozen=True)
class Plan:
    """A new lock and what led to it.

    chosen: names of facts that are taken from this look. differences: those of them that differ from the lock before.
    notes: what a person should read before saying yes.
    """

    before: Lock | None
    lock: Lock
    chosen: frozenset[str]
    differences: tuple[Difference, ...]
    notes: tuple[str, ...]

    @property
    def carried(self) -> frozenset[str]:
        """Facts that stay as the lock before has them."""
        return frozenset(self.lock.facts) - self.chosen


def plan(report: Report, wish: Wish, stamp: Stamp) -> Plan:
    """The new generation, or RefusedError, LookError, UsageError."""
    before = report.lock
    # 1. the state that was reviewed?
    _check_expected(report, wish.expect)
    # 2. which facts are taken from this look
    chosen = frozenset(_chosen(report, wish))
    # 3. could all of them be read, and is there anything at all?
    _check_known(report, chosen, whole=not wish.only)
    _check_plausible(report, chosen, whole=not wish.only)
    # 4. what the lock will hold, and whether the policy and the packages agree
    facts = _provided(report, Facts(_merged(report, chosen, whole=not wish.only)), chosen)
    _check_pins(report, facts, chosen if wish.only else frozenset((*chosen, *facts, *_pinned(report))))
    _check_modified(report, chosen, wish.allow_modified)
    # 5. the lock
    lock = _lock(report, facts, wish, stamp)
    differences = tuple(one for one in report.differences if one.name in chosen and "lock" in one.against)
    return Plan(before, lock, chosen, differences, tuple(_notes(report, wish, facts, chosen)))


# -- what is chosen


def _chosen(report: Report, wish: Wish) -> Iterator[str]:
    if wish.only:
        yield from _asked_for(report, wish.only)
        return
    for name, fact in report.sight.facts.items():
        if fact.kind != "env" or wish.environ or _new_variable(report, name):
            yield name


def _new_variable(report: Report, name: str) -> bool:
    """Variables are recorded from the accepting process only at first, or when the policy was edited to name them."""
    if report.lock is None:
        return True
    return name not in report.lock.facts and report.lock.policy_digest != report.policy.digest


def _asked_for(report: Report, patterns: Iterable[str]) -> Iterator[str]:
    if report.lock is None:
        raise UsageError("--only needs a lock, and there is none yet", hint="accept the whole state first")
    known = {*report.lock.facts, *report.sight.facts}
    for pattern in patterns:
        if pattern.endswith("+") and pattern not in known:
            cause = names.resolve(known, pattern[:-1])
            yield cause
            yield from (one.name for one in report.differences if one.because == cause)
        else:
            yield from names.resolve_all(known, [pattern])


def _merged(report: Report, chosen: frozenset[str], *, whole: bool) -> Iterator[Fact]:
    """The chosen facts from this look, the others from the lock before."""
    found = report.sight.facts
    yield from (_lasting(fact) for fact in found.known() if fact.name in chosen)
    if report.lock is None:
        return
    for fact in report.lock.facts.known():
        if fact.name not in chosen and (not whole or _stays(report, fact)):
            yield fact


def _provided(report: Report, facts: Facts, chosen: frozenset[str]) -> Facts:
    """The compile caches among the chosen facts, with what they were filled under."""
    if not report.policy.cache:
        return facts
    before: Mapping[str, Fact | Unknown] = report.lock.facts if report.lock is not None else {}
    told = {one.name: one for one in consequences.provenance(report.policy, facts, before, report.environment)}
    return Facts(told[name] if name in chosen and name in told else fact for name, fact in facts.items())


def _lasting(fact: Fact) -> Fact:
    return replace(fact, told={name: value for name, value in fact.told.items() if name not in _FLEETING})


def _stays(report: Report, fact: Fact) -> bool:
    """Of a whole accept: what this look left out, but the policy still claims."""
    left_out = fact.kind in ("env", "launch") or fact.name not in report.sight.facts
    if not left_out or owner(report.policy, fact.name, report.sight.claimed) is None:
        return False
    return fact.kind in ("env", "launch") or (fact.kind == "command" and _not_run(report))


def _not_run(report: Report) -> bool:
    return any(line.startswith("command") for line in report.not_looked)


# -- what refuses


def _check_expected(report: Report, expect: str | None) -> None:
    if expect is not None and expect not in (report.environment, report.environment_full):
        what = f"the state is not the one that was reviewed: it is {report.environment}, expected was {expect}"
        raise RefusedError(what, hint="look again: lockd diff, then accept with --expect of that state")


def _check_known(report: Report, chosen: frozenset[str], *, whole: bool) -> None:
    """What is pinned, or was named, must have been read; what is only recorded may be left out of a whole accept."""
    unread = [fact for fact in report.sight.facts.unknown() if fact.name in chosen]
    unread = [fact for fact in unread if _matters(report, fact) or not whole]
    if unread:
        what = f"{_count(unread, 'fact')} could not be read, and what is unknown is not known good:"
        raise LookError(_lines(what, (short(f"{fact.name}: {fact.reason}") for fact in unread)), hint=_UNREAD)


def _matters(report: Report, fact: Unknown) -> bool:
    return severity_of(report.policy, fact.name, "unreadable", report.sight.claimed) in ("block", "warn")


def _check_plausible(report: Report, chosen: frozenset[str], *, whole: bool) -> None:
    """A baseline of nothing passes everything: refused. So is an environment that is not there."""
    found = [fact for fact in report.sight.facts.known() if fact.name in chosen]
    if whole and not found and any(section != "env" for section, _ in rules(report.policy)):
        raise RefusedError(
            "the look found nothing at all: no known-good state", where=report.policy.path, hint="lockd policy check"
        )
    gone = [fact.subject for fact in found if fact.kind == "python" and fact.absent]
    if gone:
        paths = {rule.name: rule.path for rule in report.policy.python}
        what = _lines(
            "no known-good state without its environments:", (f"{name}: nothing at {paths.get(name)}" for name in gone)
        )
        raise RefusedError(what, where=report.policy.path, hint="build it first, or correct its path in the policy")


def _pinned(report: Report) -> Iterator[str]:
    """Facts that break a pin by not being there at all."""
    return (one.name for one in report.differences if one.breaches and not one.name.startswith("env:"))


def _check_pins(report: Report, facts: Facts, names_held: frozenset[str]) -> None:
    policy = report.policy
    broken = [
        pin
        for pin in check.sorted_breaches(policy, facts)
        if pin.fact in names_held
        and _pin_severity(report, pin) in ("block", "warn")
        and pin.fact != "gpu:idle"  # who uses the GPUs at the moment is no part of the state
    ]
    if not broken:
        return
    lines = list(dict.fromkeys(f"{policy.line(pin.key)}: {pin.fact}: {pin.text}" for pin in broken))
    places = ", ".join(dict.fromkeys(policy.line(pin.key) for pin in broken))
    hint = f"put it right (lockd diff), or edit {places} if the intent has changed"
    if any(pin.fact.startswith("env:") for pin in broken):
        hint += "; a launch's variables are recorded with --env-of PID or --only env:NAME"
    raise RefusedError(_lines("the state breaks the policy's own pins:", lines), hint=hint)


def _pin_severity(report: Report, pin: Breach) -> str:
    return pin.on_drift or severity_of(report.policy, pin.fact, "changed", report.sight.claimed)


def _check_modified(report: Report, chosen: frozenset[str], allowed: tuple[str, ...]) -> None:
    if "all" in allowed:
        return
    wanted = {normal(name) for name in allowed}
    found = [fact for fact in _modified(report, chosen) if normal(fact.subject.rpartition("/")[2]) not in wanted]
    if found:
        what = _lines("packages are not as they were installed (their own RECORD):", map(_how_modified, found))
        words = " ".join(f"--allow-modified {fact.subject.rpartition('/')[2]}" for fact in found[:3])
        raise RefusedError(what, hint=f"reinstall them; if the edit is meant to be known good: {words}")


def _modified(report: Report, chosen: frozenset[str]) -> Iterator[Fact]:
    """Packages that differ from their own wheel, and not already did so in the lock before, in the same way."""
    before: Mapping[str, Fact | Unknown] = report.lock.facts if report.lock is not None else {}
    for fact in report.sight.facts.known():
        if fact.kind == "package" and fact.name in chosen and (fact.told.get("modified") or _wrong(fact)):
            old = before.get(fact.name)
            if not isinstance(old, Fact) or dict(old.attributes) != dict(fact.attributes):
                yield fact


def _wrong(fact: Fact) -> str:
    """What is wrong with an installation, beyond what cannot be checked at all."""
    words = str(fact.attributes.get("state", "")).split("; ")
    return "; ".join(word for word in words if word.split(" ")[0].rstrip(":") in _WRONG)


def _how_modified(fact: Fact) -> str:
    examples = fact.told.get("modified_files", ())
    named = f" ({', '.join(examples[:3])})" if isinstance(examples, tuple) and examples else ""
    count = fact.told.get("modified")
    return "; ".join(
        (
            f"{fact.subject}: {count} of its files{named}" if count else f"{fact.subject}:",
            *filter(None, (_wrong(fact),)),
        )
    )


def normal(name: str) -> str:
    """A package name as PEP 503 has it."""
    return re.sub(r"[-_.]+", "-", name).lower()


# -- what is recorded and said


def _lock(report: Report, facts: Facts, wish: Wish, stamp: Stamp) -> Lock:
    before, policy = report.lock, report.policy
    return Lock(
        policy=policy.name,
        policy_digest=policy.digest,
        generation=stamp.generation,
        accepted_at=stamp.at,
        by=stamp.by,
        why=wish.why,
        environment=check.environment(policy, report.sight, None, facts),
        launch=launch_id(facts.values()),
        facts=facts,
        previous=before.digest if before is not None else None,
        host=stamp.host,
    )


def _notes(report: Report, wish: Wish, facts: Facts, chosen: frozenset[str]) -> Iterator[str]:
    if report.lock is None and any(fact.kind == "env" for fact in facts.known()) and not wish.environ:
        yield "the launch's variables are recorded from this process"
    known: Mapping[str, Fact | Unknown] = report.lock.facts if report.lock is not None else {}
    new = [fact for fact in facts.known() if fact.name in chosen and known.get(fact.name) != fact]
    absent = [fact.name for fact in new if fact.absent and fact.kind != "env"]
    yield from (f"{name} is not there, and is recorded as absent" for name in absent)
    yield from _unowned_notes(report, chosen)
    yield from _cache_notes(new, known)
    yield from () if wish.only else requirements.broken(facts)
    yield from (f"{_how_modified(fact)}, allowed" for fact in _modified(report, chosen))
    unread = [fact for fact in report.sight.facts.unknown() if fact.name in chosen]
    yield from (f"{fact.name} could not be read ({fact.reason}) and is left out of the lock" for fact in unread)
    if wish.only:
        others = [one.name for one in report.differences if one.name not in chosen and "lock" in one.against]
        yield from (f"{name} still differs" for name in others[:_LISTED])


def _cache_notes(new: Iterable[Fact], known: Mapping[str, Fact | Unknown]) -> Iterator[str]:
    """What is odd about a cache that becomes known good: nothing ever checks its contents again."""
    from lockd.probes.caches import oddities

    for fact in new:
        if fact.kind == "cache":
            yield from (f"{fact.subject}: {line}" for line in oddities(fact, known.get(fact.name)))


def _unowned_notes(report: Report, chosen: frozenset[str]) -> Iterator[str]:
    """Files that belong to no package become part of the lock: they are shown whenever they are new in it."""
    before: Mapping[str, Fact | Unknown] = report.lock.facts if report.lock is not None else {}
    for fact in report.sight.facts.known():
        old = before.get(fact.name)
        same = isinstance(old, Fact) and dict(old.attributes) == dict(fact.attributes)
        if fact.kind == "unowned" and fact.name in chosen and not fact.absent and not same:
            names_found = list(report.sight.manifests().get(fact.name, {}))
            if names_found:
                yield _lines(f"files of {fact.subject} that belong to no package become known good:", names_found)


def _lines(head: str, lines: Iterable[str]) -> str:
    listed = list(lines)
    more = [f"and {len(listed) - _LISTED} more"] if len(listed) > _LISTED else []
    return "\n  ".join([head, *listed[:_LISTED], *more])


def _count(things: list[Unknown], noun: str) -> str:
    return f"1 {noun}" if len(things) == 1 else f"{len(things)} {noun}s"
