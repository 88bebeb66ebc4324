"""Launches that no gate saw, as the kernel tells of them: a script of the policy, a copy of one, a holder of a GPU.

Always holds: only what was read from that very process counts: its command line, the bytes of its script as it sees
them, its open devices. A copy is a script with the same bytes, or one of the same name with at least half of its lines.
Who holds a GPU computes on it: NVML's readers (`nvidia-smi`, exporters) have the same devices open and load the same
library, but only who has a context maps `nvidia-uvm` (seen on an H200, driver 580). Of processes beneath each other the
outermost is told.
Never: stops or traces a process, waits for a file, or decides whether a gate admitted it: the runs know that.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from typing import TYPE_CHECKING

from lockd import conditions, globs, running
from lockd.plain import dataclass, replace
from lockd.processes import is_python, mapped
from lockd.running import Running
from lockd.secrets import mask_argv

if TYPE_CHECKING:
    from lockd.rules import Policy
    from lockd.state import State

AMD = "/dev/kfd"
_SCRIPT = 1 << 20  # bytes of a script that are compared


@dataclass(frozen=True)
class Suspect:
    """One process that looks like a launch. why: by what it was recognised. gpus: the devices that it has open."""

    process: Running
    why: str
    gpus: tuple[str, ...] = ()


def suspects(policy: Policy) -> list[Suspect]:
    """Those that run now, by their pid. Whether a gate admitted one stands in the runs."""
    launch = policy.launch
    named = bool(launch.scripts or launch.modules)
    found = {one.process.pid: one for one in _named(policy)} if named else {}
    for pid, devices in (_holders() if named or policy.gpu is not None else {}).items():
        known = found.get(pid)
        process = None if known is not None else running.process(pid)[0]
        if known is not None:
            found[pid] = replace(known, gpus=devices)
        elif process is not None:
            found[pid] = Suspect(process, f"it holds {', '.join(devices)}", devices)
    outermost = [one for pid, one in sorted(found.items()) if not any(row.pid in found for row in running.above(pid))]
    return [replace(one, process=replace(one.process, argv=mask_argv(one.process.argv))) for one in outermost]


def _named(policy: Policy) -> Iterator[Suspect]:
    """Processes that run a script or a module of the policy, or a copy of a script."""
    launch = policy.launch
    scripts = _scripts(policy)
    sizes, names = {len(text) for text in scripts.values()}, {os.path.basename(path) for path in scripts}
    for pid in running.pids():
        one, module = running.process(pid)
        if one is None:
            continue
        if module:
            why = f"it runs {module}" if module in launch.modules else ""
        elif any(running.is_script(one.script, pattern) for pattern in launch.scripts):
            why = f"it runs {one.script}"
        elif os.path.basename(one.script) in names or _size(one.script, pid) in sizes:
            like = _like(one.script, _text(one.script, pid), scripts)
            why = f"it runs {one.script}, {like}" if like else ""
        else:
            why = ""
        if why and is_python(pid, one.argv):
            yield Suspect(one, why)


def _scripts(policy: Policy) -> dict[str, bytes]:
    """The scripts that the policy names, with their bytes."""
    paths = dict.fromkeys(path for pattern in policy.launch.scripts for path in globs.expand(pattern))
    return {path: text for path in paths if (text := _text(path))}


def is_admitted_elsewhere(own: State, pid: int) -> bool:
    """Does a process belong to an admitted launch of another policy whose state lies beside this one?"""
    from lockd import runs
    from lockd.errors import LockdError
    from lockd.state import State

    base = os.path.dirname(own.folder)
    for name in sorted(os.listdir(base)):
        folder = os.path.join(base, name)
        try:
            about = os.lstat(folder)
            if folder == own.folder or not stat.S_ISDIR(about.st_mode) or about.st_uid != os.geteuid():
                continue
            store = State(folder).store()
            if store is not None:
                with store:
                    if runs.admitting(store, pid, itself=True) is not None:
                        return True
        except (LockdError, OSError):  # one that can't be read admits nobody
            continue
    return False


# -- copies of a script


def _like(script: str, text: bytes, scripts: dict[str, bytes]) -> str:
    """In which way a script is one of the policy's; "" where it is none."""
    if not text.strip():
        return ""
    for path, known in scripts.items():
        if text == known:
            return f"a copy of {path}"
    for path, known in scripts.items():
        lines = set(known.split(b"\n")) - {b""}
        if os.path.basename(path) == os.path.basename(script) and 2 * len(lines & set(text.split(b"\n"))) >= len(lines):
            return f"a changed copy of {path}"
    return ""


def _size(path: str, pid: int) -> int:
    try:
        return os.stat(f"/proc/{pid}/root{path}").st_size if path else -1
    except (OSError, ValueError):
        return -1


def _text(path: str, pid: int | None = None) -> bytes:
    """The first bytes of a regular file, as a process sees it; none where it can't be read."""
    place = path if pid is None else f"/proc/{pid}/root{path}"
    try:
        descriptor = os.open(place, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
    except (OSError, ValueError):
        return b""
    with open(descriptor, "rb") as file:
        return file.read(_SCRIPT) if stat.S_ISREG(os.fstat(descriptor).st_mode) else b""


# -- holders of a GPU


def _holders() -> dict[int, tuple[str, ...]]:
    """The processes that compute on a GPU, with their devices, as far as this user may see."""
    if not (os.path.exists(f"{conditions.DEVICES}ctl") or os.path.exists(AMD)):
        return {}
    found = {pid: tuple(conditions.devices(pid, AMD)) for pid in running.pids()}
    return {pid: held for pid, held in found.items() if held and (AMD in held or _computes(pid))}


def _computes(pid: int) -> bool:
    try:
        return f"{conditions.DEVICES}-uvm" in mapped(pid)
    except OSError:
        return False
