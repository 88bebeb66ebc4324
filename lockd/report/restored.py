"""A restore in words and as JSON: what is put back from where, what has no source, what is left alone.

Always holds: every path and digest stands whole in the JSON; in text the first paths of each fact do, and how many
more there are, and the head of a digest.
Never: reads the machine, or shows contents.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from lockd.facts import shown
from lockd.place import FILE, FOLDER, LINK, NOTHING
from lockd.report.text import safe

if TYPE_CHECKING:
    from lockd.pending import Act
    from lockd.restore import Plan, Said, Step

PATHS = 20  # of one fact, in text
_DIGEST = re.compile(r"\b((?:sha256|env1):[0-9a-f]{12})[0-9a-f]+")


def text(plan: Plan, *, applied: bool) -> str:
    """What would be, or was, done."""
    return "\n".join(safe(line) for line in _lines(plan, applied))


def document(plan: Plan, *, applied: bool) -> dict[str, Any]:
    """The same as plain data."""
    return {
        "schema": 1,
        "applied": applied,
        "generation": plan.generation,
        "restore": [_step(step) for step in plan.steps],
        "no_source": [_said(one) for one in plan.said if not one.left],
        "left_alone": [_said(one) for one in plan.said if one.left],
    }


def _lines(plan: Plan, applied: bool) -> Iterator[str]:
    acts = plan.acts
    size = sum(act.row.size for act in acts)
    if acts:
        count = "1 path" if len(acts) == 1 else f"{len(acts):,} paths"
        yield f"{_head(plan, applied)} {count}, {size:,} bytes, as {_goal(plan)}"
    elif not plan.fetches:
        lacking = any(not one.left for one in plan.said)
        verb = ("could" if applied else "can") if lacking else ("had to" if applied else "has to")
        yield f"nothing {verb} be put back (generation {plan.generation})"
    for step in plan.steps:
        yield from _step_lines(step)
    yield from _others(plan.said)
    if not applied and (acts or plan.fetches):
        yield "lockd restore --apply does it; --undo takes it back"


def _head(plan: Plan, applied: bool) -> str:
    return "taken back:" if plan.undo else "restored" if applied else "would restore"


def _goal(plan: Plan) -> str:
    return "before the restore" if plan.undo else f"at generation {plan.generation}"


def _step_lines(step: Step) -> Iterator[str]:
    yield f"  {step.message or step.fact}"
    if step.fetch:
        yield f"    from {step.fetch}: unpacked aside and held against the lock before anything is changed"
    for act in step.acts[:PATHS]:
        yield f"    {_verb(act)} {shown(act.row.path)} ({_about(act)})"
    if len(step.acts) > PATHS:
        yield f"    and {len(step.acts) - PATHS:,} more (--json lists them)"


def _verb(act: Act) -> str:
    return {NOTHING: "take away", FILE: "write", FOLDER: "folder", LINK: "link"}.get(act.row.kind, "make")


def _about(act: Act) -> str:
    if act.row.kind == NOTHING:
        return "kept for --undo"
    return f"{act.row.size:,} bytes, {act.source}" if act.row.kind == FILE else act.source


def _others(listed: Iterable[Said]) -> Iterator[str]:
    for one in listed:
        message = _DIGEST.sub(r"\1…", one.message)
        yield f"  {'left alone' if one.left else 'no source'}: {one.fact}: {message}"
        yield f"    → {one.todo}"


def _step(step: Step) -> dict[str, Any]:
    paths = [
        {"path": shown(act.row.path), "does": _verb(act), "bytes": act.row.size, "source": act.source}
        for act in step.acts
    ]
    return {"fact": step.fact, "message": step.message, "from": step.fetch or None, "paths": paths}


def _said(one: Said) -> dict[str, str]:
    return {"fact": one.fact, "wanted": one.message, "todo": one.todo}
