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
CALM, HELD = 0.3, 20.0  # the same for a look that a glance stands in for
MOST = 200_000


@dataclass(frozen=True)
class Burst:
    """Hints of one time. whole: anything may have changed.

    held: since when (by the gatherer's clock) some of them wait for a look, 0 for not at all; due: they waited long
    enough.
    """

    hints: tuple[Hint, ...] = ()
    whole: bool = False
    held: float = 0.0
    due: bool = False

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
    _held: dict[Hint, None] = field(default_factory=dict)
    _since: float = 0.0
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
        return bool(self._hints or self._held)

    @property
    def lost(self) -> tuple[Hint, ...]:
        """Losses among the hints that nobody has taken yet."""
        with self.changed:
            return tuple(hint for hint in self._hints if hint.kind in LOSSES)

    def due(self) -> float | None:
        """Seconds until the burst is to be looked at, 0 for now; None: there is none."""
        with self.changed:
            times = [min(self._last + QUIET, self._first + BOUND)] if self._hints else []
            times += [self._due_held()] if self._held else []
            return max(0.0, min(times) - self.now()) if times else None

    def _due_held(self) -> float:
        return min(self._last + CALM, self._since + HELD)

    def quiet_for(self) -> float:
        """Seconds since the last hint."""
        return self.now() - self._last

    def take(self) -> Burst:
        """Everything that came so far."""
        with self.changed:
            due = bool(self._held) and self.now() >= self._due_held()
            hints, self._hints = self._held | self._hints, {}
            held, self._held, self._since = self._since, {}, 0.0
            flooded, self._flooded = self._flooded, False
        return Burst(tuple(hints), flooded or any(hint.kind in LOSSES for hint in hints), held, due)

    def hold(self, burst: Burst) -> None:
        """A glance at it was enough for now: it is taken again with what comes, and looked at once it is calm."""
        with self.changed:
            self._held = dict.fromkeys(burst.hints)
            self._since = burst.held or self.now()
