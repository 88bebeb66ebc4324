"""What of the wanted rows is not so on disk now.

Always holds: a file is compared by its digest, a link by its text; what lies below a folder that is to be replaced
counts as not there. Permission bits count only as far as whether a file may be executed, unless all are asked for.
Never: writes, or keeps a digest that the disk layer did not vouch for.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator
from typing import Any

from lockd.disk import Disk
from lockd.place import FILE, FOLDER, LINK, NOTHING, Row, row_of
from lockd.plain import dataclass


@dataclass(frozen=True)
class Act:
    """One path: what shall be there, and where its bytes come from. staged: a file that holds them; "": an object."""

    row: Row
    source: str
    staged: str = ""


def pending(rows: Iterable[Row], disk: Disk, source: str, *, strict: bool = False) -> Iterator[Act]:
    """The rows that are not so on disk now. strict: permission bits count, not only whether a file may be executed."""
    listed = list(rows)
    there = {row.path: _status(row.path) for row in listed}
    same = [row.path for row in listed if row.kind == FILE and _is_like(row, there[row.path])]
    digests = disk.digests(same) if same else {}
    replaced = {row.path for row in listed if row.kind == FOLDER and not _is_kind(there[row.path], FOLDER)}
    for row in listed:
        status = None if replaced and _is_under(row.path, replaced) else there[row.path]
        if not _is_so(row, status, digests.get(row.path), strict):
            yield Act(row, source)


def _is_under(path: str, folders: set[str]) -> bool:
    while path not in ("", "/"):
        path = os.path.dirname(path)
        if path in folders:
            return True
    return False


def _status(path: str) -> os.stat_result | None:
    try:
        return os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return None


def _is_kind(status: os.stat_result | None, kind: str) -> bool:
    return status is not None and row_of("", status).kind == kind


def _is_like(row: Row, status: os.stat_result | None) -> bool:
    return status is not None and stat.S_ISREG(status.st_mode) and status.st_size == row.size


def _is_so(row: Row, status: os.stat_result | None, digest: Any, strict: bool) -> bool:
    if row.kind == NOTHING or status is None:
        return row.kind == NOTHING and status is None
    if not _is_kind(status, row.kind):
        return False
    if row.kind == LINK:
        return os.readlink(row.path) == row.content
    if row.kind != FILE:
        return True
    bits = 0o777 if strict else 0
    modes = (row.mode & bits, bool(row.mode & 0o111)), (status.st_mode & bits, bool(status.st_mode & 0o111))
    return digest == row.content and modes[0] == modes[1]
