"""A parsed TOML document to a `Policy`, or to every mistake in it.

The steps: 1. the short forms (`torch = "2.11.0"`, `X = "locked"`, `[gpu] count = 8`) become tables; 2. pydantic checks
the shape of everything against `rules`; 3. `policy_sense` looks at what one rule says beside another; 4. sections whose
probe is not built are refused by name.
Always holds: the mistakes of all steps are told together, each with its key path, in the order of the file.
Never: reads the machine; is imported on the hot path.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from difflib import get_close_matches
from functools import lru_cache
from typing import Any, NamedTuple

from lockd import rules, wellformed
from lockd.toml_lines import KeyPath

SCHEMA = 1
OURS = ("path", "digest", "lines", "owner")  # fields of Policy that are not keys of the file
ONE = {"launch": rules.LaunchRule, "gpu": rules.SystemRule, "host": rules.SystemRule}  # [section]
MANY = {  # [[section]]
    "python": rules.PythonRule,
    "file": rules.FileRule,
    "cache": rules.CacheRule,
    "tree": rules.TreeRule,
    "git": rules.GitRule,
    "command": rules.CommandRule,
}
TOP = ("schema", *(field.name for field in dataclasses.fields(rules.Policy) if field.name not in OURS))
_WANTED = {
    "string_type": "a string",
    "bool_type": "true or false",
    "tuple_type": "an array",
    "mapping_type": "a table",
    "dict_type": "a table",
    "dataclass_type": "a table",
    "dataclass_exact_type": "a table",
    "int_type": "an integer",
}


class Mistake(NamedTuple):
    """One mistake: the key path, and what is wrong there in words."""

    key: KeyPath
    text: str


def shape(document: Mapping[str, Any], built: Iterable[str]) -> tuple[rules.Policy | None, list[Mistake]]:
    """The policy, or None and every mistake. `built`: the sections that have a probe."""
    from lockd.policy_sense import contradictions

    mistakes: list[Mistake] = list(_head(document))
    plain = _expanded(document, mistakes)
    policy = _validated(plain, document, mistakes)
    mistakes += contradictions(document)
    mistakes += _not_built(document, frozenset(built))
    return (None if mistakes else policy), mistakes


def _head(document: Mapping[str, Any]) -> Iterator[Mistake]:
    schema = document.get("schema")
    if "schema" not in document:
        yield Mistake((), f"schema: required, and missing; write schema = {SCHEMA}")
    elif isinstance(schema, bool) or not isinstance(schema, int):
        yield Mistake(("schema",), f"wants the integer {SCHEMA}, found {found(schema)}")
    elif schema != SCHEMA:
        text = "newer than this lockd, which reads" if schema > SCHEMA else "unknown; this lockd reads"
        yield Mistake(("schema",), f"schema {schema} is {text} schema {SCHEMA}")
    for name in document:
        if name not in TOP:
            yield Mistake((name,), unknown(name, TOP))


def _not_built(document: Mapping[str, Any], built: frozenset[str]) -> Iterator[Mistake]:
    for section in (*MANY, *ONE, "env"):
        if section in document and section not in built:
            yield Mistake(
                (section,),
                f"the {section} probe is not built into this lockd yet, so nothing would be held; "
                "leave the section out, or make it a comment",
            )


# -- the short forms ---------------------------------------------------------------------------------------------------


def _expanded(document: Mapping[str, Any], mistakes: list[Mistake]) -> dict[str, Any]:
    plain = {key: value for key, value in document.items() if key in TOP and key != "schema"}
    if isinstance(plain.get("env"), dict):
        plain["env"] = _tables(("env",), plain["env"], _variable, mistakes)
    for section in ("gpu", "host"):
        if isinstance(plain.get(section), dict):
            plain[section] = _system(section, plain[section], mistakes)
    if isinstance(plain.get("python"), list):
        plain["python"] = [_with_packages(at, rule, mistakes) for at, rule in enumerate(plain["python"])]
    return plain


def _with_packages(at: int, rule: Any, mistakes: list[Mistake]) -> Any:
    if not isinstance(rule, dict) or not isinstance(rule.get("packages"), dict):
        return rule
    key = ("python", at, "packages")
    return {**rule, "packages": _tables(key, rule["packages"], lambda pin: {"version": pin}, mistakes)}


def _variable(text: str) -> dict[str, Any]:
    return {"locked": True} if text == "locked" else {"value": text}


def _tables(
    key: KeyPath, values: dict[str, Any], of_string: Callable[[str], dict[str, Any]], mistakes: list[Mistake]
) -> dict[str, Any]:
    tables = {}
    for name, value in values.items():
        if isinstance(value, str):
            tables[name] = of_string(value)
        elif isinstance(value, dict):
            tables[name] = value
        else:
            quoted = f"; write {json.dumps(str(value))}" if isinstance(value, (int, float)) else ""
            mistakes.append(Mistake((*key, name), f"wants a string or a table, found {found(value)}{quoted}"))
    return tables


def _system(section: str, values: dict[str, Any], mistakes: list[Mistake]) -> dict[str, Any]:
    """`[gpu]` and `[host]`: `on_drift` is the section's, every other key the name of a fact."""
    facts = {name: value for name, value in values.items() if name != "on_drift"}
    for name, value in facts.items():
        key: KeyPath = (section, name)
        if not _is_system_key(section, name):
            mistakes.append(Mistake(key, unknown(name, (*rules.SYSTEM_KEYS[section], "on_drift"))))
            continue
        if isinstance(value, dict):
            mistakes += _system_table(key, value)
            value = value.get("value", "locked")
            key = (*key, "value")
        text = _system_value(section, name, value)
        if text:
            mistakes.append(Mistake(key, text))
    return {"values": facts, **({"on_drift": values["on_drift"]} if "on_drift" in values else {})}


def _system_table(key: KeyPath, table: dict[str, Any]) -> Iterator[Mistake]:
    for name in table:
        if name not in ("value", "on_drift"):
            yield Mistake((*key, name), unknown(name, ("value", "on_drift")))
    if "on_drift" in table and table["on_drift"] not in _severities():
        yield Mistake((*key, "on_drift"), one_of(_severities(), table["on_drift"]))


def _is_system_key(section: str, name: str) -> bool:
    more = name.isdigit() if section == "gpu" else "." in name or name.startswith("package/")
    return more or name in rules.SYSTEM_KEYS[section]


def _system_value(section: str, name: str, value: Any) -> str:
    if (section, name) == ("host", "packages"):
        right = isinstance(value, list) and value and all(isinstance(one, str) and one for one in value)
        return "" if right else f"wants an array of names or globs of packages, found {found(value)}"
    if (section, name) == ("gpu", "count") and value != "locked":
        right = isinstance(value, int) and not isinstance(value, bool) and value >= 0
        return "" if right else f'wants an integer from 0 or "locked", found {found(value)}'
    if (section, name) == ("gpu", "idle"):
        return "" if value in _severities() else one_of(_severities(), value)
    right = isinstance(value, (str, int)) and value != ""
    return "" if right else f'wants "locked", a value, or a table with value and on_drift; found {found(value)}'


def _severities() -> tuple[str, ...]:
    return tuple(rules.Severity.__args__)  # type: ignore[attr-defined]


# -- pydantic, and its errors in our words -----------------------------------------------------------------------------


@lru_cache(maxsize=1)
def adapter() -> Any:
    """pydantic over `rules.Policy`: for validation and for the JSON Schema."""
    from pydantic import TypeAdapter

    return TypeAdapter(rules.Policy)


def _validated(plain: dict[str, Any], document: Mapping[str, Any], mistakes: list[Mistake]) -> rules.Policy | None:
    from pydantic import ValidationError

    try:
        # JSON, because strict Python input has no arrays for tuples; a date becomes what no field takes
        policy: rules.Policy = adapter().validate_json(json.dumps(plain, default=lambda date: [[]]))
        return policy
    except ValidationError as error:
        for one in error.errors(include_url=False):
            key = _key(one["loc"])
            if key is not None:
                mistakes.append(_worded(key, one, document))
        return None


def _key(loc: tuple[Any, ...]) -> KeyPath | None:
    """The key path of an error; None for the branch of a union that was not meant (`packages` as plain strings)."""
    if len(loc) > 4 and loc[2] == "packages":
        if loc[4] != "PackagePin":
            return None
        loc = loc[:4] + loc[5:]
    return tuple(part for part in loc if part != "[key]")


def _worded(key: KeyPath, error: Mapping[str, Any], document: Mapping[str, Any]) -> Mistake:
    kind = error["type"]
    if kind == "missing":
        return Mistake(key, "required, and missing")
    if kind in ("unexpected_keyword_argument", "extra_forbidden"):
        return Mistake(key, unknown(str(key[-1]), _fields(key[:-1])))
    key = _written(key, document)
    value = _at(document, key)
    if kind == "value_error":
        return Mistake(key, str(error["ctx"]["error"]))
    if kind == "literal_error":
        words = tuple(word for word in error["ctx"]["expected"].split("'")[1::2])
        return Mistake(key, one_of(words, value))
    if len(key) == 1 and key[0] in MANY and isinstance(value, dict):
        return Mistake(key, f"wants [[{key[0]}]], an array of tables, found one table [{key[0]}]")
    if len(key) == 1 and key[0] in ONE and isinstance(value, list):
        return Mistake(key, f"wants one table [{key[0]}], found an array [[{key[0]}]]")
    return Mistake(key, f"wants {_WANTED[kind]}, found {found(value)}" if kind in _WANTED else error["msg"])


def _written(key: KeyPath, document: Mapping[str, Any]) -> KeyPath:
    """The part of a key path that stands in the file: `packages.torch` where a short form became `….torch.version`."""
    while key and _at(document, key) is _NOTHING:
        key = key[:-1]
    return key


_NOTHING = object()


def _at(document: Any, key: KeyPath) -> Any:
    for part in key:
        inside = (
            part in document if isinstance(document, dict) else isinstance(document, list) and _holds(document, part)
        )
        if not inside:
            return _NOTHING
        document = document[part]
    return document


def _holds(array: list[Any], index: object) -> bool:
    return isinstance(index, int) and 0 <= index < len(array)


def _fields(key: KeyPath) -> tuple[str, ...]:
    """The keys that a table may have."""
    if not key:
        return TOP
    if len(key) > 2 and key[2] == "packages":
        return _names(rules.PackagePin)
    if key[0] == "env":
        return _names(rules.EnvRule)
    section = str(key[0])
    return _names(MANY.get(section) or ONE[section])


def _names(rule: Any) -> tuple[str, ...]:
    return tuple(field.name for field in dataclasses.fields(rule))


def unknown(name: str, valid: Iterable[str]) -> str:
    """An unknown key, with the nearest valid one."""
    valid = tuple(valid)
    near = get_close_matches(name.lower(), valid, n=1, cutoff=0.6)
    return f"unknown key; did you mean {near[0]}?" if near else f"unknown key; there are {', '.join(valid)}"


def one_of(words: Iterable[str], value: Any) -> str:
    """A word that is none of those that are possible, with the nearest one."""
    words = tuple(words)
    near = get_close_matches(value.lower(), words, n=1, cutoff=0.6) if isinstance(value, str) else []
    question = f'; did you mean "{near[0]}"?' if near else ""
    return f"wants one of {', '.join(words)}; found {found(value)}{question}"


def found(value: Any) -> str:
    """A value of the file, in words."""
    if isinstance(value, bool):
        return f"the boolean {str(value).lower()}"
    if isinstance(value, str):
        return json.dumps(wellformed.cut(value), ensure_ascii=False)
    if isinstance(value, (int, float)):
        return f"the {'integer' if isinstance(value, int) else 'number'} {str(value)[:40]}"
    return "a table" if isinstance(value, dict) else "an array" if isinstance(value, list) else "a date or time"
