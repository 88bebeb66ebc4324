"""Facts of the host: this machine's own, and given files below a root."""

from __future__ import annotations

import os
import resource
import time
from pathlib import Path
from typing import Any

import pytest

from lockd.compare import compare
from lockd.disk import Disk
from lockd.facts import LAUNCH_FACTS, Fact, Facts, Unknown, environment_id, launch_id
from lockd.look import Launch, Look
from lockd.probes import host
from lockd.probes.host import readings
from lockd.rules import SYSTEM_KEYS, CacheRule, FileRule, Policy, SystemRule
from lockd.verdict import judge
from tests import probing
from tests.machine import Machine
from tests.scene import Scene


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    """A root in the place of `/`."""
    monkeypatch.setattr(host, "ROOT", str(tmp_path / "root"))
    return Machine(tmp_path / "root")


def held(values: dict[str, Any], **sections: Any) -> Policy:
    return probing.policy(host=SystemRule(values), **sections)


def looked(policy: Policy, launch: Launch | None = Launch({})) -> Facts:  # noqa: B008 - frozen
    assert policy.host is not None
    return Facts(host.look(policy.host, Look(policy, Disk(), launch)).facts)


def known(facts: Facts, name: str) -> Fact:
    fact = facts[name]
    assert isinstance(fact, Fact), fact
    return fact


def told(policy: Policy, before: Facts | None = None) -> list[tuple[str, str, str, str]]:
    found = looked(policy)
    pins = host.breaches(policy.host, policy, found) if policy.host else ()
    rows = judge(policy, compare(before, found, pins), {})
    return [(one.fact, one.change, one.severity, one.message.partition(" [")[0]) for one in rows.findings]


# -- this machine ------------------------------------------------------------------------------------------------------


def test_every_key_is_read_on_this_machine_and_twice_the_same() -> None:
    policy = held({key: "locked" for key in SYSTEM_KEYS["host"] if key != "packages"})
    first, second = looked(policy), looked(policy)
    assert not list(first.unknown())
    assert {fact.subject for fact in first.known()} == set(policy.host.values if policy.host else ())
    assert environment_id(first.values()) == environment_id(second.values())
    for fact in first.known():
        assert {*fact.attributes, *fact.told} <= host.ATTRIBUTES["host"].keys(), fact.name


def test_the_real_values_are_the_machines_own() -> None:
    facts = looked(held({"kernel": "locked", "cpu": "locked", "ulimits": "locked", "shm": "locked"}))
    assert known(facts, "host:kernel").attributes["release"] == os.uname().release
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    assert str(known(facts, "host:ulimits").attributes["nofile"]).split("/")[0] == str(soft)
    assert known(facts, "host:kernel").told["boot"]


def test_limits_of_a_process_that_is_named_are_its_own() -> None:
    import subprocess

    child = subprocess.Popen(["sh", "-c", "ulimit -n 77; exec sleep 60"], stdout=subprocess.PIPE)
    try:
        path = Path(f"/proc/{child.pid}/cmdline")
        while not path.read_bytes().startswith(b"sleep"):
            time.sleep(0.01)
        facts = looked(held({"ulimits": "locked"}), Launch({}, source=f"pid {child.pid}"))
        assert known(facts, "host:ulimits").attributes["nofile"] == "77/77"
    finally:
        child.kill()
        child.communicate()


# -- what belongs to a launch ------------------------------------------------------------------------------------------


def test_limits_are_of_a_launch_and_left_out_without_one() -> None:
    policy = held({"ulimits": "locked", "cgroup": "locked", "kernel": "locked"})
    look = Look(policy, Disk(), None)
    assert policy.host is not None
    assert [fact.subject for fact in host.look(policy.host, look).facts] == ["kernel"]
    assert look.not_looked == ["host:ulimits (this look has no launch)", "host:cgroup (this look has no launch)"]


def test_limits_count_in_the_launch_id_alone() -> None:
    facts = looked(held({"ulimits": "locked", "kernel": "locked"}))
    without = Facts(fact for fact in facts.values() if fact.name not in LAUNCH_FACTS)
    assert environment_id(facts.values()) == environment_id(without.values())
    assert launch_id(facts.values()) != launch_id(without.values())


# -- given files -------------------------------------------------------------------------------------------------------


def test_another_kernel_is_one_line(machine: Machine) -> None:
    policy = held({"kernel": {"on_drift": "warn"}})
    machine.write("proc/sys/kernel/osrelease", "6.8.0-51-generic\n")
    machine.write("proc/sys/kernel/random/boot_id", "one\n")
    before = looked(policy)
    machine.write("proc/sys/kernel/random/boot_id", "two\n")
    assert told(policy, before) == []
    machine.write("proc/sys/kernel/osrelease", "6.8.0-52-generic\n")
    assert told(policy, before) == [("host:kernel", "changed", "warn", "kernel 6.8.0-51-generic → 6.8.0-52-generic")]


def test_the_governor_of_the_cpus(machine: Machine) -> None:
    machine.write(
        "proc/cpuinfo", "processor\t: 0\nmodel name\t: AMD EPYC 9654\nprocessor\t: 1\nmodel name\t: AMD EPYC 9654\n"
    )
    governor = "sys/devices/system/cpu/cpufreq/policy{}/scaling_governor"
    for number in (0, 1):
        machine.write(governor.format(number), "performance\n")
    policy = held({"cpu": "locked"})
    before = looked(policy)
    assert known(before, "host:cpu").attributes == {"cpus": 2, "model": "AMD EPYC 9654", "governor": "performance"}
    machine.write(governor.format(1), "powersave\n")
    assert told(policy, before) == [
        ("host:cpu", "changed", "block", "cpu: governor performance → performance, powersave")
    ]


def test_sysctls_by_name_and_by_value(machine: Machine) -> None:
    machine.write("proc/sys/vm/swappiness", "60\n")
    machine.write("proc/sys/net/ipv4/tcp_rmem", "4096\t131072\t6291456\n")
    policy = held({"vm.swappiness": "10", "net.ipv4.tcp_rmem": "locked", "vm.no_such": "locked"})
    facts = looked(policy)
    assert known(facts, "host:net.ipv4.tcp_rmem").attributes == {"value": "4096 131072 6291456"}
    assert known(facts, "host:vm.no_such").absent
    assert told(policy, facts) == [("host:vm.swappiness", "changed", "block", "vm.swappiness is 60, pinned 10")]


def test_mounts_under_pinned_paths(machine: Machine) -> None:
    table = (
        "22 1 8:1 / / rw - ext4 /dev/sda1 rw\n"
        "30 22 0:40 / /cache rw - {} {} rw\n"
        "31 30 0:41 / /cache/deep ro - tmpfs tmpfs rw\n"
    )
    policy = held({"mounts": "locked"}, cache=(CacheRule("/cache/inductor"),), file=(FileRule("/etc/x/*.conf"),))
    machine.write("proc/self/mountinfo", table.format("ext4", "/dev/sdb1"))
    before = looked(policy)
    assert known(before, "host:mounts").attributes == {"types": ("/cache/inductor: ext4", "/etc/x: ext4")}
    machine.write("proc/self/mountinfo", table.format("nfs4", "nas:/cache"))
    assert told(policy, before) == [
        ("host:mounts", "changed", "block", "mounts: types /cache/inductor: ext4 → /cache/inductor: nfs4")
    ]
    deep = held({"mounts": "locked"}, cache=(CacheRule("/cache"),))
    assert known(looked(deep), "host:mounts").attributes == {"types": ("/cache/deep: tmpfs ro", "/cache: nfs4")}


def test_mount_points_with_blanks_are_read(machine: Machine) -> None:
    machine.write("proc/self/mountinfo", "22 1 8:1 / /a\\040b rw - ext4 /dev/sda1 rw\ngarbage\n\n")
    assert readings.mounts_of(str(machine.root)) == [readings.Mount("/a b", "ext4", "/dev/sda1", False)]


def test_the_lowest_limit_on_the_way_up_counts(machine: Machine) -> None:
    machine.write("proc/self/cgroup", "0::/lxc/200/job\n")
    for folder, name, text in (
        ("lxc/200/job", "memory.max", "max\n"),
        ("lxc/200", "memory.max", "68719476736\n"),
        ("lxc", "memory.max", "137438953472\n"),
        ("lxc/200", "cpu.max", "1600000 100000\n"),
        ("lxc/200/job", "cpuset.cpus.effective", "0-15\n"),
        ("lxc/200/job", "pids.max", "4096\n"),
    ):
        machine.write(f"sys/fs/cgroup/{folder}/{name}", text)
    assert known(looked(held({"cgroup": "locked"})), "host:cgroup").attributes == {
        "memory": "68719476736",
        "cpu": "16",
        "cpuset": "0-15",
        "pids": "4096",
    }


@pytest.mark.parametrize(
    ("path", "content", "kind"),
    [
        ("run/systemd/container", "lxc\n", "lxc"),
        ("proc/1/environ", "TERM=linux\0container=lxc\0", "lxc"),
        (".dockerenv", "", "docker"),
        ("run/.containerenv", "", "podman"),
        ("etc/hostname", "x", "none"),
    ],
)
def test_the_kind_of_container(machine: Machine, path: str, content: str, kind: str) -> None:
    machine.write("proc/self/uid_map", "         0     100000      65536\n")
    machine.write(path, content)
    assert known(looked(held({"container": "locked"})), "host:container").attributes == {"kind": kind, "userns": True}


def test_huge_pages(machine: Machine) -> None:
    machine.write("sys/kernel/mm/transparent_hugepage/enabled", "always [madvise] never\n")
    machine.write("sys/kernel/mm/transparent_hugepage/defrag", "always defer defer+madvise [madvise] never\n")
    policy = held({"thp": "locked"})
    before = looked(policy)
    machine.write("sys/kernel/mm/transparent_hugepage/enabled", "always madvise [never]\n")
    assert told(policy, before) == [("host:thp", "changed", "block", "thp madvise → never")]


def test_what_is_not_there_is_absent_and_what_is_garbage_is_unknown(machine: Machine) -> None:
    assert known(looked(held({"thp": "locked"})), "host:thp").absent
    machine.write("proc/meminfo", "nonsense\n")
    found = looked(held({"memory": "locked"}))["host:memory"]
    assert isinstance(found, Unknown) and "no MemTotal" in found.reason
    (machine.root / "proc/cpuinfo").mkdir(parents=True)
    assert isinstance(looked(held({"cpu": "locked"}))["host:cpu"], Unknown)


def test_a_wanted_value_of_a_reading(machine: Machine) -> None:
    machine.write("proc/sys/kernel/osrelease", "6.8.0-51-generic\n")
    assert told(held({"kernel": "6.8.0-51-generic"})) == []
    assert told(held({"kernel": "6.5.0"})) == [
        ("host:kernel", "changed", "block", "kernel is 6.8.0-51-generic, pinned 6.5.0")
    ]


# -- end to end --------------------------------------------------------------------------------------------------------


def test_accepted_and_verified_by_the_command(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    scene.write_policy(
        '[host]\nkernel = { on_drift = "warn" }\nulimits = "locked"\nmounts = "locked"\n"vm.swappiness" = "locked"\n'
    )
    assert scene.accept().code == 0
    assert scene.verify().document["verdict"] == "ok"
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard))  # what the next command inherits
    try:
        answer = scene.verify()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert (answer.code, answer.facts) == (1, ["host:ulimits"])
    assert answer.document["findings"][0]["message"].startswith(f"ulimits: nofile {soft}/")
    assert scene.verify().document["verdict"] == "ok"


def test_an_unknown_key_is_refused_with_the_nearest(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    scene.write_policy('[host]\nkernal = "locked"\npackages = "libc6"\n[gpu]\ndrivr = "locked"\n')
    answer = scene.lockd("policy", "check")
    assert answer.code == 2
    assert "host.kernal: unknown key; did you mean kernel?" in answer.out + answer.err
    assert "gpu.drivr: unknown key; did you mean driver?" in answer.out + answer.err
    assert "host.packages: wants an array of names or globs" in answer.out + answer.err
