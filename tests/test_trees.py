"""Facts of trees: names, types and sizes; contents where asked; growth; and what could not be read."""

from __future__ import annotations

import os
import socket
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lockd.facts import set_digest
from lockd.memo import StateMemo
from lockd.probes import trees
from lockd.rules import Policy, TreeRule
from tests.probing import blind, drift, fact, facts, looking, policy, seen, unknown, words


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Twenty shards in two folders."""
    for number in range(20):
        path = tmp_path / "data" / f"part-{number % 2}" / f"shard-{number:04}.jsonl"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(bytes([number]) * 512)
    return tmp_path / "data"


def pinned(path: Path | str, **rule: object) -> Policy:
    return policy(tree=(TreeRule(str(path), **rule),))  # type: ignore[arg-type]


def overwrite(path: Path) -> None:
    """Other bytes, same size and times."""
    status = path.stat()
    path.write_bytes(b"\xfe" * status.st_size)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


def test_names_types_and_sizes_are_the_fact(data: Path) -> None:
    (data / "latest").symlink_to("part-1")
    found = fact(pinned(data), f"tree:{data}")
    assert {name: found.attributes[name] for name in ("files", "folders", "bytes")} == {
        "files": 20,
        "folders": 2,
        "bytes": 20 * 512,
    }
    assert found.told["links"] == 1 and found.tokens is None
    assert set(found.attributes) | set(found.told) <= set(trees.ATTRIBUTES["tree"])


def test_growth_under_exact_is_one_finding_that_counts(data: Path) -> None:
    held, before = pinned(data), seen(looking(pinned(data)))
    for number in range(500):
        (data / f"more-{number}").write_bytes(b"x")
    with (data / "part-1" / "shard-0003.jsonl").open("ab") as shard:
        shard.write(b"more")
    (line,) = words(held, before)
    assert "1 changed, 500 new" in line and "20 → 520 files" in line and "10,240 → 10,744 bytes" in line


def test_times_and_same_size_contents_are_no_drift_under_stat(data: Path) -> None:
    held, before = pinned(data), facts(pinned(data))
    os.utime(data / "part-0" / "shard-0000.jsonl", (1, 1))
    overwrite(data / "part-1" / "shard-0001.jsonl")
    assert drift(held, before) == []


def test_under_full_the_contents_count(data: Path) -> None:
    held, before = pinned(data, check="full"), seen(looking(pinned(data, check="full")))
    overwrite(data / "part-1" / "shard-0001.jsonl")
    (line,) = words(held, before)
    assert "1 changed: part-1/shard-0001.jsonl" in line
    (data / "part-1" / "shard-0001.jsonl").write_bytes(b"\x01" * 512)
    assert drift(held, before[0]) == []


def test_a_sample_holds_the_largest_files_and_full_and_plain_looks_agree(data: Path) -> None:
    big = data / "part-0" / "big"
    big.write_bytes(b"b" * 100_000)
    held, before = pinned(data, check="sample"), facts(pinned(data, check="sample"))
    assert drift(held, before, full=True) == []
    read = fact(held, f"tree:{data}").told["read"]
    assert isinstance(read, int) and trees.LARGEST <= read < 20
    overwrite(big)
    assert [one.change for one in drift(held, before)] == ["changed"]


def test_a_sample_of_a_growing_tree_stays_that_of_its_locked_files(data: Path) -> None:
    for number in range(200):
        (data / f"file-{number}").write_bytes(b"x" * 100)
    held = pinned(data, check="sample", change="grow")
    before = facts(held)
    read = fact(held, f"tree:{data}").told["read"]
    assert isinstance(read, int) and 0 < read < 60
    (data / "larger-than-all").write_bytes(b"y" * 100_000)
    assert drift(held, before) == []


def test_a_full_look_reads_what_a_sample_leaves_out(data: Path) -> None:
    held = pinned(data, check="sample")
    left_out = next(path for path in sorted(data.rglob("shard*")) if str(path.relative_to(data)) not in sampled(data))
    left_out.chmod(0)
    with blind():
        fact(held, f"tree:{data}")
        assert "ermission denied" in unknown(held, f"tree:{data}", full=True).reason


def sampled(data: Path) -> set[str]:
    """The paths that the manifest of a sample gives a sha256 for."""
    manifest = seen(looking(pinned(data, check="sample")))[1][f"tree:{data}"]
    return {path for path, word in manifest.items() if len(word) == 64}


def test_new_entries_under_grow_are_no_drift_lost_and_resized_ones_are(data: Path) -> None:
    held, before = pinned(data, change="grow"), seen(looking(pinned(data, change="grow")))
    (data / "part-2").mkdir()
    (data / "part-2" / "shard-0020.jsonl").write_bytes(b"new")
    assert drift(held, before[0]) == []
    (data / "part-0" / "shard-0002.jsonl").unlink()
    (data / "part-0" / "shard-0004.jsonl").write_bytes(b"short")
    (line,) = words(held, before)
    assert "1 changed, 1 gone" in line and " new" not in line and "shard-0002.jsonl" in line


def test_grow_without_manifests_still_counts_what_was_lost(data: Path) -> None:
    held, before = pinned(data, change="grow"), facts(pinned(data, change="grow"))
    (data / "part-0" / "shard-0002.jsonl").unlink()
    (one,) = drift(held, before)
    assert "1 of 22 names changed or gone" in trees.word(one)


def test_present_asks_for_a_folder_and_nothing_else(data: Path) -> None:
    held, before = pinned(data, change="present"), facts(pinned(data, change="present"))
    (data / "new").write_text("x")
    (data / "part-0" / "shard-0000.jsonl").unlink()
    assert drift(held, before) == []
    data.rename(data.with_name("moved"))
    assert [one.change for one in drift(held, before)] == ["missing"]


def test_a_missing_root_is_absent_and_a_file_in_its_place_is_changed(data: Path) -> None:
    held, before = pinned(data), facts(pinned(data))
    data.rename(data.with_name("moved"))
    assert fact(held, f"tree:{data}").absent
    data.write_text("not a folder")
    (one,) = drift(held, before)
    assert one.change == "changed" and trees.word(one) == f"{data} was a folder, is a file"


def test_a_root_that_is_a_link_is_followed_and_its_target_counts(data: Path) -> None:
    link = data.with_name("current")
    link.symlink_to(data)
    held, before = pinned(link), facts(pinned(link))
    assert fact(held, f"tree:{link}").attributes["files"] == 20
    copy = data.with_name("copy")
    subprocess.run(["cp", "-a", str(data), str(copy)], check=True)
    link.unlink()
    link.symlink_to(copy)
    (one,) = drift(held, before)
    assert set(one.attributes) == {"target"} and f"link to {data} → {copy}" in trees.word(one)


def test_links_count_by_what_they_say_and_are_not_followed(data: Path) -> None:
    (data / "latest").symlink_to("part-0")
    (data / "outside").symlink_to("/etc")
    held, before = pinned(data), facts(pinned(data))
    assert fact(held, f"tree:{data}").attributes["files"] == 20
    (data / "latest").unlink()
    (data / "latest").symlink_to("part-1")
    assert [set(one.attributes) for one in drift(held, before)] == [{"digest"}]


def test_exclude_leaves_out_names_and_whole_folders(data: Path) -> None:
    held = pinned(data, exclude=("**/.ipynb_checkpoints/**", "wandb/**", "*.log"))
    before = facts(held)
    for name in ("part-0/.ipynb_checkpoints/x", "wandb/run/1", "a.log", ".ipynb_checkpoints/y"):
        (data / name).parent.mkdir(parents=True, exist_ok=True)
        (data / name).write_text("x")
    assert drift(held, before) == []


def test_an_unreadable_part_makes_the_tree_unknown_never_smaller(data: Path) -> None:
    (data / "part-1").chmod(0)
    try:
        with blind():
            for change in ("exact", "grow"):
                assert "part-1: " in unknown(pinned(data, change=change), f"tree:{data}").reason
    finally:
        (data / "part-1").chmod(0o755)


def test_fifo_socket_device_deep_folders_and_odd_names_neither_hang_nor_break(data: Path) -> None:
    os.mkfifo(data / "fifo")
    if os.geteuid() == 0:
        os.mknod(data / "device", stat.S_IFBLK | 0o600, os.makedev(7, 250))
    here = os.getcwd()
    os.chdir(data)
    try:
        with socket.socket(socket.AF_UNIX) as server:
            server.bind("socket")
        for _ in range(300):
            os.mkdir("d")
            os.chdir("d")
        Path("deepest").write_text("x")
    finally:
        os.chdir(here)
    for name in (b"caf\xe9\xff", b"two\nlines", b"=", b" ", b"n" * 255, "\u202ex.exe".encode()):
        Path(os.fsdecode(os.fsencode(data) + b"/" + name)).write_bytes(b"old")
    held = pinned(data, check="full")
    before = seen(looking(held))
    found = fact(held, f"tree:{data}")
    assert found.attributes["folders"] == 302 and found.attributes["files"] == 27
    (Path(os.fsdecode(os.fsencode(data) + b"/two\nlines"))).write_bytes(b"new")
    (line,) = words(held, before)
    assert "two\\nlines" in line and line.isprintable()


def test_a_file_that_became_a_fifo_is_drift(data: Path) -> None:
    held, before = pinned(data, check="full"), facts(pinned(data, check="full"))
    path = data / "part-0" / "shard-0000.jsonl"
    path.unlink()
    os.mkfifo(path)
    assert [one.change for one in drift(held, before)] == ["changed"]


def test_the_memo_gives_the_same_fact_and_never_hides_a_change(data: Path, tmp_path: Path) -> None:
    held = pinned(data, check="full")
    state = {"cache": str(tmp_path / "state"), "memo": StateMemo(str(tmp_path / "memo"))}
    first = facts(held, **state)
    assert dict(facts(held, **state)) == dict(first) == dict(facts(held))
    overwrite(data / "part-0" / "shard-0000.jsonl")
    assert [one.change for one in drift(held, first, **state)] == ["changed"]
    assert [one.change for one in drift(held, first, full=True, **state)] == ["changed"]
    assert dict(facts(pinned(data), **state)) != dict(first), "another check is another fact"


def test_a_full_look_reads_again_what_the_memo_knows(data: Path, tmp_path: Path) -> None:
    held = pinned(data, check="sample")
    state = {"cache": str(tmp_path / "state"), "memo": StateMemo(str(tmp_path / "memo"))}
    facts(held, **state)
    left_out = next(path for path in sorted(data.rglob("shard*")) if str(path.relative_to(data)) not in sampled(data))
    left_out.chmod(0)
    with blind():
        facts(held, **state)
        unknown(held, f"tree:{data}", full=True, **state)


@given(st.sets(st.integers(0, 2**64 - 1)))
@settings(max_examples=50, deadline=None)
def test_the_digest_is_that_of_the_set_of_tokens_in_any_order(tokens: set[int]) -> None:
    listed = list(tokens)
    assert trees._digest(listed) == trees._digest(listed[::-1]) == set_digest(f"{one:016x}" for one in tokens)


_MILLION = """
import resource, sys
from lockd.probes import trees
from lockd.disk import Disk, Entry, Tree
from lockd.rules import TreeRule
class Entries(dict):
    def items(self):
        return ((f"part-{n % 1000:04}/{n:07}.jsonl.gz", Entry("f", 0o644, n, 0, 0, n, 1)) for n in range(1_100_000))
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
fact = trees._fact(TreeRule("/data"), "/data", {}, Tree("/data", Entries(), (), "stamp"), Disk())
print(fact.attributes["files"], (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024)
"""


@pytest.mark.slow
def test_a_million_names_stay_in_bounded_memory() -> None:
    done = subprocess.run([sys.executable, "-c", _MILLION], capture_output=True, text=True, check=True)
    files, mebibytes = map(int, done.stdout.split())
    assert files == 1_100_000
    assert mebibytes < 120, f"{mebibytes} MiB over the entries themselves"
