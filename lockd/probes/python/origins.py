"""Where a package came from: `direct_url.json` in words, and the checkout behind an editable install.

Always holds: an origin is one line without credentials. A checkout's commit is read from its files, the dirty state
through pygit2 where it is installed (which runs no filter, hook or attribute of the repository), and what could not
be told is said.
Never: runs git, goes to a network, or guesses an index (installers do not record it).
"""

from __future__ import annotations

import hashlib
import json
import os
import posixpath
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote, urlsplit, urlunsplit

from lockd.disk import Disk, Tree, Trouble
from lockd.facts import shown

SOURCES_APART = (
    "**/.git/**",
    "**/__pycache__/**",
    "**/*.pyc",
    "**/*.egg-info/**",
    "**/.venv/**",
    "**/venv/**",
    "**/node_modules/**",
    "**/wandb/**",
    "**/.ipynb_checkpoints/**",
)
# what Python or the loader takes, or a build makes into that; data in a checkout is no source
_CODE = re.compile(r"\.(?:pyi?|pyx|pxd|so|c|cc|cpp|cxx|cu|cuh|h|hpp|inl|toml|cfg|pth)", re.IGNORECASE)
_COMMIT = re.compile(r"[0-9a-f]{40}(?:[0-9a-f]{24})?")


@dataclass(frozen=True)
class Origin:
    """`text`: the origin in one line, "" for none (an index). editable: the checkout's absolute path, "" where it is
    none."""

    text: str = ""
    editable: str = ""
    problem: str = ""


def origin(direct_url: str) -> Origin:
    """Read a `direct_url.json` (PEP 610)."""
    if not direct_url:
        return Origin()
    try:
        raw: Any = json.loads(direct_url)
        url = raw["url"]
        vcs, archive, folder = raw.get("vcs_info"), raw.get("archive_info"), raw.get("dir_info")
        if vcs:
            below = f"#subdirectory={raw['subdirectory']}" if raw.get("subdirectory") else ""
            return Origin(shown(f"{vcs['vcs']}+{_public(url)}@{vcs['commit_id']}{below}"))
        if folder is not None:
            path = unquote(urlsplit(url).path)
            editable = bool(folder.get("editable"))
            return Origin(shown(f"{'editable' if editable else 'directory'} {path}"), path if editable else "")
        return Origin(shown(_archive(url, archive or {})))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return Origin(problem="broken: direct_url.json")


def _archive(url: str, info: Mapping[str, Any]) -> str:
    hashes = info.get("hashes") or dict([str(info["hash"]).split("=", 1)] if "=" in str(info.get("hash", "")) else [])
    digest = " ".join(f"{algorithm}:{value}" for algorithm, value in sorted(hashes.items()))
    if url.startswith("file:"):  # where the file lay differs from machine to machine; its bytes do not
        return f"wheel {digest}" if digest else f"wheel {unquote(url.rpartition('/')[2])}"
    return f"url {_public(url)}{' ' + digest if digest else ''}"


def _public(url: str) -> str:
    """A URL without user, password and query."""
    parts = urlsplit(url)
    return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))


# -- checkouts ---------------------------------------------------------------------------------------------------------


def commit(disk: Disk, checkout: str) -> str | None:
    """The commit that HEAD of the repository around a checkout names; None where there is no repository or it can't
    be read."""
    folder = _git_folder(disk, checkout)
    head = _line(disk, f"{folder}/HEAD") if folder else None
    if not folder or head is None:
        return None
    if not head.startswith("ref: "):
        return head if _COMMIT.fullmatch(head) else None
    common = _line(disk, f"{folder}/commondir")  # a linked worktree keeps its branches in the main one
    shared = posixpath.normpath(posixpath.join(folder, common)) if common else folder
    reference = head[5:]
    loose = _line(disk, f"{shared}/{reference}") if ".." not in reference else None
    return loose if loose and _COMMIT.fullmatch(loose) else _packed(disk, shared, reference)


def checkouts(disk: Disk, sites: Iterable[str]) -> Iterator[str]:
    """The folders that editable installs of these site folders import from."""
    for site in sites:
        for folder in os.listdir(site) if os.path.isdir(site) else ():
            path = f"{site}/{folder}/direct_url.json"
            content = disk.read(path, 1 << 20) if folder.endswith(".dist-info") and disk.entry(path) else b""
            found = origin(content.decode("utf-8", "replace")) if isinstance(content, bytes) else Origin()
            if found.editable:
                yield found.editable


def git_inputs(disk: Disk, checkout: str) -> tuple[str, ...]:
    """Files whose change may move `commit`."""
    folder = _git_folder(disk, checkout)
    if folder is None:
        return ()
    head = _line(disk, f"{folder}/HEAD") or ""
    branch = (f"{folder}/{head[5:]}",) if head.startswith("ref: ") and ".." not in head else ()
    return (f"{folder}/HEAD", f"{folder}/packed-refs", f"{folder}/index", *branch)


def _git_folder(disk: Disk, checkout: str) -> str | None:
    folder = checkout.rstrip("/")
    while folder:
        entry = disk.entry(f"{folder}/.git")
        if entry is not None and not isinstance(entry, Trouble):
            if entry.kind == "d":
                return f"{folder}/.git"
            pointer = _line(disk, f"{folder}/.git") or ""
            return posixpath.normpath(posixpath.join(folder, pointer[8:])) if pointer.startswith("gitdir: ") else None
        folder = folder.rpartition("/")[0]
    return None


def _line(disk: Disk, path: str) -> str | None:
    if disk.entry(path) is None:
        return None
    content = disk.read(path, 1 << 16)
    return (
        None if isinstance(content, Trouble) else content.decode("utf-8", "surrogateescape").partition("\n")[0].strip()
    )


def _packed(disk: Disk, folder: str, reference: str) -> str | None:
    if disk.entry(f"{folder}/packed-refs") is None:
        return None
    content = disk.read(f"{folder}/packed-refs")
    for line in [] if isinstance(content, Trouble) else content.splitlines():
        name, _, target = line.decode("utf-8", "surrogateescape").partition(" ")
        if target == reference and _COMMIT.fullmatch(name):
            return name
    return None


def dirty(disk: Disk, checkout: str) -> str:
    """`clean`, `sha256:…` over what differs from HEAD, or why that is not known."""
    try:
        import pygit2
    except ImportError:
        return "not looked at: pygit2 is not installed"
    found = pygit2.discover_repository(checkout)
    if found is None:
        return "not looked at: no repository"
    try:
        repository = pygit2.Repository(found)
        base = repository.workdir
        status = {path: flags for path, flags in repository.status(untracked_files="no").items() if flags}
    except (pygit2.GitError, KeyError, ValueError, OSError) as error:
        return f"not looked at: {shown(str(error))}"
    if not status:
        return "clean"
    digests = disk.digests(posixpath.join(base, path) for path in status)
    lines = sorted(f"{path}\0{digests.get(posixpath.join(base, path))}" for path in status)
    return "sha256:" + hashlib.sha256("\n".join(lines).encode("utf-8", "surrogateescape")).hexdigest()


def sources(disk: Disk, tree: Tree) -> str | Trouble:
    """One digest over the code files of a checkout, by path and content; a Trouble where one could not be read."""
    if tree.troubles:
        return tree.troubles[0]
    paths = {
        path: f"{tree.root}/{path}" for path, entry in tree.entries.items() if entry.kind == "f" and _is_code(path)
    }
    digests = disk.digests(paths.values())
    for digest in digests.values():
        if isinstance(digest, Trouble):
            return digest
    lines = sorted(f"{path}\0{digests[absolute]}" for path, absolute in paths.items())
    return "sha256:" + hashlib.sha256("\n".join(lines).encode("utf-8", "surrogateescape")).hexdigest()


def _is_code(path: str) -> bool:
    return _CODE.fullmatch(posixpath.splitext(path)[1]) is not None
