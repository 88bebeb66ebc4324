"""A dataset of 1.1 million files: `find -printf`, the first look, the repeated look and accept, in one run.

Always holds: the tree is made below a temporary folder and removed at the end; each time stands beside `find` of the
same run, warm, and each peak is that of the largest process (RSS, MB). `FILES=100000` in the environment makes it
smaller.
"""

from __future__ import annotations

import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

FILES = int(os.environ.get("FILES", "1100000"))
A_FOLDER = 1000  # files
REPEATS = 3
POLICY = 'schema = 1\nname = "tree"\n[[tree]]\npath = "{data}"\n'


class Ran(NamedTuple):
    """Seconds, and MB of the largest process."""

    seconds: float
    peak: int


def main() -> int:
    """Print one row for each measurement; returns 0."""
    folder = Path(tempfile.mkdtemp(prefix="lockd-tree-", dir="/tmp"))  # where a disk is, mostly
    try:
        make(folder / "data")
        (folder / "lockd.toml").write_text(POLICY.format(data=folder / "data"))
        table(folder)
    finally:
        shutil.rmtree(folder)
    return 0


def make(data: Path) -> None:
    """The files, each of some bytes."""
    for number in range(0, FILES, A_FOLDER):
        shard = data / f"shard-{number // A_FOLDER:05}"
        shard.mkdir(parents=True)
        for at in range(min(A_FOLDER, FILES - number)):
            descriptor = os.open(f"{shard}/sample-{at:04}.json", os.O_WRONLY | os.O_CREAT)
            os.write(descriptor, b"x" * (at % 7))
            os.close(descriptor)


def table(folder: Path) -> None:
    """Measure, each after one warm `find`."""
    lockd = [sys.executable, "-m", "lockd", "--policy", str(folder / "lockd.toml")]
    find = ["find", str(folder / "data"), "-printf", "%s %T@ %i %p\n"]
    run(folder, find)
    floor = median(folder, find)
    rows = [("find -printf", floor), ("first look", run(folder, [*lockd, "verify"]))]
    rows.append(("repeated look", median(folder, [*lockd, "verify"])))
    rows.append(("accept", run(folder, [*lockd, "accept", "-m", "good", "--yes"])))
    rows.append(("verify after it", median(folder, [*lockd, "verify"])))
    print(f"| {FILES:,} files | s | x find | MB |\n| --- | --- | --- | --- |")
    for name, ran in rows:
        print(f"| {name} | {ran.seconds:.2f} | {ran.seconds / floor.seconds:.2f} | {ran.peak} |")


def median(folder: Path, command: list[str]) -> Ran:
    """The middle of some runs, and their highest peak."""
    ran = [run(folder, command) for _ in range(REPEATS)]
    return Ran(statistics.median(one.seconds for one in ran), max(one.peak for one in ran))


def run(folder: Path, command: list[str]) -> Ran:
    """One run, its output thrown away; of lockd's exits, 3 (no known-good yet) is expected before the accept."""
    env = {**os.environ, "LOCKD_STATE": str(folder / "state"), "LOCKD_RUNTIME": str(folder / "run")}
    began = time.monotonic()
    process = subprocess.Popen(command, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    seconds = time.monotonic() - began
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode not in (0, 3):
        raise RuntimeError(f"{command}: exit code {process.returncode}")
    return Ran(seconds, usage.ru_maxrss // 1024)


if __name__ == "__main__":
    sys.exit(main())
