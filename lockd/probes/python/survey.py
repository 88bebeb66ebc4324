"""The packages of an environment found out from its files: everything that an unchanged environment need not compute.

Always holds: what it finds depends on the trees, the listed files outside them and the checkouts alone, so that it may
be remembered by their stamps.
Never: decides whether it has to be done (that is `environment`).
"""

from __future__ import annotations

import posixpath
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property

from lockd.disk import Trouble
from lockd.facts import Attributes, Fact
from lockd.globs import matches
from lockd.look import Look
from lockd.probes import Manifest, Seen
from lockd.probes.python import (
    bytecode,
    conda,
    contents,
    describe,
    distributions,
    loose,
    ownership,
    packages,
    startup,
)
from lockd.probes.python.ground import LINK, Ground
from lockd.probes.python.interpreter import Interpreter
from lockd.rules import PythonRule


@dataclass
class Survey:
    """One environment in one look; the inventory is made at most once."""

    rule: PythonRule
    look: Look
    interpreter: Interpreter
    ground: Ground

    @cached_property
    def _inventory(self) -> tuple[list[packages.Package], list[Trouble]]:
        records, troubles = conda.records(self.ground)
        return packages.assemble(self.ground, distributions.scan(self.ground), records), troubles

    def outside(self) -> Seen:
        """Listed files that no tree covers (scripts, data files, a cache that links lead to), and checkouts."""
        ground, stock = self.ground, self._inventory[0]
        found: set[str] = set()
        for package in stock:
            for absolute in map(package.absolute, package.listed):
                if ground.locate(absolute) is None and ground.is_inside(absolute):
                    found.add(absolute)
                if ground.mark(absolute) == LINK:
                    found.add(posixpath.realpath(absolute))
        checkouts = sorted({path for package in stock if (path := describe.checkout_of(package))})
        told: Attributes = {"files": tuple(sorted(found)), "checkouts": tuple(checkouts)}
        return Seen((Fact("outside", self.rule.name, {}, told),))

    def seen(self) -> Seen:
        """1. contents, 2. a fact a package, 3. what nobody owns, 4. notes for the start-up fact."""
        stock, troubles = self._inventory
        read = contents.read(self.ground, stock) if self.rule.integrity == "full" else None
        around = self._surroundings(stock, read)
        described = [describe.package_fact(package, around) for package in stock]
        owners = ownership.owners(stock)
        described.append(loose.fact(self.rule, self.ground, stock, owners, troubles))
        manifests: dict[str, Manifest] = {fact.name: manifest for fact, manifest in described}
        notes = self._notes(owners, self._pristine(stock, owners, around))
        return Seen((*(fact for fact, _ in described), notes), lambda: manifests)

    def _surroundings(
        self, stock: list[packages.Package], read: Mapping[str, contents.Content | Trouble] | None
    ) -> describe.Surroundings:
        rule, ground = self.rule, self.ground
        shared = ownership.shared(stock)
        return describe.Surroundings(rule, ground, self.interpreter.version, read, shared, self._excluded())

    def _excluded(self) -> Callable[[str], bool]:
        """Is an absolute path left out by the rule? Its globs are relative to a site folder."""
        if not self.rule.exclude:
            return lambda path: False
        is_match = matches(self.rule.exclude)

        def excluded(path: str) -> bool:
            site = next((site for site in self.ground.sites if path.startswith(site + "/")), None)
            return site is not None and is_match(path[len(site) + 1 :])

        return excluded

    def _pristine(
        self, stock: list[packages.Package], owners: Mapping[str, str], around: describe.Surroundings
    ) -> Callable[[str], bool | None]:
        """Is a listed file as its package shipped it? None: nobody lists it, or not with a digest."""
        by_name = {package.name: package for package in stock}

        def pristine(path: str) -> bool | None:
            package = by_name.get(owners.get(path, ""))
            content = around.contents.get(path) if around.contents is not None else None
            if package is None or not isinstance(content, contents.Content):
                return None
            recorded = package.listed.get(posixpath.relpath(path, package.base))
            return content.digest == recorded if recorded and ":" not in recorded else None

        return pristine

    def _stale(self, site: str, pristine: Callable[[str], bool | None]) -> bytecode.Stale:
        tree = self.ground.trees[site]
        return bytecode.stale(self.interpreter, tree, self.look, lambda path: pristine(f"{site}/{path}"))

    def _notes(self, owners: Mapping[str, str], pristine: Callable[[str], bool | None]) -> Fact:
        """What the start-up fact needs to know of packages, carried by the memo with them."""
        ground = self.ground
        stale = bytecode.merged(self._stale(site, pristine) for site in ground.sites)
        starting = {path for site in ground.sites for path in owners if _starts(site, path)}
        owned = [f"{path}\0{owners[path]}" for path in starting]
        told: Attributes = {
            "owned": tuple(sorted(owned)),
            "foreign": stale.foreign,
            "hidden": stale.hidden,
            "bytecode": stale.notes,
        }
        return Fact("notes", self.rule.name, {}, told)


def _starts(site: str, path: str) -> bool:
    return path.startswith(site + "/") and startup.is_startup_file(path[len(site) + 1 :])
