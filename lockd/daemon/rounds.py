"""What no event tells: launches that no gate saw, and runs that ended.

Always holds: a launch counts as ungated once it was there at two rounds and is older than GRACE seconds, so that a gate
that still looks is not taken for none; it is recorded once, with gate `none`. A store that can't be used holds up
nothing else.
Never: stops a process.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from lockd import origin, running, runs
from lockd.gates import ending
from lockd.look import Launch

if TYPE_CHECKING:
    from lockd.check import Report
    from lockd.daemon.decide import Decider
    from lockd.daemon.scribe import Scribe
    from lockd.running import Running
    from lockd.state import State
    from lockd.store import Store

EVERY = 30.0  # seconds between two rounds
GRACE = 20.0  # seconds that a gate may take


class Rounds(threading.Thread):
    """Goes round from start to stop."""

    def __init__(
        self,
        decider: Decider,
        state: State | None,
        scribe: Scribe,
        say: Callable[..., None],
        every: float = EVERY,
        grace: float = GRACE,
    ) -> None:
        super().__init__(name="rounds", daemon=True)
        self._grace = grace
        self._decider, self._state, self._scribe, self._say, self._every = decider, state, scribe, say, every
        self._end = threading.Event()
        self._seen: set[tuple[int, int]] = set()
        self._told: set[tuple[int, int]] = set()

    def stop(self) -> None:
        """End."""
        self._end.set()

    def run(self) -> None:
        """Go round, until stopped."""
        while not self._end.wait(self._every):
            try:
                self.round()
            except Exception as error:  # the boundary: an odd process ends no daemon
                self._say("look_failed", error=f"{type(error).__name__}: {error}")

    def round(self) -> None:
        """One round: new launches, and the ends of runs."""
        report = self._decider.standing.report
        if report is None:
            return
        found = running.launches(report.policy, loaded=False)
        here = {(one.pid, one.start) for one in found}
        late = [one for one in found if self._is_late(one)]
        self._seen, self._told = here, self._told & here
        if late or here:
            self._told |= {(one.pid, one.start) for one in late}
            self._scribe.do(lambda store: self._record(store, late, report))
        elif self._runs_open:
            self._scribe.do(self._settle)
        self._runs_open = bool(here)

    _runs_open = True

    def _is_late(self, one: Running) -> bool:
        key = (one.pid, one.start)
        return key in self._seen and key not in self._told and time.time() - one.started >= self._grace

    def _settle(self, store: Store) -> None:
        if self._state is not None:
            ending.settle(self._state, store)

    def _record(self, store: Store, late: list[Running], report: Report) -> None:
        self._settle(store)
        known = [process for run in runs.running(store) for process in run.body.get("processes", ())]
        for one in late:
            mine = any(process.get("pid") == one.pid and process.get("start") == one.start for process in known)
            if mine or runs.admitting(store, one.pid) is not None:
                continue
            launch = Launch({}, "/", one.argv, f"pid {one.pid}")
            who = origin.Origin(origin.user_name(one.uid), one.uid, one.pid)
            told = {"why": "no gate saw it start", "found": "by a scan of /proc"}
            begun = runs.Begun(launch, report, "none", report.verdict, who, one.pid, admitted=False, told=told)
            number = runs.begin(store, begun)
            self._say("launch_ungated", run=number, pid=one.pid, script=one.script, verdict=report.verdict)
