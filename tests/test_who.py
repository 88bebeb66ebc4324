"""Who made a change: real writers under a real watcher, and the texts of /proc parsed from recordings."""

from __future__ import annotations

import os
import subprocess
import sys
import time
import zipfile
from pathlib import Path
from typing import Any

import pytest

from lockd.watch.hints import Hint, Who, writer
from lockd.watch.process import Process, Stat, ancestors, mask, parse_cgroup, parse_cmdline, parse_stat, parse_uid
from lockd.watch.watcher import Watcher
from lockd.watch.who import ENDED, OUTSIDE, Asker, describe, origin
from tests.daemons import until
from tests.watching import Collector, Remote, needs_fanotify, outside

SLEEPY = "import os,sys,time; fd=os.open(sys.argv[1],65); os.write(fd,b'x'); os.close(fd); time.sleep(0.05)"


# recorded texts


def test_a_stat_line_whose_name_holds_brackets_blanks_and_newlines() -> None:
    rest = "S 41 1 1 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 98765 1 2 3"
    assert parse_stat(f"77 (tmux: ser) ver\n()) {rest}") == Stat("tmux: ser) ver\n()", "S", 41, 98765)
    assert parse_stat("77 (sh") is None and parse_stat("") is None and parse_stat("7 (sh) S 1") is None


def test_uid_cgroup_and_cmdline_texts() -> None:
    assert parse_uid("Name:\tsh\nUid:\t1000\t0\t0\t0\nGid:\t1\t1\t1\t1\n") == 0
    assert parse_uid("") is None
    assert parse_cgroup("0::/system.slice/train.service\n") == "/system.slice/train.service"
    assert parse_cgroup("9:name=systemd:/user.slice/x\n8:pids:/\n0::/\n") == "/user.slice/x"
    assert parse_cgroup("") == ""
    assert parse_cmdline("uv\0pip\0install\0torch\0") == ("uv", "pip", "install", "torch")
    assert parse_cmdline("") == () and parse_cmdline("a\0\0b\0") == ("a", "", "b")


def test_secrets_in_command_lines_are_masked() -> None:
    argv = (
        "uv",
        "--token",
        "abc",
        "--password=x",
        "HF_TOKEN=hf_abcdefghijkl",
        "https://me:pw@host/simple",
        "ghp_0123456789ab",
        "-v",
    )
    shown = " ".join(mask(argv))
    assert shown == "uv --token *** --password=*** HF_TOKEN=*** https://me:***@host/simple *** -v"
    plain = ("pip", "install", "tokenizers==0.22", "--author=x", "/root/auth/x.py", "--index-url", "https://host/cu128")
    assert mask(plain) == plain


def a_process(
    pid: int, parent: int, exe: str, cmdline: tuple[str, ...] = (), cgroup: str = "", comm: str = ""
) -> Process:
    return Process(pid, Stat(comm or os.path.basename(exe)[:15], "S", parent, pid), exe, cmdline, 0, None, cgroup)


def test_the_session_comes_from_the_chain_else_from_the_unit() -> None:
    writer = a_process(50, 40, "/root/.local/bin/uv")
    shell, init = a_process(40, 30, "/usr/bin/bash"), a_process(1, 0, "/usr/lib/systemd/systemd")
    assert origin(writer, [shell, a_process(30, 1, "/usr/sbin/sshd"), init]) == "ssh"
    assert origin(writer, [shell, a_process(30, 1, "/usr/bin/tmux", comm="tmux: server"), init]) == "tmux/screen"
    assert origin(writer, [a_process(40, 0, "/usr/bin/bash")]) == "pct exec/lxc-attach"
    assert origin(writer, [shell, a_process(30, 1, "/usr/sbin/cron"), init]) == "cron"
    agent = a_process(30, 20, "/usr/bin/node", ("node", "/usr/lib/node_modules/@openai/codex/bin/codex.js"))
    assert origin(writer, [shell, agent, a_process(20, 1, "/usr/sbin/sshd"), init]) == "agent codex, ssh"
    unit = a_process(50, 1, "/usr/bin/python3.11", cgroup="/system.slice/train.service")
    assert origin(unit, [init]) == "unit train.service"
    assert origin(a_process(50, 1, "/usr/bin/python3.11"), [init]) == ""


def test_json_of_who_holds_what_is_known_only() -> None:
    assert Who("not observed", ENDED, pid=7).as_dict() == {"confidence": "not observed", "reason": ENDED, "pid": 7}
    told = describe(os.getpid())
    assert told and told.as_dict()["exe"] == os.readlink("/proc/self/exe")
    assert told.as_dict()["uid"] == os.geteuid()


def test_the_writer_of_many_hints_is_the_best_known_of_the_most() -> None:
    uv, sh = Who("observed", pid=5, exe="/bin/uv"), Who("observed", pid=6, exe="/bin/sh")
    gone, likely = Who("not observed", ENDED, pid=7), Who("likely", pid=8, exe="/bin/cp")
    hints = [
        Hint(f"/v/{number}", "created", who.pid, who) for number, who in enumerate([gone] * 9 + [sh, uv, uv, likely])
    ]
    assert writer(hints) == uv and writer(reversed(hints)) == uv
    assert writer([hints[-1], hints[0]]) == likely
    assert writer([hints[0], Hint("/v", "overflow")]) == gone
    assert writer([]).confidence == "not observed"


# asking


def asked(pid: int, asker: Asker) -> Who:
    pidfd = os.pidfd_open(pid)
    try:
        return asker.ask(pid, pidfd)
    finally:
        os.close(pidfd)


def a_sleeper() -> subprocess.Popen[bytes]:
    """A process that has execed and stays."""
    child = subprocess.Popen(["sh", "-c", "echo; exec sleep 30"], stdout=subprocess.PIPE)
    assert child.stdout
    child.stdout.readline()
    while (who := describe(child.pid)) and who.cmdline != ("sleep", "30"):
        time.sleep(0.005)
    return child


def test_a_living_process_is_observed_with_its_parents() -> None:
    child = a_sleeper()
    try:
        who = asked(child.pid, Asker())
        assert (who.confidence, who.cmdline, who.parents[0][0]) == ("observed", ("sleep", "30"), os.getpid())
    finally:
        child.kill()
        child.wait()


def test_an_ended_process_is_likely_only_if_it_was_seen_moments_ago() -> None:
    clock = [0.0]
    asker = Asker(now=lambda: clock[0])
    child = a_sleeper()
    asked(child.pid, asker)
    child.kill()
    child.wait()
    likely = asker.ask(child.pid, -1)
    assert (likely.confidence, likely.cmdline) == ("likely", ("sleep", "30")) and likely.reason
    clock[0] += 60
    assert asker.ask(child.pid, -1) == Who("not observed", ENDED, pid=child.pid)


def test_a_process_that_nobody_reaped_is_known_by_name_and_parent() -> None:
    child = subprocess.Popen(["true"])
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    who = asked(child.pid, Asker())
    assert who.confidence == "observed" and "true" in who.reason and who.exe == ""
    assert who.parents[0][0] == os.getpid()
    child.wait()


def test_another_process_of_the_same_number_is_never_named() -> None:
    asker, child = Asker(), subprocess.Popen(["sleep", "30"])
    ended = os.pidfd_open(child.pid)
    child.kill()
    child.wait()
    assert asker.ask(os.getpid(), ended) == Who(
        "not observed", ENDED, pid=os.getpid()
    )  # as if the number were ours now
    assert asker.ask(os.getpid(), -1).confidence == "not observed"
    os.close(ended)


def test_what_has_the_number_of_a_parent_that_ended_is_no_parent() -> None:
    """A number is given again: a process that started after its child cannot have started it."""
    child = Stat("cp", "S", 40, 100)
    older, younger = a_process(40, 1, "/usr/bin/bash"), a_process(40, 1, "/usr/sbin/sshd")
    younger = younger._replace(stat=younger.stat._replace(started=101))
    assert [found.exe for found in ancestors(child, {40: older}.get)] == ["/usr/bin/bash"]
    assert list(ancestors(child, {40: younger}.get)) == []


def test_a_parent_that_execs_is_read_again() -> None:
    asker, words = Asker(), "sleep 30 & sleep 30 & read x; exec sleep 31"
    shell = subprocess.Popen(["sh", "-c", words], stdin=subprocess.PIPE, start_new_session=True)
    try:
        assert shell.stdin
        one, two = until(lambda: len(found := children(shell.pid)) == 2 and found, "two children")
        assert asked(one, asker).parents[0] == (shell.pid, os.path.basename(os.path.realpath("/bin/sh")))
        shell.stdin.write(b"\n")
        shell.stdin.flush()
        until(lambda: asked(shell.pid, asker).cmdline == ("sleep", "31"), "the exec")
        assert asked(two, asker).parents[0] == (shell.pid, "sleep")
    finally:
        os.killpg(shell.pid, 9)
        shell.wait()


def children(pid: int) -> list[int]:
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def test_an_exec_is_seen_although_pid_and_start_time_stay() -> None:
    asker = Asker()
    child = subprocess.Popen(["sh", "-c", "read x; exec sleep 30"], stdin=subprocess.PIPE)
    try:
        while asked(child.pid, asker).cmdline[:2] != ("sh", "-c"):
            time.sleep(0.01)
        assert child.stdin
        child.stdin.write(b"\n")
        child.stdin.flush()
        end = time.monotonic() + 20
        while asked(child.pid, asker).cmdline != ("sleep", "30"):
            assert time.monotonic() < end
            time.sleep(0.01)
    finally:
        child.kill()
        child.wait()


def test_no_pid_has_its_reason() -> None:
    assert Asker().ask(0, -1) == Who("not observed", OUTSIDE)
    assert Asker().ask(None, -1, "inotify names no process") == Who("not observed", "inotify names no process")


# real writers


def writers(hints: list[Hint], folder: Path) -> dict[str, set[Who]]:
    by_path: dict[str, set[Who]] = {}
    for hint in hints:
        if hint.path.startswith(f"{folder}/"):
            by_path.setdefault(hint.path, set()).add(hint.who)
    return by_path


@needs_fanotify
def test_300_writers_that_live_50_ms_beyond_their_write_are_attributed(tmp_path: Path) -> None:
    root = tmp_path / "venv"
    root.mkdir()
    pids: dict[str, int] = {}
    with Remote([str(root)], str(tmp_path / "c")) as remote:  # a process of its own, as the daemon is
        for start in range(0, 300, 10):
            paths = [f"{root}/w{number}" for number in range(start, start + 10)]
            children = [subprocess.Popen([sys.executable, "-S", "-c", SLEEPY, path]) for path in paths]
            pids |= {path: child.pid for path, child in zip(paths, children, strict=True)}
            for child in children:
                child.wait()
        answer = remote.ask("sync")
    told: dict[str, list[dict[str, Any]]] = {path: [] for path in pids}
    for hint in answer["hints"]:
        told[hint["path"]].append(hint["who"])
    assert all({who["pid"] for who in whos} == {pids[path]} for path, whos in told.items())
    attributed = [path for path, whos in told.items() if any(path in who.get("cmdline", ()) for who in whos)]
    assert len(attributed) >= 297


@needs_fanotify
def test_shorter_lives_are_attributed_or_not_observed_never_wrongly(tmp_path: Path) -> None:
    root, got = tmp_path / "venv", Collector()
    root.mkdir()
    with Watcher([str(root)], on_hint=got, cookie_folder=str(tmp_path / "c")) as watcher:
        outside(f"for i in $(seq 100); do sh -c 'echo > {root}/f'$i; done")
        assert watcher.sync(30)
    told = writers(got.hints, root)
    assert len(told) == 100
    for path, whos in told.items():
        for who in whos:
            if who.confidence == "not observed":
                assert who.reason == ENDED and not who.cmdline
            elif who.cmdline:
                assert any(path.rsplit("/", 1)[1] in word for word in who.cmdline), (path, who)


@needs_fanotify
@pytest.mark.parametrize(
    ("command", "name"),
    [
        ("cp ../new {}", "cp"),
        ("mv ../new {}", "mv"),
        ("sed -i s/1/2/ {}", "sed"),
        ("git checkout -q HEAD~1 -- {}", "git"),
        ("rm {}", "rm"),
        ("chmod 755 {}", "chmod"),
    ],
)
def test_tools_that_live_a_moment_are_named_or_not_observed_never_wrongly(
    tmp_path: Path, command: str, name: str
) -> None:
    root, got = tmp_path / "job", Collector()
    root.mkdir()
    path = root / "model.py"
    git = f"cd {root}; git -c user.name=a -c user.email=a@b"
    outside(f"{git} init -q; echo 1 > {path}; git add .; {git} commit -qm 1; echo 2 > {path}; {git} commit -qam 2")
    (tmp_path / "new").write_text("3\n")
    path.write_text("1\n")
    with Watcher([str(path)], on_hint=got, cookie_folder=str(tmp_path / "c")) as watcher:
        outside(f"cd {root}; {command.format('model.py')}")
        assert watcher.sync(30)
    whos = [hint.who for hint in got.about(path)]
    assert whos
    for who in whos:
        if who.confidence == "not observed":
            assert who.reason == ENDED and not who.cmdline
        elif who.exe:
            assert os.path.basename(who.exe) == name and who.cmdline[0] == name, who


@needs_fanotify
def test_an_install_names_uv_and_its_command_line(tmp_path: Path) -> None:
    uv = Path(sys.executable).with_name("uv")
    if not uv.exists():
        pytest.skip("no uv beside this interpreter")
    wheel, venv, got = a_wheel(tmp_path), tmp_path / "venv", Collector()
    quiet = {**os.environ, "UV_CACHE_DIR": str(tmp_path / "uv-cache"), "UV_OFFLINE": "1"}
    subprocess.run([uv, "venv", "-q", "--python", sys.executable, venv], check=True, env=quiet)
    with Watcher([str(venv)], on_hint=got, cookie_folder=str(tmp_path / "c")) as watcher:
        subprocess.run([uv, "pip", "install", "-q", "--python", venv, wheel], check=True, env=quiet)
        assert watcher.sync(30)
    module = [hint for hint in got.hints if hint.path.endswith("site-packages/toytorch/version.py")]
    assert module
    who = next(hint.who for hint in module if hint.who.exe)
    assert os.path.basename(who.exe) == "uv" and {"pip", "install", str(wheel)} <= set(who.cmdline)
    assert who.as_dict()["user"] == "root" and who.parents[0][0] == os.getpid()


def a_wheel(folder: Path) -> Path:
    wheel = folder / "toytorch-1.0+cu130-py3-none-any.whl"
    info = "toytorch-1.0+cu130.dist-info"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("toytorch/__init__.py", "")
        archive.writestr("toytorch/version.py", "__version__ = '1.0+cu130'\n")
        archive.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: toytorch\nVersion: 1.0+cu130\n")
        archive.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: t\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr(
            f"{info}/RECORD",
            f"toytorch/__init__.py,,\ntoytorch/version.py,,\n{info}/METADATA,,\n{info}/WHEEL,,\n{info}/RECORD,,\n",
        )
    return wheel
