"""The dynamic section of an ELF file: what it needs, where it says to look, what it calls itself.

Format: System V gABI, chapters 4 and 5. Only the program headers are used, which the loader itself goes by; section
headers may be stripped or lie.
Always holds: a few hundred bytes of the file are read, at offsets that are checked against its size; whatever does not
fit is a `Broken` with the reason. Both byte orders, both classes.
Never: maps or loads the file, opens what is not a regular file, or reads a whole string table (torch's has megabytes).
"""

from __future__ import annotations

import errno
import os
import struct
from typing import NamedTuple

from lockd.probes.paths import open_regular, reason

_LOAD, _DYNAMIC, _NOTE = 1, 2, 4  # types of program headers
_NEEDED, _STRTAB, _STRSZ, _SONAME, _RPATH, _RUNPATH, _FLAGS_1 = 1, 5, 10, 14, 15, 29, 0x6FFFFFFB
_NODEFLIB = 0x800
_LONGEST = 8192  # bytes of one string: an RPATH of many folders
_MOST = 4096  # entries of a dynamic section, program headers
_BUILD_ID = 3


class Elf(NamedTuple):
    """rpath, runpath: folders as they are written, `$ORIGIN` and all. machine: class, byte order and e_machine, which
    must be equal for one file to load another. build: the build id in hex, "" where there is none."""

    machine: tuple[int, int, int]
    soname: str
    needed: tuple[str, ...]
    rpath: tuple[str, ...]
    runpath: tuple[str, ...]
    no_default: bool
    build: str


class Broken(NamedTuple):
    """Why a file cannot be read as ELF."""

    reason: str


def read(path: str) -> Elf | Broken:
    """The dynamic section of a file; its links are followed."""
    try:
        descriptor = open_regular(os.path.realpath(path))
    except OSError as error:
        return Broken("not a regular file" if error.errno == errno.EINVAL else reason(error))
    except ValueError as error:  # a NUL in the path
        return Broken(str(error))
    try:
        return _read(descriptor, os.fstat(descriptor).st_size)
    except (struct.error, ValueError) as error:
        return Broken(f"broken ELF: {error}" if isinstance(error, ValueError) else "broken ELF: cut short")
    except OSError as error:
        return Broken(reason(error))
    finally:
        os.close(descriptor)


class _File(NamedTuple):
    """What all offsets go by. segments: (virtual address, offset, size in the file)."""

    descriptor: int
    size: int
    order: str
    wide: bool
    segments: tuple[tuple[int, int, int], ...]

    def take(self, offset: int, size: int) -> bytes:
        if offset < 0 or offset + size > self.size:
            raise ValueError("an offset beyond its end")
        return os.pread(self.descriptor, size, offset)

    def offset(self, address: int) -> int:
        for start, offset, size in self.segments:
            if start <= address < start + size:
                return address - start + offset
        raise ValueError("an address outside its segments")


def _read(descriptor: int, size: int) -> Elf | Broken:
    # 1. the header
    head = os.pread(descriptor, 64, 0)
    if head[:4] != b"\x7fELF":
        return Broken("no ELF file")
    if len(head) < 64:
        raise ValueError("cut short")
    wide, order = head[4] == 2, "<" if head[5] == 1 else ">"
    machine = struct.unpack_from(f"{order}H", head, 18)[0]
    start = struct.unpack_from(f"{order}{'Q' if wide else 'I'}", head, 32 if wide else 28)[0]
    entry, count = struct.unpack_from(f"{order}HH", head, 54 if wide else 42)
    if count > _MOST or entry < (56 if wide else 32):
        raise ValueError("a header of impossible numbers")
    # 2. the program headers
    plain = _File(descriptor, size, order, wide, ())
    table = plain.take(start, entry * count)
    headers = [_header(table, at * entry, order, wide) for at in range(count)]
    segments = tuple((address, offset, length) for kind, offset, address, length in headers if kind == _LOAD)
    file = _File(descriptor, size, order, wide, segments)
    # 3. the dynamic section, and what it names
    dynamic = next(((offset, length) for kind, offset, _, length in headers if kind == _DYNAMIC), None)
    tags = _tags(file, *dynamic) if dynamic else []
    build = next((one for kind, at, _, length in headers if kind == _NOTE and (one := _build(file, at, length))), "")
    return _elf((head[4], head[5], machine), file, tags, build)


def _header(table: bytes, at: int, order: str, wide: bool) -> tuple[int, int, int, int]:
    """type, offset, virtual address, size in the file."""
    if wide:
        kind, _, offset, address, _, length = struct.unpack_from(f"{order}IIQQQQ", table, at)
    else:
        kind, offset, address, _, length = struct.unpack_from(f"{order}IIIII", table, at)
    return kind, offset, address, length


def _tags(file: _File, offset: int, length: int) -> list[tuple[int, int]]:
    pair = struct.Struct(f"{file.order}{'QQ' if file.wide else 'II'}")
    content = file.take(offset, min(length, _MOST * pair.size))
    found = []
    for at in range(0, len(content) - pair.size + 1, pair.size):
        tag, value = pair.unpack_from(content, at)
        if tag == 0:
            break
        found.append((tag, value))
    return found


def _elf(machine: tuple[int, int, int], file: _File, tags: list[tuple[int, int]], build: str) -> Elf:
    known = dict(tags)
    base = file.offset(known[_STRTAB]) if _STRTAB in known else 0
    limit = known.get(_STRSZ, 0)

    def string(at: int) -> str:
        if at >= limit:
            raise ValueError("a name beyond its string table")
        piece = file.take(base + at, min(_LONGEST, limit - at, file.size - base - at))
        return piece.partition(b"\0")[0].decode("utf-8", "surrogateescape")

    def folders(tag: int) -> tuple[str, ...]:
        return tuple(string(known[tag]).split(":")) if tag in known else ()

    needed = tuple(string(value) for tag, value in tags if tag == _NEEDED)
    soname = string(known[_SONAME]) if _SONAME in known else ""
    no_default = bool(known.get(_FLAGS_1, 0) & _NODEFLIB)
    return Elf(machine, soname, needed, folders(_RPATH), folders(_RUNPATH), no_default, build)


def _build(file: _File, offset: int, length: int) -> str:
    """The build id among the notes of one segment."""
    content = file.take(offset, min(length, 4096))
    at = 0
    while at + 12 <= len(content):
        name, size, kind = struct.unpack_from(f"{file.order}III", content, at)
        begin = at + 12 + (name + 3) // 4 * 4
        if kind == _BUILD_ID and content[at + 12 : at + 16] == b"GNU\0":
            return content[begin : begin + size].hex()
        at = begin + (size + 3) // 4 * 4
    return ""
