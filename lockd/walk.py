"""Bring what is known of a tree up to date: stat every known name, list again the folders that changed.

Always holds: a folder whose stat identity is unchanged has the names it had, unless it changed within the clock's
grain before it was listed; then it is listed again. No link is followed below the root, no folder is entered that
`excluded` names, depth costs no stack. A folder that cannot be read is a trouble with its reason and is tried again
at the next look.
Never: opens a file, or builds an object a file where nothing changed.
"""

from __future__ import annotations

import errno
import os
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator

from lockd.hashing import GRAIN, reason
from lockd.pool import processors, scatter
from lockd.statcache import PAGE, ROW, Page, Record, joined, packed, unpacked

Excluded = Callable[[str], bool]
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_FORK_ABOVE = 5000  # names; below, a fork costs more than it brings
_GONE = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP)
_TYPE = 0o170000
_DIRECTORY = 0o040000

Placed = tuple[str, Page | None, int]  # a name, its page (None: no more), its index there
_END: Placed = ("", None, 0)

Change = tuple[str, int, bytes | None]  # folder, page number, its rows now; None: list the folder again


def refresh(
    record: Record, root: str, status: os.stat_result, excluded: Excluded, only: set[str] | None = None
) -> None:
    """Make the record say what is on disk. status: of the root. only: the folders to look at (hints); None: all."""
    device = status.st_dev
    stale = set(record.unsure)
    row = packed(row_of(status, device))
    if row != record.root_row:
        record.root_row = row
        record.touch()
        record.folders.setdefault("", [])
        stale.add("")
    looked = [folder for folder in record.folders if only is None or folder in only]
    for folder, number, rows in _changes(record, root, device, looked):
        if rows is None:
            stale.add(folder)
        elif folder in record.folders:  # it may have gone with its parent meanwhile
            _amend(record, folder, record.folders[folder][number], rows, stale)
    while stale:
        folder = stale.pop()
        if folder in record.folders:  # it may have gone with its parent meanwhile
            _list(record, root, device, folder, excluded, stale)


def row_of(status: os.stat_result, device: int) -> list[int]:
    """The columns of one row."""
    s = status
    return [s.st_mode, s.st_ino, s.st_size, s.st_mtime_ns, s.st_ctime_ns, s.st_nlink, s.st_dev - device]


def _changes(record: Record, root: str, device: int, folders: list[str]) -> Iterator[Change]:
    """Stat every known name of the folders, over all processors where it is worth a fork."""
    pages = [(folder, number) for folder in folders for number in range(len(record.folders[folder]))]
    names = sum(len(record.folders[folder][number].rows) // ROW for folder, number in pages)
    workers = processors() if names > _FORK_ABOVE else 1
    step = max(len(pages) // (workers * 8), 1) if workers > 1 else len(pages)
    chunks = [pages[start : start + step] for start in range(0, len(pages), step or 1)]
    for _, changes in scatter(len(chunks), lambda number: _checked(record, root, device, chunks[number]), workers):
        yield from changes


def _checked(record: Record, root: str, device: int, pages: list[tuple[str, int]]) -> list[Change]:
    """Those of the pages that are not what they were."""
    changes: list[Change] = []
    opened, descriptor = None, -1
    try:
        for folder, number in pages:
            page = record.folders[folder][number]
            if folder != opened:
                if descriptor >= 0:
                    os.close(descriptor)
                opened, descriptor = folder, _opened(root, folder)
            rows = _stated(page.listed(), descriptor, device) if descriptor >= 0 else None
            if rows != page.rows:
                changes.append((folder, number, rows))
    finally:
        if descriptor >= 0:
            os.close(descriptor)
    return changes


def _opened(root: str, folder: str) -> int:
    """A descriptor to stat names against.

    -1 when the folder is not there or not open to us, which listing it will explain.
    """
    try:
        return os.open(f"{root}/{folder}" if folder else root or "/", _FOLDER | os.O_PATH)
    except OSError:
        return -1


def _stated(names: list[str], descriptor: int, device: int) -> bytes | None:
    """The rows of the names; None when one of them cannot be had any more."""
    numbers: list[int] = []
    lstat = os.stat
    try:
        for name in names:
            s = lstat(name, dir_fd=descriptor, follow_symlinks=False)
            numbers += (s.st_mode, s.st_ino, s.st_size, s.st_mtime_ns, s.st_ctime_ns, s.st_nlink, s.st_dev - device)
    except OSError:
        return None
    return packed(numbers)


def _amend(record: Record, folder: str, page: Page, rows: bytes, stale: set[str]) -> None:
    """Take over changed rows: contents known before are forgotten, folders that changed are to be listed."""
    record.touch()
    old_rows, page.rows = page.rows, rows
    for index, name in enumerate(page.listed()):
        span = slice(index * ROW, index * ROW + ROW)
        if old_rows[span] != rows[span]:
            path = joined(folder, name)
            record.forget(path, page, index)
            _follow_folder(record, path, next(unpacked(rows[span]))[0], stale)


def _follow_folder(record: Record, path: str, mode: int, stale: set[str]) -> None:
    """A name came or changed: if it is a folder now it is to be listed, if it was one and is no more it is dropped."""
    if mode & _TYPE == _DIRECTORY:
        record.folders.setdefault(path, [])
        stale.add(path)
    elif path in record.folders:
        record.drop(path)


def _list(record: Record, root: str, device: int, folder: str, excluded: Excluded, stale: set[str]) -> None:
    """List one folder anew, keep the digests of what stayed the same, and say which folders below have to be listed."""
    now = time.time_ns()
    before = _placed(record.folders[folder])
    pages = record.folders[folder] = []
    _clear_troubles(record, folder)
    record.touch()
    record.troubles.pop(folder, None)
    record.unsure.discard(folder)
    try:
        descriptor = os.open(f"{root}/{folder}" if folder else root or "/", _FOLDER)
    except OSError as error:
        _failed(record, folder, error)
    else:
        try:
            if os.fstat(descriptor).st_ctime_ns > now - GRAIN:
                record.unsure.add(folder)
            fresh = _pages(record, folder, descriptor, device, excluded)
            pages.extend(_settled(record, folder, fresh, before, stale))
        except OSError as error:  # the listing itself broke off: what there is of it cannot be trusted to be all
            _failed(record, folder, error)
        finally:
            os.close(descriptor)
    for name, _, _ in before:  # of a listing that failed; else it is used up
        _went(record, joined(folder, name))


def _failed(record: Record, folder: str, error: OSError) -> None:
    record.unsure.add(folder)
    if error.errno in _GONE and folder:  # it went between its parent's look and now: the parent has to be listed again
        record.unsure.add(folder.rpartition("/")[0])
        record.troubles[folder] = "changes while it is read"
    else:
        record.troubles[folder] = reason(error)


def _pages(record: Record, folder: str, descriptor: int, device: int, excluded: Excluded) -> Iterator[Page]:
    names = [name for name in os.listdir(descriptor) if not excluded(joined(folder, name))]
    names.sort(reverse=True)
    while names:
        part = names[: -PAGE - 1 : -1]
        del names[-PAGE:]  # given back as they are packed: a million names are most of the memory
        rows = _stated(part, descriptor, device)
        if rows is None:
            part, rows = _stated_singly(record, folder, part, descriptor, device)
        if part:
            yield Page("\0".join(part), rows)


def _stated_singly(
    record: Record, folder: str, names: list[str], descriptor: int, device: int
) -> tuple[list[str], bytes]:
    """Rows of those names that can be had; the others are gone by now, or troubles."""
    kept: list[str] = []
    numbers: list[int] = []
    for name in names:
        try:
            numbers += row_of(os.stat(name, dir_fd=descriptor, follow_symlinks=False), device)
        except OSError as error:
            record.unsure.add(folder)
            if error.errno != errno.ENOENT:
                record.troubles[joined(folder, name)] = reason(error)
        else:
            kept.append(name)
    return kept, packed(numbers)


def _clear_troubles(record: Record, folder: str) -> None:
    for path in [path for path in record.troubles if path.rpartition("/")[0] == folder and path not in record.folders]:
        del record.troubles[path]


def _settled(
    record: Record, folder: str, pages: Iterator[Page], before: Iterator[Placed], stale: set[str]
) -> Iterator[Page]:
    """Pages of a listing compared with the one before, both sorted, name by name.

    Digests of what stayed the same are kept, what changed is forgotten, what went is dropped.
    """
    old = _END
    for page in pages:
        if old is _END:
            old = next(before, _END)
        for index, name in enumerate(page.listed()):
            while old[1] is not None and old[0] < name:
                _went(record, joined(folder, old[0]))
                old = next(before, _END)
            if old[0] != name or old[1] is None:
                _came(record, folder, page, index, name, stale)
                continue
            if old[1].row(old[2]) != page.row(index):
                _came(record, folder, page, index, name, stale)
            elif digest := old[1].digest(old[2]):
                page.keep(index, digest)
            old = next(before, _END)
        yield page
    if old[1] is not None:
        _went(record, joined(folder, old[0]))


def _placed(pages: list[Page]) -> Iterator[Placed]:
    """Every name of the pages with its place; a page is let go when it is used up."""
    while pages:
        page = pages.pop(0)
        for index, name in enumerate(page.listed()):
            yield name, page, index


def _came(record: Record, folder: str, page: Page, index: int, name: str, stale: set[str]) -> None:
    path = joined(folder, name)
    record.forget(path)
    _follow_folder(record, path, next(unpacked(page.row(index)))[0], stale)


def _went(record: Record, path: str) -> None:
    record.forget(path)
    if path in record.folders:
        record.drop(path)


def folders_of(record: Record, root: str, paths: Iterable[str]) -> set[str]:
    """The known folders, relative to the root, in which changes of the given absolute paths show.

    The path's own, and the nearest one above it that is known: what is new is found from there (`newcomers`).
    """
    below = root + "/"
    found = set()
    for path in paths:
        if path != root and not path.startswith(below):
            continue
        relative = path[len(below) :]
        found.add(relative)
        while relative:
            relative = relative.rpartition("/")[0]
            found.add(relative)
            if relative in record.folders:
                break
    return found & record.folders.keys()


def newcomers(record: Record, root: str, paths: Iterable[str]) -> set[str]:
    """The known folders, relative to the root, below which a path names something that they were not listed with.

    Rows of known names tell nothing of it, and the folder's own row stands with its parent: they are to be listed.
    """
    below, wanted = root + "/", defaultdict[str, set[str]](set)
    for path in paths:
        folder = path[len(below) :] if path.startswith(below) else ""
        while folder:
            folder, _, name = folder.rpartition("/")
            if folder in record.folders:
                wanted[folder].add(name)
                break
    return {folder for folder, new in wanted.items() if new - _names(record, folder)}


def _names(record: Record, folder: str) -> set[str]:
    return {name for page in record.folders[folder] for name in page.listed()}
