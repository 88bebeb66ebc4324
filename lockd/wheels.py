"""Wheels for packages that are to be put back: found, fetched, unpacked aside, held against the lock.

Always holds: a wheel counts only when the very probe that makes facts finds in the unpacked files what the lock holds:
version, tags, CUDA, RECORD, contents. Whatever the wheel, its name or an index says is not evidence. Everything lies
in a folder of lockd's own, which goes away afterwards.
Never: runs anything of a wheel, runs an installer in the environment, or reads an installer's configuration.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple

from lockd.disk import Disk, Trouble
from lockd.environments import Environment
from lockd.errors import LockdError
from lockd.facts import Fact, shown
from lockd.look import Look
from lockd.place import FILE, Row
from lockd.probes.python.names import normal
from lockd.rules import Policy, PythonRule
from lockd.unpack import Layout, WheelError, unpack

if TYPE_CHECKING:
    from lockd.state import State

_SAME = ("version", "metadata_version", "tag", "cuda", "hip", "git", "abi", "record", "content")
_WAIT = 1800.0  # seconds for the download of one wheel


class Found(NamedTuple):
    """The files of a wheel that is the locked build: path in the environment → its row and the staged file."""

    rows: Mapping[str, tuple[Row, str]]
    wheel: str


@contextmanager
def stage(state: State | None) -> Iterator[str]:
    """A folder of lockd's own for one restore: in the state, else where temporary files go."""
    parent = None
    if state is not None:
        parent = os.path.join(state.folder, "stage")
        shutil.rmtree(parent, ignore_errors=True)  # of a restore that was killed
        os.makedirs(parent, mode=0o700, exist_ok=True)
    folder = tempfile.mkdtemp(prefix="lockd-", dir=parent)
    try:
        yield folder
    finally:
        shutil.rmtree(parent or folder, ignore_errors=True)


def in_folder(folder: str, name: str, versions: frozenset[str]) -> list[str]:
    """The wheels of a folder that may be that package, by their names."""
    try:
        files = sorted(os.listdir(folder))
    except OSError as error:
        hint = "--wheels names a folder with wheels"
        raise LockdError(f"could not be read: {error.strerror}", where=folder, hint=hint) from None
    return [os.path.join(folder, file) for file in files if _may_be(file, name, versions)]


def _may_be(file: str, name: str, versions: frozenset[str]) -> bool:
    parts = file.removesuffix(".whl").split("-")
    if not file.endswith(".whl") or len(parts) not in (5, 6) or normal(parts[0]) != name:
        return False
    return _version(parts[1]) in {_version(one) for one in versions}


def _version(text: str) -> str:
    from packaging.version import InvalidVersion, Version

    try:
        return str(Version(text.replace("_", "+", 1) if "+" not in text else text))
    except InvalidVersion:
        return text


def versions_of(fact: Fact) -> frozenset[str]:
    """The versions that the file name of a wheel of this build may bear."""
    found = (fact.attributes.get("metadata_version"), fact.attributes.get("version"))
    return frozenset(one for one in found if isinstance(one, str) and one)


def checked(wheel: str, environment: Environment, expected: Fact, stage: str) -> Found | str:
    """Unpack a wheel aside and hold it against the locked build; or in words why it is another."""
    name = expected.subject.rpartition("/")[2]
    prefix = os.path.join(tempfile.mkdtemp(prefix=f"{name}-", dir=stage), "env")
    try:
        layout = _skeleton(prefix, environment)
        files = unpack(wheel, layout)
    except WheelError as error:
        return error.what
    fact = _look(prefix, environment.rule, name)
    if not isinstance(fact, Fact):
        return "it does not hold that package"
    wrong = [
        one for one in _SAME if one in expected.attributes and fact.attributes.get(one) != expected.attributes[one]
    ]
    if wrong:
        return "it is another build: " + ", ".join(_wrong(one, expected, fact) for one in wrong)
    return Found(_rows(files, layout, environment), wheel)


def _wrong(attribute: str, expected: Fact, fact: Fact) -> str:
    if attribute in ("record", "content"):
        return f"its {attribute} differs"
    return f"{attribute} {fact.attributes.get(attribute, 'none')}, locked {expected.attributes[attribute]}"


def _skeleton(prefix: str, environment: Environment) -> Layout:
    """An empty environment of the same shape, which only the probe will look at."""
    python = environment.interpreter
    library = f"python{python.library or python.minor}"
    site, scripts = f"{prefix}/lib/{library}/site-packages", f"{prefix}/bin"
    os.makedirs(site)
    os.makedirs(scripts)
    with open(f"{prefix}/pyvenv.cfg", "w", encoding="utf-8") as file:
        home = os.path.dirname(os.path.realpath(python.executable))
        file.write(f"home = {home}\ninclude-system-site-packages = false\nversion = {python.version}\n")
    os.symlink(os.path.realpath(python.executable), f"{scripts}/python")
    return Layout(prefix, site, scripts, f"{prefix}/include/site/{library}", f"{python.bin}/python")


def _look(prefix: str, rule: PythonRule, name: str) -> Fact | None:
    """The fact that the probe makes of the unpacked package."""
    from lockd.probes.python import environment as probe

    staged = PythonRule(name=rule.name, path=prefix, integrity=rule.integrity, exclude=rule.exclude)
    seen = probe.look_at(staged, Look(Policy(name="staged"), Disk()))
    found = (fact for fact in seen.facts if isinstance(fact, Fact) and fact.name == f"package:{rule.name}/{name}")
    return next(found, None)


def _rows(files: list[str], layout: Layout, environment: Environment) -> dict[str, tuple[Row, str]]:
    """The staged files as rows of the environment, with its folder's owner."""
    digests = Disk().digests(files)
    target = os.path.realpath(environment.site)
    owner = os.stat(target)
    places = ((layout.site, target), (layout.bin, os.path.realpath(environment.interpreter.bin)))
    rows = {}
    for path in files:
        digest = digests[path]
        if isinstance(digest, Trouble):
            raise LockdError(f"could not be read: {digest.reason}", where=shown(path))
        inside = next((f"{to}{path[len(at) :]}" for at, to in places if path.startswith(at + "/")), None)
        final = inside or os.path.realpath(environment.prefix) + path[len(layout.prefix) :]
        there = os.stat(path)
        mode = there.st_mode & 0o777
        row = Row(final, FILE, digest, there.st_size, mode, owner.st_uid, owner.st_gid, there.st_mtime_ns)
        rows[final] = (row, path)
    return rows


# -- from an index


def fetched(index: str, environment: Environment, expected: Fact, stage: str) -> list[str] | str:
    """Fetch the wheels of a build from an index with lockd's own pip; or in words why there are none."""
    import importlib.util

    if importlib.util.find_spec("pip") is None:
        return "lockd's own environment has no pip to fetch it with: install one there, or give --wheels"
    folder = tempfile.mkdtemp(prefix="fetched-", dir=stage)
    name = expected.subject.rpartition("/")[2]
    command = [sys.executable, "-I", "-m", "pip", "--isolated", "download", "--no-deps", "--only-binary=:all:"]
    command += ["--disable-pip-version-check", "--no-input", "--no-cache-dir", "--quiet", "--dest", folder]
    command += ["--index-url", index, *_target(environment, expected), _requirement(name, expected)]
    words = {key: value for key, value in os.environ.items() if not key.startswith(("PIP_", "PYTHON", "LD_"))}
    words["PIP_CONFIG_FILE"] = os.devnull
    try:
        done = subprocess.run(
            command, cwd=folder, env=words, stdin=subprocess.DEVNULL, capture_output=True, timeout=_WAIT, check=False
        )
    except subprocess.TimeoutExpired:
        return f"{index} did not give it within {_WAIT / 60:.0f} minutes"
    wheels = [os.path.join(folder, file) for file in sorted(os.listdir(folder)) if file.endswith(".whl")]
    if done.returncode or not wheels:
        lines = done.stderr.decode("utf-8", "replace").strip().splitlines()
        return f"{index} did not give it: {shown(lines[-1]) if lines else 'pip said nothing'}"
    return wheels


def _requirement(name: str, expected: Fact) -> str:
    """Exactly that version: with `==` an index may give any local label of it."""
    versions = expected.attributes.get("metadata_version") or expected.attributes.get("version", "")
    version = str(versions)
    return f"{name}==={version}" if _version(version) == version and "+" not in version else f"{name}=={version}"


def _target(environment: Environment, expected: Fact) -> Iterator[str]:
    """The interpreter and the tags that the locked wheel had, whatever Python lockd runs on."""
    python = environment.interpreter
    yield from ("--python-version", python.minor)
    tags = [tag.split("-") for tag in str(expected.attributes.get("tag", "")).split(".") if tag.count("-") == 2]
    for platform in sorted({tag[2] for tag in tags} - {"any"}):
        yield from ("--platform", platform)
    native = [tag for tag in tags if tag[1] != "none"]
    if native:
        yield from ("--implementation", native[0][0][:2])
        for abi in sorted({tag[1] for tag in native}):
            yield from ("--abi", abi)
