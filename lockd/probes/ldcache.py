"""`/etc/ld.so.cache` read as data, and the folders that the dynamic loader knows without it.

Format: glibc's `elf/cache.c`, "glibc-ld.so.cache1.1", by itself or behind the older "ld.so-1.7.0" table.
Always holds: paths are in the cache's own order, which is the loader's: of two files of one name the first that is
there is taken. A cache that is cut short gives what can be read of it and says so.
Never: runs ldconfig.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from typing import NamedTuple

_OLD, _NEW = b"ld.so-1.7.0\0", b"glibc-ld.so.cache1.1"
_HEADER = 48  # magic, nlibs, len_strings, flags, padding, extension offset, three unused words
_ENTRY = struct.Struct("<iIIIQ")  # flags, key, value, osversion, hwcap
_OLD_HEADER, _OLD_ENTRY = 16, 12
_LARGEST = 64 << 20
DEFAULT = (  # the folders of glibc as Debian, Red Hat and Arch build it, in the loader's order
    "/lib/x86_64-linux-gnu",
    "/usr/lib/x86_64-linux-gnu",
    "/lib/aarch64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu",
    "/lib64",
    "/usr/lib64",
    "/lib",
    "/usr/lib",
)


class Cache(NamedTuple):
    """name → paths in the loader's order. problem: why this is not all; empty when it is."""

    paths: dict[str, tuple[str, ...]]
    problem: str = ""


def read(root: str = "/") -> Cache:
    """The loader's cache below a root. No cache at all is an empty one."""
    try:
        with open(os.path.join(root, "etc/ld.so.cache"), "rb") as file:
            return parse(file.read(_LARGEST))
    except FileNotFoundError:
        return Cache({})
    except OSError as error:
        return Cache({}, f"/etc/ld.so.cache: {error.strerror}")


def parse(content: bytes) -> Cache:
    """The bytes of a cache."""
    start = content.find(_NEW) if content.startswith((_OLD, _NEW)) else -1
    if start < 0:
        return Cache({}, "/etc/ld.so.cache has a format that is not known")
    if len(content) < start + _HEADER:
        return Cache({}, "/etc/ld.so.cache is cut short")
    (count,) = struct.unpack_from("<I", content, start + len(_NEW))
    paths: dict[str, list[str]] = {}
    problem = ""
    for number in range(count):
        at = start + _HEADER + number * _ENTRY.size
        if at + _ENTRY.size > len(content):
            problem = "/etc/ld.so.cache is cut short"
            break
        _, key, value, _, _ = _ENTRY.unpack_from(content, at)
        name, path = _string(content, start + key), _string(content, start + value)
        if name and path.startswith("/"):
            paths.setdefault(name, []).append(path)
        else:
            problem = "/etc/ld.so.cache holds entries that cannot be read"
    return Cache({name: tuple(dict.fromkeys(listed)) for name, listed in paths.items()}, problem)


def _string(content: bytes, start: int) -> str:
    end = content.find(b"\0", start) if 0 <= start < len(content) else -1
    return content[start:end].decode("utf-8", "surrogateescape") if end >= 0 else ""


def candidates(cache: Cache, name: str) -> Iterator[str]:
    """Where the loader looks for a name that no variable and no RPATH finds: the cache, then its own folders."""
    yield from cache.paths.get(name, ())
    yield from (f"{folder}/{name}" for folder in DEFAULT)
