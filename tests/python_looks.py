"""Looking at environments in tests: one rule, one disk, the facts by name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from lockd.compare import compare
from lockd.disk import Disk
from lockd.facts import Fact, Facts, Unknown
from lockd.findings import Difference
from lockd.look import Look, Memo
from lockd.probes import Seen, python
from lockd.rules import Policy, PythonRule

NAME = "train"


def rule_of(prefix: Path | str, **words: Any) -> PythonRule:
    return PythonRule(name=NAME, path=str(prefix), **words)


def seen(prefix: Path | str, *, disk: Disk | None = None, memo: Memo | None = None, **words: Any) -> Seen:
    """One look at an environment, with a rule of `words`."""
    rule = rule_of(prefix, **words)
    look = Look(Policy("tests", python=(rule,)), disk or Disk(), memo=memo or Memo())
    return python.look(rule, look)


def facts(prefix: Path | str, **words: Any) -> Facts:
    return Facts(seen(prefix, **words).facts)


def package(prefix: Path | str, name: str, **words: Any) -> Fact:
    """The fact of one package, which must have been readable."""
    fact = facts(prefix, **words)[f"package:{NAME}/{name}"]
    assert isinstance(fact, Fact), fact
    return fact


def unowned(prefix: Path | str, **words: Any) -> Fact:
    fact = facts(prefix, **words)[f"unowned:{NAME}"]
    assert isinstance(fact, Fact), fact
    return fact


def state(fact: Fact) -> str:
    return str(fact.attributes.get("state", ""))


def differences(before: Facts, after: Facts) -> dict[str, Difference]:
    """What a verify would compare, by fact."""
    return {one.name: one for one in compare(before, after)}


def unknown(found: Facts, name: str) -> Unknown:
    fact = found[name]
    assert isinstance(fact, Unknown), fact
    return fact
