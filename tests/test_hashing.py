"""Hashing: right digests of regular files only, trusted only where nothing could change them unseen."""

from __future__ import annotations

import hashlib
import mmap
import os
import signal
import socket
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from lockd import pool
from lockd.hashing import GRAIN, Hashed, hash_file, hash_files, read_file, remote_devices

pytestmark = pytest.mark.alone


def settle() -> None:
    """Let file times fall behind the clock's grain."""
    time.sleep(2 * GRAIN / 1e9)


def trusted(path: Path) -> bool:
    found = hash_file(str(path), remote_devices())
    assert isinstance(found, Hashed), found
    assert found.digest == hashlib.sha256(path.read_bytes()).digest()
    return found.trusted


@pytest.mark.parametrize("size", [0, 1, 4096, (1 << 20) - 1, 1 << 20, (1 << 20) + 1, 3_500_000])
def test_digest_is_that_of_all_bytes(tmp_path: Path, size: int) -> None:
    path = tmp_path / "file"
    path.write_bytes(os.urandom(size))
    settle()
    assert trusted(path)


def test_a_file_just_written_is_not_trusted(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"1")
    assert not trusted(path)
    settle()
    assert trusted(path)


def test_a_file_open_for_writing_is_not_trusted(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"1")
    with path.open("r+b"):
        settle()
        assert not trusted(path)
    assert trusted(path)


def test_a_file_mapped_for_writing_is_not_trusted(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"1" * mmap.PAGESIZE)
    with path.open("r+b") as file:
        mapping = mmap.mmap(file.fileno(), 0)
    settle()
    assert not trusted(path)
    mapping.close()
    assert trusted(path)


def test_nothing_is_trusted_where_mounts_cannot_be_read_or_are_remote(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"1")
    settle()
    for remote in (None, frozenset([path.stat().st_dev])):
        found = hash_file(str(path), remote)
        assert isinstance(found, Hashed) and not found.trusted


def make_socket(path: str) -> None:
    os.chdir(os.path.dirname(path))  # a socket's path is short
    with socket.socket(socket.AF_UNIX) as end:
        end.bind(os.path.basename(path))


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (os.mkfifo, "a FIFO"),
        (make_socket, "a socket"),
        (os.mkdir, "a folder"),
        (lambda path: os.symlink("/etc/passwd", path), "a link"),
        (lambda path: os.mknod(path, 0o020600, os.makedev(1, 5)), "a device"),
        (lambda path: None, "not there"),
    ],
)
def test_what_is_no_regular_file_is_told_and_not_opened(
    tmp_path: Path, make: Callable[[str], None], reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    path = str(tmp_path / "odd")
    try:
        make(path)
    except PermissionError:
        pytest.skip("making a device needs root")

    def opened(*args: object) -> int:
        raise AssertionError("opened")

    monkeypatch.setattr(os, "open", opened)
    found = hash_file(path, None)
    assert isinstance(found, str) and reason in found


def test_a_file_that_changes_all_the_while_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"1")
    read = os.read

    def read_and_append(descriptor: int, size: int) -> bytes:
        with path.open("ab") as file:
            file.write(b"2")
        return read(descriptor, size)

    monkeypatch.setattr(os, "read", read_and_append)
    assert hash_file(str(path), None) == "changes while it is read"


def test_access_time_stays(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"1")
    os.utime(path, (1, 10**9))
    hash_file(str(path), None)
    assert path.stat().st_atime == 1


def test_reading_is_bounded(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"12345")
    found = read_file(str(path), 5, None)
    assert not isinstance(found, str) and found[0] == b"12345"
    assert read_file(str(path), 4, None) == "larger than 4 bytes"


def test_a_lease_that_is_broken_does_not_kill(tmp_path: Path) -> None:
    """Somebody opens for writing just while the lease is held: the signal must be one that does nothing."""
    path = tmp_path / "file"
    path.write_bytes(b"1")
    code = """
        import fcntl, os, sys, threading, time
        from lockd import hashing
        real, seen = fcntl.fcntl, []
        def slow(descriptor, command, argument=0):
            result = real(descriptor, command, argument)
            if command == fcntl.F_SETLEASE and argument == fcntl.F_RDLCK:
                try:
                    os.open(sys.argv[1], os.O_WRONLY | os.O_NONBLOCK)
                except BlockingIOError:
                    seen.append("broken")
            return result
        fcntl.fcntl = slow
        found = hashing.hash_file(sys.argv[1], hashing.remote_devices())
        print(type(found).__name__, *seen)
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code), str(path)], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout.strip()) == (0, "Hashed broken"), done.stderr


def many(tmp_path: Path, sizes: list[int]) -> list[tuple[str, int]]:
    files = []
    for number, size in enumerate(sizes):
        path = tmp_path / f"{number:05}"
        path.write_bytes(os.urandom(size))
        files.append((str(path), size))
    return files


def check_all(files: list[tuple[str, int]]) -> None:
    results = dict(hash_files(files, None))
    assert sorted(results) == list(range(len(files)))
    for index, (path, _) in enumerate(files):
        found = results[index]
        assert isinstance(found, Hashed)
        assert found.digest == hashlib.sha256(Path(path).read_bytes()).digest()


SIZES = [0, 10, 5_000_000, 3, 2_000_000, 9_000_000] + [100] * 300


def test_many_files_in_processes(tmp_path: Path) -> None:
    check_all(many(tmp_path, SIZES))


def test_files_that_have_the_digest_expected_are_left_out_and_no_others(tmp_path: Path) -> None:
    files = many(tmp_path, SIZES)
    digests = [hashlib.sha256(Path(path).read_bytes()).digest() for path, _ in files]
    settle()
    Path(files[7][0]).write_bytes(b"x" * 100)  # other bytes
    Path(files[9][0]).touch()  # the same bytes, too young to be trusted
    digests[3] = b""  # nobody knew it
    told = dict(hash_files(files, remote_devices(), None, digests.__getitem__))
    assert {3, 7} <= told.keys() <= {3, 7, 9}
    assert len(dict(hash_files(files, None, None, digests.__getitem__))) == len(files)  # none is trusted


def test_many_files_in_threads_while_another_thread_lives(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_fork() -> int:
        raise AssertionError("forked beside a thread")

    monkeypatch.setattr(os, "fork", no_fork)
    stop = threading.Event()
    other = threading.Thread(target=stop.wait)
    other.start()
    try:
        check_all(many(tmp_path, SIZES))
    finally:
        stop.set()
        other.join()


def test_no_file_is_lost_with_a_killed_child(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = many(tmp_path, SIZES)
    parent, deaths = os.getpid(), tmp_path / "deaths"
    from lockd import hashing

    real = hashing.hash_file

    def deadly(path: str, remote: frozenset[int] | None) -> Hashed | str:
        if os.getpid() != parent and path.endswith("00005"):
            deaths.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return real(path, remote)

    monkeypatch.setattr(hashing, "hash_file", deadly)
    monkeypatch.setattr(pool, "processors", lambda: 2)
    check_all(files)
    assert deaths.exists(), "no child was killed: the test proved nothing"


def test_progress_ends_at_the_total(tmp_path: Path) -> None:
    told: list[tuple[int, int]] = []
    list(hash_files(many(tmp_path, SIZES), None, lambda done, total: told.append((done, total))))
    assert told[-1] == (sum(SIZES), sum(SIZES))
    assert told == sorted(told)


def test_an_interrupt_ends_the_children(tmp_path: Path) -> None:
    """^C in the parent alone, while its children hash: none of them lives on."""
    code = """
        import os, signal, sys, time
        from lockd import pool
        def work(chunk):
            open(os.path.join(sys.argv[1], str(os.getpid())), "w").close()
            time.sleep(60)
        def interrupt(*_):
            raise KeyboardInterrupt
        signal.signal(signal.SIGALRM, interrupt)
        signal.setitimer(signal.ITIMER_REAL, 0.5)
        try:
            list(pool.scatter(4, work, 2))
        except KeyboardInterrupt:
            print("interrupted")
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code), str(tmp_path)], capture_output=True, text=True, check=False
    )
    assert done.stdout.strip() == "interrupted", done.stderr
    children = [int(name) for name in os.listdir(tmp_path)]
    assert children and not any(Path(f"/proc/{pid}").exists() for pid in children)


def test_an_error_in_a_child_is_raised_here() -> None:
    def work(chunk: int) -> int:
        return 1 // (chunk - 3)

    with pytest.raises(ZeroDivisionError):
        list(pool.scatter(8, work, 2))


def test_every_chunk_comes_once(monkeypatch: pytest.MonkeyPatch) -> None:
    for workers in (1, 2, 5):
        assert dict(pool.scatter(100, lambda chunk: chunk * chunk, workers)) == {n: n * n for n in range(100)}
    assert list(pool.scatter(0, lambda chunk: chunk)) == []


def test_children_leave_no_zombies_and_no_descriptors() -> None:
    before = os.listdir("/proc/self/fd")
    list(pool.scatter(10, lambda chunk: b"x" * 100_000, 3))
    assert len(os.listdir("/proc/self/fd")) == len(before)
    with pytest.raises(ChildProcessError):
        os.waitpid(-1, os.WNOHANG)
