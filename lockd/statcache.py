"""What the disk layer knows of one tree between two looks, packed, and its file in the state folder.

Always holds: names and stat rows lie packed in pages (no object a file), so that a million files fit in memory and
load in a blink. A
digest in a page is trusted: it holds as long as its row does. What is not trusted stands in `untrusted` and is hashed
at every look. A cache file is written aside and renamed; one that is torn, foreign, of another format, user or file
system is as if it were not there.
Never: looks at the tree, or decides what is trusted.
"""

from __future__ import annotations

import gc
import marshal
import os
import stat
import sys
import time
from array import array
from collections.abc import Iterator
from hashlib import sha256
from typing import Any

from lockd.plain import dataclass, field

COLUMNS = 7  # mode, inode, size, mtime ns, ctime ns, links, device less the root's (0 but under a mount)
ROW = 8 * COLUMNS
DIGEST = 32
PAGE = 4096  # names a page
NO_DIGEST = bytes(DIGEST)
_MAGIC = b"lockd stat cache 1, python %d.%d\n" % sys.version_info[:2]  # marshal's format may differ between versions


class Page:
    """Up to PAGE names of one folder, sorted and joined by NUL, their rows, and digests (empty while none is known)."""

    __slots__ = ("digests", "names", "rows")

    def __init__(self, names: str, rows: bytes, digests: bytes | bytearray = b"") -> None:
        self.names, self.rows, self.digests = names, rows, digests

    def listed(self) -> list[str]:
        """The names, in order."""
        return self.names.split("\0")

    def digest(self, index: int) -> bytes:
        """The trusted digest of the name at `index`; empty when none is known."""
        found = bytes(self.digests[index * DIGEST : (index + 1) * DIGEST])
        return b"" if found == NO_DIGEST else found

    def keep(self, index: int, digest: bytes) -> None:
        """Take a trusted digest (or NO_DIGEST) for the name at `index`."""
        if not self.digests:
            if digest == NO_DIGEST:
                return
            self.digests = bytearray(DIGEST * (len(self.rows) // ROW))
        elif isinstance(self.digests, bytes):
            self.digests = bytearray(self.digests)
        self.digests[index * DIGEST : (index + 1) * DIGEST] = digest

    def row(self, index: int) -> bytes:
        """The packed row of the name at `index`."""
        return self.rows[index * ROW : (index + 1) * ROW]

    def is_file(self, index: int) -> bool:
        """Is the name at `index` a regular file?"""
        return stat.S_ISREG(array("q", self.row(index))[0])

    def size(self, index: int) -> int:
        """The size in bytes of the name at `index`."""
        return int(array("q", self.row(index))[2])


@dataclass
class Record:
    """One tree as it was last seen. Paths are relative to the root, which is "".

    unsure: folders to be listed again at the next look (they changed within the clock's grain, or could not be read).
    untrusted: digests that were right when read and must be read again at each look.
    salted: digests of files whose content changed while their row stayed the same; they are part of the stamp.
    nonce: made with the record, so that a stamp from a cache that was lost is never met again.
    dirty: the cache file says something else.
    """

    filesystem: int
    root_row: bytes = b""
    folders: dict[str, list[Page]] = field(default_factory=dict)
    unsure: set[str] = field(default_factory=set)
    troubles: dict[str, str] = field(default_factory=dict)
    untrusted: dict[str, bytes] = field(default_factory=dict)
    salted: dict[str, bytes] = field(default_factory=dict)
    nonce: bytes = field(default_factory=lambda: os.urandom(16))
    stamp: str = ""
    dirty: bool = True

    def touch(self) -> None:
        """Something that the stamp covers may have changed."""
        self.stamp = ""

    def stamped(self) -> str:
        """The stamp over everything seen, computed only when something changed."""
        if not self.stamp:
            state = sha256(self.nonce + self.root_row)
            for folder in sorted(self.folders):
                state.update(f"\0\0{folder}\0\0".encode("utf-8", "surrogateescape"))
                for page in self.folders[folder]:
                    state.update(page.names.encode("utf-8", "surrogateescape") + b"\0\0")
                    state.update(page.rows)
            state.update(
                repr((sorted(self.troubles.items()), sorted(self.salted.items()))).encode("utf-8", "backslashreplace")
            )
            self.stamp = state.hexdigest()
        return self.stamp

    def contents(self) -> tuple[object, ...]:
        """What a cache file must say besides the trusted digests; equal contents need no new file."""
        return self.stamped(), set(self.unsure), dict(self.untrusted)

    def files(self) -> int:
        """How many names are known."""
        return sum(len(page.rows) // ROW for pages in self.folders.values() for page in pages)

    def forget(self, path: str, page: Page | None = None, index: int = 0) -> None:
        """What was known of a file's content is no longer so."""
        self.untrusted.pop(path, None)
        self.salted.pop(path, None)
        if page is not None:
            page.keep(index, NO_DIGEST)

    def drop(self, folder: str) -> None:
        """A folder is gone, with all that was below it."""
        waiting = [folder]
        while waiting:
            gone = waiting.pop()
            self.unsure.discard(gone)
            self.troubles.pop(gone, None)
            for page in self.folders.pop(gone, ()):
                for name, row in zip(page.listed(), unpacked(page.rows), strict=False):
                    path = joined(gone, name)
                    self.forget(path)
                    self.troubles.pop(path, None)
                    if row[0] & 0o170000 == 0o040000:
                        waiting.append(path)


def joined(folder: str, name: str) -> str:
    """The path of a name in a folder, both relative to the root."""
    return f"{folder}/{name}" if folder else name


def unpacked(rows: bytes) -> Iterator[tuple[int, ...]]:
    """The rows of a page as tuples of COLUMNS numbers."""
    numbers = array("q")
    numbers.frombytes(rows)
    columns = iter(numbers)
    return zip(*[columns] * COLUMNS, strict=False)


def packed(numbers: list[int]) -> bytes:
    """Numbers of rows, COLUMNS each, as bytes.

    Those that need 64 unsigned bits (inodes of some file systems) wrap around.
    """
    try:
        return array("q", numbers).tobytes()
    except OverflowError:
        return array("q", [(number + (1 << 63)) % (1 << 64) - (1 << 63) for number in numbers]).tobytes()


def load(path: str, key: tuple[Any, ...], filesystem: int) -> Record | None:
    """The record in a cache file; None when there is none that can be used."""
    collecting = gc.isenabled()
    gc.disable()  # thousands of small objects that all stay: a collection among them finds nothing and costs a third
    try:
        fields = read_packed(path, key)
        if fields is None or fields[0] != filesystem:
            return None
        folders = {folder: [Page(*page) for page in pages] for folder, pages in fields[2].items()}
    finally:
        if collecting:
            gc.enable()
    record = Record(filesystem, fields[1], folders, *fields[3:])
    record.dirty = False
    return record


def store(path: str, key: tuple[Any, ...], record: Record) -> None:
    """Write the record's cache file: whole, or the old one stays."""
    folders = {
        folder: [(page.names, page.rows, bytes(page.digests)) for page in pages]
        for folder, pages in record.folders.items()
    }
    fields = (
        record.filesystem,
        record.root_row,
        folders,
        record.unsure,
        record.troubles,
        record.untrusted,
        record.salted,
    )
    write_packed(path, key, (*fields, record.nonce, record.stamped()))
    record.dirty = False


def read_packed(path: str, key: tuple[Any, ...]) -> Any:
    """What `write_packed` wrote under the same key; None when it is not there, torn, or another's."""
    try:
        with open(path, "rb", buffering=0) as file:
            data = file.read()
    except OSError:
        return None
    start = len(_MAGIC) + DIGEST
    body = memoryview(data)[start:]
    if data[: len(_MAGIC)] != _MAGIC or sha256(body).digest() != data[len(_MAGIC) : start]:
        return None
    found_key, fields = marshal.loads(body)  # noqa: S302  whole by its digest, in a folder of ours
    return fields if found_key == (*key, os.geteuid()) else None


def write_packed(path: str, key: tuple[Any, ...], fields: Any) -> None:
    """Marshal plain values to a file of this user's, aside and renamed, with a digest in front."""
    body = marshal.dumps(((*key, os.geteuid()), fields))
    aside = f"{path}.{os.getpid()}.tmp"
    descriptor = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        with open(descriptor, "wb", buffering=0) as file:
            for part in (_MAGIC + sha256(body).digest(), body):
                view = memoryview(part)
                while view:
                    view = view[file.write(view) :]
        os.rename(aside, path)
    except BaseException:
        os.unlink(aside)
        raise


def prune(folder: str, suffixes: tuple[str, ...], keep: int) -> None:
    """Remove the oldest files of these suffixes beyond `keep`, and what a killed writer left aside over an hour ago."""
    found: list[tuple[int, str]] = []
    with os.scandir(folder) as names:
        for name in names:
            try:
                written = name.stat(follow_symlinks=False).st_mtime_ns
            except OSError:  # another process prunes too
                continue
            if name.name.endswith(suffixes):
                found.append((written, name.path))
            elif name.name.endswith(".tmp") and written < time.time_ns() - 3600 * 10**9:
                found.append((0, name.path))
    found.sort(reverse=True)
    for _, path in found[keep:] + [pair for pair in found[:keep] if not pair[0]]:
        try:
            os.unlink(path)
        except OSError:
            pass
