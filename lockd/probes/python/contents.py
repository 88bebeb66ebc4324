"""What is at each path that a package lists, in one short word a file.

Always holds: a file is its sha256 (`+x` where it may be executed), a script in `bin/` its bytes but the shebang, a
link where it leads, something gone `missing`. Links of a wheel's files are read through (an installer may link its
cache; one that leads to nothing is a file gone), conda's are not. What could not be read is a Trouble. All digests of
an environment are asked for at once, so that they are computed in parallel.
Never: opens what is not a regular file, or a path outside the prefix.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from lockd.disk import Entry, Trouble
from lockd.probes.python import scripts
from lockd.probes.python.ground import EXECUTABLE, FILE, LINKED, Ground, mark
from lockd.probes.python.packages import Package

MISSING = "missing"
BEHIND = "behind a link"  # in a folder of which a link took the place: python would read it, this probe follows none
_SCRIPT = 1 << 20  # nothing larger in bin/ is a script


class Content(NamedTuple):
    """One path: `word` stands for it in manifests, `digest` is the sha256 of its bytes ("" where it has none).

    linked: the file has another name elsewhere (a hard link into an installer's cache).
    """

    word: str
    digest: str = ""
    linked: bool = False


Contents = Mapping[str, "Content | Trouble"]


@dataclass
class _Reading:
    """Paths on their way to their contents: found out at once, or files whose digests are wanted (path → mark)."""

    ground: Ground
    found: dict[str, Content | Trouble] = field(default_factory=dict)
    wanted: dict[str, int] = field(default_factory=dict)
    targets: dict[str, str] = field(default_factory=dict)  # of links that are read through

    def add(self, path: str, *, keep_link: bool) -> None:
        """Sort one absolute path in."""
        if path in self.wanted or path in self.found:
            return
        known = self.ground.mark(path)
        if known is not None and known & FILE:
            self.wanted[path] = known
            return
        entry = self.ground.entry(path)
        if entry is None or isinstance(entry, Trouble):
            self.found[path] = self._nothing(path) if entry is None else entry
        elif entry.kind == "f":
            self.wanted[path] = mark(entry)
        elif entry.kind == "l":
            self._add_link(path, keep_link)
        else:
            self.found[path] = Content("folder" if entry.kind == "d" else "no regular file")

    def _nothing(self, path: str) -> Content:
        return Content(BEHIND if self.ground.link_above(path) else MISSING)

    def _add_link(self, path: str, keep_link: bool) -> None:
        target = os.path.realpath(path)
        behind = None if keep_link else self.ground.disk.entry(target)
        if isinstance(behind, Trouble):
            self.found[path] = behind
        elif behind is not None and behind.kind == "f":
            self.wanted[path], self.targets[path] = mark(behind), target
        else:
            self.found[path] = _link(path) if keep_link or behind else Content(MISSING)

    def finish(self) -> dict[str, Content | Trouble]:
        """Digest what is wanted, all at once."""
        digests = self.ground.disk.digests([self.targets.get(path, path) for path in self.wanted])
        scripts_folder = self.ground.bin + "/"
        for path, marked in self.wanted.items():
            digest = digests[self.targets.get(path, path)]
            word = self._script(path, digest) if path.startswith(scripts_folder) else digest
            if isinstance(digest, Trouble):
                self.found[path] = digest
            elif isinstance(word, Trouble):
                self.found[path] = word
            else:
                text = f"{word}+x" if marked & EXECUTABLE else word
                self.found[path] = Content(text, digest, bool(marked & LINKED))
        return self.found

    def _script(self, path: str, digest: str | Trouble) -> str | Trouble:
        entry = self.ground.disk.entry(self.targets.get(path, path))
        if not isinstance(entry, Entry) or entry.size > _SCRIPT:
            return digest
        content = self.ground.disk.read(self.targets.get(path, path))
        return content if isinstance(content, Trouble) else scripts.word(content)


def read(ground: Ground, packages: Iterable[Package]) -> dict[str, Content | Trouble]:
    """The content of every listed path, by absolute path."""
    reading = _Reading(ground)
    for package in packages:
        links = package.conda.links if package.conda else frozenset()
        for path in package.listed:
            reading.add(package.absolute(path), keep_link=path in links)
    return reading.finish()


def loose(ground: Ground, paths: Iterable[str]) -> dict[str, Content | Trouble]:
    """The content of files that no package owns (absolute paths); no link is read through."""
    reading = _Reading(ground)
    for path in paths:
        reading.add(path, keep_link=True)
    return reading.finish()


def _link(path: str) -> Content | Trouble:
    try:
        return Content(f"-> {os.readlink(path)}")
    except OSError as error:
        return Trouble(path, error.strerror or str(error))


def digest(manifest: Mapping[str, str]) -> str:
    """`sha256:…` over paths and words."""
    return digest_of(sorted(f"{path}\0{word}" for path, word in manifest.items()))


def digest_of(lines: Iterable[str]) -> str:
    """The same, of lines of path, NUL and word that are sorted already."""
    return "sha256:" + hashlib.sha256("\n".join(lines).encode("utf-8", "surrogateescape")).hexdigest()


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
        if content.word in (MISSING, BEHIND) or (
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
