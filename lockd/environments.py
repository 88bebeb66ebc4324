"""The files of an environment by what they belong to: a package, the start-up code, nobody. For keep and restore.

Always holds: paths are absolute, inside the environment, and come from the same reading of the same records as the
facts do. Byte-code is derived: it is listed only beside a source that is going to change.
Never: reads a content that counts, or runs anything of the environment.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property

from lockd.disk import Disk
from lockd.facts import Unknown
from lockd.globs import matches
from lockd.probes.python import conda, distributions, packages
from lockd.probes.python.ground import Ground, open_ground, sites_of
from lockd.probes.python.interpreter import Interpreter, find
from lockd.probes.python.names import is_metadata, normal
from lockd.probes.python.record import is_note
from lockd.probes.python.startup import is_startup_file
from lockd.rules import PythonRule

_CACHE = "__pycache__"
_PROGRAMS = ("python", "python3")


@dataclass
class Environment:
    """One environment as it is now."""

    rule: PythonRule
    interpreter: Interpreter
    disk: Disk

    @cached_property
    def ground(self) -> Ground:
        return open_ground(self.interpreter, self.disk, self.rule.exclude)

    @cached_property
    def stock(self) -> dict[str, packages.Package]:
        """Its packages by PEP 503 name."""
        records, _ = conda.records(self.ground)
        listed = packages.assemble(self.ground, distributions.scan(self.ground), records)
        return {package.name: package for package in listed}

    def files_of(self, name: str) -> set[str]:
        """Every file of a package that is there: listed ones, its metadata folders whole, leftovers of it."""
        package = self.stock.get(name)
        if package is None:
            return set()
        found = {package.absolute(path) for path in (*package.listed, *package.notes) if not path.endswith(".pyc")}
        for one in package.distributions:
            found |= set(self._below(one.site, one.folder))
        found |= self.below(packages.leftovers(self.ground, self.stock.values()).get(name, ()))
        return {path for path in found if self.ground.is_inside(path) and os.path.lexists(path)}

    @cached_property
    def _by_top(self) -> dict[tuple[str, str], list[str]]:
        """The files of the site folders by the name directly under the folder: one pass, however many packages ask."""
        found: dict[tuple[str, str], list[str]] = {}
        for site in self.ground.sites:
            for name in self.ground.listing(site).files:
                found.setdefault((site, name.partition("/")[0]), []).append(f"{site}/{name}")
        return found

    def below(self, tops: Iterable[str]) -> set[str]:
        """Every file under these names right in a site folder."""
        return {path for top in tops for site in self.ground.sites for path in self._below(site, top)}

    def _below(self, site: str, top: str) -> Iterator[str]:
        yield from self._by_top.get((site, top), ())

    def owned_by_others(self, names: Iterable[str]) -> set[str]:
        """The paths that packages beside these list."""
        mine = frozenset(names)
        others = (package for name, package in self.stock.items() if name not in mine)
        return {package.absolute(path) for package in others for path in (*package.listed, *package.notes)}

    def notes(self) -> Iterator[str]:
        """What installers noted beside each package: who, from where, whether it was asked for.

        From the metadata folders themselves: every accept asks, and needs neither the trees nor a RECORD for it.
        """
        excluded = matches(self.rule.exclude)
        for site in sites_of(self.interpreter):
            for folder in filter(is_metadata, _names(site)):
                if excluded(folder) or os.path.islink(f"{site}/{folder}"):
                    continue
                for relative in (f"{folder}/{name}" for name in _names(f"{site}/{folder}")):
                    wanted = is_note(relative, folder) and not relative.endswith("/RECORD") and not excluded(relative)
                    if wanted and not _is_folder(f"{site}/{relative}"):
                        yield f"{site}/{relative}"

    def start_up(self) -> list[str]:
        """Start-up code in its own site folders, pyvenv.cfg, and where its interpreter is a link, that link."""
        prefix = self.interpreter.prefix
        found = [path for site in self.interpreter.site_packages for path in _start_files(site)]
        config = os.path.join(prefix, "pyvenv.cfg")
        links = [os.path.join(self.interpreter.bin, name) for name in (*_PROGRAMS, f"python{self.interpreter.minor}")]
        return [*found, *filter(os.path.isfile, [config]), *filter(os.path.islink, links)]

    @property
    def site(self) -> str:
        """Where packages go."""
        return next(iter(self.interpreter.site_packages), "")

    def absolute(self, path: str) -> str:
        """A path of the `unowned` manifest: relative to the first site folder, else to the prefix."""
        inside = f"{self.site}/{path}"
        return inside if os.path.lexists(inside) or not path.startswith(("lib", "bin")) else f"{self.prefix}/{path}"

    @property
    def prefix(self) -> str:
        return self.interpreter.prefix


def open_environment(rule: PythonRule, disk: Disk) -> Environment | None:
    """The environment of a rule; None where there is none, or it can't be read."""
    found = find(rule, disk)
    return None if found is None or isinstance(found, Unknown) else Environment(rule, found, disk)


def byte_code(sources: Iterable[str]) -> Iterator[str]:
    """The compiled files that stand beside these sources."""
    for path in sources:
        folder, name = os.path.split(path)
        stem, dot, ending = name.rpartition(".")
        if ending != "py" or not dot:
            continue
        try:
            compiled = os.listdir(f"{folder}/{_CACHE}")
        except OSError:
            continue
        yield from (f"{folder}/{_CACHE}/{one}" for one in sorted(compiled) if one.startswith(f"{stem}."))


def package_name(fact: str) -> str:
    """The PEP 503 name behind `package:train/torch`."""
    return normal(fact.rpartition("/")[2])


def _names(folder: str) -> list[str]:
    """The names in a folder, sorted; none where it is no folder, or can't be read."""
    try:
        return sorted(os.listdir(folder))
    except OSError:
        return []


def _is_folder(path: str) -> bool:
    return os.path.isdir(path) and not os.path.islink(path)


def _start_files(site: str) -> Iterator[str]:
    for name in filter(is_startup_file, _names(site)):
        path = f"{site}/{name}"
        if _is_folder(path):
            walk = ((folder, files) for folder, _, files in os.walk(path) if _CACHE not in folder.split("/"))
            yield from (os.path.join(folder, one) for folder, files in walk for one in sorted(files))
        else:
            yield path
