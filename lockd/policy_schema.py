"""The JSON Schema of a policy file, for editors: `lockd policy schema`, kept in docs/schemas/policy.schema.json.

Always holds: it is made from `rules` by pydantic, with the short forms that a person may write beside the tables; every
key has its description; unknown keys are refused. What JSON Schema can't say (names that refer, PEP 440) lockd checks.
Never: is written by hand.
"""

from __future__ import annotations

import dataclasses
from typing import Any, get_type_hints

from lockd import rules
from lockd.policy_shape import MANY, ONE, OURS, SCHEMA, adapter

_SEVERITY = {"enum": ["block", "warn", "record", "ignore"], "type": "string"}


def schema() -> dict[str, Any]:
    """The whole schema, as plain data."""
    made: dict[str, Any] = adapter().json_schema()
    definitions = made.pop("$defs")
    for name, definition in definitions.items():
        _describe(definition, getattr(rules, name))
    _describe(made, rules.Policy)
    properties = {key: value for key, value in made["properties"].items() if key not in OURS}
    properties["env"] = {
        "type": "object",
        "description": properties["env"]["description"],
        "additionalProperties": _variable(),
    }
    for section in ("gpu", "host"):
        properties[section] = _system(section, properties[section]["description"])
    del definitions["SystemRule"]
    first = {"schema": {"const": SCHEMA, "description": "the version of this format"}}
    document = {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "title": "lockd policy",
        "description": "What a training environment is held to, and how strictly.",
        "type": "object",
        "additionalProperties": False,
        "required": ["schema", "name"],
        "anyOf": [{"required": [section]} for section in (*MANY, "env", *ONE) if section != "launch"],
        "properties": {**first, **properties},
        "definitions": definitions,
    }
    moved: dict[str, Any] = _moved(document)
    return moved


def _describe(definition: dict[str, Any], rule: Any) -> None:
    """Each property gets the text that stands beside its type; titles and nulls, which TOML has none of, go."""
    definition["description"] = (rule.__doc__ or "").split("\n")[0]
    definition.pop("title", None)
    hints = get_type_hints(rule, include_extras=True)
    for field in dataclasses.fields(rule):
        value = definition["properties"].get(field.name)
        if value is None:
            continue
        texts = [text for text in getattr(hints[field.name], "__metadata__", ()) if isinstance(text, str)]
        described = {**_without_null(value), **({"description": texts[0]} if texts else {})}
        described.pop("title", None)
        definition["properties"][field.name] = described


def _without_null(value: dict[str, Any]) -> dict[str, Any]:
    kept = {key: item for key, item in value.items() if not (key == "default" and item is None)}
    choices = [choice for choice in kept.get("anyOf", ()) if choice != {"type": "null"}]
    if len(choices) == 1:
        del kept["anyOf"]
        return {**choices[0], **kept}
    return kept


def _variable() -> dict[str, Any]:
    text = {"type": "string", "description": '"locked": what the lock recorded, unset counts; else the wanted value'}
    return {"anyOf": [text, {"$ref": "#/$defs/EnvRule"}]}


def _system(section: str, description: str) -> dict[str, Any]:
    value: dict[str, Any] = {"type": ["string", "integer", "boolean"], "description": '"locked" or the wanted value'}
    table = {
        "type": "object",
        "additionalProperties": False,
        "properties": {"value": value, "on_drift": _SEVERITY},
    }
    known: dict[str, Any] = {"on_drift": _SEVERITY}
    if section == "gpu":
        count = {"anyOf": [{"type": "integer", "minimum": 0}, {"const": "locked"}, table]}
        known["count"] = {**count, "description": "how many GPUs there are"}
        known["idle"] = {**_SEVERITY, "description": "how strictly no other process may use the GPUs"}
    else:
        names = {"type": "array", "items": {"type": "string", "minLength": 1}, "minItems": 1}
        listed = {**table, "properties": {"value": names, "on_drift": _SEVERITY}, "required": ["value"]}
        known["packages"] = {"anyOf": [names, listed], "description": "packages of dpkg or rpm, by name or glob"}
    return {
        "type": "object",
        "description": description,
        "properties": known,
        "additionalProperties": {"anyOf": [value, table]},
    }


def _moved(value: Any) -> Any:
    """`$defs` is newer than draft 7, which editors for TOML know."""
    if isinstance(value, dict):
        return {key: _moved(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_moved(item) for item in value]
    return value.replace("#/$defs/", "#/definitions/") if isinstance(value, str) else value
