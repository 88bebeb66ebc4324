"""What was derived from stamps, held in memory: a look in which nothing moved reads no file.

Always holds: one answer a key, for its last stamp; the manifests stay on disk where the state keeps them.
Never: outlives the daemon.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from lockd.look import Memo

if TYPE_CHECKING:
    from lockd.probes import Seen

_MOST = 4096  # keys; beyond, the oldest go


class HeldMemo(Memo):
    """In front of another memo, which is asked once for each stamp."""

    def __init__(self, behind: Memo) -> None:
        self._behind = behind
        self._held: dict[tuple[Any, ...], tuple[str, Seen]] = {}
        self.remembers = behind.remembers

    def recall(self, key: tuple[Any, ...], stamp: str, compute: Callable[[], Seen]) -> Seen:
        """What `compute` gave for this stamp."""
        held = self._held.get(key)
        if held is not None and held[0] == stamp:
            return held[1]
        seen = self._behind.recall(key, stamp, compute)
        if all(hasattr(fact, "attributes") for fact in seen.facts):  # what could not be read is tried again
            self._held.pop(key, None)
            self._held[key] = (stamp, self._behind.recall(key, stamp, lambda: seen))
            while len(self._held) > _MOST:
                del self._held[next(iter(self._held))]
        return seen

    def kept(self, key: tuple[Any, ...]) -> Any:
        """What the other one kept: it is large, and seldom asked for."""
        return self._behind.kept(key)

    def keep(self, key: tuple[Any, ...], value: Any) -> None:
        """Have the other one keep it."""
        self._behind.keep(key, value)
