"""Who acts, from recorded /proc texts and from this very process."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from lockd import origin
from lockd.origin import FROM_OUTSIDE, Origin, Process

ODD = "4242 (a) b (c) S 17 4242 4000 34816 4242 4194304 100 0"


def chain_of(*names: str, top_parent: int = 1, terminal: int = 0) -> list[Process]:
    """A chain as /proc shows it, nearest first."""
    last = len(names) - 1
    return [
        Process(100 - place, name, top_parent if place == last else 99 - place, 1, terminal)
        for place, name in enumerate(names)
    ]


def test_a_process_name_may_hold_blanks_and_parentheses() -> None:
    assert origin.parse_stat(ODD) == Process(4242, "a) b (c", 17, 4000, 34816)


@pytest.mark.parametrize("text", ["", "12", "12 (x", "x (y) S 1 2 3 4", "12 (x) S"])
def test_a_torn_stat_row_is_no_process(text: str) -> None:
    assert origin.parse_stat(text) is None


@pytest.mark.parametrize(
    ("names", "ways"),
    [
        (("lockd", "bash", "sshd-session", "sshd", "systemd"), ("ssh",)),
        (("lockd", "bash", "tmux: server", "systemd"), ("tmux/screen",)),
        (("lockd", "sh", "CRON", "cron", "systemd"), ("cron",)),
        (("lockd", "bash", "claude", "bash", "sshd", "systemd"), ("agent claude", "ssh")),
        (("lockd", "bash", "codex", "node", "tmux: server"), ("agent codex", "tmux/screen")),
        (("lockd", "lxc-attach", "pct", "bash"), (FROM_OUTSIDE,)),
    ],
)
def test_the_way_in_is_read_from_the_parents(names: tuple[str, ...], ways: tuple[str, ...]) -> None:
    assert origin.ways_in(chain_of(*names)) == ways


def test_no_parent_inside_the_container_means_from_outside() -> None:
    assert origin.ways_in(chain_of("lockd", "bash", top_parent=0)) == (FROM_OUTSIDE,)


def test_pid_1_has_no_parent_and_is_not_from_outside() -> None:
    assert origin.ways_in([Process(50, "lockd", 1, 1, 0), Process(1, "systemd", 0, 1, 0)]) == ()


def test_a_unit_is_named_where_nothing_nearer_is_known() -> None:
    assert origin.ways_in(chain_of("lockd", "systemd"), "train.service") == ("unit train.service",)
    assert origin.ways_in(chain_of("lockd", "sshd"), "ssh.service") == ("ssh",)


def test_a_terminal_is_the_last_resort() -> None:
    assert origin.ways_in(chain_of("lockd", "bash", "login", terminal=1025)) == ("terminal",)


@pytest.mark.parametrize(
    ("text", "unit"),
    [
        ("0::/system.slice/train.service\n", "train.service"),
        ("0::/user.slice/user-0.slice/user@0.service/app.slice/job.service\n", "job.service"),
        ("0::/user.slice/user-0.slice/session-4.scope\n", None),
        ("0::/user.slice/user-0.slice/user@0.service/init.scope\n", None),
        ("12:cpu:/x\n1:name=systemd:/system.slice/old.service\n", "old.service"),
        ("0::/\n", None),
        ("", None),
        (None, None),
    ],
)
def test_the_unit_is_read_from_the_cgroup(text: str | None, unit: str | None) -> None:
    assert origin.parse_unit(text) == unit


@pytest.mark.parametrize(
    ("text", "uid"), [("4294967295", None), ("1000\n", 1000), ("", None), (None, None), ("-1", None)]
)
def test_an_unset_login_is_nobody_not_a_number(text: str | None, uid: int | None) -> None:
    assert origin.parse_login_uid(text) == uid


def test_a_loop_of_parents_ends() -> None:
    rows = {5: Process(5, "a", 6, 1, 0), 6: Process(6, "b", 5, 1, 0)}
    assert [row.pid for row in origin.chain(5, rows.get)] == [5, 6]


def test_by_is_one_short_line() -> None:
    who = Origin("root", 0, 1, sudo_user="ana", login_uid=1000, login_user="ana", ways=("ssh",))
    assert who.by == "root (SUDO_USER=ana, ssh)"
    assert Origin("root", 0, 1).by == "root"
    assert Origin("root", 0, 1, login_uid=7, login_user="eva").by == "root (login eva)"


def test_this_process_is_told_from_the_real_proc() -> None:
    who = origin.current({"SUDO_USER": "ana\x1b[31m"})
    assert who.uid == os.geteuid()
    assert who.sudo_user == "ana\\x1b[31m"
    assert who.data()["user"] == who.user
    parents = origin.chain(os.getpid(), origin._process)
    assert parents[0].pid == os.getpid()
    assert parents[1].pid == os.getppid()


def test_a_real_parent_named_like_an_agent_is_seen(tmp_path: object) -> None:
    agent = f"{tmp_path}/claude"
    os.symlink("/bin/sh", agent)
    program = "from lockd import origin; print(origin.current().by)"
    script = f'"{sys.executable}" -c "{program}"; true'
    done = subprocess.run(
        [agent, "-c", script], capture_output=True, text=True, check=True, env={"PYTHONPATH": os.getcwd()}
    )
    assert "agent claude" in done.stdout
