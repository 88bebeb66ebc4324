"""The deciding thread: takes bursts, questions and timers, looks, judges, and says what stands.

Always holds: this thread alone looks and judges. A question is answered by a look that began after it was asked and
after every event before it was read; where that can't be proved the look is of everything. A policy or lock that went
bad leaves the last good one in place, and the verdict is `unknown`. No error of a look ends the thread.
Never: waits for a client, the store, or a writer that does not end.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from lockd import history
from lockd.clock import stamp
from lockd.daemon import standing
from lockd.daemon.again import Judge
from lockd.daemon.explained import Explainer, unexplained
from lockd.daemon.eyes import Eyes
from lockd.daemon.gather import Burst, Gatherer
from lockd.daemon.glance import Glancer
from lockd.daemon.record import Recorder
from lockd.daemon.subject import Subject
from lockd.errors import LockdError
from lockd.plain import replace as replace_plain
from lockd.store import Event

if TYPE_CHECKING:
    from lockd.check import Explained, Report
    from lockd.daemon.scribe import Scribe
    from lockd.look import Launch, Sight
    from lockd.rules import Policy

STAT, POLL, COMMANDS = 300.0, 30.0, 300.0  # seconds between timed looks
SYNC = 2.0  # seconds that the proof of having read every event may take
SLOW = 0.06  # seconds; where a look at everything takes longer, a glance comes before one at what moved
LARGE = 0.2  # seconds; a look at what moved that took longer had a large package surveyed again
TOLD = 0.5  # seconds that an answer waits for the history to be written


@dataclass(frozen=True)
class Standing:
    """What stands. at: seconds since the epoch of the look; clock: the same by the monotonic clock.

    trouble: why it is unknown whatever was seen.
    """

    report: Report | None = None
    at: float = 0.0
    clock: float = 0.0
    whole_at: float = 0.0
    trouble: str = ""
    bursts: int = 0
    looks: int = 0

    @property
    def verdict(self) -> str:
        if self.report is None or self.trouble:
            return "unknown"
        return self.report.verdict


@dataclass(frozen=True)
class Question:
    """Somebody waits. launch None: about what stands. answer: called in the deciding thread, must not block. may_age:
    a gate asks, for which the last look at a large tree of `max_age` is good enough.
    """

    answer: Callable[[Report | None, LockdError | None], None]
    launch: Launch | None = None
    commands: bool = False
    check: Callable[[], LockdError | None] = lambda: None
    may_age: bool = False


@dataclass
class _Timers:
    """Monotonic times at which something is due."""

    stat: float = 0.0
    poll: float = 0.0
    commands: float = 0.0


class Decider(threading.Thread):
    """Decides from start to stop. beat: moves with each step; busy: what it is at, "" while it waits."""

    def __init__(self, subject: Subject, scribe: Scribe, cookies: str, say: Callable[..., None]) -> None:
        super().__init__(name="decide", daemon=True)
        self.subject, self.scribe, self.say = subject, scribe, say
        self.beat, self.busy = 0, "starting"
        self.ready = threading.Event()
        self.standing = Standing()
        self.gatherer = Gatherer()
        self.eyes = Eyes(subject.state, self.gatherer.put, cookies, say, self._progress)
        self.recorder = Recorder(scribe, say)
        self.marks: standing.Marks = {}
        self.healed: standing.Healed = {}
        self._questions: list[Question] = []
        self._serving: list[Question] = []
        self._reload = self._whole = self._stopping = False
        self._timers = _Timers()
        self._answers: dict[Any, Report] = {}
        self._explainer, self._judge = Explainer(), Judge()
        self._glancer, self._slow = Glancer(), False
        self._watching: Mapping[str, str] = {}
        self._watched: Policy | None = None

    # -- from other threads

    def ask(self, question: Question) -> None:
        """Have it answered by a look that begins from now on."""
        with self.gatherer.changed:
            self._questions.append(question)
            self.gatherer.changed.notify_all()

    def reload(self) -> None:
        """Read policy and lock again, and look at everything."""
        with self.gatherer.changed:
            self._reload = self._whole = True
            self.gatherer.changed.notify_all()

    def doubt(self) -> None:
        """Somebody has reason to think that not all is what it seems: look at everything."""
        with self.gatherer.changed:
            self._whole = True
            self.gatherer.changed.notify_all()

    def stop(self) -> None:
        """End soon; a look that goes on is ended with the process."""
        with self.gatherer.changed:
            self._stopping = True
            self.gatherer.changed.notify_all()

    def settled(self) -> bool:
        """Has everything been looked at of which a hint has come?"""
        return self.ready.is_set() and not self.busy and not self.gatherer.waiting

    # -- the thread

    def run(self) -> None:
        """Look first, then again whenever something asks for it."""
        self._remember()
        self._reload = self._whole = True
        while not self._stopping:
            try:
                self._turn()
            except Exception as error:  # the boundary: unknown, said, and tried again
                self._failed(error)
            self._wait()
        self.recorder.flush()
        self.eyes.close()

    def _failed(self, error: Exception) -> None:
        import traceback

        told = f"{type(error).__name__}: {error}"
        self.say("look_failed", error=told, trace="".join(traceback.format_exception(error)))
        self._publish(replace(self.standing, trouble=f"the last look failed: {told}"))
        self._whole = True
        with self.gatherer.changed:
            self.gatherer.changed.wait_for(lambda: self._stopping, 1.0)
        problem = error if isinstance(error, LockdError) else LockdError(f"the daemon's look failed: {told}")
        for question in (*self._serving, *self._taken()):
            question.answer(None, problem)
        self._serving = []

    def _wait(self) -> None:
        self.busy = ""
        changed = self.gatherer.changed
        with changed:
            while not (self._questions or self._reload or self._whole or self._stopping):
                left = self._left()
                if left <= 0:
                    break
                changed.wait(left)

    def _left(self) -> float:
        """Seconds until something is due."""
        now = time.monotonic()
        times = [self._timers.stat - now, self.gatherer.due()]
        if not self.gatherer.waiting:  # a change that is still to be looked at is not over
            times.append(self.recorder.due(now, self.gatherer.quiet_for()))
        if self.eyes.polled:
            times.append(self._timers.poll - now)
        return min(one for one in times if one is not None)

    def _turn(self) -> None:
        self.busy, now = "looking", time.monotonic()
        self.beat += 1
        # 1. what asks
        questions = self._serving = self._taken()
        reload, self._reload = self._reload or self.subject.moved(), False
        whole, self._whole = self._whole, False
        # 2. what is pinned
        if reload:
            whole |= self._load()
        # 3. the proof that every event up to now was read
        proved = self.eyes.sync(SYNC) if questions else self.eyes.alive
        stat = now >= self._timers.stat
        timed = stat or (bool(self.eyes.polled) and (bool(questions) or now >= self._timers.poll))
        asked = bool(questions) or reload or whole or timed
        burst = self.gatherer.take() if asked or self.gatherer.due() == 0 else Burst()
        may_age = not (stat or whole or burst.hints or not proved) and all(one.may_age for one in questions)
        whole = whole or burst.whole or timed or not proved
        # 4. the look
        if burst.hints and not (asked or whole or burst.due) and self._glanced(burst):
            self.gatherer.hold(burst)
        elif burst.hints or whole or questions or reload:
            self._look(burst, whole, any(question.commands for question in questions), may_age)
        self._note_watching(burst)
        # 5. the history, when the burst is over
        if self.recorder.over(time.monotonic(), self.gatherer.quiet_for()):
            self.eyes.sync(SYNC)  # hints may be on their way
            if not self.gatherer.waiting:
                self.recorder.flush()
        if not self.ready.is_set():
            self.scribe.flush(TOLD)  # who is told that it is ready finds its start in the log, and the store free
        # 6. who asked
        if questions:
            self.recorder.told(self.standing.looks)
            self._answer_all(questions)
            self._serving = []
        self.ready.set()

    def _progress(self, done: int, whole: int) -> None:
        self.beat += 1
        self.busy = f"looking: {done / 1e6:,.0f} of {whole / 1e6:,.0f} MB read"

    def _taken(self) -> list[Question]:
        with self.gatherer.changed:
            taken, self._questions = self._questions, []
        return taken

    # -- policy and lock

    def _remember(self) -> None:
        if self.subject.state is None:
            return
        try:
            rows = history.standing(self.subject.state)
            self.marks = standing.remembered(rows, _writers(self.subject.state, rows))
        except (LockdError, OSError) as error:
            self.say("history_unreadable", error=str(error))

    def _load(self) -> bool:
        """Read policy and lock again. True: everything has to be looked at anew."""
        trouble = self.subject.trouble
        self.subject.load()
        if self.subject.trouble != trouble:
            self.say("policy_trouble" if self.subject.trouble else "policy_good", error=self.subject.trouble)
            what = (
                f"kept the last good policy and lock: {self.subject.trouble}"
                if self.subject.trouble
                else "policy and lock are good again"
            )
            self.scribe.event(Event(stamp(), "daemon", what))
        policy = self.subject.policy
        if policy is None or policy is self._watched:
            return False
        self._watched = policy
        self.say("policy_loaded", policy=policy.path, digest=policy.digest)
        self.eyes.open(policy)
        self._timers = _Timers()
        self._answers = {}
        return True

    # -- looking

    def _look(self, burst: Burst, whole: bool, commands: bool, may_age: bool) -> None:
        policy, now = self.subject.policy, time.monotonic()
        assert policy is not None  # `serve` begins with a good one
        if not self.eyes.alive:
            self.say("watch_lost", error="the watcher ended")
            self.eyes.open(policy)
            whole = True
        commands = commands or now >= self._timers.commands
        before = self.eyes.sight
        sight = self.eyes.look(policy, None if whole else burst.paths, commands, may_age and whole)
        if sight.aged and {one.name for one in self._judged(sight, now, unexplained).differences} & set(sight.aged):
            may_age = False  # nobody is refused for what has been mended since
            sight = self.eyes.look(policy, None, commands)
        after = time.monotonic()
        if whole:
            self._slow = after - now >= SLOW
            self._timers.poll = after + POLL
            if not may_age:
                self._timers.stat = after + STAT
            self.eyes.save()
        if commands:
            self._timers.commands = after + COMMANDS
        self._answers = {}
        report = self._judged(sight, now, unexplained)
        new = Standing(
            standing.apply(report, self.marks, self.healed),
            time.time(),
            time.monotonic(),
            time.time() if whole and not sight.aged else self.standing.whole_at,
            self.subject.trouble,
            self.standing.bursts + bool(burst.hints),
            self.standing.looks + 1,
        )
        self._publish(new)  # the verdict first; whose files they are may take a while
        if report.differences:
            report = self._judged(sight, now, self._explainer)
        self.healed = standing.healed(report, self.marks, self.healed, burst.hints, before)
        self.marks = standing.mark(report, self.marks, burst.hints, before.manifests if before is not None else dict)
        plain = self._explainer.plain(sight, report.differences)
        report = replace_plain(standing.apply(report, self.marks, self.healed), sight=plain)
        self._publish(replace(new, report=report))
        self.recorder.take(report, burst, time.monotonic(), new.looks)
        if not whole and after - now >= LARGE:
            self.eyes.trim()

    def _glanced(self, burst: Burst) -> bool:
        """Say what a glance tells, where a look would be slow. True: that may stand until the burst is over."""
        seen = self.eyes.sight
        if not self._slow or seen is None or self.subject.trouble:
            return False
        now = time.monotonic()
        glance = self._glancer(seen, burst.hints)
        if glance is None:
            return False
        report = self._judged(glance.sight, now, unexplained)
        if report.verdict not in ("block", "warn"):
            return False  # nothing is called good by a glance
        self.marks = standing.mark(report, self.marks, burst.hints, seen.manifests, glance.owned)
        report = standing.apply(report, self.marks, self.healed)
        looks = self.standing.looks + 1
        self._publish(replace(self.standing, report=report, at=time.time(), clock=time.monotonic(), looks=looks))
        self.recorder.take(report, burst, time.monotonic(), looks)
        return glance.complete

    def _judged(self, sight: Sight, started: float, explained: Explained) -> Report:
        assert self.subject.policy is not None
        return self._judge(
            self.subject.policy,
            sight,
            state=self.subject.state,
            lock=self.subject.lock,
            launch=None,
            started=started,
            explained=explained,
        )

    def _publish(self, new: Standing) -> None:
        old, self.standing = self.standing, new
        if (old.verdict, old.trouble) != (new.verdict, new.trouble):
            told = new.report.environment if new.report else ""
            self.say("verdict", verdict=new.verdict, before=old.verdict, environment=told, error=new.trouble)

    def _note_watching(self, burst: Burst) -> None:
        """Watching that got worse or whole again, and lost events, belong in the log."""
        for detail in dict.fromkeys(hint.detail for hint in burst.losses if hint.kind == "overflow"):
            self._log_look("watch_overflow", f"{detail}; everything was looked at again")
        polled = self.eyes.polled
        if polled == self._watching:
            return
        for path, why in polled.items():
            if self._watching.get(path) != why:
                self._log_look("watch_degraded", f"{path} is looked at on a timer: {why}")
        for path in self._watching:
            if path not in polled:
                self._log_look("watch_whole", f"{path} is watched again")
        self._watching = polled

    def _log_look(self, event: str, text: str) -> None:
        self.say(event, detail=text)
        self.scribe.event(Event(stamp(), "look", text))

    # -- answering

    def _answer_all(self, questions: list[Question]) -> None:
        if questions:
            self.scribe.flush(TOLD)
        for question in questions:
            self.beat += 1
            try:
                problem = question.check()
                question.answer(None if problem else self._report_for(question), problem)
            except Exception as error:  # the boundary: one odd launch spoils no other's answer
                question.answer(None, LockdError(f"the daemon could not answer: {type(error).__name__}: {error}"))

    def _report_for(self, question: Question) -> Report | None:
        report = self.standing.report
        if report is None or question.launch is None or self.subject.policy is None:
            return report
        started = time.monotonic()
        facts = self.eyes.look_at_launch(self.subject.policy, question.launch)
        key = (repr(list(facts.facts.values())), question.commands, self.subject.override())
        if key not in self._answers:
            judged = self._judge(
                self.subject.policy,
                self.eyes.merged(facts),
                state=self.subject.state,
                lock=self.subject.lock,
                launch=question.launch,
                commands=question.commands,
                started=started,
                explained=self._explainer,
            )
            plain = self._explainer.plain(judged.sight, judged.differences)
            self._answers[key] = replace_plain(standing.apply(judged, self.marks, self.healed), sight=plain)
        return self._answers[key]


def _writers(state: Any, rows: Mapping[str, Any]) -> dict[str, Mapping[str, Any] | None]:
    """Who was seen to make the findings that stand, from the log."""
    store = state.store() if rows else None
    if store is None:
        return {}
    found = {}
    with store:
        for fact in rows:
            for entry in store.events(
                "kind = 'drift' AND fact = ? AND id = (SELECT max(id) FROM events WHERE kind = 'drift' AND fact = ?)",
                fact,
                fact,
            ):
                found[fact] = entry.event.by
    return found
