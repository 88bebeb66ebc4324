"""Packages of the system: dpkg's status file, given and this machine's own; rpm's answers."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from lockd.compare import compare
from lockd.disk import Disk
from lockd.facts import Fact, Facts, Unknown
from lockd.look import Look
from lockd.probes import bounded, host, system
from lockd.probes.system import Package, Trouble
from lockd.rules import Policy, SystemRule
from lockd.verdict import judge
from tests import probing
from tests.machine import Machine


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    monkeypatch.setattr(host, "ROOT", str(tmp_path))
    return Machine(tmp_path)


def looked(policy: Policy) -> Facts:
    assert policy.host is not None
    return Facts(host.look(policy.host, Look(policy, Disk())).facts)


def told(policy: Policy, before: Facts | None = None) -> list[tuple[str, str, str]]:
    found = looked(policy)
    pins = host.breaches(policy.host, policy, found) if policy.host else ()
    rows = judge(policy, compare(before, found, pins), {})
    return [(one.fact, one.change, one.message.partition(" [")[0]) for one in rows.findings]


def held(**values: Any) -> Policy:
    return probing.policy(host=SystemRule(values))


@pytest.mark.skipif(not shutil.which("dpkg-query"), reason="no dpkg on this machine")
def test_this_machines_packages_are_those_that_dpkg_query_lists() -> None:
    said = subprocess.run(
        ["dpkg-query", "-W", "-f", "${Package}\t${Version}\t${Architecture}\t${db:Status-Status}\n"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    rows = {tuple(line.split("\t")) for line in said.splitlines()}
    found = system.read_dpkg("/", ("*",))
    assert not isinstance(found, Trouble)
    there = {(one.name, one.version, one.architecture, one.state) for one in found}
    assert there == {row for row in rows if row[3] not in ("config-files", "not-installed")}


def test_by_name_and_by_glob(machine: Machine) -> None:
    machine.dpkg({"libnvidia-compute-580": "580.159.04-0ubuntu1", "libc6": "2.39", "nano": "7"})
    facts = looked(held(packages=["*nvidia*", "libc6", "cuda-drivers"]))
    assert {name: fact.attributes for name, fact in facts.items() if isinstance(fact, Fact)} == {
        "host:package/cuda-drivers": {"absent": True},
        "host:package/libc6": {"version": "2.39", "architecture": "amd64"},
        "host:package/libnvidia-compute-580": {"version": "580.159.04-0ubuntu1", "architecture": "amd64"},
    }


def test_an_upgrade_a_removal_and_a_new_one(machine: Machine) -> None:
    policy = held(packages=["*nvidia*"])
    machine.dpkg({"libnvidia-compute-580": "580.95.05", "nvidia-utils-580": "580.95.05"})
    before = looked(policy)
    machine.dpkg({"libnvidia-compute-580": "580.159.04", "nvidia-settings": "510"})
    assert told(policy, before) == [
        ("host:package/libnvidia-compute-580", "changed", "package libnvidia-compute-580 580.95.05 → 580.159.04"),
        ("host:package/nvidia-settings", "added", "package nvidia-settings 510 is new"),
        ("host:package/nvidia-utils-580", "missing", "package nvidia-utils-580 580.95.05 is gone"),
    ]


def test_a_wanted_version_and_a_hold(machine: Machine) -> None:
    machine.dpkg({"libc6": "2.39"}, "hold ok installed")
    assert told(held(**{"package/libc6": "2.36"})) == [
        ("host:package/libc6", "changed", "package libc6 is 2.39, pinned 2.36")
    ]
    facts = looked(held(**{"package/libc6": "locked"}))
    machine.dpkg({"libc6": "2.39"})
    assert told(held(**{"package/libc6": "locked"}), facts) == [
        ("host:package/libc6", "changed", "package libc6: hold on → none")
    ]


def test_half_installed_is_a_state_and_configuration_files_alone_are_no_package(machine: Machine) -> None:
    machine.dpkg({"a": "1"}, "install ok half-installed")
    assert looked(held(packages=["a"]))["host:package/a"].name == "host:package/a"
    (found,) = system.read_dpkg(str(machine.root), ("a",))
    assert isinstance(found, Package) and (found.state, found.installed) == ("half-installed", False)
    machine.dpkg({"a": "1"}, "deinstall ok config-files")
    assert system.read_dpkg(str(machine.root), ("a",)) == []


def test_two_architectures_of_one_name_are_two_facts(machine: Machine) -> None:
    stanza = "Package: libc6\nStatus: install ok installed\nArchitecture: {}\nVersion: 2.39\n"
    machine.write("var/lib/dpkg/status", "\n".join(stanza.format(one) for one in ("amd64", "i386")))
    assert set(looked(held(packages=["libc6"]))) == {"host:package/libc6:amd64", "host:package/libc6:i386"}


@pytest.mark.parametrize(
    "cut", [b"Package: libc6\nStatus: inst", b"Package: libc6\nStatus: install ok installed\nVersion: 2"]
)
def test_a_status_file_cut_short_is_unknown(machine: Machine, cut: bytes) -> None:
    machine.write("var/lib/dpkg/status", cut)
    found = looked(held(packages=["libc6"]))["host:package/libc6"]
    assert isinstance(found, Unknown) and "cut short" in found.reason


def test_a_database_in_the_midst_of_a_change_is_unknown(machine: Machine) -> None:
    machine.dpkg({"libc6": "2.39"})
    machine.write("var/lib/dpkg/updates/0001", "Package: libc6\n")
    found = looked(held(packages=["libc*", "libc6"]))
    assert set(found) == {"host:package/libc6", "host:packages"}
    assert all("in the midst of a change" in one.reason for one in found.unknown())


def test_a_system_without_either_is_unknown(machine: Machine) -> None:
    found = looked(held(packages=["libc6"]))["host:package/libc6"]
    assert isinstance(found, Unknown) and found.reason == "no dpkg and no rpm database here"


def test_rpm_is_asked_within_bounds(machine: Machine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "var/lib/rpm").mkdir(parents=True)
    fake = tmp_path / "rpm"
    fake.write_text(
        "#!/bin/sh\nprintf 'kmod-nvidia\\t3:580.159.04-1.el9\\tx86_64\\nglibc\\t(none):2.34-100.el9\\tx86_64\\n'\n"
    )
    fake.chmod(0o755)
    monkeypatch.setattr(system, "_RPM", (str(fake),))
    facts = looked(held(packages=["*nvidia*", "glibc"]))
    assert [fact.attributes["version"] for fact in facts.known()] == ["2.34-100.el9", "3:580.159.04-1.el9"]
    fake.write_text("#!/bin/sh\nexec sleep 600\n")
    monkeypatch.setattr(system, "_SECONDS", 0.2)
    found = looked(held(packages=["glibc"]))["host:package/glibc"]
    assert isinstance(found, Unknown) and "gave no answer within 0.2 s" in found.reason


_SPEC = """Name: lockd-probed
Epoch: 3
Version: 580.159.04
Release: 1.el9
Summary: made by a test
License: none
BuildArch: noarch
%description
made by a test
%files
"""


@pytest.mark.skipif(not shutil.which("rpmbuild"), reason="rpm is not installed")
def test_a_real_rpm_database_is_read(machine: Machine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def run(*words: str) -> None:
        subprocess.run(words, check=True, capture_output=True, env={"PATH": os.environ["PATH"], "HOME": str(tmp_path)})

    database = tmp_path / "var/lib/rpm"
    database.mkdir(parents=True)
    (tmp_path / "probed.spec").write_text(_SPEC)
    run("rpmbuild", "-bb", "--quiet", "--define", f"_topdir {tmp_path}/build", str(tmp_path / "probed.spec"))
    built = str(next((tmp_path / "build").rglob("*.rpm")))
    run("rpm", "--initdb", "--dbpath", str(database))
    run("rpm", "-i", "--justdb", "--nodeps", "--dbpath", str(database), built)
    monkeypatch.setattr(system, "_RPM", (*system._RPM, "--dbpath", str(database)))
    rule = held(packages=["lockd-*", "never-there"])
    before = looked(rule)
    assert {fact.subject: fact.attributes.get("version") for fact in before.known()} == {
        "package/lockd-probed": "3:580.159.04-1.el9",
        "package/never-there": None,
    }
    run("rpm", "-e", "--justdb", "--dbpath", str(database), "lockd-probed")
    assert "host:package/lockd-probed" not in {fact.name for fact in looked(rule).known()}


def test_a_tool_that_is_not_there_or_fails_says_so(tmp_path: Path) -> None:
    assert bounded.ask(("no-such-tool-here",), 1).problem == "no-such-tool-here is not installed"
    fails = tmp_path / "fails"
    fails.write_text("#!/bin/sh\necho why >&2\nexit 3\n")
    fails.chmod(0o755)
    assert bounded.ask((str(fails),), 5).problem == "exit code 3: why"
    fails.write_text("#!/bin/sh\nkill -9 $$\n")
    assert bounded.ask((str(fails),), 5).problem == "killed by signal 9"


def test_a_tool_gets_nothing_of_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LD_PRELOAD_TEST", "x")
    shows = tmp_path / "shows"
    shows.write_text("#!/bin/sh\nexec env\n")
    shows.chmod(0o755)
    names = {line.partition("=")[0] for line in bounded.ask((str(shows),), 5).text.splitlines()}
    assert names <= {"PATH", "LC_ALL", "HOME", "PWD", "SHLVL", "_"}
    assert os.environ["LD_PRELOAD_TEST"] == "x"
