"""Names of packages: PEP 503, globs over them, and what a metadata folder's name says.

Always holds: two spellings of one name give one word (`Flash_Attn`, `flash.attn` → `flash-attn`), globs included.
Never: reads the machine.
"""

from __future__ import annotations

import re
from fnmatch import translate
from functools import lru_cache

from lockd.facts import shown

_SEPARATORS = re.compile(r"[-_.]+")
_LEFTOVER = re.compile(r"~[-~.=%0-9]*")
METADATA_SUFFIXES = (".dist-info", ".egg-info")


def normal(name: str) -> str:
    """The PEP 503 name."""
    return _SEPARATORS.sub("-", name).lower()


def subject(name: str) -> str:
    """The PEP 503 name as it stands in a fact: safe to print and to store, and never with the `/` that parts it from
    its environment."""
    return shown(normal(name)).replace("/", "\\x2f")


@lru_cache(maxsize=512)
def _pattern(pattern: str) -> re.Pattern[str]:
    return re.compile(translate(_SEPARATORS.sub("-", pattern).lower()))


def matches(pattern: str, name: str) -> bool:
    """Does a policy's name or glob (`flashinfer*`) mean this PEP 503 name?"""
    return _pattern(pattern).match(name) is not None


def is_metadata(top: str) -> bool:
    """Is a top-level name of site-packages the metadata of a package, in sight of an installer?"""
    return top.endswith(METADATA_SUFFIXES) and not top.startswith(("~", "."))


def split_folder(folder: str) -> tuple[str, str]:
    """Name and version as `torch-2.11.0.dist-info` or `foo-1.0-py3.11.egg-info` states them, as written."""
    stem, _, kind = folder.rpartition(".")
    name, _, version = stem.partition("-")
    if kind == "egg-info":
        version = version.partition("-py")[0]
    return name, version


def is_leftover(top: str) -> bool:
    """pip renames what it removes to `~orch` first; what it could not remove stays (pip#10452)."""
    return top.startswith("~")


def leftover_of(top: str, candidates: frozenset[str]) -> str | None:
    """The top-level name that a leftover was, among those that stand: pip replaces leading letters by `~` and
    filler."""
    match = _LEFTOVER.match(top)
    if match is None:
        return None
    for length in range(match.end(), 0, -1):
        rest = top[length:]
        found = sorted(name for name in candidates if len(name) == len(top) and name.endswith(rest)) if rest else []
        if found:
            return found[0]
    return None
