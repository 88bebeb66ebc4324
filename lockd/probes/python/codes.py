"""Marshalled code compared without being loaded: a reader of the marshal format that reduces every object to a digest.

Always holds: equal code gives equal fingerprints whatever file it says it came from, however marshal shared its
objects, and in whatever order it wrote a frozenset. Nothing of the input is ever unmarshalled, hashed as a set or
executed, so that forged byte-code can at most be refused; memory and time grow with the size of the input only.
Never: reads a format that is not the running interpreter's own.
"""

from __future__ import annotations

import hashlib
import marshal
import struct
import sys
import warnings
from collections.abc import Callable

_LONGS = 5 if sys.version_info >= (3, 11) else 6  # argument counts, (nlocals,) stack size, flags
_FIELDS = (  # the objects after them; None is the line number, a long among objects
    (
        "code",
        "consts",
        "names",
        "localsplusnames",
        "localspluskinds",
        "filename",
        "name",
        "qualname",
        None,
        "lines",
        "exceptions",
    )
    if sys.version_info >= (3, 11)
    else ("code", "consts", "names", "varnames", "freevars", "cellvars", "filename", "name", None, "lines")
)
_DEPENDS_ON_PATCH = (
    "code",
    "lines",
    "exceptions",
)  # what two patch releases with one magic number may compile differently
_DEEPEST = 200  # levels; marshal allows 2000, no compiler makes 100
_CONSTANTS = b"NFTS."
_SIZED = b"stuaAfIixyglzZ"
_SLASH = ord("/")
_LONGEST_PATH = 4096  # bytes
_MENTIONS = 8  # places where a file's name may stand before its path does: a text may speak of it
_TEXTS = frozenset(ord(kind) | flag for kind in "uaAt" for flag in (0, 0x80))


class Unreadable(ValueError):
    """These bytes are not marshalled code of this interpreter."""


def fingerprint(body: bytes, *, loose: bool = False) -> bytes:
    """16 bytes that stand for a marshalled code object, less its file name; `loose`: and what patch releases change."""
    try:
        return _Reader(body, loose).value(0)
    except (IndexError, struct.error) as error:
        raise Unreadable("cut short") from error


def compiled(source: bytes, path: str, optimize: int) -> bytes:
    """The marshalled code of a source, as the running interpreter compiles it. Unreadable where it does not compile."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            # Held by a name, as importlib does: what marshal counts one reference to, it writes otherwise
            code = compile(source, path, "exec", dont_inherit=True, optimize=optimize)
            return marshal.dumps(code)
        except (SyntaxError, ValueError, RecursionError, MemoryError, OverflowError) as error:
            raise Unreadable(f"the source does not compile: {error}") from error


def stated_path(body: bytes, name: str) -> str | None:
    """The absolute path, ending in /`name`, that marshalled code says it was compiled from; None: not found out.

    It serves to compile a source under the same name, so that equal code gives equal bytes; it proves nothing.
    """
    wanted = b"/" + name.encode("utf-8", "surrogateescape")
    at = -1
    for _ in range(_MENTIONS):
        at = body.find(wanted, at + 1)
        if at < 0:
            return None
        start = _start_of_text(body, at, at + len(wanted))
        if start:
            try:
                return body[start : at + len(wanted)].decode()
            except UnicodeDecodeError:
                return None
    return None


def _start_of_text(body: bytes, at: int, end: int) -> int:
    """Where the text begins that ends at `end`, and with a slash at or before `at`; 0: there is none."""
    for start in range(at, max(at - _LONGEST_PATH, 4), -1):
        if body[start] == _SLASH:
            short = body[start - 1] == end - start and body[start - 2] & 0x7F in b"zZ"
            if short or (body[start - 4 : start] == (end - start).to_bytes(4, "little") and body[start - 5] in _TEXTS):
                return start
    return 0


def _digest(tag: bytes, *parts: bytes) -> bytes:
    return hashlib.blake2b(tag + b"".join(parts), digest_size=16).digest()


class _Reader:
    """One pass over a marshal stream. `refs` holds the digests of the objects that later ones may refer to."""

    def __init__(self, data: bytes, loose: bool) -> None:
        self.data, self.at, self.loose = data, 0, loose
        self.refs: list[bytes | None] = []

    def value(self, depth: int) -> bytes:
        if depth > _DEEPEST:
            raise Unreadable("nested too deeply")
        head = self.data[self.at]
        self.at += 1
        kind, slot = head & 0x7F, -1
        if head & 0x80:  # FLAG_REF: the place is taken before the contents are read
            slot = len(self.refs)
            self.refs.append(None)
        found = self._read(kind, depth)
        if slot >= 0:
            self.refs[slot] = found
        return found

    def _read(self, kind: int, depth: int) -> bytes:
        if kind in _CONSTANTS:
            return _digest(bytes((kind,)))
        if kind in _SIZED:
            return self._scalar(chr(kind))
        if kind == ord("r"):
            return self._reference()
        if kind in b"()[<>":
            return self._sequence(chr(kind), depth)
        if kind == ord("c"):
            return self._code(depth)
        if kind == ord(":"):  # slice, since 3.14
            return _digest(b":", *(self.value(depth + 1) for _ in range(3)))
        raise Unreadable(f"an object of kind {chr(kind)!r} in code")

    def _reference(self) -> bytes:
        index = self._long()
        found = self.refs[index] if 0 <= index < len(self.refs) else None
        if found is None:
            raise Unreadable("a reference to nothing")
        return found

    def _scalar(self, kind: str) -> bytes:
        if kind in "tuaAzZ":  # all are text: interned or not, ASCII or not, short or not
            return _digest(b"u", self._take(self._byte() if kind in "zZ" else self._long()))
        if kind == "s":
            return _digest(b"s", self._take(self._long()))
        if kind in "il":
            return _digest(b"i", str(self._long() if kind == "i" else self._big()).encode())
        return _digest(kind.encode(), self._take(_WIDTHS[kind](self)))

    def _sequence(self, kind: str, depth: int) -> bytes:
        count = self._byte() if kind == ")" else self._long()
        items = [self.value(depth + 1) for _ in range(self._possible(count))]
        return _digest(b"<", *sorted(items)) if kind in "<>" else _digest(b"[" if kind == "[" else b"(", *items)

    def _code(self, depth: int) -> bytes:
        longs = [self._take(4) for _ in range(_LONGS)]
        parts = longs if not self.loose else longs[:3]
        for field in _FIELDS:
            part = self._take(4) if field is None else self.value(depth + 1)
            if field != "filename" and not (self.loose and (field is None or field in _DEPENDS_ON_PATCH)):
                parts.append(part)
        return _digest(b"c", *parts)

    def _take(self, size: int) -> bytes:
        start, self.at = self.at, self.at + self._possible(size)
        return self.data[start : self.at]

    def _possible(self, size: int) -> int:
        """A size that the rest of the data can hold: forged ones would make endless loops."""
        if not 0 <= size <= len(self.data) - self.at:
            raise Unreadable("cut short")
        return size

    def _byte(self) -> int:
        return self._take(1)[0]

    def _long(self) -> int:
        return int(struct.unpack("<i", self._take(4))[0])

    def _big(self) -> int:
        count = self._long()
        digits = struct.unpack(f"<{abs(count)}H", self._take(2 * abs(count)))
        total = sum(digit << (15 * place) for place, digit in enumerate(digits)) if abs(count) < 4096 else 0
        if abs(count) >= 4096:
            raise Unreadable("a number of 60,000 bits")
        return -total if count < 0 else total


_WIDTHS: dict[str, Callable[[_Reader], int]] = {
    "g": lambda _: 8,
    "y": lambda _: 16,
    "I": lambda _: 8,
    "f": lambda reader: reader._byte(),
    "x": lambda reader: 2 * reader._byte(),
}
