"""One process as /proc tells it, and the chain of its parents.

Always holds: the texts are parsed by pure functions; what ended meanwhile is None, never half a process with
another's parts: they are read again until they fit. Command lines are masked as they are read.
Never: writes, signals, attaches, or trusts a name in brackets more than /proc/PID/exe.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterator
from typing import NamedTuple

_UNSET_LOGIN = 0xFFFFFFFF
_MAX_TEXT = 8192  # bytes of a command line that are told; the other texts are shorter
_MAX_CHAIN = 64
_TRIES, _MOMENT = 3, 0.001  # an exec is over within a moment (seconds)

_SECRET_NAME = re.compile(
    r"(^|[-_.])(token|secret|passw\w*|passphrase|api[-_]?key|access[-_]?key|credentials?|auth)([-_.]|$)", re.IGNORECASE
)
_SECRET_SHAPE = re.compile(r"\b(hf_|gh[pousr]_|github_pat_|sk-|xox[abprs]-|AKIA)[\w-]{8,}")
_URL_PASSWORD = re.compile(r"(://[^/\s:@]*):[^/\s@]+@")
_MASK = "***"


class Stat(NamedTuple):
    """What /proc/PID/stat tells: comm, state letter, parent, start in ticks since boot."""

    comm: str
    state: str
    parent: int
    started: int


class Process(NamedTuple):
    """A process that lived while it was read. An ended one that nobody reaped has state Z, no exe and no command
    line.
    """

    pid: int
    stat: Stat
    exe: str
    cmdline: tuple[str, ...]
    uid: int | None
    login_uid: int | None
    cgroup: str

    @property
    def zombie(self) -> bool:
        return self.stat.state in "ZX"


def parse_stat(text: str) -> Stat | None:
    """The comm may hold spaces, brackets and newlines: it ends at the last bracket."""
    start, end = text.find("("), text.rfind(")")
    fields = text[end + 1 :].split()
    if start < 0 or end < start or len(fields) < 20:
        return None
    return Stat(text[start + 1 : end], fields[0], int(fields[1]), int(fields[19]))


def parse_uid(status: str) -> int | None:
    """The effective uid of /proc/PID/status."""
    found = re.search(r"^Uid:\s+\d+\s+(\d+)", status, re.MULTILINE)
    return int(found[1]) if found else None


def parse_cgroup(text: str) -> str:
    """The path in the unified tree, else in systemd's own, else ""."""
    rows = dict(row.split(":", 2)[1:] for row in text.splitlines() if row.count(":") >= 2)
    return next((rows[name] for name in ("", "name=systemd") if rows.get(name, "/") != "/"), "")


def parse_cmdline(text: str) -> tuple[str, ...]:
    """The arguments, secrets masked. A process that set its own title has one without its separators: kept as one."""
    return mask(tuple(text.rstrip("\0").split("\0"))) if text.strip("\0") else ()


def mask(argv: tuple[str, ...]) -> tuple[str, ...]:
    """Arguments with the values of token-like options and variables, token-like words and passwords in addresses
    blotted out.
    """
    masked: list[str] = []
    secret_follows = False
    for word in argv:
        name, equals, _ = word.partition("=")
        if secret_follows and not word.startswith("-"):
            masked.append(_MASK)
        elif equals and _SECRET_NAME.search(name) and "/" not in name:
            masked.append(f"{name}={_MASK}")
        else:
            masked.append(_URL_PASSWORD.sub(rf"\1:{_MASK}@", _SECRET_SHAPE.sub(_MASK, word)))
        secret_follows = word.startswith("-") and not equals and bool(_SECRET_NAME.search(word))
    return tuple(masked)


class Mark(NamedTuple):
    """Start time, executable and raw command line: what changes when the number is reused or the process execs."""

    started: int
    exe: str
    cmdline: str


class Glance(NamedTuple):
    """What is cheap to read of a process, and tells it from others."""

    stat: Stat
    mark: Mark


def glance(pid: int) -> Glance | None:
    """A glance at the process of that number, None if there is none (any more)."""
    stat = parse_stat(_text(pid, "stat"))
    return Glance(stat, Mark(stat.started, _exe(pid), _text(pid, "cmdline"))) if stat else None


def read_process(pid: int, before: Glance | None = None) -> Process | None:
    """The process of that number, None if there is none (any more). Read again during an exec: its parts fit.

    before: a glance of just now. A writer may live for milliseconds only, so that nothing is read twice.
    """
    found = None
    for _ in range(_TRIES):
        before = before or glance(pid)
        if before is None:
            return None
        found = _read(pid, before)
        after = glance(pid)
        if after is None:
            return None
        if after.mark == before.mark and (found.cmdline or not found.exe):
            return found
        before = None
        time.sleep(_MOMENT)
    return found


def _read(pid: int, seen: Glance) -> Process:
    return Process(
        pid,
        seen.stat,
        seen.mark.exe,
        parse_cmdline(seen.mark.cmdline),
        parse_uid(_text(pid, "status")),
        login_uid(_text(pid, "loginuid")),
        parse_cgroup(_text(pid, "cgroup")),
    )


def ancestors(child: Stat, read: Callable[[int], Process | None] = read_process) -> Iterator[Process]:
    """The parents of a process, upward, as far as this pid namespace shows them.

    One that started after its child is another process, which has the number of a parent that ended.
    """
    for _ in range(_MAX_CHAIN):
        found = read(child.parent) if child.parent > 0 else None
        if found is None or found.stat.started > child.started:
            return
        yield found
        child = found.stat


def login_uid(text: str) -> int | None:
    """The uid that logged in, None where unset or not told."""
    return int(text) if text.strip().isdigit() and int(text) != _UNSET_LOGIN else None


def _text(pid: int, name: str) -> str:
    try:
        descriptor = os.open(f"/proc/{pid}/{name}", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return ""
    try:
        return os.fsdecode(os.read(descriptor, _MAX_TEXT))  # each of these files comes whole in one reading
    except OSError:
        return ""
    finally:
        os.close(descriptor)


def _exe(pid: int) -> str:
    try:
        return os.readlink(f"/proc/{pid}/exe")
    except OSError:
        return ""
