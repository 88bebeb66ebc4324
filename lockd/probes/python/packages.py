"""Packages put together: the metadata folders, records and conda records that speak of one name, and the files they
list.

Always holds: every distribution and every conda record belongs to exactly one package; what is wrong with it
(`state`) is a sorted list of words, the same on every machine. A package without RECORD claims the files that its
name or top_level.txt tells.
Never: reads the contents of listed files.
"""

from __future__ import annotations

import os
import posixpath
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from lockd.disk import Trouble
from lockd.facts import shown
from lockd.probes.python.bytecode import derived
from lockd.probes.python.conda import CondaRecord
from lockd.probes.python.distributions import Distribution
from lockd.probes.python.ground import Ground
from lockd.probes.python.names import is_leftover, leftover_of, split_folder
from lockd.probes.python.record import is_note
from lockd.probes.python.startup import is_startup_file


@dataclass(frozen=True)
class Package:
    """One package. base: the folder that `listed` is relative to; listed: path → recorded digest ("" none is
    recorded)."""

    name: str
    base: str
    distributions: tuple[Distribution, ...]
    conda: CondaRecord | None
    listed: Mapping[str, str]
    notes: frozenset[str]
    state: tuple[str, ...] = ()

    @property
    def main(self) -> Distribution | None:
        """The distribution that speaks for the package: the only sound one, else the first by place (and the state
        says so)."""
        sound = [one for one in self.distributions if not any(word.startswith("broken") for word in one.state)]
        return next(iter([*sound, *self.distributions]), None)

    @property
    def version(self) -> str:
        """The version of METADATA; of two distributions both, so that neither passes for the other."""
        sound = [one for one in self.distributions if not any(word.startswith("broken") for word in one.state)]
        versions = sorted({one.version for one in sound or self.distributions})
        return ", ".join(versions) if versions else self.conda.version if self.conda else ""

    @property
    def troubles(self) -> tuple[Trouble, ...]:
        return tuple(trouble for one in self.distributions for trouble in one.troubles)

    def absolute(self, path: str) -> str:
        return posixpath.normpath(f"{self.base}/{path}") if path.startswith("..") else f"{self.base}/{path}"


def assemble(ground: Ground, distributions: list[Distribution], conda: list[CondaRecord]) -> list[Package]:
    """1. group by name, 2. let packages without RECORD claim their files, 3. leftovers of half-done removals."""
    owner_of = _conda_owners(ground, distributions, conda)
    packages: dict[str, Package] = {}
    taken: set[str] = set()  # conda records that a distribution speaks for
    for name in sorted({one.name for one in distributions}):
        own = tuple(one for one in distributions if one.name == name)
        records = sorted({record.file: record for one in own if (record := owner_of.get(_place(one)))}.items())
        record = records[0][1] if records else None
        taken.update(file for file, _ in records)
        packages[name] = _package(ground, name, own, record)
    for record in conda:
        if record.file not in taken:
            packages[record.name] = _alone(ground, packages.get(record.name), record)
    whole = _with_leftovers(ground, _with_claims(ground, packages))
    return sorted(_with_links(ground, whole).values(), key=lambda package: package.name)


def _place(one: Distribution) -> str:
    return f"{one.site}/{one.folder}"


def _conda_owners(
    ground: Ground, distributions: list[Distribution], conda: list[CondaRecord]
) -> dict[str, CondaRecord]:
    """Metadata folder (absolute) → the conda record that lists it, where that record speaks for one name only."""
    folders = {_place(one): one.name for one in distributions}
    owners: dict[str, CondaRecord] = {}
    for record in conda:
        heads = {path if path.endswith("-info") else posixpath.dirname(path) for path in record.listed}
        known = {posixpath.join(ground.prefix, head) for head in heads if head.endswith("-info")} & folders.keys()
        names = {folders[folder] for folder in known}
        chosen = record.name if record.name in names else next(iter(names)) if len(names) == 1 else None
        if record.problem:
            known, chosen = {folder for folder, name in folders.items() if name == record.name}, record.name
        owners.update({folder: record for folder in known if folders[folder] == chosen})
    return owners


def _package(ground: Ground, name: str, own: tuple[Distribution, ...], record: CondaRecord | None) -> Package:
    base = ground.prefix if record else own[0].site
    listed: dict[str, str] = dict(record.listed) if record else {}
    notes: set[str] = set()
    if record and record.problem:  # it does not say what it lists: its metadata folders whole, at least
        listed |= {path: "" for one in own for path in _metadata_files(ground, one, base)}
    for one in own:
        shift = "" if one.site == base else posixpath.relpath(one.site, base) + "/"
        if one.record is None:
            continue
        notes |= {_shifted(shift, path) for path in one.record.notes}
        for path, digest in one.record.listed.items():
            place = _shifted(shift, path) if shift else path
            if record is not None and place in record.listed:
                continue  # conda's digest is of the file in this prefix
            listed[place] = digest if listed.get(place, digest) == digest else ""
    return Package(name, base, own, record, listed, frozenset(notes), tuple(_state(own, record)))


def _metadata_files(ground: Ground, one: Distribution, base: str) -> Iterator[str]:
    for path in ground.listing(one.site).files:
        if path.startswith(f"{one.folder}/"):
            yield posixpath.relpath(f"{one.site}/{path}", base)


def _shifted(shift: str, path: str) -> str:
    return posixpath.normpath(shift + path) if shift else path


def _state(own: tuple[Distribution, ...], record: CondaRecord | None) -> Iterator[str]:
    if len(own) > 1:
        yield "duplicate: " + ", ".join(sorted(shown(one.folder) for one in own))
    if record is not None and record.problem:
        yield record.problem
    for one in own:
        yield from (word for word in one.state if not (record and word.startswith("unverifiable")))
        listed = one.record.listed if one.record else {}
        bare = sum(not digest for digest in listed.values())
        if bare and record is None and not one.folder.endswith(".egg-link"):
            yield f"unverifiable: {bare} of {len(listed)} files are listed without a hash"


def _alone(ground: Ground, package: Package | None, record: CondaRecord) -> Package:
    """A conda record that no metadata folder belongs to: not a Python package, or one that pip replaced."""
    if package is None:
        return Package(record.name, ground.prefix, (), record, record.listed, frozenset(), tuple(_state((), record)))
    if package.conda is not None:
        word = f"duplicate: {shown(package.conda.file)}, {shown(record.file)}"
    else:
        word = f"conda records {record.version} {record.build}, installed is {package.version}"
    return replace(package, state=(*package.state, word))


# -- files without a record --------------------------------------------------------------------------------------------


def _with_claims(ground: Ground, packages: dict[str, Package]) -> dict[str, Package]:
    """Files of packages without a RECORD that can be read (Debian's, half-removed ones): what their names tell, if
    nobody else lists it; of two metadata folders of one name, each its own files."""
    bare = [
        (name, one)
        for name, package in packages.items()
        for one in package.distributions
        if len(package.distributions) > 1 or not _has_record(one)
    ]
    if not bare:
        return packages
    owned = {package.absolute(path) for package in packages.values() for path in (*package.listed, *package.notes)}
    by_top = {site: _by_top(ground, site) for site in {one.site for _, one in bare}}
    for name, one in bare:
        package = packages[name]
        shift = "" if one.site == package.base else posixpath.relpath(one.site, package.base) + "/"
        claimed = {_shifted(shift, path): "" for path in _claimed(one, by_top[one.site], owned)}
        owned |= {package.absolute(path) for path in claimed}
        packages[name] = replace(package, listed={**claimed, **package.listed})
    return packages


def _has_record(one: Distribution) -> bool:
    """A RECORD with rows that are none cannot say what it owns."""
    return one.record is not None and not one.record.malformed


def _by_top(ground: Ground, site: str) -> dict[str, list[str]]:
    """The files of a site folder by what a package would call them: their top folder, or the module that they are."""
    found: dict[str, list[str]] = {}
    names = ground.trees[site].entries
    for path in ground.listing(site).files:
        top, inside, _ = path.partition("/")
        module = not inside and top.endswith((".py", ".so"))
        if not is_startup_file(path) and not derived(path, names):
            found.setdefault(top.partition(".")[0] if module else top, []).append(path)
    return found


def _claimed(one: Distribution, by_top: Mapping[str, list[str]], owned: set[str]) -> Iterator[str]:
    written = split_folder(one.folder)[0]
    tops = set(one.top_level) or {written, written.lower(), one.name.replace("-", "_")}
    for top in sorted({one.folder} if _has_record(one) else {one.folder, *tops}):
        for path in by_top.get(top, ()):
            if f"{one.site}/{path}" not in owned and not is_note(path, one.folder):
                yield path


# -- leftovers ---------------------------------------------------------------------------------------------------------


def _with_leftovers(ground: Ground, packages: dict[str, Package]) -> dict[str, Package]:
    for name, tops in leftovers(ground, packages.values()).items():
        package = packages[name]
        packages[name] = replace(package, state=(*package.state, "leftover " + ", ".join(map(shown, tops))))
    return packages


def leftovers(ground: Ground, packages: Iterable[Package]) -> dict[str, tuple[str, ...]]:
    """Package → the `~orch` names beside it; a leftover of nothing that stands is no part of a package (it is
    unowned)."""
    tilded = {site: [top for top in ground.listing(site).tops if is_leftover(top)] for site in ground.sites}
    if not any(tilded.values()):
        return {}
    owners = {
        path.partition("/")[0]: package.name
        for package in packages
        for path in package.listed
        if not path.startswith("..")
    }
    owners |= {one.folder: package.name for package in packages for one in package.distributions}
    found: dict[str, list[str]] = {}
    for top in sorted(top for tops in tilded.values() for top in tops):
        proper = leftover_of(top, frozenset(owners)) or _leftover_metadata(top, owners)
        if proper is not None:
            found.setdefault(owners[proper], []).append(top)
    return {name: tuple(tops) for name, tops in found.items()}


def _leftover_metadata(top: str, owners: Mapping[str, str]) -> str | None:
    """`~orch-2.10.0.dist-info` beside a torch of another version."""
    if not top.endswith("-info"):
        return None
    return leftover_of(top.partition("-")[0], frozenset(name for name in owners if not name.endswith("-info")))


# -- folders that are links --------------------------------------------------------------------------------------------


def _with_links(ground: Ground, packages: dict[str, Package]) -> dict[str, Package]:
    """A link in the place of a package's folder: python imports from where it leads, which nothing here vouches for."""
    links = {f"{site}/{name}" for site in ground.sites for name in ground.listing(site).links}
    for name, package in packages.items() if links else ():
        words = [
            f"{shown(folder)} is a link to {_target(f'{package.base}/{folder}')}"
            for folder in sorted(_folders(package))
            if f"{package.base}/{folder}" in links
        ]
        if words:
            packages[name] = replace(package, state=(*package.state, *words))
    return packages


def _folders(package: Package) -> set[str]:
    """Every folder that holds a listed file, and those above it."""
    found: set[str] = set()
    for path in package.listed:
        folder = posixpath.dirname(path)
        while folder and folder not in found and not path.startswith(".."):
            found.add(folder)
            folder = posixpath.dirname(folder)
    return found


def _target(path: str) -> str:
    try:
        return shown(os.readlink(path))
    except OSError:  # gone meanwhile: the next look tells
        return "nowhere"
