"""Conda's own records: `conda-meta/*.json`, with build, channel and a digest for each file of the prefix.

Always holds: a record is read as data, bounded in size; one that is not JSON or lacks a name is a problem of the
package that its file's name tells, and a trouble where that tells none. A file's good digest is the one in this
prefix, its portable one that of the package before conda wrote the prefix into it.
Never: runs conda, or reads its package cache.
"""

from __future__ import annotations

import json
import posixpath
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from lockd.disk import Trouble
from lockd.facts import shown
from lockd.probes.python.ground import Ground
from lockd.probes.python.names import subject


@dataclass(frozen=True)
class CondaRecord:
    """One conda package. listed: path in the prefix → digest in this prefix ("" none); portable: where the packed
    digest differs. problem: why the record says nothing but what its file is called, or ""."""

    name: str
    version: str
    build: str
    channel: str
    file: str
    listed: Mapping[str, str]
    portable: Mapping[str, str]
    requires: tuple[str, ...]
    links: frozenset[str]
    problem: str = ""


def records(ground: Ground) -> tuple[list[CondaRecord], list[Trouble]]:
    """Every record of the prefix, sorted by name and file, and what could not be read."""
    found: list[CondaRecord] = []
    troubles: list[Trouble] = []
    tree = ground.trees.get(ground.prefix)
    for path in tree.entries if tree is not None else ():
        if path.startswith("conda-meta/") and path.endswith(".json") and path.count("/") == 1:
            read = _read(ground, path)
            if isinstance(read, Trouble):
                troubles.append(read)
            else:
                found.append(read)
    return sorted(found, key=lambda one: (one.name, one.file)), troubles


def _read(ground: Ground, path: str) -> CondaRecord | Trouble:
    absolute = f"{ground.prefix}/{path}"
    text = ground.text(absolute)
    if text is None or isinstance(text, Trouble):
        return text or Trouble(absolute, "gone while it was read")
    try:
        raw: Any = json.loads(text)
        listed, portable, links = _paths(raw)
        return CondaRecord(
            name=subject(raw["name"]),
            version=shown(str(raw.get("version", ""))),
            build=shown(str(raw.get("build", ""))),
            channel=_channel(raw),
            file=path,
            listed=listed,
            portable=portable,
            requires=tuple(sorted(shown(str(line)) for line in raw.get("depends") or ())),
            links=links,
        )
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        return _named(path) or Trouble(absolute, f"no conda record: {error or type(error).__name__}")


def _named(path: str) -> CondaRecord | None:
    """What the name of a record's file tells of a record that is none: `conda-meta/numpy-1.26.4-py311_0.json`."""
    parts = posixpath.basename(path).removesuffix(".json").rsplit("-", 2)
    if len(parts) < 3 or not all(parts):
        return None
    name, version, build = subject(parts[0]), shown(parts[1]), shown(parts[2])
    problem = f"broken: {shown(path)} is no conda record"
    return CondaRecord(name, version, build, "", path, {}, {}, (), frozenset(), problem)


def _paths(raw: Any) -> tuple[dict[str, str], dict[str, str], frozenset[str]]:
    listed: dict[str, str] = {}
    portable: dict[str, str] = {}
    links: set[str] = set()
    for row in (raw.get("paths_data") or {}).get("paths") or ():
        path, kind = row["_path"], row.get("path_type", "hardlink")
        if path.endswith(".pyc") or kind == "directory":
            continue
        packed = row.get("sha256") or ""
        listed[path] = row.get("sha256_in_prefix") or packed
        if kind == "softlink":
            links.add(path)
        elif packed and packed != listed[path]:
            portable[path] = packed
    for path in raw.get("files") or ():
        if not path.endswith(".pyc"):
            listed.setdefault(path, "")
    return listed, portable, frozenset(links)


def _channel(raw: Any) -> str:
    """`conda-forge/linux-64` from `https://conda.anaconda.org/conda-forge/linux-64`; a mirror's host is no part of a
    build."""
    parts = [part for part in str(raw.get("channel", "")).partition("://")[2].split("/")[1:] if part]
    if parts[:1] == ["t"]:  # /t/TOKEN/channel: a secret
        parts = parts[2:]
    parts = parts or [str(raw.get("channel", "")).rpartition("/")[2]]
    subdir = str(raw.get("subdir", ""))
    return shown("/".join(parts if not subdir or parts[-1] == subdir else [*parts, subdir]))
