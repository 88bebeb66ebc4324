"""Judging what was judged before: a look that gives the same facts as the last good one comes to the same report.

Always holds: it must be the same policy and lock, and every fact of the look equal, what is told of it included. Only a
report without a finding is given again, and without a difference but for the launch's own (which is recorded, not
judged): so no explanation from files or from the history, and no override, is in it.
Never: looks, keeps a manifest, or keeps a look from being made.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from lockd import check
from lockd.facts import LAUNCH_FACTS, LAUNCH_KINDS
from lockd.look import Sight
from lockd.plain import replace

if TYPE_CHECKING:
    from lockd.check import Explained, Report
    from lockd.findings import Difference
    from lockd.lock import Lock
    from lockd.look import Launch
    from lockd.rules import Policy
    from lockd.state import State


class Judge:
    """`check.judged_sight` with a memory of the last good report without a launch, and of the last with one."""

    def __init__(self) -> None:
        self._good: dict[tuple[bool, bool, bool], Report] = {}

    def __call__(
        self,
        policy: Policy,
        sight: Sight,
        *,
        state: State | None,
        lock: Lock | None,
        launch: Launch | None,
        started: float,
        commands: bool = True,
        explained: Explained | None = None,
    ) -> Report:
        key = (launch is None, launch is not None and bool(launch.argv), commands)
        last = self._good.get(key)
        if last is not None and last.policy is policy and last.lock is lock and _told(last.sight) == _told(sight):
            return replace(last, sight=sight, elapsed=time.monotonic() - started)
        report = check.judged_sight(
            policy,
            sight,
            state=state,
            lock=lock,
            launch=launch,
            commands=commands,
            started=started,
            explained=explained,
        )
        if report.verdict == "ok" and not report.findings and _is_of_launch(report.differences):
            self._good[key] = replace(report, sight=replace(sight, manifests=dict))
        else:
            self._good.pop(key, None)
        return report


def _is_of_launch(differences: Iterable[Difference]) -> bool:
    names = [one.name for one in differences]
    return all(name.partition(":")[0] in LAUNCH_KINDS or name in LAUNCH_FACTS for name in names)


def _told(sight: Sight) -> tuple[Any, ...]:
    """All of a look that a report is made from."""
    return list(sight.facts.values()), dict(sight.claimed), sight.not_looked, sight.failures, sight.aged
