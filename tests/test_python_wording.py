"""Findings about packages in words that a tired person can read; the whole values stay in the attributes."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockd.compare import compare
from lockd.facts import Fact, Facts
from lockd.findings import Difference, FileChanges
from lockd.plain import replace
from lockd.probes import python
from lockd.probes.python import brief

HEX = "0123456789abcdef" * 4
OTHER = "fedcba9876543210" * 4


def worded(before: dict[str, Any], after: dict[str, Any], files: int = 0, **told: Any) -> tuple[str, Difference]:
    """The line of a package that changed from one set of attributes to another."""
    old, new = (Facts([Fact("package", "train/torch", one, told)]) for one in (before, after))
    (difference,) = compare(old, new)
    difference = replace(difference, files=FileChanges(files, examples=("torch/a.py",)) if files else None)
    return python.word(difference), difference


def test_another_build_of_one_version_is_told_by_its_most_specific_tags() -> None:
    wide = "cp311-cp311-manylinux2014_x86_64.cp311-cp311-manylinux_2_17_x86_64.cp311-cp311-manylinux_2_28_x86_64"
    before = {"version": "2.0", "tag": wide, "content": HEX, "record": HEX}
    line, difference = worded(before, {**before, "tag": "py2-none-any.py3-none-any", "content": OTHER}, 3)
    assert line == "torch 2.0: another build (cp311-cp311-manylinux_2_28_x86_64 → py3-none-any; 3 files)"
    assert difference.attributes["tag"] == (wide, "py2-none-any.py3-none-any")


def test_digests_and_commits_are_shown_with_twelve_digits() -> None:
    before = {"version": "2.0", "git": HEX[:40], "dirty": f"sha256:{HEX}", "origin": f"url https://x/y sha256:{HEX}"}
    after = {"version": "2.0", "git": OTHER[:40], "dirty": "clean", "origin": f"url https://x/y sha256:{OTHER}"}
    line, difference = worded(before, after)
    assert "git 0123456789ab → fedcba987654" in line and "checkout sha256:0123456789ab → clean" in line
    assert "origin url https://x/y sha256:0123456789ab → url https://x/y sha256:fedcba987654" in line
    assert difference.attributes["git"] == (HEX[:40], OTHER[:40])


def test_what_differs_further_on_is_shown_whole() -> None:
    line, _ = worded({"version": "2.0", "git": HEX[:40]}, {"version": "2.0", "git": HEX[:39] + "0"})
    assert f"git {HEX[:40]} → {HEX[:39]}0" in line


def test_a_new_build_that_was_edited_says_both() -> None:
    before = {"version": "2.0", "tag": "cp311-cp311-linux_x86_64", "content": HEX}
    after = {"version": "2.0", "tag": "py3-none-any", "content": OTHER}
    line, _ = worded(before, after, 1, modified=1, modified_files=("torch/a.py",))
    assert line.startswith("torch 2.0: another build (") and "1 file differs from its wheel: torch/a.py" in line


@pytest.mark.parametrize(
    ("tags", "narrowest"),
    [
        ("py3-none-any", "py3-none-any"),
        ("cp39-abi3-manylinux_2_5_x86_64.cp39-abi3-manylinux1_x86_64", "cp39-abi3-manylinux_2_5_x86_64"),
        ("cp312-cp312-macosx_10_9_x86_64.cp312-cp312-macosx_11_0_arm64", "cp312-cp312-macosx_11_0_arm64"),
        ("py3-none-any.cp312-none-any", "cp312-none-any"),
        ("", ""),
        ("odd", "odd"),
    ],
)
def test_the_most_specific_tag(tags: str, narrowest: str) -> None:
    assert brief.tag(tags) == narrowest


@pytest.mark.parametrize("text", [f"lib/{HEX}.so", f"{HEX}/x.py", f"a-{HEX}", "deadbeef", f"x{HEX}"])
def test_names_of_files_are_never_cut(text: str) -> None:
    assert brief.digests(text) == text


@given(st.text("0123456789abcdef", min_size=32, max_size=64), st.text("0123456789abcdef", min_size=32, max_size=64))
def test_what_differs_still_does(old: str, new: str) -> None:
    said = brief.digest_pair(f"sha256:{old}", f"sha256:{new}")
    assert (said[0] == said[1]) == (old == new)
