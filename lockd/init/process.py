"""What a running job is: its executable, arguments, folder, environment and mapped files, from /proc.

Always holds: the process is read from outside and looked at twice, so that what is told is of one process (pid and
start time). Another user's, a gone or a foreign one is a UsageError that says so.
Never: stops, traces or signals it, or returns the value of a secret.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from lockd.errors import UsageError
from lockd.init.machine import Environment, kind_of, read_environment

_WITH_ARGUMENT = {"-W", "-X", "--check-hash-based-pycs"}  # options of python that take the next word
_LAUNCHERS = {"torchrun", "accelerate", "deepspeed"}
_LAUNCHER_MODULES = {"torch.distributed.run", "torch.distributed.launch", "accelerate.commands.launch"}
_SITE = re.compile(r"(/.+)/lib/python3[\d.t]*/(?:site|dist)-packages/")
_SYSTEM = ("/lib/", "/lib64/", "/usr/lib/", "/usr/lib64/")


@dataclass(frozen=True)
class Process:
    """One running job.

    script, module: what it runs, one of them; absolute. libraries: mapped from outside the environment and the system's
    folders. deleted: mapped, but no longer what is on disk.
    """

    pid: int
    exe: str
    argv: tuple[str, ...]
    cwd: str
    environ: Mapping[str, str]
    environment: Environment | None
    script: str = ""
    module: str = ""
    libraries: tuple[str, ...] = ()
    deleted: tuple[str, ...] = field(default=())


def read(pid: int) -> Process:
    """Read the process. Raises UsageError where that can't be done or would tell nothing."""
    started = _start_time(pid)
    try:
        exe = os.readlink(f"/proc/{pid}/exe")
        cwd = os.readlink(f"/proc/{pid}/cwd")
        argv = tuple(_words(pid, "cmdline"))
        environ = dict(word.partition("=")[::2] for word in _words(pid, "environ") if "=" in word)
        mapped = _mapped(pid)
        _same_root(pid)
    except PermissionError:
        raise _error(pid, f"belongs to {_owner(pid)}", "run this as that user or as root") from None
    except FileNotFoundError:
        raise _error(pid, "is a kernel thread, or has ended", "name the pid of a running training") from None
    if _start_time(pid) != started:
        raise _error(pid, "has ended while it was read", "name the pid of a running training")
    environment = _environment(exe, argv, cwd, environ, mapped)
    script, module = launched(argv, cwd)
    inside = [os.path.dirname(os.path.dirname(exe)) + "/", *([environment.path + "/"] if environment else [])]
    known = (*_SYSTEM, *(prefix for prefix in inside if prefix not in ("//", "/usr/")))
    outside = [path for path in mapped if not path.startswith(known) and ".so" in os.path.basename(path)]
    gone = tuple(path.removesuffix(" (deleted)") for path in mapped if path.endswith(" (deleted)") and ".so" in path)
    libraries = tuple(path for path in outside if not path.endswith(" (deleted)"))
    return Process(pid, exe, argv, cwd, environ, environment, script, module, libraries, gone)


def launched(argv: tuple[str, ...], cwd: str) -> tuple[str, str]:
    """(script, module) that a command line of python or a launcher runs; one of them, or none, is empty."""
    words = list(argv[1:])
    if argv and _base(argv[0]) in _LAUNCHERS:
        return _behind_launcher(words, cwd)
    while words:
        word = words.pop(0)
        if word == "-m" and words:
            module = words.pop(0)
            return _behind_launcher(words, cwd) if module in _LAUNCHER_MODULES else ("", module)
        if word == "-c":
            return "", ""
        if word in _WITH_ARGUMENT and words:
            words.pop(0)
        elif word == "-" or not word.startswith("-"):
            if word == "-":
                return "", ""
            return _behind_launcher(words, cwd) if _base(word) in _LAUNCHERS else (_absolute(word, cwd), "")
    return "", ""


def _behind_launcher(words: list[str], cwd: str) -> tuple[str, str]:
    for at, word in enumerate(words):
        if word in ("-m", "--module") and at + 1 < len(words):
            return "", words[at + 1]
        if word.endswith(".py") and not word.startswith("-"):
            return _absolute(word, cwd), ""
    return "", ""


def _environment(
    exe: str, argv: tuple[str, ...], cwd: str, environ: Mapping[str, str], mapped: list[str]
) -> Environment | None:
    """By the name that it was started by (a venv's executable is a link to another python), else by what it mapped."""
    candidates = [os.path.dirname(os.path.dirname(path)) for path in (*_started_as(argv, cwd, environ), exe)]
    candidates += [match[1] for match in map(_SITE.match, mapped) if match]
    for prefix in candidates:
        if kind_of(prefix):
            return read_environment(os.path.realpath(prefix), kind_of(prefix))
    return None


def _started_as(argv: tuple[str, ...], cwd: str, environ: Mapping[str, str]) -> list[str]:
    if not argv:
        return []
    if "/" in argv[0]:
        return [_absolute(argv[0], cwd)]
    folders = environ.get("PATH", "").split(":")
    return [path for path in (os.path.join(folder, argv[0]) for folder in folders if folder) if os.path.exists(path)][
        :1
    ]


def _mapped(pid: int) -> list[str]:
    """The files that it has mapped, once each, in order."""
    with open(f"/proc/{pid}/maps", encoding="utf-8", errors="surrogateescape") as file:
        fields = [line.rstrip("\n").split(None, 5) for line in file]
    return list(dict.fromkeys(words[5] for words in fields if len(words) == 6 and words[5].startswith("/")))


def _words(pid: int, name: str) -> list[str]:
    with open(f"/proc/{pid}/{name}", "rb") as file:
        return [os.fsdecode(word) for word in file.read(4 << 20).split(b"\0") if word]


def _same_root(pid: int) -> None:
    """Its paths mean the same here only in the same mount namespace and root."""
    if os.readlink(f"/proc/{pid}/root") == "/" and (
        os.readlink(f"/proc/{pid}/ns/mnt") == os.readlink("/proc/self/ns/mnt")
    ):
        return
    raise _error(pid, "runs in a container or under another root", "run lockd init inside that container")


def _start_time(pid: int) -> str:
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            return file.read().rpartition(")")[2].split()[19]
    except (FileNotFoundError, ProcessLookupError):
        raise _error(pid, "is not there", "name the pid of a running training") from None


def _owner(pid: int) -> str:
    import pwd

    try:
        uid = os.stat(f"/proc/{pid}").st_uid
        return f"user {pwd.getpwuid(uid).pw_name}"
    except (OSError, KeyError):
        return "another user"


def _error(pid: int, text: str, hint: str) -> UsageError:
    return UsageError(text, where=f"process {pid}", hint=hint)


def _absolute(path: str, cwd: str) -> str:
    return os.path.normpath(os.path.join(cwd, path))


def _base(path: str) -> str:
    return os.path.basename(path)
