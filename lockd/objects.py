"""Kept contents: one compressed file for each sha256, in the state's folder.

Always holds: an object's bytes are its own, never a hard link or reflink of the live file; it was read back and its
digest checked before anything refers to it, and is checked again whenever it is given out. What one keeping wrote is
taken away again when it does not come to its end. Together objects stay within the quota.
Never: decides what is kept, or frees what somebody refers to (that is `gc`).
"""

from __future__ import annotations

import hashlib
import os
import re
import zlib
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from lockd.clock import stamp
from lockd.errors import LockdError, RefusedError, UsageError
from lockd.put import flush_all

if TYPE_CHECKING:
    from lockd.store import Store

QUOTA = "LOCKD_KEEP_QUOTA"
_LARGEST, _SHARE, _LEAST = 20 << 30, 4, 64 << 20  # bytes; a quarter of what is free; so much is kept in any case
_LEVEL = 1  # of zlib: a compile cache comes to 0.16 of its size, level 6 takes three times as long for 0.13
_PIECE = 1 << 20
_UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}


def folder_of(store: Store) -> str:
    """Where the objects of a store lie."""
    return os.path.join(os.path.dirname(store.path), "objects")


def path_of(store: Store, digest: str) -> str:
    return os.path.join(folder_of(store), digest[:2], digest)


def has(store: Store, digest: str) -> bool:
    """Is that content kept?"""
    return bool(store.rows("SELECT 1 FROM objects WHERE digest = ?", digest)) and os.path.exists(path_of(store, digest))


def pieces(store: Store, digest: str) -> Iterator[bytes]:
    """The content of an object. LockdError where it is gone or damaged, before or while it is given."""
    path = path_of(store, digest)
    hint = "it can't be restored from here; `--generation` or another source may hold it"
    try:
        with open(path, "rb") as file:
            yield from _inflated(iter(lambda: file.read(_PIECE), b""))
    except (OSError, zlib.error) as error:
        raise LockdError(f"kept content can't be read: {error}", where=path, hint=hint) from None


def whole(store: Store, digest: str) -> bytes:
    """The same at once, its digest checked."""
    data = b"".join(pieces(store, digest))
    if hashlib.sha256(data).hexdigest() != digest:
        raise LockdError("kept content is damaged", where=path_of(store, digest), hint="another source may hold it")
    return data


def _inflated(parts: Iterable[bytes]) -> Iterator[bytes]:
    inflate = zlib.decompressobj()
    for part in parts:
        while part:
            yield inflate.decompress(part, _PIECE)
            part = inflate.unconsumed_tail
    yield inflate.flush()
    if not inflate.eof:
        raise zlib.error("it ends too early")


class Keeping:
    """Contents on their way into the store: `add` them, then `finish`, then `record` them inside a transaction.

    Used in a `with`: what was written but not recorded when it ends is taken away again.
    """

    def __init__(self, store: Store, quota: int | None = None) -> None:
        self._store, self._folder = store, folder_of(store)
        self._new: dict[str, tuple[int, int]] = {}  # digest → size, stored
        stored = store.rows("SELECT coalesce(sum(stored), 0) FROM objects")[0][0]
        os.makedirs(self._folder, mode=0o700, exist_ok=True)
        self._left = (quota if quota is not None else quota_of(self._folder, int(stored))) - int(stored)
        self._recorded = False

    def __enter__(self) -> Keeping:
        return self

    def __exit__(self, *_: object) -> None:
        if not self._recorded:
            self.discard()

    @property
    def added(self) -> tuple[int, int]:
        """Bytes that were new, and what they take."""
        return sum(size for size, _ in self._new.values()), sum(stored for _, stored in self._new.values())

    def known(self, digest: str) -> bool:
        return digest in self._new or has(self._store, digest)

    def add_bytes(self, data: bytes) -> str:
        """Keep bytes; gives their digest."""
        digest = hashlib.sha256(data).hexdigest()
        return digest if self.known(digest) else self._add(iter((data,)))

    def add(self, descriptor: int) -> str:
        """Keep what an open file holds from its start on; gives the digest of what was read."""
        return self._add(iter(lambda: os.read(descriptor, _PIECE), b""))

    def _add(self, parts: Iterator[bytes]) -> str:
        aside = os.path.join(self._folder, f"{os.getpid()}.new")
        digest, size, deflate = hashlib.sha256(), 0, zlib.compressobj(_LEVEL)
        try:
            with open(aside, "wb") as file:
                os.chmod(aside, 0o600)
                for part in parts:
                    digest.update(part)
                    size += len(part)
                    file.write(deflate.compress(part))
                    self._check(file.tell())
                file.write(deflate.flush())
                stored = file.tell()
            self._check(stored)
            name = digest.hexdigest()
            if not self.known(name):
                os.makedirs(os.path.join(self._folder, name[:2]), mode=0o700, exist_ok=True)
                os.rename(aside, path_of(self._store, name))
                self._new[name] = (size, stored)
                self._left -= stored
        except OSError as error:
            hint = f"make room, or free kept content: lockd gc --keep N; {QUOTA} bounds it"
            raise LockdError(f"the content could not be kept: {error.strerror}", where=aside, hint=hint) from error
        finally:
            _unlink(aside)
        return name

    def _check(self, stored: int) -> None:
        if stored > self._left:
            what = "the kept content would go over its quota; nothing was recorded"
            hint = f"lockd gc --keep N frees what older generations keep; {QUOTA}=50G allows more; or keep = false"
            raise RefusedError(what, where=self._folder, hint=hint)

    def finish(self) -> None:
        """Bring all of it to the disk, and read it back."""
        if self._new:
            _sync(self._folder)
        for digest in self._new:
            self._read_back(digest)

    def _read_back(self, digest: str) -> None:
        found = hashlib.sha256()
        for piece in pieces(self._store, digest):
            found.update(piece)
        if found.hexdigest() != digest:
            raise LockdError("content was not kept as it is", where=path_of(self._store, digest))

    def record(self) -> None:
        """Make the objects known, inside the caller's transaction."""
        for digest, (size, stored) in self._new.items():
            row = (digest, size, stored, stamp())
            self._store.change("INSERT OR REPLACE INTO objects VALUES (?, ?, ?, ?)", *row)

    def keep(self) -> None:
        """What was recorded is there to stay: the transaction is through."""
        self._recorded = True

    def discard(self) -> None:
        """Take away what nobody knows of."""
        for digest in self._new:
            if not self._store.rows("SELECT 1 FROM objects WHERE digest = ?", digest):
                _unlink(path_of(self._store, digest))


def quota_of(folder: str, stored: int) -> int:
    """How many bytes the objects may take: `LOCKD_KEEP_QUOTA`, else 20 GiB or a quarter of the room that there is."""
    asked = os.environ.get(QUOTA)
    if asked:
        match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([kmgt]?)(?:i?b)?", asked.strip().lower())
        if match is None:
            raise UsageError(f"{asked!r} is no size", where=QUOTA, hint="bytes, or a number with K, M, G or T")
        return int(float(match[1]) * _UNITS[match[2]])
    room = os.statvfs(folder)
    return max(_LEAST, min(_LARGEST, (room.f_bavail * room.f_frsize + stored) // _SHARE))


def _sync(folder: str) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        flush_all(descriptor)
    finally:
        os.close(descriptor)


def _unlink(path: str) -> None:
    try:
        os.unlink(path)
    except FileNotFoundError:
        pass
