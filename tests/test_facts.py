"""Facts: names that are safe to print, and ids that depend on attributes alone."""

from __future__ import annotations

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockd.facts import Fact, Facts, Unknown, environment_id, launch_id, set_digest, shown

NAMES = st.binary(min_size=1, max_size=30).map(os.fsdecode)


@given(NAMES)
def test_a_shown_name_is_one_line_of_printable_utf8(name: str) -> None:
    assert all(character == " " or character.isprintable() for character in shown(name))
    shown(name).encode("utf-8")


@given(NAMES, NAMES)
def test_two_names_are_never_shown_alike(one: str, other: str) -> None:
    assert (shown(one) == shown(other)) == (one == other)


def test_a_raw_byte_and_the_control_character_of_its_number_differ() -> None:
    assert shown(os.fsdecode(b"\x85")) == "\\x85"
    assert shown("\x85") == "\\u0085"


def test_ids_tell_environment_and_launch_apart() -> None:
    package, variable = Fact("package", "t/torch", {"version": "2"}), Fact("env", "A", {"value": "1"})
    other = Fact("env", "A", {"value": "2"})
    assert environment_id([package, variable]) == environment_id([other, package])
    assert launch_id([package, variable]) != launch_id([package, other])


def test_told_attributes_move_no_id() -> None:
    assert environment_id([Fact("file", "/a", {"digest": "x"}, {"mtime": "1"})]) == environment_id(
        [Fact("file", "/a", {"digest": "x"}, {"mtime": "2"})]
    )


def test_unknown_is_not_absent() -> None:
    assert environment_id([Unknown("file", "/a", "no right")]) != environment_id([Fact("file", "/a", {"absent": True})])


@given(st.lists(st.text(alphabet="0123456789abcdef", min_size=16, max_size=16), unique=True))
def test_a_set_has_one_digest_in_any_order(tokens: list[str]) -> None:
    assert set_digest(tokens) == set_digest(reversed(tokens))


def test_two_facts_of_one_name_are_refused() -> None:
    with pytest.raises(ValueError, match="one name"):
        Facts([Fact("file", "/a", {}), Fact("file", "/a", {})])
