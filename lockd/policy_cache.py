"""The validated policy, kept in the state folder, so that the hot path needs neither pydantic nor a TOML parser.

Always holds: what is recalled was validated from the very same bytes, at the same path, by the same code, and the kept
file is whole by its own digest: a bit that flipped in it must not soften a rule.
Never: is believed without its stamp, or an error: what can't be read or written costs time, no more.
"""

from __future__ import annotations

import hashlib
import json
import os

from lockd import __version__, atomic, rules
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
            data = file.read(_LIMIT)
        digest, _, body = data.partition(b"\n")
        if digest.decode("ascii") != hashlib.sha256(body).hexdigest():
            return None
        content = json.loads(body)
        if content["stamp"] != stamp:
            return None
        policy = thaw(content["policy"], types)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None  # not there, cut short or of another version: validate anew
    return policy if isinstance(policy, rules.Policy) else None


def keep(cache_dir: str, stamp: str, policy: rules.Policy) -> None:
    """Written aside and renamed. A cache that can't be written costs time, no more."""
    body = json.dumps({"stamp": stamp, "policy": freeze(policy)}).encode("ascii")
    try:
        atomic.write_scratch(os.path.join(cache_dir, _FILE), hashlib.sha256(body).hexdigest().encode() + b"\n" + body)
    except OSError:
        pass
