"""The `.pth` and `.start` files of a site folder, as `site` would take them, but only read.

Always holds: files come in the order in which `site` takes them (sorted names); a line that runs code is known by the
rule of `site.addpackage` (`import` and a blank), every other line is a path, relative to its folder.
Never: runs a line, or follows a path that a line names.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable

from lockd.disk import Disk, Trouble
from lockd.plain import dataclass

SUFFIXES = (".pth", ".start")  # .start: entry points that site calls at start-up (PEP 829)


@dataclass(frozen=True)
class StartFile:
    """One `.pth` or `.start` file.

    digest: sha256 hex of its bytes, "" where it is no regular file (site passes over it). runs: it executes code at
    start-up. paths: what it adds to the path, absolute, whether it is there or not.
    """

    folder: str
    name: str
    digest: str
    runs: bool
    paths: tuple[str, ...] = ()


def real_bytes(path: str, disk: Disk) -> bytes | Trouble | None:
    """The bytes behind `path`, links followed, as `site` and import do. None: no regular file."""
    target = os.path.realpath(path)
    entry = disk.entry(target)
    if isinstance(entry, Trouble):
        return entry
    return disk.read(target) if entry is not None and entry.kind == "f" else None


def names_in(folder: str) -> list[str] | Trouble:
    """The sorted names in a folder; empty where there is none."""
    try:
        return sorted(os.listdir(folder))
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        return Trouble(folder, error.strerror or str(error))


def start_files(folder: str, disk: Disk, excluded: Callable[[str], bool]) -> list[StartFile] | Trouble:
    """Every `.pth` and `.start` file at the top of a site folder, less what the rule excludes by name.

    One that cannot be read is a Trouble of all.
    """
    names = names_in(folder)
    if isinstance(names, Trouble):
        return names
    found = []
    for name in names:
        if name.endswith(SUFFIXES) and not excluded(name):
            content = real_bytes(os.path.join(folder, name), disk)
            if isinstance(content, Trouble):
                return content
            found.append(_start_file(folder, name, content))
    return found


def _start_file(folder: str, name: str, content: bytes | None) -> StartFile:
    if content is None:
        return StartFile(folder, name, "", False)
    digest = hashlib.sha256(content).hexdigest()
    if name.endswith(".start"):
        return StartFile(folder, name, digest, True)
    runs, paths = False, []
    for line in _lines(content):
        if line.startswith(("import ", "import\t")):
            runs = True
        elif line.strip() and not line.startswith("#"):
            paths.append(os.path.normpath(os.path.join(folder, line.rstrip())))
    return StartFile(folder, name, digest, runs, tuple(paths))


def _lines(content: bytes) -> list[str]:
    text = content.removeprefix(b"\xef\xbb\xbf").decode("utf-8", "surrogateescape")
    # a NUL in a path would raise in every call of `os`; site gives up on such a line as well
    return [line for line in text.splitlines() if "\0" not in line or line.startswith(("import ", "import\t"))]
