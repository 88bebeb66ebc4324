"""Small wheels made by tests, and the real pip and uv to install them with, without any network.

Always holds: a wheel's bytes depend on its fields alone; every install is of local files. Nothing outside the given
folders is written (uv's cache lies beside the environment).
"""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import os
import shutil
import subprocess
import sys
import venv
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

PYTHON = f"python{sys.version_info[0]}.{sys.version_info[1]}"
UV = shutil.which("uv", path=f"{Path(sys.executable).parent}:{os.environ.get('PATH', '')}")
_EPOCH = (2026, 1, 1, 0, 0, 0)


@dataclass(frozen=True)
class Wheel:
    """A wheel before it is packed.

    files: path → content; a path under `NAME-VERSION.data/` may be written `@scripts/x` or `@data/x`. entry_points:
    script → `module:function`. executable: paths that get the execute bit. rows: extra or replacing RECORD rows, path
    → (hash, size).
    """

    name: str
    version: str
    files: Mapping[str, str | bytes] = field(default_factory=dict)
    requires: tuple[str, ...] = ()
    tag: str = "py3-none-any"
    entry_points: Mapping[str, str] = field(default_factory=dict)
    executable: tuple[str, ...] = ()
    rows: Mapping[str, tuple[str, str]] = field(default_factory=dict)

    @property
    def stem(self) -> str:
        return f"{self.name.replace('-', '_')}-{self.version}"

    @property
    def info(self) -> str:
        return f"{self.stem}.dist-info"

    def members(self) -> dict[str, bytes]:
        """Every file of the archive but RECORD."""
        requires = "".join(f"Requires-Dist: {line}\n" for line in self.requires)
        texts: dict[str, str | bytes] = {
            (f"{self.stem}.data/{path[1:]}" if path.startswith("@") else path): content
            for path, content in self.files.items()
        }
        head = f"Metadata-Version: 2.1\nName: {self.name}\nVersion: {self.version}\n{requires}"
        texts[f"{self.info}/METADATA"] = f"{head}\nA package of the tests.\n"
        texts[f"{self.info}/WHEEL"] = f"Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: {self.tag}\n"
        if self.entry_points:
            lines = "".join(f"{script} = {target}\n" for script, target in self.entry_points.items())
            texts[f"{self.info}/entry_points.txt"] = f"[console_scripts]\n{lines}"
        return {path: text.encode() if isinstance(text, str) else text for path, text in texts.items()}

    def write(self, folder: Path) -> Path:
        """Pack it into `folder`."""
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"{self.stem}-{self.tag}.whl"
        members = self.members()
        rows = {name: (record_hash(content), str(len(content))) for name, content in members.items()} | dict(self.rows)
        lines = io.StringIO()
        writer = csv.writer(lines, lineterminator="\n")
        writer.writerows([(name, *row) for name, row in rows.items()] + [(f"{self.info}/RECORD", "", "")])
        with zipfile.ZipFile(path, "w") as archive:
            for name, content in {**members, f"{self.info}/RECORD": lines.getvalue().encode()}.items():
                member = zipfile.ZipInfo(name, _EPOCH)
                mode = 0o755 if name in self.executable or ".data/scripts/" in name else 0o644
                member.external_attr = (0o100000 | mode) << 16
                archive.writestr(member, content)
        return path


def record_hash(content: bytes) -> str:
    """A digest as RECORD writes it."""
    return "sha256=" + base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()


@dataclass(frozen=True)
class Env:
    """A virtual environment of a test."""

    prefix: Path

    @property
    def site(self) -> Path:
        return self.prefix / "lib" / PYTHON / "site-packages"

    @property
    def bin(self) -> Path:
        return self.prefix / "bin"

    @property
    def python(self) -> Path:
        return self.bin / "python"

    def info(self, name: str) -> Path:
        """The metadata folder of a package."""
        (found,) = self.site.glob(f"{name.replace('-', '_')}-*.dist-info")
        return found


def build_venv(prefix: Path) -> Env:
    """A venv of this interpreter, without pip."""
    venv.EnvBuilder(with_pip=False, symlinks=True).create(prefix)
    return Env(prefix)


def install(env: Env, *wheels: Wheel | Path, by: str = "pip", link: str = "copy", compiled: bool = True) -> None:
    """Install wheels with the real pip or uv, from local files, over what is there. Names, not files, go to the
    installer.

    link: uv's link mode (copy, hardlink, symlink). compiled False: pip writes no byte-code.
    """
    folder = env.prefix.parent / "wheels"
    paths = [wheel if isinstance(wheel, Path) else wheel.write(folder) for wheel in wheels]
    if by == "pip":
        more = [] if compiled else ["--no-compile"]
        command = [sys.executable, "-m", "pip", "--python", str(env.python), "install", "--no-index", "--no-deps"]
        command += ["--force-reinstall", "--quiet", "--disable-pip-version-check", *more]
    else:
        if UV is None:
            raise FileNotFoundError("uv")
        command = [UV, "pip", "install", "--python", str(env.python), "--offline", "--no-index", "--no-deps"]
        command += ["--reinstall", "--quiet", f"--link-mode={link}"]
    _run(env, [*command, *_wanted(paths)])


def uninstall(env: Env, *names: str, by: str = "pip") -> None:
    """Uninstall with the real pip or uv."""
    if by == "pip":
        head = [sys.executable, "-m", "pip", "--python", str(env.python), "uninstall", "--yes", "--quiet"]
        _run(env, [*head, "--disable-pip-version-check", *names])
    elif UV is not None:
        _run(env, [UV, "pip", "uninstall", "--python", str(env.python), "--offline", "--quiet", *names])


def _wanted(paths: list[Path]) -> list[str]:
    """`--find-links FOLDER name==version` for each wheel: as from an index, without a direct_url.json."""
    arguments: list[str] = []
    for path in paths:
        name, version = path.name.split("-")[:2]
        arguments += ["--find-links", str(path.parent), f"{name}=={version}"]
    return arguments


def _run(env: Env, command: list[str]) -> None:
    words = {name: value for name, value in os.environ.items() if not name.startswith(("PIP_", "UV_", "PYTHON"))}
    words |= {
        "UV_CACHE_DIR": str(env.prefix.parent / "uv-cache"),
        "PIP_CONFIG_FILE": os.devnull,
        "PIP_NO_CACHE_DIR": "1",
    }
    done = subprocess.run(command, env=words, capture_output=True, text=True, cwd=env.prefix.parent)
    if done.returncode:
        raise AssertionError(f"{' '.join(command)}\n{done.stdout}{done.stderr}")
