"""The training processes that run now: which of the policy's launches they are, and whether what they loaded still is
what lies on disk.

Always holds: a mapped file counts as replaced when its inode is gone from its path; a script when it changed after the
process began. An editor or a pager that has the script open is no launch. What may not be read (another user's) is
said. Of a launcher and its ranks the outermost is told.
Never: stops, traces or signals a process, or takes a name for an identity: pid and start time are.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from lockd import globs, lineage
from lockd.clock import since_boot
from lockd.facts import shown
from lockd.init.process import launched
from lockd.plain import dataclass, replace
from lockd.processes import is_python
from lockd.secrets import mask_argv

if TYPE_CHECKING:
    from lockd.rules import Policy

_SHOWN = 10  # replaced files that are named
_GRAIN = 0.1  # seconds: start times are told in ticks of 10 ms, changes by a clock of 4 ms


class Mapped(NamedTuple):
    """A file as a process has it mapped."""

    path: str
    device: int
    inode: int
    deleted: bool


@dataclass(frozen=True)
class Running:
    """One launch that runs. started: seconds since the epoch. trouble: why not more is known.

    replaced: mapped files that are no longer those at their path. changed: the script was changed after the start.
    """

    pid: int
    start: int
    started: float
    argv: tuple[str, ...]
    script: str
    uid: int
    mapped: int = 0
    replaced: tuple[str, ...] = ()
    changed: bool = False
    trouble: str = ""
    files: tuple[str, ...] = ()

    def document(self, differing: Iterable[str] = ()) -> dict[str, Any]:
        """For `lockd status --json`. differing: facts about what it loaded that are not as locked."""
        from lockd.clock import stamp

        return {
            "pid": self.pid,
            "started": stamp(self.started),
            "argv": list(self.argv),
            "script": shown(self.script),
            "uid": self.uid,
            "mapped": self.mapped,
            "replaced": [shown(path) for path in self.replaced],
            "script_changed": self.changed,
            "as_on_disk": None if self.trouble else not self.replaced and not self.changed,
            "differing": list(differing),
            "trouble": self.trouble,
        }


def launches(policy: Policy, *, loaded: bool = True) -> list[Running]:
    """The policy's launches that run now. loaded: look at what they have mapped, too."""
    found = {one.pid: one for one in _matching(policy)}
    outermost = [one for one in found.values() if not any(row.pid in found for row in above(one.pid))]
    return [_with_loaded(one) if loaded else one for one in sorted(outermost, key=lambda one: one.pid)]


def differing(one: Running, policy: Policy, findings: Iterable[Mapping[str, Any]]) -> list[str]:
    """The facts of findings that are about what this launch loaded: its script, mapped files, its environment."""
    places = {rule.name: os.path.realpath(rule.path) + "/" for rule in policy.python}
    real = [os.path.realpath(path) for path in one.files]
    named = {shown(path) for path in (*one.files, *real)}
    told = []
    for finding in findings:
        kind, _, subject = str(finding["fact"]).partition(":")
        place = places.get(subject.partition("/")[0]) if kind in ("package", "python", "unowned") else f"{subject}/"
        if subject in named or (place and any(path.startswith(place) for path in real)):
            told.append(str(finding["fact"]))
    return told


def replaced(files: Iterator[Mapped] | list[Mapped]) -> list[str]:
    """Of mapped files those whose path now names another file, or none."""
    gone = []
    for one in files:
        try:
            row = os.stat(one.path)
        except OSError:
            gone.append(one.path)
            continue
        if one.deleted or row.st_ino != one.inode:
            gone.append(one.path)
    return gone


def parse_maps(text: str) -> list[Mapped]:
    """The mapped files of /proc/PID/maps, once each; memory and devices left out."""
    found: dict[Mapped, None] = {}
    for line in text.splitlines():
        fields = line.split(None, 5)
        if len(fields) < 6 or not fields[5].startswith("/") or fields[4] == "0":
            continue
        path = fields[5].removesuffix(" (deleted)")
        if path.startswith(("/dev/", "/memfd:", "/SYSV", "/proc/", "/anon_hugepage")):
            continue
        major, _, minor = fields[3].partition(":")
        device = os.makedev(int(major, 16), int(minor, 16))
        found[Mapped(path, device, int(fields[4]), path != fields[5])] = None
    return list(found)


def above(pid: int) -> Iterator[lineage.Row]:
    """The ancestors of a process, itself left out."""
    return (row for row in lineage.ancestors(pid) if row.pid != pid)


def pids() -> list[int]:
    """Every process that /proc shows, this one aside."""
    return [int(name) for name in os.listdir("/proc") if name.isdecimal() and int(name) != os.getpid()]


def _matching(policy: Policy) -> Iterator[Running]:
    if not policy.launch.scripts and not policy.launch.modules:
        return
    for pid in pids():
        one, module = process(pid)
        if one is not None and _is_named(policy, one.script, module) and is_python(pid, one.argv):
            yield replace(one, argv=mask_argv(one.argv))


def _is_named(policy: Policy, script: str, module: str) -> bool:
    if module:
        return module in policy.launch.modules
    return bool(script) and any(is_script(script, pattern) for pattern in policy.launch.scripts)


def process(pid: int) -> tuple[Running | None, str]:
    """A process, its arguments not masked yet, and the module that it runs; None where it is gone."""
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            argv = tuple(os.fsdecode(word) for word in file.read(1 << 20).split(b"\0")[:-1])
        uid = os.stat(f"/proc/{pid}").st_uid
    except OSError:
        return None, ""
    row = lineage.row(pid) if argv else None
    if row is None or row.state in "ZX":
        return None, ""
    script, module = launched(argv, folder(pid))
    return Running(pid, row.start, started(row.start), argv, script or module, uid), module


def folder(pid: int) -> str:
    """Where a process is; "/" where that can't be told."""
    try:
        return os.readlink(f"/proc/{pid}/cwd")
    except OSError:
        return "/"


def is_script(script: str, pattern: str) -> bool:
    """Is a script that runs one that the policy names: by path, by glob, or the same file?"""
    if script == pattern or globs.matches((pattern.lstrip("/"),))(script.lstrip("/")):
        return True
    try:
        return os.path.samefile(script, pattern)
    except OSError:
        return False


def started(ticks: int) -> float:
    """Seconds since the epoch, from ticks since the boot; as exact as the clock was since then."""
    return time.time() - (since_boot() - ticks / os.sysconf("SC_CLK_TCK"))


def _with_loaded(one: Running) -> Running:
    from lockd.plain import replace

    try:
        with open(f"/proc/{one.pid}/maps", encoding="utf-8", errors="surrogateescape") as file:
            files = parse_maps(file.read())
        if os.readlink(f"/proc/{one.pid}/ns/mnt") != os.readlink("/proc/self/ns/mnt"):
            return replace(one, trouble="it runs in another mount namespace: its paths mean other files")
    except OSError as error:
        return replace(one, trouble=f"what it loaded can't be read: {error.strerror}")
    gone, paths = replaced(files), (one.script, *(file.path for file in files))
    return replace(one, mapped=len(files), replaced=tuple(gone[:_SHOWN]), changed=_changed(one), files=paths)


def _changed(one: Running) -> bool:
    try:
        return "/" in one.script and os.stat(one.script).st_ctime > one.started + _GRAIN
    except OSError:
        return True
