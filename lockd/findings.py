"""What differs: the words that compare, the probes, judge and report share.

Always holds: one finding a fact, whatever it differs from. Everything here is frozen and pure.
Never: decides a severity (that is `verdict`), or reads the machine.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from lockd.facts import Fact, Unknown, Value
from lockd.plain import dataclass, field
from lockd.rules import Severity

ChangeKind = Literal["changed", "missing", "added", "forbidden", "unreadable"]
Against = Literal["lock", "policy"]


@dataclass(frozen=True)
class Breach:
    """A pin of the policy that a fact breaks: `attribute` should be `wanted`, and is `found` (None: not there).

    key: the policy's key path of the pin, for its line (`python[0].packages.torch`).
    text: the breach in words, e.g. "CUDA 12.8 pinned, 13.0 found".
    forbidden: the fact should not be there at all. on_drift: the pin's own severity, if it has one.
    """

    fact: str
    key: str
    text: str
    attribute: str = ""
    wanted: str = ""
    found: str | None = None
    forbidden: bool = False
    on_drift: Severity | None = None


@dataclass(frozen=True)
class FileChanges:
    """How many files of a fact changed, came and went, and some names (escaped, at most 5, most telling first).

    links: of links among these names that lead elsewhere, from and to in words. lost, gained: how many of the changed
    ones are as they were but for the execute bit.
    """

    changed: int = 0
    added: int = 0
    missing: int = 0
    examples: tuple[str, ...] = ()
    links: tuple[str, ...] = ()
    lost: int = 0
    gained: int = 0

    @property
    def total(self) -> int:
        return self.changed + self.added + self.missing


@dataclass(frozen=True)
class Difference:
    """One fact that differs, before it is worded and judged.

    expected, found: None where the lock, or the machine, has no such fact (ABSENT on the machine counts as none).
    attributes: name → (locked, found) of those that differ. breaches: the pins that it breaks. files: None where not
    known. because: name of the fact that brought this one. left: `~` names that the removal of a package left behind.
    """

    name: str
    change: ChangeKind
    expected: Fact | None
    found: Fact | Unknown | None
    against: tuple[Against, ...]
    attributes: Mapping[str, tuple[Value | None, Value | None]] = field(default_factory=dict)
    breaches: tuple[Breach, ...] = ()
    files: FileChanges | None = None
    because: str | None = None
    left: tuple[str, ...] = ()


@dataclass(frozen=True)
class Finding:
    """A difference, judged and worded: what every report prints.

    `since` (ISO UTC) and `by` are there only where they were observed.
    """

    fact: str
    change: ChangeKind
    severity: Severity
    against: tuple[Against, ...]
    message: str
    hint: str
    attributes: Mapping[str, tuple[Value | None, Value | None]] = field(default_factory=dict)
    files: FileChanges | None = None
    because: str | None = None
    since: str | None = None
    by: Mapping[str, Any] | None = None
