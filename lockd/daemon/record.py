"""When a change goes into the history: once it is over, and before it is undone.

Always holds: one burst is one change; it is over when no hint came for QUIET seconds and its writers have ended, or
after LONG seconds of quiet; an install (MANY paths) may write elsewhere for LONGER in the middle. A state that somebody
was told of, or that stood for a while, leaves its mark even if the next look finds it gone.
Never: writes itself: the scribe does.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from lockd import lineage
from lockd.daemon import standing
from lockd.daemon.gather import QUIET, Burst

if TYPE_CHECKING:
    from lockd.check import Report
    from lockd.daemon.scribe import Scribe

LONG = 1.0  # seconds of quiet after which a change is over though its writer lives on
MANY, LONGER = 20, 10.0  # paths that make a change an install, and the same seconds for one
STOOD = 0.25  # seconds after which a state counts though it did not last


class Recorder:
    """Used by the deciding thread alone."""

    def __init__(self, scribe: Scribe, say: Callable[..., None]) -> None:
        self._scribe, self._say = scribe, say
        self._last: Any = None
        self._pending: Report | None = None
        self._since = 0.0
        self._told, self._look = 0, 0  # numbers of looks: the last that somebody was told of, the first that waits
        self._writers: set[tuple[int, int]] = set()
        self._paths: set[str] = set()

    def take(self, report: Report, burst: Burst, now: float, look: int) -> None:
        """What stands after a look, by the number of the look."""
        self._writers |= {(hint.who.pid, hint.who.started) for hint in burst.hints if hint.who.pid and hint.who.started}
        if len(self._paths) < MANY:
            self._paths |= burst.paths
        keys = standing.keys(report)
        if self._pending is not None:
            before = standing.keys(self._pending)
            if before == keys:
                self._pending = report
                return
            if self._counts(before, keys, _began(burst, now)):
                self.flush()
        if keys == self._last:
            self._pending, self._paths = None, set()
        else:
            self._pending, self._since, self._look = report, now, look

    def told(self, look: int) -> None:
        """Somebody is being told what that look came to. From any thread."""
        self._told = max(self._told, look)

    def over(self, now: float, quiet: float) -> bool:
        """Does something wait whose change is over, as far as the hints so far tell?"""
        return self._pending is not None and self._left(now, quiet) <= 0

    def due(self, now: float, quiet: float) -> float | None:
        """Seconds until something may be over. None: nothing waits."""
        return None if self._pending is None else max(0.0, self._left(now, quiet))

    def flush(self) -> None:
        """Hand over what waits, now."""
        if self._pending is not None:
            self._tell(self._pending)
            self._last = standing.keys(self._pending)
            self._scribe.record(self._pending)
        self._pending, self._writers, self._paths = None, set(), set()

    def _tell(self, report: Report) -> None:
        """The journal gets each finding that came and each that went."""
        before: dict[str, str] = dict(self._last[1]) if self._last else {}
        now: dict[str, str] = dict(standing.keys(report)[1])
        told = {"environment": report.environment, "verdict": report.verdict}
        for one in (*report.findings, *report.recorded):
            if now.get(one.fact) not in (None, before.get(one.fact)):
                by = dict(one.by) if one.by else None
                self._say("drift", fact=one.fact, change=one.change, text=one.message, since=one.since, by=by, **told)
        for fact in before.keys() - now.keys():
            self._say("heal", fact=fact, by=dict(report.healed.get(fact, {})) or None, **told)

    def _left(self, now: float, quiet: float) -> float:
        """A writer that lives may go on; ask again every QUIET seconds whether it does."""
        if quiet < QUIET:
            return QUIET - quiet
        long = LONG if len(self._paths) < MANY else LONGER
        if quiet >= long or not self._living():
            return 0.0
        return min(QUIET * 2, long - quiet)

    def _living(self) -> bool:
        self._writers = {one for one in self._writers if (row := lineage.row(one[0])) and row.start == one[1]}
        return bool(self._writers)

    def _counts(self, before: Any, keys: Any, now: float) -> bool:
        """Would something be forgotten that was seen to stand?"""
        gone = {fact for fact, _ in before[1]} - {fact for fact, _ in keys[1]}
        return bool(gone) and (self._told >= self._look or now - self._since >= STOOD)


def _began(burst: Burst, now: float) -> float:
    """When what a look found began to change, by the monotonic clock: a look of a burst under way comes late."""
    first = min((hint.at for hint in burst.hints if hint.at), default=0.0)
    return now - max(0.0, time.time() - first) if first else now
