"""How a path is reached: the folders and names that must stay as they are for it to mean the same file.

Always holds: links are followed as the kernel would, each one's own name counted; the walk ends at the first name
that is not there, so that its coming is seen. No more than 40 links.
Never: opens anything.
"""

from __future__ import annotations

import os
import stat
from typing import NamedTuple

_MAX_LINKS = 40


class Route(NamedTuple):
    """steps: (folder, name) pairs from the root down, links' own names included. real: the path without links, None
    if it ends early.
    """

    steps: tuple[tuple[str, str], ...]
    real: str | None


def route(path: str) -> Route:
    """The way to an absolute path."""
    steps: list[tuple[str, str]] = []
    waiting = [name for name in reversed(path.split("/")) if name and name != "."]
    folder, links = "/", 0
    while waiting:
        name = waiting.pop()
        if name == "..":
            folder = os.path.dirname(folder)
            continue
        steps.append((folder, name))
        here = os.path.join(folder, name)
        try:
            mode = os.lstat(here).st_mode
            target = os.readlink(here) if stat.S_ISLNK(mode) else None
        except OSError:
            return Route(tuple(dict.fromkeys(steps)), None)
        if target is None:
            folder = here
            continue
        links += 1
        if links > _MAX_LINKS:
            return Route(tuple(dict.fromkeys(steps)), None)
        if target.startswith("/"):
            folder = "/"
        waiting.extend(name for name in reversed(target.split("/")) if name and name != ".")
    return Route(tuple(dict.fromkeys(steps)), folder)
