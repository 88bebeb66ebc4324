"""An environment surveyed by parts, so that only those that moved are surveyed again.

A part is a set of names right under the site folders, and the packages that speak of them, tied together by all that
one package may learn from another: a name that two of them list files under, a file outside the site folders, the
package's name, the files that a package without a RECORD would claim.
Always holds: what comes out is what one survey of the whole would give. A part is taken from the memo only while the
source prints of its names, the listed files outside the trees and the checkouts are what they were; byte-code that
came or went is judged anew without looking at the packages. A part that holds an Unknown is never kept.
Never: parts what it cannot part (a conda prefix, leftovers of pip, trees that could not be read: `parted` says so).
"""

from __future__ import annotations

import marshal
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from hashlib import sha256
from typing import Any, NamedTuple

from lockd.disk import Trouble
from lockd.entries import Entries
from lockd.facts import Fact, Unknown
from lockd.look import Look
from lockd.plain import replace
from lockd.probes import Seen
from lockd.probes.python import bytecode, survey
from lockd.probes.python.contents import Content
from lockd.probes.python.environment import strings
from lockd.probes.python.ground import Ground
from lockd.probes.python.interpreter import Interpreter
from lockd.probes.python.names import is_leftover, split_folder
from lockd.probes.python.packages import Package
from lockd.probes.python.prints import CACHE, Print, prints
from lockd.rules import PythonRule

Stamps = Callable[[tuple[str, ...], tuple[str, ...]], str]  # of listed files outside the trees, and of checkouts


class Part(NamedTuple):
    """What was found in one part, in values that marshal takes.

    keys: what ties it together; source, whole: prints of all its names; outside: stamp of `files` and `checkouts`.
    lone: some of its byte-code has no source, so that it counts for the packages. impure: sources that are not as their
    package shipped them, or of which nobody knows. manifests: marshalled, for they are seldom asked for.
    """

    keys: tuple[str, ...]
    source: bytes
    whole: bytes
    files: tuple[str, ...]
    checkouts: tuple[str, ...]
    outside: str
    lone: bool
    facts: tuple[tuple[Any, ...], ...]
    manifests: bytes
    loose: dict[str, str]
    starting: dict[str, str]
    bytecode: dict[str, tuple[list[tuple[int, tuple[Any, ...]]], list[tuple[str, str]]]]
    impure: dict[str, bool | None]


def can_part(look: Look, interpreter: Interpreter, ground: Ground) -> bool:
    """Is this an environment whose parts do not depend on each other, and a look that remembers?"""
    if (
        not look.memo.remembers
        or look.disk.full
        or interpreter.kind == "conda"
        or set(ground.trees) != set(ground.sites)
    ):
        return False
    return not any(ground.troubles()) and not any(map(is_leftover, _names(ground)))


def _names(ground: Ground) -> Iterator[str]:
    return (name for site in ground.sites for page in _root(ground, site) for name in page)


def _root(ground: Ground, site: str) -> Iterator[list[str]]:
    entries = ground.trees[site].entries
    pages = entries.record().folders.get("", ()) if isinstance(entries, Entries) else ()
    return (page.listed() for page in pages)


@dataclass
class Parts:
    """One environment in one look. key: of the memo; stamps: of what lies outside the trees."""

    rule: PythonRule
    look: Look
    interpreter: Interpreter
    ground: Ground
    key: tuple[Any, ...]
    stamps: Stamps
    kept: list[Part] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Which parts are as they were, by their prints."""
        known = self.look.memo.kept(self.key) or ()
        self.kept = [part for part in map(_part, known) if self._print(part.keys).source == part.source]

    # -- what is known, and what has to be surveyed ------------------------------------------------------------------

    @cached_property
    def _prints(self) -> dict[str, dict[str, Print]]:
        """Site → name → print."""
        return {site: prints(self.ground.trees[site]) for site in self.ground.sites}

    @cached_property
    def _tops(self) -> dict[str, list[tuple[str, str]]]:
        """Key → (site, name) of all that it stands for."""
        found: dict[str, list[tuple[str, str]]] = defaultdict(list)
        for site, names in self._prints.items():
            for name in names:
                for key in _keys(site, name):
                    found[key].append((site, name))
        return found

    def _print(self, keys: Iterable[str]) -> Print:
        source, whole = sha256(), sha256()
        for key in sorted(keys):
            for site, name in sorted(self._tops.get(key, ())):
                head = f"{key}\0{site}\0{name}\0".encode("utf-8", "surrogateescape")
                known = self._prints[site][name]
                if known.source:
                    source.update(head + known.source)
                whole.update(head + known.whole)
        return Print(source.digest(), whole.digest())

    def _free(self) -> set[tuple[str, str]]:
        """The names that no part which is kept answers for."""
        taken = {key for part in self.kept for key in part.keys}
        return {top for key, tops in self._tops.items() if key not in taken for top in tops}

    @cached_property
    def _survey(self) -> survey.Survey:
        """The survey of the rest; a part that a package of it speaks of belongs to the rest."""
        while True:
            rest = survey.Survey(self.rule, self.look, self.interpreter, _within(self.ground, self._free()))
            spoken = {key for package in rest.stock() for key in package_keys(self.ground, package)}
            apart = [part for part in self.kept if spoken.isdisjoint(part.keys)]
            if len(apart) == len(self.kept):
                return rest
            self.kept = apart

    def _keep_only(self, parts: list[Part]) -> None:
        if len(parts) < len(self.kept):
            self.kept = parts
            self.__dict__.pop("_survey", None)

    # -- what comes of it --------------------------------------------------------------------------------------------

    def outside(self) -> Seen:
        """As `Survey.outside`."""
        (places,) = self._survey.outside().facts  # first, as it may let go of parts
        assert isinstance(places, Fact)
        files, checkouts = set(strings(places, "files")), set(strings(places, "checkouts"))
        files.update(path for part in self.kept for path in part.files)
        checkouts.update(path for part in self.kept for path in part.checkouts)
        told = {"files": tuple(sorted(files)), "checkouts": tuple(sorted(checkouts))}
        return Seen((Fact("outside", self.rule.name, {}, told),))

    def seen(self) -> Seen:
        """1. parts whose surroundings moved let go, 2. byte-code anew, 3. the rest surveyed, 4. all put together."""
        self._keep_only([part for part in self.kept if self.stamps(part.files, part.checkouts) == part.outside])
        renewed = {part.keys: self._renewed(part) for part in self.kept}
        self._keep_only([part for part in self.kept if renewed[part.keys] is not None])
        rest = self._survey
        parts = [part for keys in [part.keys for part in self.kept] if (part := renewed[keys]) is not None]
        findings = rest.findings()
        fresh = list(self._parted(rest, findings))
        if fresh or any(one is not old for one, old in zip(parts, self.kept, strict=True)):
            self.look.memo.keep(self.key, [tuple(part) for part in [*parts, *fresh]])
        together = [findings, *map(_findings, parts)]
        return survey.put_together(self.rule, self.look, self.interpreter, self.ground, together, rest.troubles())

    def _renewed(self, part: Part) -> Part | None:
        """The part with its byte-code as it is now; None: it counts for the packages, they have to be surveyed."""
        now = self._print(part.keys).whole
        if now == part.whole:
            return part
        ground = _within(self.ground, {top for key in part.keys for top in self._tops.get(key, ())})
        if part.lone or any(_lone(ground)):
            return None
        one = survey.Survey(self.rule, self.look, self.interpreter, ground)
        found = {site: one.bytecode_of(site, lambda path: part.impure.get(path, True)) for site in ground.sites}
        return part._replace(whole=now, bytecode=_plain(found))

    def _parted(self, rest: survey.Survey, findings: survey.Findings) -> Iterator[Part]:
        """What a survey found, by parts."""
        ties = _Ties()
        stock = {f"package:{self.rule.name}/{package.name}": package for package in rest.stock()}
        keys = {name: package_keys(self.ground, package) for name, package in stock.items()}
        free = self._free()
        for group in (*keys.values(), *(_keys(*top) for top in free)):
            ties.tie(group)
        drafts: dict[str, _Draft] = defaultdict(_Draft)
        for group in (*keys.values(), *(_keys(*top) for top in free)):
            drafts[ties.find(next(iter(group)))].keys.update(group)
        for fact, manifest in findings.packages:
            draft = drafts[ties.find(next(iter(keys[fact.name])))]
            draft.packages.append((fact, manifest))
            draft.stock.append(stock[fact.name])
        self._share_out(rest, findings, lambda path: drafts[ties.find(_keys(*self._top(path))[0])])
        for draft in drafts.values():
            if not draft.unknown and not any(isinstance(fact, Unknown) for fact, _ in draft.packages):
                yield self._finished(rest, draft)

    def _share_out(self, rest: survey.Survey, findings: survey.Findings, draft_of: Callable[[str], _Draft]) -> None:
        """Give each draft what was found under its names."""
        for path, content in findings.loose.items():
            if isinstance(content, Trouble):
                draft_of(path).unknown = True
            else:
                draft_of(path).loose[path] = content.word
        for path, name in findings.starting.items():
            draft_of(path).starting[path] = name
        for site, found in findings.bytecode.items():
            for grade, suspect in found.graded:
                draft_of(f"{site}/{suspect.pyc}").code(site).graded.append((grade, suspect))
            for path, line in found.notes:
                draft_of(f"{site}/{path}").code(site).notes.append((path, line))
        for path in _lone(rest.ground):
            draft_of(path).lone = True
        for site in rest.ground.sites:
            for name in rest.ground.listing(site).files:
                path = f"{site}/{name}"
                if name.endswith(".py") and (pristine := findings.pristine(path)) is not True:
                    draft_of(path).impure[path] = pristine

    def _top(self, path: str) -> tuple[str, str]:
        site = next(site for site in self.ground.sites if path.startswith(site + "/"))
        return site, path[len(site) + 1 :].partition("/")[0]

    def _finished(self, rest: survey.Survey, draft: _Draft) -> Part:
        keys = tuple(sorted(draft.keys))
        files, checkouts = survey.places(rest.ground, draft.stock)
        shown = self._print(keys)
        return Part(
            keys,
            shown.source,
            shown.whole,
            files,
            checkouts,
            self.stamps(files, checkouts),
            draft.lone or any(path.endswith(CACHE) for package in draft.stock for path in package.listed),
            tuple(_fields(fact) for fact, _ in draft.packages if isinstance(fact, Fact)),
            marshal.dumps({fact.name: dict(manifest) for fact, manifest in draft.packages}),
            draft.loose,
            draft.starting,
            _plain(draft.found),
            draft.impure,
        )


@dataclass
class _Draft:
    """A part while it is put together."""

    keys: set[str] = field(default_factory=set)
    stock: list[Package] = field(default_factory=list)
    packages: list[tuple[Fact | Unknown, dict[str, str]]] = field(default_factory=list)
    loose: dict[str, str] = field(default_factory=dict)
    starting: dict[str, str] = field(default_factory=dict)
    found: dict[str, bytecode.Found] = field(default_factory=dict)
    impure: dict[str, bool | None] = field(default_factory=dict)
    lone: bool = False
    unknown: bool = False

    def code(self, site: str) -> bytecode.Found:
        return self.found.setdefault(site, bytecode.Found([], []))


class _Ties:
    """Which keys belong together."""

    def __init__(self) -> None:
        self._above: dict[str, str] = {}

    def find(self, key: str) -> str:
        while (above := self._above.setdefault(key, key)) != key:
            self._above[key] = key = self._above[above]
        return key

    def tie(self, keys: Iterable[str]) -> None:
        first, *others = map(self.find, keys)
        for other in others:
            self._above[self.find(other)] = self.find(first)


# -- keys --------------------------------------------------------------------------------------------------------------


def _keys(site: str, name: str) -> tuple[str, ...]:
    """What a name right under a site folder answers to: a module to its stem, and to the byte-code of all modules."""
    stem = name.partition(".")[0] if name.endswith((".py", ".so")) else name
    module = name.endswith(".py") or bytecode.is_derived_name(name)
    return (f"{site}/{stem}", f"{site}/{CACHE}") if module and stem != CACHE else (f"{site}/{stem}",)


def package_keys(ground: Ground, package: Package) -> set[str]:
    """All that a package speaks of: its name, its metadata, the files that it lists, those that it would claim."""
    found = {f"name {package.name}"}
    heads: set[str] = set()
    for path in (*package.listed, *package.notes):
        if path.startswith("..") or package.base not in ground.sites:
            absolute = package.absolute(path)
            site = next((site for site in ground.sites if absolute.startswith(site + "/")), None)
            found.update(_keys(site, absolute[len(site) + 1 :].partition("/")[0]) if site else (f"file {absolute}",))
        else:
            heads.add(path.partition("/")[0])
    for head in heads:
        found.update(_keys(package.base, head))
    for one in package.distributions:
        written = split_folder(one.folder)[0]
        for name in (one.folder, *one.top_level, written, written.lower(), one.name.replace("-", "_")):
            found.update(_keys(one.site, name))
    return found


# -- plain values ------------------------------------------------------------------------------------------------------


def _within(ground: Ground, tops: set[tuple[str, str]]) -> Ground:
    """The same ground, of which only these names come up by themselves."""
    trees = {}
    for site, tree in ground.trees.items():
        assert isinstance(tree.entries, Entries)
        trees[site] = replace(tree, entries=tree.entries.within(frozenset(top for at, top in tops if at == site)))
    return Ground(ground.disk, ground.prefix, ground.bin, ground.sites, trees, ground.excluded)


def _lone(ground: Ground) -> Iterator[str]:
    """Byte-code (absolute) in `__pycache__` without a source: it may be unowned, or be claimed."""
    for site, tree in ground.trees.items():
        for name in tree.entries:
            if name.endswith(".pyc") and not bytecode.derived(name, tree.entries):
                yield f"{site}/{name}"


def _fields(fact: Fact) -> tuple[Any, ...]:
    return fact.kind, fact.subject, dict(fact.attributes), dict(fact.told), fact.tokens


def _plain(found: Mapping[str, bytecode.Found]) -> dict[str, Any]:
    return {
        site: ([(grade, tuple(suspect)) for grade, suspect in one.graded], list(one.notes))
        for site, one in found.items()
    }


def _part(fields: tuple[Any, ...]) -> Part:
    return Part(*fields)


def _findings(part: Part) -> survey.Findings:
    manifests: dict[str, dict[str, str]] = marshal.loads(part.manifests)  # noqa: S302  our own, out of a whole file
    facts = [Fact(*fields) for fields in part.facts]
    found = {
        site: bytecode.Found([(grade, bytecode.Suspect(*suspect)) for grade, suspect in graded], notes)
        for site, (graded, notes) in part.bytecode.items()
    }
    loose = {path: Content(word) for path, word in part.loose.items()}
    described: list[tuple[Fact | Unknown, dict[str, str]]] = [(fact, manifests[fact.name]) for fact in facts]
    return survey.Findings(described, loose, part.starting, found, lambda path: part.impure.get(path, True))
