"""lockd's site hook: before a launch that a policy names, it asks lockd whether the launch may start.

`lockd gate install site` puts this module and `lockd-gate.pth` into a virtualenv, `lockd gate remove site` takes them
out. It holds no more than what is needed to ask: which launches a policy names, and where lockd is.
Always holds: an interpreter that starts no named launch pays a look at its own command line. A launch asks once: what
descends from an admitted launch that still lives passes by that launch's record. A refusal is one message and exit 78
(125: nobody could look). A lockd that is gone, broken or stuck is what `on_fault` says.
Never: raises into `site`, imports what costs before a launch was found, changes the environment, or takes anything from
the current folder or from variables.
"""

# mypy: allow-untyped-defs, allow-untyped-calls
# (any Python from 3.8 on runs this, and annotations would cost at each start)
import os
import sys

HOOK = {}  # type: ignore[var-annotated]  # filled in by `lockd gate install`

# what starts another program's script, or runs it inside; of any other program only its own name counts
LAUNCHERS = """torchrun accelerate accelerate-launch deepspeed horovodrun colossalai composer lightning fabric
    coverage kernprof scalene viztracer ipython ipython3""".split()  # noqa: SIM905  read as words
MODULES = """torch.distributed.run torch.distributed.launch accelerate accelerate.commands.launch deepspeed
    deepspeed.launcher.runner deepspeed.launcher.launch horovod.runner.launch IPython pdb cProfile profile trace runpy
    coverage debugpy kernprof scalene viztracer""".split()  # noqa: SIM905  read as words


def named(argv, cwd):
    """The policies that name the launch of this command line."""
    start = started(argv)
    if start is None:
        return []
    kind, name, rest = start
    found = modules(name, cwd) if kind == "-m" else scripts(name, cwd)
    if found:
        return found
    if (name in MODULES) if kind == "-m" else (os.path.basename(name) in LAUNCHERS):
        return launched(rest, cwd)
    return []


def started(argv):
    """("" or "-m", script or module, the words behind it); None for -c, stdin and a prompt."""
    at = 1
    while at < len(argv):
        word = argv[at]
        at += 1
        if word == "--check-hash-based-pycs":
            at += 1
        if word == "--" and at < len(argv):
            return "", argv[at], argv[at + 1 :]
        if word == "-" or word.startswith("--"):
            if word == "-":
                return None
            continue
        if not word.startswith("-"):
            return "", word, argv[at:]
        for place, letter in enumerate(word[1:], 2):
            value = word[place:]
            if letter == "c":
                return None
            if letter == "m":
                rest = [value, *argv[at:]] if value else argv[at:]
                return ("-m", rest[0], rest[1:]) if rest else None
            if letter in "WX":
                at += 0 if value else 1
                break
    return None


def launched(words, cwd):
    """The policies that name the script or module that a launcher is about to start."""
    for at, word in enumerate(words):
        if word in ("-m", "--module") and at + 1 < len(words):
            found = modules(words[at + 1], cwd)
        else:
            found = [] if word.startswith("-") else scripts(word, cwd) or modules(word, cwd, only_name=True)
        if found:
            return found
    return []


def scripts(word, cwd):
    """The policies that name this script, whatever links and folders it is called through."""
    path = os.path.join(cwd, word)
    try:
        found = os.stat(path)
    except (OSError, ValueError):
        return []
    paths = {os.path.normpath(path), real(path)}
    return [one for one in HOOK["policies"] if any(is_script(pattern, paths, found) for pattern in one["scripts"])]


def real(path):
    """A path without links; from a folder that is gone only the kernel knows it."""
    try:
        return os.path.realpath(path)
    except OSError:
        descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
        try:
            return os.readlink(f"/proc/self/fd/{descriptor}")
        finally:
            os.close(descriptor)


def is_script(pattern, paths, found):
    """Does a script's path, or the file behind it, match one pattern?"""
    if pattern in paths:
        return True
    if "*" in pattern or "?" in pattern or "[" in pattern:
        return any(fits(pattern.split("/"), path.split("/")) for path in paths)
    try:
        other = os.stat(pattern)
    except OSError:
        return False
    return (other.st_dev, other.st_ino) == (found.st_dev, found.st_ino)


def modules(name, cwd, only_name=False):
    """The policies that name this module, or the script that it is."""
    whole = (name, name + ".__main__")
    found = [
        one for one in HOOK["policies"] if any(like(pattern, text) for pattern in one["modules"] for text in whole)
    ]
    if found or only_name:
        return found
    inside = name.replace(".", "/") + ".py"
    ends = [pattern.rpartition("/")[2] for one in HOOK["policies"] for pattern in one["scripts"]]
    if not any(like(end, os.path.basename(inside)) for end in ends):
        return []
    folders = [cwd] + [os.path.join(cwd, folder) for folder in sys.path]
    return next(filter(None, (scripts(os.path.join(folder, inside), cwd) for folder in folders)), [])


def fits(pattern, path):
    """A glob over paths, both as lists of components: `**` crosses folders."""
    if not pattern or not path:
        return not pattern and not path
    if pattern[0] != "**":
        return like(pattern[0], path[0]) and fits(pattern[1:], path[1:])
    if len(pattern) == 1:
        return True
    return any(fits(pattern[1:], path[at:]) for at in range(len(path)))


def like(pattern, text):
    """A glob over one component: `*`, `?` and `[…]`."""
    if not pattern:
        return not text
    if pattern[0] == "*":
        rest = pattern.lstrip("*")
        return any(like(rest, text[at:]) for at in range(len(text) + 1))
    if not text:
        return False
    if pattern[0] == "[":
        start = 2 if pattern[1:2] in ("!", "^") else 1
        end = pattern.find("]", start + 1)
        if end > 0:
            among = is_among(pattern[start:end], text[0])
            return among != (start == 2) and like(pattern[end + 1 :], text[1:])
    return pattern[0] in ("?", text[0]) and like(pattern[1:], text[1:])


def is_among(members, character):
    """Is a character among those of a class such as `a-z0`?"""
    at = 0
    while at < len(members):
        if members[at + 1 : at + 2] == "-" and at + 2 < len(members):
            if members[at] <= character <= members[at + 2]:
                return True
            at += 3
        elif members[at] == character:
            return True
        else:
            at += 1
    return False
