"""One print for each name right under a site folder: what of its tree the packages there may depend on.

Always holds: equal prints mean that names, rows and digests below a name are what they were. The `source` print leaves
out what an import leaves behind (`.pyc` in `__pycache__`, the times of folders), the `whole` print nothing.
Never: looks at the disk.
"""

from __future__ import annotations

from array import array
from collections import defaultdict
from collections.abc import Iterator
from hashlib import sha256
from typing import Any, NamedTuple

from lockd.disk import Tree
from lockd.entries import Entries
from lockd.statcache import COLUMNS, ROW, Page, Record

CACHE = "__pycache__"
_TYPE, _FOLDER = 0o170000, 0o040000


class Print(NamedTuple):
    """What a name and all below it come to. source: empty where there is nothing but byte-code."""

    source: bytes
    whole: bytes


def prints(tree: Tree) -> dict[str, Print]:
    """The print of each name right under the root of a tree."""
    entries = tree.entries
    if not isinstance(entries, Entries):
        return {}
    record = entries.record()
    source: dict[str, Any] = defaultdict(lambda: sha256(record.nonce))
    whole: dict[str, Any] = defaultdict(lambda: sha256(record.nonce))
    for page in record.folders.get("", ()):
        for index, name in enumerate(page.listed()):
            whole[name].update(page.row(index))
            if name != CACHE:
                source[name].update(_row(page, index))
    for folder in sorted(record.folders):
        if folder:
            top, head = folder.partition("/")[0], _bytes(f"\0\0{folder}\0\0")
            for data in _whole(record, folder):
                whole[top].update(head + data)
            for data in _sources(record, folder):
                source[top].update(head + data)
    for path, digest in sorted(record.salted.items()):
        top = path.partition("/")[0]
        for state in (source[top], whole[top]):
            state.update(_bytes(f"\0\0{path}\0\0") + digest)
    return {top: Print(source[top].digest() if top in source else b"", state.digest()) for top, state in whole.items()}


def _whole(record: Record, folder: str) -> Iterator[bytes]:
    return (_bytes(page.names) + b"\0\0" + page.rows for page in record.folders[folder])


def _sources(record: Record, folder: str) -> Iterator[bytes]:
    """What of a folder counts for packages; nothing at all of one that holds byte-code alone."""
    is_cache = folder.endswith(f"/{CACHE}") or folder == CACHE
    for page in record.folders[folder]:
        folders = {index for index, mode in enumerate(array("q", page.rows)[::COLUMNS]) if mode & _TYPE == _FOLDER}
        if not folders and not (is_cache and ".pyc" in page.names):
            yield _bytes(page.names) + b"\0\0" + page.rows
            continue
        names, rows = [], []
        for index, name in enumerate(page.listed()):
            passing = name.endswith(".pyc") if is_cache else name == CACHE and index in folders
            if not passing:
                names.append(name)
                rows.append(_row(page, index))
        if names:
            yield _bytes("\0".join(names)) + b"\0\0" + b"".join(rows)


def _row(page: Page, index: int) -> bytes:
    """A folder is a folder, whenever something in it changed."""
    row = page.rows[index * ROW : (index + 1) * ROW]
    mode = array("q", row[:8])[0]
    return row[:8].ljust(ROW, b"\0") if mode & _TYPE == _FOLDER else row


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")
