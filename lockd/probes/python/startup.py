"""The fact `python:ENV`: what a Python is, and what code it runs or lets in before the first line of a script.

Always holds: each file that runs code at start-up is listed by the hash of its bytes, whoever owns it (a package's own
RECORD clears nothing); no attribute holds the prefix, so that equal environments have equal facts wherever they lie.
Never: runs or imports what it lists.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from lockd.disk import Disk, Trouble
from lockd.facts import Attributes, Fact, Unknown, Value, shown
from lockd.globs import matches
from lockd.look import Look
from lockd.probes.python import hook
from lockd.probes.python.binary import Binary, binary_of, odd_names
from lockd.probes.python.bytecode import NOTHING_STALE, Stale
from lockd.probes.python.doubles import doubles
from lockd.probes.python.interpreter import Interpreter, home
from lockd.probes.python.pth import SUFFIXES, StartFile, names_in, real_bytes, start_files
from lockd.probes.python.startup_words import word
from lockd.rules import PythonRule

__all__ = ["ATTRIBUTES", "is_startup_file", "portable", "python_fact", "word"]

ATTRIBUTES: Mapping[str, str] = {
    "version": "version of the interpreter, from its binary; else as the environment states it",
    "implementation": "cpython or pypy",
    "binary": "sha256 of the resolved interpreter binary (of a conda package's, before its prefix is written in)",
    "libpython": "sha256 of the shared libpython that the binary needs",
    "names": "of python, python3 and python3.X in bin, those that are missing or are another program",
    "system_site": "include-system-site-packages is on",
    "user_site": "the user's site-packages would be taken",
    "pth": ".pth and .start files: those that run code by hash, those that add a path with it",
    "customize": "sitecustomize and usercustomize modules by hash, wherever they would be found",
    "roots": "folders outside the environment that packages come from, in path order",
    "extra": "packages that come into sight through these folders",
    "state": "why the interpreter cannot start",
    "stale": "byte-code that runs and is not what its source compiles to",
    "executable": "told: path of the interpreter",
    "home": "told: where the base interpreter lies",
    "prompt": "told: prompt of pyvenv.cfg",
    "owners": "told: which package each start-up file belongs to",
    "missing_roots": "told: folders that a .pth names and that are not there",
    "pip": "told: pip's configuration and constraint files, by hash",
    "gate": "told: what is wrong with lockd's own site hook; held against the policy, never in the lock",
    "doubles": "told: packages that stand in two folders of the path, and which one import takes",
    "ca_bundle": "told: certificates in certifi's bundle",
    "hidden_edits": "told: stale byte-code that would run in place of an edited source",
    "bytecode_notes": "told: byte-code that makes a package by itself, or could not be compared",
}
_CUSTOMIZE = re.compile(r"(?:site|user)customize(?:\..*)?")
_PATHS = 100  # a .pth that adds more is told by its number of them and its digest
_HOOK = hook.MODULE  # the module of lockd's own site hook runs at start-up as well


def is_startup_file(relative: str) -> bool:
    """Is this path, relative to a site folder, start-up code: `.pth`, `.start`, sitecustomize, usercustomize?"""
    top, _, rest = relative.partition("/")
    if _CUSTOMIZE.fullmatch(top):
        return True
    return not rest and (top.endswith(SUFFIXES) or top == _HOOK)


def python_fact(
    rule: PythonRule,
    look: Look,
    interpreter: Interpreter,
    owned: Callable[[str], str | None],
    extra_packages: tuple[str, ...],
    stale: Stale = NOTHING_STALE,
) -> Fact | Unknown:
    """The fact `python:ENV`, or why it could not be read.

    owned: absolute path → package. extra_packages: "name version" of each package that comes in by `base_site`.
    stale: what `bytecode.stale` found, `bytecode.merged` over the site folders.
    """
    gate = _gate(rule, look, interpreter)
    sound = gate.sound if isinstance(gate, _Gate) else ()
    excluded = matches(rule.exclude)
    files = _all_start_files(interpreter, look.disk, excluded, sound)
    modules = _customize(interpreter, look.disk, excluded, sound)
    binary = binary_of(interpreter, look)
    names = odd_names(interpreter, look.disk)
    for trouble in (gate, files, modules, binary, names):
        if isinstance(trouble, Trouble):
            return Unknown("python", rule.name, f"{shown(trouble.path)}: {trouble.reason}")
    assert isinstance(gate, _Gate) and not isinstance(files, Trouble)
    assert not isinstance(modules, Trouble) and not isinstance(binary, Trouble) and not isinstance(names, Trouble)
    attributes = _attributes(interpreter, files, modules, binary)
    attributes |= {"names": names}
    attributes |= {"extra": tuple(sorted(set(extra_packages))), "stale": stale.foreign}
    told = _told(interpreter, files, owned, look.disk)
    told |= {"gate": gate.trouble}
    told |= {"doubles": tuple(doubles(interpreter)), "hidden_edits": stale.hidden, "bytecode_notes": stale.notes}
    return Fact("python", rule.name, _filled(attributes), _filled(told))


def _filled(values: Mapping[str, Value]) -> Attributes:
    return {name: value for name, value in values.items() if value not in ((), "")}


def _attributes(
    interpreter: Interpreter, files: list[StartFile], modules: list[str], binary: Binary
) -> dict[str, Value]:
    return {
        "version": binary.version or interpreter.version,
        "implementation": _implementation(interpreter),
        "binary": binary.digest,
        "libpython": binary.libpython,
        "system_site": interpreter.system_site,
        "user_site": interpreter.user_site,
        "pth": tuple(line for file in files for line in _pth_lines(file, interpreter)),
        "customize": tuple(modules),
        "roots": tuple(portable(folder, interpreter) for folder in interpreter.base_site),
        "state": f"broken: {interpreter.broken}" if interpreter.broken else "",
    }


def _implementation(interpreter: Interpreter) -> str:
    stated = dict(interpreter.config).get("implementation", "").lower()
    name = os.path.basename(os.path.realpath(interpreter.executable))
    return "pypy" if "pypy" in (stated or name) else "cpython"


def portable(path: str, interpreter: Interpreter) -> str:
    """A path as equal environments share it: relative to the prefix; `base:…` in the base; `~/.local/…`."""
    user = os.path.join(home(), ".local/lib")  # only this: "~" for every path would differ where HOME does
    places = ((interpreter.prefix, ""), (interpreter.base_prefix, "base:"), (user, "~/.local/lib/"))
    real = tuple(
        (os.path.realpath(folder), label) for folder, label in places if folder
    )  # a rule may name it by a link
    for folder, label in (*places, *real):
        if folder and folder != "/" and path.startswith(folder.rstrip("/") + "/"):
            return shown(label + path[len(folder.rstrip("/")) + 1 :])
    return shown(path)


def _label(folder: str, name: str, interpreter: Interpreter) -> str:
    """A file's own name in the first site folder, with its folder elsewhere."""
    if folder == next(iter(interpreter.site_packages), ""):
        return shown(name)
    return portable(os.path.join(folder, name), interpreter)


class _Gate(NamedTuple):
    """lockd's own hook. sound: the site folders whose hook is known. trouble: what is wrong with it, or ""."""

    sound: tuple[str, ...]
    trouble: str


def _gate(rule: PythonRule, look: Look, interpreter: Interpreter) -> _Gate | Trouble:
    recorded = look.hooks.get(rule.name)
    sound: list[str] = []
    trouble = hook.LOST if recorded is not None else ""
    for folder in interpreter.sites:
        found = hook.looked_at(folder, look.disk, recorded)
        if isinstance(found, Trouble):
            return found
        if found is None:
            continue
        if found.state == "genuine":
            sound.append(folder)
        trouble = hook.WORDS.get(found.state, "")
    return _Gate(tuple(sound), trouble)


def _all_start_files(
    interpreter: Interpreter, disk: Disk, excluded: Callable[[str], bool], sound: tuple[str, ...]
) -> list[StartFile] | Trouble:
    found: list[StartFile] = []
    for folder in interpreter.sites:
        files = start_files(folder, disk, excluded)
        if isinstance(files, Trouble):
            return files
        found += [file for file in files if not (file.name == hook.PTH and folder in sound)]
    return found


def _pth_lines(file: StartFile, interpreter: Interpreter) -> Iterable[str]:
    """One line for the code it runs, one for each path it adds, one if it does nothing (yet it is there)."""
    label = _label(file.folder, file.name, interpreter)
    if not file.digest:
        return [f"{label} is no file"]
    lines = [f"{label} sha256:{file.digest}"] if file.runs else []
    if len(file.paths) > _PATHS:
        return [*lines, f"{label} -> {len(file.paths)} paths, as digest {file.digest[:32]}"]
    lines += [f"{label} -> {portable(path, interpreter)}" for path in file.paths]
    return lines or [f"{label} adds nothing"]


# -- sitecustomize and usercustomize ---------------------------------------------------------------------------------


def _customize(
    interpreter: Interpreter, disk: Disk, excluded: Callable[[str], bool], sound: tuple[str, ...]
) -> list[str] | Trouble:
    """Every sitecustomize and usercustomize on the path, standard library first, as `import` would meet them."""
    folders = dict.fromkeys([interpreter.stdlib, *interpreter.site_packages, *interpreter.base_site])
    lines = []
    for folder in filter(None, folders):
        names = names_in(folder)
        if isinstance(names, Trouble):
            return names
        known = folder in sound
        for name in names:
            if (_CUSTOMIZE.fullmatch(name) or (name == _HOOK and not known)) and not excluded(name):
                digest = _digest(os.path.join(folder, name), disk)
                if isinstance(digest, Trouble):
                    return digest
                lines.append(f"{_label(folder, name, interpreter)} {digest}")
    return lines


def _digest(path: str, disk: Disk) -> str | Trouble:
    """`sha256:…` of a module's bytes, or of a package folder's files; byte-code caches left out."""
    if not os.path.isdir(path):
        content = real_bytes(path, disk)
        if isinstance(content, Trouble):
            return content
        return "is no file" if content is None else f"sha256:{hashlib.sha256(content).hexdigest()}"
    tree = disk.tree(os.path.realpath(path), exclude=("**/__pycache__/**",))
    if tree.troubles:
        return tree.troubles[0]
    files = [
        name for name, entry in tree.entries.items() if entry.kind in "fl" and "__pycache__" not in name.split("/")
    ]
    total = hashlib.sha256()
    for name in files:
        content = real_bytes(os.path.join(tree.root, name), disk)
        if isinstance(content, Trouble):
            return content
        total.update(f"{name}\0{hashlib.sha256(content or b'').hexdigest()}\n".encode("utf-8", "surrogateescape"))
    return f"sha256:{total.hexdigest()}"


# -- told ------------------------------------------------------------------------------------------------------------


def _told(
    interpreter: Interpreter, files: list[StartFile], owned: Callable[[str], str | None], disk: Disk
) -> dict[str, Value]:
    config = dict(interpreter.config)
    paths = [path for file in files for path in file.paths]
    return {
        "executable": shown(interpreter.executable),
        "home": shown(config.get("home", "")),
        "prompt": shown(config.get("prompt", "")),
        "owners": tuple(_owner(file, interpreter, owned) for file in files),
        "missing_roots": tuple(shown(path) for path in dict.fromkeys(paths[:_PATHS]) if not os.path.isdir(path)),
        "pip": tuple(_pip(interpreter, disk)),
        "ca_bundle": _ca_bundle(interpreter, disk),
    }


def _owner(file: StartFile, interpreter: Interpreter, owned: Callable[[str], str | None]) -> str:
    owner = owned(os.path.join(file.folder, file.name))
    return f"{_label(file.folder, file.name, interpreter)}: {owner or 'no package'}"


def _pip(interpreter: Interpreter, disk: Disk) -> Iterable[str]:
    """pip's configuration where pip looks for it, and the constraints it names: they decide what an install brings."""
    places = ["/etc/pip.conf", os.path.join(home(), ".pip/pip.conf"), os.path.join(home(), ".config/pip/pip.conf")]
    for path in [*places, os.path.join(interpreter.prefix, "pip.conf")]:
        content = real_bytes(path, disk)
        if isinstance(content, bytes):
            yield f"{shown(path)} sha256:{hashlib.sha256(content).hexdigest()}"
            for named in re.findall(rb"(?m)^\s*constraint\s*[=:]\s*(\S+)", content):
                constraint = real_bytes(os.fsdecode(named), disk) if named.startswith(b"/") else None
                digest = (
                    f"sha256:{hashlib.sha256(constraint).hexdigest()}" if isinstance(constraint, bytes) else "not read"
                )
                yield f"{shown(os.fsdecode(named))} {digest}"
        elif isinstance(content, Trouble):
            yield f"{shown(path)} not read: {content.reason}"


def _ca_bundle(interpreter: Interpreter, disk: Disk) -> str:
    """How many certificates certifi trusts: an appended one is a known trick of start-up code."""
    for folder in interpreter.site_packages:
        content = real_bytes(os.path.join(folder, "certifi", "cacert.pem"), disk)
        if isinstance(content, bytes):
            return f"certifi/cacert.pem: {content.count(b'-----BEGIN CERTIFICATE-----')} certificates"
    return ""
