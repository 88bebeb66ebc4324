"""Bursts of hints, gathered: one `uv pip install` is one change.

Always holds: a burst is over when no hint came for QUIET seconds, and is handed out after BOUND seconds in any case;
hints that came before a `take` are in it or in an earlier one. Bounded: beyond MOST paths a burst is a loss, which asks
for a look at everything.
Never: looks at the machine, or reads a clock that it was not given.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from lockd.watch.hints import LOSSES, Hint

QUIET, BOUND = 0.03, 2.0  # seconds
MOST = 200_000


@dataclass(frozen=True)
class Burst:
    """Hints of one time. at: seconds since the epoch of the first; whole: anything may have changed."""

    hints: tuple[Hint, ...] = ()
    whole: bool = False

    @property
    def losses(self) -> tuple[Hint, ...]:
        return tuple(hint for hint in self.hints if hint.kind in LOSSES)

    @property
    def paths(self) -> frozenset[str]:
        return frozenset(hint.path for hint in self.hints)


@dataclass
class Gatherer:
    """Where the watcher's thread puts hints and the deciding thread takes them. `changed` wakes the latter."""

    changed: threading.Condition = field(default_factory=threading.Condition)
    now: Callable[[], float] = time.monotonic
    _hints: dict[Hint, None] = field(default_factory=dict)
    _first: float = 0.0
    _last: float = 0.0
    _flooded: bool = False

    def put(self, hint: Hint) -> None:
        """From the watcher's thread."""
        with self.changed:
            if not self._hints:
                self._first = self.now()
                self.changed.notify_all()
            self._last = self.now()
            if len(self._hints) < MOST:
                self._hints.setdefault(hint)
            else:
                self._flooded = True

    @property
    def waiting(self) -> bool:
        """Are there hints that nobody has taken?"""
        return bool(self._hints)

    @property
    def lost(self) -> tuple[Hint, ...]:
        """Losses among the hints that nobody has taken yet."""
        with self.changed:
            return tuple(hint for hint in self._hints if hint.kind in LOSSES)

    def due(self) -> float | None:
        """Seconds until the burst is to be looked at, 0 for now; None: there is none."""
        with self.changed:
            if not self._hints:
                return None
            return max(0.0, min(self._last + QUIET, self._first + BOUND) - self.now())

    def quiet_for(self) -> float:
        """Seconds since the last hint."""
        return self.now() - self._last

    def take(self) -> Burst:
        """Everything that came so far."""
        with self.changed:
            hints, self._hints = self._hints, {}
            flooded, self._flooded = self._flooded, False
        return Burst(tuple(hints), flooded or any(hint.kind in LOSSES for hint in hints))
