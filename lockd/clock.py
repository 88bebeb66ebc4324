"""Times in the one form that everything stores: ISO 8601, UTC, whole seconds, `Z`; and the words that people use.

Always holds: `stamp` sorts as text as the times do. `parse_time` gives an aware time in UTC, or says what it reads.
Never: depends on the locale; a time without a zone is local time, as the person at the keyboard means it.
"""

from __future__ import annotations

import re
import time
from typing import TYPE_CHECKING

from lockd.errors import UsageError

if TYPE_CHECKING:  # `stamp` is on the path of every look; datetime is imported where words are read
    from datetime import datetime

_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800}
_WORDS = {"sec": "s", "second": "s", "min": "m", "minute": "m", "hour": "h", "hr": "h", "day": "d", "week": "w"}
_AGO = r"(?:(\d+)|an?)\s*([a-z]+)(?:\s+ago)?"
_DAY = r"(?:(today|yesterday)\b\s*)?(?:at\s+)?(?:(\d{1,2}):(\d{2})(?::(\d{2}))?)?"
STEP = 1.0  # seconds; what the wall clock may differ by without having been set
HINT = "say `2 hours ago`, `90m`, `yesterday 18:00`, `18:00` or an ISO time such as 2026-11-30T18:00Z"


def stamp(at: float | None = None) -> str:
    """A time (seconds since the epoch; now if none is given) as `2026-11-30T19:04:11Z`."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(at))


class Steps:
    """Notices that the wall clock was set, by `since_boot`."""

    def __init__(self) -> None:
        self._ahead = _ahead()

    def taken(self) -> float:
        """Seconds by which the clock was set since the last call, below 0 for back; 0.0 if by less than STEP."""
        before, self._ahead = self._ahead, _ahead()  # a clock that is slewed moves on with every call
        step = self._ahead - before
        return step if abs(step) >= STEP else 0.0


def since_boot() -> float:
    """Seconds since the boot, those asleep included: the clock that nobody sets."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def _ahead() -> float:
    return time.time() - since_boot()


def parse_time(text: str, now: datetime) -> datetime:
    """The time that a person means, in UTC. `now` must be aware. UsageError if it is none."""
    from datetime import timezone

    words = " ".join(text.lower().split())
    if words == "now":
        return now.astimezone(timezone.utc)
    try:
        found = _ago(words, now) or _of_day(words, now) or _iso(text.strip())
    except (OverflowError, ValueError):
        found = None
    if found is None:
        raise UsageError(f"{text!r} is no time", hint=HINT)
    return found.astimezone(timezone.utc)


def _ago(words: str, now: datetime) -> datetime | None:
    from datetime import timedelta

    match = re.fullmatch(_AGO, words)
    if match is None:
        return None
    unit = match[2] if match[2] in _UNITS else _WORDS.get(match[2].removesuffix("s"))
    return None if unit is None else now - timedelta(seconds=int(match[1] or 1) * _UNITS[unit])


def _of_day(words: str, now: datetime) -> datetime | None:
    """`yesterday`, `today 9:30`, `18:00`: of the local day."""
    from datetime import datetime, timedelta

    match = re.fullmatch(_DAY, words)
    if match is None or not words:
        return None
    day = now.astimezone() - timedelta(days=1 if match[1] == "yesterday" else 0)
    # naive again, so that the zone's rules of that day apply, not those of now
    return datetime(
        day.year, day.month, day.day, int(match[2] or 0), int(match[3] or 0), int(match[4] or 0)
    ).astimezone()


def _iso(text: str) -> datetime:
    """ISO 8601 as 3.10 reads it, with `Z` and a lone hour:minute added."""
    from datetime import datetime

    found = datetime.fromisoformat(re.sub(r"[zZ]$", "+00:00", text))
    return found if found.tzinfo else found.astimezone()
