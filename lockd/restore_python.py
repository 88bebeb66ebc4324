"""Packages, start-up code and loose files of an environment: what brings each back.

Always holds: a package comes back from its kept files, from a wheel of a folder, or from the index that the policy
names, and the last two only when they are the locked build. What a package has now and shall not have goes, unless
another package owns it; byte-code beside a changed source goes with it. Without a source the differing files are named
with their locked digests.
Never: runs an installer in the environment, or takes a wheel for what its name says.
"""

from __future__ import annotations

import os
from collections.abc import Generator, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

from lockd import wheels
from lockd.environments import Environment, byte_code, open_environment, package_name
from lockd.facts import Fact, shown
from lockd.keep_paths import NOTES
from lockd.pending import Act, pending
from lockd.place import FILE, NOTHING, Row, resolved
from lockd.restore import Said, Step, fact_of, manifest_of, names_argument, wanted_words
from lockd.rules import PackagePin, PythonRule

if TYPE_CHECKING:
    from lockd.findings import Difference
    from lockd.restore import Ground, Outcome

_NAMED = 4  # files that a line names
_TAKEN = "taken away"
_BINARY = ("binary", "libpython", "version", "implementation", "state")


# -- packages


def package(ground: Ground, one: Difference, named: bool) -> Iterator[Outcome]:
    """One package: gone, put back, or said."""
    environment = _environment(ground, one.name.partition(":")[2].rpartition("/")[0])
    if environment is None:
        yield Said(one.name, wanted_words(one), "the environment is not there: build it, then run it again")
        return
    expected = fact_of(one)
    if expected is None:
        yield _step(ground, one, environment, [], {})
        return
    found = _kept_rows(ground, one)
    if found is None:
        found = yield from _from_wheels(ground, one, environment, expected)
    if found is not None:
        rows, staged, source = found
        yield _step(ground, one, environment, rows, staged, source)


_Source = tuple[list[Row], Mapping[str, str], str]  # rows, path → staged file, in words


def _kept_rows(ground: Ground, one: Difference) -> _Source | None:
    rows = ground.rows(one.name)
    return None if rows is None else (rows, {}, ground.kept)


def _step(
    ground: Ground,
    one: Difference,
    environment: Environment,
    rows: list[Row],
    staged: Mapping[str, str],
    source: str = _TAKEN,
) -> Step:
    """What a package has and shall not have goes; what it shall have and has not comes."""
    acts = [Act(act.row, source, staged.get(act.row.path, "")) for act in pending(rows, ground.disk, source)]
    wanted = {row.path for row in rows}
    name = package_name(one.name)
    others = {resolved(path) for path in environment.owned_by_others([name])}
    now = {resolved(path) for path in environment.files_of(name) | environment.below(one.left)}
    gone = _own(environment, now - wanted - others, wanted)
    stale = byte_code([*gone, *(act.row.path for act in acts)])
    acts += [Act(Row(path, NOTHING), _TAKEN) for path in dict.fromkeys([*gone, *stale])]
    return Step(one.name, "", tuple(acts), tuple(_emptied(environment, gone)), wanted=frozenset(wanted))


def _own(environment: Environment, paths: set[str], wanted: Iterable[str]) -> list[str]:
    """Of paths that should go, those of the environment: within its prefix, or beside what was kept.

    A link that was put in the place of a site folder may lead anywhere, and nothing is taken away there.
    """
    prefix, beside = os.path.realpath(environment.prefix) + "/", {os.path.dirname(path) for path in wanted}
    return sorted(path for path in paths if path.startswith(prefix) or os.path.dirname(path) in beside)


def _emptied(environment: Environment, gone: Iterable[str]) -> Iterator[str]:
    """The folders that files go from, up to the site folder; with their byte-code folders."""
    roots = {os.path.realpath(site) for site in environment.interpreter.site_packages}
    folders: set[str] = set()
    for path in gone:
        folder = os.path.dirname(path)
        while any(folder.startswith(root + "/") for root in roots) and folder not in folders:
            folders.add(folder)
            folder = os.path.dirname(folder)
    yield from sorted(
        folders | {f"{folder}/__pycache__" for folder in folders if os.path.isdir(f"{folder}/__pycache__")}
    )


def _from_wheels(
    ground: Ground, one: Difference, environment: Environment, expected: Fact
) -> Generator[Outcome, None, _Source | None]:
    """The first wheel that is the locked build; else what was tried, or what the deed will try."""
    tried: list[str] = []
    if _is_elsewhere(expected):
        yield Said(one.name, wanted_words(one), f"install it again from {expected.attributes.get('origin')}")
        return None
    index = _index(ground, one, environment.rule)
    versions = wheels.versions_of(expected)
    candidates = wheels.in_folder(ground.wish.wheels, package_name(one.name), versions) if ground.wish.wheels else []
    if index and not candidates and not ground.wish.fetch:
        yield Step(one.name, "", (), fetch=index)
        return None
    stage = ground.stage
    if index and not candidates:
        fetched = wheels.fetched(index, environment, expected, stage)
        candidates, tried = ([], [fetched]) if isinstance(fetched, str) else (fetched, tried)
    for wheel in candidates:
        found = wheels.checked(wheel, environment, expected, stage)
        if not isinstance(found, str):
            return _with_notes(ground, environment, found)
        tried.append(f"{shown(os.path.basename(wheel))}: {found}")
    if ground.wish.wheels and not candidates:
        tried.append(f"no wheel of it in {shown(ground.wish.wheels)}")
    yield Said(one.name, _missing_words(ground, one), _todo(tried))
    return None


def _is_elsewhere(expected: Fact) -> bool:
    """Not out of a wheel: an editable or VCS install, or conda's."""
    origin = str(expected.attributes.get("origin", ""))
    return origin.startswith(("editable ", "directory ", "git+", "hg+", "svn+", "bzr+"))


def _with_notes(ground: Ground, environment: Environment, found: wheels.Found) -> _Source:
    """The wheel's files with what the installer had noted beside them at the accept."""
    folders = {os.path.dirname(path) for path in found.rows if path.endswith(".dist-info/RECORD")}
    noted = ground.rows(f"python:{environment.rule.name}{NOTES}") or []
    notes = [row for row in noted if os.path.dirname(row.path) in folders and row.kind == FILE]
    rows = {path: row for path, (row, _) in found.rows.items()} | {row.path: row for row in notes}
    staged = {path: file for path, (_, file) in found.rows.items() if rows[path] is found.rows[path][0]}
    return list(rows.values()), staged, f"wheel {shown(os.path.basename(found.wheel))}"


def _index(ground: Ground, one: Difference, rule: PythonRule) -> str:
    """The index that the policy names for a package, or for the one that brings it."""
    for fact in filter(None, (one.name, one.because)):
        pin = rule.packages.get(package_name(fact))
        if isinstance(pin, PackagePin) and pin.index:
            return pin.index
    return ""


def _missing_words(ground: Ground, one: Difference) -> str:
    """The build, and where few files differ, which ones and their locked digests."""
    was, now = manifest_of(ground, one.name), ground.report.sight.manifests().get(one.name, {})
    differing = [path for path, word in was.items() if now.get(path) != word]
    if not was or not differing:
        return wanted_words(one)
    some = [f"{shown(path)} ({was[path][:16]}…)" for path in differing[:_NAMED]]
    more = f" and {len(differing) - _NAMED:,} more" if len(differing) > _NAMED else ""
    return f"{wanted_words(one)}; {len(differing):,} files: {', '.join(some)}{more}"


def _todo(tried: list[str]) -> str:
    said = "; ".join(tried[:3])
    hint = "give a folder with its wheel (--wheels DIR), or an index in the policy; [[python]] keep = true keeps it"
    return f"{said}; {hint}" if said else hint


# -- start-up code


def python(ground: Ground, one: Difference, named: bool) -> Iterator[Outcome]:
    """Start-up files as kept; what runs at start-up besides goes."""
    environment = _environment(ground, one.name.partition(":")[2])
    rows = ground.rows(one.name)
    if environment is None:
        yield _whole(ground, one)
        return
    if rows is None:
        yield Said(one.name, wanted_words(one), "its start-up code was not kept on this machine")
        return
    acts = list(pending(rows, ground.disk, ground.kept))
    wanted = {row.path for row in rows}
    gone = _own(environment, {resolved(path) for path in environment.start_up()} - wanted, wanted)
    stale = [*byte_code([*gone, *(act.row.path for act in acts)])]
    acts += [Act(Row(path, NOTHING), _TAKEN) for path in dict.fromkeys([*gone, *stale])]
    if acts:
        yield Step(one.name, "", tuple(acts), wanted=frozenset(wanted))
    binary = [name for name in one.attributes if name in _BINARY]
    if binary and not any(os.path.dirname(act.row.path).endswith("/bin") for act in acts):
        yield Said(one.name, wanted_words(one), "install that interpreter again: lockd keeps none")
    elif not acts:
        yield Said(one.name, wanted_words(one), "lockd diff shows it; take away what makes it so")


def _whole(ground: Ground, one: Difference) -> Outcome:
    """An environment that is gone altogether: from its kept files, if all of them were kept."""
    name = one.name.partition(":")[2]
    facts = [fact for fact in ground.lock.facts if fact.startswith((f"package:{name}/", f"unowned:{name}"))]
    kept = {fact: ground.rows(fact) for fact in (one.name, *facts)}
    if not facts or any(rows is None for fact, rows in kept.items() if not fact.startswith("unowned:")):
        return Said(one.name, wanted_words(one), "build it again; [[python]] keep = true would keep all of it")
    rows = {row.path: row for listed in kept.values() for row in listed or ()}
    acts = tuple(pending(rows.values(), ground.disk, ground.kept))
    return Step(one.name, "", acts, wanted=frozenset(rows))


# -- files that belong to no package


def unowned(ground: Ground, one: Difference, named: bool) -> Iterator[Outcome]:
    """New ones go where nothing may be there, or they were named; changed ones come back where they were kept."""
    environment = _environment(ground, one.name.partition(":")[2])
    if environment is None:
        return
    was, now = manifest_of(ground, one.name), ground.report.sight.manifests().get(one.name, {})
    rows = ground.rows(one.name)
    acts = list(pending(rows or [], ground.disk, ground.kept))
    added = {resolved(environment.absolute(path)) for path in now.keys() - was.keys()}
    new = _own(environment, added, {row.path for row in rows or ()})
    if behind := len(added) - len(new):
        todo = "look at who put the link there; what it leads to is not lockd's to take away"
        yield Said(one.name, f"{behind} new behind a link out of the environment", todo)
    if new and not (named or ground.findings[one.name].severity == "block"):
        todo = f"lockd restore {names_argument(one.name)} --apply takes them away; --all takes all that was added"
        some = ", ".join(shown(path) for path in new[:_NAMED])
        yield Said(one.name, f"{len(new)} new: {some}", todo, left=True)
        new = []
    stale = [*byte_code(new)]
    acts += [Act(Row(path, NOTHING), _TAKEN) for path in dict.fromkeys([*new, *stale])]
    lost = [path for path, word in was.items() if now.get(path) != word]
    if lost and rows is None:
        yield Said(one.name, _missing_words(ground, one), "[[python]] keep = true keeps them from the next accept on")
    if acts:
        yield Step(one.name, "", tuple(acts), tuple(_emptied(environment, new)))


def _environment(ground: Ground, name: str) -> Environment | None:
    rule = next((rule for rule in ground.report.policy.python if rule.name == name), None)
    if rule is None:
        return None
    if name not in ground.environments:
        found = ground.environments[name] = open_environment(rule, ground.disk)
        if found is not None:
            _ = found.ground  # its trees, whose digests are known
    return ground.environments[name]
