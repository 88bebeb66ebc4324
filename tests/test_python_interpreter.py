"""The interpreter of an environment, from outside: venvs, conda, system prefixes, links, moved and broken bases."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import venv
from pathlib import Path

import pytest

from lockd.disk import Disk
from lockd.facts import Unknown
from lockd.probes.python.interpreter import Interpreter, find
from lockd.rules import PythonRule

MINOR = f"{sys.version_info[0]}.{sys.version_info[1]}"
BASE = Path(sys.base_prefix)


@pytest.fixture(autouse=True)
def _own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))


def make_venv(prefix: Path, *, symlinks: bool = True, system_site_packages: bool = False) -> Path:
    venv.EnvBuilder(with_pip=False, symlinks=symlinks, system_site_packages=system_site_packages).create(prefix)
    return prefix


def found(path: Path | str) -> Interpreter:
    interpreter = find(PythonRule("train", str(path)), Disk())
    assert isinstance(interpreter, Interpreter), interpreter
    return interpreter


def asked(executable: Path, program: str) -> list[str]:
    """What the real interpreter says, so that reading it from outside is held against the truth."""
    words = {"HOME": os.environ["HOME"], "PATH": "/usr/bin:/bin"}
    run = subprocess.run([executable, "-c", program], check=True, capture_output=True, text=True, env=words, cwd="/")
    return run.stdout.splitlines()


SITES = "import site; print(*site.getsitepackages(), sep='\\n')"
PATH = "import sys; print(*sys.path[1:], sep='\\n')"


def test_a_venv_is_what_its_own_python_says_it_is(tmp_path: Path) -> None:
    prefix = make_venv(tmp_path / "venv")
    interpreter = found(prefix)
    assert (interpreter.kind, interpreter.prefix, interpreter.system_site) == ("venv", str(prefix), False)
    real = [folder for folder in asked(prefix / "bin/python", SITES) if os.path.isdir(folder)]
    assert list(interpreter.site_packages) == real
    assert interpreter.version == ".".join(map(str, sys.version_info[:3]))
    assert interpreter.user_site is False and interpreter.base_site == () and interpreter.broken == ""


def test_an_interpreter_file_names_its_venv(tmp_path: Path) -> None:
    prefix = make_venv(tmp_path / "venv")
    assert found(prefix / "bin/python3").prefix == str(prefix)
    assert found(prefix / "bin/python3").site_packages == found(prefix).site_packages


def test_a_venv_reached_by_a_link_keeps_the_name_it_was_given(tmp_path: Path) -> None:
    make_venv(tmp_path / "venv")
    (tmp_path / "train").symlink_to("venv")
    assert found(tmp_path / "train").prefix == str(tmp_path / "train")


def test_a_copied_interpreter_is_found_as_well(tmp_path: Path) -> None:
    prefix = make_venv(tmp_path / "venv", symlinks=False)
    assert found(prefix).broken == "" and found(prefix).base_prefix == str(BASE)


def test_system_site_packages_come_into_sight_with_the_switch(tmp_path: Path) -> None:
    prefix = make_venv(tmp_path / "venv", system_site_packages=True)
    interpreter = found(prefix)
    assert interpreter.system_site and interpreter.user_site
    seen = asked(prefix / "bin/python", PATH)
    assert interpreter.base_site, "the base has a site folder"
    assert [folder for folder in seen if folder in interpreter.base_site] == list(interpreter.base_site)


def test_a_pyvenv_cfg_without_the_switch_means_system_site_as_site_has_it(tmp_path: Path) -> None:
    prefix = make_venv(tmp_path / "venv")
    config = prefix / "pyvenv.cfg"
    lines = [line for line in config.read_text().splitlines(True) if "system-site" not in line]
    config.write_text("".join(lines))
    assert found(prefix).system_site is True


def test_paths_of_a_pth_outside_the_prefix_are_roots_once(tmp_path: Path) -> None:
    prefix = make_venv(tmp_path / "venv")
    checkout, inside = tmp_path / "checkout", prefix / "src"
    checkout.mkdir()
    inside.mkdir()
    site = Path(found(prefix).site_packages[0])
    (site / "a.pth").write_text(f"{checkout}\n# {tmp_path}\n{tmp_path}/nowhere\n{inside}\n")
    (site / "b.pth").write_text(f"{checkout}/\n{site}/sub\n")
    (site / "sub").mkdir()
    assert found(prefix).base_site == (str(checkout), str(inside))


def test_the_user_site_shadows_a_system_python_but_never_a_plain_venv(tmp_path: Path) -> None:
    """conda-forge/python-feedstock#171"""
    user = tmp_path / f"home/.local/lib/python{MINOR}/site-packages"
    user.mkdir(parents=True)
    prefix = make_venv(tmp_path / "venv")
    shared = make_venv(tmp_path / "shared", system_site_packages=True)
    assert str(user) not in found(shared).base_site, "an empty user site changes nothing"
    (user / "torch.py").touch()
    assert str(user) not in found(prefix).base_site
    assert found(shared).base_site[0] == str(user)
    assert str(user) in found(BASE).base_site


def test_a_conda_prefix_is_known_by_its_records(tmp_path: Path) -> None:
    prefix = tmp_path / "conda"
    site = prefix / "lib/python3.12/site-packages"
    for folder in (site, prefix / "bin", prefix / "conda-meta"):
        folder.mkdir(parents=True)
    (prefix / "bin/python3.12").write_bytes(b"\x7fELF")
    (prefix / "bin/python3.12").chmod(0o755)
    (prefix / "bin/python").symlink_to("python3.12")
    (prefix / "conda-meta/python-3.12.7-h2628c8c_0_cpython.json").write_text("{}")
    (prefix / "conda-meta/python-dateutil-2.9.0-pyhd8ed1ab_0.json").write_text("{}")
    interpreter = found(prefix)
    assert (interpreter.kind, interpreter.version, interpreter.site_packages) == ("conda", "3.12.7", (str(site),))


@pytest.mark.skipif(not Path("/usr/lib/python3/dist-packages").is_dir(), reason="no Debian python here")
def test_debians_python_has_dist_packages() -> None:
    real = [folder for folder in asked(Path("/usr/bin/python3"), SITES) if os.path.isdir(folder)]
    for path in ("/usr", "/usr/bin/python3"):
        interpreter = found(path)
        assert (interpreter.kind, interpreter.prefix) == ("system", "/usr")
        assert list(interpreter.site_packages) == real


def test_the_base_python_went_away(tmp_path: Path) -> None:
    prefix = make_venv(tmp_path / "venv")
    for name in (prefix / "bin").glob("python*"):
        name.unlink()
    (prefix / "bin/python").symlink_to("/opt/gone/bin/python3.11")
    assert found(prefix).broken == "bin/python -> /opt/gone/bin/python3.11 (missing)"
    assert found(prefix / "bin/python").broken, "named by its interpreter the venv is still there"
    assert found(prefix).site_packages, "its packages still are there to be read"
    (prefix / "bin/python").unlink()
    assert found(prefix).broken == "bin/python is missing"
    (prefix / "bin/python").symlink_to("python")
    assert found(prefix).broken == "bin/python is a link to itself"
    (prefix / "bin/python").unlink()
    (prefix / "bin/python").touch(0o644)
    assert found(prefix).broken == "bin/python is no executable file"


def test_a_base_that_moved_to_another_minor_leaves_the_packages_behind(tmp_path: Path) -> None:
    prefix = make_venv(tmp_path / "venv")
    shutil.move(prefix / f"lib/python{MINOR}", prefix / "lib/python3.8")
    assert found(prefix).broken == f"runs Python {MINOR}, its packages lie in lib/python3.8"
    assert found(prefix).site_packages == ()


def test_of_several_lib_folders_that_of_the_running_version_counts(tmp_path: Path) -> None:
    prefix = make_venv(tmp_path / "venv")
    (prefix / "lib/python3.8/site-packages").mkdir(parents=True)
    assert found(prefix).site_packages == (f"{prefix}/lib/python{MINOR}/site-packages",)


def test_nothing_there_is_none_and_a_folder_without_python_too(tmp_path: Path) -> None:
    assert find(PythonRule("train", str(tmp_path / "none")), Disk()) is None
    (tmp_path / "file").touch()
    assert find(PythonRule("train", str(tmp_path / "file/venv")), Disk()) is None
    assert find(PythonRule("train", str(tmp_path)), Disk()) is None


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
def test_a_prefix_that_cannot_be_read_is_unknown(tmp_path: Path) -> None:
    prefix = make_venv(tmp_path / "venv")
    prefix.chmod(0)
    try:
        unknown = find(PythonRule("train", str(prefix)), Disk())
    finally:
        prefix.chmod(0o755)
    assert isinstance(unknown, Unknown) and "ermission" in unknown.reason


def test_a_link_loop_is_unknown_with_the_reason(tmp_path: Path) -> None:
    (tmp_path / "venv").symlink_to("venv")
    unknown = find(PythonRule("train", str(tmp_path / "venv")), Disk())
    assert isinstance(unknown, Unknown) and "symbolic links" in unknown.reason


def test_a_pyvenv_cfg_that_is_a_fifo_neither_hangs_nor_makes_a_venv(tmp_path: Path) -> None:
    prefix = make_venv(tmp_path / "venv")
    (prefix / "pyvenv.cfg").unlink()
    os.mkfifo(prefix / "pyvenv.cfg")
    assert found(prefix).kind == "system"
    assert found(prefix).broken.startswith("pyvenv.cfg is no file: bin/python runs as /")
    (prefix / "pyvenv.cfg").unlink()
    assert found(prefix).broken.startswith("pyvenv.cfg is missing: bin/python runs as /")
