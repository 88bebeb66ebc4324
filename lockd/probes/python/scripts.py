"""Scripts in `bin/`: what of them is content, and what an installer wrote for this machine.

Always holds: the shebang never counts, every other byte does. A launcher that an installer generated for an entry
point counts as what it starts (`module:function`), so that pip's and uv's launchers of one wheel are equal, and an
edited one is not.
Never: runs or imports one.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable

_LAUNCHER = re.compile(
    rb"(?:# -\*- coding: utf-8 -\*-\n)?(?:import re\n)?import sys\n+from (?P<module>[\w.]+) import (?P<name>\w+)\n+"
    rb"if __name__ == (?P<q>['\"])__main__(?P=q):\n"
    rb"(?:    sys\.argv\[0\] = (?:re\.sub\(r(?P<r>['\"])\(-script\\\.pyw?\|\\\.exe\)\?\$(?P=r), "
    rb"(?P<e>['\"])(?P=e), sys\.argv\[0\]\)"
    rb"|sys\.argv\[0\]\.removesuffix\((?P<x>['\"])\.exe(?P=x)\))\n"
    rb"|    if sys\.argv\[0\]\.endswith\(\"-script\.pyw\"\):\n        sys\.argv\[0\] = sys\.argv\[0\]\[:-11\]\n"
    rb"    elif sys\.argv\[0\]\.endswith\(\"\.exe\"\):\n        sys\.argv\[0\] = sys\.argv\[0\]\[:-4\]\n)"
    rb"    sys\.exit\((?P<call>[\w.]+)\(\)\)\n*"
)
_ORIGINAL = (
    b"#!python",
    b"#!pythonw",
    b"#!/usr/bin/env python",
    b"#!/usr/bin/env python3",
    b"#!/usr/bin/python",
    b"#!/usr/bin/python3",
)


def rest(content: bytes) -> bytes:
    """A script without its shebang: the first line, or the three of the form that long or spaced paths need."""
    if not content.startswith(b"#!"):
        return content
    first, _, after = content.partition(b"\n")
    if first == b"#!/bin/sh" and after.startswith(b"'''exec' "):
        return after.split(b"\n", 2)[2] if after.count(b"\n") >= 2 else b""
    return after


def word(content: bytes) -> str:
    """The content word of a script: a launcher's target, else a digest of all but the shebang."""
    body = rest(content)
    match = _LAUNCHER.fullmatch(body)
    if match is not None and match["call"].split(b".")[0] == match["name"]:
        return f"launcher {match['module'].decode()}:{match['call'].decode()}"
    return f"script {hashlib.sha256(body).hexdigest()}" if body is not content else hashlib.sha256(content).hexdigest()


def only_shebang_differs(content: bytes, recorded: str, interpreters: Iterable[str], targets: frozenset[str]) -> bool:
    """Would the script have its recorded digest (hex) with another shebang that an installer may have found or written?

    targets: `module:function` of the package's entry points; a whole launcher of one of them differs in its shebang
    only.
    """
    body = rest(content)
    if body is content:
        return False
    if word(content).removeprefix("launcher ") in targets:
        return True
    shebangs = (*_ORIGINAL, *(b"#!" + path.encode("utf-8", "surrogateescape") for path in interpreters))
    return any(hashlib.sha256(shebang + b"\n" + body).hexdigest() == recorded for shebang in shebangs)


def entry_points(text: str) -> frozenset[str]:
    """`module:function` of every entry point of an `entry_points.txt`."""
    values = (line.partition("=")[2].partition("[")[0] for line in text.splitlines() if "=" in line)
    return frozenset("".join(value.split()) for value in values)
