"""The families of libraries that a launch is held to: which file of each wins, by what rule, and what else is in sight.

Always holds: what `search` says is loaded is what counts; what nobody needs at the start is looked up as opening it by
name would. A file outside the environment has a build id or a digest.
Never: loads anything.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from lockd.disk import Trouble
from lockd.facts import Fact, Unknown, Value, shown
from lockd.probes.loader import PREFIX
from lockd.probes.loader.search import Loaded, Missing, Search

if TYPE_CHECKING:
    from lockd.look import Launch, Look
    from lockd.probes.python.interpreter import Interpreter

FAMILIES = (
    *("libcudnn", "libnccl", "libnccl-net", "libcublas", "libcublasLt", "libnvJitLink", "libcudart"),
    *("libcuda", "libnvidia-ml", "libstdc++"),
)
_NAMES = {"libcuda": "libcuda.so.1", "libnvidia-ml": "libnvidia-ml.so.1", "libnccl-net": "libnccl-net.so"}
_ROOTS = ("torch/lib/libtorch_global_deps.so", "torch/lib/libtorch_python.so")  # as `import torch` opens them


def facts(look: Look, launch: Launch, interpreter: Interpreter) -> Iterator[Fact | Unknown]:
    """A fact for each family that would be loaded, is missed, or is in sight."""
    search = Search(launch.environ, launch.cwd)
    problem = search.start(interpreter.executable) or search.cache.problem
    if problem:
        yield Unknown("launch", f"{PREFIX}*", shown(problem))
        return
    for site in interpreter.site_packages:
        for root in _ROOTS:
            if os.path.exists(f"{site}/{root}"):
                search.open(f"{site}/{root}", "torch")
    inside = _Inside(interpreter.prefix)
    in_sight = _in_sight(search, interpreter)
    for family in FAMILIES:
        fact = _fact(family, search, inside, in_sight.get(family, ()), look)
        if fact is not None:
            yield fact


class _Inside:
    """Paths as they are the same for an environment wherever it lies."""

    def __init__(self, prefix: str) -> None:
        self._prefixes = {prefix.rstrip("/") + "/", os.path.realpath(prefix) + "/"} - {"/", "/usr/"}

    def holds(self, path: str) -> bool:
        return any(path.startswith(prefix) for prefix in self._prefixes)

    def name(self, path: str) -> str:
        for prefix in self._prefixes:
            if path.startswith(prefix):
                return shown(f"ENV/{path[len(prefix) :]}")
        return shown(path)


def _fact(family: str, search: Search, inside: _Inside, in_sight: tuple[str, ...], look: Look) -> Fact | Unknown | None:
    wins = _loaded(family, search)
    missing = sorted({one for one in search.missing if _is_of(family, one.name)})
    if not wins and not missing:
        opened = _opened(family, search, in_sight)
        if opened is None:
            return None
        wins = [opened]
    attributes: dict[str, Value] = {}
    told: dict[str, Value] = {}
    if wins:
        attributes["path"] = ", ".join(inside.name(one.path) for one in wins)
        attributes["file"] = ", ".join(shown(os.path.basename(os.path.realpath(one.path))) for one in wins)
        attributes["by"] = ", ".join(dict.fromkeys(one.by for one in wins))
        outside = [one for one in wins if not inside.holds(os.path.realpath(one.path))]
        builds = [_build(one, look) for one in outside]
        trouble = next((one for one in builds if isinstance(one, Trouble)), None)
        if trouble is not None:
            return Unknown("launch", PREFIX + family, shown(f"{trouble.path}: {trouble.reason}"))
        if builds:
            attributes["build"] = ", ".join(map(str, builds))
        mixed = tuple(_mixed(wins[0], search, inside))
        if mixed:
            attributes["mixed"] = mixed
        if wins[0].loader is not None:
            told["needed_by"] = inside.name(wins[0].loader.path)
    if missing:
        attributes["missing"] = tuple(f"{shown(one.name)} of {inside.name(one.needed_by)}" for one in missing)
    real = {os.path.realpath(one.path) for one in wins}
    also = [inside.name(path) for path in in_sight if os.path.realpath(path) not in real]
    if also:
        told["also"] = tuple(dict.fromkeys(also))
    return Fact("launch", PREFIX + family, attributes, told)


def _loaded(family: str, search: Search) -> list[Loaded]:
    found = {one.path: one for name, one in search.loaded.items() if _is_of(family, name)}
    return [found[path] for path in sorted(found)]


def _is_of(family: str, name: str) -> bool:
    return re.fullmatch(rf"{re.escape(family)}\.so(\.\d+)*", name) is not None


def _opened(family: str, search: Search, in_sight: tuple[str, ...]) -> Loaded | None:
    """What opening it by name would give: nobody needs it at the start."""
    executable = search.loaded[search.executable_name]
    names = [_NAMES[family]] if family in _NAMES else _versioned(in_sight)
    for name in names:
        found = search.find(name, executable)
        if isinstance(found, Loaded):
            return found._replace(loader=None)
    return None


def _versioned(paths: tuple[str, ...]) -> list[str]:
    """Names as programs open them, `libcudnn.so.9`; the bare one, which is for linking, last."""
    return sorted({os.path.basename(path) for path in paths}, key=lambda name: (name.endswith(".so"), name))


def _build(one: Loaded, look: Look) -> str | Trouble:
    if one.elf.build:
        return one.elf.build
    real = os.path.realpath(one.path)
    digest = look.disk.digests([real])[real]
    return digest if isinstance(digest, Trouble) else f"sha256:{digest}"


def _mixed(winner: Loaded, search: Search, inside: _Inside) -> Iterator[str]:
    """Parts that a library opens by name (`libcudnn_ops.so.9`) and that would come from elsewhere."""
    family, _, version = winner.name.partition(".so")
    folder = os.path.dirname(os.path.realpath(winner.path))
    try:
        names = sorted(os.listdir(folder))
    except OSError:
        return
    parts = [name for name in names if name.startswith(f"{family}_") and name.endswith(f".so{version}")]
    for name in parts if family == "libcudnn" else ():
        found = search.loaded.get(name) or search.find(name, winner)
        if isinstance(found, Missing):
            continue
        if os.path.dirname(os.path.realpath(found.path)) != folder:
            yield f"{shown(name)} from {inside.name(os.path.dirname(found.path))} by {found.by}"


def _in_sight(search: Search, interpreter: Interpreter) -> dict[str, tuple[str, ...]]:
    """Every file of a family: on LD_LIBRARY_PATH, in the environment's folders of libraries, in the loader's cache."""
    found: dict[str, list[str]] = {}
    folders = [*search.library_path, f"{interpreter.prefix}/lib"]
    for site in interpreter.site_packages:
        folders += [f"{site}/torch/lib", *_nvidia(f"{site}/nvidia")]
    for folder in dict.fromkeys(folders):
        for name in _names(folder):
            family = name.partition(".so")[0]
            if family in FAMILIES and _is_of(family, name):
                found.setdefault(family, []).append(f"{folder}/{name}")
    for name, paths in search.cache.paths.items():
        family = name.partition(".so")[0]
        if family in FAMILIES and _is_of(family, name):
            found.setdefault(family, []).extend(paths)
    return {family: tuple(dict.fromkeys(paths)) for family, paths in found.items()}


def _nvidia(base: str) -> list[str]:
    return [f"{base}/{name}/lib" for name in _names(base)]


def _names(folder: str) -> list[str]:
    try:
        return sorted(os.listdir(folder))
    except OSError:
        return []
