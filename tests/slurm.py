"""A real Slurm of one node on loopback: munged, slurmctld and slurmd with everything of theirs in one folder.

Root only; needs Debian's slurm-wlm and munge. What is missing skips, with the reason. Ends only what it started.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

NODE = "vm"
_TOOLS = ("munged", "mungekey", "slurmctld", "slurmd", "srun", "sbatch", "scontrol")
_CONF = """ClusterName=lockd
SlurmctldHost={node}(127.0.0.1)
SlurmctldPort={ctld}
SlurmdPort={slurmd}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={root}/munge/socket
CredType=cred/munge
CommunicationParameters=NoInAddrAny,NoCtldInAddrAny
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
StateSaveLocation={root}/state
SlurmdSpoolDir={root}/spool
SlurmctldPidFile={root}/slurmctld.pid
SlurmdPidFile={root}/slurmd.pid
SlurmctldLogFile={root}/slurmctld.log
SlurmdLogFile={root}/slurmd.log
ReturnToService=2
MpiDefault=none
NodeName={node} NodeAddr=127.0.0.1 CPUs={cpus} RealMemory=500 State=UNKNOWN
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP
{more}
"""


@dataclass
class Slurm:
    """One running cluster."""

    root: Path
    processes: list[subprocess.Popen[bytes]] = field(default_factory=list)

    @property
    def variables(self) -> dict[str, str]:
        return {"PATH": os.environ["PATH"], "SLURM_CONF": str(self.root / "slurm.conf")}

    def run(self, *command: str, env: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
        """Run one of Slurm's commands and wait for it."""
        words = {**self.variables, **(env or {})}
        how = {"capture_output": True, "text": True, "timeout": 120}
        return subprocess.run(command, env=words, cwd=self.root, stdin=subprocess.DEVNULL, **how)  # type: ignore[call-overload, no-any-return]

    def node(self) -> str:
        """State of the node, as `idle`, `drained`."""
        return self.run("sinfo", "-h", "-n", NODE, "-o", "%T").stdout.strip().rstrip("*~")

    def wait_for(self, *states: str) -> str:
        end = time.monotonic() + 60
        while (state := self.node()) not in states:
            assert time.monotonic() < end, f"the node is {state}, not {' or '.join(states)}\n{self.logs()}"
            time.sleep(0.2)
        return state

    def logs(self) -> str:
        return "\n".join(path.read_text()[-3000:] for path in self.root.glob("*.log"))


@contextmanager
def cluster(root: Path, more: str = "") -> Iterator[Slurm]:
    """A cluster with more lines in slurm.conf; ended afterwards."""
    missing = [tool for tool in _TOOLS if not shutil.which(tool)]
    if os.geteuid() != 0:
        pytest.skip("Slurm: root only")
    if missing:
        pytest.skip(f"Slurm: no {', '.join(missing)} (apt-get install slurm-wlm munge)")
    one = Slurm(root)
    try:
        _start(one, more)
        one.wait_for("idle")
        yield one
    finally:
        for process in reversed(one.processes):
            process.terminate()
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _start(one: Slurm, more: str) -> None:
    root = one.root
    for name, mode in {"munge": 0o711, "key": 0o700, "state": 0o755, "spool": 0o755}.items():
        (root / name).mkdir()
        (root / name).chmod(mode)
    subprocess.run(["mungekey", "-c", "-k", str(root / "key" / "munge.key")], check=True)
    ports = {"ctld": _port(), "slurmd": _port()}
    text = _CONF.format(root=root, node=NODE, cpus=os.cpu_count(), more=more, **ports)
    (root / "slurm.conf").write_text(text)
    munged = ["munged", "-F", "-f", "-S", str(root / "munge" / "socket"), "--key-file", str(root / "key" / "munge.key")]
    munged += ["--pid-file", str(root / "munge" / "pid"), "--log-file", str(root / "munge" / "log")]
    munged += ["--seed-file", str(root / "munge" / "seed")]
    _spawn(one, munged)
    while not (root / "munge" / "socket").exists():
        assert one.processes[0].poll() is None, "munged ended"
        time.sleep(0.05)
    _spawn(one, ["slurmctld", "-D"])
    _spawn(one, ["slurmd", "-D", "-N", NODE])


def _spawn(one: Slurm, command: list[str]) -> None:
    with open(one.root / f"{command[0]}.out", "wb") as out:
        one.processes.append(
            subprocess.Popen(command, env=one.variables, stdin=subprocess.DEVNULL, stdout=out, stderr=out)
        )


def _port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
