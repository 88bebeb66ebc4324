"""What no event tells: launches that no gate saw, and runs that ended.

Always holds: a launch counts as ungated once it was there at two rounds and is older than GRACE seconds, so that a gate
that still looks is not taken for none; it is recorded once, with gate `none`. A store that can't be used holds up
nothing else.
Never: stops a process.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from lockd import origin, overrides, running, runs, ungated
from lockd.facts import shown
from lockd.gates import ending
from lockd.look import Launch

if TYPE_CHECKING:
    from lockd.check import Report
    from lockd.daemon.decide import Decider
    from lockd.daemon.scribe import Scribe
    from lockd.state import State
    from lockd.store import Store
    from lockd.ungated import Suspect

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
        overrides.settle_over(self._state)
        found = ungated.suspects(report.policy)
        here = {(one.process.pid, one.process.start) for one in found}
        late = [one for one in found if self._is_late(one)]
        self._seen, self._told = here, self._told & here
        if late or here:
            self._told |= {(one.process.pid, one.process.start) for one in late}
            self._scribe.do(lambda store: self._record(store, late, report))
        elif self._runs_open:
            self._scribe.do(self._settle)
        self._runs_open = bool(here)

    _runs_open = True

    def _is_late(self, one: Suspect) -> bool:
        key = (one.process.pid, one.process.start)
        return key in self._seen and key not in self._told and time.time() - one.process.started >= self._grace

    def _settle(self, store: Store) -> None:
        if self._state is not None:
            ending.settle(self._state, store)

    def _record(self, store: Store, late: list[Suspect], report: Report) -> None:
        self._settle(store)
        known = [process for run in runs.running(store) for process in run.body.get("processes", ())]
        for one in late:
            if not self._is_recorded(store, one, known):
                self._begin(store, one, report)

    def _is_recorded(self, store: Store, one: Suspect, known: Iterable[Mapping[str, Any]]) -> bool:
        """Is it a run already, or beneath one: here, or, for who holds a GPU, under another policy of this machine?"""
        pid, start = one.process.pid, one.process.start
        if any(process.get("pid") == pid and process.get("start") == start for process in known):
            return True
        if runs.admitting(store, pid) is not None:
            return True
        return bool(one.gpus) and self._state is not None and ungated.is_admitted_elsewhere(self._state, pid)

    def _begin(self, store: Store, one: Suspect, report: Report) -> None:
        process = one.process
        launch = Launch({}, running.folder(process.pid), process.argv, f"pid {process.pid}")
        who = origin.Origin(origin.user_name(process.uid), process.uid, process.pid)
        told: dict[str, Any] = {"why": f"no gate saw it start; {shown(one.why)}", "found": "by a scan of /proc"}
        if one.gpus:
            told["devices"] = list(one.gpus)
        begun = runs.Begun(launch, report, "none", report.verdict, who, process.pid, admitted=False, told=told)
        number = runs.begin(store, begun)
        self._say("launch_ungated", run=number, pid=process.pid, script=process.script, verdict=report.verdict)
