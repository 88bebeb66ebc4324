"""What the bytes of a lock said, kept so that the hot path parses no TOML.

Always holds: an answer is given only for the very bytes that were parsed, by this lockd, and only when the cache file
itself is whole; anything else is no answer. The folder is the state's own (0700).
Never: decides whether a lock may be trusted.
"""

from __future__ import annotations

import hashlib
import marshal
import os

import lockd
from lockd import atomic
from lockd.facts import Fact, Facts
from lockd.lock import HEADER, Lock

NAME = "lock"
_HEADER = (*HEADER, "schema", "digest")


def recall(cache_dir: str, key: str) -> Lock | None:
    """The lock whose bytes have the digest `key`, if it was kept."""
    try:
        with open(os.path.join(cache_dir, NAME), "rb") as file:
            data = file.read()
        if data[:32] != hashlib.sha256(data[32:]).digest():
            return None
        version, kept, header, rows = marshal.loads(data[32:])  # noqa: S302  our own file, whole by its digest
        if (version, kept) != (lockd.__version__, key):
            return None
        return Lock(**header, facts=Facts(Fact(*row) for row in rows))
    except (OSError, ValueError, EOFError, TypeError):
        return None


def keep(cache_dir: str, key: str, lock: Lock) -> None:
    """Keep what the bytes with digest `key` said; a cache that can't be written is no error."""
    header = {name: getattr(lock, name) for name in _HEADER}
    rows = [
        (fact.kind, fact.subject, dict(fact.attributes), dict(fact.told), fact.tokens) for fact in lock.facts.known()
    ]
    payload = marshal.dumps((lockd.__version__, key, header, rows))
    try:
        atomic.write_scratch(os.path.join(cache_dir, NAME), hashlib.sha256(payload).digest() + payload)
    except OSError:
        pass
