"""Facts: what was read from the machine, frozen and in canonical order, and the ids made of them.

Always holds: a fact has one name, `kind:subject`; `attributes` are compared and count in the ids, `told` is only
shown. Order of input never matters. Equal ids mean equal attributes. An absent thing is a fact (`ABSENT`); a thing
that could not be read is an `Unknown` with its reason, and the two are never mixed up.
Never: reads the machine, knows a clock, or holds a path that is not already escaped for people (`shown`).
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping

from lockd.plain import dataclass, field

Value = str | int | bool | tuple[str, ...]
Attributes = Mapping[str, Value]

ABSENT: Attributes = {"absent": True}  # the attributes of something that is not there
_LONG = r"\S{400,}"  # a word that no line has room for
LAUNCH_KINDS = ("env", "launch")  # facts of one launch; they have an id of their own
LAUNCH_FACTS = ("host:ulimits", "host:cgroup")  # these as well: what a launch inherits, and a daemon has otherwise


@dataclass(frozen=True)
class Fact:
    """One thing read from the machine.

    kind, subject: `package` and `train/torch`; the subject is escaped (`shown`).
    attributes: compared with the lock, and part of the ids; names as in docs/facts.md.
    told: shown to people and kept, never compared (times, owners, requirements).
    tokens: of a `grow` set only: one short token an entry (`token`); a lock knows its own entries by them.
    """

    kind: str
    subject: str
    attributes: Attributes
    told: Attributes = field(default_factory=dict)
    tokens: frozenset[str] | None = None

    @property
    def name(self) -> str:
        return f"{self.kind}:{self.subject}"

    @property
    def absent(self) -> bool:
        return self.attributes.get("absent") is True


@dataclass(frozen=True)
class Unknown:
    """A fact that could not be read, and why."""

    kind: str
    subject: str
    reason: str

    @property
    def name(self) -> str:
        return f"{self.kind}:{self.subject}"


class Facts(Mapping[str, Fact | Unknown]):
    """Facts by name, sorted. Two facts of one name are a programming error: ValueError."""

    def __init__(self, facts: Iterable[Fact | Unknown] = ()) -> None:
        listed = sorted(facts, key=lambda fact: fact.name)
        self._facts = {fact.name: fact for fact in listed}
        if len(self._facts) != len(listed):
            raise ValueError("two facts of one name")

    def __getitem__(self, name: str) -> Fact | Unknown:
        return self._facts[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._facts)

    def __len__(self) -> int:
        return len(self._facts)

    def known(self) -> Iterator[Fact]:
        """The facts that could be read."""
        return (fact for fact in self._facts.values() if isinstance(fact, Fact))

    def unknown(self) -> Iterator[Unknown]:
        """The facts that could not be read."""
        return (fact for fact in self._facts.values() if isinstance(fact, Unknown))


def environment_id(facts: Iterable[Fact | Unknown]) -> str:
    """`env1:` and 128 bits over the given facts, those of a launch left out.

    The caller passes what is under block and warn rules.
    """
    return "env1:" + _digest(fact for fact in facts if not of_launch(fact))


def launch_id(facts: Iterable[Fact | Unknown]) -> str:
    """`launch1:` and 128 bits over the facts of a launch: its variables, interpreter and import path."""
    return "launch1:" + _digest(fact for fact in facts if of_launch(fact))


def of_launch(fact: Fact | Unknown) -> bool:
    """Does a fact belong to one launch, and not to the machine?"""
    return fact.kind in LAUNCH_KINDS or fact.name in LAUNCH_FACTS


def _digest(facts: Iterable[Fact | Unknown]) -> str:
    lines = sorted(json.dumps([fact.name, _identity(fact)], sort_keys=True, default=list) for fact in facts)
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:32]


def _identity(fact: Fact | Unknown) -> object:
    return dict(fact.attributes) if isinstance(fact, Fact) else "unknown"


def token(path: str, content: str) -> str:
    """64 bits, as 16 hex digits, for one entry of a set: its path (as the OS gave it) and its content digest."""
    return hashlib.sha256(f"{path}\0{content}".encode("utf-8", "surrogateescape")).hexdigest()[:16]


def set_digest(tokens: Iterable[str]) -> str:
    """`sha256:…` over a set of tokens: the identity of a set, whatever its order."""
    return "sha256:" + hashlib.sha256("".join(sorted(tokens)).encode()).hexdigest()


def shown(name: str) -> str:
    """A name from the OS made safe to print, store and compare: one line of valid UTF-8, reversible.

    Undecodable bytes become `\\xff`, control, format and separator characters `\\n`, `\\x1b`, `\\u202e`; a backslash is
    doubled.
    """
    if name.isascii() and name.isprintable() and "\\" not in name:
        return name
    return "".join(map(_shown_character, name))


def safe(text: str) -> str:
    """Text of any origin made safe to print: as `shown`, but lines stay lines and a backslash stays single."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(one if one in "\n\\" else _shown_character(one) for one in text)


def short(text: str) -> str:
    """A line with every word that is longer than a line cut in its middle: a path of thousands of bytes tells nothing
    more. The fact keeps its whole name."""
    return re.sub(_LONG, lambda match: f"{match[0][:200]} … {match[0][-100:]}", text) if len(text) > 400 else text


def _shown_character(character: str) -> str:
    point = ord(character)
    if character == "\\":
        return "\\\\"
    if 0xDC80 <= point <= 0xDCFF:  # surrogateescape: a byte that was not UTF-8
        return f"\\x{point - 0xDC00:02x}"
    if character == " " or character.isprintable():
        return character
    if 0x80 <= point <= 0xFF:  # "\\x85" stands for a raw byte already
        return f"\\u{point:04x}"
    return character.encode("unicode_escape").decode("ascii")
