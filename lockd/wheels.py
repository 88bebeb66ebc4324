"""Wheels."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lockd.state import State


@contextmanager
def stage(state: State | None) -> Iterator[str]:
    yield ""
