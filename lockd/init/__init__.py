"""`lockd init`: look at the machine, or at a running job, and write a first policy.

Always holds: what is written was validated by loading it; an existing file is never touched; where nothing was found to
hold, nothing is written, and it says so.
Never: overwrites, runs anything that it found, or writes the value of a secret.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from typing import NamedTuple

from lockd.errors import PolicyError, UsageError
from lockd.init import configs, text
from lockd.init.machine import Cache, Machine, find_caches, look
from lockd.init.process import Process, read
from lockd.probes import PROBES


class Written(NamedTuple):
    """Where the policy lies, its name, and what was found, a line each."""

    path: str
    name: str
    found: tuple[str, ...]


def init(output: str, *, name: str = "", pid: int | None = None, environ: Mapping[str, str], cwd: str = "") -> Written:
    """Write a first policy to `output`. Raises UsageError where it exists or there is nothing to hold."""
    path = os.path.abspath(output)
    if os.path.lexists(path):
        raise UsageError(
            "is there already, and is never overwritten", where=path, hint="name another: lockd init -o FILE"
        )
    process = read(pid) if pid is not None else None
    machine = _of_process(process) if process else look(environ, cwd or os.getcwd())
    machine, left_out = _writable(machine)
    if not (machine.environments or machine.scripts or machine.caches):
        raise UsageError(
            "found no environment, training script or cache to hold",
            where="lockd init",
            hint="run it in the project's folder, or lockd init --from-pid PID of a running training",
        )
    name = name or text.clean_name(os.uname().nodename) or "lockd"
    content = text.policy_text(name, machine, process, PROBES)
    _write(path, content)
    return Written(path, name, tuple(_told(machine, process)) + left_out)


def _of_process(process: Process) -> Machine:
    from lockd.init.machine import count_gpus

    environments = (process.environment,) if process.environment else ()
    home = process.environ.get("HOME") or "/"
    caches = {cache.path: cache for cache in find_caches(process.environ, home)}
    for variable, kind in (("TORCHINDUCTOR_CACHE_DIR", "inductor"), ("TRITON_CACHE_DIR", "triton")):
        value = process.environ.get(variable)
        if value:  # held also before the job has made it
            path = os.path.normpath(os.path.join(process.cwd, value))
            caches[path] = Cache(path, "inductor" if kind == "inductor" else "triton", variable)
    scripts = (process.script,) if process.script else ()
    prefix = process.environment.path if process.environment else ""
    found = configs.find(process.environ, home, process.cwd, process.argv, prefix)
    return Machine(environments, scripts, tuple(caches.values()), count_gpus(), tuple(found))


def _writable(machine: Machine) -> tuple[Machine, tuple[str, ...]]:
    """Without what can't be named in a policy, and a line for each."""
    from lockd.facts import shown

    paths = [one.path for one in machine.environments] + [one.path for one in machine.caches] + [*machine.scripts]
    paths += [one.pattern for one in machine.configs]
    left_out = tuple(
        f"left out, its name can't stand in a policy: {shown(path)}" for path in paths if not text.writable(path)
    )
    kept = dataclasses.replace(
        machine,
        environments=tuple(one for one in machine.environments if text.writable(one.path)),
        caches=tuple(one for one in machine.caches if text.writable(one.path)),
        scripts=tuple(path for path in machine.scripts if text.writable(path)),
        configs=tuple(one for one in machine.configs if text.writable(one.pattern)),
    )
    if any(one.torch for one in kept.environments):  # others are told, not held
        kept = dataclasses.replace(kept, environments=tuple(one for one in kept.environments if one.torch))
        others = [one.path for one in machine.environments if not one.torch]
        left_out += tuple(f"left out, no torch in it: {shown(path)}" for path in others)
    return kept, left_out


def _write(path: str, content: str) -> None:
    """Validate, write a file that was not there, load it back as everybody will; take it away where that fails."""
    from lockd import policy

    policy.parse(content, path)
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise UsageError(f"could not be written: {error.strerror}", where=path, hint="lockd init -o FILE") from None
    try:
        with open(descriptor, "w", encoding="utf-8") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        policy.load(path)
    except (OSError, PolicyError):
        os.unlink(path)
        raise


def _told(machine: Machine, process: Process | None) -> list[str]:
    from lockd.facts import shown

    told = [f"process {process.pid}: {shown(process.script or process.module or process.exe)}"] if process else []
    for one in machine.environments:
        build = f" with torch {one.torch['version']}" if one.torch else ""
        cuda = f" (CUDA {one.torch['cuda']})" if "cuda" in one.torch else ""
        told.append(f"{one.kind} {shown(one.path)}{build}{cuda}")
    told += [f"script {shown(path)}" for path in machine.scripts]
    told += [f"{cache.kind} cache {shown(cache.path)}" for cache in machine.caches]
    told += [f"{shown(one.pattern)}: {one.why}" for one in machine.configs]
    return told + ([f"{machine.gpus} GPUs"] if machine.gpus else [])
