"""Entries of a cache that cannot be whole, told by their own form: pickles, JSON, references and links of a model hub.

Always holds: an entry is named with what is wrong with it; nothing is said of an entry whose form is not known. At most
a megabyte of one entry is read.
Never: loads a pickle, follows a link out of the cache, or opens what is not a regular file.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

from lockd.facts import shown
from lockd.probes import paths

if TYPE_CHECKING:
    from lockd.disk import Entry

_LONGEST = 1 << 20
_END = b"."  # the STOP opcode, with which every pickle ends
_COMMIT = re.compile(rb"[0-9a-f]{40}\s*")
_JSON = (".json", ".best_config")
_PICKLES = ("fxgraph/", "aotautograd/")
_COMPILED = ("inductor", "triton", "vllm")


def unfinished(kind: str, root: str, entries: Mapping[str, Entry]) -> Iterator[str]:
    """`fxgraph/ab/…: cut off (a pickle without an end)` for each entry that is none."""
    if kind in _COMPILED:
        for path, entry in entries.items():
            told = _compiled(root, path, entry.size) if entry.kind == "f" else ""
            if told:
                yield f"{shown(path)}: {told}"
    elif kind == "huggingface":
        yield from _hub(root, entries)


def _compiled(root: str, path: str, size: int) -> str:
    if path.startswith(_PICKLES) or "/fxgraph/" in path or "/aotautograd/" in path:
        return "" if _read(root, path, max(0, size - 1), 1) == _END else "cut off (a pickle without an end)"
    if path.endswith(_JSON) and size <= _LONGEST:
        return "" if _is_json(_read(root, path, 0, _LONGEST)) else "cut off (no whole JSON)"
    return "" if size or path.endswith(".py") else "empty"


def _is_json(data: bytes) -> bool:
    try:
        json.loads(data)
    except (ValueError, RecursionError):
        return False
    return True


def _hub(root: str, entries: Mapping[str, Entry]) -> Iterator[str]:
    """References to a snapshot that is not there, and files of a snapshot whose blob is gone."""
    snapshots = {path.split("/snapshots/")[0] + "\0" + _after(path, "/snapshots/") for path in _below(entries)}
    for path, entry in entries.items():
        if "/refs/" in path and entry.kind == "f":
            commit = _read(root, path, 0, 64)
            name = commit.decode("ascii", "replace").strip()
            if not _COMMIT.fullmatch(commit):
                yield f"{shown(path)}: names no commit"
            elif path.split("/refs/")[0] + "\0" + name not in snapshots:
                yield f"{shown(path)}: snapshot {name[:12]} is not there"
        elif "/snapshots/" in path and entry.kind == "l" and not os.path.exists(os.path.join(root, path)):
            yield f"{shown(path)}: its blob is not there"


def _below(entries: Iterable[str]) -> Iterator[str]:
    return (path for path in entries if "/snapshots/" in path)


def _after(path: str, mark: str) -> str:
    return path.split(mark, 1)[1].split("/", 1)[0]


def _read(root: str, path: str, offset: int, length: int) -> bytes:
    """A piece of a regular file; empty where it cannot be read (its digest could, or the cache is unknown)."""
    try:
        descriptor = paths.open_regular(os.path.join(root, path))
    except OSError:
        return b""
    try:
        return os.pread(descriptor, length, offset)
    except OSError:
        return b""
    finally:
        os.close(descriptor)


# -- what writers left -------------------------------------------------------------------------------------------------

_WRITER = re.compile(r"(?:^|/)(?:\.(\d+)\.\d+\.tmp$|tmp\.pid_(\d+)_)")


def left_behind(kind: str, ignored: Mapping[str, Entry], alive: Callable[[int], bool]) -> Iterator[str]:
    """What never counts, but somebody should know: files of writers that died, downloads and locks that stand."""
    from lockd.clock import stamp

    for path, entry in ignored.items():
        writer = _WRITER.search(path)
        if writer and not alive(int(writer[1] or writer[2])):
            yield f"{shown(path)}: left by a writer that is gone"
        elif kind == "huggingface" and path.endswith(".incomplete"):
            yield f"{shown(path)}: unfinished download since {stamp(entry.mtime // 1_000_000_000)}"
        elif kind == "torch_extensions" and path.rpartition("/")[2] == "lock":
            since = stamp(entry.mtime // 1_000_000_000)
            yield f"{shown(path)}: build lock since {since}; every build waits for it until it goes"
