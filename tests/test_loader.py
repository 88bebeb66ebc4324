"""What the dynamic loader would load: ELF files made here, real ones of this machine, and the real loader's word."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import venv
from pathlib import Path

import pytest

from lockd.disk import Disk
from lockd.facts import Fact, Unknown
from lockd.findings import Difference
from lockd.look import Launch, Look
from lockd.probes import launch, ldcache, loader
from lockd.probes.loader.elf import Broken, Elf, read
from lockd.probes.loader.search import Loaded, Missing, Search
from lockd.rules import LaunchRule, PythonRule
from tests import probing
from tests.machine import elf, ld_so_cache


def put(path: Path, content: bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


# -- reading ELF -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("wide", [True, False])
def test_names_and_folders_of_a_made_file_are_read_back(tmp_path: Path, wide: bool) -> None:
    made = elf("liba.so.1", ["libb.so", "libc.so.6"], rpath="$ORIGIN/x:/y", build="ab" * 20, wide=wide)
    found = read(str(put(tmp_path / "a", made)))
    assert found == Elf(
        (2 if wide else 1, 1, 62), "liba.so.1", ("libb.so", "libc.so.6"), ("$ORIGIN/x", "/y"), (), False, "ab" * 20
    )


@pytest.mark.skipif(not shutil.which("readelf"), reason="no readelf on this machine")
def test_real_libraries_are_read_as_readelf_reads_them() -> None:
    shared = sorted({os.path.realpath(path) for paths in ldcache.read().paths.values() for path in paths})[:40]
    compared = 0
    for path in shared:
        found = read(path)
        said = subprocess.run(["readelf", "-d", path], capture_output=True, text=True, env={"LC_ALL": "C"}).stdout
        named = [line.partition("[")[2].rstrip("]") for line in said.splitlines() if "(NEEDED)" in line]
        if isinstance(found, Elf) and named:
            assert list(found.needed) == named, path
            compared += 1
    assert compared > 5


def test_a_file_cut_anywhere_is_broken_or_still_right(tmp_path: Path) -> None:
    whole = elf("liba.so.1", ["libb.so"], runpath="/y", build="cd" * 20)
    right = read(str(put(tmp_path / "whole", whole)))
    for length in range(len(whole)):
        found = read(str(put(tmp_path / "cut", whole[:length])))
        assert isinstance(found, Broken) or found.soname in ("liba.so.1", ""), (length, right)
        if length < 64:
            assert isinstance(found, Broken)


@pytest.mark.parametrize("content", [b"", b"\x7fELF", b"INPUT(-lfoo)\n", b"\x7fELF\x02\x01" + b"\xff" * 200])
def test_what_is_no_elf_is_said(tmp_path: Path, content: bytes) -> None:
    assert isinstance(read(str(put(tmp_path / "a", content))), Broken)


def test_a_fifo_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "a")
    assert read(str(tmp_path / "a")) == Broken("not a regular file")


# -- the loader's cache ------------------------------------------------------------------------------------------------


def test_the_cache_keeps_its_order() -> None:
    made = ld_so_cache(
        [("libcuda.so.1", "/usr/local/nvidia/lib64/libcuda.so.1"), ("libcuda.so.1", "/lib/libcuda.so.1")]
    )
    assert ldcache.parse(made).paths == {"libcuda.so.1": ("/usr/local/nvidia/lib64/libcuda.so.1", "/lib/libcuda.so.1")}


@pytest.mark.skipif(not shutil.which("/sbin/ldconfig"), reason="no ldconfig on this machine")
def test_the_real_cache_reads_as_ldconfig_prints_it() -> None:
    said = subprocess.run(["/sbin/ldconfig", "-p"], capture_output=True, text=True, env={"LC_ALL": "C"}).stdout
    printed = [line.strip().split(" ")[0] for line in said.splitlines()[1:] if "=>" in line]
    found = ldcache.read()
    assert not found.problem
    assert printed and set(printed) == set(found.paths)


def test_a_cache_cut_short_or_foreign_is_said() -> None:
    made = ld_so_cache([("liba.so", "/lib/liba.so"), ("libb.so", "/lib/libb.so")])
    assert ldcache.parse(made[:60]).problem == "/etc/ld.so.cache is cut short"
    assert ldcache.parse(made[:-20]).problem
    assert "not known" in ldcache.parse(b"something else").problem


# -- the search --------------------------------------------------------------------------------------------------------


def searched(tmp_path: Path, exe: bytes, **environ: str) -> Search:
    search = Search(environ, str(tmp_path))
    assert search.start(str(put(tmp_path / "bin" / "exe", exe))) == ""
    return search


def from_where(search: Search, name: str) -> tuple[str, str]:
    found = search.loaded[name]
    return Path(found.path).parent.name, found.by


def test_rpath_beats_the_variable_and_the_variable_beats_runpath(tmp_path: Path) -> None:
    for folder in ("own", "other"):
        put(tmp_path / folder / "libx.so.1", elf("libx.so.1"))
    path = {"LD_LIBRARY_PATH": str(tmp_path / "other")}
    by_rpath = searched(tmp_path, elf(needed=["libx.so.1"], rpath="$ORIGIN/../own"), **path)
    assert from_where(by_rpath, "libx.so.1") == ("own", "RPATH")
    by_variable = searched(tmp_path, elf(needed=["libx.so.1"], runpath="$ORIGIN/../own"), **path)
    assert from_where(by_variable, "libx.so.1") == ("other", "LD_LIBRARY_PATH")
    by_runpath = searched(tmp_path, elf(needed=["libx.so.1"], runpath="$ORIGIN/../own"))
    assert from_where(by_runpath, "libx.so.1") == ("own", "RUNPATH")


def test_rpath_of_the_executable_holds_for_what_its_libraries_need_and_runpath_does_not(tmp_path: Path) -> None:
    put(tmp_path / "own" / "libx.so.1", elf("libx.so.1", ["liby.so.1"]))
    put(tmp_path / "own" / "liby.so.1", elf("liby.so.1"))
    assert from_where(searched(tmp_path, elf(needed=["libx.so.1"], rpath="$ORIGIN/../own")), "liby.so.1")[1] == "RPATH"
    search = searched(tmp_path, elf(needed=["libx.so.1"], runpath="$ORIGIN/../own"))
    assert search.missing == [Missing("liby.so.1", str(tmp_path / "own" / "libx.so.1"))]


def test_the_first_who_needs_a_name_decides(tmp_path: Path) -> None:
    for folder in ("a", "b"):
        put(tmp_path / folder / "libn.so.2", elf("libn.so.2"))
        put(tmp_path / folder / f"lib{folder}.so", elf(f"lib{folder}.so", ["libn.so.2"], runpath="$ORIGIN"))
    exe = elf(needed=["liba.so", "libb.so"], runpath="$ORIGIN/../a:$ORIGIN/../b")
    assert from_where(searched(tmp_path, exe), "libn.so.2")[0] == "a"


def test_a_file_of_another_machine_is_passed_over(tmp_path: Path) -> None:
    put(tmp_path / "arm" / "libx.so.1", elf("libx.so.1", machine=183))
    put(tmp_path / "narrow" / "libx.so.1", elf("libx.so.1", wide=False))
    put(tmp_path / "own" / "libx.so.1", elf("libx.so.1"))
    folders = ":".join(str(tmp_path / name) for name in ("arm", "narrow", "own"))
    assert from_where(searched(tmp_path, elf(needed=["libx.so.1"]), LD_LIBRARY_PATH=folders), "libx.so.1")[0] == "own"


def test_loops_end(tmp_path: Path) -> None:
    put(tmp_path / "own" / "liba.so", elf("liba.so", ["libb.so"], rpath="$ORIGIN:$ORIGIN/../own"))
    put(tmp_path / "own" / "libb.so", elf("libb.so", ["liba.so", "libb.so"], rpath="$ORIGIN"))
    search = searched(tmp_path, elf(needed=["liba.so"], rpath="$ORIGIN/../own"))
    assert {"liba.so", "libb.so"} <= search.loaded.keys()


def test_preload_comes_first(tmp_path: Path) -> None:
    put(tmp_path / "pre" / "libx.so.1", elf("libx.so.1"))
    put(tmp_path / "own" / "libx.so.1", elf("libx.so.1"))
    exe = elf(needed=["libx.so.1"], rpath="$ORIGIN/../own")
    search = searched(tmp_path, exe, LD_PRELOAD=str(tmp_path / "pre" / "libx.so.1"))
    assert from_where(search, "libx.so.1") == ("pre", "LD_PRELOAD")


def test_the_real_loader_agrees_about_this_python() -> None:
    """`LD_TRACE_LOADED_OBJECTS` is what ldd asks; here it is asked of an interpreter that is trusted."""
    said = subprocess.run(
        [os.path.realpath(sys.executable)], env={"LD_TRACE_LOADED_OBJECTS": "1"}, capture_output=True, text=True
    ).stdout
    rows = [line.split() for line in said.splitlines() if "=> /" in line]
    if not rows:
        pytest.skip("this interpreter is linked statically, or its loader prints no list")
    search = Search({}, "/")
    assert search.start(sys.executable) == ""
    for name, _, path, *_ in rows:
        assert os.path.realpath(search.loaded[name].path) == os.path.realpath(path), name
    assert not search.missing


# -- the facts ---------------------------------------------------------------------------------------------------------


def environment(tmp_path: Path, rpath: bool = True) -> Path:
    """A real venv with a made torch that needs NCCL, cuDNN and libstdc++, and wheels that bring the first two."""
    venv.EnvBuilder(with_pip=False, symlinks=True).create(tmp_path / "env")
    (site,) = (tmp_path / "env" / "lib").glob("python3*/site-packages")
    folders = ":".join(f"$ORIGIN/../../nvidia/{name}/lib" for name in ("nccl", "cudnn"))
    needs = ["libnccl.so.2", "libcudnn.so.9"]
    made = elf("libtorch_global_deps.so", needs, rpath=folders if rpath else "", runpath="" if rpath else folders)
    put(site / "torch/lib/libtorch_global_deps.so", made)
    put(site / "nvidia/nccl/lib/libnccl.so.2", elf("libnccl.so.2", build="aa" * 20))
    put(site / "nvidia/cudnn/lib/libcudnn.so.9", elf("libcudnn.so.9", runpath="$ORIGIN"))
    put(site / "nvidia/cudnn/lib/libcudnn_ops.so.9", elf("libcudnn_ops.so.9"))
    return site


def looked(tmp_path: Path, **environ: str) -> dict[str, Fact | Unknown]:
    held = probing.policy(
        launch=LaunchRule(python="train", loader=True), python=(PythonRule("train", str(tmp_path / "env")),)
    )
    seen = launch.look(held.launch, Look(held, Disk(), Launch(environ, str(tmp_path))))
    return {fact.subject: fact for fact in seen.facts}


def known(fact: Fact | Unknown) -> Fact:
    assert isinstance(fact, Fact), fact
    return fact


def test_the_wheel_wins_and_is_named_from_the_prefix_on(tmp_path: Path) -> None:
    site = environment(tmp_path)
    nccl = known(looked(tmp_path)["loader/libnccl"])
    inside = site.relative_to(tmp_path / "env")
    assert nccl.attributes == {
        "path": f"ENV/{inside}/nvidia/nccl/lib/libnccl.so.2",
        "file": "libnccl.so.2",
        "by": "RPATH",
    }


def test_equal_environments_at_two_places_have_equal_facts(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        environment(tmp_path / name)
    first, second = (
        {name: known(fact).attributes for name, fact in looked(tmp_path / name).items() if name.startswith("loader/")}
        for name in ("a", "b")
    )
    assert first == second
    assert {"loader/libnccl", "loader/libcudnn"} <= first.keys()


def test_a_library_of_the_variable_beside_rpath_is_told_and_does_not_win(tmp_path: Path) -> None:
    environment(tmp_path)
    other = put(tmp_path / "cuda" / "libnccl.so.2", elf("libnccl.so.2"))
    nccl = known(looked(tmp_path, LD_LIBRARY_PATH=str(other.parent))["loader/libnccl"])
    assert nccl.attributes["by"] == "RPATH"
    assert nccl.told["also"] == (str(other),)


def test_a_needed_library_that_is_gone_is_told_without_a_lock(tmp_path: Path) -> None:
    site = environment(tmp_path)
    (site / "nvidia/nccl/lib/libnccl.so.2").unlink()
    fact = known(looked(tmp_path)["loader/libnccl"])
    (breach,) = loader.breaches(fact)
    assert "libnccl is needed and not found: libnccl.so.2 of ENV/" in breach.text


def test_a_plugin_that_comes_into_sight_is_a_fact(tmp_path: Path) -> None:
    environment(tmp_path)
    assert "loader/libnccl-net" not in looked(tmp_path)
    put(tmp_path / "ofi" / "libnccl-net.so", elf("libnccl-net.so", build="bb" * 20))
    fact = known(looked(tmp_path, LD_LIBRARY_PATH=str(tmp_path / "ofi"))["loader/libnccl-net"])
    assert fact.attributes == {
        "path": str(tmp_path / "ofi" / "libnccl-net.so"),
        "file": "libnccl-net.so",
        "by": "LD_LIBRARY_PATH",
        "build": "bb" * 20,
    }


def test_another_file_at_the_same_path_outside_is_a_change(tmp_path: Path) -> None:
    environment(tmp_path)
    outside = tmp_path / "ofi" / "libnccl-net.so"
    before, after = (
        known(
            looked(tmp_path, LD_LIBRARY_PATH=str(put(outside, elf("libnccl-net.so", needed)).parent))[
                "loader/libnccl-net"
            ]
        )
        for needed in ([], ["libefa.so.1"])
    )
    assert before.attributes["build"] != after.attributes["build"]


def test_without_the_switch_there_are_no_such_facts(tmp_path: Path) -> None:
    environment(tmp_path)
    held = probing.policy(launch=LaunchRule(python="train"), python=(PythonRule("train", str(tmp_path / "env")),))
    seen = launch.look(held.launch, Look(held, Disk(), Launch({})))
    assert [fact.subject for fact in seen.facts] == ["path"]
    assert not launch.claims(held.launch, "launch", "loader/libnccl")


def test_an_interpreter_that_is_no_elf_is_unknown(tmp_path: Path) -> None:
    environment(tmp_path)
    for name in ("python", "python3", f"python3.{sys.version_info[1]}"):
        (tmp_path / "env/bin" / name).unlink()
    put(tmp_path / "env/bin/python", b"#!/bin/sh\n").chmod(0o755)
    found = looked(tmp_path)["loader/*"]
    assert isinstance(found, Unknown) and "no ELF file" in found.reason


def test_the_finding_names_both_files_and_the_rule(tmp_path: Path) -> None:
    environment(tmp_path, rpath=False)
    before = known(looked(tmp_path)["loader/libnccl"])
    other = put(tmp_path / "cuda" / "libnccl.so.2", elf("libnccl.so.2", build="cc" * 20))
    after = known(looked(tmp_path, LD_LIBRARY_PATH=str(other.parent))["loader/libnccl"])
    moved = {name: (before.attributes.get(name), after.attributes.get(name)) for name in ("path", "by", "build")}
    line = launch.word(Difference(after.name, "changed", before, after, ("lock",), moved))
    assert f"the launch would load {other} (libnccl.so.2, by LD_LIBRARY_PATH), not ENV/" in line
    assert "by RUNPATH" in line


def test_a_loaded_object_says_who_needed_it(tmp_path: Path) -> None:
    environment(tmp_path)
    search = Search({}, "/")
    search.start(str(tmp_path / "env/bin/python"))
    assert all(isinstance(one, Loaded) for one in search.loaded.values())
    assert str(known(looked(tmp_path)["loader/libnccl"]).told["needed_by"]).endswith("libtorch_global_deps.so")
