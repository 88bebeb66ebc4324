"""The file system as the probes see it: trees without following links, digests through a stat cache, bounded reads.

Always holds: nothing is opened that is not a regular file; no link is followed; names are surrogateescape strings as `os` gives
them; what could not be read is a `Trouble` with its reason; output order is sorted. A digest comes from the cache only while file
system, inode, size, mtime_ns, ctime_ns and mode are the same, it was not racy, and no writable mapping could live (field notes).
Never: writes outside the state folder, crosses into what `exclude` names, or caches a digest that it could not be sure of.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple


class Entry(NamedTuple):
    """One name in a tree. kind: f(ile), d(irectory), l(ink) or o(ther: FIFO, socket, device). Times in ns."""

    kind: str
    mode: int
    size: int
    mtime: int
    ctime: int
    inode: int
    links: int


class Trouble(NamedTuple):
    """Something that could not be read: the path as the OS gave it, and the reason in words."""

    path: str
    reason: str


@dataclass(frozen=True)
class Tree:
    """What lies under `root` (absolute), by path relative to it, sorted; folders included, the root itself left out.

    stamp: changes whenever any name, kind, size, time, inode or mode in it does, or a file whose digest cannot be trusted is there.
    missing: the root is not there. A root that is a link or a file is a Trouble.
    """

    root: str
    entries: Mapping[str, Entry]
    troubles: tuple[Trouble, ...]
    stamp: str
    missing: bool = False


class Disk:
    """One look at the file system. Later: the stat cache, processes, progress. `full` reads every byte again."""

    def __init__(self, *, full: bool = False) -> None:
        self.full = full

    def tree(self, root: str, exclude: tuple[str, ...] = ()) -> Tree:
        """Everything under `root`. `exclude`: globs relative to root, `**` crosses folders; an excluded folder is not entered."""
        raise NotImplementedError

    def digests(self, paths: Iterable[str]) -> dict[str, str | Trouble]:
        """sha256 hex of each regular file (absolute paths, no link followed in the last component), in parallel."""
        raise NotImplementedError

    def entry(self, path: str) -> Entry | Trouble | None:
        """lstat of one path. None: not there."""
        raise NotImplementedError

    def read(self, path: str, limit: int = 16 << 20) -> bytes | Trouble:
        """The bytes of one regular file, no more than `limit` (a larger one is a Trouble)."""
        raise NotImplementedError
