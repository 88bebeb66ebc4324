"""The launches of a policy that run now, by their command lines in /proc.

Always holds: a launch is a Python process that one of the policy's scripts or modules was given to; an editor that has
the script open is none. What /proc hides from this user is not seen.
Never: signals a process, or reads its variables.
"""

from __future__ import annotations

import itertools
import os
from typing import TYPE_CHECKING

from lockd.facts import shown
from lockd.probes import paths
from lockd.processes import is_python
from lockd.secrets import mask_argv

if TYPE_CHECKING:
    from lockd.rules import Policy

_LONGEST = 100  # characters of a command line that is shown


def launches(policy: Policy) -> list[tuple[int, str]]:
    """Pid and command line of each, this process aside."""
    launch = policy.launch
    if not (launch.scripts or launch.modules):
        return []
    found = []
    for name in os.listdir("/proc"):
        if name.isdecimal() and int(name) != os.getpid():
            words = _words(int(name))
            if words and is_python(int(name), words) and _is_launch(policy, int(name), words):
                found.append((int(name), shown(" ".join(mask_argv(words)))[:_LONGEST]))
    return sorted(found)


def _words(pid: int) -> list[str]:
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            return os.fsdecode(file.read(1 << 16)).split("\0")[:-1]
    except OSError:  # gone meanwhile
        return []


def _is_launch(policy: Policy, pid: int, words: list[str]) -> bool:
    for before, word in itertools.pairwise(words):
        if before == "-m" and word in policy.launch.modules:
            return True
        if word.startswith("-") or not policy.launch.scripts:
            continue
        if any(paths.covers(one, path) for path in _places(pid, word) for one in policy.launch.scripts):
            return True
    return False


def _places(pid: int, word: str) -> set[str]:
    """The path that a word is, seen from that process."""
    try:
        path = os.path.normpath(os.path.join(os.readlink(f"/proc/{pid}/cwd"), word))
    except OSError:
        path = word
    return {path, os.path.realpath(path)}
