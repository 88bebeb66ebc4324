"""Globs of the policy: over paths relative to a root (`matches`), and over the file system (`expand`).

Always holds: `*`, `?` and `[…]` stay inside one path component, dot files included; a component `**` crosses any
number of them. A pattern that matches a folder matches all that lies beneath it, and `x/**` matches the folder x
itself, so that a walk can leave it out whole. Names may hold newlines and undecodable bytes.
Never: opens a file, follows a link below a `**`, or treats a pattern as anything but a pattern.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator

_MAGIC = re.compile(r"[*?\[]")
_ANY_FOLDERS = "(?:.*/)?"


def matches(patterns: Iterable[str]) -> Callable[[str], bool]:
    """Whether a relative path, or a folder above it, matches one of the patterns. No pattern matches nothing."""
    sources = [_translated(pattern) for pattern in patterns]
    if not sources:
        return lambda path: False
    match = re.compile(f"(?:{'|'.join(sources)})(?:/.*)?", re.DOTALL).fullmatch
    return lambda path: match(path) is not None


def expand(pattern: str) -> list[str]:
    """The existing paths that an absolute glob matches, sorted.

    A name that is the pattern itself counts. Links are not resolved.
    """
    found = {pattern} if os.path.lexists(pattern) else set()
    if _MAGIC.search(pattern):
        found.update(_expanded("/", [part for part in pattern.split("/") if part]))
    return sorted(found)


def literal_root(pattern: str) -> str:
    """The folder (or, without magic, the path) above which a pattern says nothing.

    `/a/b` for `/a/b/*.py`. What a watch needs.
    """
    parts = pattern.split("/")
    fixed = 0
    while fixed < len(parts) and not _MAGIC.search(parts[fixed]):
        fixed += 1
    return "/".join(parts[:fixed]) or "/"


def _translated(pattern: str) -> str:
    parts = [part for part in pattern.split("/") if part not in ("", ".")]
    while (
        len(parts) > 1 and parts[-1] == "**"
    ):  # what lies beneath a match is matched anyway, and the folder itself goes too
        parts.pop()
    source = "".join(_ANY_FOLDERS if part == "**" else _component(part) + "/" for part in parts[:-1])
    if not parts:
        return "(?!)"
    return source + (".*" if parts[-1] == "**" else _component(parts[-1]))


def _component(part: str) -> str:
    source, index = "", 0
    while index < len(part):
        character = part[index]
        index += 1
        if character == "*":
            while part[index : index + 1] == "*":
                index += 1
            source += "[^/]*"
        elif character == "?":
            source += "[^/]"
        elif character == "[" and (end := _class_end(part, index)):
            source += _class(part[index:end])
            index = end + 1
        else:
            source += re.escape(character)
    return source


def _class_end(part: str, start: int) -> int:
    """Index of the bracket that closes a class whose text begins at `start`.

    0 when it never closes, and `[` is itself.
    """
    first = start + 1 if part[start : start + 1] in ("!", "^") else start
    return max(part.find("]", first + 1), 0)


def _class(text: str) -> str:
    negated = text[:1] in ("!", "^")
    members = _members(text[1:] if negated else text)
    if not members:  # only empty ranges such as z-a: nothing is in it
        return "[^/]" if negated else "(?!)"
    return f"(?!/)[{'^' if negated else ''}{members}]"


def _members(text: str) -> str:
    source, index = "", 0
    while index < len(text):
        low = text[index]
        if text[index + 1 : index + 2] == "-" and index + 2 < len(text):
            high = text[index + 2]
            source += f"{re.escape(low)}-{re.escape(high)}" if low <= high else ""
            index += 3
        else:
            source += re.escape(low)
            index += 1
    return source


def _expanded(folder: str, parts: list[str]) -> Iterator[str]:
    head, rest = parts[0], parts[1:]
    if head == "**":
        yield from _crossed(folder, rest)
        return
    if not _MAGIC.search(head):
        names = [head] if os.path.lexists(os.path.join(folder, head)) else []
    else:
        match = re.compile(_component(head), re.DOTALL).fullmatch
        names = [name for name in _names(folder) if match(name)]
    for name in names:
        path = os.path.join(folder, name)
        if not rest:
            yield path
        elif os.path.isdir(path):
            yield from _expanded(path, rest)


def _crossed(top: str, rest: list[str]) -> Iterator[str]:
    """`**`: the rest of the pattern at every depth below `top`; without a rest, everything below it."""
    waiting = [top]
    while waiting:
        folder = waiting.pop()
        if rest:
            yield from _expanded(folder, rest)
        for name in _names(folder):
            path = os.path.join(folder, name)
            if not rest:
                yield path
            if os.path.isdir(path) and not os.path.islink(path):
                waiting.append(path)


def _names(folder: str) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError:  # a glob finds what can be found; the folder's own trouble shows where it is looked at
        return []
