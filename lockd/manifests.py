"""Manifests as bytes: whole, or by what is other than in another one.

Always holds: what was packed comes back equal, whatever bytes the names hold.
Never: decides which one another is kept by.
"""

from __future__ import annotations

import json
import zlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lockd.probes import Manifest

_LEVEL = 3  # zlib: digests hardly shrink, names do


def pack(manifest: Manifest) -> bytes:
    """Names may hold anything but NUL, words have none: so NUL parts them."""
    parts = [part for path in sorted(manifest) for part in (path, manifest[path])]
    return "\0".join(parts).encode("utf-8", "surrogateescape")


def unpack(body: bytes) -> Manifest:
    """The manifest that `pack` made, from its compressed bytes."""
    text = zlib.decompress(body).decode("utf-8", "surrogateescape")
    parts = text.split("\0") if text else []
    return dict(zip(parts[::2], parts[1::2], strict=True))


def pack_delta(old: Manifest, new: Manifest) -> bytes:
    """What makes `new` of `old`: the paths that are gone, and the words that are other."""
    gone = [path for path in old if path not in new]
    other = {path: word for path, word in new.items() if old.get(path) != word}
    return zlib.compress(json.dumps([gone, other]).encode("ascii"), _LEVEL)


def apply_delta(old: Manifest, body: bytes) -> Manifest:
    """The manifest that `pack_delta` told apart from `old`."""
    gone, other = json.loads(zlib.decompress(body))
    left = frozenset(gone)
    return {**{path: word for path, word in old.items() if path not in left}, **other}
