"""Runs: one launch and what became of it, bound to its environment id and to the state that it started on.

Always holds: a run is written before its command starts. Its end is what was seen: an exit code from whoever waited for
it, else `unknown`, with the time at which somebody noticed. Command lines and variables have their secrets masked. Of
the state the facts are kept, shared with equal states; those of the launch stand in the run itself.
Never: decides a verdict, guesses an exit code, or waits for a process.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from lockd import lineage
from lockd.clock import stamp
from lockd.errors import LookError, UsageError
from lockd.facts import LAUNCH_KINDS, Fact, Facts
from lockd.plain import dataclass, replace

if TYPE_CHECKING:
    from lockd.check import Report
    from lockd.look import Launch
    from lockd.origin import Origin
    from lockd.store import Store

GPUS = ("CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES")
UNKNOWN = "unknown"  # an exit code that nobody saw
_ARGUMENTS = 1 << 16  # characters of a command line that are kept
_FINDINGS = 50
_COLUMNS = "number, started, ended, environment, launch, generation, state, body"
WORDS = "a number, run:N, last, running or good"


@dataclass(frozen=True)
class Run:
    """One run as it stands in the store. start, end: ISO UTC. environment, launch: ids, "" where nobody could look.

    body: argv, cwd, gate, verdict, admitted, user, by, processes, exit, notes, conditions, findings and the like.
    """

    number: int
    start: str
    end: str | None
    environment: str
    launch: str
    generation: int | None
    state: int | None
    body: Mapping[str, Any]
    of: str = ""  # the account in whose own state it stands, where that is not the policy's

    @property
    def name(self) -> str:
        return f"{self.of}:{self.number}" if self.of else f"run:{self.number}"

    @property
    def exit(self) -> int | str | None:
        """The exit code, `unknown`, or None while it runs."""
        return None if self.end is None else self.body.get("exit", UNKNOWN)

    @property
    def notes(self) -> Mapping[str, Any]:
        return dict(self.body.get("notes", {}))

    @property
    def command(self) -> str:
        return " ".join(self.body.get("argv", ()))


@dataclass(frozen=True)
class Begun:
    """What is written of a launch when it is let go. report None: nobody could look (`verdict` says how it was let go).

    verdict: that of the look; `unknown` or `off` without one. told: more for the body (override, why, conditions).
    """

    launch: Launch
    report: Report | None
    gate: str
    verdict: str
    who: Origin
    pid: int
    admitted: bool = True
    told: Mapping[str, Any] | None = None


# -- writing


def begin(store: Store, new: Begun) -> int:
    """Write a run that is about to start; gives its number."""
    with store.transaction():
        row = (stamp(), *_ids(store, new.report), json.dumps(_body(new)))
        columns = "started, environment, launch, generation, state, body"
        number = store.change(f"INSERT INTO runs ({columns}) VALUES (?, ?, ?, ?, ?, ?)", *row)  # noqa: S608
        run = get(store, number)
        assert run is not None
        _log(store, "launch", f"run {number} ({run.body['verdict']}): {run.command}", run, new.who.data())
    return number


def refuse(store: Store, new: Begun, reason: str) -> None:
    """Write into the log that a launch was refused. A refusal is no run."""
    from lockd.store import Event

    command = " ".join(_argv(new.launch.argv))
    generation = new.report.lock.generation if new.report is not None and new.report.lock is not None else None
    message = f"{reason}: {command}" if command else reason
    store.append(Event(stamp(), "refuse", message, by=new.who.data(), generation=generation))


def add_process(store: Store, number: int, pid: int) -> None:
    """Another process that is this run: the command beneath lockd's supervision."""
    process = lineage.identity(pid)
    _change(store, number, lambda body: {**body, "processes": [*body.get("processes", ()), process]})


def finish(
    store: Store,
    number: int,
    code: int | None,
    report: Report | None = None,
    *,
    seen: bool = True,
    told: Mapping[str, Any] | None = None,
) -> None:
    """Write the end of a run, once. code None: nobody saw it. report: a look at its end. told: more for the body.

    seen: it ends now; else somebody noticed now that it had ended before.
    """
    with store.transaction():
        run = get(store, number)
        if run is None or run.end is not None:
            return
        end: dict[str, Any] = {"exit": UNKNOWN if code is None else code, "end_seen": seen, **(told or {})}
        if report is not None:
            end["end_environment"], end["end_state"] = report.environment, _state(store, report)
        store.change("UPDATE runs SET ended = ? WHERE number = ?", stamp(), number)
        _change(store, number, lambda body: {**body, **end})
        said = f"exit {code}" if code is not None else "nobody saw how"
        _log(store, "launch", f"run {number} ended: {said}", run, None)


def note(store: Store, number: int, values: Mapping[str, Any], who: Origin | None = None) -> None:
    """Numbers and words about a run; a later value of a name takes the place of the earlier."""
    if not values:
        return
    with store.transaction():
        run = get(store, number)
        if run is None:
            raise _unknown(f"run:{number}", store)
        _change(store, number, lambda body: {**body, "notes": {**body.get("notes", {}), **values}})
        text = ", ".join(f"{name}={spoken(value)}" for name, value in values.items())
        _log(store, "note", f"run {number}: {text}", run, None if who is None else who.data())


def settle(store: Store) -> None:
    """Write the end of runs whose processes are gone: nobody saw how they ended."""
    for run in _select(store, "ended IS NULL"):
        if living(run) is False:
            finish(store, run.number, None, seen=False)


def value(text: str) -> Any:
    """A noted value as it was meant: a number, true or false, else the words."""
    if text in ("true", "false"):
        return text == "true"
    for kind in (int, float):
        try:
            found = kind(text)
            return found if abs(found) != float("inf") and found == found else text
        except ValueError:
            continue
    return text


def spoken(one: Any) -> str:
    """A noted value in words."""
    return str(one).lower() if isinstance(one, bool) else f"{one:g}" if isinstance(one, float) else str(one)


# -- reading


def get(store: Store, number: int) -> Run | None:
    """One run."""
    return next(iter(_select(store, "number = ?", number)), None)


def listed(store: Store, limit: int | None = None) -> list[Run]:
    """The runs, newest first."""
    return _select(store, "1", limit=limit)


def running(store: Store) -> list[Run]:
    """The runs that live, as far as anybody can tell, newest first."""
    return [run for run in _select(store, "ended IS NULL") if living(run) is not False]


def running_or_lost(store: Store) -> list[Run]:
    """The runs without an end, newest first."""
    return _select(store, "ended IS NULL")


def living(run: Run) -> bool | None:
    """Does one of its processes still run? None: nobody can tell."""
    states = [lineage.alive(process) for process in run.body.get("processes", ())]
    return True if True in states else None if None in states or not states else False


def admitting(store: Store, pid: int, *, itself: bool = False) -> Run | None:
    """The living admitted run that a process descends from, by its parents or those of its session's leader.

    itself: also the run that this very process is: `lockd run` became it, or it has started itself anew.
    """
    candidates = [run for run in _select(store, "ended IS NULL") if run.body.get("admitted")]
    if not candidates:
        return None
    boot = lineage.boot()
    above = [row for row in lineage.ancestors(pid) if itself or row.pid != pid]
    for run in candidates:
        known = [one for one in run.body.get("processes", ()) if one.get("boot") == boot]
        if any(lineage.same(one, row) and lineage.alive(one) for one in known for row in above):
            return run
    return None


def resolve(store: Store, word: str) -> Run:
    """The run that a person names: `7`, `run:7`, `last`, `running`, `good`. LookError where there is none."""
    name = word.removeprefix("run:")
    if name.isdecimal():
        found = get(store, int(name)) if len(name) < 18 else None
    elif name == "last":
        found = next(iter(listed(store, 1)), None)
    elif name == "running":
        found = next(iter(running(store)), None)
    elif name == "good":
        found = next((run for run in listed(store) if run.notes.get("good") is True), None)
    else:
        raise UsageError(f"{word!r} is no run", hint=f"name {WORDS}")
    if found is None:
        raise _unknown(word, store)
    return found


def is_name(word: str) -> bool:
    """Whether a word of `diff` means a run."""
    return word == "good" or word.startswith("run:")


def facts(store: Store, run: Run) -> Facts:
    """The facts that a run started on, those of its launch with them. LookError where they are not kept."""
    from lockd import history

    found = None if run.state is None else history.state_facts(store, run.state, run.body.get("launch_facts", ()))
    if found is None:
        raise LookError(f"the state that {run.name} started on is not kept", hint="lockd runs shows which have one")
    return found


def document(run: Run) -> dict[str, Any]:
    """A run as `lockd runs --json` shows it."""
    body = {name: told for name, told in run.body.items() if name not in ("launch_facts", "processes")}
    head = {"id": run.number, "start": run.start, "end": run.end, "duration_s": duration(run), "exit": run.exit}
    ids = {"environment": run.environment or None, "launch": run.launch or None, "generation": run.generation}
    pids = [process["pid"] for process in run.body.get("processes", ())]
    head |= {"recorded_by": run.of} if run.of else {}
    return {**head, **ids, "state": run.state, "running": run.end is None, **body, "pids": pids, "exit": run.exit}


def duration(run: Run, now: str | None = None) -> int | None:
    """Seconds from start to end, or to `now`."""
    end = run.end or now
    return None if end is None else max(0, round(_seconds(end) - _seconds(run.start)))


def _seconds(at: str) -> float:
    from datetime import datetime

    return datetime.fromisoformat(at.replace("Z", "+00:00")).timestamp()


# -- inside


def _select(store: Store, where: str, *values: object, limit: int | None = None) -> list[Run]:
    more = "" if limit is None else f" LIMIT {int(limit)}"
    query = f"SELECT {_COLUMNS} FROM runs WHERE {where} ORDER BY number DESC{more}"  # noqa: S608  our own words
    return [_run(*row) for row in store.rows(query, *values)]


def _run(*row: Any) -> Run:
    *head, body = row
    number, start, end, environment, launch, generation, state = head
    return Run(number, start, end, environment, launch, generation, state, json.loads(body))


def _unknown(word: str, store: Store) -> LookError:
    newest = next(iter(listed(store, 1)), None)
    hint = f"lockd runs lists them; the last is {newest.name}" if newest else "lockd run -- CMD records one"
    told = {"running": "no run runs now", "good": "no run is noted as good (lockd note RUN good=true)"}
    what = told.get(word.removeprefix("run:"), "no such run is recorded")
    return LookError(f"{word}: {what}", where=store.path, hint=hint)


def _change(store: Store, number: int, change: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    with store.transaction():
        run = get(store, number)
        if run is not None:
            store.change("UPDATE runs SET body = ? WHERE number = ?", json.dumps(change(dict(run.body))), number)


def _log(store: Store, kind: str, message: str, run: Run, by: Mapping[str, Any] | None) -> None:
    from lockd.store import Event

    store.append(Event(stamp(), kind, message, by=by, run=run.number, generation=run.generation, state=run.state))


def _ids(store: Store, report: Report | None) -> tuple[str, str, int | None, int | None]:
    """environment, launch, generation, state."""
    if report is None:
        return "", "", None, None
    generation = None if report.lock is None else report.lock.generation
    return report.environment, report.launch or "", generation, _state(store, report)


def _state(store: Store, report: Report) -> int:
    """The facts as they were seen, the launch's own aside, with the manifests of what is not as locked."""
    from lockd import history

    sight = report.sight
    lasting = Facts(fact for fact in sight.facts.values() if fact.kind not in LAUNCH_KINDS)
    differing = {one.name for one in report.differences} if report.lock is not None else set()
    manifests = sight.manifests() if differing else {}
    moved = {name: manifests[name] for name in differing if name in manifests}
    return history.keep_facts(store, lasting, report.environment_full, stamp(), moved)


def _body(new: Begun) -> dict[str, Any]:
    from lockd.facts import shown

    told: dict[str, Any] = {
        "argv": list(_argv(new.launch.argv)),
        "cwd": shown(new.launch.cwd),
        "gate": new.gate,
        "verdict": new.verdict,
        "admitted": new.admitted,
        "user": new.who.user,
        "origin": ", ".join(new.who.ways),
        "by": new.who.data(),
        "processes": [lineage.identity(new.pid)],
        "gpus": {name: shown(new.launch.environ[name]) for name in GPUS if name in new.launch.environ},
    }
    return {**told, **(_seen(new.report) if new.report is not None else {}), **(new.told or {})}


def _seen(report: Report) -> dict[str, Any]:
    from lockd.history import fact_row

    launch = [fact for fact in report.sight.facts.values() if fact.kind in LAUNCH_KINDS]
    return {
        "environment_full": report.environment_full,
        "variables": {one.subject: _variable(one) for one in launch if isinstance(one, Fact) and one.kind == "env"},
        "findings": [_finding(one) for one in report.findings[:_FINDINGS]],
        "launch_facts": [fact_row(_masked(fact)) for fact in launch],
    }


def _finding(one: Any) -> dict[str, Any]:
    return {name: told for name in ("fact", "change", "severity", "message", "because") if (told := getattr(one, name))}


def _masked(fact: Any) -> Any:
    """The launch's variables as they may be kept; the probe gave digests for those that look secret as a whole."""
    from lockd import secrets

    text = fact.attributes.get("value") if isinstance(fact, Fact) else None
    if not isinstance(text, str) or secrets.mask(text) == text:
        return fact
    return replace(fact, attributes={**fact.attributes, "value": secrets.mask(text)})


def _variable(fact: Fact) -> str | None:
    found = _masked(fact).attributes
    return None if fact.absent else str(found.get("value", found.get("digest", "")))


def _argv(argv: Iterable[str]) -> tuple[str, ...]:
    """A command line with its secrets masked, safe to show, and not longer than is of use."""
    from lockd import secrets
    from lockd.facts import shown

    kept: list[str] = []
    left = _ARGUMENTS
    for word in argv:
        if left <= 0:
            break
        kept.append(word[:left])
        left -= len(word) + 1
    masked = tuple(map(shown, secrets.mask_argv(kept)))  # in this order: `shown` writes what quotes a secret anew
    return masked if left > 0 else (*masked, "…")
