"""The table of probes: one file (or folder) a kind of fact, each a plain module that satisfies `Probe`.

Always holds: a section of the policy has one probe, or is refused by name when the policy is loaded. A probe reads, it
never runs anything of its target (a `[[command]]` aside), never imports it, and stays inside what its rule names. What
it could not read is an Unknown with the reason. Its facts are sorted and the same for the same machine.
Never: compares, judges, prints, or writes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, cast

from lockd.facts import Fact, Facts, Unknown

if TYPE_CHECKING:
    from lockd.findings import Breach, Difference
    from lockd.look import Look
    from lockd.rules import Policy, Severity

Manifest = Mapping[str, str]  # path relative to the fact's root (as the OS gave it) → a short word for its content


class Seen(NamedTuple):
    """What one rule's look gave: its facts, and on demand the manifests behind them (fact name → manifest)."""

    facts: tuple[Fact | Unknown, ...]
    manifests: Callable[[], Mapping[str, Manifest]] = dict


class Probe(Protocol):
    """What a probe module holds. `rule` is the policy's section object (one of lockd.rules)."""

    KINDS: tuple[str, ...]  # the kinds of fact that it makes
    ATTRIBUTES: Mapping[str, Mapping[str, str]]  # kind → attribute or `told` name → one line, for docs/facts.md

    def look(self, rule: Any, look: Look) -> Seen:
        """Read the facts of one rule. Never raises for what the machine holds."""

    def claims(self, rule: Any, kind: str, subject: str) -> bool:
        """Does this rule answer for a fact of that name (which may be gone from the machine)?"""

    def severity(self, rule: Any, policy: Policy, kind: str, subject: str, change: str) -> Severity:
        """How strictly a change of that fact is held: the rule's own word, else the policy's."""

    def breaches(self, rule: Any, policy: Policy, found: Facts) -> Iterator[Breach]:
        """The policy's own pins that the found facts break."""

    def word(self, difference: Difference) -> str:
        """One line for a tired person, from → to: "torch 2.11.0+cu128 → 2.11.0+cu130 (CUDA 12.8 → 13.0)"."""

    def watched(self, rule: Any) -> Iterable[str]:
        """Absolute paths (folders or files) whose change asks for another look."""


# section of the policy → module; a section that is not here is refused by `policy.load`
PROBES: Mapping[str, str] = {
    "python": "lockd.probes.python",
    "launch": "lockd.probes.launch",
    "file": "lockd.probes.files",
    "cache": "lockd.probes.caches",
    "tree": "lockd.probes.trees",
    "git": "lockd.probes.git",
    "env": "lockd.probes.environ",
    "gpu": "lockd.probes.gpu",
    "host": "lockd.probes.host",
    "command": "lockd.probes.commands",
}


def probe(section: str) -> Probe:
    """The probe of a section, imported when it is first needed."""
    return cast(Probe, import_module(PROBES[section]))


def rules(policy: Policy) -> Iterator[tuple[str, Any]]:
    """Every rule of the policy with its section, in the table's order; `[env]` and `[launch]` are one each."""
    for section in PROBES:
        value = getattr(policy, section)
        if section == "launch":
            if value.python or value.scripts or value.modules:
                yield section, value
        elif isinstance(value, tuple):
            yield from ((section, rule) for rule in value)
        elif value:
            yield section, value
