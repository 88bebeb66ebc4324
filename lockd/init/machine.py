"""What a first policy can name on this machine: environments, training scripts, compile caches, GPUs.

Always holds: only names, sizes and a few small files are read, in the places where such things usually lie, a level or
two deep and up to a bound; nothing found is run or imported. What was not found is not guessed.
Never: writes, or follows a link into a folder.
"""

from __future__ import annotations

import ast
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from lockd.init import configs
from lockd.init.configs import Config
from lockd.rules import CacheKind

_FOLDERS = 2_000  # looked into below one root
_TRAINING = re.compile(r"(?:pre)?train.*\.py|.*_train\.py|finetune.*\.py|sft.*\.py", re.DOTALL)
_STARTERS = re.compile(r"\b(?:torchrun|accelerate\s+launch|deepspeed|torch\.distributed\.(?:run|launch))\b")
_SCRIPT_WORD = re.compile(r"[\w./+-]+\.py\b")
_BUILD = {"__version__": "version", "cuda": "cuda", "hip": "hip", "git_version": "git"}  # of torch/version.py
_SKIPPED = {"node_modules", "__pycache__", "site-packages", "proc", "sys", "dev", "snap", "lib", "bin", "share"}
# kind, the variable that moves it, what comes after the variable's value, and the default below home
CACHES: tuple[tuple[CacheKind, str, str, str], ...] = (
    ("inductor", "TORCHINDUCTOR_CACHE_DIR", "", ""),
    ("triton", "TRITON_CACHE_DIR", "", ".triton/cache"),
    ("cuda", "CUDA_CACHE_PATH", "", ".nv/ComputeCache"),
    ("flashinfer", "FLASHINFER_WORKSPACE_BASE", ".cache/flashinfer", ".cache/flashinfer"),
    ("vllm", "VLLM_CACHE_ROOT", "torch_compile_cache", ".cache/vllm/torch_compile_cache"),
    ("huggingface", "HF_HOME", "hub", ".cache/huggingface/hub"),
    ("torch_extensions", "TORCH_EXTENSIONS_DIR", "", ".cache/torch_extensions"),
)


@dataclass(frozen=True)
class Environment:
    """A virtualenv or conda prefix. torch: what torch/version.py states (version, cuda, hip, git), or empty."""

    path: str
    kind: str
    torch: Mapping[str, str]
    triton: str = ""


@dataclass(frozen=True)
class Cache:
    """A compile cache that is there. set_by: the variable that names it, or empty."""

    path: str
    kind: CacheKind
    set_by: str = ""


@dataclass(frozen=True)
class Machine:
    """What was found, each sorted, environments with torch first."""

    environments: tuple[Environment, ...]
    scripts: tuple[str, ...]
    caches: tuple[Cache, ...]
    gpus: int
    configs: tuple[Config, ...] = ()


def look(environ: Mapping[str, str], cwd: str) -> Machine:
    """Everything that a first policy can name."""
    home = environ.get("HOME") or "/"
    environments = find_environments(_roots(home, cwd), environ)
    near = [cwd, *(os.path.dirname(one.path) for one in environments if one.torch)]
    prefix = environments[0].path if environments else ""
    found = configs.find(environ, home, cwd, started_with(near), prefix)
    return Machine(environments, find_scripts(near), find_caches(environ, home), count_gpus(), tuple(found))


# -- environments ------------------------------------------------------------------------------------------------------


def find_environments(roots: Iterable[str], environ: Mapping[str, str]) -> tuple[Environment, ...]:
    """Virtualenvs and conda prefixes in the roots, two levels deep, and the one that is active."""
    active = [environ[name] for name in ("VIRTUAL_ENV", "CONDA_PREFIX") if environ.get(name)]
    found: dict[str, Environment] = {}
    for folder in [*active, *(inner for root in roots for inner in _folders(root, 2))]:
        real = os.path.realpath(folder)
        kind = kind_of(real)
        if kind and real not in found:
            found[real] = read_environment(real, kind)
    return tuple(sorted(found.values(), key=lambda one: (not one.torch, one.path)))


def kind_of(folder: str) -> str:
    """ "virtualenv", "conda prefix", or empty."""
    if os.path.isfile(os.path.join(folder, "pyvenv.cfg")):
        return "virtualenv"
    return "conda prefix" if os.path.isdir(os.path.join(folder, "conda-meta")) else ""


def read_environment(path: str, kind: str) -> Environment:
    """An environment with the build of torch and triton in it."""
    for site in _site_packages(path):
        torch = _torch_build(os.path.join(site, "torch", "version.py"))
        if torch:
            return Environment(path, kind, torch, _dist_version(site, "triton"))
    return Environment(path, kind, {})


def _roots(home: str, cwd: str) -> list[str]:
    folders = [cwd, os.path.dirname(cwd), home, "/root", "/opt", "/srv", "/workspace"]
    for base in (home, "/root", "/opt"):
        for conda in ("miniconda3", "miniforge3", "anaconda3", "mambaforge", "conda"):
            folders.append(os.path.join(base, conda, "envs"))
    folders += [entry.path for entry in _listed("/home") if entry.is_dir(follow_symlinks=False)]
    return [folder for folder in dict.fromkeys(folders) if folder != "/"]


def _folders(root: str, depth: int) -> Iterator[str]:
    """The folders below a root, breadth first, not into environments, links and what holds no projects."""
    level, left = [root], _FOLDERS
    for _ in range(depth + 1):
        below: list[str] = []
        for folder in level:
            left -= 1
            if left < 0:
                return
            yield folder
            if not kind_of(folder):
                below += [
                    entry.path
                    for entry in _listed(folder)
                    if entry.name not in _SKIPPED and entry.is_dir(follow_symlinks=False)
                ]
        level = below


def _listed(folder: str) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            return sorted(entries, key=lambda entry: entry.name)
    except OSError:  # not there or not ours: nothing to name
        return []


def _site_packages(prefix: str) -> list[str]:
    library = os.path.join(prefix, "lib")
    return [
        os.path.join(entry.path, "site-packages") for entry in _listed(library) if entry.name.startswith("python3.")
    ]


def _torch_build(path: str) -> dict[str, str]:
    """The plain assignments of known names in torch/version.py, read as text."""
    try:
        with open(path, encoding="utf-8") as file:
            tree = ast.parse(file.read(1 << 16))
    except (OSError, SyntaxError, ValueError):
        return {}
    found = {}
    for node in tree.body:
        if isinstance(node, ast.AnnAssign):
            target: ast.expr = node.target
        elif isinstance(node, ast.Assign) and len(node.targets) == 1:
            target = node.targets[0]
        else:
            continue
        if isinstance(target, ast.Name) and target.id in _BUILD and isinstance(node.value, ast.Constant):
            value = node.value.value
            if isinstance(value, str) and value:
                found[_BUILD[target.id]] = value
    return found if "version" in found else {}


def _dist_version(site: str, package: str) -> str:
    names = [entry.name for entry in _listed(site) if re.fullmatch(rf"{package}-[^-]+\.dist-info", entry.name)]
    return names[0].removesuffix(".dist-info").partition("-")[2] if len(names) == 1 else ""


# -- scripts, caches, GPUs ---------------------------------------------------------------------------------------------


def find_scripts(folders: Iterable[str]) -> tuple[str, ...]:
    """Python files named like trainings, and those that a shell script there starts with torchrun and the like."""
    found: set[str] = set()
    for folder in dict.fromkeys(folders):
        for entry in _listed(folder)[:_FOLDERS] if folder != "/" else ():
            if not entry.is_file(follow_symlinks=False):
                continue
            if _TRAINING.fullmatch(entry.name):
                found.add(entry.path)
            elif entry.name.endswith(".sh"):
                found.update(_started_by(entry.path, folder))
    return tuple(sorted(found))


def _started_by(path: str, folder: str) -> Iterator[str]:
    for line in _starts(path):
        for word in _SCRIPT_WORD.findall(line):
            script = os.path.normpath(os.path.join(folder, word))
            if os.path.isfile(script):
                yield script


def _starts(path: str) -> Iterator[str]:
    """The lines of a shell script that start a training."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            text = file.read(1 << 16).replace("\\\n", " ")
    except OSError:
        return
    for line in text.splitlines():
        if _STARTERS.search(line) and not line.lstrip().startswith("#"):
            yield line


def started_with(folders: Iterable[str]) -> list[str]:
    """The words of all lines with which shell scripts there start trainings, paths made absolute."""
    words: list[str] = []
    for folder in dict.fromkeys(folders):
        for entry in _listed(folder)[:_FOLDERS] if folder != "/" else ():
            if entry.name.endswith(".sh") and entry.is_file(follow_symlinks=False):
                for word in (word.strip("\"'") for line in _starts(entry.path) for word in line.split()):
                    name, equals, value = word.rpartition("=")
                    words.append(f"{name}{equals}{os.path.join(folder, value) if '.' in value else value}")
    return words


def find_caches(environ: Mapping[str, str], home: str) -> tuple[Cache, ...]:
    """The caches that are there: where a variable says, else at their default place."""
    found: dict[str, Cache] = {}
    for kind, variable, below, default in CACHES:
        value = environ.get(variable)
        path = os.path.join(value, below) if value else os.path.join(home, default) if default else _inductor(environ)
        path = os.path.normpath(path)
        if os.path.isabs(path) and os.path.isdir(path) and path not in found:
            found[path] = Cache(path, kind, variable if value else "")
    return tuple(found.values())


def _inductor(environ: Mapping[str, str]) -> str:
    """torch's own default: `torchinductor_USER` in the folder for temporary files."""
    import pwd

    try:
        user = pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        user = str(os.geteuid())
    return os.path.join(environ.get("TMPDIR") or "/tmp", f"torchinductor_{user}")  # noqa: S108 - where torch puts it


def count_gpus() -> int:
    """The GPUs that the driver tells of, else the device nodes."""
    told = len(_listed("/proc/driver/nvidia/gpus"))
    return told or sum(bool(re.fullmatch(r"nvidia\d+", entry.name)) for entry in _listed("/dev"))
