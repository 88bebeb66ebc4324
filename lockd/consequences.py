"""What a difference does to the compile caches: the entries that nothing will find any more.

Always holds: a consequence is said only where a key is known on both sides and differs: the one under which the cache
was filled, as the lock tells it, and the one that the environment has now. Entries are counted, never assumed. Pure.
Never: judges, or says that a cache is good: equal keys prove nothing about the contents.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, NamedTuple

from lockd.facts import Fact, Facts, Unknown, Value, shown
from lockd.findings import Finding
from lockd.plain import replace
from lockd.torchkeys import TRITON

if TYPE_CHECKING:
    from lockd.rules import CacheRule, Policy

_TORCH = ("torch_key", ("torch",))
_TRITON = ("triton_key", TRITON)
# kind of cache → the keys that its entries are filed under: (what it is called, the packages that have it)
KEYS: Mapping[str, tuple[tuple[str, tuple[str, ...]], ...]] = {
    "inductor": (_TORCH, _TRITON),
    "vllm": (_TORCH, _TRITON),
    "triton": (_TRITON,),
}
_KEYS = ("torch_key", "triton_key")


class Orphaned(NamedTuple):
    """The entries of one cache that a moved key hides. fact: the package, or the files of nobody, that moved it."""

    fact: str
    cache: str
    key: str
    entries: int


def added(
    policy: Policy, findings: Iterable[Finding], locked: Mapping[str, Fact | Unknown], found: Facts
) -> tuple[Finding, ...]:
    """The findings, those that orphan a cache with the words for it."""
    listed = tuple(findings)
    lost: dict[str, list[Orphaned]] = {}
    for one in orphaned(policy, {finding.fact for finding in listed}, locked, found):
        if not any(known.cache == one.cache for known in lost.setdefault(one.fact, [])):
            lost[one.fact].append(one)
    return tuple(
        replace(one, message=f"{one.message}; {_words(one, lost[one.fact])}") if lost.get(one.fact) else one
        for one in listed
    )


def orphaned(
    policy: Policy, moved: frozenset[str] | set[str], locked: Mapping[str, Fact | Unknown], found: Facts
) -> Iterator[Orphaned]:
    """Every cache of the policy whose entries the environment of its rule does not find any more.

    moved: names of the facts that differ, among which the one is sought that moved the key.
    """
    for rule in policy.cache:
        name = f"cache:{shown(rule.path)}"
        for key, packages in KEYS.get(rule.kind, ()) if rule.python else ():
            entries = _entries(key, locked.get(name), found.get(name))
            if not entries:
                continue
            before, now = _filled(rule, key, packages, locked), _key(rule, key, packages, found)
            if before and now and before != now:
                cause = _cause(rule, packages, moved)
                if cause:
                    yield Orphaned(cause, name.partition(":")[2], key, entries)


def provenance(policy: Policy, facts: Facts, before: Mapping[str, Fact | Unknown], environment: str) -> Iterator[Fact]:
    """The facts that an accept takes, caches with what they were filled under.

    A cache that is as the lock before had it was filled under what that lock says.
    """
    rules = {f"cache:{shown(rule.path)}": rule for rule in policy.cache if rule.python and rule.kind in KEYS}
    for fact in facts.known():
        rule, old = rules.get(fact.name), before.get(fact.name)
        if rule is None or fact.absent:
            yield fact
        elif isinstance(old, Fact) and old.attributes == fact.attributes and "environment" in old.told:
            kept = {name: old.told[name] for name in (*_KEYS, "environment", "gpu", "driver") if name in old.told}
            yield replace(fact, told={**fact.told, **kept})
        else:
            yield replace(fact, told={**fact.told, **_told(rule, facts), "environment": environment})


def _told(rule: CacheRule, facts: Facts) -> Mapping[str, Value]:
    told: dict[str, Value] = {}
    for key, packages in (_TORCH, _TRITON):
        value = _key(rule, key, packages, facts)
        if value:
            told[key] = value
    driver = facts.get("gpu:driver")
    if isinstance(driver, Fact) and isinstance(driver.attributes.get("version"), str):
        told["driver"] = driver.attributes["version"]
    cards = sorted({str(fact.attributes["name"]) for fact in facts.known() if _is_card(fact)})
    if cards:
        told["gpu"] = ", ".join(cards)
    return told


def _is_card(fact: Fact) -> bool:
    return fact.kind == "gpu" and fact.subject.isdecimal() and "name" in fact.attributes


def _filled(rule: CacheRule, key: str, packages: tuple[str, ...], locked: Mapping[str, Fact | Unknown]) -> Value | None:
    """The key that the cache was filled under: its own fact's word, else that of the package in the same lock."""
    cache = locked.get(f"cache:{shown(rule.path)}")
    told = cache.told.get(key) if isinstance(cache, Fact) else None
    return told or _key(rule, key, packages, locked)


def _key(rule: CacheRule, key: str, packages: tuple[str, ...], facts: Mapping[str, Fact | Unknown]) -> Value | None:
    found = (facts.get(f"package:{rule.python}/{name}") for name in packages)
    return next((fact.told[key] for fact in found if isinstance(fact, Fact) and fact.told.get(key)), None)


def _cause(rule: CacheRule, packages: tuple[str, ...], moved: frozenset[str] | set[str]) -> str | None:
    """The package itself, else the files of nobody: a module put beside its own counts in the key as well."""
    names = (*(f"package:{rule.python}/{name}" for name in packages), f"unowned:{rule.python}")
    return next((name for name in names if name in moved), None)


def _entries(key: str, locked: Fact | Unknown | None, found: Fact | Unknown | None) -> int:
    """How many entries that are filed under a key were accepted and are still there."""
    numbers = [one.told.get(f"filed_{key}", 0) if isinstance(one, Fact) else 0 for one in (locked, found)]
    return min(number if isinstance(number, int) else 0 for number in numbers)


def _words(one: Finding, lost: list[Orphaned]) -> str:
    caches = ", ".join(f"{_many(each.entries)} of {each.cache}" for each in lost)
    edited = one.fact.startswith("package:") and not {"version", "record"} & one.attributes.keys()
    one_file = one.files is not None and one.files.total == 1
    what = "the locked build" if not edited else "the file" if one_file else "its files"
    if one.fact.startswith("unowned:"):
        return f"orphans {caches}; removing the files brings them back"
    return f"orphans {caches}; restoring {what} brings {'it' if caches.startswith('1 entry') else 'them'} back"


def _many(entries: int) -> str:
    return f"{entries:,} {'entry' if entries == 1 else 'entries'}"
