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
from lockd.facts import Attributes, Fact, Unknown
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


@dataclass(frozen=True)
class Findings:
    """What was found in an environment, or in a part of it, before it is put together.

    loose: what nobody owns, by absolute path; starting: start-up files and who owns them; bytecode: by site folder;
    pristine: is a source (absolute) as its package shipped it?
    """

    packages: list[tuple[Fact | Unknown, dict[str, str]]]
    loose: Mapping[str, contents.Content | Trouble]
    starting: Mapping[str, str]
    bytecode: Mapping[str, bytecode.Found]
    pristine: Callable[[str], bool | None]


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
        files, checkouts = places(self.ground, self.stock())
        told: Attributes = {"files": files, "checkouts": checkouts}
        return Seen((Fact("outside", self.rule.name, {}, told),))

    def seen(self) -> Seen:
        """All of it, put together."""
        return put_together(self.rule, self.look, self.interpreter, self.ground, [self.findings()], self.troubles())

    def troubles(self) -> list[Trouble]:
        """What could not be read of who owns what, beside the trees' own troubles."""
        return self._inventory[1]

    def stock(self) -> list[packages.Package]:
        """The packages."""
        return self._inventory[0]

    def findings(self) -> Findings:
        """1. contents, 2. a fact a package, 3. what nobody owns, 4. byte-code, 5. who owns start-up files."""
        stock = self.stock()
        read = contents.read(self.ground, stock) if self.rule.integrity == "full" else None
        around = self._surroundings(stock, read)
        described = [describe.package_fact(package, around) for package in stock]
        owners = ownership.owners(stock)
        loose_words = loose.words(self.rule, self.ground, stock, owners)
        pristine = _pristine(stock, around)
        starting = {path for site in self.ground.sites for path in owners if _starts(site, path)}
        return Findings(
            described,
            loose_words,
            {path: owners[path] for path in starting},
            {site: self.bytecode_of(site, pristine) for site in self.ground.sites},
            pristine,
        )

    def bytecode_of(self, site: str, pristine: Callable[[str], bool | None]) -> bytecode.Found:
        """The byte-code of one site folder; pristine is asked with absolute paths."""
        tree, every = self.ground.trees[site], self.look.disk.full
        return bytecode.found(self.interpreter, tree, lambda path: pristine(f"{site}/{path}"), every=every)

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


def places(ground: Ground, stock: list[packages.Package]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Listed files outside the trees (and those that links lead to), and checkouts."""
    found: set[str] = set()
    for package in stock:
        for absolute in map(package.absolute, package.listed):
            if ground.locate(absolute) is None and ground.is_inside(absolute):
                found.add(absolute)
            if ground.mark(absolute) == LINK:
                found.add(posixpath.realpath(absolute))
    checkouts = {path for package in stock if (path := describe.checkout_of(package))}
    return tuple(sorted(found)), tuple(sorted(checkouts))


def _pristine(stock: list[packages.Package], around: describe.Surroundings) -> Callable[[str], bool | None]:
    """Is a listed source as its package shipped it? None: nobody lists it, or not with a digest."""
    recorded: dict[str, str] = {}
    for package in stock:
        for path, digest in package.listed.items():
            recorded.setdefault(package.absolute(path), digest)

    def pristine(path: str) -> bool | None:
        stated = recorded.get(path)
        content = around.contents.get(path) if around.contents is not None else None
        if not isinstance(content, contents.Content) or not stated or ":" in stated:
            return None
        return content.digest == stated

    return pristine


def put_together(
    rule: PythonRule,
    look: Look,
    interpreter: Interpreter,
    ground: Ground,
    parts: list[Findings],
    troubles: list[Trouble],
) -> Seen:
    """The facts of an environment out of what was found in its parts, however it was parted."""
    described = [pair for part in parts for pair in part.packages]
    described.sort(key=lambda pair: pair[0].subject)
    read = {path: word for part in parts for path, word in part.loose.items()}
    described.append(loose.fact(rule, ground, dict(sorted(read.items())), troubles))
    manifests: dict[str, Manifest] = {fact.name: manifest for fact, manifest in described}
    stale = bytecode.merged(_judged(look, interpreter, ground, site, parts) for site in ground.sites)
    owned = [f"{path}\0{name}" for part in parts for path, name in part.starting.items()]
    told: Attributes = {
        "owned": tuple(sorted(owned)),
        "foreign": stale.foreign,
        "hidden": stale.hidden,
        "bytecode": stale.notes,
    }
    notes = Fact("notes", rule.name, {}, told)
    return Seen((*(fact for fact, _ in described), notes), lambda: manifests)


def _judged(look: Look, interpreter: Interpreter, ground: Ground, site: str, parts: list[Findings]) -> bytecode.Stale:
    known = [part.bytecode[site] for part in parts if site in part.bytecode]
    graded = [pair for one in known for pair in one.graded]
    notes = [pair for one in known for pair in one.notes]
    return bytecode.judged(interpreter, ground.trees[site], look, bytecode.Found(graded, notes))


def _starts(site: str, path: str) -> bool:
    return path.startswith(site + "/") and startup.is_startup_file(path[len(site) + 1 :])
