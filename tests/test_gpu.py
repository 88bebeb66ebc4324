"""GPU facts from the files of a made machine, and from answers recorded on a real H200."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from lockd import conditions
from lockd.compare import compare
from lockd.disk import Disk
from lockd.facts import Fact, Facts, Unknown, environment_id
from lockd.look import Look, Memo, Sight
from lockd.plain import replace
from lockd.probes import Seen, bounded, gpu
from lockd.probes.gpu import cards, driver, smi
from lockd.rules import SYSTEM_KEYS, GitRule, Policy, SystemRule
from lockd.verdict import judge
from tests import probing
from tests.machine import Machine

DATA = Path(__file__).parent / "data" / "h200"


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    """An H200 machine: open module 580.159.04, its libraries, one GPU, NVML's recorded answer."""
    made = Machine(tmp_path / "root")
    made.write("proc/driver/nvidia/version", (DATA / "proc_driver_nvidia_version").read_bytes())
    made.write("sys/module/nvidia/version", "580.159.04\n")
    made.libraries("580.159.04")
    made.gpus(1)
    monkeypatch.setattr(gpu, "ROOT", str(made.root))
    answers(monkeypatch, (DATA / "nvml.json").read_text())
    return made


def answers(monkeypatch: pytest.MonkeyPatch, text: str, code: int = 0) -> None:
    """A process in the place of the one that asks NVML."""
    program = f"import sys; sys.stdout.write({text!r}); sys.exit({code})"
    monkeypatch.setattr(cards, "NVML", (sys.executable, "-I", "-c", program))


def held(**values: Any) -> Policy:
    return probing.policy(gpu=SystemRule(values))


def looked(policy: Policy) -> Facts:
    assert policy.gpu is not None
    return Facts(gpu.look(policy.gpu, Look(policy, probing.looking(policy).disk, None, True, Memo())).facts)


def known(facts: Facts, name: str) -> Fact:
    fact = facts[name]
    assert isinstance(fact, Fact), fact
    return fact


def told(policy: Policy, before: Facts | None = None) -> list[tuple[str, str, str, str]]:
    """(fact, change, severity, message) of each finding."""
    found = looked(policy)
    pins = gpu.breaches(policy.gpu, policy, found) if policy.gpu else ()
    rows = judge(policy, compare(before, found, pins), {})
    return [(one.fact, one.change, one.severity, one.message) for one in (*rows.findings, *rows.recorded)]


# -- the driver --------------------------------------------------------------------------------------------------------


def test_the_h200s_own_files_are_read(machine: Machine) -> None:
    fact = known(looked(held(driver="locked")), "gpu:driver")
    assert fact.attributes == {
        "version": "580.159.04",
        "module": "open",
        "libcuda": "580.159.04",
        "libnvidia_ml": "580.159.04",
    }
    assert told(held(driver="locked")) == []


def test_of_two_libraries_in_the_recorded_cache_the_first_that_is_there_counts(machine: Machine) -> None:
    machine.write("etc/ld.so.cache", (DATA / "ld.so.cache").read_bytes())
    machine.write("lib/libcuda.so.580.159.04", b"")
    machine.link("lib/libcuda.so.1", "libcuda.so.580.159.04")
    assert known(looked(held(driver="locked")), "gpu:driver").told["libcuda"] == "/lib/libcuda.so.1"
    machine.write("usr/local/nvidia/lib64/libcuda.so.575.1.02", b"")
    machine.link("usr/local/nvidia/lib64/libcuda.so.1", "libcuda.so.575.1.02")
    fact = known(looked(held(driver="locked")), "gpu:driver")
    assert (fact.told["libcuda"], fact.attributes["libcuda"]) == ("/usr/local/nvidia/lib64/libcuda.so.1", "575.1.02")


def test_no_driver_is_an_absent_fact(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu, "ROOT", str(tmp_path))
    facts = looked(held(count=0, driver="locked", devices="locked", gpus="locked"))
    assert known(facts, "gpu:driver").absent
    assert known(facts, "gpu:devices").absent
    assert known(facts, "gpu:count").attributes == {"count": 0}
    assert len(facts) == 3
    assert told(held(count=0, driver="locked", devices="locked", gpus="locked"), facts) == []


def test_a_gone_driver_is_missing_and_says_for_which_kernels_it_was_built(machine: Machine) -> None:
    before = looked(held(driver="locked"))
    for path in ("proc/driver/nvidia/version", "sys/module/nvidia/version", "etc/ld.so.cache"):
        (machine.root / path).unlink()
    for name in ("libcuda", "libnvidia-ml"):
        (machine.root / f"usr/lib/x86_64-linux-gnu/{name}.so.1").unlink()
    machine.write("var/lib/dkms/nvidia/580.159.04/6.8.0-51-generic/x86_64/module/nvidia.ko", b"")
    machine.write("proc/sys/kernel/osrelease", "6.8.0-52-generic\n")
    (row,) = told(held(driver="locked"), before)
    assert row == (
        "gpu:driver",
        "missing",
        "block",
        "driver 580.159.04 is gone (dkms built 580.159.04 for 6.8.0-51-generic; kernel 6.8.0-52-generic runs)",
    )


def test_a_module_that_cannot_be_read_is_unknown(machine: Machine) -> None:
    (machine.root / "proc/driver/nvidia/version").unlink()
    (machine.root / "proc/driver/nvidia/version").mkdir()
    assert isinstance(looked(held(driver="locked"))["gpu:driver"], Unknown)


def test_a_mismatch_is_told_without_any_lock(machine: Machine) -> None:
    machine.libraries("580.95.05")
    ((fact, change, severity, message),) = told(held(driver="locked"))
    assert (fact, change, severity) == ("gpu:driver", "changed", "block")
    assert "module 580.159.04, libcuda.so.1 580.95.05: driver/library version mismatch" in message
    assert "libnvidia-ml.so.1 580.95.05" in message


def test_forward_compatibility_is_no_mismatch(machine: Machine) -> None:
    machine.write("usr/local/cuda/compat/libcuda.so.590.1.02", b"")
    machine.link("usr/local/cuda/compat/libcuda.so.1", "libcuda.so.590.1.02")
    machine.cache({"libcuda.so.1": ["/usr/local/cuda/compat/libcuda.so.1"]})
    assert known(looked(held(driver="locked")), "gpu:driver").attributes["libcuda"] == "590.1.02"
    assert told(held(driver="locked")) == []


def test_another_driver_is_one_finding_with_from_and_to(machine: Machine) -> None:
    before = looked(held(driver="locked"))
    machine.module("580.200.01")
    machine.libraries("580.200.01")
    ((fact, change, _, message),) = told(held(driver="locked"), before)
    assert (fact, change) == ("gpu:driver", "changed")
    assert message.startswith("driver 580.159.04 → 580.200.01")


def test_a_wanted_version_is_a_pin(machine: Machine) -> None:
    assert told(held(driver="580.159.04")) == []
    ((_, _, _, message),) = told(held(driver={"value": "575.1.02", "on_drift": "warn"}))
    assert "driver is 580.159.04, pinned 575.1.02" in message


# -- counts, devices ---------------------------------------------------------------------------------------------------


def test_a_gpu_less_breaks_the_count(machine: Machine) -> None:
    assert told(held(count=1)) == []
    ((fact, _, severity, message),) = told(held(count=8))
    assert (fact, severity) == ("gpu:count", "block")
    assert "1 GPU, pinned 8" in message


def test_nodes_count_where_a_container_has_nothing_else(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    (machine.root / "proc/driver/nvidia/gpus/0000:00:00.0/information").unlink()
    (machine.root / "proc/driver/nvidia/gpus/0000:00:00.0").rmdir()
    for name in ("nvidia0", "nvidia1", "nvidiactl"):
        machine.write(f"dev/{name}", "")
    assert known(looked(held(count=2)), "gpu:count").attributes == {"count": 2}


def nodes(machine: Machine, **numbers: tuple[int, int]) -> None:
    if os.geteuid() != 0:
        pytest.skip("device nodes are made by root alone")
    (machine.root / "dev").mkdir(exist_ok=True)
    for name, (major, minor) in numbers.items():
        path = machine.root / "dev" / name.replace("_", "-")
        path.unlink(missing_ok=True)
        try:
            os.mknod(path, 0o20666, os.makedev(major, minor))
        except OSError as error:
            pytest.skip(f"no device nodes can be made here: {error}")


def test_nodes_are_the_fact_and_their_numbers_are_told(machine: Machine) -> None:
    machine.write("proc/devices", (DATA / "proc_devices").read_bytes())
    nodes(machine, nvidia0=(195, 0), nvidiactl=(195, 255), nvidia_uvm=(238, 0))
    before = looked(held(devices="locked"))
    fact = known(before, "gpu:devices")
    assert fact.attributes == {"nodes": ("/dev/nvidia-uvm", "/dev/nvidia0", "/dev/nvidiactl")}
    assert fact.told == {"numbers": ("/dev/nvidia-uvm 238:0", "/dev/nvidia0 195:0", "/dev/nvidiactl 195:255")}
    machine.write("proc/devices", "195 nvidia\n240 nvidia-uvm\n")  # after a reboot; the node is the old one
    ((name, _, severity, message),) = told(held(devices="locked"))
    assert (name, severity) == ("gpu:devices", "block")
    assert "/dev/nvidia-uvm is 238:0, the driver's is 240:0" in message
    (machine.root / "dev/nvidia-uvm").unlink()
    ((name, _, _, message),) = told(held(devices="locked"), before)
    assert "/dev/nvidia-uvm" in message


# -- the cards ---------------------------------------------------------------------------------------------------------


def test_nvml_and_nvidia_smi_give_one_fact() -> None:
    """Both answers were recorded on one machine within a second."""
    (by_nvml,) = json.loads((DATA / "nvml.json").read_text())["cards"]
    (by_smi,) = smi.parse((DATA / "nvidia_smi_q.txt").read_text())
    assert cards._settings(by_nvml) == cards._settings(by_smi)
    assert cards._settings(by_nvml) == {
        "name": "NVIDIA H200",
        "memory": "143771 MiB",
        "persistence": "on",
        "ecc": "on",
        "ecc_pending": "on",
        "mig": "off",
        "mig_pending": "off",
        "power_limit": "700 W",
        "clocks_max": "1980/3201 MHz",
        "clocks_application": "1980/3201 MHz",
        "pcie_max": "gen5 x16",
        "compute_mode": "default",
    }


def test_only_what_is_named_is_compared_and_the_rest_is_told(machine: Machine) -> None:
    fact = known(looked(held(ecc="locked", persistence="on")), "gpu:0")
    assert fact.attributes == {"ecc": "on", "persistence": "on"}
    assert fact.told["power_limit"] == "700 W"
    assert str(fact.told["uuid"]).startswith("GPU-")
    assert "gpu:0" not in looked(held(driver="locked"))


def test_two_gpus_that_differ_by_uuid_alone_are_one_environment(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = looked(held(gpus="locked"))
    other = (DATA / "nvml.json").read_text().replace("GPU-0000", "GPU-1111").replace("00:06.0", "00:07.0")
    answers(monkeypatch, other)
    assert environment_id(before.values()) == environment_id(looked(held(gpus="locked")).values())


def changed(**values: Any) -> str:
    answer = json.loads((DATA / "nvml.json").read_text())
    answer["cards"][0].update(values)
    return json.dumps(answer)


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"ecc": 0, "ecc_pending": 0}, "GPU 0: ecc on → off; ecc pending on → off"),
        ({"persistence": 0}, "GPU 0: persistence on → off"),
        ({"power_limit": 450000}, "GPU 0: power limit 700 W → 450 W"),
        ({"clocks_application": [1410, 3201]}, "GPU 0: clocks application 1980/3201 MHz → 1410/3201 MHz"),
        ({"pcie_generation": 4, "pcie_width": 8}, "GPU 0: pcie max gen5 x16 → gen4 x8"),
        ({"compute_mode": 3}, "GPU 0: compute mode default → exclusive_process"),
        ({"mig_pending": 1}, "GPU 0: mig pending off → on"),
        ({"nvlinks": [1] * 17 + [0]}, "GPU 0: nvlinks none → 17 of 18 active"),
    ],
)
def test_a_setting_that_moved_is_one_line(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, values: dict[str, Any], words: str
) -> None:
    before = looked(held(gpus="locked"))
    answers(monkeypatch, changed(**values))
    assert told(held(gpus="locked"), before) == [("gpu:0", "changed", "block", words)]


def test_what_a_gpu_does_now_is_told_and_never_drift(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    before = looked(held(gpus="locked"))
    answers(monkeypatch, changed(now={"temperature": 88, "sm_clock": 990, "throttle": 0x40, "pcie_width": 8}))
    found = looked(held(gpus="locked"))
    assert told(held(gpus="locked"), before) == []
    fact = known(found, "gpu:0")
    assert (fact.told["temperature"], fact.told["throttle"], fact.told["pcie_now"]) == (88, "0x40", "x8")
    told_at_start = conditions.now(Sight(found, {}, dict))["gpus"]
    assert told_at_start["0"] == {"temperature": 88, "clock": "990 MHz", "throttle": "0x40", "pcie_now": "x8"}


def test_a_wanted_setting_is_a_pin_on_every_gpu(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    assert told(held(ecc="on", power_limit="700 W")) == []
    answers(monkeypatch, changed(ecc=0))
    ((fact, _, severity, message),) = told(held(ecc={"value": "on", "on_drift": "warn"}))
    assert (fact, severity) == ("gpu:0", "warn")
    assert "ecc is off, pinned on" in message


def test_a_gpu_off_the_bus_is_unknown_and_its_neighbours_are_facts(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer = json.loads((DATA / "nvml.json").read_text())
    answer["cards"].append({"error": "GPU is lost"})
    answers(monkeypatch, json.dumps(answer))
    facts = looked(held(gpus="locked"))
    assert isinstance(facts["gpu:0"], Fact)
    assert facts["gpu:1"] == Unknown("gpu", "1", "NVML: GPU is lost")
    ((name, change, severity, message),) = told(held(gpus="locked"))
    assert (name, change, severity) == ("gpu:1", "unreadable", "block")
    assert message == "GPU 1 could not be read: NVML: GPU is lost"


def test_a_gpu_that_is_named_and_gone_is_missing(machine: Machine) -> None:
    facts = looked(held(**{"3": "locked"}))
    assert known(facts, "gpu:3").absent
    assert "gpu:0" not in facts


@pytest.mark.parametrize(
    ("text", "code", "reason"),
    [
        ('{"error": "Driver/library version mismatch"}', 0, "NVML: Driver/library version mismatch"),
        ("", 0, "NVML: an answer that is no JSON"),
        ("boom", 1, "NVML: exit code 1: boom"),
        ('{"missing": true}', 0, "nvidia-ml-py is not installed beside lockd"),
    ],
)
def test_what_nvml_cannot_say_is_unknown_with_the_reason(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, text: str, code: int, reason: str
) -> None:
    monkeypatch.setattr(cards, "SMI", ("no-such-nvidia-smi", "-q"))
    answers(monkeypatch, text, code)
    found = looked(held(gpus="locked"))["gpu:*"]
    assert isinstance(found, Unknown)
    assert found.reason.startswith(reason)


def test_nvml_that_hangs_is_bounded(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    program = "import signal,time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"
    monkeypatch.setattr(cards, "NVML", (sys.executable, "-I", "-c", program))
    monkeypatch.setattr(cards, "SECONDS", 0.3)
    found = looked(held(gpus="locked"))["gpu:*"]
    assert isinstance(found, Unknown) and "gave no answer within 0.3 s" in found.reason


def test_where_nvidia_ml_py_is_missing_nvidia_smi_is_asked(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    fake = tmp_path / "nvidia-smi"
    fake.write_text(f"#!/bin/sh\ncat {DATA}/nvidia_smi_q.txt\n")
    fake.chmod(0o755)
    monkeypatch.setattr(cards, "SMI", (str(fake), "-q"))
    before = looked(held(gpus="locked"))
    answers(monkeypatch, '{"missing": true}')
    assert looked(held(gpus="locked"))["gpu:0"].name == "gpu:0"
    assert told(held(gpus="locked"), before) == []


def test_the_real_child_answers_on_any_machine() -> None:
    """With a GPU, without one, with nvidia-ml-py or not: JSON, and no traceback."""
    from lockd.probes import bounded

    answer = bounded.ask((*cards.NVML, *cards._pynvml()), 30)
    assert not answer.problem
    assert json.loads(answer.text).keys() & {"cards", "error", "missing"}


# -- AMD ---------------------------------------------------------------------------------------------------------------


def test_amd_by_sysfs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(tmp_path)
    monkeypatch.setattr(gpu, "ROOT", str(tmp_path))
    for name, vendor in (("card0", "0x1a03"), ("card1", "0x1002"), ("card1-DP-1", "0x1002")):
        machine.write(f"sys/class/drm/{name}/device/vendor", f"{vendor}\n")
    base = "sys/class/drm/card1/device"
    machine.write(f"{base}/product_name", "AMD Instinct MI300X\n")
    machine.write(f"{base}/mem_info_vram_total", f"{192 << 30}\n")
    machine.write(f"{base}/hwmon/hwmon3/power1_cap", "750000000\n")
    machine.write(f"{base}/power_dpm_force_performance_level", "auto\n")
    facts = looked(held(count=1, gpus="locked"))
    assert known(facts, "gpu:count").attributes == {"count": 1}
    assert known(facts, "gpu:0").attributes == {
        "name": "AMD Instinct MI300X",
        "memory": "196608 MiB",
        "power_cap": "750 W",
        "performance": "auto",
    }


# -- who uses them -----------------------------------------------------------------------------------------------------


def test_other_users_break_idle_as_strictly_as_it_says(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    assert told(held(idle="warn")) == []
    users = [{"pid": 4242, "name": "python", "devices": ["/dev/nvidia3"]}]
    monkeypatch.setattr("lockd.conditions.gpu_users", lambda own=None: iter(users))
    row = ("gpu:idle", "changed", "warn", "other processes use the GPUs: python (pid 4242) on /dev/nvidia3")
    assert [(a, b, c, d.partition(" [")[0]) for a, b, c, d in told(held(idle="warn"))] == [row]
    assert told(held(idle="ignore")) == []


def test_users_do_not_move_the_environment(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    before = looked(held(idle="warn"))
    users = [{"pid": 1, "name": "x", "devices": ["/dev/nvidia0"]}]
    monkeypatch.setattr("lockd.conditions.gpu_users", lambda own=None: iter(users))
    assert environment_id(before.values()) == environment_id(looked(held(idle="warn")).values())


# -- names -------------------------------------------------------------------------------------------------------------


def test_every_setting_is_a_key_of_the_policy() -> None:
    assert {*cards.SETTINGS, gpu.ALL, "count", "driver", "devices", "idle"} == set(SYSTEM_KEYS["gpu"])


def test_attributes_are_those_of_the_table(machine: Machine) -> None:
    for fact in looked(held(gpus="locked", driver="locked", count=1, idle="warn")).known():
        assert {*fact.attributes, *fact.told} <= {*gpu.ATTRIBUTES["gpu"], "libcuda", "libnvidia_ml"}


def test_a_cache_of_loops_ends(machine: Machine) -> None:
    machine.link("usr/lib/x86_64-linux-gnu/libcuda.so.1", "libcuda.so.1")
    fact = driver.driver(str(machine.root))
    assert isinstance(fact, Fact)
    assert "leads to nothing" in str(fact.attributes["libcuda"])


def test_a_running_job_on_the_gpus_keeps_nobody_from_accepting(
    tmp_path: Path, machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`accept --env-of PID` of a training that runs well is the usual way."""
    from lockd import accept, check

    users = [{"pid": 1, "name": "x", "devices": ["/dev/nvidia0"]}]
    monkeypatch.setattr("lockd.conditions.gpu_users", lambda own=None: iter(users))
    policy = held(idle="block")
    report = check.check(policy, state=None, lock=None, launch=None)
    assert report.verdict == "block"
    names = frozenset(fact.name for fact in report.sight.facts.values())
    accept._check_pins(report, report.sight.facts, names)


def test_nvml_works_while_the_rest_is_looked_at(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The driver is asked first: it has been at work when the sections before `[gpu]` are looked at."""
    from lockd.look import look_at
    from lockd.probes import git

    started = tmp_path / "started"
    program = f"open({str(started)!r}, 'w').close(); print('{{\"cards\": []}}')"
    monkeypatch.setattr(cards, "NVML", (sys.executable, "-I", "-c", program))
    there: list[bool] = []

    def looks(rule: GitRule, look: Look) -> Seen:
        deadline = time.monotonic() + 20
        while not started.exists() and time.monotonic() < deadline:
            time.sleep(0.01)
        there.append(started.exists())
        return Seen(())

    monkeypatch.setattr(git, "look", looks)
    policy = replace(held(gpus="locked"), git=(GitRule(str(tmp_path)),))
    look = Look(policy, Disk())
    look_at(look)
    assert there == [True] and look.begun == {}


def test_a_look_that_is_left_ends_what_it_began(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    from lockd.look import look_at
    from lockd.probes import git

    monkeypatch.setattr(cards, "NVML", (sys.executable, "-I", "-c", "import time; time.sleep(600)"))
    begun: list[bounded.Question] = []

    def looks(rule: GitRule, look: Look) -> Seen:
        begun.extend(one for one in look.begun.values() if isinstance(one, bounded.Question))
        raise KeyboardInterrupt

    monkeypatch.setattr(git, "look", looks)
    with pytest.raises(KeyboardInterrupt):
        look_at(Look(replace(held(gpus="locked"), git=(GitRule("/nowhere"),)), Disk()))
    (question,) = begun
    assert question._process.poll() is not None
