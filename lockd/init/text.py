"""The text of a first policy: what was found, each with where it comes from, `on_drift = "warn"` to begin with.

Always holds: the text validates; a section whose probe is not built stands as a comment; no value of a secret is in it.
Never: reads the machine.
"""

from __future__ import annotations

import glob
import json
import os
import re
from collections.abc import Container, Iterable, Iterator

from lockd.facts import shown
from lockd.init.configs import Config
from lockd.init.machine import Cache, Environment, Machine
from lockd.init.process import Process
from lockd.secrets import mask, mask_argv, token_like

HELD = re.compile(
    r"(TORCH|PYTORCH|NCCL|CUDA|CUBLAS|CUDNN|TRITON|OMP|MKL|XLA|JAX|TRANSFORMERS|ACCELERATE|DEEPSPEED|FLASHINFER|VLLM)\w*"
    r"|LD_LIBRARY_PATH|LD_PRELOAD|PYTHON(HASHSEED|NOUSERSITE|STARTUP|HOME)|TOKENIZERS_PARALLELISM|HF_\w+",
    re.ASCII,
)
_OF_ONE_RANK = re.compile(r"TORCHELASTIC_\w+|TORCH_NCCL_ASYNC_ERROR_HANDLING|NCCL_ASYNC_ERROR_HANDLING")
_ALWAYS = ("TORCHINDUCTOR_CACHE_DIR", "LD_LIBRARY_PATH", "CUDA_VISIBLE_DEVICES")
_MOST = 8  # rules of one kind; more is for a person to choose


def writable(path: str) -> bool:
    """Can this path stand in a policy? Not when it is no UTF-8, or holds a control character."""
    return path.isprintable() and not any(0xD800 <= ord(character) <= 0xDFFF for character in path)


def policy_text(name: str, machine: Machine, process: Process | None, built: Container[str]) -> str:
    """The whole file."""
    names = environment_names(machine.environments)
    main = next(iter(names.values()), "")
    libraries = [path for path in (process.libraries if process else ()) if writable(path)]
    parts = [
        _head(name, process),
        _launch(machine, process, main),
        *(_python(one, names[one.path]) for one in machine.environments[:_MOST] if one.path in names),
        *(_file(script, "a training script", keep=True) for script in machine.scripts[:_MOST]),
        *(_file(path, "mapped from outside the environment") for path in libraries[:_MOST]),
        *(_config(config) for config in machine.configs),
        *(_cache(cache, main, keep=bool(process and cache.set_by)) for cache in machine.caches),
        _env(process),
        *_not_built(machine, built),
    ]
    return "\n".join("\n".join(part) + "\n" for part in map(list, parts) if part)


def environment_names(environments: Iterable[Environment]) -> dict[str, str]:
    """Path → a name of its own: that of its folder, or of the folder above one that is called .venv or the like."""
    names: dict[str, str] = {}
    for one in environments:
        folder = os.path.basename(one.path)
        if re.fullmatch(r"\.?v?env\d*", folder):
            folder = os.path.basename(os.path.dirname(one.path)) or folder
        base = clean_name(folder) or "env"
        name, number = base, 2
        while name in names.values():
            name, number = f"{base[:60]}-{number}", number + 1
        names[one.path] = name
    return names


def clean_name(text: str) -> str:
    """A text as the name of a policy or an environment; empty where nothing is left of it."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", text).strip("-._")[:64]


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _remark(text: str, limit: int = 90) -> str:
    """A text of the machine, safe in a comment: one line, no secret, not long."""
    text = shown(mask(text))
    return text if len(text) <= limit else text[: limit - 1] + "…"


def _head(name: str, process: Process | None) -> Iterator[str]:
    yield "# A first policy, written by `lockd init` from what it found. Read it, take out what should not be held,"
    yield '# then `lockd policy check` and `lockd accept -m "first known-good"`.'
    if process:
        command = _remark(" ".join(mask_argv(process.argv)), 400)
        yield f"# From process {process.pid}: {command}"
        yield f"#   executable {_remark(process.exe)}, in {_remark(process.cwd)}"
        for path in process.deleted[:5]:
            yield f"#   it still uses {_remark(path)}, which is no longer what is on disk"
    yield "schema = 1"
    yield f"name = {_quoted(name)}"
    yield 'on_drift = "warn"   # say it, start anyway; "block" once a few days brought no surprise'
    yield 'on_unknown = "warn"'


def _launch(machine: Machine, process: Process | None, main: str) -> Iterator[str]:
    if not machine.scripts and not (process and process.module):
        return
    yield "[launch]"
    if process and process.module:
        yield f"modules = [{_quoted(process.module)}]"
    if machine.scripts:
        scripts = ", ".join(_quoted(glob.escape(script)) for script in machine.scripts[:_MOST])
        yield f"scripts = [{scripts}] # whose start is a launch"
    if main:
        yield f"python = {_quoted(main)} # the environment that a launch must use"


def _python(one: Environment, name: str) -> Iterator[str]:
    yield "[[python]]"
    yield f"name = {_quoted(name)}"
    yield f"path = {_quoted(one.path)} # a {one.kind}"
    yield 'integrity = "full" # every installed byte; "metadata": names and builds only'
    yield 'extra = "warn" # packages that the lock does not know'
    pins = {key: one.torch[key] for key in ("version", "cuda", "hip") if key in one.torch}
    if pins:
        table = ", ".join(f"{key} = {_quoted(value)}" for key, value in pins.items())
        yield ""
        yield "[python.packages] # as torch/version.py states it, with the label"
        yield f"torch = {{ {table} }}"
        if one.triton:
            yield f"triton = {_quoted('==' + one.triton)}"


def _file(path: str, why: str, *, keep: bool = False) -> Iterator[str]:
    yield f"[[file]] # {why}"
    yield f"path = {_quoted(glob.escape(path))}"
    if keep:
        yield "keep = true # keep the good text, for diff and restore"


def _config(config: Config) -> Iterator[str]:
    yield f"[[{'tree' if config.tree else 'file'}]] # {_remark(config.why)}"
    yield f"path = {_quoted(config.pattern)}"
    if config.tree:
        yield 'check = "full" # every byte'


def _cache(cache: Cache, main: str, *, keep: bool) -> Iterator[str]:
    yield f"[[cache]] # {'named by ' + cache.set_by if cache.set_by else 'at its default place'}"
    yield f"path = {_quoted(cache.path)}"
    yield f"kind = {_quoted(cache.kind)}"
    yield 'change = "grow" # accepted entries stay, new ones may come'
    if main and cache.kind in ("inductor", "triton", "torch_extensions"):
        yield f"python = {_quoted(main)}"
    if keep:
        yield "keep = true"


def _env(process: Process | None) -> Iterator[str]:
    """Variables as "locked": the values are in the lock, not here, and those of secrets nowhere."""
    environ = process.environ if process else {}
    yield '[env] # "locked": whatever the accepted launch had; unset counts'
    names = {name for name in environ if HELD.fullmatch(name) and not _OF_ONE_RANK.fullmatch(name)}
    for name in sorted(names | set(_ALWAYS)):
        if token_like(name, environ.get(name, "")):
            yield f"{name} = {{ secret = true }} # only a keyed digest is stored or shown"
        else:
            now = f" # now: {_remark(environ[name])}" if name in environ else " # now: unset" if process else ""
            yield f'{name} = "locked"{now}'
    pythonpath = environ.get("PYTHONPATH")
    if pythonpath:
        yield f'PYTHONPATH = "locked" # now: {_remark(pythonpath)}'
    else:
        yield "PYTHONPATH = { forbid = true } # nothing stands before the environment's packages"


def _not_built(machine: Machine, built: Container[str]) -> Iterator[Iterator[str]]:
    if machine.gpus:
        yield _gpu(machine.gpus, "" if "gpu" in built else "# ")
    repositories = sorted({root for script in machine.scripts if (root := _repository(script)) and writable(root)})
    for root in repositories[:_MOST]:
        yield _git(root, "" if "git" in built else "# ")


def _gpu(count: int, comment: str) -> Iterator[str]:
    if comment:
        yield "# This lockd has no gpu probe yet; a section without one is refused, so it is a comment."
    yield f"{comment}[gpu]"
    yield f"{comment}count = {count}"
    yield f'{comment}driver = "locked" # module, libcuda, libnvidia-ml and the fabric manager; they have to fit'
    yield f'{comment}# gpus = "locked" # ECC, MIG, persistence, power limit, clocks: NVML is asked at each look'
    yield f'{comment}# idle = "warn" # no other process on the GPUs'


def _git(root: str, comment: str) -> Iterator[str]:
    if comment:
        yield "# This lockd has no git probe yet; a section without one is refused, so it is a comment."
    yield f"{comment}[[git]]"
    yield f"{comment}path = {_quoted(root)}"
    yield f'{comment}on_drift = "record"'


def _repository(script: str) -> str:
    folder = os.path.dirname(script)
    while folder != "/":
        if os.path.exists(os.path.join(folder, ".git")):
            return folder
        folder = os.path.dirname(folder)
    return ""
