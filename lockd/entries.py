"""A tree's entries as a mapping that makes its objects when they are asked for.

Always holds: iteration is in plain string order of the relative paths, one page of names in memory at a time; folders
are included.
Never: looks at the disk, or keeps an object a file.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import ItemsView, Iterator, Mapping
from heapq import merge
from typing import NamedTuple

from lockd.statcache import Page, Record, joined, unpacked

_KINDS = {0o100000: "f", 0o040000: "d", 0o120000: "l"}
_INDEXED = 64  # pages whose names are kept as a dict for the next question

_Step = tuple[str, tuple[int, ...] | None]


class Entry(NamedTuple):
    """One name in a tree. kind: f(ile), d(irectory), l(ink) or o(ther: FIFO, socket, device). Times in ns."""

    kind: str
    mode: int
    size: int
    mtime: int
    ctime: int
    inode: int
    links: int


def entry_of(row: tuple[int, ...]) -> Entry:
    """The entry of a row's numbers."""
    mode, inode, size, mtime, ctime, links, _ = row
    return Entry(_KINDS.get(mode & 0o170000, "o"), mode, size, mtime, ctime, inode % (1 << 64), links)


class Finder:
    """Finds paths in a record for as long as its names stay the same (one look)."""

    def __init__(self, record: Record) -> None:
        self._record = record
        self._firsts: dict[str, list[str]] = {}
        self._pages: dict[tuple[str, int], dict[str, int]] = {}

    def find(self, path: str) -> tuple[Page, int] | None:
        """The page and index of a relative path; None when it is not in the tree."""
        folder, _, name = path.rpartition("/")
        pages = self._record.folders.get(folder)
        if not pages or not name or path.startswith("/"):
            return None
        number = bisect_right(self._firsts_of(folder, pages), name) - 1 if len(pages) > 1 else 0
        if number < 0:
            return None
        index = self._indexed(folder, number, pages[number]).get(name)
        return None if index is None else (pages[number], index)

    def _firsts_of(self, folder: str, pages: list[Page]) -> list[str]:
        if folder not in self._firsts:
            self._firsts[folder] = [page.listed()[0] for page in pages]
        return self._firsts[folder]

    def _indexed(self, folder: str, number: int, page: Page) -> dict[str, int]:
        found = self._pages.get((folder, number))
        if found is None:
            if len(self._pages) >= _INDEXED:
                self._pages.clear()
            found = {name: index for index, name in enumerate(page.listed())}
            self._pages[folder, number] = found
        return found


class Entries(Mapping[str, Entry]):
    """Relative path → Entry, sorted by path."""

    def __init__(self, record: Record, finder: Finder, tops: frozenset[str] | None = None) -> None:
        self._record, self._finder, self._tops = record, finder, tops

    def within(self, tops: frozenset[str]) -> Entries:
        """The same tree, of which only these names right under the root, and what is below them, come up by
        themselves; all of it still is found when asked for."""
        return Entries(self._record, self._finder, tops)

    def record(self) -> Record:
        """The packed pages behind, to be read only."""
        return self._record

    def __getitem__(self, path: str) -> Entry:
        found = self._finder.find(path)
        if found is None:
            raise KeyError(path)
        return entry_of(next(unpacked(found[0].row(found[1]))))

    def __len__(self) -> int:
        return self._record.files() if self._tops is None else sum(1 for _ in self)

    def __iter__(self) -> Iterator[str]:
        return (path for path, _ in _ordered(self._record, self._tops))

    def items(self) -> ItemsView[str, Entry]:
        """Pairs, without a search for each."""
        return _Items(self)

    def pairs(self) -> Iterator[tuple[str, Entry]]:
        """(path, entry), sorted by path."""
        return ((path, entry_of(row)) for path, row in _ordered(self._record, self._tops))


class _Items(ItemsView[str, Entry]):
    def __init__(self, entries: Entries) -> None:
        super().__init__(entries)
        self._entries = entries

    def __iter__(self) -> Iterator[tuple[str, Entry]]:
        return self._entries.pairs()


def _ordered(record: Record, tops: frozenset[str] | None) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Every path with its row.

    A folder's contents come where `folder/` sorts, which may be after other names (`a`, `a-b`, `a/b`).
    """
    waiting = [_steps(record, "", tops)]
    while waiting:
        step = next(waiting[-1], None)
        if step is None:
            waiting.pop()
        elif step[1] is None:
            waiting.append(_steps(record, step[0]))
        else:
            yield step[0], step[1]


def _steps(record: Record, folder: str, only: frozenset[str] | None = None) -> Iterator[_Step]:
    """The names of a folder as (path, row), and at its place (path, None) for each folder below, to be entered."""
    pages = record.folders.get(folder, [])
    pairs = [pair for pair in _named(pages) if pair[0] in only] if only is not None else None
    below = [f"{name}/" for name, row in (_named(pages) if pairs is None else pairs) if row[0] & 0o170000 == 0o040000]
    entered: list[tuple[str, tuple[int, ...] | None]] = [(name, None) for name in sorted(below)]
    named: Iterator[_Step] = iter(_named(pages) if pairs is None else pairs)
    for name, row in merge(named, entered, key=lambda step: step[0]) if entered else named:
        yield joined(folder, name[:-1] if row is None else name), row


def _named(pages: list[Page]) -> Iterator[tuple[str, tuple[int, ...]]]:
    return (pair for page in pages for pair in zip(page.listed(), unpacked(page.rows), strict=False))
