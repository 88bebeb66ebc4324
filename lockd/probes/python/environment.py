"""A whole environment looked at: packages, unowned files, start-up code, out of the memo where nothing moved.

Always holds: what is derived from the trees is computed again only when a tree, a listed file outside the trees, or a
checkout behind an editable install moved. A site folder that could not be listed makes the environment unknown, never
empty.
Never: compares, or runs anything of the environment.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from functools import cached_property
from typing import TYPE_CHECKING, Any

from lockd.disk import Trouble
from lockd.facts import ABSENT, Fact, Unknown, shown
from lockd.look import Look
from lockd.plain import dataclass
from lockd.probes import Seen
from lockd.probes.python import startup
from lockd.probes.python.bytecode import Stale
from lockd.probes.python.ground import Ground, open_ground
from lockd.probes.python.interpreter import Interpreter, find
from lockd.rules import PythonRule

if TYPE_CHECKING:
    from lockd.probes.python.parts import Parts
    from lockd.probes.python.survey import Survey

_BUILD = 6  # rises when what is derived from equal trees changes, so that no older memo answers


def look_at(rule: PythonRule, look: Look) -> Seen:
    """1. the interpreter, 2. its trees, 3. the packages, known or surveyed, 4. the start-up code."""
    interpreter = find(rule, look.disk)
    if interpreter is None:
        return Seen((Fact("python", rule.name, ABSENT),))
    if isinstance(interpreter, Unknown):
        return Seen((interpreter,))
    ground = open_ground(interpreter, look.disk, rule.exclude)
    unlisted = next((trouble for trouble in ground.troubles() if trouble.path in ground.trees), None)
    if unlisted is not None:
        return Seen((Unknown("python", rule.name, f"{shown(unlisted.path)}: {unlisted.reason}"),))
    if rule.integrity == "full":
        for tree in ground.trees.values():
            look.disk.foresee(tree, lambda name: not name.endswith(".pyc"))
    seen = _Known(rule, look, interpreter, ground).seen()
    notes = next(fact for fact in seen.facts if fact.kind == "notes")
    assert isinstance(notes, Fact)
    facts = tuple(fact for fact in seen.facts if fact.kind != "notes")
    return Seen((*facts, _python_fact(rule, look, interpreter, notes)), seen.manifests)


def _python_fact(rule: PythonRule, look: Look, interpreter: Interpreter, notes: Fact) -> Fact | Unknown:
    lines = [line.partition("\0") for line in strings(notes, "owned")]
    owned = {path: name for path, _, name in lines}
    stale = Stale(strings(notes, "foreign"), strings(notes, "hidden"), strings(notes, "bytecode"))
    return startup.python_fact(rule, look, interpreter, owned.get, _extra(interpreter), stale)


def _extra(interpreter: Interpreter) -> tuple[str, ...]:
    """ "name version" of each package that comes into sight from outside the environment."""
    if not interpreter.base_site:
        return ()
    from lockd.probes.python.distributions import names_in

    return tuple(f"{name} {version}" for root in interpreter.base_site for name, version in names_in(root))


def strings(notes: Fact, name: str) -> tuple[str, ...]:
    """A list that a fact of the memo carries."""
    value = notes.told[name]
    assert isinstance(value, tuple)
    return value


@dataclass
class _Known:
    """What is known of one environment, and the survey that finds it out when it is not."""

    rule: PythonRule
    look: Look
    interpreter: Interpreter
    ground: Ground

    @cached_property
    def _survey(self) -> Survey | Parts:
        from lockd.probes.python.parts import Parts, can_part  # late: an unchanged environment needs none of it
        from lockd.probes.python.survey import Survey

        if can_part(self.look, self.interpreter, self.ground):
            return Parts(self.rule, self.look, self.interpreter, self.ground, self._key("parts"), self._outside_stamp)
        return Survey(self.rule, self.look, self.interpreter, self.ground)

    def seen(self) -> Seen:
        """1. which files and checkouts outside the trees count, 2. what they and the trees came to."""
        trees = [tree.stamp for tree in self.ground.trees.values()]
        memo = self.look.memo
        (places,) = memo.recall(self._key("outside"), _stamp(trees), lambda: self._survey.outside()).facts
        assert isinstance(places, Fact)
        outside = self._outside_stamp(strings(places, "files"), strings(places, "checkouts"))
        return memo.recall(self._key("packages"), _stamp([*trees, outside]), lambda: self._survey.seen())

    def _key(self, part: str) -> tuple[Any, ...]:
        rule, python = self.rule, self.interpreter
        if self.look.disk.full:
            part += " full"  # it compares all byte code; the trees' stamps are proven by every byte again
        return "python", part, _BUILD, rule.name, rule.path, rule.integrity, rule.exclude, python.prefix, python.version

    def _outside_stamp(self, files: tuple[str, ...], checkouts: tuple[str, ...]) -> str:
        return _stamp([*self._file_stamps(files), *self._checkout_stamps(checkouts)])

    def _file_stamps(self, files: tuple[str, ...]) -> Iterable[str]:
        disk = self.look.disk
        digests = disk.digests(files) if self.rule.integrity == "full" else {}
        for path in files:
            entry = disk.entry(path)
            mode = "" if entry is None or isinstance(entry, Trouble) else f"{entry.kind} {entry.mode:o}"
            yield f"{path}\0{mode}\0{digests.get(path)}"

    def _checkout_stamps(self, checkouts: tuple[str, ...]) -> Iterable[str]:
        if checkouts:
            from lockd.probes.python import origins

            disk = self.look.disk
            for path in checkouts:
                yield disk.tree(path, origins.SOURCES_APART, follow_root=True).stamp
                yield from (f"{file}\0{disk.entry(file)}" for file in origins.git_inputs(disk, path))


def _stamp(parts: Iterable[str]) -> str:
    return hashlib.sha256("\n".join(parts).encode("utf-8", "surrogateescape")).hexdigest()
