"""`lockd report`: a page that stands alone and says what verify says; all that is of the machine is text in it."""

from __future__ import annotations

import os
from html.parser import HTMLParser
from pathlib import Path

import pytest

from lockd.report.page import MARK
from tests.scene import Answer, Scene, pinned_file

_VOID = {"meta", "br"}


class _Page(HTMLParser):
    """The text of a page, its tags, and whether each that was opened was closed in order."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: set[str] = set()
        self.attributes: set[str] = set()
        self.text = ""
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes.update(name for name, _ in attrs)
        if tag not in _VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open and self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def shown(answer: Answer) -> _Page:
    assert answer.code == 0, answer.err
    return _Page(answer.out)


def test_it_says_what_verify_says(tmp_path: Path) -> None:
    scene, script = pinned_file(tmp_path)
    assert scene.accept().code == 0
    script.write_text("x = 2\n")
    told = scene.verify().document
    page = shown(scene.lockd("report"))
    for word in (told["verdict"], told["environment"], told["policy"]["path"], told["lock"]["environment"]):
        assert word in page.text
    (finding,) = told["findings"]
    assert finding["message"] in page.text and finding["hint"] in page.text
    assert "generation 1 accepted" in page.text and "None is recorded." in page.text


def test_it_stands_alone(tmp_path: Path) -> None:
    scene, _ = pinned_file(tmp_path)
    scene.accept()
    page = shown(scene.lockd("report"))
    assert page.tags.isdisjoint({"script", "link", "img", "iframe", "object"})
    assert page.attributes.isdisjoint({"src", "href", "onload", "onclick"})


def test_what_the_machine_holds_is_text_and_nothing_else(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    evil = scene.file("a<script>alert(1)&.py")
    odd = Path(os.fsdecode(os.fsencode(tmp_path) + b"/odd\xff\x1b.py"))
    odd.write_text("x")
    scene.write_policy(f'[[file]]\npath = "{tmp_path}/*.py"\n[[file]]\npath = "{evil.parent}/a*"\n')
    assert scene.accept("-m", "<b>why</b>").code == 0
    evil.write_text("y")
    odd.write_text("y")
    answer = scene.lockd("report")
    page = shown(answer)
    assert "<script" not in answer.out and "<b>" not in answer.out and "\x1b" not in answer.out
    assert "a<script>alert(1)&.py" in page.text and "<b>why</b>" in page.text
    assert "odd\\xff\\x1b.py" in page.text


def test_no_known_good_and_no_state_are_said(tmp_path: Path) -> None:
    scene, _ = pinned_file(tmp_path)
    page = shown(scene.lockd("report"))
    assert "no known-good yet" in page.text and "no state of this user holds a history" in page.text
    assert scene.lockd("report", "--exit-code").code == scene.verify().code == 3


def test_runs_and_their_numbers_stand_in_it(tmp_path: Path) -> None:
    scene, _ = pinned_file(tmp_path)
    scene.accept()
    for number in (12.8, 4.3):
        assert scene.lockd("run", "--wait", "--", "true").code == 0
        assert scene.lockd("note", "last", f"ktok_s={number}").code == 0
    page = shown(scene.lockd("report"))
    assert "run:2" in page.text and "ktok_s=12.8" in page.text and "svg" in page.tags and "12.8 … 4.3" in page.text


def test_a_long_log_is_cut_and_said_to_be(tmp_path: Path) -> None:
    from lockd import state
    from lockd.store import Event

    scene, _ = pinned_file(tmp_path)
    scene.accept()
    os.environ["LOCKD_STATE"] = str(scene.state)
    try:
        held = state.open(str(scene.policy), create=True)
        assert held is not None
        store = held.store(create=True)
        assert store is not None
        with store:
            for number in range(400):
                store.append(Event("2026-12-01T00:00:00Z", "note", f"entry {number}"))
    finally:
        del os.environ["LOCKD_STATE"]
    page = shown(scene.lockd("report"))
    assert "Log: 401 entries, 101 older ones not shown" in page.text


def test_a_file_is_replaced_only_where_it_is_a_report(tmp_path: Path) -> None:
    scene, script = pinned_file(tmp_path)
    scene.accept()
    target = tmp_path / "page.html"
    for _ in range(2):
        assert scene.lockd("report", "-o", str(target)).code == 0
    assert MARK in target.read_text() and target.stat().st_mode & 0o777 == 0o600
    target.write_text("mine")
    answer = scene.lockd("report", "-o", str(target))
    assert answer.code == 2 and "is no report of lockd" in answer.err and target.read_text() == "mine"
    link = tmp_path / "link.html"
    link.symlink_to(script)
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    assert scene.lockd("report", "-o", str(fifo)).code == 2
    assert scene.lockd("report", "-o", str(link)).code == 2 and script.read_text() == "x = 1\n"
    assert scene.lockd("report", "-o", str(tmp_path / "no" / "page.html")).code == 3


@pytest.mark.parametrize("words", [("--json",), ("--since", "when?"), ("--nope",)])
def test_wrong_usage_is_a_line(tmp_path: Path, words: tuple[str, ...]) -> None:
    scene, _ = pinned_file(tmp_path)
    scene.accept()
    answer = scene.lockd("report", *words)
    assert answer.code == 2 and "Traceback" not in answer.err and answer.err.startswith("lockd: ")
