"""Which fact a person means: `torch`, `dflash_model.py`, `env:HOME`, `nvidia-*`, or the whole name.

Always holds: a word that fits several facts is refused with the candidates; a glob asks for several. Package names
follow PEP 503.
Never: picks one of several.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from fnmatch import fnmatchcase

from lockd.errors import UsageError

_SHOWN = 12  # candidates in a message


def resolve(names: Iterable[str], pattern: str) -> str:
    """The one fact that `pattern` fits. UsageError for none (with the nearest) and for several (with all of them)."""
    found = fitting(names, pattern)
    if len(found) > 1:
        raise UsageError(
            f"{pattern!r} fits several facts: {_listed(found)}", hint="give the whole name of the one that you mean"
        )
    return found[0]


def resolve_all(names: Iterable[str], patterns: Iterable[str]) -> list[str]:
    """The facts that each pattern fits: one each, or for a glob as many as there are. Sorted, each once."""
    listed = list(names)
    found: set[str] = set()
    for pattern in patterns:
        found.update(
            fitting(listed, pattern) if _is_glob(pattern) and pattern not in listed else [resolve(listed, pattern)]
        )
    return sorted(found)


def fitting(names: Iterable[str], pattern: str) -> list[str]:
    """The facts that a pattern fits: the name itself, whole subjects, else their ends. UsageError if none."""
    listed = sorted(set(names))
    if pattern in listed:
        return [pattern]
    for fits in (_whole, _end):
        found = [name for name in listed if fits(name, pattern)]
        if found:
            return found
    raise UsageError(f"no fact is called {pattern!r}", hint=_nearest(listed, pattern))


def _whole(name: str, pattern: str) -> bool:
    """The subject, or the whole name with the package's name in another spelling; either as a glob."""
    kind, _, subject = name.partition(":")
    return any(_same(text, wanted) for text, wanted in _spellings(kind, (subject, name), pattern))


def _end(name: str, pattern: str) -> bool:
    """What stands after a slash of the subject: `torch` of `train/torch`, `b.py` and `a/b.py` of `/root/a/b.py`."""
    kind, _, subject = name.partition(":")
    if ":" in pattern:
        wanted_kind, _, pattern = pattern.partition(":")
        if kind != wanted_kind:
            return False
    starts = [match.end() for match in re.finditer("/", subject)]
    return any(_same(text, wanted) for text, wanted in _spellings(kind, [subject[start:] for start in starts], pattern))


def _spellings(kind: str, texts: Iterable[str], pattern: str) -> list[tuple[str, str]]:
    pairs = [(text, pattern) for text in texts]
    if kind == "package":
        head, slash, last = pattern.rpartition("/")
        pairs += [(text, head + slash + re.sub(r"[-_.]+", "-", last).lower()) for text in texts]
    return pairs


def _same(text: str, pattern: str) -> bool:
    return text == pattern or (_is_glob(pattern) and fnmatchcase(text, pattern))


def _is_glob(pattern: str) -> bool:
    return any(character in pattern for character in "*?[")


def _nearest(names: list[str], pattern: str) -> str:
    import difflib

    ends = {name.partition(":")[2].rpartition("/")[2]: name for name in names}
    near = [ends.get(word, word) for word in difflib.get_close_matches(pattern, [*ends, *names], n=3, cutoff=0.6)]
    return f"did you mean {_listed(list(dict.fromkeys(near)))}?" if near else "`lockd diff` and the lock show the names"


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more
