"""Exact requirements between installed packages, and groups that must be of one version."""

from __future__ import annotations

from pathlib import Path

import pytest

from lockd.facts import Fact, Facts
from lockd.requirements import broken
from lockd.rules import PythonRule
from tests import probing
from tests.reports.ground import plain, train
from tests.scene import Scene


def package(name: str, version: str, *requires: str, env: str = "train") -> Fact:
    return Fact("package", f"{env}/{name}", {"version": version}, {"requires": requires})


def test_a_requirement_that_is_not_kept_is_told_with_both_versions() -> None:
    found = Facts([package("torch", "2.11.0+cu128", "triton==3.6.0", "sympy>=1.13"), package("triton", "3.5.0")])
    assert list(broken(found)) == ["train: torch 2.11.0+cu128 requires triton==3.6.0, 3.5.0 is installed"]


@pytest.mark.parametrize(
    ("requirement", "version"),
    [
        ("triton==3.6.0", "3.6.0"),
        ("triton==3.6", "3.6.0"),
        ("triton (==3.6.0)", "3.6.0+git1"),
        ("Tri_ton[extra] == 3.6.0", "3.6.0"),
        ("triton>=3.6", "3.0"),
        ("triton==3.*", "4.0"),
    ],
)
def test_what_is_kept_or_no_exact_requirement_is_not_told(requirement: str, version: str) -> None:
    name = "tri-ton" if requirement.startswith("Tri") else "triton"
    assert list(broken(Facts([package("torch", "2.11.0", requirement), package(name, version)]))) == []


def test_environments_are_apart_and_what_is_not_installed_is_not_told() -> None:
    found = Facts([package("torch", "2.11.0", "triton==3.6.0"), package("triton", "3.5.0", env="other")])
    assert list(broken(found)) == []


def test_a_group_of_two_versions_breaks_the_policy_without_a_lock(tmp_path: Path) -> None:
    """tokenspeed#284: flashinfer-python 0.6.11 with flashinfer-jit-cache 0.6.9; its own check had been switched off."""
    scene = Scene(tmp_path)
    wheels = plain("flashinfer-python", "0.6.11"), plain("flashinfer-jit-cache", "0.6.9")
    train(scene, *wheels, rule='same_version = [["flashinfer-python", "flashinfer-jit-cache", "flashinfer-cubin"]]')
    answer = scene.verify()
    assert (answer.code, answer.facts) == (1, ["package:train/flashinfer-jit-cache"])
    message = answer.document["findings"][0]["message"]
    assert "flashinfer-jit-cache is 0.6.9, flashinfer-python 0.6.11: they must be of one version" in message
    assert "pinned in ct.toml:" in message


def test_a_label_is_no_other_version() -> None:
    from lockd.probes.python import pins

    rule = PythonRule("train", "/v", same_version=(("a", "b-*"),))
    assert not list(pins.breaches(rule, "python[0]", Facts([package("a", "1.0+cu128"), package("b-c", "1.0")])))
    assert len(list(pins.breaches(rule, "python[0]", Facts([package("a", "1.0"), package("b-c", "1.1")])))) == 1
    assert probing.policy(python=(rule,)).python[0].same_version == (("a", "b-*"),)


def test_accept_tells_the_requirements_that_are_not_kept(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    train(scene, plain("torch", "2.11.0", "triton==3.6.0"), plain("triton", "3.5.0"))
    done = scene.accept()
    assert done.code == 0, done.err
    assert "torch 2.11.0 requires triton==3.6.0, 3.5.0 is installed" in done.out + done.err
