"""The end of a launch: how it ended, what it noted, and whether the state still is the one that it started on.

Always holds: an exit code is recorded only by whoever saw it. The look at the end is the evidence that `accept
--from run:N` asks for; where it can't be made, the run ends without it.
Never: changes the exit code of the command.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from lockd.errors import LockdError

if TYPE_CHECKING:
    from lockd.check import Report
    from lockd.gates.admit import Answer
    from lockd.state import State
    from lockd.store import Store

_AT_THE_END = ("free", "cache_entries", "gpus")  # conditions that a run may have changed


def finish(answer: Answer, code: int, metrics: Mapping[str, str], *, look: bool) -> None:
    """Write the end of the run that was let go, with a look at the state where `look` asks for one."""
    from lockd import runs

    number = answer.run if answer.run is not None else answer.inside.number if answer.inside is not None else None
    if answer.state is None or number is None:
        return
    report = _look(answer) if look and answer.report is not None else None
    store = answer.state.store()
    if store is None:
        return
    with store, store.transaction():
        runs.note(store, number, {name: runs.value(text) for name, text in metrics.items()})
        if answer.run is not None:
            collect(answer.state, store, number)
            told = _conditions(report)
            runs.finish(store, number, code, report, told=told)


def settle(state: State, store: Store) -> None:
    """Runs whose processes are gone get their end, and all that have noted something since get their notes."""
    from lockd import runs

    before = runs.running_or_lost(store)
    for run in before:
        collect(state, store, run.number, keep=runs.living(run) is not False)
    runs.settle(store)


def collect(state: State, store: Store, number: int, *, keep: bool = False) -> None:
    """Take the notes of a run out of its spool. keep: it still writes there."""
    from lockd import runs, spool

    run = runs.get(store, number)
    noted = spool.read(state, number)
    if run is not None:
        known = run.notes
        runs.note(store, number, {name: value for name, value in noted.items() if known.get(name, ...) != value})
    if not keep:
        spool.remove(state, number)


def _look(answer: Answer) -> Report | None:
    from lockd.check import check

    report = answer.report
    assert report is not None  # the caller saw to it
    try:
        return check(report.policy, state=answer.state, lock=report.lock, launch=None, commands=False)
    except (LockdError, OSError):  # no evidence
        return None


def _conditions(report: Report | None) -> dict[str, Any]:
    from lockd import conditions

    found = conditions.now(None if report is None else report.sight)
    return {"conditions_end": {name: found[name] for name in _AT_THE_END if name in found}}
