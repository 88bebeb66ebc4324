"""Playing an act and judging what lockd made of it; the question at the end; the way back.

Always holds: a judgement is a list of what is not as it should be, empty when all is. Never: waits longer than a
busy machine may take, or looks away: an event that did not come is a judgement.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from subprocess import CompletedProcess
from typing import Any

from story import scripts
from story.acts import Act
from story.box import PYTHON, Box
from story.packages import TRACE

PATIENCE = 15.0  # seconds until an event is missed
ENDING = {
    f"tree:{scripts.DATA}",
    "package:train/torch",
    "package:train/transformers",
    f"file:{scripts.MODEL}",
    f"file:{scripts.JOB}",
    f"cache:{scripts.CACHE}",
    "env:TORCHINDUCTOR_CACHE_DIR",
    "launch:python",
}


@dataclass(frozen=True)
class Played:
    """What came of one act: its event (None: it did not come), the launch after it, the event of what undid it."""

    event: dict[str, Any] | None
    launch: CompletedProcess[str]
    healed: dict[str, Any] | None = None


def play(box: Box, act: Act) -> Played:
    """Do it, launch, and read the log; then undo it where the act says so."""
    before = box.last()
    act.deed(box)
    launch = box.launch(python=act.python, cached=act.cached)
    event = _wait(box, act, act.kind, before)
    if act.undo is None:
        return Played(event, launch)
    act.undo(box)
    return Played(event, launch, _wait(box, act, "heal", before))


def _wait(box: Box, act: Act, kind: str, before: int) -> dict[str, Any] | None:
    """The entry of that kind about the act; a refusal is about a launch, so its words must have the fact's."""
    end = time.monotonic() + PATIENCE
    while True:
        entries = [one for one in box.log(before) if one["kind"] == kind]
        if kind == "refuse":
            entries = [one for one in entries if act.names in one["message"] or act.fact in one["message"]]
        else:
            entries = [one for one in entries if one.get("fact") == act.fact]
        if entries or time.monotonic() > end:
            return entries[-1] if entries else None
        time.sleep(0.1)


def judged_act(act: Act, played: Played) -> list[str]:
    """What is not as it should be: the event and its writer, the refusal and its words."""
    wrong = [*_judged_event(act, act.kind, played.event)]
    if act.undo is not None:
        wrong += _judged_event(act, "heal", played.healed)
    if played.launch.returncode != 78:
        wrong.append(f"the launch ended with {played.launch.returncode}, 78 expected")
    if act.names not in played.launch.stderr:
        wrong.append(f"the refusal does not name {act.names}")
    return [f"act {act.number}, {act.title}: {one}" for one in wrong]


def _judged_event(act: Act, kind: str, event: dict[str, Any] | None) -> list[str]:
    if event is None:
        return [f"no {kind} in the log"]
    by = event.get("by") or {}
    if kind == "refuse":
        return [] if by.get("user") and by.get("pid") else [f"{kind} without who: {by}"]
    if not act.writer:
        told = by.get("confidence") == "not observed" and "outside" in by.get("reason", "")
        return [] if told else [f"{kind} does not say that the writer was outside: {by}"]
    wanted = act.writer if kind == "drift" else "uv pip uninstall"
    command = " ".join(by.get("cmdline", []))
    known = by.get("confidence") in ("observed", "likely") and by.get("user") == "root" and wanted in command
    return [] if known else [f"{kind} is not by {wanted}: {by}"]


def judged_end(box: Box, last: Act) -> list[str]:
    """The bad run, and `lockd diff run:1 run:last`: the eight facts, and no other."""
    bad = box.launch("--override", "look whether it is slow", python=last.python, cached=last.cached)
    wrong = [] if bad.returncode == 0 else [f"the overridden launch ended with {bad.returncode}"]
    box.lockd("runs")
    text = box.lockd("diff", "run:1", "run:last").stdout
    facts = [one["fact"] for one in box.document("diff", "run:1", "run:last")["differences"]]
    if sorted(facts) != sorted(ENDING):
        wrong.append(f"diff run:1 run:last: {sorted(facts)}")
    if TRACE not in text or "differs from its wheel" not in text:
        wrong.append("diff does not tell the patched file as differing from its wheel")
    box.lockd("log", "--reverse", "--kind", "drift", "--kind", "heal", "--kind", "refuse")
    return wrong


def way_back(box: Box) -> list[str]:
    """`restore --apply`, the new shards moved out by their owner (lockd keeps no data), verify, launch."""
    wrong = []
    good = box.document("runs")
    first = next(run for run in good if run["id"] == 1)
    restored = box.lockd("restore", "--apply")
    if restored.returncode != 1 or "no source: tree:/data/dflash" not in restored.stdout:
        wrong.append(f"restore --apply ended with {restored.returncode}, and only the data was to be left")
    box.hand(f"mkdir /data/later && mv {scripts.DATA}/shard-001[0-3]?.arrow /data/later/")
    verified = box.lockd("verify")
    if verified.returncode or first["environment"] not in verified.stdout:
        wrong.append(f"verify: exit {verified.returncode}, environment of run 1 {first['environment']}")
    launched = box.launch(python=PYTHON)
    if launched.returncode or "12.8 Ktok/s" not in launched.stdout:
        wrong.append(f"the launch after the restore: exit {launched.returncode}")
    checked = box.lockd("log", "--check")
    return wrong if checked.returncode == 0 else [*wrong, "the log's chain is broken"]
