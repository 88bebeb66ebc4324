"""A look that takes most of an environment from the memo says what a survey from scratch says, whatever was done."""

from __future__ import annotations

import os
import py_compile
import random
import shutil
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path

import pytest

from lockd.disk import Disk
from lockd.facts import Facts
from lockd.look import Memo
from lockd.memo import StateMemo
from lockd.probes import Seen
from lockd.probes.python import describe, packages
from tests.python_looks import seen

PYTHON = "python3.11"
NAMES = ("alpha", "beta", "gamma", "delta", "epsilon", "zeta", "eta", "theta")


class Venv:
    """A venv of hand-written packages, some of which share folders, and what can happen to it."""

    def __init__(self, prefix: Path, seed: int) -> None:
        self.prefix, self.random = prefix, random.Random(seed)
        self.site = prefix / "lib" / PYTHON / "site-packages"
        (prefix / "bin").mkdir(parents=True)
        self.site.mkdir(parents=True)
        (prefix / "pyvenv.cfg").write_text("home = /usr/bin\nversion = 3.11.7\n")
        (prefix / "bin" / "python").write_text("no elf\n")
        for name in NAMES:
            self.install(name)

    def install(self, name: str) -> None:
        """Write a package and its RECORD; some list files of a shared namespace, a module, a script, byte-code."""
        self.uninstall(name)
        version = f"{self.random.randint(1, 9)}.0"
        info = f"{name}-{version}.dist-info"
        files = {f"{name}/{one}.py": f"{one} = {self.random.random()}\n" for one in ("__init__", "a", "b")}
        files[f"{info}/METADATA"] = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
        files[f"{info}/WHEEL"] = "Wheel-Version: 1.0\nTag: py3-none-any\n"
        if self.random.random() < 0.25:
            files[f"space/{self.random.choice('xyz')}.py"] = f"shared = {self.random.random()}\n"
        if self.random.random() < 0.2:
            files[f"{name}_module.py"] = "module = 1\n"
        if self.random.random() < 0.3:
            files[f"{name}.pth"] = "import sys\n"
        if self.random.random() < 0.3:
            files[f"../../../bin/{self.random.choice(('run', name, name))}"] = f"#!/usr/bin/python\n{name}\n"
        rows = []
        for path, text in files.items():
            target = Path(os.path.normpath(self.site / path))
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(text)
            digest = sha256(text.encode()).hexdigest()
            rows.append(f"{path},sha256={digest},{len(text)}")
        if self.random.random() < 0.3:
            rows.append(f"{name}/__pycache__/ghost.cpython-311.pyc,,")
        if self.random.random() < 0.85:
            (self.site / info / "RECORD").write_text("\n".join([*rows, f"{info}/RECORD,,", ""]))

    def uninstall(self, name: str) -> None:
        for path in self.site.glob(f"{name}*"):
            shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()

    def files(self, pattern: str = "*") -> list[Path]:
        return sorted(path for path in self.site.rglob(pattern) if path.is_file())

    def compile(self) -> None:
        """What an import leaves behind."""
        for path in self.random.sample(sources := self.files("*.py"), min(len(sources), 5)):
            target = path.parent / "__pycache__" / f"{path.stem}.cpython-311.pyc"
            modes = list(py_compile.PycInvalidationMode)
            py_compile.compile(str(path), str(target), doraise=False, invalidation_mode=self.random.choice(modes))

    def edit(self) -> None:
        path = self.random.choice(self.files())
        stat = path.stat()
        path.write_bytes(path.read_bytes() + b"#")
        if self.random.random() < 0.3:
            os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))

    def remove(self) -> None:
        self.random.choice(self.files()).unlink()

    def remove_folder(self) -> None:
        folders = sorted(path for path in self.site.rglob("*") if path.is_dir())
        shutil.rmtree(self.random.choice(folders))

    def add(self) -> None:
        folder = self.random.choice(sorted({path.parent for path in self.files()} | {self.site}))
        name = self.random.choice(("new.py", "ghost.cpython-311.pyc", "alpha.so", "data.txt", "x.nbi", "old.pyc"))
        (folder / name).write_text(f"{self.random.random()}\n")

    def reinstall(self) -> None:
        self.install(self.random.choice(NAMES))

    def drop(self) -> None:
        self.uninstall(self.random.choice(NAMES))

    def double(self) -> None:
        """Another metadata folder of a package that is there."""
        folder = self.site / f"{self.random.choice(NAMES)}-0.{self.random.randint(1, 3)}.dist-info"
        folder.mkdir(exist_ok=True)
        (folder / "METADATA").write_text(f"Name: {folder.name.partition('-')[0]}\nVersion: 0.1\n")

    def link(self) -> None:
        path = self.random.choice(self.files())
        target = self.random.choice(self.files())
        if path != target:
            path.unlink()
            path.symlink_to(target)

    def leave(self) -> None:
        """pip could not remove all; or somebody did."""
        left = self.site / "~lpha"
        shutil.rmtree(left) if left.exists() else left.mkdir()

    def chmod(self) -> None:
        self.random.choice(self.files()).chmod(self.random.choice((0o644, 0o755)))

    def script(self) -> None:
        (self.prefix / "bin" / self.random.choice(("run", *NAMES))).write_text(f"#!/bin/sh\n{self.random.random()}\n")

    def step(self) -> str:
        """One thing that happens, mostly the harmless ones."""
        deeds: list[Callable[[], None]] = [
            self.compile, self.compile, self.compile, self.edit, self.edit, self.remove, self.add, self.add,
            self.reinstall, self.reinstall, self.drop, self.double, self.link, self.leave, self.chmod, self.script,
            self.remove_folder,
        ]  # fmt: skip
        deed = self.random.choice(deeds)
        deed()
        return deed.__name__


def plain(found: Seen) -> tuple[dict[str, object], object]:
    facts: dict[str, object] = dict(Facts(found.facts))
    return facts, {name: dict(manifest) for name, manifest in found.manifests().items()}


@pytest.mark.parametrize("integrity", ["full", "metadata"])
@pytest.mark.parametrize("seed", range(6))
def test_what_is_remembered_is_what_is_there(tmp_path: Path, seed: int, integrity: str) -> None:
    venv = Venv(tmp_path / "venv", seed)
    memo, held = StateMemo(str(tmp_path / "memo")), Disk(cache_dir=str(tmp_path / "cache"))
    deeds = []
    for _ in range(25):
        deeds.append(venv.step())
        disk = held if venv.random.random() < 0.5 else Disk(cache_dir=str(tmp_path / "cache"))
        disk.new_look()
        remembered = seen(venv.prefix, disk=disk, memo=memo, integrity=integrity)
        scratch = seen(venv.prefix, disk=Disk(), memo=Memo(), integrity=integrity)
        assert plain(remembered) == plain(scratch), deeds
        disk.save()


def test_byte_code_alone_asks_for_no_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What an import leaves behind, a new `__pycache__` included, costs no look at the packages."""
    venv = Venv(tmp_path / "venv", 1)
    memo, disk = StateMemo(str(tmp_path / "memo")), Disk(cache_dir=str(tmp_path / "cache"))
    before = seen(venv.prefix, disk=disk, memo=memo)
    described: list[str] = []
    real = describe.package_fact

    def counted(package: packages.Package, around: describe.Surroundings) -> object:
        described.append(package.name)
        return real(package, around)

    monkeypatch.setattr(describe, "package_fact", counted)
    for path in venv.files("*.py"):
        py_compile.compile(str(path), str(path.parent / "__pycache__" / f"{path.stem}.cpython-311.pyc"))
    disk.new_look()
    assert plain(seen(venv.prefix, disk=disk, memo=memo)) == plain(before)
    assert described == []
    (venv.site / "beta" / "a.py").write_text("edited = 1\n")
    disk.new_look()
    after = plain(seen(venv.prefix, disk=disk, memo=memo))
    assert after != plain(before)
    assert "beta" in described
    assert len(described) < len(NAMES)
