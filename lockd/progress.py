"""Progress of long work: one line on a terminal's stderr after the first second, nothing in a pipe.

Always holds: the line is gone when the work is over. `checked` is the look of most commands: this launch, against the
lock of the session.
Never: writes to stdout.
"""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lockd.check import Report
    from lockd.session import Session

_FIRST = 1.0  # seconds of silence
_GIB = 1 << 30


class Progress:
    """A context that is called with (bytes done, bytes to do)."""

    def __init__(self, label: str) -> None:
        self._label = label
        self._started = time.monotonic()
        self._shown = False
        self._terminal = sys.stderr is not None and sys.stderr.isatty()

    def __enter__(self) -> Progress:
        return self

    def __call__(self, done: int, total: int) -> None:
        elapsed = time.monotonic() - self._started
        if self._terminal and elapsed >= _FIRST:
            self._shown = True
            share = f"{done * 100 // total} %" if total else "…"
            speed = done / elapsed / _GIB
            line = f"{self._label}: {done / _GIB:.2f} of {total / _GIB:.2f} GiB, {share}, {speed:.2f} GiB/s"
            sys.stderr.write(f"\r\x1b[K{line}")
            sys.stderr.flush()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._shown:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()


def checked(session: Session, label: str, *, full: bool = False) -> Report:
    """Look and compare, with progress."""
    from lockd.check import check
    from lockd.session import this_launch

    with Progress(label) as progress:
        return check(
            session.policy,
            state=session.state,
            lock=session.lock,
            launch=this_launch(),
            full=full,
            progress=progress,
        )
