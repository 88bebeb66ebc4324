"""Break-glass through the socket: for who may override and has no rights on the state of the policy's owner.

Always holds: the kernel says who asks; what is given covers what a look after the question found, stands in the state
of the policy's owner, and so in every verdict and status, and the log says by whom.
Never: takes a user's word for who they are, or lets anybody override whom the policy does not allow.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from lockd import origin, overrides
from lockd.daemon.asking import wait_for
from lockd.errors import LockdError, LookError, UsageError
from lockd.look import Launch

if TYPE_CHECKING:
    from lockd.check import Report
    from lockd.daemon.decide import Decider
    from lockd.daemon.server import Peer
    from lockd.overrides import Override

Answered = Callable[[Mapping[str, Any]], None]
DEEDS = ("give", "list", "end")


class Overriding:
    """Gives, tells and ends the override of this daemon's state. moving: does the deciding thread make progress?"""

    def __init__(self, decider: Decider, moving: Callable[[], bool]) -> None:
        self._decider, self._moving = decider, moving
        self._one = threading.Lock()

    def ask(self, peer: Peer, request: Mapping[str, Any], answer: Answered) -> None:
        """Do what is asked. Raises KeyError and the like for what is no request. What is refused is an answer, too."""
        told = request["launch"]
        environ = {str(name): str(value) for name, value in told["environ"].items()}
        launch = Launch(environ, str(told["cwd"]), tuple(map(str, told["argv"])), f"pid {peer.pid}")
        deed, why, only = str(request["deed"]), str(request["why"]), tuple(map(str, request["only"]))
        seconds = float(request["seconds"])
        if deed not in DEEDS:
            raise ValueError(deed)
        who = origin.of(peer.pid, peer.uid, environ)

        def work() -> None:
            try:
                with self._one:
                    answer(self._do(deed, peer, who, launch, why, seconds, only))
            except LockdError as error:
                kind = "usage" if isinstance(error, UsageError) else "refused" if error.code == 1 else "look"
                answer({"problem": kind, "what": error.what, "where": error.where, "hint": error.hint})
            except OSError as error:
                answer({"problem": "look", "what": str(error), "where": "", "hint": ""})

        threading.Thread(target=work, name="override", daemon=True).start()

    def _do(
        self,
        deed: str,
        peer: Peer,
        who: origin.Origin,
        launch: Launch,
        why: str,
        seconds: float,
        only: tuple[str, ...],
    ) -> dict[str, Any]:
        state = self._decider.subject.state
        if state is None:
            raise LookError("this daemon keeps no state")
        if deed == "list":
            found = overrides.kept(state)
            return _told(found if found is not None and overrides.in_time(found) else None)
        report = self._look(launch)
        overrides.check_may(report.policy, peer.uid, peer.gid)
        if deed == "end":
            return {**_told(None), "ended": overrides.end(state, who)}
        one = overrides.new(report.findings, why, who, seconds, only)
        overrides.keep(state, one, who)
        return _told(one)

    def _look(self, launch: Launch) -> Report:
        found = wait_for(self._decider, self._moving, launch)
        if found is None:
            raise LookError("the daemon makes no progress")
        report, problem = found
        if report is None:
            raise problem or LookError("nothing was looked at yet")
        return report


def _told(one: Override | None) -> dict[str, Any]:
    return {"override": None if one is None else one.document(), "by": None if one is None else one.by}
