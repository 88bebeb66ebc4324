"""The one decision of every gate: may this launch start? Check, then admit, refuse, or say that nobody could look.

1. `/etc/lockd/disabled` switches gates off, which is announced at each launch. 2. What descends from a living admitted
launch passes, whatever the verdict has become. 3. Policy, lock and machine are looked at. 4. The verdict decides: `ok`
and `warn` start, `block` is refused unless an override covers it, `unknown` goes by `on_unknown`. 5. What starts is
recorded before it does; what is refused stands in the log.
Always holds: that nobody could look is never a pass unless the policy says so, and its last good version where it is
broken now. A fault of lockd's own (a bug, a store that can't be written) goes by `on_fault`.
Never: starts the command, prints, ends a process, or runs the policy's commands.
"""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Literal

from lockd.errors import CANNOT_LOOK, OK, REFUSED, LockdError, LockError, LookError, PolicyError, RefusedError
from lockd.plain import dataclass

if TYPE_CHECKING:
    from lockd.check import Report
    from lockd.findings import Finding
    from lockd.lock import Lock
    from lockd.look import Launch
    from lockd.origin import Origin
    from lockd.overrides import Override
    from lockd.rules import Policy
    from lockd.runs import Run
    from lockd.state import State

DISABLED = "/etc/lockd/disabled"
LAST_GOOD = "gate.json"  # what the last good policy says a gate does when it can't look
_CAUSES = 10  # findings that one message spells out

Outcome = Literal["admitted", "refused", "blind"]


@dataclass(frozen=True)
class Asked:
    """A launch that asks. policy: its absolute path. override: why it should start in spite of a block.

    pid: the process that is, or becomes, the launch. who, gid: who asks; this process's own user by default. look: what
    was seen, where somebody else looked (the daemon); a look of the gate's own by default. synced_later: who asks
    has the record put on the disk itself, right after the answer; it stands in the store before that all the same.
    """

    policy: str
    launch: Launch
    gate: str
    pid: int
    override: str | None = None
    trust_unmapped: bool = False
    who: Origin | None = None
    gid: int | None = None
    look: Callable[[Policy, Lock | None, Launch], Report] | None = None
    progress: Callable[[int, int], None] | None = None
    synced_later: bool = False


@dataclass(frozen=True)
class Answer:
    """What was decided. lines: what a person is told on stderr. run: its number. inside: the launch it belongs to."""

    outcome: Outcome
    lines: tuple[str, ...] = ()
    report: Report | None = None
    run: int | None = None
    inside: Run | None = None
    state: State | None = None

    @property
    def code(self) -> int:
        """The exit code of a gate that does not let go: 78, or 125 where nobody could look."""
        return {"admitted": OK, "refused": REFUSED, "blind": CANNOT_LOOK}[self.outcome]


@dataclass(frozen=True)
class _Scene:
    """What is known so far. faults: what a gate does when it can't look (`on_unknown`), or is broken (`on_fault`)."""

    asked: Asked
    who: Origin
    state: State | None
    notes: tuple[str, ...] = ()
    on_unknown: str = "block"
    on_fault: str = "warn"


def admit(asked: Asked) -> Answer:
    """Decide about one launch, and record it."""
    scene = _scene(asked)
    if switched_off():
        note = f"lockd's gates are switched off by {DISABLED}; this launch was not looked at"
        return _let_go(scene, None, "off", (note,))
    return _guarded(scene, lambda: _enter(scene))


def _guarded(scene: _Scene, work: Callable[[], Answer]) -> Answer:
    """What goes wrong goes by the words of the policy, as far as it is known by now."""
    try:
        return work()
    except RefusedError as error:
        return _refused(scene, None, f"refused: {error}", (f"refused: {error}", *_hint(error)))
    except (PolicyError, LockError, LookError) as error:
        return _blind(scene, None, _told(error))
    except Exception as error:  # the boundary: a fault of lockd's own goes by on_fault
        return _fault(scene, None, error)


def switched_off(path: str = DISABLED, owner: int = 0) -> bool:
    """Has root switched the gates off? A file that others could have put there switches nothing."""
    try:
        found = os.lstat(path)
    except OSError:
        return False
    return stat.S_ISREG(found.st_mode) and found.st_uid == owner and not found.st_mode & 0o022


# -- 2. descendants ----------------------------------------------------------------------------------------------------


def _inside(scene: _Scene) -> Run | None:
    """The living admitted launch that this one descends from. A store that can't be read knows none."""
    from lockd import runs

    if scene.state is None:
        return None
    try:
        store = scene.state.store()
        if store is None:
            return None
        with store:
            return runs.admitting(store, scene.asked.pid, itself=scene.asked.gate != "run")
    except LockdError:
        return None


# -- 3. look, 4. decide ------------------------------------------------------------------------------------------------


def _scene(asked: Asked) -> _Scene:
    from lockd import origin, state

    who = asked.who if asked.who is not None else origin.current(asked.launch.environ)
    try:
        where = state.open(asked.policy, create=os.path.exists(asked.policy), guest=True)
    except (LookError, OSError) as error:
        return _Scene(asked, who, None, (f"no state is kept, so no record of this launch: {error}",))
    last = _last_good(where)
    return _Scene(asked, who, where, (), last.get("on_unknown", "block"), last.get("on_fault", "warn"))


def _enter(scene: _Scene) -> Answer:
    from lockd import policy
    from lockd.plain import replace

    inside = _inside(scene)
    if inside is not None:
        return Answer("admitted", inside=inside, state=scene.state)
    cache = None if scene.state is None else scene.state.cache_dir
    loaded = policy.load_cached(scene.asked.policy, cache, trust_unmapped=scene.asked.trust_unmapped)
    known = replace(scene, on_unknown=loaded.on_unknown, on_fault=loaded.launch.on_fault)
    if scene.asked.trust_unmapped:
        from lockd import trust

        known = replace(known, notes=(*scene.notes, *trust.outside(loaded.path, loaded.lock_path)))
    _keep_last_good(known)
    return _guarded(known, lambda: _decide(known, loaded))


def _decide(scene: _Scene, loaded: Policy) -> Answer:
    from lockd import lock
    from lockd.check import check

    asked, state = scene.asked, scene.state
    cache = None if state is None else state.cache_dir
    good = lock.read_cached(loaded.lock_path, cache, policy=loaded.name, trust_unmapped=asked.trust_unmapped)
    if asked.look is not None:
        report = asked.look(loaded, good, asked.launch)
    else:
        report = check(
            loaded,
            state=state,
            lock=good,
            launch=asked.launch,
            commands=False,
            progress=asked.progress,
            may_age=True,
        )
    _keep_history(scene, report)
    return _judged(scene, report)


def _judged(scene: _Scene, report: Report) -> Answer:
    override = _override(scene, report)
    if override is not None:
        head = f"overridden by {override.by}: {override.why}"
        return _let_go(scene, report, report.verdict, (head, *_causes(report)), override)
    if report.verdict == "block":
        head = f"refused: {_count(report)} {_place(report.policy)}"
        return _refused(scene, report, _reason(report), (head, *_causes(report), _WAY_OUT))
    if report.verdict == "unknown":
        return _blind(scene, report, _unknown_lines(report))
    note = () if report.verdict == "ok" else (f"warning: {_count(report)} {_place(report.policy)}", *_causes(report))
    return _let_go(scene, report, report.verdict, (*note, *_aged(report)))


_WORDED, _NAMED = 3, 40  # causes of a refusal that the log tells in words, and by name
_WAY_OUT = "`lockd diff` shows what differs, `lockd restore` puts it back"


def _override(scene: _Scene, report: Report) -> Override | None:
    """The one given for this launch, else the kept one that covers the verdict. RefusedError for who may not."""
    from lockd import overrides
    from lockd.findings import Finding

    if scene.asked.override is None or report.verdict not in ("block", "unknown"):
        return report.override
    overrides.check_may(report.policy, scene.who.uid, scene.asked.gid)
    nothing = Finding("policy:lock", "unreadable", "block", ("lock",), "no known-good yet", "")
    found = overrides.new(report.findings or (nothing,), scene.asked.override, scene.who, overrides.LONGEST)
    return overrides.once(found)


def _blind(scene: _Scene, report: Report | None, lines: Iterable[str]) -> Answer:
    """Nobody could look: as `on_unknown` says."""
    told = tuple(lines)
    if scene.on_unknown == "warn":
        return _let_go(scene, report, "unknown", (f"warning: could not look: {told[0]}", *told[1:]))
    answer = _refused(scene, report, f"could not look: {told[0]}", (f"refused, could not look: {told[0]}", *told[1:]))
    return Answer("blind", answer.lines, report, state=scene.state)


def _fault(scene: _Scene, report: Report | None, error: Exception) -> Answer:
    """lockd itself failed: as `on_fault` says."""
    said = str(error) if isinstance(error, LockdError) else f"{type(error).__name__}: {error}"
    if scene.on_fault == "warn":
        return _let_go(scene, report, "unknown", (_FAULT.format(said),))
    return Answer("blind", (*scene.notes, f"refused, lockd itself failed: {said}"), report, state=scene.state)


_FAULT = "warning: lockd itself failed, and on_fault lets the launch start: {}"


# -- 5. record ---------------------------------------------------------------------------------------------------------


def _let_go(
    scene: _Scene, report: Report | None, verdict: str, lines: tuple[str, ...], override: Override | None = None
) -> Answer:
    lines = (*scene.notes, *lines)
    if scene.state is None:
        return Answer("admitted", lines, report)
    try:
        number = _record(scene, scene.state, report, verdict, override)
    except (LockdError, OSError) as error:
        said = f"the launch could not be recorded: {error}"
        if scene.on_fault == "warn":
            return Answer("admitted", (*lines, _FAULT.format(said)), report, state=scene.state)
        return Answer("blind", (*lines, f"refused, lockd itself failed: {said}"), report, state=scene.state)
    return Answer("admitted", lines, report, number, state=scene.state)


def _record(scene: _Scene, state: State, report: Report | None, verdict: str, override: Override | None) -> int:
    from lockd import conditions, runs
    from lockd.clock import stamp
    from lockd.store import Event

    asked = scene.asked
    told: dict[str, Any] = {"conditions": conditions.now(None if report is None else report.sight, asked.pid)}
    if override is not None:
        told["override"] = override.document()
    begun = runs.Begun(asked.launch, report, asked.gate, verdict, scene.who, asked.pid, told=told)
    store = state.store(create=True)
    assert store is not None  # it is made where missing
    if asked.synced_later:
        store.sync_later()
    with store, store.transaction():
        runs.settle(store)
        number = runs.begin(store, begun)
        if override is not None and override.once:
            text = f"run {number} was started on {', '.join(sorted(override.drift)[:_CAUSES])}: {override.why}"
            store.append(Event(stamp(), "override", text, by=scene.who.data(), run=number))
    return number


def _refused(scene: _Scene, report: Report | None, reason: str, lines: Iterable[str]) -> Answer:
    from lockd import runs

    told = (*scene.notes, *lines)
    if scene.state is not None:
        asked = scene.asked
        begun = runs.Begun(asked.launch, report, asked.gate, "block", scene.who, asked.pid)
        try:
            store = scene.state.store(create=True)
            assert store is not None  # it is made where missing
            with store:
                runs.refuse(store, begun, reason)
        except (LockdError, OSError) as error:  # refused all the same
            told = (*told, f"the refusal could not be recorded: {error}")
    return Answer("refused", told, report, state=scene.state)


def _keep_history(scene: _Scene, report: Report) -> None:
    """What drifted or healed; a history that can't be written changes no verdict, and the record will say it."""
    from lockd import history

    try:
        history.record(None if scene.state is None or scene.state.guest else scene.state, report)
    except OSError:
        pass


def _last_good(state: State | None) -> dict[str, str]:
    if state is None:
        return {}
    try:
        with open(os.path.join(state.folder, LAST_GOOD), encoding="utf-8") as file:
            told = json.load(file)
        return {name: told[name] for name in ("on_unknown", "on_fault") if told.get(name) in ("block", "warn")}
    except (OSError, ValueError, AttributeError):
        return {}


def _keep_last_good(scene: _Scene) -> None:
    from lockd import atomic

    told = {"on_unknown": scene.on_unknown, "on_fault": scene.on_fault}
    if scene.state is None or _last_good(scene.state) == told:
        return
    try:
        atomic.write_scratch(os.path.join(scene.state.folder, LAST_GOOD), json.dumps(told).encode())
    except OSError:  # the policy itself is there and says it
        pass


# -- words -------------------------------------------------------------------------------------------------------------


def _count(report: Report) -> str:
    one, many = ("warns", "warn") if report.verdict == "warn" else ("blocks this launch", "block this launch")
    count = len(_worst(report))
    return f"1 finding {one}" if count == 1 else f"{count} findings {many}"


def _place(policy: Policy) -> str:
    return f"(policy {policy.name}, {policy.path})"


def _worst(report: Report) -> list[Finding]:
    """The findings that led to the verdict."""
    wanted = "warn" if report.verdict == "warn" else "block"
    return [one for one in report.findings if one.severity == wanted]


def _causes(report: Report) -> list[str]:
    """The causes in the words of every report, what they brought beneath them."""
    from lockd.report import text

    listed = _worst(report)
    names = {one.fact for one in listed}
    causes = [one.fact for one in listed if one.because not in names]
    shown = set(causes[:_CAUSES])
    lines = text.findings([one for one in listed if one.fact in shown or one.because in shown], False)
    more = len(causes) - len(shown)
    return [*lines, *([f"  and {more} more: lockd verify lists them"] if more else [])]


def _aged(report: Report) -> list[str]:
    """The large trees for which an earlier look was good enough."""
    told = [line for line in report.not_looked if line.rpartition(" (")[0] in report.sight.aged]
    return [f"not looked at again: {line}" for line in told]


def _unknown_lines(report: Report) -> list[str]:
    if report.lock is None:
        return [f"there is no known-good yet {_place(report.policy)}", *_causes(report)]
    count = len(_worst(report))
    return [f"{count} fact{'s' if count > 1 else ''} could not be read {_place(report.policy)}", *_causes(report)]


def _reason(report: Report) -> str:
    """For the log: the causes in one line, the first in words, all by name."""
    listed = _worst(report)
    names = {one.fact for one in listed}
    causes = [one for one in listed if one.because not in names]
    rest = [one.fact for one in causes[_WORDED:_NAMED]]
    more = len(causes) - _WORDED - len(rest)
    tail = "".join(f"; {fact}" for fact in rest) + (f" and {more} more" if more > 0 else "")
    return "refused: " + "; ".join(one.message for one in causes[:_WORDED]) + tail


def _told(error: LockdError) -> list[str]:
    lines = str(error).splitlines() or [type(error).__name__]
    return [lines[0], *(f"  {line}" for line in lines[1:_CAUSES]), *_hint(error)]


def _hint(error: LockdError) -> list[str]:
    return [f"  → {error.hint}"] if error.hint else []
