"""What gates cost a launch, before a large environment: medians of eleven, in a table on stdout.

    benchmarks/gates.py                 builds its environment in a temporary folder, removed at the end
    benchmarks/gates.py --folder DIR    takes DIR/shape where it is built already, and leaves it

The daemon is one of this script's own, with a state and a socket of its own. Nothing here passes or fails.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import trees

from lockd import client

LOCKD = [str(Path(sys.executable).with_name("lockd"))]
TIMES = 11
QUICK, DEADLINE = 0.2, 300.0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", help="where the environment is, or is built and left")
    options = parser.parse_args()
    with trees.scratch(options.folder, "lockd-gates-") as folder:
        try:
            measure(trees.shape(folder), folder / "gates.home")
        finally:
            shutil.rmtree(folder / "gates.home", ignore_errors=True)
    return 0


def measure(prefix: Path, home: Path) -> None:
    """Each row without lockd's part, then with it."""
    home.mkdir()
    script = home / "train.py"
    script.write_text("")
    env = {**os.environ, "LOCKD_STATE": str(home / "state"), "LOCKD_RUNTIME": str(home / "run")}
    env.pop("PYTHONDONTWRITEBYTECODE", None)  # it would compile the hook at each start
    env["LOCKD_POLICY"] = policy = str(home / "lockd.toml")
    Path(policy).write_text(
        f'schema = 1\nname = "bench"\n[launch]\nscripts = ["{script}"]\npython = "train"\n'
        f'[[python]]\nname = "train"\npath = "{prefix}"\n'
    )
    python = str(prefix / "bin" / "python")
    by_hand = [python, "-S", "-c", "pass"]
    plain, launch = [python, "-c", "pass"], [python, str(script)]
    before, bare = median(plain, env), median(launch, env)
    lockd("gate", "install", "site", "--env", "train", env=env)
    try:
        lockd("accept", "-m", "bench", "--yes", env=env)
        print(f"\n{trees.size_of(prefix)[0]:,} files, {len(os.sched_getaffinity(0))} cores\n")
        print("| what | median | without | more | target |\n| --- | --- | --- | --- | --- |", flush=True)
        row("interpreter with the hook, no launch", median(plain, env), before, "≤ 1.2 ×")
        row("`lockd run`, no daemon", median([*LOCKD, "run", "--", *by_hand], env), median(by_hand, env), "")
        daemon = subprocess.Popen([*LOCKD, "daemon"], env=env, stderr=subprocess.DEVNULL)
        try:
            ready(policy, env)
            row(
                "`lockd run`, daemon up", median([*LOCKD, "run", "--", *by_hand], env), median(by_hand, env), "≤ 250 ms"
            )
            row("launch with the hook, daemon up", median(launch, env), bare, "≤ +10 ms")
            daemon.send_signal(signal.SIGSTOP)
            row("launch with the hook, daemon stopped", median(launch, env), bare, "direct look + 1 s")
        finally:
            daemon.kill()
            daemon.wait()
        row("launch with the hook, daemon killed", median(launch, env), bare, "direct look + 1 s")
    finally:
        lockd("gate", "remove", "site", "--env", "train", env=env)


def ready(policy: str, env: Mapping[str, str]) -> None:
    """Wait until the daemon's first look is over."""
    os.environ["LOCKD_RUNTIME"] = env["LOCKD_RUNTIME"]
    end = time.monotonic() + DEADLINE
    while (client.ask(policy, {"ask": "standing"}) or {}).get("age_s") is None:
        if time.monotonic() > end:
            raise SystemExit("the daemon is not ready")
        time.sleep(QUICK)


def lockd(*words: str, env: Mapping[str, str]) -> None:
    subprocess.run([*LOCKD, *words], env=env, check=True, stdout=subprocess.DEVNULL)


def median(command: Sequence[str], env: Mapping[str, str]) -> float:
    """Median seconds, after one that warms up. A launch that does not start ends the run."""
    times = []
    for _ in range(TIMES + 1):
        started = time.perf_counter()
        subprocess.run(command, env=env, check=True)
        times.append(time.perf_counter() - started)
    return statistics.median(times[1:])


def row(name: str, seconds: float, without: float, target: str) -> None:
    more = f"{seconds / without:.2f} ×, +{(seconds - without) * 1000:.0f} ms"
    print(f"| {name} | {seconds * 1000:.0f} ms | {without * 1000:.0f} ms | {more} | {target} |", flush=True)


if __name__ == "__main__":
    sys.exit(main())
