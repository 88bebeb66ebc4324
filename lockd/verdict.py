"""Judge the differences: how severe each is, in what words, and what they come to together.

Always holds: a severity comes from the rule that answers for the fact, or from the pin that is broken. `record` and
`ignore` make no finding. Block beats unknown, unknown beats warn, warn beats ok. Worst first; what a package brought
stands after it.
Never: reads the machine or a clock, softens what could not be read, or lets a probe that cannot word a finding hide it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Literal, NamedTuple

from lockd.compare import incomparable
from lockd.facts import Value, short
from lockd.findings import Breach, Difference, Finding
from lockd.hints import hint
from lockd.probes import PROBES, Probe, probe, rules
from lockd.rules import Policy, Severity

Verdict = Literal["ok", "warn", "block", "unknown"]
Claims = Mapping[str, tuple[str, Any]]  # fact name → (section, rule)

EXIT: Mapping[Verdict, int] = {"ok": 0, "warn": 0, "block": 1, "unknown": 3}
_RANK: Mapping[Severity, int] = {"block": 0, "warn": 1, "record": 2, "ignore": 3}
_FRAMEWORKS = ("torch", "triton", "jax", "jaxlib", "tensorflow")
_WEIGHTS = ("python", "package", "cache", "launch", "env", "gpu", "host", "file", "git", "unowned", "tree", "command")
_OTHER_LOOK = "{}: the lock holds it as an earlier policy had it looked at; whether it changed cannot be told"
_TEXTS = 3  # breaches that one message spells out


class Judged(NamedTuple):
    """The verdict, its findings (worst first), and the changes that rules with `record` only note."""

    verdict: Verdict
    findings: tuple[Finding, ...]
    recorded: tuple[Finding, ...]


def judge(policy: Policy, differences: Iterable[Difference], claimed: Claims, *, edited: bool = False) -> Judged:
    """Findings and the verdict. `edited`: the policy is another than the one that the lock was accepted under."""
    listed = [_finding(policy, one, claimed, edited) for one in differences]
    findings = _in_order([one for one in listed if one.severity in ("block", "warn")])
    recorded = _in_order([one for one in listed if one.severity == "record"])
    return Judged(verdict_of(findings), findings, recorded)


def worded(policy: Policy, differences: Iterable[Difference], claimed: Claims) -> tuple[Finding, ...]:
    """Every difference in words, whatever its severity: what `diff` shows."""
    return _in_order([_finding(policy, one, claimed, False) for one in differences])


def verdict_of(findings: Iterable[Finding]) -> Verdict:
    """What findings come to. What could not be read under a block rule is unknown, unless something else blocks."""
    blocking = [one for one in findings if one.severity == "block"]
    if any(one.change != "unreadable" for one in blocking):
        return "block"
    if blocking:
        return "unknown"
    return "warn" if any(one.severity == "warn" for one in findings) else "ok"


def strict(verdict: Verdict) -> Verdict:
    """`--strict`: a warning counts as block."""
    return "block" if verdict == "warn" else verdict


def owner(policy: Policy, name: str, claimed: Claims) -> tuple[str, Any] | None:
    """The section and rule that answer for a fact, present on the machine or not. None: no rule of this policy does."""
    if name in claimed:
        return claimed[name]
    kind, _, subject = name.partition(":")
    for section, rule in rules(policy):
        module = probe(section)
        if kind in module.KINDS and module.claims(rule, kind, subject):
            return section, rule
    return None


def severity_of(policy: Policy, name: str, change: str, claimed: Claims) -> Severity:
    """How strictly a change of that fact is held; what no rule answers for is ignored."""
    owned = owner(policy, name, claimed)
    if owned is None:
        return "ignore"
    section, rule = owned
    kind, _, subject = name.partition(":")
    return probe(section).severity(rule, policy, kind, subject, change)


def word(difference: Difference, module: Probe | None = None) -> str:
    """The probe's line for a difference; the bare names and values where no probe has one. The broken pins follow."""
    module = module or probe_of(difference.name)
    try:
        text = module.word(difference) if module is not None else _plain(difference)
    except Exception as error:  # a wording that fails must not hide the finding
        text = f"{_plain(difference)} [{type(error).__name__} while wording it]"
    breaches = list(dict.fromkeys(pin.text for pin in difference.breaches if not _is_told(pin, difference, text)))
    more = [f"and {len(breaches) - _TEXTS} more pins"] if len(breaches) > _TEXTS else []
    return short("; ".join([text, *breaches[:_TEXTS], *more]))


def _is_told(pin: Breach, difference: Difference, text: str) -> bool:
    """Whether the probe's line says already what is wrong: forbidden, or from the pinned value to another."""
    old, new = difference.attributes.get(pin.attribute, (None, None))
    return pin.forbidden or pin.text in text or (new == pin.found and old == pin.wanted.lstrip("= "))


def probe_of(name: str) -> Probe | None:
    """The probe that makes facts of that kind."""
    kind = name.partition(":")[0]
    return next((module for module in map(probe, PROBES) if kind in module.KINDS), None)


def _finding(policy: Policy, one: Difference, claimed: Claims, edited: bool) -> Finding:
    owned = owner(policy, one.name, claimed)
    other = incomparable(one)
    message = _OTHER_LOOK.format(one.name.partition(":")[2]) if other else word(one, probe(owned[0]) if owned else None)
    lines = list(dict.fromkeys(policy.line(pin.key) for pin in one.breaches if not pin.forbidden))
    if lines:
        message += f" [pinned in {', '.join(lines[:_TEXTS])}]"
    if edited and one.change == "added" and one.against == ("lock",) and not one.name.startswith("package:"):
        message += " (not in the lock; the policy was edited since the last accept)"
    return Finding(
        fact=one.name,
        change=one.change,
        severity=_severity(policy, one, claimed),
        against=one.against,
        message=message,
        hint=hint(one, policy, owned[1] if owned else None),
        attributes=_attributes(one),
        files=None if other else one.files,
        because=one.because,
    )


def _severity(policy: Policy, one: Difference, claimed: Claims) -> Severity:
    """The strictest reason: the lock's by the rule, each broken pin's by its own word or else the rule's."""
    by_rule = severity_of(policy, one.name, one.change, claimed)
    reasons = [pin.on_drift or by_rule for pin in one.breaches]
    if "lock" in one.against or not reasons:
        reasons.append(by_rule)
    return min(reasons, key=_RANK.__getitem__)


def _attributes(one: Difference) -> Mapping[str, tuple[Value | None, Value | None]]:
    """What differs from the lock; for a pin that is broken besides, what is wanted and what is there."""
    pinned = {pin.attribute: (pin.wanted, pin.found) for pin in one.breaches if pin.attribute and not pin.forbidden}
    return {**pinned, **one.attributes}


def _in_order(findings: list[Finding]) -> tuple[Finding, ...]:
    """Causes by severity and weight, each followed by what it brought; a cause that is no finding holds nobody back."""
    names = {one.fact for one in findings}
    heads = {one.fact: one.because if one.because in names else one.fact for one in findings}
    worst: dict[str | None, tuple[int, int]] = {}
    for one in findings:
        head = heads[one.fact]
        worst[head] = min(worst.get(head, _rank(one)), _rank(one))

    def place(one: Finding) -> tuple[tuple[int, int], int, str, bool, str]:
        head = str(heads[one.fact])
        return worst[head], _weight(head), head, one.fact != head, one.fact

    return tuple(sorted(findings, key=place))


def _weight(name: str) -> int:
    """How much a change of that fact can move a training: the framework first, data and the rest last."""
    kind, _, subject = name.partition(":")
    if kind == "package" and subject.rpartition("/")[2] in _FRAMEWORKS:
        return -1
    return _WEIGHTS.index(kind) if kind in _WEIGHTS else len(_WEIGHTS)


def _rank(one: Finding) -> tuple[int, int]:
    return _RANK[one.severity], one.change == "unreadable"


def _plain(one: Difference) -> str:
    said = [f"{name} {_text(old)} → {_text(new)}" for name, (old, new) in one.attributes.items()]
    return f"{one.name} is {one.change}" + (f": {', '.join(said[:4])}" if said else "")


def _text(value: Value | None) -> str:
    if value is None:
        return "none"
    return ", ".join(value) if isinstance(value, tuple) else str(value)
