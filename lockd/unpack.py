"""A wheel unpacked aside, as an installer would lay it out, so that it can be held against the lock before it is used.

Always holds: nothing of the wheel is run or compiled, and no byte of it leaves the folder that is given. What a wheel
says of itself is not believed: whoever uses it compares the laid-out files with the lock.
Never: writes into an environment.
"""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import os
import posixpath
import stat
import zipfile
from collections.abc import Iterator, Mapping
from typing import IO, NamedTuple

from lockd.errors import LockdError
from lockd.facts import shown

_LAUNCHER = """#!{python}
# -*- coding: utf-8 -*-
import re
import sys
from {module} import {first}
if __name__ == '__main__':
    sys.argv[0] = re.sub(r'(-script\\.pyw|\\.exe)?$', '', sys.argv[0])
    sys.exit({call}())
"""
_PIECE = 1 << 20


class Layout(NamedTuple):
    """Where the parts of a wheel go: absolute folders below one prefix. python: what shebangs name."""

    prefix: str
    site: str
    bin: str
    headers: str
    python: str


class WheelError(LockdError):
    """The file is no wheel that could be used."""


def unpack(wheel: str, layout: Layout) -> list[str]:
    """Lay a wheel out; gives the absolute paths of its files, RECORD included."""
    try:
        with zipfile.ZipFile(wheel) as archive:
            return _Unpacking(archive, layout).run()
    except (zipfile.BadZipFile, OSError, UnicodeError, KeyError, ValueError, EOFError) as error:
        raise WheelError(f"the wheel can't be unpacked: {error}", where=wheel, hint="fetch it again") from None


class _Unpacking:
    """One wheel on its way out of its archive."""

    def __init__(self, archive: zipfile.ZipFile, layout: Layout) -> None:
        self.archive, self.layout = archive, layout
        self.rows: list[tuple[str, str, str]] = []  # of RECORD
        self.written: list[str] = []
        infos = {name.partition("/")[0] for name in archive.namelist() if name.partition("/")[0].endswith(".dist-info")}
        if len(infos) != 1:
            raise ValueError(f"it has {len(infos)} dist-info folders")
        (self.info,) = infos
        self.data = self.info.removesuffix(".dist-info") + ".data"

    def run(self) -> list[str]:
        for member in self.archive.infolist():
            if not member.is_dir() and not self._is_note(member.filename):
                with self.archive.open(member) as source:
                    self._member(member, source)
        for name, text in self._launchers():
            self._write(f"{self.layout.bin}/{name}", io.BytesIO(text.encode()), 0o755)
        self._record()
        return self.written

    def _is_note(self, name: str) -> bool:
        """RECORD is written anew; its signatures fit no more."""
        return name in (f"{self.info}/RECORD", f"{self.info}/RECORD.jws", f"{self.info}/RECORD.p7s")

    def _member(self, member: zipfile.ZipInfo, source: IO[bytes]) -> None:
        path, is_script = self._place(member.filename)
        executable = is_script or bool((member.external_attr >> 16) & 0o111)
        stream: IO[bytes] = io.BytesIO(self._script(source.read())) if is_script else source
        if stat.S_ISLNK(member.external_attr >> 16):
            raise ValueError(f"{shown(member.filename)} is a link")
        self._write(path, stream, 0o755 if executable else 0o644)

    def _place(self, name: str) -> tuple[str, bool]:
        """Where a member goes, and whether it is a script."""
        top, _, rest = name.partition("/")
        base, inner = self.layout.site, name
        kind = ""
        if top == self.data:
            kind, _, inner = rest.partition("/")
            base = self._bases()[kind]
        path = posixpath.normpath(f"{base}/{inner}")
        if "\\" in name or not inner or inner.startswith("/") or not path.startswith(base + "/"):
            raise ValueError(f"{shown(name)} leaves its folder")
        return path, kind == "scripts"

    def _bases(self) -> Mapping[str, str]:
        one = self.layout
        name = self.info.partition("-")[0]
        headers = f"{one.headers}/{name}"
        return {
            "purelib": one.site,
            "platlib": one.site,
            "scripts": one.bin,
            "data": one.prefix,
            "headers": headers,
        }

    def _script(self, content: bytes) -> bytes:
        """`#!python` becomes the environment's own."""
        first, newline, rest = content.partition(b"\n")
        if not first.startswith(b"#!python"):
            return content
        return b"#!" + os.fsencode(self.layout.python) + newline + rest

    def _launchers(self) -> Iterator[tuple[str, str]]:
        import configparser

        name = f"{self.info}/entry_points.txt"
        if name not in self.archive.namelist():
            return
        parser = configparser.ConfigParser(delimiters=("=",), interpolation=None, strict=False)
        parser.optionxform = str  # type: ignore[assignment,method-assign]
        parser.read_string(self.archive.read(name).decode("utf-8"))
        for section in ("console_scripts", "gui_scripts"):
            for script, target in parser.items(section) if parser.has_section(section) else ():
                module, _, call = target.partition("[")[0].replace(" ", "").partition(":")
                if "/" in script or not call:
                    raise ValueError(f"{shown(script)} is no entry point")
                first = call.partition(".")[0]
                yield script, _LAUNCHER.format(python=self.layout.python, module=module, first=first, call=call)

    def _write(self, path: str, source: IO[bytes], mode: int) -> None:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        digest, size = hashlib.sha256(), 0
        with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600), "wb") as file:
            while piece := source.read(_PIECE):
                digest.update(piece)
                size += len(piece)
                file.write(piece)
        os.chmod(path, mode)
        encoded = base64.urlsafe_b64encode(digest.digest()).rstrip(b"=").decode("ascii")
        self.rows.append((posixpath.relpath(path, self.layout.site), f"sha256={encoded}", str(size)))
        self.written.append(path)

    def _record(self) -> None:
        """RECORD as an installer leaves it."""
        name = f"{self.info}/RECORD"
        lines = io.StringIO()
        csv.writer(lines, lineterminator="\n").writerows([*sorted(self.rows), (name, "", "")])
        path = f"{self.layout.site}/{name}"
        with open(path, "x", encoding="utf-8", errors="surrogateescape", newline="") as file:
            file.write(lines.getvalue())
        os.chmod(path, 0o644)
        self.written.append(path)
