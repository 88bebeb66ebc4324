"""What the probes of files, trees, caches and commands share: severities, pins, what could not be read, plain wording.

Always holds: a rule's own severity wins over the policy's; a line for people names the thing, then what became of it.
Never: reads the machine, or decides what a change means.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from lockd.disk import Trouble
from lockd.facts import Fact, Unknown, Value, shown

if TYPE_CHECKING:
    from lockd.findings import Difference, FileChanges
    from lockd.rules import Policy, Severity

_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
_DURATION = r"\s*([0-9]+(?:\.[0-9]+)?)\s*(ms|s|min|m|h|d)?\s*"


def severity(rule: Any, policy: Policy) -> Severity:
    """The rule's own word, else the policy's."""
    own: Severity | None = rule.on_drift
    return own or policy.on_drift


def pin_key(policy: Policy, section: str, rule: Any, name: str) -> str:
    """The key path of a pin: `file[3].digest`. Two equal rules are told apart by identity."""
    rules = getattr(policy, section)
    index = next((number for number, one in enumerate(rules) if one is rule), None)
    return f"{section}[{rules.index(rule) if index is None else index}].{name}"


def could_not_read(kind: str, subject: str, troubles: Iterable[Trouble], root: str = "") -> Unknown:
    """One Unknown for one or many troubles: the first in full, the others counted."""
    listed = list(troubles)
    first = listed[0]
    path = shown(os.path.join(root, first.path).rstrip("/") or "/")
    where = "" if path == subject else f"{path}: "
    more = f", and {len(listed) - 1:,} more" if len(listed) > 1 else ""
    return Unknown(kind, subject, f"{where}{shown(first.reason)}{more}")


def plain_word(difference: Difference) -> str | None:
    """The line for what is gone, new or could not be read; None for what changed, which each kind words by itself."""
    subject = difference.name.partition(":")[2]
    if difference.change == "missing":
        return f"{subject} is gone" if difference.expected else f"{subject} is not there, and the lock never saw it"
    if difference.change == "added":
        return f"{subject} is new"
    if isinstance(difference.found, Unknown):
        return f"{subject} could not be read: {difference.found.reason}"
    return None


def counted(files: FileChanges | None, *, growing: bool = False) -> str:
    """`1 changed, 500 new, 2 gone: a.py, b.py …`; under `growing` new ones do not count. Empty: nothing known."""
    if files is None:
        return ""
    numbers = ((files.changed, "changed"), (0 if growing else files.added, "new"), (files.missing, "gone"))
    parts = [f"{number:,} {what}" for number, what in numbers if number]
    if not parts:
        return ""
    total = sum(number for number, _ in numbers)
    examples = f": {', '.join(files.examples)}{' …' if total > len(files.examples) else ''}" if files.examples else ""
    return ", ".join(parts) + examples


def known_gone(difference: Difference, what: str) -> str:
    """`1 of 310 entries changed or gone`, told from the tokens of a growing set alone; empty where there are none."""
    expected, found = difference.expected, difference.found
    if not isinstance(expected, Fact) or not isinstance(found, Fact) or expected.tokens is None or found.tokens is None:
        return ""
    lost = len(expected.tokens - found.tokens)
    return f"{lost:,} of {len(expected.tokens):,} {what} changed or gone" if lost else ""


def amount(was: Value | None, now: Value | None) -> str:
    """`20 → 520`, with thousands set off."""
    return " → ".join("none" if one is None else f"{one:,}" if isinstance(one, int) else str(one) for one in (was, now))


def seconds(duration: str) -> float:
    """ "5s", "500ms", "1h" in seconds; a bare number is seconds. ValueError for anything else."""
    match = re.fullmatch(_DURATION, duration)
    if match is None:
        raise ValueError(f"{duration!r} is no duration; write 5s, 500ms, 2m or 1h")
    return float(match[1]) * _UNITS[match[2] or "s"]
