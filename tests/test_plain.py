"""Plain dataclasses behave as the standard library's, for code that makes them and for libraries that ask."""

from __future__ import annotations

import copy
import dataclasses
import pickle
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import pytest

from lockd import plain
from lockd.plain import dataclass, field, replace


@dataclass(frozen=True)
class Point:
    shared: ClassVar[int] = 7
    x: int
    y: int = 0
    tags: Mapping[str, str] = field(default_factory=dict)

    @property
    def sum(self) -> int:
        return self.x + self.y


@dataclass(frozen=True)
class Point3(Point):
    z: int = 3


@dataclass
class Open:
    items: list[int] = field(default_factory=list)
    after: int = 0

    def __post_init__(self) -> None:
        self.after += 1


@dataclass(frozen=True)
class Noted:
    x: int
    note: str = field(default="", compare=False)


@dataclasses.dataclass(frozen=True)
class Standard:
    shared: ClassVar[int] = 7
    x: int
    y: int = 0
    tags: Mapping[str, str] = dataclasses.field(default_factory=dict)


def test_it_is_made_like_the_standard_one() -> None:
    assert (Point(1).x, Point(1, 2).y, Point(x=1, y=5).sum, Point(1).tags) == (1, 2, 6, {})
    assert repr(Point(1)) == repr(Standard(1)).replace("Standard", "Point")
    assert Point(1) == Point(1, 0, {}) != Point(2)
    others: list[object] = [Standard(1), 1]
    assert Point(1) not in others
    assert Point(1).tags is not Point(1).tags
    assert Point3(1, 2, {}, 4).z == 4 and Point3(1).z == 3


@pytest.mark.parametrize(
    ("args", "given"), [((), {}), ((1, 2, {}, 4), {}), ((1,), {"x": 1}), ((1,), {"w": 1}), ((), {"w": 1})]
)
def test_what_the_standard_refuses_is_refused(args: tuple[Any, ...], given: dict[str, Any]) -> None:
    for made in (Point, Standard):
        with pytest.raises(TypeError):
            made(*args, **given)


def test_frozen_is_frozen_and_open_is_open() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        Point(1).x = 2  # type: ignore[misc]
    with pytest.raises(dataclasses.FrozenInstanceError):
        del Point(1).x
    thing = Open()
    thing.items.append(1)
    thing.after = 5
    assert (thing.items, thing.after, Open().after) == ([1], 5, 1)


def test_hashes_as_the_standard_does() -> None:
    assert hash(Point(1, 2, ())) == hash(Point(1, 2, ()))  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        hash(Point(1))  # its mapping
    with pytest.raises(TypeError):
        hash(Open())


def test_a_field_can_be_left_out_of_comparison() -> None:
    assert Noted(1, "a") == Noted(1, "b") != Noted(2, "a")
    assert hash(Noted(1, "a")) == hash(Noted(1, "b"))
    assert [one.compare for one in dataclasses.fields(Noted)] == [True, False]
    assert Noted.note == ""


def test_others_see_a_dataclass() -> None:
    assert dataclasses.is_dataclass(Point) and dataclasses.is_dataclass(Point(1))
    assert [one.name for one in dataclasses.fields(Point3)] == ["x", "y", "tags", "z"]
    assert [(one.name, one.type, one.default) for one in dataclasses.fields(Point)] == [
        (one.name, one.type, one.default) for one in dataclasses.fields(Standard)
    ]
    assert dataclasses.replace(Point(1), y=4) == replace(Point(1), y=4) == Point(1, 4)
    assert dataclasses.asdict(Point(1)) == {"x": 1, "y": 0, "tags": {}}


def test_a_match_statement_and_copies_work() -> None:
    match Point(1, 2):
        case Point(x, y):
            assert (x, y) == (1, 2)
    assert copy.deepcopy(Point(1)) == pickle.loads(pickle.dumps(Point(1))) == Point(1)


def test_pydantic_takes_it() -> None:
    from pydantic import TypeAdapter, ValidationError

    assert TypeAdapter(Point3).validate_python({"x": 1, "z": 9}) == Point3(1, z=9)
    with pytest.raises(ValidationError):
        TypeAdapter(Point).validate_python({"x": "no"})


def test_the_standard_module_is_not_imported_for_it() -> None:
    code = "import sys; import lockd.rules; lockd.rules.FileRule('/a'); print('dataclasses' in sys.modules)"
    answer = subprocess.run(
        [sys.executable, "-S", "-c", code], capture_output=True, text=True, check=True, cwd=Path(__file__).parent.parent
    )
    assert answer.stdout == "False\n"
    assert plain.__doc__
