"""Bytes of regular files → sha256, one file safely or many in parallel.

Always holds: what is opened is a regular file by its own lstat and fstat, never through a link, never blocking. A
digest is of one
state of the file: stat before and after are equal, or it is read again, or it is a trouble. `trusted` says that the
digest will hold for as long as the stat identity stays the same (see `_read_state`). Memory is one buffer a worker.
Never: decides what has to be hashed, remembers a digest, or changes a file's access time where that can be helped.
"""

from __future__ import annotations

import errno
import fcntl
import os
import signal
import stat
import time
from collections.abc import Callable, Iterator, Sequence
from hashlib import sha256
from typing import NamedTuple

from lockd.pool import processors, scatter

# ns; file times come from a clock that ticks every 4-10 ms: what is younger may change and look the same
GRAIN = 20_000_000
Identity = tuple[int, int, int, int, int, int, int]  # mode, inode, size, mtime ns, ctime ns, links, device
Progress = Callable[[int, int], None]  # bytes done, bytes in all

_BUFFER = 1 << 20
_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY
_TRIES = 3
_FILE_COST = 50_000  # what opening and closing a file costs, in bytes hashed meanwhile
_FORK_ABOVE = 8 << 20  # bytes (files counted in) below which a fork costs more than it brings
_CHUNKS = 24  # chunks a worker
_KINDS = {stat.S_IFDIR: "a folder", stat.S_IFLNK: "a link", stat.S_IFIFO: "a FIFO", stat.S_IFSOCK: "a socket"}
_KINDS |= {stat.S_IFCHR: "a device", stat.S_IFBLK: "a device"}
# File systems that another machine, or a process behind FUSE, can change without this kernel's knowledge
_REMOTE = ("nfs", "cifs", "smb", "fuse", "9p", "ceph", "lustre", "gpfs", "beegfs", "afs", "virtiofs", "ocfs2", "gfs2")


class Hashed(NamedTuple):
    """One file's digest (32 bytes), the identity it belongs to, and whether it will hold while that identity does."""

    digest: bytes
    identity: Identity
    trusted: bool


def reason(error: OSError | ValueError) -> str:
    """An error of a call with a path in words, without the path. ValueError: a NUL or a surrogate that is no byte."""
    if isinstance(error, ValueError):
        return "no path that a file system can hold"
    if error.errno in (errno.ENOENT, errno.ENOTDIR):
        return "not there"
    if error.errno == errno.ELOOP:
        return "a link, or a loop of links"
    return (error.strerror or str(error)).lower()


def kind_of(mode: int) -> str:
    """What a mode is, in words."""
    return _KINDS.get(stat.S_IFMT(mode), "a file")


def identity_of(status: os.stat_result) -> Identity:
    """What has to stay the same for a file to count as the same."""
    return (
        status.st_mode,
        status.st_ino,
        status.st_size,
        status.st_mtime_ns,
        status.st_ctime_ns,
        status.st_nlink,
        status.st_dev,
    )


def remote_devices() -> frozenset[int] | None:
    """Devices of mounts that others can change behind this kernel's back. None: could not be read, so trust nothing."""
    try:
        with open("/proc/self/mountinfo", "rb") as file:
            rows = [line.split() for line in file]
    except OSError:
        return None
    remote = set()
    for row in rows:
        kind = row[row.index(b"-", 6) + 1].decode("ascii", "replace")
        if kind.startswith(_REMOTE):
            major, minor = row[2].split(b":")
            remote.add(os.makedev(int(major), int(minor)))
    return frozenset(remote)


def hash_file(path: str, remote: frozenset[int] | None) -> Hashed | str:
    """The digest of one regular file; a `str` is the reason why there is none."""
    found = _read_state(path, remote, _digest)
    return found if isinstance(found, str) else Hashed(found[0], found[1], found[2])


def read_file(path: str, limit: int, remote: frozenset[int] | None) -> tuple[bytes, Hashed] | str:
    """The bytes of one regular file and their digest; a `str` is the reason why there are none."""
    found = _read_state(path, remote, lambda descriptor, size: _bytes(descriptor, limit))
    if isinstance(found, str):
        return found
    content, identity, trusted = found
    if len(content) > limit:
        return too_large(limit)
    return content, Hashed(sha256(content).digest(), identity, trusted)


def too_large(limit: int) -> str:
    """The reason of `read_file` when the file is larger than it was to read."""
    return f"larger than {limit} bytes"


def _read_state(
    path: str, remote: frozenset[int] | None, read: Callable[[int, int], bytes]
) -> tuple[bytes, Identity, bool] | str:
    """Read one state of a file: (what `read` gave, identity, trusted).

    Trusted, when (1) nobody had it open for writing or mapped writable at the lease, so that every later write moves
    ctime; (2) its ctime is older than the clock's grain before the lease, so that a later ctime differs; (3) no other
    machine can write to it.
    """
    try:
        for _ in range(_TRIES):
            # Before the lease: what was written between the two is read after it, and moves the stat afterwards
            before = identity_of(os.lstat(path))
            if not stat.S_ISREG(before[0]):
                return f"{kind_of(before[0])}, not a regular file"
            now = time.time_ns()
            descriptor = _open(path)
            try:
                unwritten = _nobody_writes(descriptor)
                if not unwritten and not stat.S_ISREG(os.fstat(descriptor).st_mode):
                    continue  # it became something else since the lstat; a lease is granted on regular files alone
                content = read(descriptor, before[2])
                after = identity_of(os.fstat(descriptor))
            finally:
                os.close(descriptor)
            if before == after:
                local = remote is not None and before[6] not in remote
                return content, before, unwritten and local and before[4] < now - GRAIN
    except (OSError, ValueError) as error:
        return reason(error)
    return "changes while it is read"


def _open(path: str) -> int:
    try:
        return os.open(path, _FLAGS | os.O_NOATIME)
    except PermissionError:  # O_NOATIME is the owner's; a second refusal is a true one
        return os.open(path, _FLAGS)


def _nobody_writes(descriptor: int) -> bool:
    """No open or mapping can write to this file now.

    Only then does the kernel grant a read lease, which is handed back at once.
    """
    try:
        # A lease that somebody breaks sends SIGIO, which kills; SIGURG does nothing
        fcntl.fcntl(descriptor, fcntl.F_SETSIG, signal.SIGURG)
        fcntl.fcntl(descriptor, fcntl.F_SETLEASE, fcntl.F_RDLCK)
        fcntl.fcntl(descriptor, fcntl.F_SETLEASE, fcntl.F_UNLCK)
    except OSError:  # EAGAIN: a writer lives; EACCES: not ours; EINVAL: no leases on this file system
        return False
    return True


def _digest(descriptor: int, size: int) -> bytes:
    if size < _BUFFER:  # most files: one read; had it grown, the stat afterwards would say so
        content = os.read(descriptor, size + 1)
        if len(content) == size:
            return sha256(content).digest()
        os.lseek(descriptor, 0, os.SEEK_SET)
    state, buffer = sha256(), memoryview(bytearray(_BUFFER))
    while count := os.readv(descriptor, [buffer]):
        state.update(buffer[:count])
    return state.digest()


def _bytes(descriptor: int, limit: int) -> bytes:
    parts, left = [], limit + 1
    while left > 0 and (part := os.read(descriptor, min(left, _BUFFER))):
        parts.append(part)
        left -= len(part)
    return b"".join(parts)


def hash_files(
    files: Sequence[tuple[str, int]],
    remote: frozenset[int] | None,
    progress: Progress | None = None,
    expected: Callable[[int], bytes] | None = None,
) -> Iterator[tuple[int, Hashed | str]]:
    """(index, result) for each (path, size in bytes), as they come; the largest are begun first.

    expected: the digest that the file at an index is to have: those that have it, trusted, are left out, so
    that a worker's process sends nothing of them and this one need not take them in.
    """
    chunks = chunked([size for _, size in files])
    total = sum(size for _, size in files)
    busy = worth_forking(total, len(files))

    def work(number: int) -> list[tuple[int, tuple[bytes, Identity, bool] | str]]:
        results = ((index, hash_file(files[index][0], remote)) for index in chunks[number])
        if expected is not None:
            results = ((index, found) for index, found in results if not _is(found, expected(index)))
        return [(index, found if isinstance(found, str) else tuple(found)) for index, found in results]  # type: ignore[misc]

    tell = throttled(progress, total)
    for number, results in scatter(len(chunks), work, 0 if busy else 1):
        for index, found in results:
            yield index, found if isinstance(found, str) else Hashed(*found)
        tell(sum(files[index][1] for index in chunks[number]))


def worth_forking(size: int, count: int) -> bool:
    """Do so many bytes in so many files take longer than forking for them?"""
    return size + _FILE_COST * count > _FORK_ABOVE


def _is(found: Hashed | str, digest: bytes) -> bool:
    return isinstance(found, Hashed) and found.trusted and found.digest == digest


def chunked(sizes: list[int]) -> list[list[int]]:
    """Indices of files (sizes in bytes) in chunks of about equal cost.

    Costliest files first, each a chunk of its own where it is worth one.
    """
    fair = sum(size + _FILE_COST for size in sizes) // (processors() * _CHUNKS) + 1
    chunks: list[list[int]] = []
    filled = fair
    for index in sorted(range(len(sizes)), key=lambda index: -sizes[index]):
        if filled >= fair:
            chunks.append([])
            filled = 0
        chunks[-1].append(index)
        filled += sizes[index] + _FILE_COST
    return chunks


def throttled(progress: Progress | None, total: int) -> Callable[[int], None]:
    """Add up bytes and pass the sum on, at most ten times a second and at the end."""
    done, last = 0, 0.0

    def tell(size: int) -> None:
        nonlocal done, last
        done += size
        now = time.monotonic()
        if progress and (now - last >= 0.1 or done >= total):
            last = now
            progress(done, total)

    return tell
