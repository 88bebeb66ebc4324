"""Facts of compile caches: what counts, growth, what must be empty, and what is odd about one. On a real cache."""

from __future__ import annotations

import os
import struct
import tarfile
from pathlib import Path
from typing import Any

import pytest

from lockd.facts import Fact
from lockd.memo import StateMemo
from lockd.probes import caches, probe
from lockd.probes.cache import condition, kinds
from lockd.rules import CacheRule, Policy
from tests.probing import blind, drift, fact, facts, looking, policy, seen, unknown, words

REAL = (
    Path(__file__).parent / "data" / "torchinductor_root.tgz"
)  # 30 steps of a torch.compile(flex_attention) job left it
KERNEL = "triton/0/QKEY/flex_attention.cubin"


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("real")
    with tarfile.open(REAL) as archive:
        archive.extractall(folder)
    return folder / "torchinductor_root"


@pytest.fixture
def real(unpacked: Path, tmp_path: Path) -> Path:
    """A copy of the real cache."""
    import shutil

    shutil.copytree(unpacked, tmp_path / "torchinductor_root", symlinks=True)
    return tmp_path / "torchinductor_root"


@pytest.fixture
def small(tmp_path: Path) -> Path:
    """A cache with one of everything."""
    entries = {
        "ab/cabc.py": b"# generated\n",
        "ab/cabc.so": elf(4096),
        "cd/cdkey.best_config": b'{"XBLOCK": 64}',
        "fxgraph/ef/fefgh/0123": b"graph" * 50 + b".",
        KERNEL: elf(2048),
        "triton/0/QKEY/__grp__flex_attention.json": b"{}",
        "locks/cabc.lock": b"",
        ".4242.1.tmp": b"half",
    }
    for path, content in entries.items():
        write(tmp_path / "cache" / path, content)
    return tmp_path / "cache"


def write(path: Path, content: bytes = b"x") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)


def elf(size: int) -> bytes:
    """A 64-bit ELF file whose section table ends at its last byte."""
    header = b"\x7fELF\x02\x01\x01" + bytes(9)
    header += struct.pack("<HHIQQQIHHHHHH", 3, 62, 1, 0, 0, size - 64, 0, 64, 56, 0, 64, 1, 0)
    return header + bytes(size - len(header))


def pinned(path: Path | str, kind: str = "inductor", **rule: object) -> Policy:
    return policy(cache=(CacheRule(str(path), kind=kind, **rule),))  # type: ignore[arg-type]


def test_a_real_cache_is_read_whole_and_sorted_out(real: Path) -> None:
    found = fact(pinned(real), f"cache:{real}")
    assert found.attributes["entries"] == 314 and found.tokens is not None and len(found.tokens) == 314
    assert found.told["ignored"] == 0
    holds = found.told["holds"]
    assert isinstance(holds, tuple) and sum(int(one.split()[0]) for one in holds) == 314
    assert any("FX graph" in one for one in holds) and not any("other" in one for one in holds)
    assert "half_written" not in found.told
    assert set(found.attributes) | set(found.told) <= set(caches.ATTRIBUTES["cache"])


def test_a_real_entry_deleted_or_altered_is_named(real: Path) -> None:
    held, before = pinned(real), seen(looking(pinned(real)))
    gone = next(path for path in sorted(real.rglob("*.cubin")))
    gone.unlink()
    write(real / "zz/cnew.py", b"# new\n")
    (line,) = words(held, before)
    assert line == f"{real}: 1 of 314 entries gone: {gone.relative_to(real)}"


@pytest.mark.parametrize("change", ["exact", "grow"])
def test_touch_locks_and_leftovers_never_count(small: Path, change: str) -> None:
    held, before = pinned(small, change=change), facts(pinned(small, change=change))
    for path in (
        "locks/new.lock",
        "triton/0/QKEY/x.lock",
        ".4343.2.tmp",
        "ab/.99.7.tmp",
        "triton/0/tmp.pid_7_ab/x.cubin",
    ):
        write(small / path)
    (small / "locks" / "cabc.lock").unlink()
    (small / ".4242.1.tmp").write_bytes(b"other")
    (small / "empty folder").mkdir()
    for touched in small.rglob("*"):
        os.utime(touched, (1_900_000_000, 1_900_000_000))
    assert drift(held, before) == []


def test_new_entries_are_no_drift_under_grow_and_are_under_exact(small: Path) -> None:
    before = {change: seen(looking(pinned(small, change=change))) for change in ("grow", "exact")}
    write(small / "gh/cghnew.py", b"# new\n")
    assert drift(pinned(small, change="grow"), before["grow"][0]) == []
    (line,) = words(pinned(small, change="exact"), before["exact"])
    assert line == f"{small}: 1 new: gh/cghnew.py"


def test_the_lock_alone_decides_about_a_grown_cache(small: Path) -> None:
    held, before = pinned(small), facts(pinned(small))
    write(small / "gh/cghnew.py", b"# new\n")
    (small / KERNEL).unlink()
    (one,) = drift(held, before)
    assert one.change == "changed" and "1 of 6 entries changed or gone" in caches.word(one)


def test_a_truncated_object_with_times_put_back_is_drift_and_told_as_half_written(small: Path) -> None:
    held, before = pinned(small), seen(looking(pinned(small)))
    path = small / "ab/cabc.so"
    status = path.stat()
    os.truncate(path, 100)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    (line,) = words(held, before)
    assert line == f"{small}: 1 of 6 entries changed: ab/cabc.so; not whole: ab/cabc.so: 100 of 4,096 bytes"
    assert fact(held, f"cache:{small}").told["half_written"] == ("ab/cabc.so: 100 of 4,096 bytes",)
    os.truncate(path, 10)
    assert fact(held, f"cache:{small}").told["half_written"] == ("ab/cabc.so: cut inside its header",)
    path.write_bytes(b"no object at all")
    assert fact(held, f"cache:{small}").told["half_written"] == ("ab/cabc.so: not an ELF file",)


def test_every_real_object_cut_by_one_byte_is_told(real: Path) -> None:
    objects = sorted([*real.rglob("*.so"), *real.rglob("*.cubin")])
    assert objects
    for path in objects:
        wanted = condition.elf_size(path.read_bytes()[: 1 << 16])
        assert wanted is not None and wanted <= path.stat().st_size
        os.truncate(path, wanted - 1)
    sizes = [(str(one.relative_to(real)), one.stat().st_size) for one in objects]
    found = condition.few(list(condition.half_written(str(real), sizes)))
    assert found[-1] == f"and {len(objects) - condition.LINES} more"


def test_a_cache_that_must_be_empty_is_one_finding_with_names(tmp_path: Path) -> None:
    held = pinned(tmp_path / "cache", kind="directory", change="empty")
    before = facts(held)
    (tmp_path / "cache").mkdir()
    write(tmp_path / "cache" / "x.lock")
    assert drift(held, before) == [], "no folder, an empty one and one with a lock are the same"
    write(tmp_path / "cache" / "entry")
    (one,) = drift(held, before)
    assert "policy" in one.against
    (breach,) = one.breaches
    assert (breach.key, breach.found) == ("cache[0].change", "1") and "entry" in breach.text
    (breach,) = probe("cache").breaches(held.cache[0], held, facts(held))
    assert breach.wanted == "0"


def test_present_asks_for_the_folder_alone(small: Path) -> None:
    held, before = pinned(small, change="present"), facts(pinned(small, change="present"))
    (small / KERNEL).unlink()
    assert drift(held, before) == []
    small.rename(small.with_name("moved"))
    assert [one.change for one in drift(held, before)] == ["missing"]


def test_a_missing_cache_is_absent_and_a_file_in_its_place_is_changed(small: Path) -> None:
    held, before = pinned(small), facts(pinned(small))
    small.rename(small.with_name("moved"))
    assert fact(held, f"cache:{small}").absent
    small.write_text("x")
    (one,) = drift(held, before)
    assert caches.word(one) == f"{small} was a folder, is a file"


def test_an_unreadable_entry_or_folder_makes_the_cache_unknown(small: Path) -> None:
    (small / KERNEL).chmod(0)
    with blind():
        assert "flex_attention.cubin" in unknown(pinned(small), f"cache:{small}").reason
    (small / KERNEL).chmod(0o644)
    (small / "triton").chmod(0)
    try:
        with blind():
            assert "ermission denied" in unknown(pinned(small), f"cache:{small}").reason
    finally:
        (small / "triton").chmod(0o755)


def test_a_fifo_among_the_entries_is_not_opened_and_is_told(small: Path) -> None:
    (small / "ab/cabc.py").unlink()
    os.mkfifo(small / "ab/cabc.py")
    planted = fact(pinned(small), f"cache:{small}").told["planted"]
    assert planted == ("ab/cabc.py is a fifo",)


def test_what_was_planted_is_told(small: Path) -> None:
    held = pinned(small)
    (small / "zz.so").symlink_to("/tmp/evil.so")
    small.chmod(0o1777)
    planted = fact(held, f"cache:{small}").told["planted"]
    assert isinstance(planted, tuple)
    assert f"anybody may write in {small}" in planted and "zz.so is a link" in planted
    if os.geteuid() == 0:
        os.chown(small / KERNEL, 4242, 4242)
        assert f"{KERNEL} belongs to 4242:4242" in fact(held, f"cache:{small}").told["planted"]  # type: ignore[operator]


def test_a_link_in_place_of_the_cache_is_followed_and_told(small: Path) -> None:
    link = small.with_name("link")
    link.symlink_to(small)
    found = fact(pinned(link), f"cache:{link}")
    assert found.attributes["entries"] == 6
    assert found.told["planted"] == (f"{link} is a link to {small}",)
    assert found.attributes == fact(pinned(small), f"cache:{small}").attributes


def test_exclude_leaves_entries_out(small: Path) -> None:
    held = pinned(small, change="exact", exclude=("fxgraph/**",))
    before = facts(held)
    write(small / "fxgraph/new")
    assert drift(held, before) == []


@pytest.mark.parametrize(
    ("kind", "path", "entry"),
    [
        ("inductor", "locks/x", False),
        ("inductor", "a/.12.34.tmp", False),
        ("inductor", "a/.config.tmp", True),
        ("inductor", "a/two\nlines.lock", False),
        ("directory", "a/x.lock", False),
        ("directory", "__pycache__/x.pyc", True),
        ("triton", "tmp.pid_1_2/x.cubin", False),
        ("cuda", "index", False),
        ("cuda", "a/b/0123abcd", True),
        ("flashinfer", "0.6/90a/cached_ops/x/.ninja_log", False),
        ("flashinfer", "0.6/90a/cached_ops/x/x.so", True),
        ("torch_extensions", "py312_cu128/ext/lock", False),
        ("torch_extensions", "py312_cu128/ext/ext.so", True),
        ("huggingface", "token", False),
        ("huggingface", "hub/models--x/refs/main", True),
        ("huggingface", "hub/.locks/models--x/blob.lock", False),
        ("huggingface", "hub/models--x/blobs/abc.incomplete", False),
        ("vllm", "torch_compile_cache/0123/rank_0_0/backbone/computation_graph.py", True),
        ("vllm", "usage_stats.json", False),
    ],
)
def test_what_counts_in_each_kind(kind: str, path: str, entry: bool) -> None:
    assert kinds.counts(kind)(path) is entry


def test_every_kind_of_the_policy_is_in_the_table() -> None:
    from typing import get_args

    from lockd.rules import CacheKind

    assert set(get_args(CacheKind)) == set(kinds.KINDS)


def test_a_moved_reference_of_a_model_hub_is_drift(tmp_path: Path) -> None:
    hub = tmp_path / "hub"
    write(hub / "models--x/refs/main", b"a" * 40)
    write(hub / "models--x/blobs/0123", b"weights")
    (hub / f"models--x/snapshots/{'a' * 40}").mkdir(parents=True)
    (hub / f"models--x/snapshots/{'a' * 40}/model.bin").symlink_to("../../blobs/0123")
    held, before = pinned(hub, "huggingface"), seen(looking(pinned(hub, "huggingface")))
    assert fact(held, f"cache:{hub}").attributes["entries"] == 3
    (hub / "models--x/refs/main").write_bytes(b"b" * 40)
    wrong = f"not whole: models--x/refs/main: snapshot {'b' * 12} is not there"
    assert words(held, before) == [f"{hub}: 1 of 3 entries changed: models--x/refs/main; {wrong}"]


def test_what_clears_a_folder_is_read_from_tmpfiles(tmp_path: Path) -> None:
    etc, usr = tmp_path / "etc", tmp_path / "usr"
    write(usr / "tmp.conf", b"# x\nD\nL+\nD /tmp 1777 root root -\nq /var/tmp 1777 root root 30d\n")
    folders = (str(etc), str(usr))
    assert condition.cleared("/tmp/torchinductor_root", folders) == f"cleared at boot (D /tmp in {usr}/tmp.conf)"
    assert "older than 30d" in condition.cleared("/var/tmp/cache", folders)
    assert condition.cleared("/home/x", folders) == ""
    write(etc / "tmp.conf", b"q /tmp 1777 root root 10d\nx /tmp/torchinductor_*\n")
    assert condition.cleared("/tmp/torchinductor_root", folders) == "", "of two files of one name the first counts"
    assert "older than 10d" in condition.cleared("/tmp/other", folders)


def test_the_file_system_is_the_innermost_mount(tmp_path: Path) -> None:
    table = tmp_path / "mountinfo"
    table.write_text(
        "22 1 8:1 / / rw - ext4 /dev/sda1 rw\n30 22 0:40 / /tmp rw shared:1 - tmpfs tmpfs rw\n"
        "31 22 0:41 / /mnt/two\\040words rw - nfs4 server:/x rw\n"
    )
    assert condition.file_system("/tmp/cache", str(table)) == ("tmpfs", "/tmp")
    assert condition.file_system("/tmpother", str(table)) == ("ext4", "/")
    assert condition.file_system("/mnt/two words/x", str(table)) == ("nfs4", "/mnt/two words")
    assert condition.file_system("/x", str(tmp_path / "none")) == ("", "")


def test_where_it_lies_is_told_but_never_compared(small: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    held, before = pinned(small), facts(pinned(small))
    monkeypatch.setattr(condition, "file_system", lambda path: ("nfs4", "/mnt"))
    assert fact(held, f"cache:{small}").told["place"] == "on nfs4 (/mnt)"
    assert drift(held, before) == []


def test_facts_are_the_same_again(small: Path) -> None:
    assert dict(facts(pinned(small))) == dict(facts(pinned(small)))
    assert all(isinstance(one, Fact) for one in facts(pinned(small), full=True).values())


def test_the_memo_gives_the_same_fact_and_hides_no_edit(small: Path, tmp_path: Path) -> None:
    held = pinned(small)
    state: dict[str, Any] = {"cache": str(tmp_path / "state"), "memo": StateMemo(str(tmp_path / "memo"))}
    before = seen(looking(held, **state))
    assert dict(facts(held, **state)) == dict(before[0])
    status = (small / KERNEL).stat()
    (small / KERNEL).write_bytes(b"\xff" * status.st_size)
    os.utime(small / KERNEL, ns=(status.st_atime_ns, status.st_mtime_ns))
    for full in (False, True, False):
        (line,) = words(held, before, full=full, **state)
        assert line == f"{small}: 1 of 6 entries changed: {KERNEL}; not whole: {KERNEL}: not an ELF file"
