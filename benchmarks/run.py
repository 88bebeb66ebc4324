"""lockd against public tools over the same trees, in one run: medians of five, ratios in a table on stdout.

    make bench                          all of it; needs git, openssl, and b3sum and aide (apt-get install b3sum aide)
    benchmarks/run.py --small           only the small environment
    benchmarks/run.py --folder DIR      where the trees are built (default: a temporary folder, removed at the end)

A peer that is not installed is left out, and said so. Nothing here passes or fails: the numbers go into `README.md`.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import trees

LOCKD = str(Path(sys.executable).with_name("lockd"))
CORES = len(os.sched_getaffinity(0))
TIMES = 5


class Bench:
    """One tree under measurement: its policy, its own state, its peers."""

    def __init__(self, name: str, prefix: Path, folder: Path) -> None:
        self.name, self.prefix = name, prefix
        self.home = folder / f"{name}.home"
        self.home.mkdir(exist_ok=True)
        self.policy = self.home / "lockd.toml"
        self.policy.write_text(f'schema = 1\nname = "bench"\n[[python]]\nname = "train"\npath = "{prefix}"\n')
        self.env = {**os.environ, "LOCKD_STATE": str(self.home / "state"), "LOCKD_POLICY": str(self.policy)}

    def lockd(self, *words: str) -> list[str]:
        return [LOCKD, *words]

    def accept(self) -> tuple[float, int]:
        """Seconds and MiB of a first accept: no state, no lock."""
        shutil.rmtree(self.home / "state", ignore_errors=True)
        (self.home / "lockd.lock").unlink(missing_ok=True)
        return measure(self.lockd("accept", "-m", "bench", "--yes"), self.env)

    def git(self) -> list[str] | None:
        """`git status` of the same tree, its index built and its repository beside it."""
        if not shutil.which("git"):
            return None
        where = ["git", f"--git-dir={self.home / 'git'}", f"--work-tree={self.prefix}"]
        if not (self.home / "git").exists():
            subprocess.run([*where, "init", "-q"], check=True)
            subprocess.run([*where, "-c", "core.looseCompression=0", "add", "-A", "-f"], check=True, cwd=self.prefix)
            who = ["-c", "user.name=bench", "-c", "user.email=bench@localhost", "-c", "gc.auto=0"]
            subprocess.run([*where, *who, "commit", "-q", "-m", "bench"], check=True, cwd=self.prefix)
        return [*where, "status", "--porcelain"]

    def aide(self) -> list[str] | None:
        """`aide --check` with sha256 of every file, its database made first."""
        if not shutil.which("aide"):
            return None
        config = self.home / "aide.conf"
        base = f"file:{self.home}/aide.db"
        config.write_text(
            f"database_in={base}\ndatabase_out={base}\nreport_url=stdout\n{self.prefix} p+i+n+s+m+c+sha256\n"
        )
        if not (self.home / "aide.db").exists():
            subprocess.run(["aide", "--init", f"--config={config}"], check=True, stdout=subprocess.DEVNULL)
        return ["aide", "--check", f"--config={config}"]

    def every_file(self, *tool: str) -> list[str] | None:
        """A digest tool over every file, as many processes as cores."""
        if not shutil.which(tool[0]):
            return None
        words = " ".join(tool)
        find = f"find {self.prefix} -type f -print0"
        return ["sh", "-c", f"{find} | xargs -0 -P {CORES} -n 512 {words} > /dev/null"]


def main() -> int:
    options = parse()
    with trees.scratch(options.folder, "lockd-bench-") as folder:
        small(Bench("small", trees.small(folder), folder))
        if not options.small:
            for name, build in (("torch", trees.torch_venv), ("shape", trees.shape)):
                large(Bench(name, build(folder), folder))
    return 0


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--small", action="store_true", help="only the small environment")
    parser.add_argument("--folder", help="build the trees here and leave them")
    return parser.parse_args()


def small(bench: Bench) -> None:
    """What a launch pays for the smallest environment."""
    bench.accept()
    head("small", *trees.size_of(bench.prefix))
    floor = median([sys.executable, "-c", "pass"])
    row("python -c pass", floor)
    row("lockd verify", median(bench.lockd("verify"), bench.env), floor, "python -c pass", 5)


def large(bench: Bench) -> None:
    """1. accept against openssl, 2. the stat look against git, 3. every byte against the formula and the tools."""
    files, total, largest = trees.size_of(bench.prefix)
    head(bench.name, files, total, largest)
    accepts = [bench.accept() for _ in range(3)]
    accept = statistics.median(seconds for seconds, _ in accepts)
    openssl = peer("openssl dgst -sha256, all cores", bench.every_file("openssl", "dgst", "-sha256"))
    row("lockd accept, the first", accept, openssl, "openssl", 1.5)
    git = peer("git status", bench.git())
    peer("find -printf", ["find", str(bench.prefix), "-printf", "%s %T@ %i %p\\n"])
    row("lockd verify", median(bench.lockd("verify"), bench.env), git, "git status", 1.5)
    speed = openssl_speed()
    floor = max(total / (CORES * speed), largest / speed) + 30e-6 * files / CORES
    row("formula of the full look", floor)
    full = median(bench.lockd("verify", "--full"), bench.env)
    row("lockd verify --full", full, floor, "the formula", 1.3)
    peer("b3sum, all cores", bench.every_file("b3sum"), full)
    peer("sha256sum, all cores", bench.every_file("sha256sum"), full)
    peer("aide --check", bench.aide(), full)
    memory = max(size for _, size in [*accepts, measure(bench.lockd("verify"), bench.env)])
    print(f"| memory, largest process of accept and verify | {memory} MiB | | 150 MiB |", flush=True)


def measure(command: list[str], env: dict[str, str] | None = None) -> tuple[float, int]:
    """Seconds, and the peak MiB of its largest process. A lockd that fails ends the run."""
    started = time.perf_counter()
    process = subprocess.Popen(command, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    _, status, usage = os.wait4(process.pid, 0)
    seconds = time.perf_counter() - started
    process.returncode = os.waitstatus_to_exitcode(status)
    said = process.stderr.read().decode(errors="replace") if process.stderr else ""
    if command[0] == LOCKD and process.returncode != 0:
        raise SystemExit(f"{' '.join(command)}: exit {process.returncode}\n{said}")
    return seconds, usage.ru_maxrss >> 10


def median(command: list[str], env: dict[str, str] | None = None) -> float:
    """The median seconds of five runs, after one that warms up."""
    measure(command, env)
    return statistics.median(measure(command, env)[0] for _ in range(TIMES))


def peer(name: str, command: list[str] | None, ours: float | None = None) -> float | None:
    """Measure a public tool and print its row; `ours` is then put in relation to it."""
    if command is None:
        print(f"| {name} | not installed here | | |", flush=True)
        return None
    seconds = median(command)
    print(f"| {name} | {seconds:.3f} s | {f'lockd takes {ours / seconds:.2f} ×' if ours else ''} | |", flush=True)
    return seconds


def row(name: str, seconds: float, other: float | None = None, of: str = "", target: float = 0) -> None:
    ratio = f"{seconds / other:.2f} × {of}" if other else ""
    print(f"| {name} | {seconds:.3f} s | {ratio} | {f'≤ {target} ×' if target else ''} |", flush=True)


def head(name: str, files: int, total: int, largest: int) -> None:
    print(f"\n### {name}: {files:,} files, {total / 1e9:.2f} GB, the largest {largest / 1e6:.0f} MB, {CORES} cores\n")
    print("| what | median | ratio | target |\n| --- | --- | --- | --- |", flush=True)


def openssl_speed() -> float:
    """Bytes a second that one core hashes, as `openssl speed` measures it."""
    command = ["openssl", "speed", "-seconds", "1", "-bytes", "1048576", "-evp", "sha256"]
    found: Callable[[str], list[str]] = re.compile(r"sha256\s+([\d.]+)k").findall
    speeds = found(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    return float(speeds[-1]) * 1000


if __name__ == "__main__":
    sys.exit(main())
