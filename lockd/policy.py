"""The policy file to a validated `rules.Policy`: read, who may write, TOML, shape, sense.

Always holds: what is returned was validated whole and can be trusted; every mistake of a file is told at once, as
`FILE:LINE: KEY: TEXT`. The judged file is the one that was read.
Never: imports pydantic, a TOML parser or packaging where the policy was validated before (`load_cached`).
"""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from lockd import policy_cache, rules, trust
from lockd.errors import PolicyError
from lockd.plain import replace
from lockd.probes import PROBES

if TYPE_CHECKING:
    from lockd.policy_shape import Mistake
    from lockd.toml_lines import KeyPath

LIMIT = 1 << 20  # bytes of a policy
_SHOWN = 200  # mistakes of one file that are printed
_READABLE = "make it readable for this user, and run it again"
_ANOTHER = "name the policy with --policy FILE or LOCKD_POLICY; lockd init writes a first one"


def load(path: str, *, trust_unmapped: bool = False) -> rules.Policy:
    """Read, judge and validate the policy at `path`. Raises PolicyError with every mistake."""
    data, owner = _read(path, trust_unmapped)
    return _parsed(path, data, owner)


def load_cached(path: str, cache_dir: str | None, *, trust_unmapped: bool = False) -> rules.Policy:
    """The same, through what an earlier call left in `cache_dir` for these very bytes. None: no cache."""
    data, owner = _read(path, trust_unmapped)
    if cache_dir is None:
        return _parsed(path, data, owner)
    stamp = policy_cache.stamp(path, data, owner)
    policy = policy_cache.recall(cache_dir, stamp)
    if policy is None:
        policy = _parsed(path, data, owner)
        policy_cache.keep(cache_dir, stamp, policy)
    return policy


def parse(text: str, path: str = "lockd.toml") -> rules.Policy:
    """Validate a text as the policy at `path`, which need not be there."""
    return _parsed(path, text.encode("utf-8", "surrogateescape"), os.geteuid())


# -- read --------------------------------------------------------------------------------------------------------------


def _read(path: str, trust_unmapped: bool) -> tuple[bytes, int]:
    """The bytes of the policy, and the uid of its owner; trusted, a regular file, and not too large."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        if os.path.islink(path):
            raise _error(path, "is a link to nothing", "point it at the policy, or remove it") from None
        raise _error(path, "no such policy", "lockd init writes a first one; --policy names another") from None
    except (OSError, ValueError) as error:
        raise _error(path, f"could not be read: {getattr(error, 'strerror', None) or error}", _READABLE) from None
    try:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            raise _error(path, "not a file" + (", but a folder" if stat.S_ISDIR(found.st_mode) else ""), _ANOTHER)
        trust.check(path, "policy", trust_unmapped=trust_unmapped)
        judged = os.stat(path)
        if (judged.st_dev, judged.st_ino) != (found.st_dev, found.st_ino):
            raise _error(path, "was replaced while it was read", "run it again")
        if found.st_size > LIMIT:
            raise _error(path, f"{found.st_size:,} bytes are no policy; at most {LIMIT:,} are read", _ANOTHER)
        return _all_bytes(path, descriptor), found.st_uid
    finally:
        os.close(descriptor)


def _all_bytes(path: str, descriptor: int) -> bytes:
    parts: list[bytes] = []
    left = LIMIT + 1
    while left > 0:
        part = os.read(descriptor, left)
        if not part:
            return b"".join(parts)
        parts.append(part)
        left -= len(part)
    raise _error(path, f"more than {LIMIT:,} bytes are no policy", _ANOTHER)


def _error(path: str, text: str, hint: str = "") -> PolicyError:
    return PolicyError([f"{path}: {text}"], where=path, hint=hint)


# -- validate ----------------------------------------------------------------------------------------------------------


def _parsed(path: str, data: bytes, owner: int) -> rules.Policy:
    from lockd.policy_shape import shape
    from lockd.toml_lines import dotted, key_lines

    text, document = _document(path, data)
    lines = key_lines(text)
    policy, mistakes = shape(document, PROBES)
    if policy is None:
        raise PolicyError(_told(path, mistakes, lines), where=path, hint="lockd policy check shows this list alone")
    return replace(
        _normalised(policy),
        path=os.path.abspath(path),
        digest="sha256:" + hashlib.sha256(data).hexdigest(),
        lines={**{dotted(_pep503(key)): line for key, line in lines.items()}, **_by_name(lines)},
        owner=owner,
    )


def _document(path: str, data: bytes) -> tuple[str, dict[str, Any]]:
    import sys

    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib

    try:
        text = data.decode("utf-8").replace("\r\n", "\n")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise PolicyError([f"{path}:{line}: not UTF-8"], where=path, hint="save the file as UTF-8") from None
    if text.startswith("\ufeff"):
        raise PolicyError([f"{path}:1: begins with a byte order mark"], where=path, hint="save it as plain UTF-8")
    try:
        return text, tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise PolicyError([_syntax(path, text, str(error))], where=path) from None
    except RecursionError:
        raise _error(path, "not a policy: nested too deeply") from None
    except ValueError as error:  # a number or a date that TOML writes and Python does not hold
        raise _error(path, f"not a policy: {error}") from None


def _syntax(path: str, text: str, message: str) -> str:
    import re

    place = re.search(r" \(at line (\d+), column (\d+)\)$", message)
    if place:
        return f"{path}:{place[1]}: not TOML: {message[: place.start()]} (column {place[2]})"
    return f"{path}:{text.count(chr(10)) + 1}: not TOML: {message.replace(' (at end of document)', '')}, at the end"


def _told(path: str, mistakes: Iterable[Mistake], lines: Mapping[KeyPath, int]) -> list[str]:
    """`FILE:LINE: KEY: TEXT`, in the order of the file; the line of the nearest table where the key itself has none."""
    from lockd.toml_lines import dotted

    placed = []
    for key, text in mistakes:
        near = next((key[:end] for end in range(len(key), 0, -1) if key[:end] in lines), ())
        line = lines.get(near, 1)
        placed.append((line, f"{path}:{line}: {dotted(key)}: {text}" if key else f"{path}:{line}: {text}"))
    told = list(dict.fromkeys(text for _, text in sorted(placed, key=lambda one: one[0])))
    more = [f"{path}: and {len(told) - _SHOWN:,} more"] if len(told) > _SHOWN else []
    return told[:_SHOWN] + more


def _normalised(policy: rules.Policy) -> rules.Policy:
    from lockd.wellformed import package

    python = tuple(
        replace(rule, packages={package(name): pin for name, pin in rule.packages.items()}) for rule in policy.python
    )
    return replace(policy, python=python)


def _pep503(key: KeyPath) -> KeyPath:
    """`python[0].packages.Flash_Attn` is known as `….flash-attn`, as in the rule."""
    from lockd.wellformed import package

    if len(key) < 4 or key[2] != "packages" or key[0] != "python":
        return key
    return (*key[:3], package(str(key[3])), *key[4:])


def _by_name(lines: Mapping[KeyPath, int]) -> dict[str, int]:
    from lockd.toml_lines import dotted

    return {dotted(key): line for key, line in lines.items()}
