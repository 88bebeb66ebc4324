"""Entries of caches that cannot be whole, and what dead writers left: told, and said at accept."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from lockd.probes.cache import whole
from lockd.rules import CacheRule, Policy
from tests.probing import fact, looking, policy, seen, words
from tests.scene import Scene

REAL = Path(__file__).parent / "data" / "torchinductor_root.tgz"
COMMIT = "0123456789" * 4


def pinned(path: Path, kind: str) -> Policy:
    return policy(cache=(CacheRule(str(path), kind=kind),))  # type: ignore[arg-type]


def told(path: Path, kind: str, name: str = "half_written") -> tuple[str, ...]:
    value = fact(pinned(path, kind), f"cache:{path}").told.get(name, ())
    assert isinstance(value, tuple)
    return value


def write(root: Path, name: str, content: bytes = b"x") -> Path:
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


@pytest.fixture
def real(tmp_path: Path) -> Path:
    with tarfile.open(REAL) as archive:
        archive.extractall(tmp_path)
    return tmp_path / "torchinductor_root"


def test_every_kind_of_entry_of_a_real_cache_is_whole_until_it_is_cut(real: Path) -> None:
    assert told(real, "inductor") == told(real, "inductor", "left") == ()
    cut = [
        next(path for path in sorted(real.rglob(pattern)) if path.is_file())
        for pattern in ("fxgraph/*/*/*", "aotautograd/*/*", "*.best_config", "triton/**/*.json", "*.ttir")
    ]
    before = seen(looking(pinned(real, "inductor")))
    for path in cut[:-1]:
        os.truncate(path, path.stat().st_size - 1)
    os.truncate(cut[-1], 0)
    lines = told(real, "inductor")
    assert sorted(line.split(": ")[0] for line in lines) == sorted(str(path.relative_to(real)) for path in cut)
    assert {line.split(": ")[1] for line in lines} == {
        "cut off (a pickle without an end)",
        "cut off (no whole JSON)",
        "empty",
    }
    (line,) = words(pinned(real, "inductor"), before)
    assert "5 of 314 entries changed" in line and "not whole: " in line


def test_a_model_hub_whose_references_lead_nowhere(tmp_path: Path) -> None:
    hub = tmp_path / "hub" / "models--a--b"
    write(hub, "blobs/aa")
    write(hub, "refs/main", COMMIT.encode())
    (hub / "snapshots" / COMMIT).mkdir(parents=True)
    (hub / "snapshots" / COMMIT / "config.json").symlink_to("../../blobs/aa")
    write(tmp_path, "modules/transformers_modules/a/b/modeling.py")
    assert told(tmp_path, "huggingface") == ()
    assert "1 remote module" in told(tmp_path, "huggingface", "holds")
    (hub / "blobs" / "aa").unlink()
    write(hub, "refs/main", b"f" * 40)
    write(hub, "refs/odd", b"no commit")
    assert told(tmp_path, "huggingface") == (
        "hub/models--a--b/refs/main: snapshot ffffffffffff is not there",
        "hub/models--a--b/refs/odd: names no commit",
        f"hub/models--a--b/snapshots/{COMMIT}/config.json: its blob is not there",
    )


def test_what_dead_writers_left_is_told_and_living_ones_are_left_alone(tmp_path: Path) -> None:
    child = subprocess.Popen([sys.executable, "-c", "pass"])
    child.wait()
    write(tmp_path, "ab/whole.py")
    write(tmp_path, f"ab/.{child.pid}.1.tmp")
    write(tmp_path, f"ab/.{os.getpid()}.1.tmp")
    write(tmp_path, f"triton/0/tmp.pid_{child.pid}_ab/x.cubin")
    assert told(tmp_path, "inductor", "left") == (
        f"ab/.{child.pid}.1.tmp: left by a writer that is gone",
        f"triton/0/tmp.pid_{child.pid}_ab/x.cubin: left by a writer that is gone",
    )


def test_a_build_lock_that_stands_is_told(tmp_path: Path) -> None:
    lock = write(tmp_path, "py311_cu128/op/lock")
    write(tmp_path, "py311_cu128/op/op.so", b"\x7fELF")
    os.utime(lock, (1_700_000_000, 1_700_000_000))
    assert told(tmp_path, "torch_extensions", "left") == (
        "py311_cu128/op/lock: build lock since 2023-11-14T22:13:20Z; every build waits for it until it goes",
    )
    assert told(tmp_path, "flashinfer", "left") == ()


def test_an_unfinished_download_is_told(tmp_path: Path) -> None:
    write(tmp_path, "hub/models--a--b/blobs/aa.incomplete")
    write(tmp_path, "hub/models--a--b/blobs/bb")
    (line,) = told(tmp_path, "huggingface", "left")
    assert line.startswith("hub/models--a--b/blobs/aa.incomplete: unfinished download since ")


@pytest.mark.parametrize("kind", ["cuda", "flashinfer", "directory", "torch_extensions"])
def test_nothing_is_said_of_forms_that_are_not_known(tmp_path: Path, kind: str) -> None:
    entries = dict(looking(pinned(tmp_path, kind)).disk.tree(str(tmp_path)).entries.items())
    assert list(whole.unfinished(kind, str(tmp_path), entries)) == []
    write(tmp_path, "a/b", b"")
    assert told(tmp_path, kind) == ()


def test_an_accept_says_what_is_odd_about_a_cache_once(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    write(tmp_path, "cache/ab/x.best_config", b"{")
    scene.write_policy(f'[[cache]]\npath = "{tmp_path}/cache"\nkind = "inductor"\n')
    line = f"{tmp_path}/cache: not whole: ab/x.best_config: cut off (no whole JSON)"
    assert line in scene.accept().out
    assert line not in scene.accept().out
