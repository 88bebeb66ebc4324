"""`lockd daemon`: the process from start to stop: signals, the socket, the watchdog, who is answered what.

Always holds: ready is said after the first whole look; the watchdog is petted only while every worker makes progress; a
worker that died ends the process, for the manager to start it anew; SIGTERM ends it in under two seconds; SIGHUP reads
policy and lock again.
Never: looks or judges.
"""

from __future__ import annotations

import os
import resource
import signal
import threading
import time
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from lockd import __version__, log, policy, state
from lockd.clock import Steps, stamp
from lockd.daemon import notify, place
from lockd.daemon import status as statuses
from lockd.daemon.decide import Decider, Question
from lockd.daemon.ends import Ends
from lockd.daemon.launches import Launches
from lockd.daemon.overriding import Overriding
from lockd.daemon.reader import Reader
from lockd.daemon.rounds import Rounds
from lockd.daemon.scribe import Scribe
from lockd.daemon.server import Client, Server
from lockd.daemon.subject import Subject
from lockd.errors import LockdError, LookError, UsageError
from lockd.look import Launch
from lockd.protocol import Identity
from lockd.store import Event

if TYPE_CHECKING:
    from lockd.check import Report
    from lockd.state import State

STUCK = 60.0  # seconds without a step after which the deciding thread is taken to hang
_ENDING = 0.8  # seconds that each worker has to end
_CLIENTS, _IDLE = 0.5, 10.0  # seconds between two rounds of the main thread, with clients and without
_REACH = 2.0  # seconds between two looks for the runtime folder
_DESCRIPTORS = 16_384


def run(path: str, *, trust_unmapped: bool = False) -> int:
    """Serve one policy until told to stop. Raises what is wrong with it, or that another daemon serves it."""
    log.configure()
    opened = state.open(path, create=True)
    subject = Subject(path, opened, trust_unmapped=trust_unmapped)
    # a policy that is bad from the start is told and ends it; one that goes bad later leaves the last good one
    subject.policy = policy.load(path, trust_unmapped=trust_unmapped)
    _more_descriptors()
    held = place.take(path)
    passed = notify.listeners()
    try:
        listeners = passed or [held.listen(subject.policy)]
        return Daemon(subject, opened, held, listeners).serve()
    finally:
        held.close()


class Daemon:
    """One policy's daemon: its threads and its socket."""

    def __init__(self, subject: Subject, opened: State | None, held: place.Place, listeners: list[Any]) -> None:
        self.subject, self.place = subject, held
        self.started = time.time()
        self.scribe = Scribe(opened, log.say)
        self.decider = Decider(subject, self.scribe, held.cookies, log.say)
        self.reader = Reader(self.decider, opened, log.say)
        self.rounds = Rounds(self.decider, opened, self.scribe, log.say)
        self.ends = Ends(opened, self.scribe, log.say)
        self.launches = Launches(self.decider, self.moving)
        self.overriding = Overriding(self.decider, self.moving)
        self.server = Server(listeners, self._handle, self._waiting_for)
        self._stopping = self._hangup = self._ready = False
        self._beat, self._beat_at = -1, time.monotonic()
        self._clock = Steps()
        self._reached, self._lost = time.monotonic(), ""

    # -- life

    def serve(self) -> int:
        """Until SIGTERM or SIGINT. 0, or 3 where a worker died."""
        self._signals()
        workers: list[threading.Thread] = [self.scribe, self.decider, self.reader, self.rounds, self.ends]
        for worker in workers:
            worker.start()
        log.say("started", policy=self.subject.path, version=__version__, pid=os.getpid())
        self.scribe.event(Event(stamp(), "daemon", f"started: lockd {__version__}, pid {os.getpid()}"))
        died = ""
        petted, interval = 0.0, notify.watchdog_interval()
        while not self._stopping and not died:
            self.server.turn(self._pause(interval))
            self._follow()
            taken = self._be_found()
            if interval is not None and self.moving() and time.monotonic() - petted >= interval / 2:
                petted = time.monotonic()
                notify.notify("WATCHDOG=1")
            died = taken or ", ".join(f"{worker.name} died" for worker in workers if not worker.is_alive())
        return self._end(died)

    def _pause(self, interval: float | None) -> float:
        """Seconds that the main thread may sleep; clients, signals and answers wake it."""
        if not self._ready:
            return 0.1
        return min(_CLIENTS if self.server.clients else _IDLE, (interval or _IDLE) / 2)

    def _follow(self) -> None:
        """What the signals and the workers ask of the main thread."""
        if self._hangup:
            self._hangup = False
            notify.notify("RELOADING=1", f"MONOTONIC_USEC={time.monotonic_ns() // 1000}")
            self.decider.reload()
            notify.notify("READY=1")
        step = self._clock.taken()
        if step:  # every timer goes by another clock; the stamps of the log do not, and its numbers keep the order
            log.say("clock_stepped", seconds=round(step, 1))
            text = f"the clock was put {'forward' if step > 0 else 'back'} by {abs(step):.0f} s"
            self.scribe.event(Event(stamp(), "daemon", text))
        if not self._ready and self.decider.ready.is_set():
            self._ready = True
            notify.notify("READY=1", f"STATUS={self.decider.standing.verdict}")

    def _be_found(self) -> str:
        """Where the runtime folder was taken away, be there again. What ends this daemon, if another took its place."""
        if time.monotonic() - self._reached < _REACH:
            return ""
        self._reached = time.monotonic()
        if not self.place.lost():
            return ""
        said, subject = self._lost, self.subject
        try:
            if subject.policy is not None:
                self.server.replace(self.place.renew(subject.path, subject.policy))
                self.decider.eyes.retry()
                log.say("socket_back", path=self.place.socket)
                self._lost = ""
        except UsageError as error:
            return error.what
        except LockdError as error:
            self._lost = error.what
            if error.what != said:  # clients look for themselves meanwhile
                log.say("socket_lost", path=self.place.socket, error=error.what)
        return ""

    def _end(self, died: str) -> int:
        notify.notify("STOPPING=1")
        self.reader.stop()
        self.rounds.stop()
        self.ends.stop()
        self.decider.stop()
        self.decider.join(_ENDING)
        self.scribe.event(Event(stamp(), "daemon", f"stopped: {died}" if died else "stopped"))
        log.say("failed" if died else "stopped", policy=self.subject.path, error=died)
        self.scribe.stop(_ENDING)
        self.server.close()
        return LookError.code if died else 0

    def _signals(self) -> None:
        signal.signal(signal.SIGTERM, self._on_stop)
        signal.signal(signal.SIGINT, self._on_stop)
        signal.signal(signal.SIGHUP, self._on_hangup)
        signal.signal(signal.SIGPIPE, signal.SIG_IGN)

    def _on_stop(self, *_: object) -> None:
        self._stopping = True
        self.server.ring()

    def _on_hangup(self, *_: object) -> None:
        self._hangup = True
        self.server.ring()

    def moving(self) -> bool:
        """Does every worker make progress? The deciding thread waits, or moved within STUCK seconds."""
        now = time.monotonic()
        if not self.decider.busy or self.decider.beat != self._beat:
            self._beat, self._beat_at = self.decider.beat, now
        return self.decider.is_alive() and now - self._beat_at < STUCK

    def _waiting_for(self) -> str | None:
        return (self.decider.busy or "looking") if self.moving() else None

    # -- answers

    def _handle(self, client: Client, request: Mapping[str, Any]) -> None:
        asked = request.get("ask")
        try:
            if asked == "standing":
                self.server.post(client, {"answer": statuses.standing(self)})
            elif asked == "status":
                self.decider.ask(Question(lambda *_: self.server.post(client, {"answer": statuses.document(self)})))
            elif asked == "writers":
                self.decider.ask(Question(lambda *_: self.server.post(client, {"answer": statuses.writers(self)})))
            elif asked == "verify":
                self._verify(client, request)
            elif asked == "launch":
                answer = partial(self._answer, client)
                self.launches.ask(client.peer, request, answer, partial(self._refuse, client), client.left)
            elif asked == "override":
                wrong = self._differs(request, client.peer.uid)
                if wrong is not None:
                    self._refuse(client, wrong)
                else:
                    self.overriding.ask(client.peer, request, partial(self._answer, client))
            else:
                self._refuse(client, LookError(f"there is nothing like {asked!r} to ask"))
        except (TypeError, ValueError, KeyError, AttributeError) as error:
            log.say("socket_odd", error=f"{type(error).__name__}: {error}", peer=client.peer._asdict())
            self._refuse(client, LookError("that is no request of this protocol"))

    def _answer(self, client: Client, told: Mapping[str, Any]) -> None:
        self.server.post(client, {"answer": told})

    def _verify(self, client: Client, request: Mapping[str, Any]) -> None:
        told = request["launch"]
        launch = Launch(
            {str(name): str(value) for name, value in told["environ"].items()},
            str(told["cwd"]),
            tuple(map(str, told["argv"])),
            str(told["source"]),
        )

        def answer(report: Report | None, problem: LockdError | None) -> None:
            if report is None:
                self._refuse(client, problem or LookError("nothing was looked at yet"))
            else:
                self.server.post(client, {"answer": statuses.verified(report, request)})

        check = partial(self._differs, request, client.peer.uid)
        self.decider.ask(Question(answer, launch, bool(request.get("commands")), check))

    def _differs(self, request: Mapping[str, Any], uid: int) -> LockdError | None:
        """Why this daemon is not the one to answer that client. Another user's state is another one by nature."""
        subject = self.subject
        folder = None if subject.state is None else subject.state.folder
        here = {
            "version": __version__,
            "policy": _plain(subject.policy_identity),
            "lock": _plain(subject.lock_identity),
            "trust_unmapped": subject.trust_unmapped,
        }
        if folder is not None and uid == os.geteuid() and request.get("state") is not None:
            here["state"] = folder
        if subject.trouble:
            return LookError(subject.trouble)
        wrong = [name for name, value in here.items() if request.get(name) != value]
        return LookError(f"the client's {', '.join(wrong)} is not the daemon's") if wrong else None

    def _refuse(self, client: Client, problem: LockdError) -> None:
        told = {"what": problem.what, "where": problem.where, "hint": problem.hint}
        last_good = self.subject.policy.on_unknown if self.subject.policy else "block"
        self.server.post(client, {"error": told, "direct": True, "on_unknown": last_good})


def _plain(known: Identity | None) -> list[int] | None:
    return None if known is None else list(known)


def _more_descriptors() -> None:
    """Hundreds of clients at once: as many descriptors as may be had."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, _DESCRIPTORS)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
