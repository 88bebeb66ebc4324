"""lockd's own site hook as the probe sees it: known, so that it is no drift; missed when it is gone or not as it was.

Always holds: a hook is genuine when its code is this lockd's and its seal fits what was filled in, or when its bytes
are those that this policy's state recorded at the install. Anything else by its name is start-up code as any other.
Never: imports or runs the hook.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Literal, NamedTuple

if TYPE_CHECKING:
    from lockd.disk import Disk, Trouble

MODULE, PTH = "lockd_gate.py", "lockd-gate.pth"
# a prompt, a script on standard input and `-c` are no launch that a policy could name: these pay for this line alone
PTH_TEXT = """import sys; getattr(sys, "orig_argv", "??")[1:2] in ([], ["-c"]) or __import__("lockd_gate")\n"""
_EARLIER = ("import lockd_gate\n",)  # of hooks that an earlier lockd put in
RECORD = "hooks.json"  # in the state: environment → digest of the hook that was put into it
FILLED = "HOOK = "  # the line that an install fills in
_SEAL = "# seal: "
_PARTS = os.path.join(os.path.dirname(__file__), "..", "..", "gates", "hook")
ORDER = ("which", "belongs", "saying", "daemon", "start", "gate")  # as `gates.hook` says; imports run one way
_BETWEEN = ("from lockd.gates.hook.", "# mypy: ")  # lines that have a meaning only while the parts are apart

State = Literal["genuine", "version", "changed"]
WORDS: Mapping[str, str] = {
    "version": "lockd's site hook is of another version",
    "changed": "lockd's site hook is not as it was installed",
}
LOST = "lockd's site hook is gone"
BREACH = "gate"  # the attribute of a breach that says one of these


class Hook(NamedTuple):
    """A hook that lies in a site folder. digest: over both files."""

    digest: str
    state: State


def judged(module: bytes | None, pth: bytes | None, recorded: str | None = None) -> Hook | None:
    """What these files of a site folder are; None where there is neither."""
    if module is None and pth is None:
        return None
    digest = "sha256:" + hashlib.sha256((pth or b"-") + b"\0" + (module or b"-")).hexdigest()
    if module is None or pth is None or pth not in [text.encode() for text in (PTH_TEXT, *_EARLIER)]:
        return Hook(digest, "changed")
    if digest == recorded:
        return Hook(digest, "genuine")
    text = module.decode("utf-8", "surrogateescape")
    if not is_sealed(text):
        return Hook(digest, "changed")
    is_this = pth == PTH_TEXT.encode() and _code(text) == _code(sealed(template()))
    return Hook(digest, "genuine" if is_this else "version")


def read(folder: str, recorded: str | None = None) -> Hook | None:
    """The hook in a site folder. OSError where one is there and can't be read."""
    return judged(_bytes(os.path.join(folder, MODULE)), _bytes(os.path.join(folder, PTH)), recorded)


def looked_at(folder: str, disk: Disk, recorded: str | None = None) -> Hook | Trouble | None:
    """The same through a look's disk."""
    from lockd.disk import Trouble
    from lockd.probes.python.pth import real_bytes

    module, pth = (real_bytes(os.path.join(folder, name), disk) for name in (MODULE, PTH))
    for trouble in (module, pth):
        if isinstance(trouble, Trouble):
            return trouble
    assert not isinstance(module, Trouble) and not isinstance(pth, Trouble)
    return judged(module, pth, recorded)


def recorded(state_folder: str) -> dict[str, str]:
    """Environment → digest of the hook that this state knows to be in it."""
    try:
        with open(os.path.join(state_folder, RECORD), encoding="utf-8") as file:
            return {str(name): str(digest) for name, digest in json.load(file).items()}
    except (OSError, ValueError, AttributeError):
        return {}


def template() -> str:
    """The module as lockd ships it: its parts, one after the other."""
    lines: list[str] = []
    for name in ORDER:
        with open(os.path.join(_PARTS, f"{name}.py"), encoding="utf-8") as file:
            lines += [line for line in file if not line.startswith(_BETWEEN)]
    return "".join(lines)


def sealed(text: str) -> str:
    """The module with a last line that a later edit breaks."""
    return f"{text}{_SEAL}{hashlib.sha256(text.encode('utf-8', 'surrogateescape')).hexdigest()}\n"


def is_sealed(text: str) -> bool:
    """Is this text as `sealed` made it?"""
    head, mark, _ = text.rpartition(_SEAL)
    return bool(mark) and sealed(head) == text


def is_of_this_version(folder: str) -> bool:
    """Is the code of the hook in a site folder this lockd's? One that was installed by another one still asks it."""
    text = (_bytes(os.path.join(folder, MODULE)) or b"").decode("utf-8", "surrogateescape")
    return _code(text) == _code(sealed(template()))


def _code(text: str) -> list[str]:
    """The lines less what is filled in."""
    return [line for line in text.splitlines() if not line.startswith((FILLED, _SEAL))]


def _bytes(path: str) -> bytes | None:
    try:
        with open(path, "rb") as file:
            return file.read(1 << 20)
    except (FileNotFoundError, NotADirectoryError):
        return None
