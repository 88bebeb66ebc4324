"""Modules that import would take instead of an installed package or the standard library's.

Always holds: only what import would really prefer counts: a module or a package with an `__init__`; a bare folder
(a namespace) loses to an installed package, and names that Python has loaded before a script runs cannot be shadowed.
What runs at every start is told where PYTHONPATH brings it, whether or not the environment has its own.
Never: imports, or looks deeper than the first level of a folder.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from lockd.disk import Trouble

_LOADED_FIRST = {"abc", "codecs", "encodings", "genericpath", "importlib", "io", "ntpath", "os", "posixpath"}
_LOADED_FIRST |= {"runpy", "site", "sitecustomize", "stat", "usercustomize", "zipimport"}
STARTED = frozenset({"sitecustomize", "usercustomize"})
STANDARD = frozenset(sys.stdlib_module_names) - frozenset(sys.builtin_module_names) - _LOADED_FIRST


class Shadow(NamedTuple):
    """`name` would be taken from `path` (in the folder that `label` names) instead of what `over` says."""

    name: str
    label: str
    path: str
    over: str


def pythonpath(environ: Mapping[str, str], cwd: str) -> tuple[str, ...]:
    """The folders of PYTHONPATH, absolute; an empty one is the current folder."""
    value = environ.get("PYTHONPATH", "")
    return tuple(os.path.join(cwd, part) for part in value.split(":")) if value else ()


def shadows(folders: Iterable[tuple[str, str]], roots: Iterable[str]) -> list[Shadow] | Trouble:
    """What the modules in `folders` (label, folder), earlier on the path, hide of `roots` and of Python's own."""
    installed: dict[str, str] = {}
    known = set()
    for root in roots:
        names = modules(root, namespaces=True)
        if isinstance(names, Trouble):
            return names
        known.add(os.path.realpath(root))
        installed = {**names, **installed}
    found: list[Shadow] = []
    for label, folder in folders:
        if os.path.realpath(folder) in known:  # an editable install's own folder hides nothing
            continue
        names = modules(folder, namespaces=False)
        if isinstance(names, Trouble):
            return names
        found += _hidden(label, names, installed)
    return sorted(set(found))


def _hidden(label: str, names: Mapping[str, str], installed: Mapping[str, str]) -> Iterable[Shadow]:
    for name, path in names.items():
        if name in installed and os.path.realpath(path) != os.path.realpath(installed[name]):
            yield Shadow(name, label, path, "the installed package")
        elif name not in installed and name in STANDARD:
            yield Shadow(name, label, path, "the standard library's")
        elif label == "PYTHONPATH" and name in STARTED:  # on the path before `site` asks for them
            yield Shadow(name, label, path, "the environment's own, and run it at every start")


def modules(folder: str, *, namespaces: bool) -> dict[str, str] | Trouble:
    """Name → path of what can be imported from a folder; none where it is not there."""
    found: dict[str, str] = {}
    try:
        with os.scandir(folder) as listing:
            entries = sorted((entry.name, entry.path, entry.is_dir()) for entry in listing)
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except OSError as error:
        return Trouble(folder, error.strerror or str(error))
    for entry, path, is_folder in entries:
        name, suffix, _ = entry.partition(".")
        if not name.isidentifier() or name.startswith("__"):
            continue
        if is_folder:
            if not suffix and (namespaces or _is_package(path)):
                found[name] = path
        elif entry in (f"{name}.py", f"{name}.pyc") or (suffix and entry.endswith(".so")):
            found.setdefault(name, path)
    return found


def _is_package(folder: str) -> bool:
    try:
        return any(name.partition(".")[0] == "__init__" for name in os.listdir(folder))
    except OSError:
        return True  # it may be one: better told than hidden
