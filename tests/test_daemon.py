"""The daemon as a real process: what stands, who is answered, what is remembered, and what it survives."""

from __future__ import annotations

import grp
import json
import os
import resource
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from lockd import protocol
from tests.daemons import GOOD, Daemon, daemon, edit, scene, until
from tests.scene import ROOT, Scene, pinned_file
from tests.watching import needs_fanotify

__all__ = ["daemon", "scene"]  # fixtures


def events(scene: Scene, *kinds: str) -> list[dict[str, Any]]:
    """The log, oldest first."""
    rows = scene.lockd("log", "--json", "--reverse", *(word for kind in kinds for word in ("--kind", kind))).document
    return list(rows)


# -- what stands


def test_an_edit_and_its_undoing_change_what_stands_and_leave_both_marks(
    scene: tuple[Scene, Path], daemon: Daemon
) -> None:
    made, path = scene
    assert daemon.standing()["verdict"] == "ok"
    edit(path, "x = 2\n")
    daemon.wait_for("block")
    edit(path, GOOD)
    daemon.wait_for("ok")
    until(lambda: [row["kind"] for row in events(made, "drift", "heal")] == ["drift", "heal"], "both marks")


@needs_fanotify
def test_the_finding_says_since_when_and_by_whom(scene: tuple[Scene, Path], daemon: Daemon) -> None:
    made, path = scene
    edit(path, "x = 2\n")
    (finding,) = made.verify().document["findings"]
    assert finding["by"]["confidence"] == "observed" and finding["by"]["pid"] != os.getpid()
    assert str(path) in finding["by"]["cmdline"]
    assert abs(time.time() - _seconds(finding["since"])) < 60
    (drift,) = until(lambda: events(made, "drift"), "the mark")
    assert drift["by"]["cmdline"] == finding["by"]["cmdline"] and drift["at"] == finding["since"]


@needs_fanotify
def test_a_command_that_looks_for_itself_records_whom_the_daemon_saw(scene: tuple[Scene, Path], daemon: Daemon) -> None:
    """At once, before the daemon takes the change for over: the log has one entry for it, and that tells who."""
    made, path = scene
    for text, kind in (("x = 2\n", "drift"), (GOOD, "heal")):
        edit(path, text)
        assert made.verify("--full").code == (1 if kind == "drift" else 0)
        (entry,) = events(made, kind)
        assert entry["by"]["confidence"] == "observed" and str(path) in entry["by"]["cmdline"]
    time.sleep(1.5)  # the daemon's own turn comes, and finds it told
    assert [row["kind"] for row in events(made, "drift", "heal")] == ["drift", "heal"]


def _seconds(stamp: str) -> float:
    import calendar

    return calendar.timegm(time.strptime(stamp, "%Y-%m-%dT%H:%M:%SZ"))


def test_since_and_by_outlive_the_daemon(scene: tuple[Scene, Path]) -> None:
    made, path = scene
    with Daemon(made) as first:
        first.ready()
        edit(path, "x = 2\n")
        first.wait_for("block")
        until(lambda: events(made, "drift"), "the mark")
        before = first.status()["findings"]
        assert first.stop() == 0
    with Daemon(made) as second:
        assert second.ready().status()["findings"] == before
        second.stop()
    assert [row["kind"] for row in events(made, "drift", "heal", "daemon")] == [
        "daemon",
        "drift",
        "daemon",
        "daemon",
        "daemon",
    ]


def test_an_edit_while_no_daemon_ran_is_found_by_the_first_look(scene: tuple[Scene, Path]) -> None:
    made, path = scene
    path.write_text("x = 2\n")
    with Daemon(made) as running:
        (finding,) = running.ready().status()["findings"]
        assert finding["by"]["confidence"] == "not observed" and finding["by"]["reason"]


def test_a_burst_is_one_change(tmp_path: Path) -> None:
    made, path = pinned_file(tmp_path)
    made.write_policy(f'[[tree]]\npath = "{path.parent}"\ncheck = "full"\n')
    for number in range(300):
        (path.parent / f"f{number}.py").write_text("old")
    assert made.accept().code == 0
    code = "import sys\nfor n in range(300): open(f'{sys.argv[1]}/f{n}.py', 'w').write('new')"
    with Daemon(made) as running:
        running.ready()
        subprocess.run([sys.executable, "-S", "-c", code, str(path.parent)], check=True)
        running.wait_for("block")
        (drift,) = until(lambda: events(made, "drift"), "the mark")
        assert "300" in drift["message"]
        assert running.stop() == 0
    assert len(events(made, "drift")) == 1


def test_benign_acts_change_nothing(scene: tuple[Scene, Path], daemon: Daemon) -> None:
    made, path = scene
    for number in range(50):
        os.utime(path)
        path.read_bytes()
        (path.parent / f"other-{number}.log").write_text("not pinned")
    assert daemon.status()["verdict"] == "ok"
    assert events(made, "drift", "heal") == []


def test_bytes_that_change_under_the_same_row_are_found_by_the_full_read(tmp_path: Path) -> None:
    from lockd.disk import Disk

    path = tmp_path / "tree" / "f.bin"
    path.parent.mkdir()
    path.write_bytes(b"good")
    os.utime(path, (1, 1))
    time.sleep(0.1)  # older than the clock's grain
    disk = Disk()
    disk.tree(str(path.parent))
    first = disk.digests([str(path)])[str(path)]
    ((known, is_same, digest),) = disk.hashed_in(disk.folders()[0])
    assert known == str(path) and digest.hex() == first and is_same(path.stat())
    stamp = disk.tree(str(path.parent)).stamp
    disk.disprove(known, bytes(32))
    disk.new_look(())
    assert disk.tree(str(path.parent)).stamp != stamp
    assert [row[2].hex() for row in disk.hashed_in(disk.folders()[0])] == [
        first
    ]  # it was read again: these bytes are there


# -- verify


def test_verify_is_answered_by_the_daemon_and_says_so(scene: tuple[Scene, Path], daemon: Daemon) -> None:
    made, path = scene
    answer = made.verify()
    assert answer.code == 0 and answer.document["daemon"] is True and answer.document["look"] == "stat"
    path.write_text("x = 2\n")
    for _ in range(3):  # the answer is never older than the edit
        path.write_text("x = 3\n")
        assert made.verify().code == 1
        path.write_text(GOOD)
        assert made.verify().code == 0
    assert "by the daemon" in made.lockd("verify").out


@pytest.mark.parametrize("options", [("--full",), ("--trust-unmapped",)])
def test_verify_looks_itself_where_the_daemon_is_not_the_one_to_ask(
    scene: tuple[Scene, Path], daemon: Daemon, options: tuple[str, ...]
) -> None:
    answer = scene[0].verify(*options)
    assert answer.code == 0 and "daemon" not in answer.document


def test_the_launch_environment_is_the_clients(tmp_path: Path) -> None:
    made, path = pinned_file(tmp_path)
    made.write_policy(f'[[file]]\npath = "{path}"\n[env]\nPINNED = "locked"\n')
    assert made.accept(env={"PINNED": "a"}).code == 0
    with Daemon(made, env={"PINNED": "the daemon's own"}) as running:
        running.ready()
        good, bad = made.verify(env={"PINNED": "a"}), made.verify(env={"PINNED": "b"})
        assert good.code == 0 and good.document["daemon"] is True and good.document["launch"]
        assert bad.code == 1 and bad.facts == ["env:PINNED"]
        assert any(line.startswith("env") for line in running.status()["not_looked"])


def test_a_stopped_daemon_is_not_waited_for(scene: tuple[Scene, Path], daemon: Daemon) -> None:
    daemon.process.send_signal(signal.SIGSTOP)
    try:
        scene[1].write_text("x = 2\n")
        answer = scene[0].verify()
        assert answer.code == 1 and "daemon" not in answer.document
    finally:
        daemon.process.send_signal(signal.SIGCONT)
    daemon.wait_for("block")


def test_kill_and_start_again(scene: tuple[Scene, Path], daemon: Daemon) -> None:
    daemon.stop(signal.SIGKILL)
    scene[1].write_text("x = 2\n")
    assert "daemon" not in scene[0].verify().document  # its socket is still there, nobody listens
    with Daemon(scene[0]) as second:
        second.ready().wait_for("block")


@pytest.mark.slow
def test_two_hundred_edits_are_all_seen(scene: tuple[Scene, Path], daemon: Daemon) -> None:
    """Prints how long each took; the target is p99 ≤ 100 ms on an idle machine."""
    taken = []
    for number in range(200):
        before = daemon.standing()["environment"]
        started = time.monotonic()
        scene[1].write_text(f"x = {number + 2}\n")
        while daemon.standing()["environment"] == before:
            assert time.monotonic() < started + 30
            time.sleep(0.001)
        taken.append(time.monotonic() - started)
    taken.sort()
    print(f"edit to verdict: p50 {taken[100] * 1e3:.1f} ms, p99 {taken[197] * 1e3:.1f} ms")
    assert daemon.standing()["verdict"] == "block"


# -- policy and lock


def test_a_bad_policy_keeps_the_last_good_one_and_says_so(scene: tuple[Scene, Path], daemon: Daemon) -> None:
    made, _ = scene
    good = made.policy.read_text()
    made.policy.write_text("schema = 1\nname = [broken")
    daemon.wait_for("unknown")
    status = daemon.status()
    assert str(made.policy) in status["trouble"] and status["policy"]["name"] == "ct"
    assert made.verify().code == 2
    assert daemon.log("policy_trouble")
    made.policy.write_text(good)
    daemon.wait_for("ok")
    kept = [row["message"] for row in events(made, "daemon")]
    assert any("last good" in text for text in kept) and kept[-1] == "policy and lock are good again"


def test_a_policy_that_is_deleted_is_unknown(scene: tuple[Scene, Path], daemon: Daemon) -> None:
    made, _ = scene
    text = made.policy.read_text()
    made.policy.unlink()
    daemon.wait_for("unknown")
    made.policy.write_text(text)
    daemon.wait_for("ok")


def test_an_edited_policy_is_taken_up(scene: tuple[Scene, Path], daemon: Daemon) -> None:
    made, path = scene
    other = made.file("job/other.py")
    made.write_policy(f'[[file]]\npath = "{path}"\n[[file]]\npath = "{other}"\n')
    assert made.accept().code == 0
    until(lambda: str(other) in daemon.status()["watch"], "the new path to be watched")
    edit(other, "x = 2\n")
    daemon.wait_for("block")


def test_hangup_reloads(scene: tuple[Scene, Path], daemon: Daemon) -> None:
    looks = daemon.status()["looks"]["count"]
    daemon.process.send_signal(signal.SIGHUP)
    until(lambda: daemon.status()["looks"]["count"] > looks + 1, "another look")
    assert daemon.standing()["verdict"] == "ok"


def test_an_accept_is_taken_up_and_heals_nothing(scene: tuple[Scene, Path], daemon: Daemon) -> None:
    made, path = scene
    edit(path, "x = 2\n")
    daemon.wait_for("block")
    assert made.accept().code == 0
    daemon.wait_for("ok")
    assert daemon.standing()["generation"] == 2
    assert daemon.stop() == 0
    assert [row["kind"] for row in events(made, "drift", "heal", "accept")] == ["accept", "drift", "accept"]


def test_a_broken_lock_is_unknown(scene: tuple[Scene, Path], daemon: Daemon) -> None:
    made, _ = scene
    good = made.lock.read_bytes()
    made.lock.write_bytes(good.replace(b"known good", b"other words"))
    daemon.wait_for("unknown")
    made.lock.write_bytes(good)
    daemon.wait_for("ok")


def test_a_policy_that_is_bad_from_the_start_ends_it(tmp_path: Path) -> None:
    made, _ = pinned_file(tmp_path, "nonsense = 1")
    with Daemon(made) as running:
        assert running.process.wait(timeout=30) == 2
        assert "nonsense" in running.log_path.read_text()


def test_a_second_daemon_is_refused(scene: tuple[Scene, Path], daemon: Daemon) -> None:
    with Daemon(scene[0]) as second:
        assert second.process.wait(timeout=30) == 2
    assert "runs already" in daemon.log_path.read_text() and str(daemon.process.pid) in daemon.log_path.read_text()
    assert daemon.standing()["verdict"] == "ok"


def test_it_stops_when_told(scene: tuple[Scene, Path], daemon: Daemon) -> None:
    assert daemon.stop(signal.SIGTERM) == 0
    assert not daemon.socket.exists()
    assert [row["message"].split(":")[0] for row in events(scene[0], "daemon")] == ["started", "stopped"]


# -- clients


GARBAGE = (
    b"GET / HTTP/1.0\r\n\r\n",
    b"\0\0\0\0",
    b"\xff\xff\xff\xff",
    b"\0\0\0\x02{}",
    b"\0\0\0\x04null",
    protocol.encode({"ask": "no such thing"}),
    protocol.encode({"ask": "verify"}),
    protocol.encode({"ask": "verify", "launch": {"environ": [], "cwd": 1, "argv": None, "source": {}}}),
    protocol.encode({"ask": "launch", "launch": "x"}),
    (2).to_bytes(4, "big") + b"[" * 2,
    (100_000).to_bytes(4, "big") + b"[" * 100_000,
    protocol.encode({"ask": "standing"}).replace(b'"v": 1', b'"v": 9'),
)


def test_garbage_is_refused_and_harms_nobody(daemon: Daemon) -> None:
    for data in GARBAGE:
        with daemon.connect() as connection:
            connection.sendall(data)
            answer = daemon.hear(connection)
            assert answer.get("direct") is True and answer["error"]["what"], data[:40]
        assert daemon.standing()["verdict"] == "ok"


def test_slow_and_half_messages_are_dropped(daemon: Daemon) -> None:
    slow = [daemon.connect() for _ in range(20)]
    for number, connection in enumerate(slow):
        connection.sendall(b"\0\0\1\0{"[: number % 6])
    assert daemon.standing()["verdict"] == "ok"
    for connection in slow:
        assert connection.recv(10) == b""  # hung up on
        connection.close()
    until(lambda: daemon.status()["daemon"]["clients"] == 1, "everybody else to be gone")


def test_clients_that_leave_early_are_forgotten(daemon: Daemon) -> None:
    for _ in range(50):
        with daemon.connect() as connection:
            connection.sendall(protocol.encode({"ask": "status"}))
    until(lambda: daemon.status()["daemon"]["clients"] == 1, "everybody else to be gone")


def test_hundreds_of_clients_are_answered_rightly(scene: tuple[Scene, Path], daemon: Daemon) -> None:
    from lockd import client
    from lockd.look import Launch

    made, path = scene
    launch = Launch({"HOME": "/root"}, "/", (), "test")
    request = client.question(str(made.policy), launch, commands=True, json=True)
    request["state"] = None
    path.write_text("x = 2\n")
    wanted = min(500, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 2)
    connections: list[socket.socket] = [daemon.connect() for _ in range(wanted)]
    answers: list[dict[str, Any]] = []
    taken: list[float] = []

    def converse(some: list[socket.socket]) -> None:
        started = time.monotonic()
        for connection in some:
            connection.sendall(protocol.encode(request))
        for connection in some:
            answers.append(daemon.hear(connection))
            taken.append(time.monotonic() - started)
            connection.close()

    threads = [threading.Thread(target=converse, args=(connections[start::10],)) for start in range(10)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    print(f"{wanted} clients: the last answer after {max(taken):.2f} s")
    assert [answer["answer"]["exit"] for answer in answers] == [1] * wanted
    assert all(json.loads(answer["answer"]["text"])["findings"] for answer in answers[:5])


def test_descriptors_do_not_grow(scene: tuple[Scene, Path], daemon: Daemon) -> None:
    def count() -> int:
        return len(os.listdir(f"/proc/{daemon.process.pid}/fd"))

    scene[0].verify()
    before = count()
    for number in range(30):
        scene[1].write_text(f"x = {number}\n")
        daemon.status()
        with daemon.connect() as connection:
            connection.sendall(b"rubbish!")
    until(lambda: count() <= before + 1, "descriptors to be closed")


def test_a_long_runtime_folder_has_a_socket_all_the_same(tmp_path: Path) -> None:
    made, _ = pinned_file(tmp_path / ("long" * 25))
    assert made.accept().code == 0
    with Daemon(made) as running:
        running.ready()
        assert made.verify().document["daemon"] is True


def test_a_hostile_runtime_folder_is_not_used(scene: tuple[Scene, Path]) -> None:
    runtime = scene[0].root / "run"
    runtime.mkdir()
    runtime.chmod(0o777)
    with Daemon(scene[0]) as running:
        assert running.process.wait(timeout=30) == 3
        assert "others may write" in running.log_path.read_text()


@pytest.mark.parametrize("member", [True, False])
def test_the_policys_group_may_ask_and_nobody_else(tmp_path: Path, member: bool) -> None:
    if os.geteuid() != 0 or shutil.which("setpriv") is None:
        pytest.skip("needs root and setpriv, to become somebody else")
    group = grp.getgrgid(1).gr_name
    made, path = pinned_file(tmp_path)
    made.write_policy(f'[launch]\noverride_group = "{group}"\n[[file]]\npath = "{path}"\n')
    assert made.accept().code == 0
    who = ("setpriv", "--reuid=65534", f"--regid={1 if member else 65534}", "--clear-groups")
    can_read = ("--inh-caps=+dac_read_search", "--ambient-caps=+dac_read_search")  # the scene lies in a closed folder
    code = "import os, sys; from lockd import client; print(client.ask(sys.argv[1], {'ask': 'standing'}))\n"
    code += "from lockd.look import Launch; os.environ.pop('LOCKD_STATE')\n"
    code += "print(client.ask(sys.argv[1], client.question(sys.argv[1], Launch({}), json=True)))"
    with Daemon(made, prefix=("setpriv", "--", "sh", "-c", 'umask 077; exec "$@"', "sh")) as running:
        running.ready()
        env = {
            "LOCKD_RUNTIME": str(made.root / "run"),
            "LOCKD_STATE": "/nonexistent",
            "PYTHONPATH": str(ROOT),
            "HOME": "/",
        }
        argv = [*who, *can_read, "--", sys.executable, "-c", code, str(made.policy)]
        done = subprocess.run(argv, env=env, capture_output=True, text=True, check=True)
        standing, verified = done.stdout.splitlines()
        if member:
            assert "'verdict': 'ok'" in standing and '"verdict": "ok"' in verified
        else:
            assert (standing, verified) == ("None", "None")


def test_another_users_daemon_is_not_believed(scene: tuple[Scene, Path]) -> None:
    """Somebody else listens where the daemon would: the client looks for itself."""
    if os.geteuid() != 0:
        pytest.skip("needs root, to become somebody else")
    made, path = scene
    place = Path(protocol.folder(str(made.root / "run"), str(made.policy)))
    place.mkdir(parents=True)
    for folder in (*place.parents[: len(place.parts) - len(made.root.parts) + 3], place):
        folder.chmod(0o755 | folder.stat().st_mode & 0o7777)
    place.chmod(0o777)
    lie = protocol.encode({"answer": {"verdict": "ok", "exit": 0, "text": "a lie", "locked": True}})
    code = (
        "import os, socket, sys; os.setuid(65534); s = socket.socket(socket.AF_UNIX); s.bind(sys.argv[1]); s.listen()\n"
    )
    code += "print(1, flush=True); c, _ = s.accept(); c.sendall(bytes.fromhex(sys.argv[2]))"
    argv = [sys.executable, "-S", "-c", code, "socket", lie.hex()]
    liar = subprocess.Popen(argv, cwd=place, stdout=subprocess.PIPE)
    try:
        assert liar.stdout and liar.stdout.readline() == b"1\n"
        path.write_text("x = 2\n")
        assert made.verify().code == 1
    finally:
        liar.kill()
        liar.communicate()


# -- what goes wrong around it


def test_a_locked_store_holds_up_the_history_alone(scene: tuple[Scene, Path], daemon: Daemon) -> None:
    made, path = scene
    (store,) = made.state.glob("*/store.sqlite")
    until(lambda: events(made, "daemon"), "the start to be recorded")
    connection = sqlite3.connect(store, isolation_level=None)
    connection.execute("BEGIN EXCLUSIVE")
    try:
        edit(path, "x = 2\n")
        daemon.wait_for("block")
        assert daemon.status()["verdict"] == "block"
    finally:
        connection.execute("ROLLBACK")
        connection.close()
    until(lambda: events(made, "drift"), "the mark, once the store is free", 60)


def test_a_corrupt_store_is_moved_aside(scene: tuple[Scene, Path], daemon: Daemon) -> None:
    made, path = scene
    until(lambda: events(made, "daemon"), "the start to be recorded")
    (store,) = made.state.glob("*/store.sqlite")
    for name in (store, store.with_name("store.sqlite-wal"), store.with_name("store.sqlite-shm")):
        if name.exists():
            name.write_bytes(b"rubbish" * 1000)
    edit(path, "x = 2\n")
    daemon.wait_for("block")
    until(lambda: events(made, "drift"), "the mark in a new store")


def test_the_state_folder_taken_away(scene: tuple[Scene, Path], daemon: Daemon) -> None:
    made, path = scene
    made.state.rename(made.root / "gone")
    edit(path, "x = 2\n")
    daemon.wait_for("block")
    edit(path, GOOD)
    daemon.wait_for("ok")


def test_a_watched_folder_deleted_and_made_anew(scene: tuple[Scene, Path], daemon: Daemon) -> None:
    made, path = scene
    path.unlink()
    path.parent.rmdir()
    daemon.wait_for("block")
    made.file("job/model.py", GOOD)
    daemon.wait_for("ok")
    edit(path, "x = 2\n")
    daemon.wait_for("block")
