"""The pins of a python rule: which packages must be how, and which must not be.

Always holds: a pin is held against every found package that its name or glob means, and against absence where it is a
name. A bare version means `==`; without a local label it matches any label, with one it must match exactly. cuda, hip
and git are exact.
Never: holds a pin against a package that could not be read (that is unknown by itself).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from lockd.facts import Fact, Facts, Unknown
from lockd.findings import Breach
from lockd.probes.python.names import matches, normal
from lockd.rules import PackagePin, PythonRule, Severity

_EXACT = {"cuda": "CUDA", "hip": "HIP", "git": "git"}
_OPERATORS = ("==", "!=", "<=", ">=", "~=", "<", ">", "===")


def pins_of(rule: PythonRule) -> Iterator[tuple[str, PackagePin]]:
    for name, pin in rule.packages.items():
        yield name, PackagePin(version=pin) if isinstance(pin, str) else pin


def pin_severity(rule: PythonRule, name: str) -> Severity | None:
    """The severity that a package's own pin asks for, if any; the pin of the whole name goes before globs."""
    said = [
        (_is_glob(pattern), pattern, pin.on_drift)
        for pattern, pin in pins_of(rule)
        if pin.on_drift and matches(pattern, name)
    ]
    return min(said, key=lambda one: one[:2])[2] if said else None


def breaches(rule: PythonRule, key: str, found: Facts) -> Iterator[Breach]:
    """`key`: the rule's key path, `python[0]`."""
    packages = _packages(rule, found)
    yield from _forbidden(rule, key, packages)
    if isinstance(found.get(f"python:{rule.name}"), Unknown):
        return  # whether a pinned package is there could not be seen
    for index, group in enumerate(rule.same_version):
        yield from _apart(rule, f"{key}.same_version[{index}]", group, packages)
    for pattern, pin in pins_of(rule):
        yield from _broken(rule, f"{key}.packages.{pattern}", pattern, pin, packages)


def _packages(rule: PythonRule, found: Facts) -> dict[str, Fact | Unknown]:
    prefix = f"package:{rule.name}/"
    named = {name[len(prefix) :]: fact for name, fact in found.items() if name.startswith(prefix)}
    return {name: fact for name, fact in named.items() if isinstance(fact, Unknown) or not fact.absent}


def _names(name: str, fact: Fact | Unknown) -> tuple[str, ...]:
    """The name of a package and, where conda calls it otherwise (pytorch for torch), that one."""
    other = fact.attributes.get("conda") if isinstance(fact, Fact) else None
    return (name, normal(other)) if isinstance(other, str) else (name,)


def _means(pattern: str, packages: Mapping[str, Fact | Unknown]) -> list[str]:
    return [name for name, fact in packages.items() if any(matches(pattern, word) for word in _names(name, fact))]


def _forbidden(rule: PythonRule, key: str, packages: Mapping[str, Fact | Unknown]) -> Iterator[Breach]:
    for index, pattern in enumerate(rule.forbid):
        for name in _means(pattern, packages):
            fact = packages[name]
            version = str(fact.attributes.get("version", "")) if isinstance(fact, Fact) else None
            text = f"{name} {version or ''}".strip() + f" is installed, forbidden by {pattern!r}"
            yield Breach(
                f"package:{rule.name}/{name}",
                f"{key}.forbid[{index}]",
                text,
                found=version,
                wanted="absent",
                forbidden=True,
            )


def _apart(
    rule: PythonRule, key: str, group: tuple[str, ...], packages: Mapping[str, Fact | Unknown]
) -> Iterator[Breach]:
    """Packages of a group that are not of the version of its first; labels aside, for builds carry them unequally."""
    versions = {
        name: str(fact.attributes.get("version", ""))
        for pattern in group
        for name in _means(pattern, packages)
        if isinstance(fact := packages[name], Fact)
    }
    first = next(iter(versions), "")
    for name, version in versions.items():
        wanted = versions[first].partition("+")[0]
        if version.partition("+")[0] != wanted:
            text = f"{name} is {version}, {first} {versions[first]}: they must be of one version"
            yield Breach(f"package:{rule.name}/{name}", key, text, "version", wanted, version)


def _broken(
    rule: PythonRule, key: str, pattern: str, pin: PackagePin, packages: Mapping[str, Fact | Unknown]
) -> Iterator[Breach]:
    meant = _means(pattern, packages)
    if not meant and not _is_glob(pattern):
        name = f"package:{rule.name}/{normal(pattern)}"
        wanted = pin.version or ""
        text = f"{normal(pattern)} is not installed" + (f", pinned {wanted}" if wanted else "")
        yield Breach(name, key, text, "version", wanted, None, on_drift=pin.on_drift)
    for name in meant:
        fact = packages[name]
        if isinstance(fact, Fact):
            yield from _against(fact, name, key, pin)


def _against(fact: Fact, name: str, key: str, pin: PackagePin) -> Iterator[Breach]:
    version = str(fact.attributes.get("version", ""))
    if pin.version and not satisfies(version, pin.version):
        text = f"{name} {pin.version} pinned, {version or 'no version'} found"
        yield Breach(fact.name, key, text, "version", pin.version, version, on_drift=pin.on_drift)
    for attribute, label in _EXACT.items():
        wanted = getattr(pin, attribute)
        found = fact.attributes.get(attribute)
        if wanted is not None and found != wanted:
            text = _pinned(label, "none" if found is None else str(found), str(wanted))
            yield Breach(
                fact.name, key, text, attribute, wanted, None if found is None else str(found), on_drift=pin.on_drift
            )


def _pinned(label: str, found: str, wanted: str) -> str:
    from lockd.probes.python import brief

    said, pinned = brief.digest_pair(found, wanted)
    return f"{label} {pinned} pinned, {said} found"


def satisfies(version: str, wanted: str) -> bool:
    """Does a version match a pin? Of two distributions ("1.12.1, 1.13.1") neither does. An invalid version never
    does."""
    if version and version == wanted.strip().removeprefix("==").strip() and "," not in version:
        return True  # word for word, as in every pin that is kept
    from packaging.specifiers import InvalidSpecifier, SpecifierSet
    from packaging.version import InvalidVersion, Version

    text = wanted if wanted.lstrip().startswith(_OPERATORS) else f"=={wanted}"
    try:
        return SpecifierSet(text, prereleases=True).contains(Version(version), prereleases=True)
    except InvalidVersion:
        return version == wanted.strip().removeprefix("===").removeprefix("==")
    except InvalidSpecifier:
        return False


def _is_glob(pattern: str) -> bool:
    return any(mark in pattern for mark in "*?[")


def all_patterns(rule: PythonRule) -> Iterable[str]:
    return (*rule.packages, *rule.forbid)
