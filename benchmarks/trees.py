"""The trees that the benchmarks run on: a real torch venv, and one of the shape of a real training machine.

Always holds: each tree is an environment that `lockd accept` takes as it is: every file belongs to a package whose
RECORD is true, or is byte code beside its source. `shape()` has the 68,849 files that `data/site_packages_files.txt.gz`
lists, their sizes divided by `SCALE`.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import os
import random
import re
import shutil
import struct
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import MAGIC_NUMBER
from pathlib import Path

SHAPE = Path(__file__).parent / "data" / "site_packages_files.txt.gz"
SCALE = 10
PYTHON = f"python{sys.version_info[0]}.{sys.version_info[1]}"


@contextmanager
def scratch(named: str | None, prefix: str) -> Iterator[Path]:
    """The folder to work in: the named one, which is left as it is at the end, else a temporary one, which goes."""
    folder = Path(named or tempfile.mkdtemp(prefix=prefix)).resolve()
    folder.mkdir(parents=True, exist_ok=True)
    try:
        yield folder
    finally:
        if not named:
            shutil.rmtree(folder, ignore_errors=True)


def torch_venv(folder: Path) -> Path:
    """A real virtualenv with torch 2.13.0 and its requirements, by pip."""
    prefix = folder / "torch"
    if not (prefix / "pyvenv.cfg").exists():
        subprocess.run([sys.executable, "-m", "venv", str(prefix)], check=True)
        pip = [str(prefix / "bin" / "python"), "-m", "pip", "-q", "--disable-pip-version-check"]
        subprocess.run([*pip, "install", "torch==2.13.0", "numpy"], check=True)
    return prefix


def shape(folder: Path) -> Path:
    """A virtualenv of 68,849 files in 7,811 folders: names as on a real machine, random bytes, a tenth of the sizes."""
    prefix = folder / "shape"
    done = folder / "shape.done"
    if done.exists():
        return prefix
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(prefix)], check=True)
    site = prefix / "lib" / PYTHON / "site-packages"
    rows: dict[str, list[str]] = defaultdict(list)
    compiled: list[tuple[str, int]] = []
    tops = {name.split("/")[0] for name, _ in listed()}
    infos = {normal(top.split("-")[0]): top for top in tops if top.endswith(".dist-info")}
    for name, size in listed():
        if name.endswith((".dist-info/RECORD", ".pth", ".dist-info/METADATA")):
            continue
        if name.endswith(".pyc"):
            compiled.append((name, size // SCALE))
            continue
        rows[owner(name, infos)].append(put(site, name, random.Random(name).randbytes(size // SCALE)))
    for info, lines in rows.items():
        finish(site, info, lines)
    for name, size in compiled:
        byte_code(site, name, size)
    done.touch()
    return prefix


def small(folder: Path) -> Path:
    """A virtualenv of one package with 28 modules: 30 files and their metadata."""
    prefix = folder / "small"
    if not prefix.exists():
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(prefix)], check=True)
        site = prefix / "lib" / PYTHON / "site-packages"
        finish(site, "small-1.0.dist-info", [put(site, f"small/m{number}.py", b"X = 1\n") for number in range(28)])
    return prefix


def listed() -> list[tuple[str, int]]:
    """(path under site-packages, size) of each file of the recorded machine."""
    with gzip.open(SHAPE, "rt", encoding="utf-8", errors="surrogateescape") as lines:
        pairs = (line.rstrip("\n").split(None, 1) for line in lines)
        return [(path.removeprefix("./"), int(size)) for size, path in pairs]


def owner(name: str, infos: dict[str, str]) -> str:
    """The dist-info folder that a file is counted to: by its top folder, which is near enough for a shape."""
    top = name.split("/")[0]
    if top.endswith(".dist-info"):
        return top
    package = normal(top.split(".")[0])
    return infos.get(package, f"{package.replace('-', '_')}-1.0.dist-info")


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def put(site: Path, name: str, content: bytes) -> str:
    """Write one file; returns its RECORD row."""
    path = site / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
    quoted = f'"{name}"' if "," in name else name
    return f"{quoted},sha256={digest},{len(content)}"


def byte_code(site: Path, name: str, size: int) -> None:
    """A .pyc with the header that Python would trust: its source's time and size; the rest is noise."""
    folder, _, file = name.rpartition("/__pycache__/")
    source = site / folder / f"{file.split('.')[0]}.py"
    if source.exists():
        facts = source.stat()
        header = MAGIC_NUMBER + struct.pack("<III", 0, int(facts.st_mtime), facts.st_size)
        put(site, name, header + random.Random(name).randbytes(size))


def finish(site: Path, info: str, rows: list[str]) -> None:
    """METADATA, WHEEL and RECORD of the package whose dist-info folder is `info`."""
    name, version = info.removesuffix(".dist-info").split("-")[:2]
    rows = [row for row in rows if not row.startswith(f"{info}/WHEEL,")]
    rows.append(put(site, f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n".encode()))
    rows.append(put(site, f"{info}/WHEEL", b"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"))
    (site / info / "RECORD").write_text("\n".join([*rows, f"{info}/RECORD,,"]) + "\n")


def size_of(prefix: Path) -> tuple[int, int, int]:
    """Files, bytes, and the largest file of a tree."""
    sizes = [os.lstat(os.path.join(folder, name)).st_size for folder, _, names in os.walk(prefix) for name in names]
    return len(sizes), sum(sizes), max(sizes)
