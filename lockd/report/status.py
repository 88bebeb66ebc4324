"""`lockd status` as text: what stands, how it is watched, who runs.

Always holds: the first line names the policy and the verdict, with its age; no control character reaches the terminal.
Never: reads the machine, or prints.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from lockd.report.text import paint, safe

_MANY = 8  # paths that are named of one watch mode


def status(told: Mapping[str, Any], colour: bool) -> str:
    """The whole answer of `lockd status`."""
    lines = [_first(told, colour), *_override(told), *_daemon(told), *_watch(told), *_looks(told)]
    lines += [line for one in told["findings"] for line in _finding(one, colour)]
    lines += [paint(f"  not looked at: {line}", "dim", colour) for line in told["not_looked"]]
    for one in told["running"]:
        lines += _running(one)
    if not told["running"]:
        lines.append("  no launch of this policy runs")
    return safe("\n".join(lines))


def _first(told: Mapping[str, Any], colour: bool) -> str:
    policy, lock = told["policy"] or {}, told["lock"]
    head = f"{paint(told['verdict'], told['verdict'], colour)}  {policy.get('name', '?')} ({policy.get('path', '?')})"
    parts = [f"generation {lock['generation']} of {lock['accepted_at']}" if lock else "no known-good yet"]
    parts.append(told["environment"] or "no environment id")
    if told["age_s"] is not None:
        parts.append(f"looked {duration(told['age_s'])} ago")
    return f"{head}: {' · '.join(parts)}" + (f"\n  unknown because: {told['trouble']}" if told["trouble"] else "")


def _override(told: Mapping[str, Any]) -> Iterator[str]:
    one = told.get("override")
    if one:
        yield f"  override until {one['until']} by {one['by']}: {one['why']} ({', '.join(one['facts'][:_MANY])})"


def _daemon(told: Mapping[str, Any]) -> Iterator[str]:
    daemon, used = told["daemon"], told["resources"]
    if daemon is None:
        yield "  daemon   none answers: this is a direct look (`lockd service install --now` starts one)"
        return
    yield f"  daemon   pid {daemon['pid']}, lockd {daemon['version']}, since {daemon['started']}"
    if daemon["history"] != "ok":
        yield f"  history  can't be written: {daemon['history']}"
    size, count = used["rss"] / 1e6, used["descriptors"]
    yield f"  uses     {size:.0f} MB, {count} descriptors, {used['threads']} threads, {used['cpu_s']} s of CPU"


def _watch(told: Mapping[str, Any]) -> Iterator[str]:
    modes: dict[tuple[str, str], list[str]] = {}
    for path, one in told["watch"].items():
        modes.setdefault((one["mode"], one["why"]), []).append(path)
    for (mode, why), paths in sorted(modes.items()):
        named = ", ".join(paths[:_MANY]) + (f" and {len(paths) - _MANY} more" if len(paths) > _MANY else "")
        yield f"  {mode:8} {named}" + (f" ({why})" if why else "")


def _looks(told: Mapping[str, Any]) -> Iterator[str]:
    looks = told["looks"]
    if not looks:
        return
    full = looks["full"]
    age = f"every byte read {duration(full['age_s'])} ago" if full["age_s"] is not None else "not every byte read yet"
    if full["reading"]:
        age += f", reading now ({full['files']:,} files, {full['bytes'] / 1e6:,.0f} MB so far)"
    yield f"  looks    {looks['count']:,}, {looks['bursts']:,} of them after changes; {age}"


def _finding(one: Mapping[str, Any], colour: bool) -> Iterator[str]:
    mark = str(one["severity"]).ljust(8)
    yield f"  {paint(mark, one['severity'], colour)} {one['message']}"
    parts = [f"since {one['since']}"] if one.get("since") else []
    by = one.get("by")
    if by and by.get("confidence") == "not observed":
        parts.append(f"by whom was not observed ({by.get('reason', 'no reason told')})")
    elif by:
        about = ", ".join(str(by[name]) for name in ("user", "origin") if by.get(name))
        command = " ".join(map(str, by.get("cmdline") or [by.get("exe", "?")]))
        parts.append(f"by {command}" + (f" ({about})" if about else ""))
    if parts:
        yield f"           {', '.join(parts)}"


def _running(one: Mapping[str, Any]) -> Iterator[str]:
    yield f"  running  pid {one['pid']} since {one['started']}: {' '.join(one['argv'])}"
    if one["trouble"]:
        yield f"           {one['trouble']}"
    elif one["as_on_disk"]:
        yield f"           its script and the {one['mapped']} files that it has mapped are those on disk"
    if one["script_changed"]:
        yield f"           {one['script']} was changed after it started"
    if one["replaced"]:
        yield f"           runs on files that are gone from disk: {', '.join(one['replaced'])}"
    if one["differing"]:
        yield f"           not as locked: {', '.join(one['differing'])}"


def duration(seconds: float) -> str:
    """`0.4 s`, `12 s`, `5 min`, `3 h`, `2 d`."""
    for limit, size, unit in ((10, 1, "s"), (120, 1, "s"), (7200, 60, "min"), (172800, 3600, "h")):
        if seconds < limit:
            return f"{seconds / size:.1f} {unit}" if limit == 10 else f"{seconds / size:.0f} {unit}"
    return f"{seconds / 86400:.0f} d"
