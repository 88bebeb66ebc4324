"""RECORD: which files a wheel installed, and with which digests.

Always holds: rows come back by normalised path relative to the site folder, in no order that matters; `identity` is
the same for every installer of one wheel (row order, line ends, byte-code rows, scripts and installers' own notes
left out). A row that is not true to PEP 376/427 (a cut hash, a weak algorithm, two hashes for one path, a path
outside the prefix) is a problem by name, never skipped in silence.
Never: reads a file.
"""

from __future__ import annotations

import binascii
import csv
import hashlib
import io
import posixpath
from collections.abc import Callable, Iterable, Iterator, Mapping

from lockd.facts import shown
from lockd.plain import dataclass, field

_NOTES = frozenset(("INSTALLER", "REQUESTED", "RECORD", "direct_url.json"))
_STRONG = {"sha256": 32, "sha384": 48, "sha512": 64}
_STANDARD = str.maketrans("-_", "+/")
SAMPLE = 3  # names that a problem shows
_NAME = 120  # characters of each: a row of garbage is one long name


@dataclass(frozen=True)
class Record:
    """What one RECORD says. listed: path → hex digest as `sha256 hex`, `sha512:hex` for the longer ones, "" without a
    hash. malformed: a row has not three columns, so that its path is not to be trusted."""

    listed: Mapping[str, str]
    identity: str = ""
    problems: tuple[str, ...] = ()
    notes: frozenset[str] = field(default_factory=frozenset)  # installers' notes and byte code: owned, but not content
    malformed: bool = False


def is_note(path: str, folder: str) -> bool:
    """A file in the metadata folder that says how it was installed, not what."""
    head, _, name = path.rpartition("/")
    return head == folder and (name in _NOTES or (name.startswith("uv_") and name.endswith(".json")))


def parse(text: str, folder: str, place: Callable[[str], str | None]) -> Record:
    """Read RECORD. `folder`: the metadata folder's name; `place` normalises an odd path, None where it leaves the
    prefix."""
    listed: dict[str, str] = {}
    notes: set[str] = set()
    identity: list[str] = []
    malformed: list[str] = []
    outside: list[str] = []
    torn = False
    quoted = '"' in text
    for row in _rows(text):
        path, stated, size = row if len(row) == 3 else (row[0], "malformed", "")
        torn |= len(row) != 3 or (not quoted and "," in path)
        placed = place(path) if _odd(path) else path
        if placed is None:
            outside.append(path)
            continue
        if placed.endswith(".pyc") or is_note(placed, folder):
            notes.add(placed)
            continue
        digest = _digest(stated)
        if digest is None or listed.get(placed, digest) != digest:
            malformed.append(path)
        listed[placed] = digest or ""
        if not _is_script(placed):
            identity.append(f"{placed},{stated},{size}")
    problems = [*_problem("malformed RECORD row", malformed), *_problem("RECORD row outside the environment", outside)]
    return Record(listed, _identity(identity), tuple(problems), frozenset(notes), torn)


def _rows(text: str) -> Iterator[list[str]]:
    if '"' in text:  # csv costs five times a split, and only names with commas or quotes need it
        try:
            yield from (row for row in csv.reader(io.StringIO(text, newline="")) if row)
        except csv.Error as error:  # a NUL, or a field that never ends
            yield [f"{error}"]
        return
    for line in text.split("\n"):
        line = line.rstrip("\r")
        if line:
            yield line.rsplit(",", 2)


def _odd(path: str) -> bool:
    return path.startswith(("/", "..", "./")) or "/../" in path or "/./" in path or "//" in path or "\\" in path


def _is_script(path: str) -> bool:
    """`../../../bin/torchrun`: its row holds the digest of a rewritten shebang, which differs from machine to
    machine."""
    return path.startswith("..") and posixpath.dirname(path).endswith(("/bin", "/Scripts"))


def _digest(stated: str) -> str | None:
    """`sha256=…` as hex; "" for none; None for a hash that proves nothing (cut short, unknown or weak)."""
    if not stated:
        return ""
    algorithm, _, encoded = stated.partition("=")
    try:
        if len(encoded) == 2 * _STRONG.get(algorithm, -1):  # Debian's builds write the digest as hex
            digest = bytes.fromhex(encoded)
        else:
            digest = binascii.a2b_base64(encoded.translate(_STANDARD) + "==")
    except (binascii.Error, ValueError):
        return None
    if len(digest) != _STRONG.get(algorithm, -1):
        return None
    return digest.hex() if algorithm == "sha256" else f"{algorithm}:{digest.hex()}"


def _identity(lines: Iterable[str]) -> str:
    return "sha256:" + hashlib.sha256("\n".join(sorted(lines)).encode("utf-8", "surrogateescape")).hexdigest()


def _cut(path: str) -> str:
    name = shown(path)
    return name if len(name) <= _NAME else f"{name[:_NAME]}…"


def _problem(what: str, paths: list[str]) -> Iterator[str]:
    if paths:
        some = ", ".join(map(_cut, sorted(paths)[:SAMPLE]))
        more = f" and {len(paths) - SAMPLE} more" if len(paths) > SAMPLE else ""
        yield f"{what}: {some}{more}"
