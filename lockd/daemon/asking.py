"""Waiting in a thread of one's own for what the deciding thread finds.

Always holds: the wait is bounded by lack of progress alone: a look may take as long as it goes on.
Never: looks, or waits in the deciding thread.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

from lockd.daemon.decide import Question

if TYPE_CHECKING:
    from lockd.check import Report
    from lockd.daemon.decide import Decider
    from lockd.errors import LockdError
    from lockd.look import Launch

_STEP = 1.0  # seconds between two thoughts about whether it goes on


def wait_for(
    decider: Decider, moving: Callable[[], bool], launch: Launch, *, may_age: bool = False
) -> tuple[Report | None, LockdError | None] | None:
    """The report about a launch, or the problem that there is none; None where the daemon makes no progress."""
    done = threading.Event()
    found: list[tuple[Report | None, LockdError | None]] = []

    def take(report: Report | None, problem: LockdError | None) -> None:
        found.append((report, problem))
        done.set()

    decider.ask(Question(take, launch, may_age=may_age))
    while not done.wait(_STEP):
        if not moving():
            break
    return found[0] if found else None
