"""The interpreter binary, read from outside: its digest, the version it bears, the libpython that it needs.

Always holds: the digest is that of the resolved file; for a binary that conda wrote its prefix into, that of the
package's file, proven by the hash that conda recorded; an interpreter that is not there has none.
Never: starts it.
"""

from __future__ import annotations

import json
import os
import re
from typing import NamedTuple

from lockd.disk import Disk, Entry, Trouble
from lockd.facts import Fact
from lockd.look import Look
from lockd.probes import Seen
from lockd.probes.python.interpreter import Interpreter
from lockd.probes.python.pth import names_in, real_bytes

_IN_A_NUMBER = frozenset(b"%c" % character for character in b"0123456789.")
_LARGEST = 512 << 20  # bytes; a statically linked build with debug symbols has 100 MB


class Binary(NamedTuple):
    """digest, libpython: `sha256:…`, "" where there is none. version: as compiled in, "" if untold."""

    digest: str = ""
    libpython: str = ""
    version: str = ""


def binary_of(interpreter: Interpreter, look: Look) -> Binary | Trouble:
    """What can be told of the binary; the costly reading is remembered while the file is the same."""
    path = os.path.realpath(interpreter.executable)
    entry = look.disk.entry(path)
    if isinstance(entry, Trouble):
        return entry
    if entry is None or entry.kind != "f":
        return Binary()
    inside = _inside(path, entry, interpreter, look)
    library = _library(path, inside.libpython, interpreter)
    digests = look.disk.digests([path, library] if library else [path])
    for digest in digests.values():
        if isinstance(digest, Trouble):
            return digest
    version = inside.version or (_inside_library(library, interpreter, look) if library else "")
    named = f"sha256:{digests[library]}" if library else f"{inside.libpython} not found" if inside.libpython else ""
    return Binary(_as_packaged(path, str(digests[path]), interpreter, look.disk), named, version)


def odd_names(interpreter: Interpreter, disk: Disk) -> tuple[str, ...] | Trouble:
    """The other names of an environment's interpreter, as far as they lead nowhere or to another program.

    A script's first line and a launch command may name any of them. Not all tools make `python3.X`, so that may lack.
    """
    if interpreter.kind == "system" or interpreter.broken:
        return ()
    real, odd = os.path.realpath(interpreter.executable), []
    for name in dict.fromkeys(("python", "python3", f"python{interpreter.minor}")):
        path = os.path.join(interpreter.bin, name)
        target = os.path.realpath(path)
        if not os.path.exists(path):
            if name in ("python", "python3") or os.path.islink(path):
                odd.append(f"bin/{name} is missing")
        elif target != real:
            digest = disk.digests([target])[target] if os.path.isfile(target) else ""
            if isinstance(digest, Trouble):
                return digest
            if digest != disk.digests([real])[real]:
                odd.append(f"bin/{name} is another program" + (f" sha256:{digest}" if digest else ""))
    return tuple(odd)


def _inside(path: str, entry: Entry, interpreter: Interpreter, look: Look) -> Binary:
    """Version and name of the needed libpython, from the bytes of one file."""

    def compute() -> Seen:
        content = look.disk.read(path, _LARGEST)
        content = b"" if isinstance(content, Trouble) else content
        told = {"version": _compiled_version(content, interpreter.minor), "needs": _needed(content, interpreter.minor)}
        return Seen((Fact("python", "binary", told),))

    (fact,) = look.memo.recall(("python binary", path, interpreter.minor), repr(entry), compute).facts
    assert isinstance(fact, Fact)
    return Binary("", str(fact.attributes["needs"]), str(fact.attributes["version"]))


def _inside_library(path: str, interpreter: Interpreter, look: Look) -> str:
    entry = look.disk.entry(path)
    return _inside(path, entry, interpreter, look).version if isinstance(entry, Entry) else ""


def _compiled_version(content: bytes, minor: str) -> str:
    """PY_VERSION ends a string in the binary (linkers merge it with longer ones); two different ones tell nothing."""
    pattern = re.escape(minor.encode()) + rb"\.\d+(?:(?:a|b|rc)\d+)?\+?(?=\0)"
    matches = re.finditer(pattern, content) if minor else ()
    found = {match[0] for match in matches if content[match.start() - 1 : match.start()] not in _IN_A_NUMBER}
    return found.pop().decode() if len(found) == 1 else ""


def _needed(content: bytes, minor: str) -> str:
    """The soname of the shared libpython, as it stands in the dynamic section's strings."""
    pattern = rb"\0(libpython" + re.escape(minor.encode()) + rb"[a-z]*\.so[.\d]*)\0"
    match = re.search(pattern, content) if minor else None
    return match[1].decode() if match else ""


def _library(binary: str, name: str, interpreter: Interpreter) -> str:
    """The resolved path of the libpython beside the binary, or ""."""
    base = os.path.dirname(os.path.dirname(binary))
    folders = [os.path.join(prefix, lib) for prefix in (base, interpreter.base_prefix) for lib in ("lib", "lib64")]
    places = (os.path.join(folder, name) for folder in folders) if name else ()
    return next((os.path.realpath(place) for place in places if os.path.isfile(place)), "")


def _as_packaged(path: str, digest: str, interpreter: Interpreter, disk: Disk) -> str:
    """conda writes the prefix into binaries: of one that is as conda left it, the package's own hash is portable."""
    if interpreter.kind != "conda" or not path.startswith(os.path.realpath(interpreter.prefix) + "/"):
        return f"sha256:{digest}"
    meta = os.path.join(interpreter.prefix, "conda-meta")
    names = names_in(meta)
    for name in [] if isinstance(names, Trouble) else names:
        if re.fullmatch(r"(?:python|pypy)-\d.*\.json", name):
            original = _recorded(
                os.path.join(meta, name), os.path.relpath(path, os.path.realpath(interpreter.prefix)), digest, disk
            )
            return f"sha256:{original or digest}"
    return f"sha256:{digest}"


def _recorded(record: str, relative: str, digest: str, disk: Disk) -> str:
    """The package's hash of a file whose hash after installation is `digest`, or ""."""
    content = real_bytes(record, disk)
    try:
        rows = json.loads(content)["paths_data"]["paths"] if isinstance(content, bytes) else []
        same = [row for row in rows if row.get("_path") == relative and row.get("sha256_in_prefix") == digest]
        return str(same[0].get("sha256", "")) if same else ""
    except (ValueError, KeyError, TypeError, AttributeError):
        return ""  # a broken conda record is told about its package
