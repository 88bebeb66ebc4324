"""The kernel's bytes, recorded from real events: parsing is pure and never reads beyond its buffer."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockd.watch import fanotify, inotify
from lockd.watch.mounts import blindness, over, parse, within

# `echo > a.py; mkdir sub; mv a.py b.py` by fanotify, REPORT_FID|DIR_FID|NAME|PIDFD; pidfds set to "process gone"
_GONE = "04000800ffffffff"
_FOLDER = "32e3db2c783e5c4a0800000001000000ab20210086971eaf"
FANOTIFY = bytes.fromhex(
    f"44000000030018000001000000000000ffffffff2944000002002400{_FOLDER}612e707900000000{_GONE}"
    f"60000000030018000a00000000000000ffffffff2944000002002400{_FOLDER}612e707900000000"
    f"01001c0032e3db2c783e5c4a0800000001000000ac202100f23f6831{_GONE}"
    f"40000000030018000001004000000000ffffffff2a44000002002000{_FOLDER}73756200{_GONE}"
    f"44000000030018004000000000000000ffffffff2b44000002002400{_FOLDER}612e707900000000{_GONE}"
    f"44000000030018008000000000000000ffffffff2b44000002002400{_FOLDER}622e707900000000{_GONE}"
)
# the same of inotify, with `rmdir sub` for mkdir
INOTIFY = bytes.fromhex(
    "01000000000100000000000010000000612e7079000000000000000000000000"
    "01000000020000000000000010000000612e7079000000000000000000000000"
    "01000000080000000000000010000000612e7079000000000000000000000000"
    "0100000000020040000000001000000073756200000000000000000000000000"
    "01000000400000005ab7000010000000612e7079000000000000000000000000"
    "01000000800000005ab7000010000000622e7079000000000000000000000000"
)


def test_fanotify_tells_folder_name_child_and_pid() -> None:
    events = list(fanotify.parse(FANOTIFY))
    assert [(event.kind, event.name, event.folder, event.gone) for event in events] == [
        ("created", "a.py", False, False),
        ("changed", "a.py", False, False),
        ("created", "sub", True, False),
        ("moved", "a.py", False, True),
        ("moved", "b.py", False, False),
    ]
    assert len({event.key for event in events}) == 1
    assert [event.child is not None for event in events] == [False, True, False, False, False]
    assert [event.pid for event in events] == [0x4429, 0x4429, 0x442A, 0x442B, 0x442B]
    assert all(event.pidfd < 0 for event in events)


def test_inotify_tells_names_and_kinds() -> None:
    events = list(inotify.parse(INOTIFY))
    assert [(event.kind, event.name, event.folder) for event in events] == [
        ("created", "a.py", False),
        ("changed", "a.py", False),
        ("changed", "a.py", False),
        ("removed", "sub", True),
        ("moved", "a.py", False),
        ("moved", "b.py", False),
    ]
    assert {event.key for event in events} == {("i", 1)}
    assert all(event.pid is None for event in events)


@pytest.mark.parametrize("cut", range(1, len(FANOTIFY)))
def test_cut_fanotify_bytes_are_an_overflow_or_fewer_events_never_an_error(cut: int) -> None:
    events = list(fanotify.parse(FANOTIFY[:cut]))
    whole = list(fanotify.parse(FANOTIFY))
    told = [event for event in events if event.kind != "overflow"]
    assert told == whole[: len(told)]
    assert len(told) < len(whole)
    boundary = cut in (68, 164, 228, 296)
    assert ("overflow" in {event.kind for event in events}) is not boundary


@given(st.binary(max_size=300))
def test_garbage_never_breaks_the_parsers(garbage: bytes) -> None:
    assert len(list(inotify.parse(garbage))) <= len(garbage) * 9
    assert len(list(fanotify.parse(garbage))) <= len(garbage) * 6


@given(st.lists(st.tuples(st.integers(0, len(FANOTIFY) - 1), st.integers(0, 255)), max_size=8))
def test_recorded_bytes_with_mistakes_never_break_the_parser(mistakes: list[tuple[int, int]]) -> None:
    broken = bytearray(FANOTIFY)
    for place, value in mistakes:
        broken[place] = value
    told = list(fanotify.parse(bytes(broken)))
    assert told and all(len(event.name) <= len(FANOTIFY) for event in told)


def test_a_length_that_lies_is_an_overflow() -> None:
    lying = bytearray(FANOTIFY[:68])
    struct.pack_into("=H", lying, 24 + 2, 0xFFF0)  # the info record claims more than its event
    assert [event.kind for event in fanotify.parse(bytes(lying))] == ["overflow"]
    handle = bytearray(FANOTIFY[:68])
    struct.pack_into("=I", handle, 24 + 4 + 8, 120)  # the handle claims more than its record
    assert [event.kind for event in fanotify.parse(bytes(handle))] == ["overflow"]
    name = bytearray(INOTIFY[:32])
    struct.pack_into("I", name, 12, 4000)
    assert [event.kind for event in inotify.parse(bytes(name))] == ["overflow"]


def test_queue_overflow_of_both() -> None:
    assert [event.kind for event in inotify.parse(struct.pack("iIII", -1, 0x4000, 0, 0))] == ["overflow"]
    assert [e.kind for e in fanotify.parse(struct.pack("=IBBHQii", 24, 3, 0, 24, 0x4000, -1, 0))] == ["overflow"]


MOUNTINFO = r"""22 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw
30 22 0:40 / /data\040sets rw,relatime shared:9 master:1 - nfs4 server:/x rw,vers=4.2
31 22 0:41 / /mnt/s3 rw - fuse.rclone remote: rw
32 22 0:42 / /var/lib/docker/overlay2/x/merged rw - overlay overlay rw,lowerdir=/l
33 22 254:0 /srv/shared /root/shared rw - ext4 /dev/vda rw
34 33 0:50 / /root/shared rw - tmpfs tmpfs rw
rubbish
"""


def test_the_deepest_and_latest_mount_decides() -> None:
    mounts = parse(MOUNTINFO)
    assert len(mounts) == 6
    kinds = {
        path: getattr(over(mounts, path), "kind", None) for path in ("/x", "/data sets/a", "/data", "/root/shared/f")
    }
    assert kinds == {"/x": "ext4", "/data sets/a": "nfs4", "/data": "ext4", "/root/shared/f": "tmpfs"}


@pytest.mark.parametrize("kind", ["nfs4", "cifs", "fuse.sshfs", "fuse", "9p", "overlay", "proc"])
def test_file_systems_that_hide_changes_have_a_reason(kind: str) -> None:
    reason, worth_watching = blindness(kind)
    assert kind in reason and "raise no event" in reason
    assert worth_watching == (kind == "overlay")


@pytest.mark.parametrize("kind", ["ext4", "xfs", "zfs", "btrfs", "tmpfs"])
def test_local_file_systems_are_watched(kind: str) -> None:
    assert blindness(kind) == ("", True)


def test_within_goes_by_whole_names() -> None:
    assert within("/a/b", "/a") and within("/a", "/a") and within("/a", "/")
    assert not within("/ab", "/a") and not within("/", "/a")
