"""torch_key and triton_key from files alone: against pkgutil on odd trees, and against the real torch and triton."""

from __future__ import annotations

import hashlib
import pkgutil
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from importlib.machinery import FileFinder
from pathlib import Path

import pytest

from lockd import torchkeys

THREADED = "t" if sysconfig.get_config_var("Py_GIL_DISABLED") else ""
HERE = ".".join(map(str, sys.version_info[:3])) + THREADED
OWN = sysconfig.get_config_var("EXT_SUFFIX")


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """A site folder with a torch of every oddity that pkgutil knows."""
    torch = tmp_path / "site" / "torch"
    files = {
        "version.py": "from typing import Optional\n__version__ = '2.13.0+cpu'\n",
        "__init__.py": "",
        "plain.py": "1",
        "fx/__init__.py": "",
        "fx/_symbolic_trace.py": "def f(): return flag\n",
        "fx/deeper/__init__.py": "",
        "fx/deeper/x.py": "2",
        "no_package/x.py": "never",
        "both/__init__.py": "package",
        "both.py": "hidden by the package",
        "folder_of_nothing/readme.txt": "",
        "folder_of_nothing.py": "seen",
        f"native{OWN}": "own",
        "native.py": "hidden by the extension",
        "stable.abi3.so": "abi",
        "bare.so": "bare",
        "other.cpython-39-x86_64-linux-gnu.so": "of another Python",
        "compiled.pyc": "code",
        "with.dot.py": "never",
        "lib/libtorch.so": "no package",
        "__pycache__/plain.cpython-311.pyc": "",
        "_inductor/__init__.py": "",
        "_inductor/codegen/aoti_runtime/interface.cpp": "extra",
    }
    for name, text in files.items():
        path = torch / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path / "site"


def found(folder: Path, prefix: str = "") -> Iterator[tuple[str, str]]:
    """Name and file of each module below a folder, by pkgutil and the import system itself, sorted as torch does."""
    for info in sorted(pkgutil.iter_modules([str(folder)], prefix), key=lambda info: info.name):
        assert isinstance(info.module_finder, FileFinder)
        spec = info.module_finder.find_spec(info.name)
        assert spec is not None and spec.origin is not None
        yield info.name, spec.origin
        if info.ispkg:
            yield from found(Path(spec.origin).parent, f"{info.name}.")


def expected(site: Path, version: str) -> str:
    hasher = hashlib.sha256(version.encode())
    for name, origin in found(site / "torch"):
        hasher.update(name.encode() + Path(origin).read_bytes())
    hasher.update(b"extra")
    return hasher.hexdigest()


def test_the_key_is_over_what_an_import_would_find(site: Path) -> None:
    names = [name for name, _ in found(site / "torch")]
    assert {"native", "stable", "bare", "compiled", "both", "folder_of_nothing", "fx.deeper.x"} <= set(names)
    assert torchkeys.torch_key(str(site), HERE) == expected(site, "2.13.0+cpu")


@pytest.mark.parametrize("name", ["fx/_symbolic_trace.py", "new.py", "version.py", "fx/deeper/__init__.py"])
def test_an_edit_moves_the_key_and_the_old_bytes_bring_it_back(site: Path, name: str) -> None:
    before, path = torchkeys.torch_key(str(site), HERE), site / "torch" / name
    old = path.read_bytes() if path.exists() else None
    path.write_bytes((old or b"") + b"\n# a comment\n")
    assert torchkeys.torch_key(str(site), HERE) not in (before, None)
    path.write_bytes(old) if old is not None else path.unlink()
    assert torchkeys.torch_key(str(site), HERE) == before


@pytest.mark.parametrize("name", ["no_package/x.py", "lib/libtorch.so", "with.dot.py", "native.py", "both.py"])
def test_what_no_import_finds_does_not_count(site: Path, name: str) -> None:
    before = torchkeys.torch_key(str(site), HERE)
    (site / "torch" / name).write_text("another text")
    assert torchkeys.torch_key(str(site), HERE) == before


def test_another_python_sees_its_own_extensions(site: Path) -> None:
    assert torchkeys.torch_key(str(site), "3.9.1") != torchkeys.torch_key(str(site), HERE)


def test_without_all_of_its_files_there_is_no_key(site: Path) -> None:
    (site / "torch" / "dangling.py").symlink_to("nowhere")
    assert torchkeys.torch_key(str(site), HERE) is None
    (site / "torch" / "dangling.py").unlink()
    (site / "torch" / "version.py").write_text("__version__ = compute()\n")
    assert torchkeys.torch_key(str(site), HERE) is None
    assert torchkeys.torch_key(str(site / "nothing"), HERE) is None
    assert torchkeys.triton_key(str(site), HERE) is None


def test_the_key_of_triton(tmp_path: Path) -> None:
    """Its own file, compiler, backends, library, language, in that order; digests that are known are not read again."""
    files = {
        "__init__.py": "__version__ = '3.6.0'\n",
        "runtime/cache.py": "def triton_key():\n    pass\n",
        "compiler/__init__.py": "",
        "compiler/compiler.py": "c",
        "backends/__init__.py": "",
        "backends/nvidia/__init__.py": "n",
        "backends/nvidia/driver.py": "d",
        "backends/nvidia/driver.c": "never",
        "backends/amd/__init__.py": "a",
        "_C/libtriton.so": "library",
        "language/core.py": "l",
    }
    for name, text in files.items():
        path = tmp_path / "triton" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    order = [
        "runtime/cache.py",
        "compiler/compiler.py",
        "backends/amd/__init__.py",
        "backends/nvidia/__init__.py",
        "backends/nvidia/driver.py",
        "_C/libtriton.so",
        "language/core.py",
    ]
    digests = [hashlib.sha256(files[name].encode()).hexdigest() for name in order]
    assert torchkeys.triton_key(str(tmp_path), HERE) == "3.6.0" + "-".join(digests)
    known = torchkeys.triton_key(str(tmp_path), HERE, lambda path: Path(path).name)
    assert known == "3.6.0cache.py-compiler.py-__init__.py-__init__.py-driver.py-libtriton.so-core.py"
    (tmp_path / "triton/_C/libtriton.so").unlink()
    assert torchkeys.triton_key(str(tmp_path), HERE) is None


# -- the real ones -----------------------------------------------------------------------------------------------------


def fetched(folder: Path, *words: str) -> Path:
    """Wheels unpacked into a site folder, from the index that pip is set up with on this machine."""
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--quiet", "--dest", str(folder / "w"), *words]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"no {words[-1]} to be had: {done.stderr.strip().splitlines()[-1]}")
    for wheel in (folder / "w").glob("*.whl"):
        shutil.unpack_archive(wheel, folder / "site", "zip")
    shutil.rmtree(folder / "w")
    return folder / "site"


H200 = (
    "36e6df1237a766bca7ad4a8572c8069861e3413edeeca45f127ad55b11f32108"  # read off a real machine: 2.11.0+cu130, 3.12.3
)


@pytest.mark.slow
@pytest.mark.network
def test_the_key_that_a_real_machine_with_a_gpu_had(tmp_path: Path) -> None:
    words = ("--python-version", "3.12", "--only-binary", ":all:", "--platform", "manylinux_2_28_x86_64")
    site = fetched(tmp_path, *words, "torch==2.11.0")
    if "+cu130" not in (site / "torch/version.py").read_text():
        pytest.skip("this index has another build of torch 2.11.0")
    try:
        assert torchkeys.torch_key(str(site), "3.12.3") == H200
    finally:
        shutil.rmtree(site)  # two gigabytes, which pytest would keep


@pytest.mark.slow
@pytest.mark.network
def test_the_key_that_the_real_torch_computes(tmp_path: Path) -> None:
    environment = tmp_path / "venv"
    subprocess.run([sys.executable, "-m", "venv", str(environment)], check=True)
    python = environment / "bin" / "python"
    done = subprocess.run([python, "-m", "pip", "install", "--quiet", "torch==2.13.0"], capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"no torch 2.13.0 to be had: {done.stderr.strip().splitlines()[-1]}")
    (site,) = environment.glob("lib/python3*/site-packages")
    trace = site / "torch/fx/_symbolic_trace.py"
    try:
        for _ in range(2):
            code = "from torch._inductor.codecache import torch_key; print(torch_key().hex())"
            said = subprocess.run([python, "-c", code], capture_output=True, text=True, check=True, timeout=300)
            assert torchkeys.torch_key(str(site), HERE) == said.stdout.split()[-1]
            trace.write_text(trace.read_text() + "# a comment\n")
    finally:
        shutil.rmtree(environment)


@pytest.mark.slow
@pytest.mark.network
def test_the_key_that_the_real_triton_computes(tmp_path: Path) -> None:
    site = fetched(tmp_path, "triton==3.6.0")
    code = (
        f"import sys; sys.path.insert(0, {str(site)!r}); from triton.runtime.cache import triton_key as k; print(k())"
    )
    try:
        said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=300)
        assert torchkeys.triton_key(str(site), HERE) == said.stdout.split()[-1]
    finally:
        shutil.rmtree(site)
