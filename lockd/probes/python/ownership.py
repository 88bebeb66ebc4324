"""Who owns what: paths that two packages claim with different bytes, and files that nobody claims.

Always holds: sorted, and the same whichever package was installed last. Start-up code belongs to `python:ENV` and
byte-code beside a source to that source; neither is unowned.
Never: reads a file.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from lockd.facts import shown
from lockd.probes.python.bytecode import derived
from lockd.probes.python.ground import LINK, Ground
from lockd.probes.python.packages import Package, leftovers
from lockd.probes.python.record import is_note
from lockd.probes.python.startup import is_startup_file

_LIBRARY = re.compile(r"lib/[^/]+\.so(?:\.[^/]*)?")


def owners(packages: Iterable[Package]) -> dict[str, str]:
    """Absolute path → the package that lists it (of several the first by name)."""
    found: dict[str, str] = {}
    for package in packages:
        for path in (*package.listed, *package.notes):
            found.setdefault(package.absolute(path), package.name)
    return found


def shared(packages: Iterable[Package]) -> dict[str, tuple[str, ...]]:
    """Package → in words, the paths that it and another own with different digests (cutlass#3259, nvidia-nccl-cu12
    and -cu13)."""
    first: dict[str, tuple[str, str]] = {}
    pairs: dict[tuple[str, str], list[str]] = {}
    for package in packages:
        for path, digest in package.listed.items():
            absolute = package.absolute(path)
            other, others = first.setdefault(absolute, (package.name, digest))
            if other != package.name and digest != others:
                pairs.setdefault((other, package.name), []).append(path)
    found: dict[str, list[str]] = {}
    for (one, other), paths in sorted(pairs.items()):
        count = "1 file" if len(paths) == 1 else f"{len(paths)} files"
        words = f"{count}, {shown(min(paths))}"
        found.setdefault(one, []).append(f"{other}: {words}")
        found.setdefault(other, []).append(f"{one}: {words}")
    return {name: tuple(sorted(lines)) for name, lines in found.items()}


def unowned(ground: Ground, packages: list[Package], owned: Mapping[str, str]) -> dict[str, list[str]]:
    """Site folder → its files that belong to nothing, sorted."""
    folders = {one.folder for package in packages for one in package.distributions}
    left = {top for tops in leftovers(ground, packages).values() for top in tops}
    found: dict[str, list[str]] = {}
    for site in ground.sites:
        names = ground.trees[site].entries
        found[site] = [
            path
            for path, mark in ground.listing(site).files.items()
            if f"{site}/{path}" not in owned
            and not is_startup_file(path)
            and not _note(path, folders)
            and path.partition("/")[0] not in left
            and not (mark == LINK and _stands_for_folder(f"{site}/{path}/", owned))
            and not derived(path, names)
        ]
    found.update(_libraries(ground, owned))
    return found


def _libraries(ground: Ground, owned: Mapping[str, str]) -> dict[str, list[str]]:
    """Links of no package to libraries in a conda prefix's lib folder: the loader finds libraries by such names."""
    tree = ground.trees.get(ground.prefix) if ground.prefix not in ground.sites else None
    every = tree.entries.items() if tree is not None else ()
    names = [path for path, entry in every if entry.kind == "l" and _LIBRARY.fullmatch(path)]
    loose = [path for path in names if f"{ground.prefix}/{path}" not in owned]
    return {ground.prefix: loose} if loose else {}


def _stands_for_folder(prefix: str, owned: Mapping[str, str]) -> bool:
    """A link in the place of a package's folder is that package's matter."""
    return any(path.startswith(prefix) for path in owned)


def _note(path: str, folders: set[str]) -> bool:
    folder = path.partition("/")[0]
    return folder in folders and is_note(path, folder)
