"""The story that lockd ends, acted out in a real container: twelve acts, the question, the way back."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from subprocess import CompletedProcess

import pytest

from story.acts import ACTS, LAST, Act
from story.box import Box, furnish
from story.telling import judged_act, judged_end, play, way_back
from tests.container import Container, Kind, container
from tests.wheels import UV

__all__ = ["container"]
pytestmark = [
    pytest.mark.container,
    pytest.mark.skipif(sys.version_info[:2] != (3, 11), reason="the container's Python takes compiled parts of 3.11"),
    pytest.mark.skipif(UV is None, reason="no uv here"),
]


@pytest.fixture(scope="module")
def box(container: Callable[[Kind], Container]) -> Iterator[Box]:
    """The good day, with run 1."""
    made = furnish(container("privileged"), _quiet)
    good = made.launch()
    assert good.returncode == 0 and "12.8 Ktok/s" in good.stdout, good.stderr
    (run,) = made.document("runs")
    assert run["verdict"] == "ok" and run["notes"]["ktok_s"] == 12.8
    yield made


def _quiet(_: str, __: CompletedProcess[str]) -> None:
    """A test shows nothing."""


@pytest.mark.parametrize(
    "act", ACTS, ids=lambda act: f"{act.number:02}-{act.title.replace(' ', '-').replace('/', '.')}"
)
def test_an_act_is_told_with_who_and_refused(box: Box, act: Act) -> None:
    assert judged_act(act, play(box, act)) == []


def test_the_answer_is_the_eight_facts(box: Box) -> None:
    assert judged_end(box, LAST) == []


def test_the_log_tells_the_acts_in_their_order(box: Box) -> None:
    wanted = [(act.kind, act.fact) for act in ACTS if act.kind == "drift"]
    seen = [(one["kind"], one.get("fact")) for one in box.log() if one["kind"] == "drift"]
    assert seen == wanted
    refused = [one["message"] for one in box.log() if one["kind"] == "refuse"]
    assert len(refused) == len(ACTS)
    assert all(act.names in message or act.fact in message for act, message in zip(ACTS, refused, strict=True))


def test_the_way_back(box: Box) -> None:
    assert way_back(box) == []
