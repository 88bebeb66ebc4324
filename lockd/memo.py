"""What was derived from stamped trees before, kept in the state folder: facts in one file a rule, its manifests in
another.

Always holds: facts come back exactly as they were made (tuples, sets, numbers and booleans keep their types), and
only for the same key, stamp and version of lockd. Manifests are loaded when they are asked for. A file that is torn
or foreign is as if it were not there. What holds an Unknown is never kept: what could not be read is tried again.
Never: pickles, or answers from a stamp that differs.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from hashlib import sha256
from typing import TYPE_CHECKING, Any

from lockd import __version__
from lockd.facts import Fact, Unknown
from lockd.look import Memo
from lockd.statcache import prune, read_packed, write_packed

if TYPE_CHECKING:
    from lockd.probes import Manifest, Seen

_KEPT = 512  # derivations; a policy that is edited leaves files of rules that are no more


class StateMemo(Memo):
    """Remembers over processes, in `folder`, which only its owner can write."""

    def __init__(self, folder: str) -> None:
        self._folder = folder

    def recall(self, key: tuple[Any, ...], stamp: str, compute: Callable[[], Seen]) -> Seen:
        """What `compute` gave when `key` had this `stamp`, else compute it now and keep it."""
        from lockd.probes import Seen

        name = repr(key)
        path = self._path(key)
        kept = read_packed(f"{path}.facts", (name, __version__))
        if kept is not None and kept[0] == stamp:
            facts = tuple(Fact(*fields) for fields in kept[1])
            return Seen(facts, lambda: self._manifests(path, name, stamp, compute))
        seen = compute()
        if not any(isinstance(fact, Unknown) for fact in seen.facts):
            self._keep(path, name, stamp, seen)
        return seen

    remembers = True

    def kept(self, key: tuple[Any, ...]) -> Any:
        """The last value that was given to `keep` under this key."""
        return read_packed(f"{self._path(key)}.parts", (repr(key), __version__))

    def keep(self, key: tuple[Any, ...], value: Any) -> None:
        """Keep plain values, from which the next derivation starts; one that cannot be written is made anew then."""
        try:
            os.makedirs(self._folder, mode=0o700, exist_ok=True)
            write_packed(f"{self._path(key)}.parts", (repr(key), __version__), value)
        except OSError:
            pass

    def _path(self, key: tuple[Any, ...]) -> str:
        return os.path.join(self._folder, sha256(repr(key).encode("utf-8", "backslashreplace")).hexdigest()[:32])

    def _manifests(self, path: str, name: str, stamp: str, compute: Callable[[], Seen]) -> Mapping[str, Manifest]:
        kept = read_packed(f"{path}.manifests", (name, __version__))
        if kept is not None and kept[0] == stamp:
            manifests: Mapping[str, Manifest] = kept[1]
            return manifests
        return compute().manifests()  # the other half is lost: made anew, from the same stamp

    def _keep(self, path: str, name: str, stamp: str, seen: Seen) -> None:
        key = (name, __version__)
        manifests = {fact: dict(manifest) for fact, manifest in seen.manifests().items()}
        facts = tuple(_fields(fact) for fact in seen.facts if isinstance(fact, Fact))
        try:
            os.makedirs(self._folder, mode=0o700, exist_ok=True)
            write_packed(f"{path}.manifests", key, (stamp, manifests))
            write_packed(f"{path}.facts", key, (stamp, facts))  # last: facts that are there have their manifests
            prune(self._folder, (".facts", ".manifests", ".parts"), 3 * _KEPT)
        except OSError:  # disk full, read-only state: costs the next look its time, and this one nothing
            pass


def _fields(fact: Fact) -> tuple[Any, ...]:
    return fact.kind, fact.subject, dict(fact.attributes), dict(fact.told), fact.tokens
