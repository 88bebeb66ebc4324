"""Slurm's gates: a TaskProlog that refuses a job's step, and a HealthCheckProgram that drains a node for its own facts.

A failing Prolog drains the node, and drift of an environment is the job's fault: so jobs are gated in TaskProlog (the
step fails with lockd's message, the node stays idle), nodes by facts of GPU and host alone.
Always holds: a step's launch is its slurmstepd, so that its tasks are one launch; a node is resumed only if it was
drained with this program's reason.
Never: looks at jobs from the health check, or touches slurm.conf.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from lockd.errors import LockdError
from lockd.gates import owned
from lockd.gates.owned import Told

if TYPE_CHECKING:
    from lockd.findings import Finding

FOLDER = "/etc/lockd/slurm"
TASK, HEALTH = "task-prolog", "health-check"
NODE_KINDS = ("gpu", "host")
REASON = "lockd:"  # how the reason of a drained node begins


def install(folder: str, policy: str, *, trust_unmapped: bool = False) -> Told:
    """Write both scripts; the lines for slurm.conf are told."""
    folder = os.path.abspath(folder)
    for path, text in _files(folder, policy, trust_unmapped).items():
        owned.write(path, text, mode=0o755)
    return Told(
        f"two scripts in {folder}; in slurm.conf of every node, then scontrol reconfigure:\n{lines(folder)}", True
    )


def remove(folder: str) -> Told:
    """Take both scripts away."""
    folder = os.path.abspath(folder)
    gone = [owned.remove(os.path.join(folder, name)) for name in (TASK, HEALTH)]
    if not any(gone):
        return Told(f"no scripts of lockd's in {folder}", False)
    return Told(f"the scripts are gone; take their lines out of slurm.conf:\n{lines(folder)}", False)


def status(folder: str) -> Told:
    """Are the scripts as they would be written now?"""
    folder = os.path.abspath(folder)
    words = shlex.split((owned.read(os.path.join(folder, TASK)) or "").rpartition("exec ")[2])
    policy = _value(words, "--policy")
    state = owned.state_of(_files(folder, policy, "--trust-unmapped" in words))
    return Told(f"Slurm's scripts in {folder}: {state}", state != "gone", sound=state == "in place")


def lines(folder: str) -> str:
    """What slurm.conf has to say."""
    task, health = (os.path.join(folder, name) for name in (TASK, HEALTH))
    return f"  TaskProlog={task}\n  HealthCheckProgram={health}\n  HealthCheckInterval=300"


def _files(folder: str, policy: str, trust_unmapped: bool) -> dict[str, str]:
    more = ["--trust-unmapped"] if trust_unmapped else []
    if "LOCKD_STATE" in os.environ:  # moved now; a job's own variables will not count
        more += ["--state", f"{os.geteuid()}:{os.path.abspath(os.environ['LOCKD_STATE'])}"]
    texts = {}
    for name, deed in ((TASK, "task"), (HEALTH, "health")):
        words = [sys.executable, "-I", "-m", "lockd.gates.slurm", deed, "--policy", policy, *more]
        texts[os.path.join(folder, name)] = f"#!/bin/sh\n{owned.MARK}\nexec {shlex.join(words)}\n"
    return texts


# -- what the scripts start


def main(argv: list[str]) -> int:
    """`task` or `health`, `--policy FILE`, `--trust-unmapped`, `--state UID:FOLDER`. lockd's variables don't count."""
    for name in ("LOCKD_STATE", "LOCKD_RUNTIME", "LOCKD_POLICY"):
        os.environ.pop(name, None)
    uid, _, folder = _value(argv, "--state").partition(":")
    if uid == str(os.geteuid()):
        os.environ["LOCKD_STATE"] = folder
    deed, policy, trust_unmapped = argv[0], _value(argv, "--policy"), "--trust-unmapped" in argv
    try:
        return task(policy, trust_unmapped) if deed == "task" else health(policy, trust_unmapped)
    except LockdError as error:
        hint = f" ({error.hint})" if error.hint else ""
        sys.stderr.write(f"lockd: {error}{hint}\n")
        return error.code


def _value(words: list[str], option: str) -> str:
    return words[words.index(option) + 1] if option in words[:-1] else ""


def _folder() -> str:
    try:
        return os.getcwd()
    except OSError:  # it was deleted under the step
        return "/"


def task(policy: str, trust_unmapped: bool) -> int:
    """Decide about the step. What begins with `print` on stdout, slurmstepd writes to the task's own output."""
    from lockd import lineage
    from lockd.gates.admit import Asked, admit
    from lockd.gates.ask import give_ticket, spoken
    from lockd.look import Launch

    parent = lineage.row(os.getppid())  # the task, which is about to become the command
    step = parent.parent if parent is not None else os.getppid()
    name = os.environ.get("SLURM_JOB_NAME", "")
    source = f"Slurm job {os.environ.get('SLURM_JOB_ID', '?')}"
    launch = Launch(dict(os.environ), _folder(), (), f"{source} {name}".strip())
    with _turn(policy, step):
        answer = admit(Asked(policy, launch, "slurm", step, trust_unmapped=trust_unmapped))
        give_ticket(answer, step)
    for line in spoken(answer):
        print(f"print {line}", flush=True)  # noqa: T201  that is how a TaskProlog speaks
    return answer.code


@contextmanager
def _turn(policy: str, step: int) -> Iterator[None]:
    """One task of a step after the other, so that the first one's answer is there for the rest."""
    import fcntl

    from lockd import state
    from lockd.errors import LockdError

    try:
        own = state.open(policy, create=True, guest=True)
        path = os.path.join(own.folder if own is not None else "", "slurm.lock")
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except (OSError, LockdError):  # no state: each of them is a launch
        yield
        return
    try:
        fcntl.lockf(descriptor, fcntl.LOCK_EX, 1, step)  # a byte a step
        yield
    finally:
        os.close(descriptor)


def health(policy_path: str, trust_unmapped: bool) -> int:
    """Drain this node while a fact of its GPUs or its host blocks; resume it when none does any more."""
    from lockd import lock, policy, state
    from lockd.check import check

    loaded = policy.load(policy_path, trust_unmapped=trust_unmapped)
    known = lock.read(loaded.lock_path, policy=loaded.name, trust_unmapped=trust_unmapped)
    own = state.open(policy_path, create=False)
    report = check(loaded, state=own, lock=known, launch=None, commands=False, may_age=True)
    findings = [one for one in report.findings if one.severity == "block" and _kind(one) in NODE_KINDS]
    node = os.environ.get("SLURMD_NODENAME") or os.uname().nodename.partition(".")[0]
    drained = _reason_of(node)
    if findings and not drained.startswith(REASON):
        reason = f"{REASON} {'; '.join(one.message for one in findings[:3])}"[:200]
        return _scontrol("update", f"NodeName={node}", "State=DRAIN", f"Reason={reason}").returncode
    if not findings and drained.startswith(REASON):
        return _scontrol("update", f"NodeName={node}", "State=RESUME").returncode
    return 0


def _kind(finding: Finding) -> str:
    return finding.fact.partition(":")[0]


def _reason_of(node: str) -> str:
    """Why a node is drained, "" where it is not."""
    for line in _scontrol("show", "node", node).stdout.splitlines():
        if line.strip().startswith("Reason="):
            return line.strip().removeprefix("Reason=")
    return ""


def _scontrol(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["scontrol", *words], capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=60)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
