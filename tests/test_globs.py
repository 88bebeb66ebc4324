"""Globs: what a pattern of a policy matches, in paths and on the disk."""

from __future__ import annotations

import fnmatch
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockd.globs import expand, literal_root, matches


@pytest.mark.parametrize(
    ("pattern", "path", "expected"),
    [
        ("**/x/**", "x", True),
        ("**/x/**", "x/y", True),
        ("**/x/**", "a/b/x", True),
        ("**/x/**", "a/b/x/y/z", True),
        ("**/x/**", "ax/y", False),
        ("wandb/**", "wandb", True),
        ("wandb/**", "wandb/run/1", True),
        ("wandb/**", "a/wandb", False),
        ("*.pyc", "a.pyc", True),
        ("*.pyc", "a/b.pyc", False),
        ("**/*.pyc", "b.pyc", True),
        ("**/*.pyc", "a/b/c.pyc", True),
        ("a/**/b", "a/b", True),
        ("a/**/b", "a/x/y/b", True),
        ("a/**/b", "axb", False),
        ("a", "a/deep/er", True),
        ("a?c", "a/c", False),
        ("a[!b]c", "a/c", False),
        ("a[!b]c", "abc", False),
        ("a[!b]c", "axc", True),
        ("a[^b]c", "axc", True),
        ("[]x]", "]", True),
        ("[a-c]", "b", True),
        ("[z-a]", "m", False),
        ("[", "[", True),
        ("[]", "[]", True),
        ("a.b", "axb", False),
        ("**", "anything/at/all", True),
        ("*", ".hidden", True),
        ("./a/", "a", True),
        ("*.py", "new\nline.py", True),
        ("**/bad*", "a\n/bad\udcff", True),
        ("", "a", False),
        ("[\\]", "\\", True),
        ("a$", "a$", True),
        ("(x|y)", "x", False),
    ],
)
def test_pattern(pattern: str, path: str, expected: bool) -> None:
    assert matches([pattern])(path) is expected


def test_no_pattern_matches_nothing() -> None:
    assert not matches([])("a")


def test_any_of_several_patterns_is_enough() -> None:
    excluded = matches(["*.tmp", "**/locks/**"])
    assert excluded("a.tmp") and excluded("x/locks") and not excluded("a.py")


@given(st.text("ab*?[]!-", max_size=6), st.text("ab[]!-", min_size=1, max_size=4))
def test_one_component_agrees_with_fnmatch(pattern: str, name: str) -> None:
    if "**" in pattern or not pattern:
        return
    assert matches([pattern])(name) is fnmatch.fnmatchcase(name, pattern)


def test_expand_finds_what_exists_sorted(tmp_path: Path) -> None:
    for name in ("b.py", "a.py", ".hidden.py", "c.txt", "new\nline.py"):
        (tmp_path / name).touch()
    found = expand(f"{tmp_path}/*.py")
    assert [os.path.basename(path) for path in found] == [".hidden.py", "a.py", "b.py", "new\nline.py"]


def test_expand_of_a_plain_path_is_itself_when_it_exists(tmp_path: Path) -> None:
    (tmp_path / "a").touch()
    assert expand(str(tmp_path / "a")) == [str(tmp_path / "a")]
    assert expand(str(tmp_path / "b")) == []


def test_expand_finds_a_name_that_looks_like_a_pattern(tmp_path: Path) -> None:
    (tmp_path / "a[1].py").touch()
    assert expand(f"{tmp_path}/a[1].py") == [f"{tmp_path}/a[1].py"]


def test_expand_tells_dangling_links_and_does_not_cross_links_below_two_stars(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "loop").symlink_to("..")
    (tmp_path / "in" / "gone").symlink_to("nowhere")
    (tmp_path / "in" / "x.py").touch()
    assert expand(f"{tmp_path}/**/*.py") == [f"{tmp_path}/in/x.py"]
    assert expand(f"{tmp_path}/in/g*") == [f"{tmp_path}/in/gone"]


def test_expand_agrees_with_matches(tmp_path: Path) -> None:
    for path in ("a/b/c.py", "a/c.py", "c.py", "a/b/d.txt"):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).touch()
    every = [os.path.relpath(path, tmp_path) for path in expand(f"{tmp_path}/**")]
    assert sorted(every) == ["a", "a/b", "a/b/c.py", "a/b/d.txt", "a/c.py", "c.py"]
    for pattern in ("**/*.py", "a/*.py", "a/**/c.py", "*/b/*"):
        wanted = sorted(path for path in every if matches([pattern])(path))
        assert [os.path.relpath(path, tmp_path) for path in expand(f"{tmp_path}/{pattern}")] == wanted


def test_literal_root_is_the_folder_to_watch() -> None:
    assert literal_root("/a/b/*.py") == "/a/b"
    assert literal_root("/a/b.py") == "/a/b.py"
    assert literal_root("/*") == "/"
