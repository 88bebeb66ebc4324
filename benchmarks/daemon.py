"""What the daemon costs and how fast it is: a real `lockd daemon` over real trees, each row against its target.

    benchmarks/daemon.py                          all rows
    benchmarks/daemon.py --only edits,verify      some of them; --help lists them
    benchmarks/daemon.py --folder DIR             the trees are built in DIR, and left there

Needs root for the rows about who changed what (fanotify), git, pip, uv. Every daemon is this script's own, with a state
and a socket of its own. Nothing here passes or fails: the numbers go into `README.md`.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import trees

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from lockd import client, protocol
from lockd.look import Launch
from tests.daemons import Daemon, until
from tests.scene import LOCKD, Scene
from tests.test_daemon_load import Benign

EDITS, QUESTIONS, TIMES, WRITERS, CLIENTS, ACTS = 200, 2_000, 11, 300, 500, 10_000
QUEUE, BURST = 1_000, 20_000
MINUTE, PAUSE = 60.0, 0.05  # seconds: of idleness, and between two edits
UV = shutil.which("uv") or str(Path(sys.executable).with_name("uv"))
LINGER = "import sys, time; open(sys.argv[1], 'w').write('y'); time.sleep(0.05)"
# a daemon whose queues, its own and the kernel's, are as short as the row says
SHORT = (
    "import sys\n"
    f"sys.path.insert(0, {str(Path(__file__).resolve().parents[1])!r})\n"
    "from lockd.watch import emitter\n"
    f"emitter.QUEUED = {QUEUE}\n"
    "from lockd.cli import main\n"
    "sys.exit(main(sys.argv[1:]))\n"
)

Row = Callable[[Path, Path], None]  # the folder of the trees, and a folder of the row's own


def main() -> int:
    options = parse()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # the trees are left as they were
    print(f"\n{len(os.sched_getaffinity(0))} cores\n\n| what | measured | target |\n| --- | --- | --- |", flush=True)
    with trees.scratch(options.folder, "lockd-daemon-") as folder:
        for name in options.only:
            home = folder / f"{name}.home"
            shutil.rmtree(home, ignore_errors=True)
            home.mkdir()
            ROWS[name](folder, home)
            shutil.rmtree(home, ignore_errors=True)
    return 0


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", help="build the trees here and leave them")
    parser.add_argument(
        "--only", type=lambda text: text.split(","), default=list(ROWS), help=f"of {','.join(ROWS)}", metavar="ROWS"
    )
    return parser.parse_args()


# -- rows


def edits(folder: Path, home: Path) -> None:
    """From an edit to the verdict that stands, asked over the socket; and the question itself."""
    scene, paths = modules(home, 20)
    with Daemon(scene) as daemon:
        daemon.ready()
        row("edit of a pinned file → standing verdict", spread(edited(daemon, paths[0])), "p99 ≤ 100 ms")
        until(lambda: daemon.standing()["settled"], "quiet")
        row("question to the standing verdict", spread([timed(daemon.standing) for _ in range(QUESTIONS)]), "≤ 2 ms")


def verify(folder: Path, home: Path) -> None:
    """A large environment: edits in it, ready, memory, idle, and `lockd verify` against `git status`."""
    scene, prefix = environment(home, trees.shape(folder))
    files = trees.size_of(prefix)[0]
    with Daemon(scene) as daemon:  # the first one learns
        daemon.ready()
        until(lambda: daemon.standing()["verdict"] == "ok", "ok")
        daemon.stop()
    started = time.monotonic()
    with Daemon(scene) as daemon:
        daemon.ready()
        row(f"{files:,} files: ready after a warm start", f"{time.monotonic() - started:.2f} s", "≤ 5 s")
        status = daemon.status()
        print(f"<!-- {sorted({one['mode'] for one in status['watch'].values()})} -->", flush=True)
        git = repository(home, prefix)
        ours, theirs = [], []
        command = [*entry(), "verify"]
        for _ in range(TIMES):
            ours.append(timed(lambda: run(command, env_of(scene))))
            theirs.append(timed(lambda: run(git)))
        ratio = statistics.median(ours[1:]) / statistics.median(theirs[1:])
        told = f"{statistics.median(ours[1:]) * 1e3:.0f} ms, {ratio:.2f} × `git status`"
        row("`lockd verify` by the daemon", f"{told} ({statistics.median(theirs[1:]) * 1e3:.0f} ms)", "≤ 1.2 ×")
        victim = largest_module(prefix)
        before = victim.read_bytes()
        try:
            row("edit of a file in it → standing verdict", spread(edited(daemon, victim)), "p99 ≤ 100 ms")
        finally:
            victim.write_bytes(before)
        mended = timed(lambda: until(lambda: daemon.standing()["verdict"] == "ok", "ok"))
        row("its bytes put back → ok, which waits for a whole look at its package", f"{mended:.2f} s", "")
        until(lambda: not reading(daemon), "the full read to be over", 600)
        time.sleep(5)
        row(f"{files:,} files: RSS", f"{daemon.status()['resources']['rss'] / 1e6:.0f} MB", "≤ 100 MB")
        looks = daemon.status()["looks"]["count"]
        used = cpu(daemon.process.pid)
        time.sleep(MINUTE)
        share = (cpu(daemon.process.pid) - used) / MINUTE
        timed_looks = daemon.status()["looks"]["count"] - looks - 1
        row("idle CPU over a minute", f"{share:.3%}, {timed_looks} timed looks in it", "≤ 0.1 %")
        daemon.stop()


def uv(folder: Path, home: Path) -> None:
    """Another build of torch, by uv: how many drifts, findings, and who."""
    prefix = home / "venv"
    wheels = folder / "wheels"
    pip = [sys.executable, "-m", "pip", "-q", "--disable-pip-version-check"]
    for version in ("2.13.0", "2.14.1"):
        if not list(wheels.glob(f"torch-{version}*")):
            run([*pip, "download", "--no-deps", "-d", str(wheels), f"torch=={version}"])
    run([sys.executable, "-m", "venv", "--without-pip", str(prefix)])
    install = [UV, "pip", "install", "-q", "--offline", "--no-cache", "--no-deps", "--python", f"{prefix}/bin/python"]
    old, new = (str(next(wheels.glob(f"torch-{version}*"))) for version in ("2.13.0", "2.14.1"))
    run([*install, old])
    scene, _ = environment(home, prefix, 'extra = "ignore"')
    with Daemon(scene) as daemon:
        daemon.ready()
        seconds = timed(lambda: run([*install, new]))
        settled = timed(lambda: until(lambda: daemon.standing()["settled"], "quiet", 300))
        findings = daemon.status()["findings"]
        until(lambda: log(scene, "drift"), "the mark", 120)
        time.sleep(3)
        drifts = log(scene, "drift")
        daemon.stop()
    told = f"{len(drifts)} drift, {len(findings)} finding, by {drifts[0].get('by', {}).get('cmdline')}"
    row(
        "real `uv pip install` of another torch",
        f"{told}; install {seconds:.1f} s, settled {settled:.1f} s",
        "1, 1, uv",
    )
    for drift in reversed(drifts):
        print(f"<!-- {drift['at']} {drift['fact']}: {drift['message']} -->", flush=True)


def burst(folder: Path, home: Path) -> None:
    """More edits than a queue holds, while the daemon is stopped: only a new look can tell what is."""
    shorts = [("the daemon's own queue (fanotify)", None), ("the kernel's queue (inotify)", QUEUE)]
    for name, kernel in shorts if os.geteuid() == 0 else shorts[:1]:
        told, right = _overflown(home / str(kernel), kernel)
        text = f"told: {told.split(';')[0]}; right after {right:.2f} s"
        row(f"{BURST:,} edits, {name} of {QUEUE:,}", text, "told, right by itself")


def _overflown(home: Path, kernel: int | None) -> tuple[str, float]:
    """What the log says of it, and seconds until the verdict was right."""
    scene, paths = modules(home, 2 * QUEUE)
    with queue_of(kernel):  # only while the daemon takes its queue
        daemon = Short(scene, prefix=("unshare", "-Ur") if kernel else ()).ready()
    with daemon:
        daemon.process.send_signal(signal.SIGSTOP)
        for number in range(BURST):
            paths[number % len(paths)].write_text(f"x = {number}\n")
        for path in paths[1:]:
            path.write_text("x = 1\n")
        daemon.process.send_signal(signal.SIGCONT)
        right = timed(lambda: until(lambda: judged(daemon) == {f"file:{paths[0]}"}, "the final state", 60))
        told = until(lambda: [one["message"] for one in log(scene, "look")], "the overflow to be told", 60)
        paths[0].write_text("x = 1\n")
        daemon.wait_for("ok")
        daemon.stop()
    return str(told[0]), right


def writers(folder: Path, home: Path) -> None:
    """Processes that live 50 ms beyond their write, and ones that end at once."""
    for name, command, target in (
        ("that live 50 ms beyond their write", [sys.executable, "-S", "-c", LINGER], "≥ 99 %, never wrongly"),
        ("that end at once", ["/bin/sh", "-c", 'echo y > "$0"'], "never wrongly"),
    ):
        place = home / name.replace(" ", "-")
        scene, paths = modules(place, WRITERS)

        def write(path: Path, command: Sequence[str] = command) -> int:
            with subprocess.Popen([*command, str(path)]) as process:
                process.wait()
                return process.pid

        with Daemon(scene) as daemon:
            daemon.ready()
            with ThreadPoolExecutor(8) as pool:
                wrote = dict(zip(map(str, paths), pool.map(write, paths), strict=True))
            until(lambda: len(daemon.status()["findings"]) == WRITERS, f"{WRITERS} findings")
            found = {one["fact"].removeprefix("file:"): one["by"] for one in daemon.status()["findings"]}
            daemon.stop()
        named = {path: by for path, by in found.items() if by["confidence"] != "not observed"}
        wrong = [path for path, by in named.items() if by.get("pid") != wrote[path]]
        row(f"{WRITERS} writers {name}", f"{len(named) / WRITERS:.1%} attributed, {len(wrong)} wrongly", target)


def clients(folder: Path, home: Path) -> None:
    """As many at once, each with a connection of its own, asking what `lockd verify` asks, right after an edit."""
    scene, paths = modules(home, 20)
    with Daemon(scene) as daemon:
        daemon.ready()
        request = client.question(str(scene.policy), Launch({"HOME": "/root"}, "/", (), "bench"), json=True)
        request["state"] = None
        data = protocol.encode(request)
        paths[0].write_text("x = 2\n")
        gate, taken, wrong = threading.Barrier(CLIENTS + 1), [], []

        def converse() -> None:
            gate.wait()
            started = time.monotonic()
            with daemon.connect() as connection:
                connection.sendall(data)
                answer = daemon.hear(connection)
            taken.append(time.monotonic() - started)
            if answer.get("answer", {}).get("exit") != 1:
                wrong.append(answer)

        threads = [threading.Thread(target=converse) for _ in range(CLIENTS)]
        for thread in threads:
            thread.start()
        gate.wait()
        for thread in threads:
            thread.join()
        row(f"{CLIENTS} clients verifying at once", f"{spread(taken)}; {len(wrong)} wrong", "all right, p99 ≤ 1 s")
        daemon.stop()


def day(folder: Path, home: Path) -> None:
    """Benign acts: imports, byte code, caches and logs that grow, touches, the same bytes put in place."""
    scene, paths = modules(home, 20)
    with Daemon(scene) as daemon:
        daemon.ready()
        act = Benign(scene, paths)
        for number in range(2_000):
            act(number)
        before, alarms = uses(daemon), 0
        for number in range(2_000, 2_000 + ACTS):
            act(number)
            if number % 50 == 0:
                alarms += daemon.standing()["verdict"] != "ok"
        after = uses(daemon)
        daemon.stop()
    alarms += len(log(scene, "drift"))
    grown = (after["rss"] - before["rss"]) / 1e6
    more = after["descriptors"] - before["descriptors"]
    row(f"{ACTS:,} benign acts", f"{alarms} alarms, RSS {grown:+.1f} MB, descriptors {more:+d}", "0, no growth")


ROWS: dict[str, Row] = {
    "edits": edits,
    "verify": verify,
    "uv": uv,
    "burst": burst,
    "writers": writers,
    "clients": clients,
    "day": day,
}


# -- means


class Short(Daemon):
    """A daemon with a queue of QUEUE hints."""

    def command(self) -> list[str]:
        return [sys.executable, "-c", SHORT]


@contextmanager
def queue_of(number: int | None) -> Iterator[None]:
    """The length of the kernel's queue for whoever starts within; what it was is put back."""
    place = Path("/proc/sys/fs/inotify/max_queued_events")
    before = place.read_text()
    try:
        if number is not None:
            place.write_text(str(number))
        yield
    finally:
        if number is not None:
            place.write_text(before)


def modules(home: Path, number: int) -> tuple[Scene, list[Path]]:
    """That many pinned modules, accepted."""
    scene = Scene(home)
    paths = [scene.file(f"job/m{one}.py") for one in range(number)]
    scene.write_policy(f'[[file]]\npath = "{home}/job/**/*.py"\n')
    accept(scene)
    return scene, paths


def environment(home: Path, prefix: Path, rule: str = "") -> tuple[Scene, Path]:
    """One environment, accepted."""
    scene = Scene(home)
    scene.write_policy(f'[[python]]\nname = "train"\npath = "{prefix}"\n{rule}\n')
    accept(scene)
    return scene, prefix


def accept(scene: Scene) -> None:
    run([*LOCKD, "accept", "-m", "bench", "--yes"], env_of(scene))


def env_of(scene: Scene) -> dict[str, str]:
    return {
        **os.environ,
        "HOME": str(scene.root / "home"),
        "LOCKD_STATE": str(scene.state),
        "LOCKD_RUNTIME": str(scene.root / "run"),
        "LOCKD_POLICY": str(scene.policy),
    }


def entry() -> list[str]:
    """The installed command, as a person has it."""
    return [str(Path(sys.executable).with_name("lockd"))]


def run(command: Sequence[str], env: dict[str, str] | None = None) -> None:
    subprocess.run(command, env=env, check=True, stdout=subprocess.DEVNULL)


def repository(home: Path, prefix: Path) -> list[str]:
    """`git status` of the same tree, its index built, its repository beside it."""
    where = ["git", f"--git-dir={home / 'git'}", f"--work-tree={prefix}"]
    run([*where, "init", "-q"])
    subprocess.run([*where, "-c", "core.looseCompression=0", "add", "-A", "-f"], check=True, cwd=prefix)
    return [*where, "status", "--porcelain"]


def edited(daemon: Daemon, path: Path) -> list[float]:
    """Seconds from each edit to the verdict about it."""
    taken = []
    for number in range(EDITS):
        before = daemon.standing()["environment"]
        started = time.monotonic()
        path.write_text(f"x = {number + 2}\n")
        while (now := daemon.standing())["environment"] == before or now["verdict"] != "block":
            assert time.monotonic() < started + 30, "no verdict about an edit"
        taken.append(time.monotonic() - started)
        time.sleep(PAUSE)
    return taken


def largest_module(prefix: Path) -> Path:
    """A module of the package with the most files: the dearest to look at again."""
    site = next(prefix.glob("lib/python*/site-packages"))
    packages = [folder for folder in site.iterdir() if (folder / "__init__.py").exists()]
    chosen = max(packages, key=lambda folder: sum(len(names) for _, _, names in os.walk(folder)))
    return chosen / "__init__.py"


def judged(daemon: Daemon) -> set[str]:
    return {one["fact"] for one in daemon.status()["findings"]}


def log(scene: Scene, kind: str) -> list[dict[str, Any]]:
    """The log's lines of one kind, newest first."""
    return list(scene.lockd("log", "--json", "--kind", kind).document)


def reading(daemon: Daemon) -> bool:
    full = daemon.status()["looks"]["full"]
    return full["reading"] or full["done"] is None


def uses(daemon: Daemon) -> dict[str, Any]:
    """What it uses once it has caught up."""
    until(lambda: daemon.standing()["settled"], "quiet")
    time.sleep(2)
    return dict(daemon.status()["resources"])


def cpu(pid: int) -> float:
    """Seconds of CPU that a process's threads have used, to the nanosecond."""
    tasks = os.listdir(f"/proc/{pid}/task")
    return sum(int(Path(f"/proc/{pid}/task/{task}/schedstat").read_text().split()[0]) for task in tasks) / 1e9


def timed(what: Callable[[], Any]) -> float:
    started = time.perf_counter()
    what()
    return time.perf_counter() - started


def spread(taken: Sequence[float]) -> str:
    ordered = sorted(taken)
    p50, p99 = ordered[len(ordered) // 2], ordered[min(len(ordered) - 1, len(ordered) * 99 // 100)]
    return f"p50 {p50 * 1e3:.1f} ms, p99 {p99 * 1e3:.1f} ms"


def row(name: str, measured: str, target: str) -> None:
    print(f"| {name} | {measured} | {target} |", flush=True)


if __name__ == "__main__":
    sys.exit(main())
