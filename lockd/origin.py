"""Who acts: the user, the user behind sudo, the login, and the way in (ssh, tmux, `pct exec`, cron, a unit, an agent).

Always holds: what is said was read from /proc or the process's own ids; names of parents are evidence, not proof, and
whoever may rename a process may lie about them. What could not be read is left out, never guessed.
Never: runs a tool, or reads another user's memory or environment.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from lockd.facts import shown
from lockd.plain import dataclass

UNSET_LOGIN = 4294967295  # (uid_t)-1: no login was ever recorded for this process
FROM_OUTSIDE = "pct exec/lxc-attach"
DEPTH = 64  # parents looked at, a bound against a torn /proc

AGENTS = (
    "claude",
    "codex",
    "cursor",
    "cursor-agent",
    "aider",
    "gemini",
    "opencode",
    "windsurf",
    "copilot",
    "goose",
    "amp",
)
PARENTS: Mapping[str, str] = {
    **dict.fromkeys(("sshd", "sshd-session", "dropbear"), "ssh"),
    **dict.fromkeys(("tmux", "screen", "SCREEN", "zellij"), "tmux/screen"),
    **dict.fromkeys(("cron", "crond", "CRON", "anacron", "atd", "fcron"), "cron"),
    **dict.fromkeys(("pct", "lxc-attach", "lxc-execute"), FROM_OUTSIDE),
    **dict.fromkeys(("docker", "podman", "nsenter", "machinectl"), "container exec"),
    **{name: f"agent {name}" for name in AGENTS},
}


class Process(NamedTuple):
    """One row of /proc/PID/stat."""

    pid: int
    name: str
    parent: int
    session: int
    terminal: int


@dataclass(frozen=True)
class Origin:
    """Who acts. `ways`: the ways in, nearest first. `login_uid` None: never logged in, or not told."""

    user: str
    uid: int
    pid: int
    sudo_user: str | None = None
    login_uid: int | None = None
    login_user: str | None = None
    ways: tuple[str, ...] = ()

    @property
    def by(self) -> str:
        """`root (SUDO_USER=ana, ssh)`."""
        notes = [f"SUDO_USER={self.sudo_user}"] if self.sudo_user else []
        if self.login_user and self.login_user not in (self.user, self.sudo_user):
            notes.append(f"login {self.login_user}")
        notes += self.ways
        return f"{self.user} ({', '.join(notes)})" if notes else self.user

    def data(self) -> dict[str, Any]:
        """As plain data, for the log; unset values left out."""
        return {name: value for name, value in vars(self).items() if value not in (None, ())} | {
            "origin": ", ".join(self.ways)
        }


def current(environ: Mapping[str, str] | None = None) -> Origin:
    """Who runs this process."""
    words = os.environ if environ is None else environ
    uid = os.geteuid()
    login = parse_login_uid(_read("/proc/self/loginuid"))
    return Origin(
        user=user_name(uid),
        uid=uid,
        pid=os.getpid(),
        sudo_user=shown(words.get("SUDO_USER", ""))[:64] or None,
        login_uid=login,
        login_user=None if login is None else user_name(login),
        ways=ways_in(chain(os.getpid(), _process), parse_unit(_read("/proc/self/cgroup"))),
    )


def of(pid: int, uid: int, environ: Mapping[str, str] | None = None) -> Origin:
    """Who is behind another process, as far as /proc and its variables tell; its uid as the kernel told it."""
    login = parse_login_uid(_read(f"/proc/{pid}/loginuid"))
    return Origin(
        user=user_name(uid),
        uid=uid,
        pid=pid,
        sudo_user=shown((environ or {}).get("SUDO_USER", ""))[:64] or None,
        login_uid=login,
        login_user=None if login is None else user_name(login),
        ways=ways_in(chain(pid, _process), parse_unit(_read(f"/proc/{pid}/cgroup"))),
    )


def user_name(uid: int) -> str:
    """The account's name, or `uid 1234` where there is none."""
    import pwd

    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"uid {uid}"


def chain(pid: int, process: Callable[[int], Process | None]) -> tuple[Process, ...]:
    """The process and its parents, nearest first, until one cannot be read or has no parent."""
    found: list[Process] = []
    while pid > 0 and len(found) < DEPTH:
        row = process(pid)
        if row is None or any(row.pid == known.pid for known in found):
            break
        found.append(row)
        pid = row.parent
    return tuple(found)


def ways_in(parents: Iterable[Process], unit: str | None = None) -> tuple[str, ...]:
    """The ways in that a chain of processes shows, nearest first.

    A process with parent 0 that is not pid 1 was put into this pid namespace from outside: `pct exec`, `lxc-attach`,
    `docker exec`.
    """
    listed = tuple(parents)
    ways = [PARENTS[name] for name in (row.name.partition(":")[0].strip() for row in listed) if name in PARENTS]
    if listed and listed[-1].parent == 0 and listed[-1].pid != 1:
        ways.append(FROM_OUTSIDE)
    if not ways and unit:
        ways.append(f"unit {unit}")
    if not ways and any(row.terminal for row in listed[:1]):
        ways.append("terminal")
    return tuple(dict.fromkeys(ways))


def parse_stat(text: str) -> Process | None:
    """A /proc/PID/stat row. The name may hold blanks and parentheses, so it ends at the last one."""
    head, found, rest = text.rpartition(")")
    pid, opened, name = head.partition("(")
    fields = rest.split()
    if not found or not opened or len(fields) < 5:
        return None
    try:
        return Process(int(pid), name, int(fields[1]), int(fields[3]), int(fields[4]))
    except ValueError:
        return None


def parse_login_uid(text: str | None) -> int | None:
    """/proc/self/loginuid, where 4294967295 means that nobody logged in."""
    if text is None or not text.strip().isdigit():
        return None
    uid = int(text)
    return None if uid == UNSET_LOGIN else uid


def parse_unit(text: str | None) -> str | None:
    """The systemd service of a process, from /proc/PID/cgroup; None in login sessions and outside systemd."""
    for line in (text or "").splitlines():
        hierarchy, _, path = line.partition("::") if line.startswith("0::") else line.partition(":name=systemd:")
        if not hierarchy or not path:
            continue
        units = [
            part for part in path.split("/") if part.endswith(".service") and not re.match(r"user@\d+\.service$", part)
        ]
        if units:
            return units[-1]
    return None


def _process(pid: int) -> Process | None:
    text = _read(f"/proc/{pid}/stat")
    return None if text is None else parse_stat(text)


def _read(path: str) -> str | None:
    try:
        with open(path, "rb") as file:
            return file.read(65536).decode("utf-8", "backslashreplace")
    except OSError:
        return None
