"""Frozen dataclasses to plain JSON data and back, so that validated data can be kept without what validated it.

Always holds: `thaw(freeze(x), types) == x` for scalars, tuples, dicts with string keys, and the dataclasses of `types`.
Anything else, and data that was not made here, is a ValueError.
Never: makes an object of a class that the caller did not name.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def freeze(value: Any) -> Any:
    """Scalars as they are; a tuple is `["t", […]]`, a dict `["d", {…}]`, an object `[CLASS, {…}]`."""
    if value is None or isinstance(value, (str, int, float, bool)):
        return value
    if isinstance(value, (tuple, list)):
        return ["t", [freeze(item) for item in value]]
    if isinstance(value, Mapping):
        return ["d", {key: freeze(item) for key, item in value.items()}]
    from dataclasses import fields, is_dataclass  # what makes the data may cost; what reads it back may not

    if is_dataclass(value):
        return [type(value).__name__, {field.name: freeze(getattr(value, field.name)) for field in fields(value)}]
    raise ValueError(f"{type(value).__name__} can't be kept as plain data")


def thaw(plain: Any, types: Mapping[str, type]) -> Any:
    """What `freeze` was given. `types`: class name → class."""
    if not isinstance(plain, list):
        return plain
    kind, content = plain
    if kind == "t":
        return tuple([thaw(item, types) for item in content])
    values = {key: thaw(item, types) for key, item in content.items()}
    if kind == "d":
        return values
    try:
        return types[kind](**values)
    except (KeyError, TypeError) as error:
        raise ValueError(f"not data of this version: {error}") from None
