"""Packages, start-up code and loose files of an environment: where each would come back from."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from lockd.restore import Said, wanted_words

if TYPE_CHECKING:
    from lockd.findings import Difference
    from lockd.restore import Ground, Outcome


def package(ground: Ground, one: Difference, named: bool) -> Iterator[Outcome]:
    yield Said(one.name, wanted_words(one), "reinstall that build")


def python(ground: Ground, one: Difference, named: bool) -> Iterator[Outcome]:
    yield Said(one.name, wanted_words(one), "put it right by hand")


def unowned(ground: Ground, one: Difference, named: bool) -> Iterator[Outcome]:
    yield Said(one.name, wanted_words(one), "put it right by hand")
