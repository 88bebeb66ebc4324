"""Configuration and models that a training reads besides its code: accelerate, deepspeed, pip, uv, NCCL, the hub.

Always holds: only what is there is named, with who reads it; the places are those of the tools' own documentation, and
a variable that moves one moves it here. Names alone are looked at.
Never: opens one of them (pip.conf may hold a password), or keeps its content.
"""

from __future__ import annotations

import glob
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

ETC = "/etc"
_DEEPSPEED = ("--deepspeed", "--deepspeed_config", "--ds_config", "--deepspeed-config")
_ACCELERATE = ("--config_file", "--config-file")
_MODELS = 8  # more is for a person to choose
_TEXT = (
    "tokenizer*",
    "special_tokens_map.json",
    "vocab.*",
    "merges.txt",
    "chat_template*",
    "additional_chat_templates",
)


@dataclass(frozen=True)
class Config:
    """One rule to write. pattern: absolute, its own wildcards escaped. tree: a folder of which every byte counts."""

    pattern: str
    why: str
    tree: bool = False


def find(environ: Mapping[str, str], home: str, cwd: str, argv: Sequence[str] = (), prefix: str = "") -> list[Config]:
    """All that is there, each once. argv: of the launch, where one is known. prefix: of its environment."""
    named: dict[str, Config] = {}
    for path, why in (*_launched(argv, environ, home, cwd), *_tools(environ, home, prefix)):
        path = os.path.normpath(os.path.join(cwd, path))
        if os.path.isfile(path):
            named.setdefault(path, Config(glob.escape(path), why))
    return [*named.values(), *_hub(environ, home)]


def _launched(argv: Sequence[str], environ: Mapping[str, str], home: str, cwd: str) -> Iterator[tuple[str, str]]:
    """What the command line names, and accelerate's own where it names none."""
    for value in _values(argv, _DEEPSPEED):
        if value.endswith((".json", ".hjson")):
            yield value, "deepspeed's configuration, named by the launch"
    for value in _values(argv, _ACCELERATE):
        yield value, "accelerate's configuration, named by the launch"
    if environ.get("ACCELERATE_DEEPSPEED_CONFIG_FILE"):
        yield environ["ACCELERATE_DEEPSPEED_CONFIG_FILE"], "named by ACCELERATE_DEEPSPEED_CONFIG_FILE"
    for suffix in ("yaml", "yml", "json"):
        yield (
            os.path.join(_hf_home(environ, home), f"accelerate/default_config.{suffix}"),
            "what `accelerate config` wrote",
        )


def _values(argv: Sequence[str], options: tuple[str, ...]) -> Iterator[str]:
    for at, word in enumerate(argv):
        name, equals, value = word.partition("=")
        if name in options:
            yield value if equals else argv[at + 1] if at + 1 < len(argv) else ""


def _tools(environ: Mapping[str, str], home: str, prefix: str) -> Iterator[tuple[str, str]]:
    """pip, uv and NCCL: where a variable says, else all of their places that count together."""
    user = environ.get("XDG_CONFIG_HOME") or os.path.join(home, ".config")
    if environ.get("PIP_CONFIG_FILE") != os.devnull:
        places = [
            f"{ETC}/pip.conf",
            f"{home}/.pip/pip.conf",
            f"{user}/pip/pip.conf",
            environ.get("PIP_CONFIG_FILE", ""),
        ]
        places += [f"{prefix}/pip.conf"] if prefix else []
        yield from ((path, "pip's configuration: which index, which constraints") for path in places if path)
    if not environ.get("UV_NO_CONFIG"):
        moved = environ.get("UV_CONFIG_FILE")
        places = [moved] if moved else [f"{ETC}/uv/uv.toml", f"{user}/uv/uv.toml"]
        yield from ((path, "uv's configuration: which index, which constraints") for path in places)
    yield f"{ETC}/nccl.conf", "NCCL's configuration, of the machine"
    yield environ.get("NCCL_CONF_FILE") or f"{home}/.nccl.conf", "NCCL's configuration, of the user"


def _hf_home(environ: Mapping[str, str], home: str) -> str:
    cache = environ.get("XDG_CACHE_HOME") or os.path.join(home, ".cache")
    return environ.get("HF_HOME") or os.path.join(cache, "huggingface")


def _hub(environ: Mapping[str, str], home: str) -> Iterator[Config]:
    """Of each model: the revision that a name stands for, tokenizer and templates, its own code; and code fetched."""
    base = _hf_home(environ, home)
    hub = environ.get("HF_HUB_CACHE") or os.path.join(base, "hub")
    for model in _folders(hub, "models--")[:_MODELS]:
        name, folder = "/".join(model.split("--")[1:]), os.path.join(hub, model)
        if _folders(folder, "refs"):
            yield Config(f"{glob.escape(folder)}/refs/**", f"which revision of {name} a branch stands for")
        for pattern in (*_TEXT, "*.py"):
            if glob.glob(f"{glob.escape(folder)}/snapshots/*/{pattern}"):
                what = "code that comes with" if pattern == "*.py" else "tokenizer and templates of"
                yield Config(f"{glob.escape(folder)}/snapshots/*/{pattern}", f"{what} {name}")
    code = os.path.join(environ.get("HF_MODULES_CACHE") or os.path.join(base, "modules"), "transformers_modules")
    if os.path.isdir(code):
        yield Config(os.path.normpath(code), "code of models, fetched by trust_remote_code", tree=True)


def _folders(path: str, start: str) -> list[str]:
    try:
        with os.scandir(path) as entries:
            return sorted(one.name for one in entries if one.name.startswith(start) and one.is_dir())
    except OSError:  # not there or not ours: nothing to name
        return []
