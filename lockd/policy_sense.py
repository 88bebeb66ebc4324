"""What one rule of a policy says beside another: two of one name, names of nothing, flags that contradict each other.

Always holds: it works on the document as it was written, also where its shape is wrong, so that these mistakes are told
together with those of the shape; what has the wrong type is passed over here.
Never: reads the machine.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

from lockd.toml_lines import KeyPath, dotted
from lockd.wellformed import absolute, cut, package

if TYPE_CHECKING:
    from lockd.policy_shape import Mistake

RULES = ("python", "file", "cache", "tree", "git", "command", "env", "gpu", "host")  # [launch] alone pins nothing
UNIQUE = (  # section, key that no two rules share
    ("python", "name"),
    ("python", "path"),
    ("file", "path"),
    ("cache", "path"),
    ("tree", "path"),
    ("git", "path"),
    ("command", "name"),
)


def contradictions(document: Mapping[str, Any]) -> Iterator[Mistake]:
    """Every mistake of this kind, as (key path, text)."""
    from lockd.policy_shape import Mistake

    for key, text in _all(document):
        yield Mistake(key, text)


def _all(document: Mapping[str, Any]) -> Iterator[tuple[KeyPath, str]]:
    if not any(document.get(section) for section in RULES):
        yield (), "no rule: an empty policy pins nothing; name an environment ([[python]]), a file or another thing"
    for section, key in UNIQUE:
        yield from _twice(section, key, _tables(document, section))
    yield from _references(document)
    for at, rule in _tables(document, "python"):
        yield from _packages(at, rule)
    for at, rule in _tables(document, "cache"):
        if rule.get("change") == "empty" and rule.get("keep") is True:
            yield ("cache", at, "keep"), 'contradicts change = "empty": an empty cache has nothing to keep'
    for at, rule in _tables(document, "command"):
        if rule.get("run") == []:
            yield ("command", at, "run"), "is empty; write the command and its arguments"
        yield from _program(at, rule.get("run"))
    variables = document.get("env")
    for name, rule in variables.items() if isinstance(variables, dict) else ():
        if isinstance(rule, dict):
            yield from _variable(name, rule)


def _tables(document: Mapping[str, Any], section: str) -> Iterator[tuple[int, dict[str, Any]]]:
    rules = document.get(section)
    for at, rule in enumerate(rules if isinstance(rules, list) else ()):
        if isinstance(rule, dict):
            yield at, rule


def _twice(section: str, key: str, rules: Iterator[tuple[int, dict[str, Any]]]) -> Iterator[tuple[KeyPath, str]]:
    first: dict[str, int] = {}
    for at, rule in rules:
        value = rule.get(key)
        if not isinstance(value, str):
            continue
        value = _normal(value) if key == "path" else value
        if value in first:
            yield (section, at, key), f'"{value}" is already the {key} of {section}[{first[value]}]'
        first.setdefault(value, at)


def _normal(path: str) -> str:
    try:
        return absolute(path)
    except ValueError:  # told as a mistake of the shape
        return path


def _references(document: Mapping[str, Any]) -> Iterator[tuple[KeyPath, str]]:
    """`cache.python` and `launch.python` name an environment of this policy."""
    names = [rule["name"] for _, rule in _tables(document, "python") if isinstance(rule.get("name"), str)]
    users: list[tuple[KeyPath, Any]] = [
        (("cache", at, "python"), rule.get("python")) for at, rule in _tables(document, "cache")
    ]
    launch = document.get("launch")
    if isinstance(launch, dict):
        users.append((("launch", "python"), launch.get("python")))
    for key, name in users:
        if isinstance(name, str) and name not in names:
            there = f"there are {', '.join(names)}" if names else "there is none"
            yield key, f'no [[python]] has the name "{name}"; {there}'


def _packages(at: int, rule: dict[str, Any]) -> Iterator[tuple[KeyPath, str]]:
    pins = rule.get("packages")
    forbidden = [glob for glob in rule.get("forbid") or () if isinstance(glob, str)]
    first: dict[str, str] = {}
    for name, pin in pins.items() if isinstance(pins, dict) else ():
        key: KeyPath = ("python", at, "packages", name)
        try:
            normal = package(name)
        except ValueError as error:
            yield key, str(error)
            continue
        if normal in first:
            yield key, f"the same package as {dotted((*key[:-1], first[normal]))}"
        first.setdefault(normal, name)
        if pin == {}:
            yield key, "says nothing; write a version, cuda, hip, git, index or on_drift"
        for glob in forbidden:
            if fnmatchcase(normal, glob.lower().replace("_", "-").replace(".", "-")):
                yield key, f'pinned here and forbidden by "{glob}" of python[{at}].forbid'


def _program(at: int, run: Any) -> Iterator[tuple[KeyPath, str]]:
    """A command is started by an absolute path, or by a name that is looked up in a fixed PATH."""
    program = run[0] if isinstance(run, list) and run else None
    if isinstance(program, str) and "/" in program and not program.startswith("/"):
        yield ("command", at, "run", 0), f'"{cut(program)}" depends on the current folder; write the absolute path'


def _variable(name: str, rule: dict[str, Any]) -> Iterator[tuple[KeyPath, str]]:
    key: KeyPath = ("env", name)
    said = [flag for flag in ("value", "locked", "forbid", "secret") if rule.get(flag) not in (None, False)]
    if not said:
        yield key, "says nothing; write a value, locked, forbid or secret"
    if "value" in said and "secret" in said:
        yield key, "contradiction: a secret's value has no place in a policy; leave value out"
    elif "forbid" in said and len(said) > 1:
        yield key, f"contradiction: forbid and {said[0] if said[0] != 'forbid' else said[-1]}; keep one"
    elif "value" in said and "locked" in said:
        yield key, "contradiction: a value of the policy and the lock's; keep one"
