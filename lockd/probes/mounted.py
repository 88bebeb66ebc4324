"""Does what lies under a path answer? A server that is gone leaves whoever asks its file system waiting for ever.

Always holds: only file systems that somebody else answers for (FUSE, NFS and the like) are asked, each by a process of
its own that is left behind when its time is up; an answer holds for a moment, so that many rules on one mount cost one
question. Links are followed a component at a time, and none behind a mount that does not answer.
Never: touches such a file system in this process before it has answered. One that falls silent during a walk is not
seen here.
"""

from __future__ import annotations

import dataclasses
import os
import re
import time
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, NamedTuple

from lockd import globs
from lockd.facts import shown
from lockd.probes import bounded, probe

if TYPE_CHECKING:
    from lockd.rules import Policy

SECONDS = 3.0  # for an answer
MOUNTINFO = "/proc/self/mountinfo"
_GOOD, _BAD = 2.0, 20.0  # seconds that an answer, and none, hold
_LINKS = 40  # as the kernel
_FOREIGN = re.compile(
    r"fuse(blk|\..+)?|nfs4?|cifs|smb3|smbfs|9p|virtiofs|vboxsf|davfs|ceph|afs|coda|lustre|gpfs|beegfs|glusterfs"
    r"|ocfs2|gfs2|orangefs|pvfs2|autofs",
    re.DOTALL,
)
_SECTIONS = ("python", "file", "cache", "tree", "git")  # whose rules name a path
_WILD = re.compile(r"[*?\[]")
_OCTAL = re.compile(r"\\([0-7]{3})")


class Mount(NamedTuple):
    """A mount that somebody else answers for: where, its type, its number in mountinfo."""

    point: str
    kind: str
    number: str


_known: dict[tuple[str, str], tuple[float, str]] = {}  # mount → until when (monotonic), why it does not answer


def under(rule: Any) -> str:
    """Why what a rule names can't be read without waiting for ever; "" where it can, or it names no path."""
    path = getattr(rule, "path", None)
    if not isinstance(path, str) or not path.startswith("/"):
        return ""
    return silent(globs.literal_root(path) if _WILD.search(path) else path)


def watched(section: str, rule: Any) -> Iterable[str]:
    """What the probe would watch; nothing where to watch it would wait for ever (each look tells it as unknown)."""
    return () if under(rule) else probe(section).watched(rule)


def answering(policy: Policy) -> tuple[Policy, dict[str, str]]:
    """The policy without the rules whose paths do not answer, and why, by key path (`tree[0].path`)."""
    kept: dict[str, Any] = {}
    left_out: dict[str, str] = {}
    for section in _SECTIONS:
        held = getattr(policy, section)
        problems = [under(rule) for rule in held]
        left_out |= {f"{section}[{at}].path": problem for at, problem in enumerate(problems) if problem}
        if any(problems):
            kept[section] = tuple(rule for rule, problem in zip(held, problems, strict=True) if not problem)
    return (dataclasses.replace(policy, **kept), left_out) if kept else (policy, left_out)


def silent(path: str, *, below: bool = True) -> str:
    """Why what lies at an absolute path (or, with `below`, on a mount beneath it) does not answer; "" if it does."""
    mounts = foreign()
    if not mounts:
        return ""
    at, problem = _led(path, mounts)
    if problem or not below:
        return problem
    beneath = (mount for mount in mounts if mount.point.startswith(at.rstrip("/") + "/"))
    return next((problem for mount in beneath if (problem := answers(mount))), "")


def foreign(table: str = "") -> tuple[Mount, ...]:
    """The mounts of this process that somebody else answers for. An automount that nobody entered is none of them."""
    try:
        with open(table or MOUNTINFO, encoding="utf-8", errors="surrogateescape") as file:
            rows = [line.rstrip("\n").partition(" - ") for line in file]
    except OSError:  # no /proc: nothing is known of mounts, and the look goes on as it did
        return ()
    found = []
    for left, _, right in rows:
        fields, kind = left.split(" "), right.split(" ")[0]
        if len(fields) > 4 and kind != "autofs" and _FOREIGN.fullmatch(kind):
            found.append(Mount(_plain(fields[4]), kind, fields[0]))
    return tuple(found)


def answers(mount: Mount) -> str:
    """Why a mount does not answer within `SECONDS`; "" if it does, were it with an error."""
    key = (mount.number, mount.point)
    known = _known.get(key)
    if known is not None and time.monotonic() < known[0]:
        return known[1]
    late = bounded.ask(("stat", "-f", "--", mount.point), SECONDS).late
    problem = f"{shown(mount.point)} ({shown(mount.kind)}) gave no answer within {SECONDS:g} s" if late else ""
    _known[key] = (time.monotonic() + (_BAD if problem else _GOOD), problem)
    return problem


def _led(path: str, mounts: tuple[Mount, ...]) -> tuple[str, str]:
    """Where a path leads, and why that can't be told where a mount on the way is silent."""
    points = {mount.point: mount for mount in mounts}  # of two on one point, the later
    left = [part for part in reversed(path.split("/")) if part]
    at, links = "/", 0
    while left:
        part = left.pop()
        if part in (".", ".."):
            at = os.path.dirname(at) if part == ".." else at
            continue
        step = os.path.join(at, part)
        problem = answers(points[step]) if step in points else ""
        if problem:
            return step, problem
        try:
            target = os.readlink(step)
        except OSError:  # no link, or nothing at all: the probe will say which
            at = step
            continue
        links += 1
        if links > _LINKS:
            return step, ""
        left += [one for one in reversed(target.split("/")) if one]
        at = "/" if target.startswith("/") else at
    return at, ""


def _plain(escaped: str) -> str:
    return os.fsdecode(_OCTAL.sub(lambda found: chr(int(found[1], 8)), escaped).encode("utf-8", "surrogateescape"))
