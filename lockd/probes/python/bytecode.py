"""Byte-code beside its source: what is derived, what makes a package by itself, and what runs in place of its source.

Always holds: a `.pyc` that Python would compile anew is benign. A header proves nothing about the code behind it, so
that whoever is suspected is compared with what its source compiles to: on the usual look the few that give a reason,
under `--full` all.
Never: unmarshals or runs byte-code (`codes` reads it), or calls two files equal that it could not compare.
"""

from __future__ import annotations

import importlib.util
import os
import re
import stat
import sys
from collections import defaultdict
from collections.abc import Callable, Container, Iterable, Iterator
from functools import partial
from typing import NamedTuple
from zlib import crc32

from lockd.disk import Disk, Entry, Tree, Trouble
from lockd.facts import Fact, set_digest, shown, token
from lockd.look import Look
from lockd.pool import scatter
from lockd.probes import Seen
from lockd.probes.python import codes
from lockd.probes.python.interpreter import Interpreter
from lockd.probes.python.pth import real_bytes

_READ = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY
_HEADER = 16  # PEP 552: magic, flags, then mtime and size, or a hash of the source
_MAGIC = {"3.8": 3413, "3.9": 3425, "3.10": 3439, "3.11": 3495, "3.12": 3531, "3.13": 3571, "3.14": 3627}
_DERIVED = re.compile(r"\.(?:pyc(?:\.\d+)?|nbi|nbc)")  # .pyc.1234: a write that was cut off
_FEW = 64  # files that the usual look compares in one site folder: 2 ms each
_LOOSELY = "could only be compared loosely: another patch release may have compiled it"
_GROUPS = 16  # derivations that are remembered for one site folder
_CHUNK = 40  # files; a fork costs what two of them cost
_LISTED = 20  # lines; more become one line with a digest over all


class Stale(NamedTuple):
    """foreign: runs code that its unchanged source does not hold: an attribute. The others are told.

    hidden: runs in place of a source that was edited. notes: packages of byte-code alone, what was not compared.
    """

    foreign: tuple[str, ...] = ()
    hidden: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


NOTHING_STALE = Stale()


class Suspect(NamedTuple):
    """A `.pyc` that would run, and its source, relative to the tree's root. unchecked: whatever the source says."""

    pyc: str
    source: str
    optimize: int
    unchecked: bool
    pristine: bool | None


def is_derived_name(name: str) -> bool:
    """Could a file of this name be derived?"""
    return name == "__pycache__" or _DERIVED.search(name) is not None


def derived(path_in_site: str, names: Container[str]) -> bool:
    """Is this byte-code or jit index (`.pyc`, `.nbi`, `.nbc`, a `__pycache__`) derived from a source among `names`?"""
    folder, _, name = path_in_site.rpartition("/")
    if name == "__pycache__":
        return True
    if not _DERIVED.search(name):
        return False
    parent, _, last = folder.rpartition("/")
    folder = parent if last == "__pycache__" else folder
    parts = name.split(".")
    stems = (".".join(parts[:count]) for count in range(1, len(parts)))
    return any((f"{folder}/{stem}.py" if folder else f"{stem}.py") in names for stem in stems)


class Found(NamedTuple):
    """What one site folder (or a part of it) holds. graded: who is worth comparing, and how gravely. notes: by path."""

    graded: list[tuple[int, Suspect]]
    notes: list[tuple[str, str]]


def found(interpreter: Interpreter, tree: Tree, pristine: Callable[[str], bool | None], *, every: bool) -> Found:
    """The byte-code that would run, and which of it to compare (every: all of it).

    pristine: for a source's path in the tree: are its bytes those that its package shipped? None: not known.
    """
    running = list(_running(interpreter, tree, pristine))
    suspects = [one for one in running if isinstance(one, Suspect)]
    grades = ((0 if every else _grade(tree, suspect), suspect) for suspect in suspects)
    troubles = [one for one in running if isinstance(one, Trouble)]
    notes = [(os.path.relpath(one.path, tree.root), f"{shown(one.path)}: {one.reason}") for one in troubles]
    return Found([(grade, suspect) for grade, suspect in grades if grade is not None], [*notes, *_lone(tree)])


def stale(interpreter: Interpreter, tree: Tree, look: Look, pristine: Callable[[str], bool | None]) -> Stale:
    """Both in one: the byte-code of a whole site folder that runs other code than its source."""
    return judged(interpreter, tree, look, found(interpreter, tree, pristine, every=look.disk.full))


def judged(interpreter: Interpreter, tree: Tree, look: Look, known: Found) -> Stale:
    """The byte-code of one site folder that runs other code than its source; on a usual look the gravest few."""
    graded = sorted(known.graded)
    few = len(graded) if look.disk.full else _FEW
    chosen, rest = [suspect for _, suspect in graded[:few]], len(graded[few:])
    notes = [line for _, line in known.notes]
    notes += [f"{rest} .pyc not compared with their sources (lockd verify --full does)"] if rest else []
    return _sorted_out(chosen, _compared(interpreter, tree, look, chosen), notes)


def merged(several: Iterable[Stale]) -> Stale:
    """The findings of several site folders as one."""
    listed = list(several)
    foreign, hidden, notes = (sorted({line for one in listed for line in one[place]}) for place in range(3))
    return Stale(_folded(foreign), tuple(hidden), tuple(notes))


# -- which byte-code runs --------------------------------------------------------------------------------------------


def _running(
    interpreter: Interpreter, tree: Tree, pristine: Callable[[str], bool | None]
) -> Iterator[Suspect | Trouble]:
    """Each `.pyc` that the interpreter would take without compiling, as `importlib` decides it."""
    tag = re.escape(_tag(interpreter))
    pattern = re.compile(rf"(?:(.*)/)?__pycache__/([^/.]+)\.{tag}(?:\.opt-([12]))?\.pyc", re.DOTALL)
    for name in tree.entries:
        match = pattern.fullmatch(name) if name.endswith(".pyc") else None
        if match is None:
            continue
        source = f"{match[1]}/{match[2]}.py" if match[1] else f"{match[2]}.py"
        if source in tree.entries:
            taken = _taken(tree, name, source, interpreter.minor)
            if isinstance(taken, Trouble):
                yield taken
            elif taken:
                yield Suspect(name, source, int(match[3] or 0), taken == "unchecked", pristine(source))


def _tag(interpreter: Interpreter) -> str:
    pypy = "pypy" in os.path.basename(os.path.realpath(interpreter.executable))
    return f"{'pypy' if pypy else 'cpython-'}{(interpreter.library or interpreter.minor).replace('.', '')}"


def _taken(tree: Tree, pyc: str, source: str, minor: str) -> str | Trouble:
    """ "unchecked", "checked" or "timestamp" where the header lets this `.pyc` run, else ""."""
    header = _header(os.path.join(tree.root, pyc), regular=tree.entries[pyc].kind == "f")
    if isinstance(header, Trouble):
        return header
    if len(header) < _HEADER or int.from_bytes(header[:2], "little") != _MAGIC.get(
        minor, int.from_bytes(header[:2], "little")
    ):
        return ""
    flags = int.from_bytes(header[4:8], "little")
    if flags:
        return "unchecked" if flags == 1 else "checked" if flags == 3 else ""
    entry = _source_entry(tree, source)
    if entry is None:
        return ""
    mtime, size = int.from_bytes(header[8:12], "little"), int.from_bytes(header[12:16], "little")
    same = (entry.mtime // 10**9 & 0xFFFFFFFF, entry.size & 0xFFFFFFFF) == (mtime, size)
    return "timestamp" if same else ""


def _header(path: str, *, regular: bool) -> bytes | Trouble:
    """The first bytes of a regular file; links are followed, as import does, anything else is a Trouble."""
    try:
        descriptor = os.open(path, _READ | (os.O_NOFOLLOW if regular else 0))
    except FileNotFoundError:
        return b""
    except OSError as error:
        return Trouble(path, error.strerror or str(error))
    try:
        regular = regular or stat.S_ISREG(os.fstat(descriptor).st_mode)
        return os.read(descriptor, _HEADER) if regular else Trouble(path, "not a regular file")
    except OSError as error:
        return Trouble(path, error.strerror or str(error))
    finally:
        os.close(descriptor)


def _source_entry(tree: Tree, source: str) -> Entry | None:
    entry = tree.entries[source]
    if entry.kind != "l":
        return entry if entry.kind == "f" else None
    try:
        found = os.stat(os.path.join(tree.root, source))
    except OSError:
        return None
    return entry._replace(size=found.st_size, mtime=found.st_mtime_ns, ctime=found.st_ctime_ns, links=found.st_nlink)


# -- which of it is suspected ----------------------------------------------------------------------------------------


def _grade(tree: Tree, suspect: Suspect) -> int | None:
    if suspect.unchecked:
        return 0  # huggingface/kernels#623
    if suspect.pristine is False:
        return 1  # cpython#75953: edited within the second, or with its time put back, and no longer
    source, pyc = _source_entry(tree, suspect.source), tree.entries[suspect.pyc]
    # written after its byte-code, and bears the old time all the same; a new hard link moves ctime as well
    written_later = source is not None and source.links == 1 and source.ctime > pyc.ctime
    return 2 if written_later else None


# -- comparing -------------------------------------------------------------------------------------------------------


def _compared(interpreter: Interpreter, tree: Tree, look: Look, suspects: list[Suspect]) -> dict[str, str]:
    """pyc → "" (equal) or in what way it is not; remembered, some packages together, while the bytes are the same."""
    groups: dict[int, list[Suspect]] = defaultdict(list)
    for suspect in suspects:
        top = suspect.source.partition("/")[0]
        groups[crc32(top.encode("utf-8", "surrogateescape")) % _GROUPS].append(suspect)
    verdicts: dict[str, str] = {}
    for number, group in sorted(groups.items()):
        key = ("python bytecode", tree.root, look.disk.full, number, interpreter.version, sys.version)
        compute = partial(_verdicts, interpreter, tree, look.disk, group)
        (fact,) = look.memo.recall(key, _stamp(tree, look.disk, group), compute).facts
        assert isinstance(fact, Fact)
        verdicts |= {name: str(value) for name, value in fact.attributes.items()}
    return verdicts


def _stamp(tree: Tree, disk: Disk, group: list[Suspect]) -> str:
    paths = [os.path.join(tree.root, name) for suspect in group for name in (suspect.pyc, suspect.source)]
    paths = [os.path.realpath(path) if os.path.islink(path) else path for path in paths]
    return set_digest(token(path, str(digest)) for path, digest in disk.digests(sorted(set(paths))).items())


def _verdicts(interpreter: Interpreter, tree: Tree, disk: Disk, group: list[Suspect]) -> Seen:
    """Compiling is the whole cost: chunks of files, spread over the processors."""
    chunks = [group[start : start + _CHUNK] for start in range(0, len(group), _CHUNK)]

    def work(number: int) -> list[tuple[str, str]]:
        return [(one.pyc, _verdict(interpreter, tree, disk, one)) for one in chunks[number]]

    attributes = {name: verdict for _, pairs in scatter(len(chunks), work) for name, verdict in pairs}
    return Seen((Fact("python", "bytecode", attributes),))


def _verdict(interpreter: Interpreter, tree: Tree, disk: Disk, suspect: Suspect) -> str:
    """ "" equal; "differs"; or why it could not be told."""
    path = os.path.join(tree.root, suspect.source)
    source, pyc = real_bytes(path, disk), real_bytes(os.path.join(tree.root, suspect.pyc), disk)
    if not isinstance(source, bytes) or not isinstance(pyc, bytes):
        return "could not be read"
    if sys.implementation.name != "cpython" or pyc[:4] != importlib.util.MAGIC_NUMBER:
        ours = ".".join(map(str, sys.version_info[:2]))
        return f"could not be compared: byte-code of Python {interpreter.minor}, lockd runs {ours}"
    return _difference(
        source, path, pyc[_HEADER:], suspect.optimize, _compiled_here(interpreter, tree.entries[suspect.pyc])
    )


def _difference(source: bytes, path: str, body: bytes, optimize: int, compiled_here: bool) -> str:
    try:
        wanted = codes.compiled(source, codes.stated_path(body, os.path.basename(path)) or path, optimize)
        if wanted == body:  # 19 of 20 that this very release compiled; reading both takes as long as compiling does
            return ""
        if codes.fingerprint(wanted) == codes.fingerprint(body):
            return ""
        alike = not compiled_here and codes.fingerprint(wanted, loose=True) == codes.fingerprint(body, loose=True)
    except codes.Unreadable as error:
        return f"differs: {error}"
    return _LOOSELY if alike else "differs"


def _compiled_here(interpreter: Interpreter, pyc: Entry) -> bool:
    """Was this file compiled by the very release that lockd runs? Others with the same magic number compile a little
    differently: 12 of 2,000 files between 3.11.2 and 3.11.7."""
    if interpreter.version != ".".join(map(str, sys.version_info[:3])):
        return False
    try:
        binary = os.stat(interpreter.executable)
    except OSError:
        return False
    return min(pyc.mtime, pyc.ctime) > max(binary.st_mtime_ns, binary.st_ctime_ns)  # not from before an upgrade


# -- what comes of it ------------------------------------------------------------------------------------------------


def _sorted_out(suspects: list[Suspect], verdicts: dict[str, str], notes: list[str]) -> Stale:
    foreign, hidden = set(), set()
    unsure: dict[str, int] = defaultdict(int)
    for suspect in suspects:
        verdict, name = verdicts[suspect.pyc], shown(suspect.source)
        if verdict.startswith("differs") and suspect.pristine is False:
            hidden.add(f"{name}: its byte-code still runs what it was before the edit")
        elif verdict.startswith("differs"):
            foreign.add(f"{name} runs other code than its source{_why(suspect, verdict)}")
        elif verdict and suspect.unchecked and verdict != _LOOSELY:
            foreign.add(f"{name} runs unchecked-hash code whatever its source says; it {verdict}")
        elif verdict:
            unsure[verdict] += 1
    notes += [f"{count} .pyc {verdict}" for verdict, count in sorted(unsure.items())]
    return Stale(_folded(sorted(foreign)), tuple(sorted(hidden)), tuple(notes))


def _why(suspect: Suspect, verdict: str) -> str:
    reasons = ["unchecked-hash"] if suspect.unchecked else []
    reasons += [verdict.partition(": ")[2]] if ": " in verdict else []
    return f" ({', '.join(reasons)})" if reasons else ""


def _folded(lines: list[str]) -> tuple[str, ...]:
    if len(lines) <= _LISTED:
        return tuple(lines)
    return (*lines[: _LISTED - 1], f"and {len(lines) - _LISTED + 1} more, all together {set_digest(lines)}")


def _lone(tree: Tree) -> Iterator[tuple[str, str]]:
    """Top folders that hold nothing but byte-code: they import as an empty package, so that nothing seems missing."""
    whole: set[str] = set()
    lone: set[str] = set()
    for name, entry in tree.entries.items():
        top, inside, _ = name.partition("/")
        if inside and entry.kind != "d":
            (lone if "/__pycache__/" in name else whole).add(top)
    for top in sorted(lone - whole):
        if top.isidentifier():
            yield top, f"{shown(top)}: only byte-code is left, and it imports as an empty package"
