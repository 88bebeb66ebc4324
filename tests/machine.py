"""A machine's files as the probes of GPUs, driver, loader and packages read them, made below a folder of the test."""

from __future__ import annotations

import os
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

OPEN = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  {}  Release Build  (root@host)\nGCC version: gcc 12\n"


@dataclass(frozen=True)
class Machine:
    """Files below `root`, which stands for `/`."""

    root: Path

    def write(self, path: str, content: str | bytes) -> Path:
        place = self.root / path.lstrip("/")
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(content if isinstance(content, bytes) else content.encode())
        return place

    def link(self, path: str, target: str) -> None:
        place = self.root / path.lstrip("/")
        place.parent.mkdir(parents=True, exist_ok=True)
        place.unlink(missing_ok=True)
        place.symlink_to(target)

    def module(self, version: str, flavour: str = OPEN) -> None:
        """The loaded kernel module."""
        self.write("proc/driver/nvidia/version", flavour.format(version))
        self.write("sys/module/nvidia/version", f"{version}\n")

    def gpus(self, number: int) -> None:
        """What the driver tells of its GPUs."""
        for index in range(number):
            self.write(f"proc/driver/nvidia/gpus/0000:{index:02x}:00.0/information", "Model: NVIDIA H200\n")

    def libraries(self, version: str, folder: str = "/usr/lib/x86_64-linux-gnu") -> None:
        """The user-space half, and the loader's cache that names it."""
        for name in ("libcuda", "libnvidia-ml"):
            self.write(f"{folder}/{name}.so.{version}", b"\x7fELF")
            self.link(f"{folder}/{name}.so.1", f"{name}.so.{version}")
        self.cache({f"{name}.so.1": [f"{folder}/{name}.so.1"] for name in ("libcuda", "libnvidia-ml")})

    def cache(self, names: Mapping[str, Sequence[str]]) -> None:
        self.write("etc/ld.so.cache", ld_so_cache([(name, path) for name in names for path in names[name]]))

    def dpkg(self, packages: Mapping[str, str], status: str = "install ok installed") -> None:
        """dpkg's status file: name → version."""
        stanzas = [
            f"Package: {name}\nStatus: {status}\nArchitecture: amd64\nVersion: {version}\nDescription: x\n more\n"
            for name, version in packages.items()
        ]
        self.write("var/lib/dpkg/status", "\n".join(stanzas))


def ld_so_cache(entries: Sequence[tuple[str, str]]) -> bytes:
    """The bytes that ldconfig would write (glibc 2.32 and later)."""
    head = b"glibc-ld.so.cache1.1"
    base = 48 + 24 * len(entries)
    strings, rows = b"", b""
    for name, path in entries:
        at = []
        for text in (name, path):
            at.append(base + len(strings))
            strings += os.fsencode(text) + b"\0"
        rows += struct.pack("<iIIIQ", 0x303, at[0], at[1], 0, 0)
    return head + struct.pack("<IIB3xI12x", len(entries), len(strings), 2, 0) + rows + strings


def elf(
    soname: str = "",
    needed: Sequence[str] = (),
    *,
    rpath: str = "",
    runpath: str = "",
    machine: int = 62,
    build: str = "",
    wide: bool = True,
) -> bytes:
    """A shared object of program headers, dynamic section and names alone: all that the loader's search goes by."""
    table = b"\0"
    tags: list[tuple[int, int]] = []
    named = [(1, name) for name in needed] + [(14, soname), (15, rpath), (29, runpath)]
    for tag, text in named:
        if text:
            tags.append((tag, len(table)))
            table += os.fsencode(text) + b"\0"
    word, header, entry = ("Q", 64, 56) if wide else ("I", 52, 32)
    note = struct.pack("<III", 4, len(build) // 2, 3) + b"GNU\0" + bytes.fromhex(build) if build else b""
    count = 3 if build else 2
    at = header + count * entry
    names_at, note_at = at, at + len(table)
    dynamic_at = note_at + len(note)
    tags += [(5, names_at), (10, len(table)), (0, 0)]
    dynamic = b"".join(struct.pack(f"<{word}{word}", *one) for one in tags)
    size = dynamic_at + len(dynamic)
    headers = [(1, 0, size), (2, dynamic_at, len(dynamic))] + ([(4, note_at, len(note))] if build else [])
    ident = b"\x7fELF" + bytes([2 if wide else 1, 1, 1]) + bytes(9)
    rest = struct.pack(f"<HHI{word}{word}{word}IHHHHHH", 3, machine, 1, 0, header, 0, 0, header, entry, count, 0, 0, 0)
    rows = b"".join(_segment(kind, offset, length, wide) for kind, offset, length in headers)
    return ident + rest + rows + table + note + dynamic


def _segment(kind: int, offset: int, length: int, wide: bool) -> bytes:
    if wide:
        return struct.pack("<IIQQQQQQ", kind, 4, offset, offset, offset, length, length, 8)
    return struct.pack("<IIIIIIII", kind, offset, offset, offset, length, length, 4, 4)
