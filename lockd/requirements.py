"""Exact requirements (`Requires-Dist: name==version`) that the installed packages of an environment do not keep.

Always holds: only what packages state and what stands there is held together; a requirement without a local label is
kept by any label. It is told where a state is accepted, never drift: people override such pins on purpose.
Never: reads the machine.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from lockd.facts import Fact, Facts

_EXACT = re.compile(r"([A-Za-z0-9][A-Za-z0-9._-]*)\s*(?:\[[^\]]*\])?\s*\(?\s*===?\s*([^\s,;()*]+)\)?\s*(?:;.*)?")


def broken(facts: Facts) -> Iterator[str]:
    """`train: torch 2.11.0+cu128 requires triton==3.6.0, 3.5.0 is installed`, sorted."""
    packages = [fact for fact in facts.known() if fact.kind == "package" and not fact.absent]
    installed = {fact.subject: str(fact.attributes.get("version", "")) for fact in packages}
    for fact in packages:
        environment, _, name = fact.subject.rpartition("/")
        for required, wanted in _exact(fact):
            found = installed.get(f"{environment}/{required}")
            if found is not None and not _keeps(found, wanted):
                version = installed[fact.subject]
                yield f"{environment}: {name} {version} requires {required}=={wanted}, {found or 'none'} is installed"


def _exact(fact: Fact) -> Iterator[tuple[str, str]]:
    listed = fact.told.get("requires")
    for text in listed if isinstance(listed, tuple) else ():
        found = _EXACT.fullmatch(text)
        if found:
            yield re.sub(r"[-_.]+", "-", found[1]).lower(), found[2]


def _keeps(found: str, wanted: str) -> bool:
    if found == wanted:
        return True
    from packaging.specifiers import InvalidSpecifier, SpecifierSet
    from packaging.version import InvalidVersion

    try:
        return SpecifierSet(f"=={wanted}", prereleases=True).contains(found, prereleases=True)
    except (InvalidSpecifier, InvalidVersion):
        return False
