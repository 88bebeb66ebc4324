"""From what differs to a plan: which paths are put back, from what source, and what has no source and is only said.

Always holds: a plan changes nothing. It names each path with what shall be there and where the bytes come from. What
was added is taken away only where the fact must be equal (its severity is `block`, or a restored change brought it),
where it was named, or where all was asked for; what is left alone is said. A fact under `record` or `ignore` is put
back only when it is named.
Never: writes, runs an installer, or tries what has no known source.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any

from lockd import keep, names
from lockd.disk import Disk
from lockd.facts import Fact, Unknown, shown
from lockd.pending import Act, pending
from lockd.place import NOTHING, Row, resolved
from lockd.plain import dataclass, field, replace
from lockd.probes.paths import find_root, unshown
from lockd.verdict import worded

if TYPE_CHECKING:
    from lockd.check import Report
    from lockd.environments import Environment
    from lockd.findings import Difference, Finding
    from lockd.lock import Lock
    from lockd.store import Store


@dataclass(frozen=True)
class Step:
    """One fact put back. prune: folders that go when they are empty afterwards. fetch: where its files will come from,
    when that is only found out by the deed. wanted: every path that shall be there, changed or not."""

    fact: str
    message: str
    acts: tuple[Act, ...]
    prune: tuple[str, ...] = ()
    fetch: str = ""
    wanted: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Said:
    """A fact that is not put back: what is wanted, and what to do. left: it was added, and is left alone."""

    fact: str
    message: str
    todo: str
    left: bool = False


@dataclass(frozen=True)
class Plan:
    """What a restore would do, and what it leaves to others. undo: it takes the last restore back."""

    generation: int
    steps: tuple[Step, ...]
    said: tuple[Said, ...] = ()
    undo: bool = False

    @property
    def fetches(self) -> bool:
        return any(step.fetch for step in self.steps)

    @property
    def acts(self) -> list[Act]:
        """Every path once."""
        return [act for step in self.steps for act in step.acts]


@dataclass(frozen=True)
class Wish:
    """What was asked for. facts: names or ends of them; empty: all that breaks the verdict. everything: added ones too.

    wheels: a folder with wheels; "": none. fetch: ask the policy's index (a deed may, a plan does not).
    """

    facts: tuple[str, ...] = ()
    everything: bool = False
    wheels: str = ""
    fetch: bool = False


@dataclass
class Ground:
    """What every planner of a kind of fact needs. stage: a folder of lockd's own for wheels; "": there is none."""

    report: Report
    lock: Lock
    store: Store | None
    disk: Disk
    wish: Wish
    stage: str = ""
    environments: dict[str, Environment | None] = field(default_factory=dict)

    @cached_property
    def findings(self) -> Mapping[str, Finding]:
        """Every difference, worded and judged."""
        found = worded(self.report.policy, self.report.differences, self.report.sight.claimed)
        return {one.fact: one for one in found}

    def rows(self, fact: str) -> list[Row] | None:
        """What is kept of a fact in the wanted generation."""
        return None if self.store is None else keep.rows_of(self.store, self.lock.generation, fact)

    @property
    def kept(self) -> str:
        return f"kept at generation {self.lock.generation}"


Outcome = Step | Said | None
Planner = Callable[["Ground", "Difference", bool], Iterable[Outcome]]


def plan(ground: Ground) -> Plan:
    """The way back for the chosen facts."""
    wanted = _chosen(ground)
    steps: list[Step] = []
    said: list[Said] = []
    going = {one.name for one, named in wanted if _goes(ground, one, named)}
    for one, named in wanted:
        if fact_of(one) is None and not (one.name in going or one.because in going):
            todo = f"lockd restore {names_argument(one.name)} --apply takes it away; --all takes all of them"
            said.append(Said(one.name, _message(ground, one), todo, left=True))
            continue
        for outcome in _planner(one)(ground, one, named):
            if isinstance(outcome, Step):
                steps.append(replace(outcome, message=_message(ground, one)))
            elif outcome is not None:
                said.append(outcome)
    return Plan(ground.lock.generation, tuple(_each_once(steps)), tuple(said))


def _each_once(steps: list[Step]) -> Iterator[Step]:
    """Every path in one step only. What one fact wants to be there, another does not take away."""
    wanted = {path for step in steps for path in step.wanted}
    wanted |= {act.row.path for step in steps for act in step.acts if act.row.kind != NOTHING}
    done: set[str] = set()
    for step in steps:
        acts = tuple(act for act in step.acts if act.row.path not in (wanted if act.row.kind == NOTHING else ()))
        own = tuple(act for act in acts if act.row.path not in done)
        done.update(act.row.path for act in own)
        if own or step.fetch:
            yield replace(step, acts=own)


def names_argument(name: str) -> str:
    from lockd.hints import fact_argument

    return fact_argument(name)


def _chosen(ground: Ground) -> list[tuple[Difference, bool]]:
    """The differences that are to be undone, and whether each was named."""
    report, wish = ground.report, ground.wish
    if not wish.facts:
        bad = [one for one in report.differences if _severity(ground, one) in ("block", "warn")]
        return [(one, wish.everything) for one in bad]
    known = {*ground.lock.facts, *report.sight.facts, *(one.name for one in report.differences)}
    asked = set(names.resolve_all(known, wish.facts))
    return [(one, True) for one in report.differences if one.name in asked]


def _severity(ground: Ground, one: Difference) -> str:
    return ground.findings[one.name].severity if one.name in ground.findings else "block"


def _goes(ground: Ground, one: Difference, named: bool) -> bool:
    """May what was added be taken away, and what changed be put back?"""
    if one.expected is not None and not one.expected.absent:
        return True
    if named:
        return True
    return _severity(ground, one) == "block" and not one.name.startswith("file:")


def _message(ground: Ground, one: Difference) -> str:
    return ground.findings[one.name].message if one.name in ground.findings else one.name


def _planner(one: Difference) -> Planner:
    from lockd import restore_python

    kind = one.name.partition(":")[0]
    if isinstance(one.found, Unknown):
        return _unreadable
    known: Mapping[str, Planner] = {
        "file": _file,
        "cache": _cache,
        "package": restore_python.package,
        "python": restore_python.python,
        "unowned": restore_python.unowned,
    }
    return known.get(kind, _no_source)


# -- what has no source


_TODO = {
    "tree": "lockd keeps no data: bring back what is gone, move out what is new; lockd diff names it",
    "git": "check that commit out, and put the edits back: lockd touches no repository",
    "gpu": "install that driver on the host, or bring the GPU back: lockd does not touch it",
    "host": "set it on the host: lockd does not touch it",
    "env": "start the launch with it as it was: lockd diff shows it",
    "launch": "start the launch as it was: lockd diff shows it",
    "command": "run it by hand to see why",
}


def _no_source(ground: Ground, one: Difference, named: bool) -> Iterator[Outcome]:
    yield Said(one.name, wanted_words(one), _TODO.get(one.name.partition(":")[0], "lockd diff shows it"))


def _unreadable(ground: Ground, one: Difference, named: bool) -> Iterator[Outcome]:
    reason = one.found.reason if isinstance(one.found, Unknown) else ""
    yield Said(one.name, f"could not be read: {reason}", "make it readable, then run it again")


def wanted_words(one: Difference) -> str:
    """The locked values of what differs: `wanted version 570.86.15`."""
    told = [f"{name} {_short(pair[0])}" for name, pair in one.attributes.items() if pair[0] is not None]
    told += [f"{pin.attribute} {pin.wanted}" for pin in one.breaches if pin.wanted and pin.attribute]
    if one.expected is None or one.expected.absent:
        return "wanted: nothing there"
    return f"wanted {', '.join(dict.fromkeys(told)) or 'as locked'}"


def _short(value: Any) -> str:
    text = ", ".join(map(str, value)) if isinstance(value, tuple) else str(value)
    return text if len(text) <= 80 else f"{text[:77]}…"


# -- files and caches


def _file(ground: Ground, one: Difference, named: bool) -> Iterator[Outcome]:
    if one.expected is None or one.expected.absent:
        path = resolved(unshown(one.name.partition(":")[2]))
        yield Step(one.name, "", tuple(pending([Row(path, NOTHING)], ground.disk, "taken away")))
        return
    rows = ground.rows(one.name)
    if rows is None:
        yield Said(
            one.name, wanted_words(one), "its content was not kept: keep = true keeps it from the next accept on"
        )
        return
    yield Step(one.name, "", tuple(pending(rows, ground.disk, ground.kept)))


def _cache(ground: Ground, one: Difference, named: bool) -> Iterator[Outcome]:
    rule = ground.report.sight.claimed.get(one.name, ("", None))[1]
    if rule is None or rule.change == "present":
        yield from _no_source(ground, one, named)
        return
    ground.disk.tree(os.path.realpath(rule.path), rule.exclude)  # whose digests are known
    rows = ground.rows(one.name)
    extra = list(_extra_entries(ground, one, rule)) if rule.change in ("exact", "empty") or one.expected is None else []
    acts = extra if _is_in_place(rule, rows) else []
    if extra and not acts and rows is None:
        todo = "look at who put the link there; what it leads to is not lockd's to take away"
        yield Said(one.name, f"{shown(rule.path)} is a link to {shown(os.path.realpath(rule.path))}", todo)
    if rows is None and rule.change != "empty" and one.expected is not None and _lost(one):
        yield Said(
            one.name, wanted_words(one), "its entries were not kept: keep = true keeps them; a good run fills it"
        )
    acts = [*pending(rows or [], ground.disk, ground.kept), *acts]
    if acts:
        yield Step(one.name, "", tuple(acts))


def _is_in_place(rule: Any, rows: list[Row] | None) -> bool:
    """Does the path lead where it led at the accept? A link that was put there since may lead anywhere."""
    place = os.path.realpath(rule.path)
    return resolved(rule.path) == place if rows is None else any(row.path == place for row in rows)


def _lost(one: Difference) -> bool:
    """Do locked entries miss? Of an exact cache new ones alone may be what differs."""
    return one.files is None or bool(one.files.changed or one.files.missing)


def _extra_entries(ground: Ground, one: Difference, rule: Any) -> Iterator[Act]:
    """Entries that the lock does not know."""
    root = find_root(rule.path)
    place = os.path.realpath(getattr(root, "path", rule.path))
    found = ground.report.sight.manifests().get(one.name)
    if found is None:  # an `empty` cache has no manifest
        tree = ground.disk.tree(place, rule.exclude)
        found = {path: "" for path, entry in tree.entries.items() if entry.kind != "d"}
    known = manifest_of(ground, one.name) if rule.change == "exact" else {}
    for path in sorted(found.keys() - known.keys()):
        yield Act(Row(f"{place}/{path}", NOTHING), "taken away")


def manifest_of(ground: Ground, fact: str) -> Mapping[str, str]:
    """The files behind a locked fact; empty where the store does not know them."""
    found = None if ground.store is None else ground.store.manifest(ground.lock.generation, fact)
    return found or {}


def fact_of(one: Difference) -> Fact | None:
    """The locked fact, where the lock has one that is there."""
    return one.expected if one.expected is not None and not one.expected.absent else None
