"""Files read before anybody asks for their digests: processes hash a tree while this one works out what it means.

Always holds: what comes out is what `hashing.hash_file` gave in one of the processes. A file that could not be read,
or whose process died, does not come out, and is read, or its trouble told, when it is asked for.
Never: decides what is read or what is trusted, or outlives its `end`.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Iterator, Sequence

from lockd import hashing, pool
from lockd.hashing import Hashed, Progress

_ROW = struct.Struct("<B32s7q?")  # there, digest, identity, trusted


class Ahead:
    """The digests of `files` (path, size in bytes), begun. None are where nothing could be forked."""

    def __init__(self, files: Sequence[tuple[str, int]], remote: frozenset[int] | None) -> None:
        self._files, self._remote = files, remote
        self._chunks = hashing.chunked([size for _, size in files])
        self._rows = mmap.mmap(-1, max(1, _ROW.size * len(files)))  # anonymous and shared with what is forked
        self._begun = pool.begin(len(self._chunks), self._read)

    def _read(self, number: int) -> None:
        for index in self._chunks[number]:
            found = hashing.hash_file(self._files[index][0], self._remote)
            if isinstance(found, Hashed):
                try:
                    _ROW.pack_into(self._rows, _ROW.size * index, 1, found.digest, *found.identity, found.trusted)
                except struct.error:  # a number that no row holds: left out
                    pass

    def results(self, progress: Progress | None = None) -> Iterator[tuple[int, Hashed]]:
        """(index, result) of the files that were read, as they come; ends when all processes have."""
        if self._begun is None:
            return
        tell = hashing.throttled(progress, sum(size for _, size in self._files))
        for number in self._begun.done():
            for index in self._chunks[number]:
                there, digest, *rest = _ROW.unpack_from(self._rows, _ROW.size * index)
                if there:
                    yield index, Hashed(digest, tuple(rest[:7]), rest[7])
            tell(sum(self._files[index][1] for index in self._chunks[number]))

    def end(self) -> None:
        """Take the processes away."""
        if self._begun is not None:
            self._begun.end()
            self._begun = None
        self._rows.close()
