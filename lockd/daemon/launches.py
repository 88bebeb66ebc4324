"""Launches that the site hook or `lockd run` asks about: the gate's one decision, with the daemon's eyes.

Always holds: who asks is told by the kernel, and a launch is recorded as that process's. The look is one that began
after the question. A store that is slow holds up its own askers alone. Who has given up waiting, and looks for itself,
is not recorded here as well.
Never: decides in the deciding thread, or by other rules than `gates.admit`.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from lockd import __version__, check, origin, protocol
from lockd.daemon.asking import wait_for
from lockd.errors import LockdError, LookError
from lockd.gates.admit import Asked, admit
from lockd.gates.ask import VERSION, give_ticket, spoken
from lockd.look import Launch

if TYPE_CHECKING:
    from lockd.check import Report
    from lockd.daemon.decide import Decider
    from lockd.daemon.server import Peer
    from lockd.gates.admit import Answer
    from lockd.lock import Lock
    from lockd.rules import Policy
    from lockd.state import State
    from lockd.store import Store

WORKERS = 8  # that use the store at once; the others wait
Answered = Callable[[Mapping[str, Any]], None]


class Launches:
    """Decides about launches, some at once. moving: does the deciding thread make progress?"""

    def __init__(self, decider: Decider, moving: Callable[[], bool]) -> None:
        self._decider, self._moving = decider, moving
        self._room = threading.BoundedSemaphore(WORKERS)
        self._kept = Kept()

    def ask(
        self,
        peer: Peer,
        request: Mapping[str, Any],
        answer: Answered,
        refuse: Callable[[LockdError], None],
        left: Callable[[], bool],
    ) -> None:
        """Decide about what a gate asks. Raises KeyError and the like for what is no request. left: did it give up?"""
        told = request["launch"]
        environ = {str(name): str(value) for name, value in told["environ"].items()}
        launch = Launch(environ, str(told["cwd"]), tuple(map(str, told["argv"])), f"pid {peer.pid}")
        subject = self._decider.subject
        by_hand = request.get("gate") == "run"
        if not (self._for_run(request, peer) if by_hand else self._for_hook(request)):
            refuse(LookError("this daemon is not for that gate"))
            return
        asked = Asked(
            subject.path,
            launch,
            "run" if by_hand else "site",
            peer.pid,
            override=_why(request) if by_hand else None,
            trust_unmapped=subject.trust_unmapped,
            who=origin.of(peer.pid, peer.uid, environ),
            gid=peer.gid,
            look=self._look,
            synced_later=True,
        )
        threading.Thread(target=self._admit, args=(asked, answer, refuse, left), name="launch", daemon=True).start()

    def _for_hook(self, request: Mapping[str, Any]) -> bool:
        return bool(request["hook"] == VERSION and request["policy"] == self._decider.subject.path)

    def _for_run(self, request: Mapping[str, Any], peer: Peer) -> bool:
        """The very files, version and options that the client has; another user's state is another one by nature."""
        subject = self._decider.subject
        own = None if subject.state is None else subject.state.folder
        lock_path = f"{subject.path.removesuffix('.toml')}.lock"
        return (
            request["version"] == __version__
            and request["policy"] == _row(protocol.identity(subject.path))
            and request["lock"] == _row(protocol.identity(lock_path))
            and request["trust_unmapped"] == subject.trust_unmapped
            and peer.pid > 0  # 0: of another process namespace
            and (peer.uid != os.geteuid() or request["state"] in (None, own))
        )

    def _admit(
        self, asked: Asked, answer: Answered, refuse: Callable[[LockdError], None], left: Callable[[], bool]
    ) -> None:
        try:
            with self._room:
                if left():
                    return
                decided = admit(asked)
                give_ticket(decided, asked.pid)
            answer(_told(decided, asked.gate == "run"))
            if decided.state is not None:
                self._kept.synced(decided.state)
        except Exception as error:  # the boundary: the hook then starts a lockd of its own
            refuse(LookError(f"the daemon could not decide: {type(error).__name__}: {error}"))

    def _look(self, policy: Policy, lock: Lock | None, launch: Launch) -> Report:
        """The daemon's look, where it is about this very policy and lock; else one of this thread's own."""
        found = wait_for(self._decider, self._moving, launch, may_age=True)
        report = found[0] if found else None
        if report is None or report.policy.digest != policy.digest or _digest(report.lock) != _digest(lock):
            state = self._decider.subject.state
            return check.check(policy, state=state, lock=lock, launch=launch, commands=False)
        return report


class Kept:
    """An idle connection to the store, and the disk's part of each record.

    Without that connection each launch's would be the last to close, which moves the whole log into the store and syncs
    both, while the launch waits.
    """

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._known: tuple[int, int] | None = None
        self._store: Store | None = None

    def synced(self, state: State) -> None:
        """Have what was recorded on the disk; a disk that does not take it is the next record's fault to tell."""
        from lockd import store

        try:
            self._hold(state)
            store.synced(state.store_path)
        except (OSError, LockdError):
            pass

    def _hold(self, state: State) -> None:
        about = os.stat(state.store_path)
        with self._guard:
            if self._known != (about.st_dev, about.st_ino):  # the first, or another was put in its place
                self._store, self._known = state.store(), (about.st_dev, about.st_ino)


def _told(decided: Answer, by_hand: bool) -> dict[str, Any]:
    if not by_hand:
        return {"hook": "\n".join([str(decided.code), *spoken(decided)])}
    inside = None if decided.inside is None else decided.inside.number
    return {"outcome": decided.outcome, "lines": list(decided.lines), "run": decided.run, "inside": inside}


def _why(request: Mapping[str, Any]) -> str | None:
    return None if request["override"] is None else str(request["override"])


def _row(known: protocol.Identity | None) -> list[int] | None:
    return None if known is None else list(known)


def _digest(lock: Lock | None) -> str | None:
    return None if lock is None else lock.digest
