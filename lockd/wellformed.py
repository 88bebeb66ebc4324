"""What a value of a policy must hold beyond its type: paths, digests, durations, versions, names.

Always holds: a function here is pure, takes the text as the person wrote it, returns it normalised, and raises
ValueError in words that say what is wanted and what was found. `Check` carries one to pydantic, and its pattern to the
JSON Schema, without importing pydantic.
Never: looks at the machine, or repairs what could be meant in two ways.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

DIGEST_HEX = {"md5": 32, "sha1": 40, "sha256": 64, "sha512": 128, "blake2b": 128}  # algorithm → hex digits
_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_DURATION = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_PACKAGE = re.compile(r"[A-Za-z0-9*?\[][A-Za-z0-9._*?\[\]!-]*")
_MODULE = re.compile(r"[A-Za-z_*?\[][\w*?\[\]!-]*(\.[\w*?\[\]!-]+)*")


class Check:
    """A check of one field: `check` normalises or raises ValueError; `schema` is what JSON Schema can say of it."""

    def __init__(self, check: Callable[[str], str], **schema: Any) -> None:
        self.check, self.schema = check, schema

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> Any:
        from pydantic_core import core_schema

        return core_schema.no_info_after_validator_function(self.check, handler(source))

    def __get_pydantic_json_schema__(self, schema: Any, handler: Any) -> dict[str, Any]:
        return {**handler(schema), **self.schema}


def seconds(duration: str) -> float:
    """The seconds of a duration such as "5s", "250ms", "1.5h", "2d"."""
    match = _DURATION.fullmatch(duration)
    if not match or float(match[1]) == 0:
        raise ValueError(f'wants a duration above zero such as "500ms", "5s", "30m", "1h" or "2d", found "{duration}"')
    return float(match[1]) * _UNITS[match[2]]


def duration(text: str) -> str:
    seconds(text)
    return text


def timeout(text: str) -> str:
    if seconds(text) > 3600:
        raise ValueError(f'wants at most "1h", found "{text}"')
    return text


def absolute(path: str) -> str:
    """An absolute path without `~`, `..` or variables; doubled and last slashes go, `.` too."""
    _no_control(path)
    if path.startswith("~"):
        raise ValueError(f'"{path}": ~ depends on who runs lockd; write the absolute path')
    if not path.startswith("/"):
        hint = "variables are not expanded; " if "$" in path else ""
        raise ValueError(f'"{path}" is not absolute; {hint}write the whole path from /')
    if len(path.encode("utf-8", "surrogateescape")) >= 4096:
        raise ValueError(f'"{cut(path)}" is longer than any path can be')
    parts = [part for part in path.split("/") if part not in ("", ".")]
    if ".." in parts:
        raise ValueError(f'"{path}" holds "..", which links can lead elsewhere; write the path without it')
    return "/" + "/".join(parts)


def pattern(glob: str) -> str:
    """A glob of `exclude`: relative to the rule's root, or absolute; `**` crosses folders."""
    _no_control(glob)
    if glob.startswith("~") or ".." in glob.split("/"):
        raise ValueError(f'"{glob}": a glob holds neither ~ nor ".."')
    return glob


def digest(text: str) -> str:
    """`ALGORITHM:HEX`, in lower case."""
    algorithm, _, digits = text.lower().partition(":")
    if algorithm not in DIGEST_HEX:
        raise ValueError(f'wants ALGORITHM:HEX with one of {", ".join(DIGEST_HEX)}, found "{cut(text)}"')
    wanted = DIGEST_HEX[algorithm]
    if len(digits) != wanted or not re.fullmatch(r"[0-9a-f]*", digits):
        raise ValueError(
            f'malformed: {algorithm} wants {wanted} hex digits, found "{cut(digits)}" ({len(digits)} characters)'
        )
    return f"{algorithm}:{digits}"


def commit(text: str) -> str:
    """A whole git commit id: a short one would never equal what the package states."""
    if not re.fullmatch(r"[0-9a-f]{40}|[0-9a-f]{64}", text.lower()):
        raise ValueError(f'wants the whole commit, 40 hex digits, found "{cut(text)}"')
    return text.lower()


def version(pin: str) -> str:
    """A PEP 440 specifier, or a bare version, which means `==`."""
    from packaging.specifiers import InvalidSpecifier, SpecifierSet
    from packaging.version import InvalidVersion, Version

    text = pin.strip()
    if not text:
        raise ValueError(
            'an empty pin matches anything; write a version such as "2.11.0+cu128" or leave the package out'
        )
    try:
        if text[0] not in "=<>!~":
            return str(Version(text)) if str(Version(text)) == text else text
        SpecifierSet(text)
    except (InvalidVersion, InvalidSpecifier):
        raise ValueError(f'"{cut(pin)}" is not a version; write "2.11.0+cu128", "==3.6.0" or ">=4.57,<5"') from None
    return text


def word(text: str) -> str:
    """A pinned value that is not empty and is one line."""
    _no_control(text)
    return text


def name(text: str) -> str:
    """The name of a policy, an environment or a command; it becomes a part of fact and folder names."""
    if not _NAME.fullmatch(text):
        raise ValueError(f'wants letters, digits, ".", "_" and "-", 64 at most, found "{cut(text)}"')
    return text


def package(text: str) -> str:
    """A package name or glob, normalised as PEP 503 says."""
    if not _PACKAGE.fullmatch(text):
        raise ValueError(f'"{cut(text)}" is not a package name or a glob over names')
    return re.sub(r"(?<!\[)[-_.]+(?!\])", "-", text).lower()


def module(text: str) -> str:
    """A module for `python -m`, dotted, or a glob over such names."""
    if not _MODULE.fullmatch(text):
        raise ValueError(f'"{cut(text)}" is not a module name; a script belongs in launch.scripts')
    return text


def variable(text: str) -> str:
    """The name of an environment variable, or a glob over names."""
    _no_control(text)
    if "=" in text:
        raise ValueError(f'"{cut(text)}" is not the name of a variable')
    return text


def _no_control(text: str) -> None:
    if not text:
        raise ValueError("is empty")
    if any(ord(character) < 32 or ord(character) == 127 for character in text):
        raise ValueError(f"holds a control character: {text!r}")


def cut(text: str) -> str:
    """A text short enough for a message."""
    return text if len(text) <= 80 else text[:77] + "…"
