"""`[launch]`: which environment a launch uses, and what beside its script would hide an installed package.

Always holds: `launch:python` is there only where a command was given and the policy names an environment for it; it is
held against the policy alone. `launch:path` names no prefix, so that equal launches have equal facts. Without a launch
nothing is looked at, and that is said.
Never: starts the command, or looks into a script.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

from lockd import globs
from lockd.disk import Disk, Trouble
from lockd.facts import Fact, Facts, Unknown, Value, shown
from lockd.findings import Breach
from lockd.probes import Seen, loader
from lockd.probes.python.interpreter import Interpreter, find
from lockd.probes.shadows import Shadow, pythonpath, shadows
from lockd.rules import PythonRule

if TYPE_CHECKING:
    from lockd.findings import Difference
    from lockd.look import Launch, Look
    from lockd.probes.argv import Started
    from lockd.rules import LaunchRule, Policy, Severity

KINDS = ("launch",)
OUTSIDE = "outside"  # an environment that the policy does not name
ATTRIBUTES: Mapping[str, Mapping[str, str]] = {
    "launch": {
        "env": "python: name of the environment that the launch uses, or `outside`",
        "shadows": "path: modules that import takes before the installed ones, as `name: folder/entry`",
        "prefix": "told, python: where that environment lies",
        "interpreter": "told, python: the interpreter that the command starts",
        "via": "told, python: how it was found",
        "paths": "told, path: where these modules lie, and what they hide",
        "folders": "told, path: the folders that were looked at",
        **loader.ATTRIBUTES,
    }
}


def look(rule: LaunchRule, look: Look) -> Seen:
    """Read the environment and the import path of the launch."""
    if look.launch is None:
        look.not_looked.append("launch (this look has none)")
        return Seen(())
    launch = look.launch
    begun = _begun(launch) if launch.argv else None
    facts = [_path_fact(rule, look, launch, begun)]
    if begun is not None and rule.python:
        facts.append(_python_fact(begun, look.policy, look.disk, rule.python))
    if rule.loader:
        facts += _loader_facts(rule, look, launch, begun)
    return Seen(tuple(facts))


def claims(rule: LaunchRule, kind: str, subject: str) -> bool:
    """`launch:path`, and where an environment is named for launches `launch:python`."""
    if kind != "launch" or subject.startswith(loader.PREFIX):
        return kind == "launch" and rule.loader
    return subject == "path" or (subject == "python" and bool(rule.python))


def severity(rule: LaunchRule, policy: Policy, kind: str, subject: str, change: str) -> Severity:
    """The rule's own word, else the policy's; that a lock holds no `launch:python` is no drift."""
    if subject == "python" and change in ("added", "missing"):
        return "ignore"
    return rule.on_drift or policy.on_drift


def breaches(rule: LaunchRule, policy: Policy, found: Facts) -> Iterator[Breach]:
    """A launch that uses another environment than the policy names, or would load libraries that do not fit."""
    for one in found.known():
        if rule.loader and one.kind == "launch" and one.subject.startswith(loader.PREFIX):
            yield from loader.breaches(one)
    fact = found.get("launch:python")
    if not rule.python or not isinstance(fact, Fact) or fact.attributes.get("env") == rule.python:
        return
    pinned = next((one.path for one in policy.python if one.name == rule.python), "")
    yield Breach(
        fact=fact.name,
        key="launch.python",
        text=f"launch uses {_used(fact)}, pinned {rule.python}{f' ({shown(pinned)})' if pinned else ''}",
        attribute="env",
        wanted=rule.python,
        found=str(fact.attributes.get("env")),
        on_drift=rule.on_drift or policy.on_drift,
    )


def word(difference: Difference) -> str:
    """One line about a launch's environment, import path or libraries."""
    if difference.name.startswith(f"launch:{loader.PREFIX}"):
        return loader.word(difference)
    if isinstance(difference.found, Unknown):
        return f"{difference.name} could not be told: {difference.found.reason}"
    if difference.name == "launch:python":
        texts = [breach.text for breach in difference.breaches]
        used = _used(difference.found) if difference.found else "nothing that was seen"
        return texts[0] if texts else f"launch uses {used}"
    return _word_of_path(difference)


def watched(rule: LaunchRule) -> Iterable[str]:
    """Nothing: these facts are read at a launch, never by the daemon."""
    return ()


def _used(fact: Fact) -> str:
    env, prefix = str(fact.attributes.get("env")), str(fact.told.get("prefix", ""))
    return prefix or env if env == OUTSIDE else f"{env} ({prefix})" if prefix else env


def _word_of_path(difference: Difference) -> str:
    before, after = difference.attributes.get("shadows", ((), ()))
    old, new = (value if isinstance(value, tuple) else () for value in (before, after))
    told = difference.found.told.get("paths") if isinstance(difference.found, Fact) else ()
    paths = dict(zip(new, told, strict=True)) if isinstance(told, tuple) and len(told) == len(new) else {}
    came = [paths.get(line, line) for line in new if line not in old]
    said = [f"the launch would import {', '.join(came[:3])}{_more(came)}"] if came else []
    went = [line for line in old if line not in new]
    said += [f"no longer shadowed: {', '.join(went[:3])}{_more(went)}"] if went else []
    return "; ".join(said) or f"launch:path {difference.change}"


def _more(lines: list[str]) -> str:
    return f" and {len(lines) - 3} more" if len(lines) > 3 else ""


# -- launch:python ---------------------------------------------------------------------------------------------------


def _begun(launch: Launch) -> Started:
    from lockd.probes.argv import started  # a verify without a command does without

    return started(launch.argv, launch.environ, launch.cwd)


def _python_fact(begun: Started, policy: Policy, disk: Disk, pinned: str) -> Fact | Unknown:
    if begun.trouble:
        return Unknown("launch", "python", shown(begun.trouble))
    used = find(PythonRule(OUTSIDE, begun.interpreter), disk)
    if isinstance(used, Unknown):
        return Unknown("launch", "python", used.reason)
    if used is None:
        return Unknown("launch", "python", f"{shown(begun.interpreter)} is not there")
    told: dict[str, Value] = {
        "prefix": shown(used.prefix),
        "interpreter": shown(begun.interpreter),
        "via": shown(begun.via),
    }
    return Fact("launch", "python", {"env": _name_of(used, policy, disk, pinned)}, told)


def _name_of(used: Interpreter, policy: Policy, disk: Disk, pinned: str) -> str:
    """The policy's name of an environment; of two names for one, that which the launch should have."""
    for rule in sorted(policy.python, key=lambda rule: rule.name != pinned):
        known = find(rule, disk)
        if isinstance(known, Interpreter) and _place(known) == _place(used):
            return rule.name
    return OUTSIDE


def _place(interpreter: Interpreter) -> tuple[str, str]:
    return os.path.realpath(interpreter.prefix), interpreter.minor  # /usr may hold several Pythons


# -- launch:path -----------------------------------------------------------------------------------------------------


def _path_fact(rule: LaunchRule, look: Look, launch: Launch, begun: Started | None) -> Fact | Unknown:
    roots = _roots(rule, look, begun)
    if isinstance(roots, Unknown):
        return roots
    folders = list(dict.fromkeys(_folders(rule, launch, begun)))
    found = shadows(folders, roots)
    if isinstance(found, Trouble):
        return Unknown("launch", "path", f"{shown(found.path)}: {found.reason}")
    lines = dict(sorted((_line(shadow), _told(shadow)) for shadow in found))
    told: dict[str, Value] = {"folders": tuple(shown(f"{label}: {folder}") for label, folder in folders)}
    if lines:
        told["paths"] = tuple(lines.values())
    return Fact("launch", "path", {"shadows": tuple(lines)}, told)


def _line(shadow: Shadow) -> str:
    return shown(f"{shadow.name}: {shadow.label}/{os.path.basename(shadow.path)}")


def _told(shadow: Shadow) -> str:
    return shown(f"{shadow.name} from {shadow.path}, not {shadow.over}")


def _folders(rule: LaunchRule, launch: Launch, begun: Started | None) -> Iterator[tuple[str, str]]:
    """What comes before the installed packages: the folders of scripts and modules, then PYTHONPATH."""
    for script in rule.scripts:
        for path in globs.expand(script):
            yield "script folder", os.path.dirname(os.path.realpath(path))
    if rule.modules:
        yield "current folder", launch.cwd
    yield from begun.first if begun is not None else ()
    told = begun is not None and not begun.trouble
    later = begun.pythonpath if begun is not None and told else pythonpath(launch.environ, launch.cwd)
    yield from (("PYTHONPATH", folder) for folder in later)


def _wanted(rule: LaunchRule, look: Look, begun: Started | None) -> list[PythonRule]:
    named = [one for one in look.policy.python if one.name == rule.python] or list(look.policy.python)
    return [PythonRule(OUTSIDE, begun.interpreter)] if begun is not None and begun.interpreter else named


def _roots(rule: LaunchRule, look: Look, begun: Started | None) -> list[str] | Unknown:
    """The site folders of the launch's environment: its own, else that which it must use, else all."""
    wanted = _wanted(rule, look, begun)
    roots: list[str] = []
    for one in wanted:
        found = find(one, look.disk)
        if isinstance(found, Unknown):
            return Unknown("launch", "path", found.reason)
        if found is not None:
            roots += [*found.site_packages, *found.base_site]
    return roots


# -- launch:loader/NAME ----------------------------------------------------------------------------------------------


def _loader_facts(rule: LaunchRule, look: Look, launch: Launch, begun: Started | None) -> Iterator[Fact | Unknown]:
    """What the first of the launch's environments would load."""
    for one in _wanted(rule, look, begun)[:1]:
        found = find(one, look.disk)
        if isinstance(found, Unknown):
            yield Unknown("launch", f"{loader.PREFIX}*", found.reason)
        elif found is not None:
            yield from loader.facts(look, launch, found)
