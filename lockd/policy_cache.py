"""The validated policy, kept in the state folder, so that the hot path needs neither pydantic nor a TOML parser.

Always holds: what is recalled was validated from the very same bytes, at the same path, by the same code.
Never: is believed without its stamp, or an error: what can't be read or written costs time, no more.
"""

from __future__ import annotations

import hashlib
import json
import os

from lockd import __version__, rules
from lockd.frozen import freeze, thaw
from lockd.probes import PROBES

_FILE = "policy.json"
_LIMIT = 32 << 20
_SOURCES = ("rules.py", "wellformed.py", "policy_shape.py", "policy_sense.py", "policy.py")  # what validates


def stamp(path: str, data: bytes, owner: int) -> str:
    """What the kept policy depends on: the file, and the code that validated it."""
    folder = os.path.dirname(os.path.abspath(__file__))
    parts: list[object] = [os.path.abspath(path), owner, __version__, *PROBES]
    for source in _SOURCES:
        found = os.stat(os.path.join(folder, source))
        parts += [found.st_size, found.st_mtime_ns]
    return hashlib.sha256(repr(parts).encode("utf-8", "surrogateescape") + b"\0" + data).hexdigest()


def recall(cache_dir: str, stamp: str) -> rules.Policy | None:
    types = {name: value for name, value in vars(rules).items() if isinstance(value, type)}
    try:
        with open(os.path.join(cache_dir, _FILE), "rb") as file:
            content = json.loads(file.read(_LIMIT))
        if content["stamp"] != stamp:
            return None
        policy = thaw(content["policy"], types)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None  # not there, cut short or of another version: validate anew
    return policy if isinstance(policy, rules.Policy) else None


def keep(cache_dir: str, stamp: str, policy: rules.Policy) -> None:
    """Written aside and renamed. A cache that can't be written costs time, no more."""
    kept = os.path.join(cache_dir, _FILE)
    aside = f"{kept}.{os.getpid()}.tmp"
    try:
        with open(aside, "w", encoding="ascii") as file:
            json.dump({"stamp": stamp, "policy": freeze(policy)}, file)
        os.replace(aside, kept)
    except OSError:
        try:
            os.unlink(aside)
        except OSError:
            pass
