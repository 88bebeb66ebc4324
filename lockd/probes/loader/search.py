"""What the dynamic loader would load, worked out from files: ld.so(8) of glibc, without running it.

The order for a name without a slash: what is loaded under that name; DT_RPATH of the one that needs it and of those
that loaded it, up to the executable (an object with DT_RUNPATH has no say by RPATH); LD_LIBRARY_PATH; DT_RUNPATH;
ld.so.cache; the default folders. A file of another machine is passed over.
Always holds: each file is read once, loops in what is needed or in RPATH end. The first who needs a name decides for
the process.
Never: runs ldd, which runs what it looks at.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from lockd.probes import ldcache
from lockd.probes.loader.elf import Broken, Elf, read

_MOST = 2_000  # objects of one process


class Loaded(NamedTuple):
    """One object. by: what found it. loader: who needed it; None for the executable and what is opened by itself."""

    name: str
    path: str
    elf: Elf
    by: str
    loader: Loaded | None


class Missing(NamedTuple):
    """A name that nobody finds, and who needs it."""

    name: str
    needed_by: str


class Search:
    """The loader of one process to be. `cwd`: what relative and empty folders are relative to."""

    def __init__(self, environ: Mapping[str, str], cwd: str, root: str = "/") -> None:
        self.library_path = _folders(environ.get("LD_LIBRARY_PATH", ""), cwd)
        self.preload = environ.get("LD_PRELOAD", "").replace(":", " ").split()
        self.cache = ldcache.read(root)
        self.loaded: dict[str, Loaded] = {}  # by every name under which it would be found again
        self.executable_name = ""
        self.missing: list[Missing] = []
        self.broken: dict[str, str] = {}
        self._read: dict[str, Elf | Broken] = {}
        self._there: dict[str, bool] = {}

    def start(self, executable: str) -> str:
        """Load the executable, LD_PRELOAD, and all that they need. Why that is not possible, or ""."""
        found = self._elf(executable)
        if isinstance(found, Broken):
            return f"{executable}: {found.reason}"
        self.executable_name = os.path.basename(executable)
        self._executable = Loaded(self.executable_name, executable, found, "executable", None)
        first = [self._executable]
        for name in self.preload:
            one = self.find(name, self._executable)
            if isinstance(one, Loaded):
                first.append(one._replace(by="LD_PRELOAD"))
        self._load(first)
        return ""

    def open(self, path: str, by: str) -> None:
        """What dlopen of a path would load."""
        found = self._elf(path)
        if isinstance(found, Broken):
            self.broken[path] = found.reason
        else:
            self._load([Loaded(os.path.basename(path), path, found, by, self._executable)])

    def _load(self, first: Iterable[Loaded]) -> None:
        """Breadth first, as the loader does: what is needed by the first comes before what that needs."""
        waiting: deque[Loaded] = deque()
        for one in first:
            waiting += self._keep(one)
        while waiting and len(self.loaded) < _MOST:
            one = waiting.popleft()
            for name in one.elf.needed:
                if name in self.loaded:
                    continue
                found = self.find(name, one)
                if isinstance(found, Loaded):
                    waiting += self._keep(found)
                else:
                    self.missing.append(found)

    def _keep(self, one: Loaded) -> list[Loaded]:
        """Note an object under its names; nothing where that very object is loaded already."""
        known = self.loaded.get(one.elf.soname or one.name)
        for name in {one.name, one.elf.soname} - {""}:
            self.loaded.setdefault(name, known or one)
        return [] if known else [one]

    def find(self, name: str, needed_by: Loaded) -> Loaded | Missing:
        """The file that a name leads to for one object."""
        for path, by in self._places(name, needed_by):
            if self._is_there(path):
                found = self._elf(path)
                if isinstance(found, Broken):
                    self.broken[path] = found.reason
                elif found.machine == needed_by.elf.machine:
                    return Loaded(name, path, found, by, needed_by)
        return Missing(name, needed_by.path)

    def _places(self, name: str, needed_by: Loaded) -> Iterator[tuple[str, str]]:
        if "/" in name:
            yield name, "its path"
            return
        if not needed_by.elf.runpath:
            for one in _chain(needed_by):
                if not one.elf.runpath:
                    yield from ((f"{folder}/{name}", "RPATH") for folder in _expanded(one.elf.rpath, one))
        yield from ((f"{folder}/{name}", "LD_LIBRARY_PATH") for folder in self.library_path)
        yield from ((f"{folder}/{name}", "RUNPATH") for folder in _expanded(needed_by.elf.runpath, needed_by))
        if not needed_by.elf.no_default:
            yield from ((path, "ld.so.cache") for path in self.cache.paths.get(name, ()))
            yield from ((f"{folder}/{name}", "default folder") for folder in ldcache.DEFAULT)

    def _is_there(self, path: str) -> bool:
        if path not in self._there:
            self._there[path] = os.path.exists(path)
        return self._there[path]

    def _elf(self, path: str) -> Elf | Broken:
        if path not in self._read:
            self._read[path] = read(path)
        return self._read[path]


def _chain(one: Loaded) -> Iterator[Loaded]:
    """An object, and those that loaded it."""
    at: Loaded | None = one
    while at is not None:
        yield at
        at = at.loader


def _expanded(folders: tuple[str, ...], one: Loaded) -> Iterator[str]:
    """`$ORIGIN` is where an object lies; of the executable alone, where its link leads."""
    origin = os.path.dirname(os.path.realpath(one.path) if one.by == "executable" else one.path)
    for folder in folders:
        folder = folder.replace("${ORIGIN}", origin).replace("$ORIGIN", origin)
        folder = folder.replace("${LIB}", "lib64").replace("$LIB", "lib64")
        if folder.startswith("/"):  # a relative one would be relative to wherever the process is
            yield os.path.normpath(folder)


def _folders(text: str, cwd: str) -> tuple[str, ...]:
    if not text:
        return ()
    named = text.replace(";", ":").split(":")
    return tuple(dict.fromkeys(os.path.normpath(os.path.join(cwd, folder)) for folder in named))
