"""What is at each path that a package lists, in one short word a file.

Always holds: a file is its sha256 (`+x` where it may be executed), a script in `bin/` its bytes but the shebang, a
link where it leads, something gone `missing`. Links of a wheel's files are read through (an installer may link its
cache), conda's are not. What could not be read is a Trouble. All digests of an environment are asked for at once, so
that they are computed in parallel.
Never: opens what is not a regular file, or a path outside the prefix.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from lockd.disk import Entry, Trouble
from lockd.probes.python import scripts
from lockd.probes.python.ground import Ground
from lockd.probes.python.packages import Package

MISSING = "missing"
_SCRIPT = 1 << 20  # nothing larger in bin/ is a script


class Content(NamedTuple):
    """One path: `word` stands for it in manifests, `digest` is the sha256 of its bytes ("" where it has none)."""

    word: str
    digest: str = ""
    links: int = 1


Contents = Mapping[str, "Content | Trouble"]


def read(ground: Ground, packages: Iterable[Package]) -> dict[str, Content | Trouble]:
    """The content of every listed path, by absolute path."""
    found: dict[str, Content | Trouble] = {}
    wanted: dict[str, tuple[str, Entry]] = {}  # path → the file to digest, and its entry
    for package in packages:
        links = package.conda.links if package.conda else frozenset()
        for path in package.listed:
            absolute = package.absolute(path)
            if absolute not in found and absolute not in wanted:
                _sort(ground, absolute, path in links, found, wanted)
    digests = ground.disk.digests(target for target, _ in wanted.values())
    for absolute, (target, entry) in wanted.items():
        found[absolute] = _content(ground, absolute, target, entry, digests[target])
    return found


def _sort(
    ground: Ground,
    path: str,
    keep_link: bool,
    found: dict[str, Content | Trouble],
    wanted: dict[str, tuple[str, Entry]],
) -> None:
    entry = ground.entry(path)
    if entry is None:
        found[path] = Content(MISSING)
    elif isinstance(entry, Trouble):
        found[path] = entry
    elif entry.kind == "f":
        wanted[path] = path, entry
    elif entry.kind == "l" and not keep_link:
        target = os.path.realpath(path)
        behind = ground.disk.entry(target)
        if behind is not None and not isinstance(behind, Trouble) and behind.kind == "f":
            wanted[path] = target, behind
        else:
            found[path] = behind if isinstance(behind, Trouble) else _link(path)
    else:
        found[path] = (
            _link(path) if entry.kind == "l" else Content("folder" if entry.kind == "d" else "no regular file")
        )


def _link(path: str) -> Content | Trouble:
    try:
        return Content(f"-> {os.readlink(path)}")
    except OSError as error:
        return Trouble(path, error.strerror or str(error))


def _content(ground: Ground, path: str, target: str, entry: Entry, digest: str | Trouble) -> Content | Trouble:
    if isinstance(digest, Trouble):
        return digest
    word = digest
    if path.startswith(ground.bin + "/") and entry.size <= _SCRIPT:
        content = ground.disk.read(target)
        if isinstance(content, Trouble):
            return content
        word = scripts.word(content)
    return Content(f"{word}+x" if entry.mode & 0o111 else word, digest, entry.links)


def loose(ground: Ground, paths: Iterable[str]) -> dict[str, Content | Trouble]:
    """The content of files that no package owns (absolute paths); no link is read through."""
    found: dict[str, Content | Trouble] = {}
    wanted: dict[str, tuple[str, Entry]] = {}
    for path in paths:
        _sort(ground, path, True, found, wanted)
    digests = ground.disk.digests(target for target, _ in wanted.values())
    for path, (target, entry) in wanted.items():
        digest = digests[target]
        plain = (
            digest if isinstance(digest, Trouble) else Content(f"{digest}+x" if entry.mode & 0o111 else digest, digest)
        )
        found[path] = plain
    return found


def digest(manifest: Mapping[str, str]) -> str:
    """`sha256:…` over paths and words."""
    lines = "\n".join(sorted(f"{path}\0{word}" for path, word in manifest.items()))
    return "sha256:" + hashlib.sha256(lines.encode("utf-8", "surrogateescape")).hexdigest()


def manifest(package: Package, contents: Contents, skip: Iterable[str] = ()) -> dict[str, str] | Trouble:
    """Path → word of a package; conda's files that are as conda wrote them by their packed digest, so that prefixes
    don't count."""
    words: dict[str, str] = {}
    skipped = frozenset(skip)
    for path, recorded in package.listed.items():
        if path in skipped:
            continue
        content = contents[package.absolute(path)]
        if isinstance(content, Trouble):
            return content
        packed = package.conda.portable.get(path) if package.conda and content.digest == recorded else None
        words[path] = content.word if packed is None else f"packed {packed}"
    return words


def modified(ground: Ground, package: Package, contents: Contents, skip: Iterable[str] = ()) -> list[str]:
    """Listed files that are gone or are not what their own record says; a rewritten shebang is no difference."""
    skipped = frozenset(skip)
    differing = []
    for path, recorded in package.listed.items():
        content = contents[package.absolute(path)]
        if isinstance(content, Trouble) or path in skipped:
            continue
        if content.word == MISSING or (
            recorded and content.digest != recorded and not _excused(ground, package, path, recorded)
        ):
            differing.append(path)
    return sorted(differing)


def _excused(ground: Ground, package: Package, path: str, recorded: str) -> bool:
    absolute = package.absolute(path)
    if package.conda and path in package.conda.links:
        return True
    entry = ground.entry(absolute)
    if entry is None or isinstance(entry, Trouble) or entry.kind not in "fl":
        return False
    target = ground.resolve(absolute, entry)
    if ":" in recorded:
        content = ground.disk.read(target, 1 << 30)
        algorithm, _, digest = recorded.partition(":")
        return not isinstance(content, Trouble) and hashlib.new(algorithm, content).hexdigest() == digest
    if not absolute.startswith(ground.bin + "/") or entry.size > _SCRIPT:
        return False
    content = ground.disk.read(target)
    return not isinstance(content, Trouble) and scripts.only_shebang_differs(
        content, recorded, _interpreters(ground), _targets(ground, package)
    )


def _interpreters(ground: Ground) -> list[str]:
    names = ("python", "python3", *(os.path.basename(os.path.dirname(site)) for site in ground.sites))
    return [f"{ground.bin}/{name}" for name in names]


def _targets(ground: Ground, package: Package) -> frozenset[str]:
    texts = (ground.text(f"{one.site}/{one.folder}/entry_points.txt") for one in package.distributions)
    return frozenset(target for text in texts if isinstance(text, str) for target in scripts.entry_points(text))
