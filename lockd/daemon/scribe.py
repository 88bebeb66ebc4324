"""The history's writer: one thread that records what the deciding thread hands it, in order.

Always holds: a store that is locked, full or corrupt holds nothing up but the history itself; what could not be written
is tried again, and `trouble` says so meanwhile. While an accept goes on nothing is recorded that its new lock has to do
with, and nothing later that was held against the lock before: what was accepted did not heal, it became good.
Never: decides, or drops a line in silence.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from lockd import history
from lockd import lock as locks
from lockd.accept_record import alone
from lockd.errors import LockdError

if TYPE_CHECKING:
    from lockd.check import Report
    from lockd.state import State
    from lockd.store import Event, Store

AGAIN = 2.0  # seconds until what could not be written is tried again
MOST = 2_000  # jobs that wait; beyond, the oldest go, and that is said
_ACCEPT = 5.0  # seconds that an accept is waited for

Job = Callable[[], None]


class Scribe(threading.Thread):
    """Writes until stopped. Without a state it writes nothing."""

    def __init__(self, state: State | None, say: Callable[..., None]) -> None:
        super().__init__(name="scribe", daemon=True)
        self._state, self._say = state, say
        self._jobs: deque[Job] = deque()
        self._changed = threading.Condition()
        self._stopping = False
        self.trouble = ""
        self.lost = 0

    def record(self, report: Report) -> None:
        """What drifted and healed since the last report."""
        self._put(lambda: self._record(report))

    def event(self, event: Event) -> None:
        """One line of the log."""
        self._put(lambda: self._append(event))

    def do(self, job: Callable[[Store], None]) -> None:
        """Something else with the open store."""
        self._put(lambda: self._with_store(job))

    def flush(self, seconds: float) -> bool:
        """Wait until all that was handed over is written. False: not within the time."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._jobs, seconds)

    def stop(self, seconds: float) -> None:
        """Write what waits, as far as `seconds` allow, and end."""
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        self.join(seconds)

    def run(self) -> None:
        """Write, one job after another; a failed one stays first."""
        while True:
            with self._changed:
                self._changed.wait_for(lambda: bool(self._jobs) or self._stopping)
                if not self._jobs:
                    return
                job = self._jobs[0]
            done = self._try(job)
            with self._changed:
                if done and self._jobs and self._jobs[0] is job:
                    self._jobs.popleft()
                self._changed.notify_all()
                if not done:
                    self._changed.wait_for(lambda: self._stopping, AGAIN)
                    if self._stopping:
                        return

    def _try(self, job: Job) -> bool:
        try:
            job()
        except (LockdError, OSError) as error:
            if str(error) != self.trouble:
                self._say("history_unwritable", error=str(error))
            self.trouble = str(error)
            return False
        except Exception as error:  # the boundary: one odd report does not end the history
            self._say("history_failed", error=f"{type(error).__name__}: {error}")
            return True
        if self.trouble:
            self._say("history_writable")
        self.trouble = ""
        return True

    def _put(self, job: Job) -> None:
        if self._state is None:
            return
        with self._changed:
            if len(self._jobs) >= MOST:
                self._jobs.remove(self._jobs[1])
                self.lost += 1
            self._jobs.append(job)
            self._changed.notify_all()

    def _record(self, report: Report) -> None:
        if self._state is None:
            return
        with alone(self._state, lambda _: None, _ACCEPT):
            if not _outdated(report):
                history.record(self._state, report)

    def _append(self, event: Event) -> None:
        def append(store: Store) -> None:
            store.append(event)

        self._with_store(append)

    def _with_store(self, job: Callable[[Store], None]) -> None:
        store = self._state.store(create=True) if self._state is not None else None
        if store is not None:
            with store:
                job(store)


def _outdated(report: Report) -> bool:
    """Does another whole lock stand by now? What differed from the one before was recorded by whoever accepted it, and
    is no drift from this one; the look at this one comes.
    """
    try:
        with open(report.policy.lock_path, "rb") as file:
            data = file.read()
    except OSError:
        return False  # the last good one stands for it
    digest = locks.digest_of(data)
    whole = digest is not None and f'digest = "{digest}"'.encode() in data
    return report.lock is not None and whole and digest != report.lock.digest
