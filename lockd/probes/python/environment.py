"""A whole environment looked at: packages, unowned files, start-up code, out of the memo where nothing moved.

Always holds: what is derived from the trees is computed again only when a tree, a listed file outside the trees, or a
checkout behind an editable install moved. A site folder that could not be listed makes the environment unknown, never
empty.
Never: compares, or runs anything of the environment.
"""

from __future__ import annotations

import hashlib
import posixpath
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from lockd.disk import Trouble
from lockd.facts import ABSENT, Attributes, Fact, Unknown, shown
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
    origins,
    ownership,
    packages,
    startup,
)
from lockd.probes.python.ground import Ground, open_ground
from lockd.probes.python.interpreter import Interpreter, find
from lockd.rules import PythonRule

_BUILD = 1  # rises when what is derived from equal trees changes, so that no older memo answers


def look_at(rule: PythonRule, look: Look) -> Seen:
    """1. the interpreter, 2. its trees, 3. what lies outside them, 4. the packages, 5. the start-up code."""
    interpreter = find(rule, look.disk)
    if interpreter is None:
        return Seen((Fact("python", rule.name, ABSENT),))
    if isinstance(interpreter, Unknown):
        return Seen((interpreter,))
    ground = open_ground(interpreter, look.disk, rule.exclude)
    unlisted = next((trouble for trouble in ground.troubles() if trouble.path in ground.trees), None)
    if unlisted is not None:
        return Seen((Unknown("python", rule.name, f"{shown(unlisted.path)}: {unlisted.reason}"),))
    found = _Found(rule, look, interpreter, ground)
    seen = found.seen()
    notes = next(fact for fact in seen.facts if fact.kind == "notes")
    assert isinstance(notes, Fact)
    facts = tuple(fact for fact in seen.facts if fact.kind != "notes")
    return Seen((*facts, _python_fact(rule, look, interpreter, notes)), seen.manifests)


def _python_fact(rule: PythonRule, look: Look, interpreter: Interpreter, notes: Fact) -> Fact | Unknown:
    lines = [line.partition("\0") for line in _strings(notes, "owned")]
    owned = {path: name for path, _, name in lines}
    stale = bytecode.Stale(_strings(notes, "foreign"), _strings(notes, "hidden"), _strings(notes, "bytecode"))
    extra = tuple(
        f"{name} {version}" for root in interpreter.base_site for name, version in distributions.names_in(root)
    )
    return startup.python_fact(rule, look, interpreter, owned.get, extra, stale)


def _strings(notes: Fact, name: str) -> tuple[str, ...]:
    value = notes.told[name]
    assert isinstance(value, tuple)
    return value


@dataclass
class _Found:
    """What one look finds out about one environment, each part at most once and only when the memo does not know."""

    rule: PythonRule
    look: Look
    interpreter: Interpreter
    ground: Ground

    @cached_property
    def inventory(self) -> tuple[list[packages.Package], list[Trouble]]:
        records, troubles = conda.records(self.ground)
        return packages.assemble(self.ground, distributions.scan(self.ground), records), troubles

    def seen(self) -> Seen:
        trees = [tree.stamp for tree in self.ground.trees.values()]
        if self.look.disk.full:  # every byte again: what is remembered proves nothing
            return self._see()
        outside = self.look.memo.recall(self._key("outside"), _stamp(trees), self._outside)
        (places,) = outside.facts
        assert isinstance(places, Fact)
        files, checkouts = _strings(places, "files"), _strings(places, "checkouts")
        stamp = _stamp([*trees, *self._stamps(files), *self._checkout_stamps(checkouts)])
        return self.look.memo.recall(self._key("packages"), stamp, self._see)

    def _key(self, part: str) -> tuple[Any, ...]:
        rule, python = self.rule, self.interpreter
        return "python", part, _BUILD, rule.name, rule.path, rule.integrity, rule.exclude, python.prefix, python.version

    def _outside(self) -> Seen:
        """Listed files that no tree covers (scripts, data files, a cache that links lead to), and checkouts."""
        ground = self.ground
        found: set[str] = set()
        for package in self.inventory[0]:
            for absolute in map(package.absolute, package.listed):
                if ground.locate(absolute) is None and ground.is_inside(absolute):
                    found.add(absolute)
                entry = ground.entry(absolute)
                if entry is not None and not isinstance(entry, Trouble) and entry.kind == "l":
                    found.add(ground.resolve(absolute, entry))
        checkouts = sorted({path for package in self.inventory[0] if (path := describe.checkout_of(package))})
        told: Attributes = {"files": tuple(sorted(found)), "checkouts": tuple(checkouts)}
        return Seen((Fact("outside", self.rule.name, {}, told),))

    def _stamps(self, files: tuple[str, ...]) -> Iterable[str]:
        disk = self.look.disk
        digests = disk.digests(files) if self.rule.integrity == "full" else {}
        for path in files:
            entry = disk.entry(path)
            mode = "" if entry is None or isinstance(entry, Trouble) else f"{entry.kind} {entry.mode:o}"
            yield f"{path}\0{mode}\0{digests.get(path)}"

    def _checkout_stamps(self, checkouts: tuple[str, ...]) -> Iterable[str]:
        disk = self.look.disk
        for path in checkouts:
            yield disk.tree(path, origins.SOURCES_APART, follow_root=True).stamp
            yield from (f"{file}\0{disk.entry(file)}" for file in origins.git_inputs(disk, path))

    def _see(self) -> Seen:
        """1. contents, 2. a fact a package, 3. what nobody owns, 4. notes for the start-up fact."""
        stock, troubles = self.inventory
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


def _stamp(parts: Iterable[str]) -> str:
    return hashlib.sha256("\n".join(parts).encode("utf-8", "surrogateescape")).hexdigest()
