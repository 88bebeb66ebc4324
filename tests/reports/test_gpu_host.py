"""Reports of drivers, devices, kernels, loaders, repositories and file systems, from files as those machines had them.

The probes read below a made root; what they found is compared, pinned and worded as by `lockd verify`.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import venv
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from lockd.compare import compare
from lockd.disk import Disk
from lockd.facts import Facts
from lockd.look import Launch, Look, look_at
from lockd.probes import gpu, host, probe, rules
from lockd.probes.gpu import cards
from lockd.rules import CacheRule, GitRule, LaunchRule, Policy, PythonRule, SystemRule
from lockd.verdict import judge
from tests import probing
from tests.machine import Machine, elf

DATA = Path(__file__).parents[1] / "data" / "h200"


class Line(NamedTuple):
    """The one line that lockd tells."""

    fact: str
    change: str
    message: str


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    """A GPU machine whose driver is 460.56 on both sides, by the distribution's packages."""
    made = Machine(tmp_path / "root")
    monkeypatch.setattr(gpu, "ROOT", str(made.root))
    monkeypatch.setattr(host, "ROOT", str(made.root))
    made.module("460.56")
    made.libraries("460.56")
    made.gpus(4)
    made.dpkg({"libnvidia-compute-460": "460.56-0ubuntu0.20.04.1", "nvidia-utils-460": "460.56-0ubuntu0.20.04.1"})
    return made


def nvml(monkeypatch: pytest.MonkeyPatch, **values: Any) -> None:
    """NVML's recorded answer with these values."""
    answer = json.loads((DATA / "nvml.json").read_text())
    answer["cards"][0].update(values)
    program = f"import sys; sys.stdout.write({json.dumps(answer)!r})"
    monkeypatch.setattr(cards, "NVML", (sys.executable, "-I", "-c", program))


def looked(policy: Policy, **environ: str) -> Facts:
    return look_at(Look(policy, Disk(), Launch(environ, "/"))).facts


def told(policy: Policy, before: Facts | None, **environ: str) -> list[Line]:
    """What verify would tell; every finding blocks."""
    found = looked(policy, **environ)
    pins = [pin for section, rule in rules(policy) for pin in probe(section).breaches(rule, policy, found)]
    judged = judge(policy, compare(before, found, pins), {})
    assert judged.verdict == ("block" if judged.findings else "ok")
    return [Line(one.fact, one.change, one.message) for one in judged.findings]


def system(**sections: dict[str, Any]) -> Policy:
    return probing.policy(**{name: SystemRule(values) for name, values in sections.items()})


# -- the two halves of the driver --------------------------------------------------------------------------------------


def test_gpu_driver_was_upgraded_under_the_loaded_module(machine: Machine) -> None:
    """lyulyul/shine-cluster#30: unattended-upgrade 460.56 → 460.73, "Driver/library version mismatch"; old jobs run."""
    policy = system(gpu={"driver": "locked"})
    before = looked(policy)
    assert told(policy, before) == []
    machine.libraries("460.73.01")
    machine.dpkg({"libnvidia-compute-460": "460.73.01-0ubuntu1", "nvidia-utils-460": "460.73.01-0ubuntu1"})
    (line,) = told(policy, before)
    assert (line.fact, line.change) == ("gpu:driver", "changed")
    assert "libcuda 460.56 → 460.73.01" in line.message
    assert "module 460.56, libcuda.so.1 460.73.01: driver/library version mismatch" in line.message


def test_host_packages_of_the_driver_moved(machine: Machine) -> None:
    """pando85/homelab#4110: unattended-upgrades moved the driver's packages; the GPU plugin restarted 269 times."""
    policy = system(host={"packages": ["*nvidia*"]})
    before = looked(policy)
    machine.dpkg({"libnvidia-compute-460": "460.73.01-0ubuntu1", "nvidia-utils-460": "460.56-0ubuntu0.20.04.1"})
    assert told(policy, before) == [
        Line(
            "host:package/libnvidia-compute-460",
            "changed",
            "package libnvidia-compute-460 460.56-0ubuntu0.20.04.1 → 460.73.01-0ubuntu1",
        )
    ]


def test_gpu_driver_waits_for_a_reboot(machine: Machine) -> None:
    """NVIDIA/ubuntu-packaging-nvidia-driver#3: out of step after a minor update, until the reboot that is pending."""
    policy = system(gpu={"driver": "locked"})
    before = looked(policy)
    machine.libraries("460.91.03")
    machine.write("run/reboot-required", "*** System restart required ***\n")
    (line,) = told(policy, before)
    assert line.fact == "gpu:driver"
    assert looked(policy)["gpu:driver"].told["reboot"]  # type: ignore[union-attr]


def test_gpu_driver_left_links_to_nothing(machine: Machine) -> None:
    """NVIDIA/nvidia-docker#584: `yum update -y` moved the driver, the links of its libraries dangle."""
    policy = system(gpu={"driver": "locked"})
    before = looked(policy)
    (machine.root / "usr/lib/x86_64-linux-gnu/libnvidia-ml.so.460.56").unlink()
    (line,) = told(policy, before)
    assert "libnvidia-ml.so.1 -> libnvidia-ml.so.460.56 leads to nothing" in line.message


def test_gpu_driver_of_the_host_is_not_the_containers(machine: Machine) -> None:
    """NVIDIA/nvidia-docker#365: the host's driver moved 375.26 → 375.39, containers broke; told without any lock."""
    machine.module("375.39")
    machine.libraries("375.26")
    machine.dpkg({})
    (line,) = told(system(gpu={"driver": "locked"}), None)
    assert line.fact == "gpu:driver"
    assert "module 375.39, libcuda.so.1 375.26: driver/library version mismatch" in line.message


def test_gpu_driver_was_not_built_for_the_new_kernel(machine: Machine) -> None:
    """NVIDIA/nvidia-docker#804: after an upgrade of the kernel and a reboot the driver is gone."""
    policy = system(gpu={"driver": "locked"}, host={"kernel": "locked"})
    machine.write("proc/sys/kernel/osrelease", "5.4.0-65-generic\n")
    machine.write("var/lib/dkms/nvidia/460.56/5.4.0-65-generic/x86_64/module/nvidia.ko", b"")
    before = looked(policy)
    shutil.rmtree(machine.root / "proc/driver")
    shutil.rmtree(machine.root / "sys/module/nvidia")
    machine.write("proc/sys/kernel/osrelease", "5.4.0-66-generic\n")
    lines = {line.fact: line for line in told(policy, before)}
    assert lines["gpu:driver"].message.startswith("driver 460.56 → none (dkms built")
    assert "dkms built 460.56 for 5.4.0-65-generic; kernel 5.4.0-66-generic runs" in lines["gpu:driver"].message
    assert lines["host:kernel"].message == "kernel 5.4.0-65-generic → 5.4.0-66-generic"


def test_gpu_devices_node_is_missing_or_has_the_old_number(machine: Machine) -> None:
    """NVIDIA/nvidia-docker#526, #139: after a reboot /dev/nvidia-uvm is missing, or has a new major number."""
    if os.geteuid() != 0:
        pytest.skip("device nodes are made by root alone")
    (machine.root / "dev").mkdir()
    try:
        for name, major, minor in (("nvidia0", 195, 0), ("nvidiactl", 195, 255), ("nvidia-uvm", 238, 0)):
            os.mknod(machine.root / "dev" / name, 0o20666, os.makedev(major, minor))
    except OSError as error:
        pytest.skip(f"no device nodes can be made here: {error}")
    machine.write("proc/devices", (DATA / "proc_devices").read_bytes())
    policy = system(gpu={"devices": "locked"})
    before = looked(policy)
    assert told(policy, before) == []
    machine.write("proc/devices", (DATA / "proc_devices").read_text().replace("238 nvidia-uvm", "511 nvidia-uvm"))
    (line,) = told(policy, before)
    assert "/dev/nvidia-uvm is 238:0, the driver's is 511:0" in line.message
    (machine.root / "dev/nvidia-uvm").unlink()
    (line,) = told(policy, before)
    assert (line.fact, line.change) == ("gpu:devices", "changed")
    assert "/dev/nvidia-uvm" in line.message


def test_gpu_driver_has_a_fabric_manager_of_another_version(machine: Machine) -> None:
    """Azure/azhpc-images#86: apt upgraded the fabric manager, the driver came by .run: CUDA does not start."""
    machine.dpkg({"nvidia-fabricmanager-460": "460.73.01-1"})
    (line,) = told(system(gpu={"driver": "locked"}), None)
    assert "package nvidia-fabricmanager-460 is 460.73.01, the loaded module 460.56" in line.message


# -- settings of the GPUs ----------------------------------------------------------------------------------------------


def test_gpu_clocks_and_persistence_were_lost_at_a_reboot(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    """NVIDIA/nccl-tests#297: all-reduce 362 → 328 GB/s."""
    policy = system(gpu={"gpus": "locked"})
    nvml(monkeypatch)
    before = looked(policy)
    nvml(monkeypatch, persistence=0, clocks_application=[1410, 2619])
    assert told(policy, before) == [
        Line("gpu:0", "changed", "GPU 0: clocks application 1980/3201 MHz → 1410/2619 MHz; persistence on → off")
    ]


def test_gpu_ecc_differs_between_equal_nodes(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    """converged-computing/performance-study#61: ECC on or off by chance; one node's lock is held against another."""
    policy = system(gpu={"ecc": "locked", "ecc_pending": "locked"})
    nvml(monkeypatch)
    lock = looked(policy)
    nvml(monkeypatch, ecc=0, ecc_pending=0, uuid="GPU-of-another-node")
    assert told(policy, lock) == [Line("gpu:0", "changed", "GPU 0: ecc on → off; ecc pending on → off")]


# -- what the loader takes ---------------------------------------------------------------------------------------------


def environment(root: Path, how: str = "rpath") -> Path:
    """A venv whose torch needs NCCL and cuDNN; how: rpath or runpath to the wheels' folders."""
    venv.EnvBuilder(with_pip=False, symlinks=True).create(root / "env")
    (site,) = (root / "env/lib").glob("python3*/site-packages")
    folders = ":".join(f"$ORIGIN/../../nvidia/{name}/lib" for name in ("nccl", "cudnn"))
    needs = ["libnccl.so.2", "libcudnn.so.9"]
    rpath, runpath = (folders, "") if how == "rpath" else ("", folders)
    made = {
        "torch/lib/libtorch_global_deps.so": elf("libtorch_global_deps.so", needs, rpath=rpath, runpath=runpath),
        "nvidia/nccl/lib/libnccl.so.2": elf("libnccl.so.2"),
        "nvidia/cudnn/lib/libcudnn.so.9": elf("libcudnn.so.9", runpath="$ORIGIN"),
        "nvidia/cudnn/lib/libcudnn_ops.so.9": elf("libcudnn_ops.so.9"),
    }
    for path, content in made.items():
        (site / path).parent.mkdir(parents=True, exist_ok=True)
        (site / path).write_bytes(content)
    return site


def launching(root: Path) -> Policy:
    return probing.policy(
        launch=LaunchRule(python="train", loader=True, on_drift="block"),
        python=(PythonRule("train", str(root / "env"), on_drift="ignore", unowned="ignore", extra="ignore"),),
    )


def of_launch(facts: Facts) -> Facts:
    return Facts(fact for fact in facts.values() if fact.kind == "launch")


def test_launch_loader_takes_another_nccl(tmp_path: Path) -> None:
    """pytorch/pytorch#119932, NVIDIA/nccl#1180: undefined symbol ncclCommRegister: a system NCCL was taken."""
    environment(tmp_path, "runpath")
    policy = launching(tmp_path)
    before = of_launch(looked(policy))
    old = tmp_path / "usr/local/nccl/libnccl.so.2"
    old.parent.mkdir(parents=True)
    old.write_bytes(elf("libnccl.so.2", ["libc.so.6"]))
    (line,) = [one for one in told(policy, before, LD_LIBRARY_PATH=str(old.parent)) if one.fact.startswith("launch:")]
    assert line.fact == "launch:loader/libnccl"
    assert line.message.startswith(f"libnccl: the launch would load {old} (libnccl.so.2, by LD_LIBRARY_PATH), not ENV/")


def test_launch_loader_takes_the_nccl_of_another_wheel(tmp_path: Path) -> None:
    """pytorch/pytorch#186591: nccl-cu12 and nccl-cu13 own one path; here the folder that wins is another one."""
    site = environment(tmp_path)
    policy = launching(tmp_path)
    before = of_launch(looked(policy))
    other = site / "nvidia/cu13/lib"
    other.mkdir(parents=True)
    shutil.move(site / "nvidia/nccl/lib/libnccl.so.2", other / "libnccl.so.2")
    torch = site / "torch/lib/libtorch_global_deps.so"
    torch.write_bytes(elf(torch.name, ["libnccl.so.2"], rpath="$ORIGIN/../../nvidia/cu13/lib"))
    lines = {one.fact: one.message for one in told(policy, before) if one.fact.startswith("launch:")}
    assert "nvidia/cu13/lib/libnccl.so.2" in lines["launch:loader/libnccl"]
    assert "not ENV/" in lines["launch:loader/libnccl"]


def test_launch_loader_mixes_two_builds_of_cudnn(tmp_path: Path) -> None:
    """pytorch/pytorch#188892: torch's cuDNN with parts of the system's: SUBLIBRARY_VERSION_MISMATCH. No lock needed."""
    environment(tmp_path)
    system_cudnn = tmp_path / "usr/lib/cudnn"
    system_cudnn.mkdir(parents=True)
    for name in ("libcudnn.so.9", "libcudnn_ops.so.9"):
        (system_cudnn / name).write_bytes(elf(name))
    policy = launching(tmp_path)
    assert [one for one in told(policy, None) if one.fact.startswith("launch:")] == []
    lines = [one for one in told(policy, None, LD_LIBRARY_PATH=str(system_cudnn)) if one.fact.startswith("launch:")]
    (line,) = lines
    assert line.fact == "launch:loader/libcudnn"
    assert f"libcudnn of two builds: libcudnn_ops.so.9 from {system_cudnn} by LD_LIBRARY_PATH" in line.message


def test_launch_loader_no_longer_takes_the_environments_libstdcxx(tmp_path: Path) -> None:
    """rapidsai/ci-imgs#185, pytorch/pytorch#157709: libstdc++.so.6 is gone from the prefix: GLIBCXX not found."""
    site = environment(tmp_path)
    torch = site / "torch/lib/libtorch_global_deps.so"
    torch.write_bytes(elf(torch.name, ["libstdc++.so.6"], rpath="$ORIGIN/../../../../../lib"))
    own = tmp_path / "env/lib/libstdc++.so.6"
    (tmp_path / "env/lib/libstdc++.so.6.0.34").write_bytes(elf("libstdc++.so.6"))
    own.symlink_to("libstdc++.so.6.0.34")
    policy = launching(tmp_path)
    before = of_launch(looked(policy))
    own.unlink()
    lines = {one.fact: one.message for one in told(policy, before) if one.fact.startswith("launch:")}
    assert set(lines) == {"launch:loader/libstdc++"}
    assert "ENV/lib/libstdc++.so.6 (libstdc++.so.6.0.34, by RPATH)" in lines["launch:loader/libstdc++"]


def test_launch_loader_finds_a_plugin_of_nccl_on_one_rank(tmp_path: Path) -> None:
    """NVIDIA/nccl#1634, #1328: a plug-in in sight of some ranks alone: a hang."""
    environment(tmp_path)
    policy = launching(tmp_path)
    before = of_launch(looked(policy))
    plugin = tmp_path / "opt/ofi/libnccl-net.so"
    plugin.parent.mkdir(parents=True)
    plugin.write_bytes(elf("libnccl-net.so"))
    lines = [one for one in told(policy, before, LD_LIBRARY_PATH=str(plugin.parent)) if one.fact.startswith("launch:")]
    (line,) = lines
    assert (line.fact, line.change) == ("launch:loader/libnccl-net", "added")
    assert str(plugin) in line.message


# -- repositories, file systems ----------------------------------------------------------------------------------------


@pytest.mark.skipif(not shutil.which("git"), reason="no git on this machine to make a repository with")
def test_git_checkout_moved_while_jobs_were_queued(tmp_path: Path) -> None:
    """AutoX-AI-Labs/AutoR#190: the checkout went twelve commits ahead between two jobs of one batch."""
    pytest.importorskip("pygit2")

    def git(*args: str) -> str:
        who = ("-c", "user.name=a", "-c", "user.email=a@example.org")
        done = subprocess.run(["git", *who, *args], cwd=tmp_path, capture_output=True, text=True, check=True)
        return done.stdout.strip()

    git("init", "-q")
    git("commit", "-q", "--allow-empty", "-m", "queued")
    policy = probing.policy(git=(GitRule(str(tmp_path)),))
    before, old = looked(policy), git("rev-parse", "HEAD")
    for number in range(12):
        git("commit", "-q", "--allow-empty", "-m", f"ahead {number}")
    assert told(policy, before) == [
        Line(f"git:{tmp_path}", "changed", f"{tmp_path}: {old[:8]} → {git('rev-parse', 'HEAD')[:8]}")
    ]


def test_host_mounts_have_a_cache_on_nfs(machine: Machine) -> None:
    """opendatahub-io/distributed-workloads#844, pytorch#173679: a triton cache shared over NFS: ESTALE."""
    table = "22 1 8:1 / / rw - ext4 /dev/sda1 rw\n30 22 0:40 / /root/.triton rw - {} rw\n"
    policy = probing.policy(
        host=SystemRule({"mounts": "locked"}),
        cache=(CacheRule("/root/.triton/cache-of-a-test", kind="triton", on_drift="ignore"),),
    )
    machine.write("proc/self/mountinfo", table.format("ext4 /dev/sdb1"))
    before = looked(policy)
    machine.write("proc/self/mountinfo", table.format("nfs4 nas:/triton"))
    path = "/root/.triton/cache-of-a-test"
    assert told(policy, before) == [Line("host:mounts", "changed", f"mounts: types {path}: ext4 → {path}: nfs4")]
