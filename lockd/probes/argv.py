"""What a command line would start: the interpreter behind wrappers, shebangs and launchers, and its sys.path[0].

Always holds: the answer is made of the launch's own words, variables and folder, as the shell, the kernel and Python
would take them; where they do not tell (a shell's script, another program), the PATH's python is taken, and `via`
says so.
Never: starts anything, or reads more than the first bytes of a script.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence

from lockd.plain import dataclass, field
from lockd.probes.shadows import pythonpath

PYTHON = re.compile(r"(?:python|pypy)(?:\d+(?:\.\d+)?t?)?")
_ASSIGNMENT = re.compile(r"[A-Za-z_][A-Za-z0-9_]*=", re.ASCII)
_QUOTED_EXEC = re.compile(rb"^'''exec' +(?:\"([^\"\n]+)\"|(\S+)) ", re.MULTILINE)  # pip and uv, for long or blank paths
_SHEBANG = 512  # bytes; the kernel reads 256
_DEEPEST = 8  # wrappers in wrappers

_NUMACTL = ("-i", "-p", "-m", "-N", "-C", "--interleave", "--preferred", "--membind", "--cpunodebind", "--physcpubind")

# wrapper → (options that take the next word, words before the command)
_WRAPPERS: Mapping[str, tuple[frozenset[str], int]] = {
    "nohup": (frozenset(), 0),
    "setsid": (frozenset(), 0),
    "time": (frozenset({"-f", "-o", "--format", "--output"}), 0),
    "nice": (frozenset({"-n", "--adjustment"}), 0),
    "ionice": (frozenset({"-c", "-n", "--class", "--classdata"}), 0),
    "stdbuf": (frozenset({"-i", "-o", "-e", "--input", "--output", "--error"}), 0),
    "timeout": (frozenset({"-k", "-s", "--kill-after", "--signal"}), 1),
    "taskset": (frozenset(), 1),
    "chrt": (frozenset({"-T", "-P", "-D"}), 1),
    "numactl": (frozenset(_NUMACTL), 0),
}
# these run the rest of their words, after options that are theirs: the first word that is a Python is taken
_PASSING_ON = {"srun", "mpirun", "mpiexec", "orterun", "horovodrun", "nsys", "ncu", "perf", "strace", "ltrace", "gdb"}
_PASSING_ON |= {
    "valgrind",
    "py-spy",
    "systemd-run",
    "systemd-inhibit",
    "sudo",
    "runuser",
    "choom",
    "prlimit",
    "unshare",
}
# these choose a Python by rules and files of their own, or run it elsewhere
_CHOOSING = {"uv", "uvx", "conda", "mamba", "micromamba", "poetry", "pdm", "hatch", "pipenv", "pipx", "rye", "pixi"}
_CHOOSING |= {"docker", "podman", "apptainer", "singularity", "enroot", "kubectl", "ssh", "ray"}
_LAUNCHERS = ("torch.distributed.run", "torch.distributed.launch", "accelerate.commands.launch", "deepspeed")


@dataclass(frozen=True)
class Started:
    """What a command starts.

    interpreter: absolute, links not resolved; "" where `trouble` says why it can't be told. via: how it was found.
    first: (label, folder) of each sys.path[0]: of the interpreter itself, then of the script that a launcher starts.
    pythonpath: the folders of PYTHONPATH, unless the interpreter ignores it.
    """

    interpreter: str = ""
    via: str = ""
    first: tuple[tuple[str, str], ...] = ()
    pythonpath: tuple[str, ...] = ()
    trouble: str = ""


@dataclass
class _Command:
    """A command line on its way through its wrappers."""

    words: list[str]
    environ: dict[str, str]
    cwd: str
    seen: list[str] = field(default_factory=list)


def started(argv: Sequence[str], environ: Mapping[str, str], cwd: str) -> Started:
    """What `argv` starts with these variables in this folder."""
    command = _unwrapped(_Command(list(argv), dict(environ), cwd))
    if not command.words:
        return Started(trouble="the command has no program")
    program = which(command.words[0], command.environ, command.cwd)
    if not program:
        return Started(trouble=f"{command.words[0]}: no such program on the launch's PATH")
    head = _head(program)
    if PYTHON.fullmatch(os.path.basename(program)) and not head.startswith(b"#!"):
        return _python(program, command.words[1:], command, "the command")
    return _script(program, head, command)


def which(name: str, environ: Mapping[str, str], cwd: str) -> str:
    """The program that `execvp` would take, absolute; "" where there is none."""
    folders = [""] if "/" in name else environ.get("PATH", os.defpath).split(":")
    places = (os.path.join(cwd, folder, name) for folder in folders)
    return next((place for place in places if os.path.isfile(place) and os.access(place, os.X_OK)), "")


# -- wrappers --------------------------------------------------------------------------------------------------------


def _unwrapped(command: _Command) -> _Command:
    for _ in range(_DEEPEST):
        name = os.path.basename(command.words[0]) if command.words else ""
        if name == "env":
            _apply_env(command)
        elif name in _WRAPPERS:
            _strip(command, *_WRAPPERS[name])
        else:
            break
    return command


def _strip(command: _Command, valued: frozenset[str], operands: int) -> None:
    words = command.words[1:]
    while words and words[0].startswith("-") and len(words[0]) > 1:
        word = words.pop(0)
        if word == "--":
            break
        if word in valued and words:
            words.pop(0)
    command.words = words[operands:]


def _apply_env(command: _Command) -> None:
    """`env [-i] [-u NAME] [-C DIR] [-S STRING] [NAME=VALUE]… COMMAND`."""
    words = command.words[1:]
    while words:
        word = words.pop(0)
        name, has_value, value = word.partition("=") if word.startswith("--") else (word[:2], word[2:], word[2:])
        if word in ("-", "-i", "--ignore-environment"):
            command.environ.clear()
        elif name in ("-u", "--unset", "-C", "--chdir", "-S", "--split-string"):
            words = _env_option(name, value if has_value else words.pop(0) if words else "", words, command)
        elif word.startswith("-") and word != "--":
            continue
        elif _ASSIGNMENT.match(word):
            variable, _, value = word.partition("=")
            command.environ[variable] = value
        elif word != "--":
            words.insert(0, word)
            break
    command.words = words


def _env_option(name: str, value: str, words: list[str], command: _Command) -> list[str]:
    if name in ("-u", "--unset"):
        command.environ.pop(value, None)
    elif name in ("-C", "--chdir"):
        command.cwd = os.path.join(command.cwd, value)
    else:
        import shlex  # rarely needed, and costly at start-up

        try:
            return [*shlex.split(value), *words]
        except ValueError:  # an open quote: env would refuse it as well
            return []
    return words


# -- scripts ---------------------------------------------------------------------------------------------------------


def _head(path: str) -> bytes:
    """The first bytes of a program; none of what is no regular file, or cannot be read."""
    try:
        with open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK)) as file:
            return file.read(_SHEBANG)
    except OSError:
        return b""


def _script(program: str, head: bytes, command: _Command) -> Started:
    """A program that is no interpreter itself: a Python tool by its shebang, or something that cannot be told."""
    name = os.path.basename(program)
    if name in _CHOOSING:
        return Started(trouble=f"{program}: which Python it starts can't be told from outside")
    words = _shebang(head)
    inner = _unwrapped(_Command(words, command.environ, command.cwd)).words if words else []
    interpreter = which(inner[0], command.environ, command.cwd) if inner else ""
    if interpreter and PYTHON.fullmatch(os.path.basename(interpreter)) and not _head(interpreter).startswith(b"#!"):
        tool = _python(interpreter, [*inner[1:], program], command, f"the first line of {program}")
        return _launched(tool, name, command.words[1:], command)
    if PYTHON.fullmatch(name):
        return Started(trouble=f"{program}: which Python it starts can't be told from outside")
    passed = _passed_on(command) if name in _PASSING_ON else None
    return passed or _on_path(program, command)


def _passed_on(command: _Command) -> Started | None:
    """The first Python among the words of a program that runs them."""
    for place, word in enumerate(command.words[1:], 1):
        found = which(word, command.environ, command.cwd) if PYTHON.fullmatch(os.path.basename(word)) else ""
        if found and not _head(found).startswith(b"#!"):
            rest = command.words[place + 1 :]
            return _python(found, rest, command, f"the words of {os.path.basename(command.words[0])}")
    return None


def _on_path(program: str, command: _Command) -> Started:
    for name in ("python", "python3"):
        found = which(name, command.environ, command.cwd)
        if found and not _head(found).startswith(b"#!"):
            via = f"the PATH: {os.path.basename(program)} doesn't tell which Python it starts"
            return Started(found, via, (), pythonpath(command.environ, command.cwd))
        if found:
            return Started(trouble=f"{found} is a script: which Python it starts can't be told from outside")
    return Started(trouble=f"{program} is no Python program, and there is no python on the launch's PATH")


def _shebang(head: bytes) -> list[str]:
    """The words of a script's first line; of the shell stub that installers write, those of the Python in it."""
    if not head.startswith(b"#!"):
        return []
    stub = _QUOTED_EXEC.search(head)
    if stub:
        return [os.fsdecode(stub[1] or stub[2])]
    line = os.fsdecode(head[2:].split(b"\n", 1)[0]).strip()
    program, _, argument = line.partition(" ")
    if os.path.basename(program) == "env":
        return [program, *(["-S", argument.strip()[2:]] if argument.strip().startswith("-S") else argument.split())]
    return [program, *argument.split()]


# -- python ----------------------------------------------------------------------------------------------------------


def _python(interpreter: str, words: list[str], command: _Command, via: str) -> Started:
    """A Python with its arguments: what becomes sys.path[0], and whether PYTHONPATH counts."""
    flags, kind, rest = _options(words)
    path = () if {"I", "E"} & flags else pythonpath(command.environ, command.cwd)
    safe = {"I", "P"} & flags or ("E" not in flags and command.environ.get("PYTHONSAFEPATH"))
    first = () if safe else _first(kind, rest, command)
    found = Started(interpreter, via, first, path)
    if kind == "-m" and rest and rest[0].startswith(_LAUNCHERS):
        return _launched(found, rest[0], rest[1:], command)
    return found


def _options(words: list[str]) -> tuple[set[str], str, list[str]]:
    """(flags, what runs, its words): what runs is "-m", "-c", "" (a script) or "-" (standard input)."""
    flags: set[str] = set()
    rest = list(words)
    while rest and rest[0].startswith("-") and rest[0] != "-":
        word = rest.pop(0)
        if word == "--check-hash-based-pycs" and rest:
            rest.pop(0)
        for place, letter in enumerate(word[1:], 1) if not word.startswith("--") else ():
            value = word[place + 1 :]
            if letter in "cm":
                return flags, f"-{letter}", [value, *rest] if value else rest
            if letter in "WX":
                rest = rest if value else rest[1:]
                break
            flags.add(letter)
    return (flags, "", rest) if rest and rest[0] != "-" else (flags, "-", rest[1:])


def _first(kind: str, rest: list[str], command: _Command) -> tuple[tuple[str, str], ...]:
    if kind:
        return (("current folder", command.cwd),)
    return (("script folder", _folder_of(os.path.join(command.cwd, rest[0]))),)


def _folder_of(script: str) -> str:
    """sys.path[0] of a script: the folder of the file behind the links; of a folder with a __main__.py itself."""
    real = os.path.realpath(script)
    return real if os.path.isdir(real) else os.path.dirname(real)


def _launched(tool: Started, name: str, words: list[str], command: _Command) -> Started:
    """What a launcher such as torchrun starts besides itself: the first script or module among its words."""
    first = tool.first
    for place, word in enumerate(words):
        if word in ("-m", "--module") and len(words) > place + 1 and not words[place + 1].endswith(".py"):
            first += (("current folder", command.cwd),)
            break
        if word.endswith(".py") and os.path.isfile(os.path.join(command.cwd, word)):
            first += (("script folder", _folder_of(os.path.join(command.cwd, word))),)
            break
    own = command.environ.get("PYTHON_EXEC") if name.startswith(("torchrun", "torch.distributed")) else ""
    interpreter = which(own, command.environ, command.cwd) if own else ""  # torchrun starts its ranks with it
    via = "PYTHON_EXEC" if interpreter else tool.via
    return Started(interpreter or tool.interpreter, via, tuple(dict.fromkeys(first)), tool.pythonpath)
