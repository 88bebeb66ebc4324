"""Launches that the site hook asks about: the gate's one decision, with the daemon's eyes.

Always holds: who asks is told by the kernel, and a launch is recorded as that process's. The look is one that began
after the question. A store that is slow holds up its own askers alone.
Never: decides in the deciding thread, or by other rules than `gates.admit`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from lockd import check, origin
from lockd.daemon.decide import Question
from lockd.errors import LockdError, LookError
from lockd.gates.admit import Asked, admit
from lockd.gates.ask import VERSION, give_ticket, spoken
from lockd.look import Launch

if TYPE_CHECKING:
    from lockd.check import Report
    from lockd.daemon.decide import Decider
    from lockd.daemon.server import Peer
    from lockd.lock import Lock
    from lockd.rules import Policy

WORKERS = 8  # that use the store at once; the others wait
Answered = Callable[[Mapping[str, Any]], None]


class Launches:
    """Decides about launches, some at once. moving: does the deciding thread make progress?"""

    def __init__(self, decider: Decider, moving: Callable[[], bool]) -> None:
        self._decider, self._moving = decider, moving
        self._room = threading.BoundedSemaphore(WORKERS)

    def ask(
        self, peer: Peer, request: Mapping[str, Any], answer: Answered, refuse: Callable[[LockdError], None]
    ) -> None:
        """Decide about what a hook asks. Raises KeyError and the like for what is no request."""
        told = request["launch"]
        environ = {str(name): str(value) for name, value in told["environ"].items()}
        launch = Launch(environ, str(told["cwd"]), tuple(map(str, told["argv"])), f"pid {peer.pid}")
        subject = self._decider.subject
        if request["hook"] != VERSION or request["policy"] != subject.path:
            refuse(LookError("this daemon is not for that hook"))
            return
        asked = Asked(
            subject.path,
            launch,
            "site",
            peer.pid,
            trust_unmapped=subject.trust_unmapped,
            who=origin.of(peer.pid, peer.uid),
            look=self._look,
        )
        threading.Thread(target=self._admit, args=(asked, answer, refuse), name="launch", daemon=True).start()

    def _admit(self, asked: Asked, answer: Answered, refuse: Callable[[LockdError], None]) -> None:
        try:
            with self._room:
                decided = admit(asked)
                give_ticket(decided, asked.pid)
            answer({"hook": "\n".join([str(decided.code), *spoken(decided)])})
        except Exception as error:  # the boundary: the hook then starts a lockd of its own
            refuse(LookError(f"the daemon could not decide: {type(error).__name__}: {error}"))

    def _look(self, policy: Policy, lock: Lock | None, launch: Launch) -> Report:
        """The daemon's look, where it is about this very policy and lock; else one of this thread's own."""
        done, found = threading.Event(), []

        def take(report: Report | None, problem: LockdError | None) -> None:
            found.append(report)
            done.set()

        self._decider.ask(Question(take, launch))
        while not done.wait(1.0):
            if not self._moving():
                break
        report = found[0] if found else None
        if report is None or report.policy.digest != policy.digest or _digest(report.lock) != _digest(lock):
            state = self._decider.subject.state
            return check.check(policy, state=state, lock=lock, launch=launch, commands=False)
        return report


def _digest(lock: Lock | None) -> str | None:
    return None if lock is None else lock.digest
