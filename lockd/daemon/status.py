"""The daemon's documents: what stands, status, and the answer to `lockd verify`.

Always holds: a verdict that is being looked at anew, or that events were lost about, is not shown as if it stood.
Never: looks at what is pinned.
"""

from __future__ import annotations

import os
import resource
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from lockd import __version__, overrides
from lockd.clock import stamp
from lockd.plain import replace
from lockd.report import json
from lockd.verdict import EXIT, strict

if TYPE_CHECKING:
    from lockd.check import Report
    from lockd.daemon.serve import Daemon


def standing(daemon: Daemon) -> dict[str, Any]:
    """The verdict as it stands, at once. settled: nothing is being looked at anew."""
    now = daemon.decider.standing
    report = now.report
    daemon.decider.recorder.told(now.looks)
    settled = daemon.decider.settled()
    lost = daemon.decider.gatherer.lost
    trouble = now.trouble or (f"looking again: {lost[0].detail or lost[0].kind}" if lost else "")
    return {
        "verdict": "unknown" if lost else now.verdict,
        "settled": settled,
        "trouble": trouble,
        "environment": report.environment if report else None,
        "generation": report.lock.generation if report and report.lock else None,
        "age_s": round(time.monotonic() - now.clock, 3) if now.at else None,
    }


def writers(daemon: Daemon) -> dict[str, Any]:
    """Who is behind each finding, by what tells one difference from another, and who put facts back."""
    marks = {fact: {"key": one.key, "since": one.since, "by": one.by} for fact, one in daemon.decider.marks.items()}
    return {"marks": marks, "healed": dict(daemon.decider.healed)}


def document(daemon: Daemon) -> dict[str, Any]:
    """`lockd status --json`, as far as the daemon knows it."""
    decider, report = daemon.decider, daemon.decider.standing.report
    findings = [] if report is None else [*report.findings, *report.recorded]
    return {
        "schema": json.SCHEMA,
        **standing(daemon),
        "settled": not decider.gatherer.waiting,  # it is the deciding thread that asks: the look is done
        **({"policy": None, "lock": None} if report is None else json.policy_and_lock(report)),
        "findings": [json.finding(one) for one in findings],
        "not_looked": [] if report is None else list(report.not_looked),
        "override": overrides.told(daemon.subject.state),
        "daemon": _self(daemon),
        "watch": {path: {"mode": one.mode, "why": one.why} for path, one in sorted(decider.eyes.states().items())},
        "looks": _looks(daemon),
        "resources": resources(),
    }


def verified(report: Report, request: Mapping[str, Any]) -> dict[str, Any]:
    """The answer to `verify`: what the command prints, and its exit code."""
    report = replace(report, by_daemon=True)
    verdict = strict(report.verdict) if request.get("strict") else report.verdict
    every = bool(request.get("every"))
    if request.get("json"):
        text = json.dumps(json.verify(report, verdict, every=every))
    else:
        from lockd.report import text as words

        text = words.verify(report, verdict, colour=bool(request.get("colour")), every=every)
    return {
        "verdict": verdict,
        "exit": EXIT["ok"] if report.override is not None else EXIT[verdict],
        "text": text,
        "locked": report.lock is not None,
    }


def resources() -> dict[str, Any]:
    """What this process uses. rss: bytes now; cpu_s: user and system time since its start."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return {
        "rss": _rss(),
        "rss_peak": used.ru_maxrss * 1024,
        "descriptors": len(os.listdir("/proc/self/fd")),
        "threads": len(os.listdir("/proc/self/task")),
        "cpu_s": round(used.ru_utime + used.ru_stime, 2),
    }


def _rss() -> int:
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * resource.getpagesize()


def _self(daemon: Daemon) -> dict[str, Any]:
    return {
        "pid": os.getpid(),
        "version": __version__,
        "started": stamp(daemon.started),
        "clients": daemon.server.clients,
        "history": daemon.scribe.trouble or "ok",
    }


def _looks(daemon: Daemon) -> dict[str, Any]:
    now = daemon.decider.standing
    return {
        "count": now.looks,
        "bursts": now.bursts,
        "last": stamp(now.at) if now.at else None,
        "last_whole": stamp(now.whole_at) if now.whole_at else None,
        "full": daemon.reader.told(),
    }
