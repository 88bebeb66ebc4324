"""What `[gpu]` and `[host]` say of one name: hold it to the lock or to a value, and how strictly.

Always holds: of two keys that name one fact (the name itself and a word for many) the name itself counts. A pin is
broken by another value, and by a thing that is not there.
Never: reads the machine.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from lockd.facts import Fact, Value
from lockd.findings import Breach

if TYPE_CHECKING:
    from lockd.rules import Policy, Severity, SystemRule

_WORDS = {True: "on", False: "off"}


class Wish(NamedTuple):
    """value: None for "locked"."""

    key: str
    value: Any
    on_drift: Severity | None


def wishes(rule: SystemRule) -> Mapping[str, Wish]:
    """Every key of the section."""
    return {key: _wish(key, written) for key, written in rule.values.items()}


def _wish(key: str, written: Any) -> Wish:
    on_drift = None
    if isinstance(written, Mapping):
        written, on_drift = written.get("value", "locked"), written.get("on_drift")
    return Wish(key, None if written == "locked" else written, on_drift)


def strictest(rule: SystemRule, policy: Policy, named: Iterable[Wish]) -> Severity:
    """The strictest word of the keys that name one fact; the section's, else the policy's, where one has none."""
    order: tuple[Severity, ...] = ("block", "warn", "record", "ignore")
    words = {wish.on_drift or rule.on_drift or policy.on_drift for wish in named}
    return next((word for word in order if word in words), rule.on_drift or policy.on_drift)


def said(value: Any) -> str:
    """A value of the policy, or of a fact, as it is compared and shown."""
    if isinstance(value, bool):
        return _WORDS[value]
    return ", ".join(value) if isinstance(value, (tuple, list)) else str(value)


def pin(section: str, wish: Wish, fact: Fact, attribute: str, what: str) -> Iterator[Breach]:
    """The breach of a wanted value. what: the thing in words (`driver`, `ECC`)."""
    if wish.value is None:
        return
    found: Value | None = None if fact.absent else fact.attributes.get(attribute)
    if found is not None and said(found).lower() == said(wish.value).lower():
        return
    there = "not there" if found is None else said(found)
    yield Breach(
        fact=fact.name,
        key=f"{section}.{wish.key}",
        text=f"{what} is {there}, pinned {said(wish.value)}",
        attribute=attribute,
        wanted=said(wish.value),
        found=None if found is None else said(found),
        on_drift=wish.on_drift,
    )
