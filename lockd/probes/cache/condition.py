"""The condition of a cache, told to people: half-written objects, what was planted, and where it lies.

Always holds: only told, never compared; a line names the entry and what is wrong with it. A header is read from at
most 64 KiB.
Never: follows a link, opens what is not a regular file, or runs anything of a cache.
"""

from __future__ import annotations

import os
import re
import stat
import struct
from collections.abc import Iterable, Iterator

from lockd import globs
from lockd.facts import shown
from lockd.probes import paths

LINES = 5  # entries that one told line names
_HEADER = 1 << 16
_NETWORK = re.compile(r"nfs\d?|cifs|smb3?|9p|ceph|lustre|gpfs|beegfs|afs|glusterfs|fuse(\..*)?")
_OCTAL = re.compile(r"\\([0-7]{3})")
_TMPFILES = ("/etc/tmpfiles.d", "/run/tmpfiles.d", "/usr/local/lib/tmpfiles.d", "/usr/lib/tmpfiles.d")
_WIPED = ("/tmp", "/var/tmp", "/run", "/dev/shm")  # noqa: S108  (named, not used)


# -- objects


def half_written(root: str, sizes: Iterable[tuple[str, int]]) -> Iterator[str]:
    """The shared objects and GPU binaries that are no whole ELF file: `ab/x.so: 10 of 65,536 bytes`."""
    lines = (_object(root, path, size) for path, size in sizes if path.endswith((".so", ".cubin", ".o")))
    return (line for line in lines if line)


def _object(root: str, path: str, size: int) -> str:
    try:
        descriptor = paths.open_regular(os.path.join(root, path))
        try:
            header = os.read(descriptor, _HEADER)
        finally:
            os.close(descriptor)
    except OSError as error:
        return f"{shown(path)}: {paths.reason(error)}"
    wanted = elf_size(header)
    if wanted is None:
        return (
            f"{shown(path)}: not an ELF file" if header[:4] != b"\x7fELF" else f"{shown(path)}: cut inside its header"
        )
    return f"{shown(path)}: {size:,} of {wanted:,} bytes" if size < wanted else ""


def elf_size(header: bytes) -> int | None:
    """How long an ELF file must be at least, by its own tables (ELF gABI). None: no ELF header, or not all of it."""
    if header[:4] != b"\x7fELF" or len(header) < 6 or header[4] not in (1, 2) or header[5] not in (1, 2):
        return None
    order = "<" if header[5] == 1 else ">"
    wide = header[4] == 2
    layout = struct.Struct(order + ("16xHHIQQQIHHHHHH" if wide else "16xHHIIIIIHHHHHH"))
    if len(header) < layout.size:
        return None
    _, _, _, _, segments, sections, _, _, entry, number, section, count, _ = layout.unpack_from(header)
    ends = [layout.size, sections + section * count if sections else 0]
    program = struct.Struct(order + ("4x4xQ16xQ" if wide else "4xI8xI"))
    for index in range(number):
        start = segments + index * entry
        if start + program.size <= len(header):
            offset, length = program.unpack_from(header, start)
            ends.append(offset + length)
    return max(ends)


# -- who put it there


def planted(path: str, root: str, entries: Iterable[tuple[str, str]], owner: int) -> tuple[str, ...]:
    """What speaks of another hand: a root of another owner or that all may write, links, entries of others.

    path: as the policy names it; root: the folder that it leads to; entries: (relative path, kind).
    """
    status = os.stat(root)
    lines = [f"{shown(path)} is a link to {shown(os.path.realpath(path))}"] if os.path.islink(path) else []
    if status.st_uid not in (owner, 0):
        lines.append(f"{shown(root)} belongs to {paths.owner(status)}")
    if status.st_mode & stat.S_IWOTH:
        lines.append(f"anybody may write in {shown(root)}")
    return few([*lines, *_foreign(root, entries, status.st_uid)])


def _foreign(root: str, entries: Iterable[tuple[str, str]], uid: int) -> Iterator[str]:
    for path, kind in entries:
        status = paths.lstat(os.path.join(root, path))
        if not isinstance(status, os.stat_result):
            continue
        if kind == "l":
            yield f"{shown(path)} is a link"
        elif kind == "o":
            yield f"{shown(path)} is a {paths.file_type(status.st_mode)}"
        if status.st_uid != uid:
            yield f"{shown(path)} belongs to {paths.owner(status)}"


def few(lines: list[str]) -> tuple[str, ...]:
    """The first of many lines, the others counted."""
    more = (f"and {len(lines) - LINES:,} more",) if len(lines) > LINES else ()
    return (*lines[:LINES], *more)


# -- where it lies


def place(root: str) -> str:
    """What is to be known of where a folder lies: a network file system, or one that is cleared. Empty: nothing."""
    kind, point = file_system(root)
    if _NETWORK.fullmatch(kind):
        return f"on {kind} ({shown(point)})"
    if kind in ("tmpfs", "ramfs"):
        return f"on {kind} ({shown(point)}): gone after a reboot"
    return cleared(root) if root.startswith(tuple(f"{folder}/" for folder in _WIPED)) or root in _WIPED else ""


def file_system(path: str, table: str = "/proc/self/mountinfo") -> tuple[str, str]:
    """Type and mount point of the file system that a path lies on; empty strings where that cannot be told."""
    best = ("", "")
    try:
        with open(table, encoding="utf-8", errors="surrogateescape") as lines:
            for line in lines:
                left, _, right = line.partition(" - ")
                point = _OCTAL.sub(lambda match: chr(int(match[1], 8)), left.split(" ")[4])
                inside = path == point or path.startswith(point.rstrip("/") + "/")
                if inside and len(point) >= len(best[1]):  # the last of two at one point lies on top
                    best = (right.split(" ")[0], point)
    except (OSError, IndexError):
        return "", ""
    return best


def cleared(path: str, folders: tuple[str, ...] = _TMPFILES) -> str:
    """What systemd-tmpfiles does to a path: `cleared at boot (D /tmp in …/tmp.conf)`. Empty: nothing."""
    aged = ""
    for file, line in _tmpfiles(folders):
        kind, target, *rest = [*line.split(), ""]
        kind = kind.rstrip("!-=~^+$?")
        if not _names(target, path):
            continue
        if kind in ("D", "R"):
            return f"cleared at boot ({kind} {shown(target)} in {shown(file)})"
        age = rest[3] if len(rest) > 4 else "-"
        if kind in ("d", "e", "q", "Q", "v") and age not in ("-", ""):
            aged = f"files older than {shown(age)} are removed ({kind} {shown(target)} in {shown(file)})"
        elif kind in ("x", "X"):
            return ""
    return aged


def _names(target: str, path: str) -> bool:
    """Does the path of a line name this one, or a folder above it? A pattern is compiled only where it could."""
    if not paths.is_glob(target):
        return target != "" and (path == target or path.startswith(target.rstrip("/") + "/"))
    return path.startswith(globs.literal_root(target)) and globs.matches((target,))(path.lstrip("/"))


def _tmpfiles(folders: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    """Each line of systemd's tmpfiles.d with its file; of one name the first folder's file counts."""
    files: dict[str, str] = {}
    for folder in folders:
        try:
            names = os.listdir(folder)
        except OSError:
            continue
        for name in names:
            if name.endswith(".conf"):
                files.setdefault(name, os.path.join(folder, name))
    for name in sorted(files):
        try:
            with open(files[name], encoding="utf-8", errors="replace") as lines:
                yield from ((files[name], line) for line in lines if line.strip() and line[0] not in "#;")
        except OSError:
            continue
