"""The kinds of cache, one table: which names never count, and what the rest are called for people.

Always holds: `locks/`, `*.lock` and `.PID.TID.tmp` count in no kind; each kind adds what its own tools rewrite or
leave behind.
Never: reads a file.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from typing import NamedTuple

from lockd import globs

_NEVER = re.compile(r"(?:.*/)?(?:locks/.*|[^/]*\.lock|\.\d+\.\d+\.tmp)", re.DOTALL)


class Kind(NamedTuple):
    """One kind of cache. ignored: globs of what never counts. names: (glob, one, many), the first match counts."""

    ignored: tuple[str, ...]
    names: tuple[tuple[str, str, str], ...]


_BYTE_CODE = ("**/__pycache__/**",)
_NINJA = ("**/.ninja_log", "**/.ninja_deps", "**/.ninja_lock")
_TRITON_LEFT = ("**/tmp.pid_*",)  # the folder in which triton writes an entry before it renames it in
_TRITON = (
    ("**/*.cubin", "GPU binary", "GPU binaries"),
    ("**/*.hsaco", "GPU binary", "GPU binaries"),
    ("**/__grp__*.json", "kernel group", "kernel groups"),
    ("**/*.json", "kernel description", "kernel descriptions"),
    ("**/*.so", "compiled object", "compiled objects"),
    ("**/*.ptx", "PTX file", "PTX files"),
    ("**/*.ttir", "intermediate file", "intermediate files"),
    ("**/*.ttgir", "intermediate file", "intermediate files"),
    ("**/*.llir", "intermediate file", "intermediate files"),
    ("**/*.source", "intermediate file", "intermediate files"),
)
_INDUCTOR = (
    ("fxgraph/**", "FX graph", "FX graphs"),
    ("aotautograd/**", "AOTAutograd entry", "AOTAutograd entries"),
    ("**/*.best_config", "autotuned choice", "autotuned choices"),
    ("cache/**", "autotuning record", "autotuning records"),
    ("**/*.py", "generated module", "generated modules"),
    ("**/*.cpp", "generated source", "generated sources"),
    *_TRITON,
)

KINDS: Mapping[str, Kind] = {
    "inductor": Kind((*_BYTE_CODE, *_TRITON_LEFT), _INDUCTOR),
    "triton": Kind((*_BYTE_CODE, *_TRITON_LEFT), _TRITON),
    # the driver rewrites `index` with each entry that it uses
    "cuda": Kind(("index", "**/index"), (("**", "compiled kernel", "compiled kernels"),)),
    "flashinfer": Kind(
        (*_BYTE_CODE, *_NINJA, "**/*.log"),
        (
            ("**/*.so", "compiled object", "compiled objects"),
            ("**/*.o", "object file", "object files"),
            ("**/*.cubin", "GPU binary", "GPU binaries"),
            ("**/*.cu", "generated source", "generated sources"),
            ("**/*.cuh", "generated source", "generated sources"),
            ("**/build.ninja", "build file", "build files"),
        ),
    ),
    "vllm": Kind((*_BYTE_CODE, *_TRITON_LEFT, "usage_stats.json", "**/usage_stats.json"), (*_INDUCTOR,)),
    "huggingface": Kind(
        # `token` and `stored_tokens` are secrets; .no_exist is written by every look for an optional file
        (*_BYTE_CODE, "**/.locks/**", "**/.no_exist/**", "**/*.incomplete", "token", "stored_tokens", "**/xet/logs/**"),
        (
            ("**/refs/**", "reference", "references"),
            ("**/blobs/*", "blob", "blobs"),
            ("**/snapshots/**", "snapshot file", "snapshot files"),
            ("**/*.py", "remote module", "remote modules"),
        ),
    ),
    "torch_extensions": Kind(
        (*_BYTE_CODE, *_NINJA, "**/lock"),
        (
            ("**/*.so", "compiled extension", "compiled extensions"),
            ("**/*.o", "object file", "object files"),
            ("**/build.ninja", "build file", "build files"),
        ),
    ),
    "directory": Kind((), ()),
}


# What is filed under a key of the compiler, so that a moved key hides it. Seen on an H200 with torch 2.11: a comment in
# a module of torch made every FX graph, AOTAutograd entry and autotuned choice anew; triton's entries and the generated
# modules, which are named by their contents, were found again.
_GRAPHS = ("**/fxgraph/**", "**/aotautograd/**", "**/*.best_config")
_KERNELS = ("**/triton/**", "**/triton_cache/**")
FILED: Mapping[str, Mapping[str, tuple[str, ...]]] = {
    "inductor": {"torch_key": _GRAPHS, "triton_key": (*_GRAPHS, *_KERNELS)},
    "vllm": {"torch_key": _GRAPHS, "triton_key": (*_GRAPHS, *_KERNELS)},
    "triton": {"triton_key": ("**",)},
}


def filed(kind: str, paths: Iterable[str]) -> dict[str, int]:
    """How many of the entries are filed under each key that a cache of this kind knows: `filed_torch_key` → 11."""
    listed = list(paths)
    return {f"filed_{key}": sum(map(globs.matches(patterns), listed)) for key, patterns in FILED.get(kind, {}).items()}


@cache
def counts(kind: str) -> Callable[[str], bool]:
    """Whether a path relative to a cache of that kind is an entry of it."""
    ignored = globs.matches(KINDS[kind].ignored)
    return lambda path: _NEVER.fullmatch(path) is None and not ignored(path)


def holds(kind: str, paths: Iterable[str]) -> tuple[str, ...]:
    """What a cache holds, in words, most first: `24 GPU binaries`, `1 FX graph`."""
    names = [(globs.matches((glob,)), one, many) for glob, one, many in KINDS[kind].names]
    found = Counter(_named(path, names) for path in paths)
    ordered = sorted(found.items(), key=lambda item: (-item[1], item[0]))
    return tuple(f"{number:,} {one if number == 1 else many}" for (one, many), number in ordered)


def _named(path: str, names: Iterable[tuple[Callable[[str], bool], str, str]]) -> tuple[str, str]:
    return next(((one, many) for matches, one, many in names if matches(path)), ("other file", "other files"))
