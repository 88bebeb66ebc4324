"""The ground that an environment stands on: its trees, and where a path of a package lies in them.

Always holds: a path is answered from the trees where they hold it, and by one lstat elsewhere inside the prefix;
nothing outside the prefix is looked at. Paths are absolute, normalised, as the OS gives them.
Never: follows a folder that is a link out of the prefix.
"""

from __future__ import annotations

import os
import posixpath
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from lockd.disk import Disk, Entry, Tree, Trouble
from lockd.plain import dataclass, field
from lockd.probes.python.interpreter import Interpreter

_CONDA_APART = ("pkgs/**", "envs/**", "conda-bld/**")  # a base prefix holds the package cache and other environments


FILE, LINK, FOLDER, OTHER, EXECUTABLE, LINKED = 1, 2, 4, 8, 16, 32  # the last two beside FILE


class Listing(NamedTuple):
    """files: everything but folders, with its mark. tops: the names right under the folder. links: of all."""

    files: Mapping[str, int]
    tops: tuple[str, ...]
    links: tuple[str, ...] = ()


def mark(entry: Entry) -> int:
    """What of an entry counts for a package, in one small number (an Entry for each of 70,000 files would be 20 MB)."""
    kind = {"f": FILE, "l": LINK, "d": FOLDER}.get(entry.kind, OTHER)
    if kind != FILE:
        return kind
    return FILE | (EXECUTABLE if entry.mode & 0o111 else 0) | (LINKED if entry.links > 1 else 0)


@dataclass(frozen=True)
class Ground:
    """One environment's trees. `sites`: the site-packages folders; `trees`: by root, site folders before a prefix
    around them."""

    disk: Disk
    prefix: str
    bin: str
    sites: tuple[str, ...]
    trees: Mapping[str, Tree]
    excluded: tuple[str, ...] = ()
    _inside: dict[str, bool] = field(default_factory=dict)
    _listings: dict[str, Listing] = field(default_factory=dict)

    def locate(self, path: str) -> tuple[Tree, str] | None:
        """The tree that covers a path, and the path in it."""
        for root, tree in self.trees.items():
            if path.startswith(root + "/"):
                return tree, path[len(root) + 1 :]
        return None

    def entry(self, path: str) -> Entry | Trouble | None:
        """What is at an absolute path of this environment; None: nothing."""
        located = self.locate(path)
        if located is None:
            return self.disk.entry(path) if self.is_inside(path) else Trouble(path, "outside the environment")
        tree, relative = located
        entry = tree.entries.get(relative)
        return self._trouble_above(path, tree) if entry is None else entry

    def _trouble_above(self, path: str, tree: Tree) -> Trouble | None:
        """A missing name below a folder that could not be read is not missing, it is unknown."""
        for trouble in tree.troubles:
            if path == trouble.path or path.startswith(trouble.path.rstrip("/") + "/"):
                return trouble
        return None

    def link_above(self, path: str) -> str:
        """The link that took the place of a folder on the way to this path, in one of the trees; "" for none."""
        located = self.locate(path)
        folder = posixpath.dirname(located[1]) if located else ""
        while folder and located:
            entry = located[0].entries.get(folder)
            if entry is not None:
                return f"{located[0].root}/{folder}" if entry.kind == "l" else ""
            folder = posixpath.dirname(folder)
        return ""

    def is_inside(self, path: str) -> bool:
        """Does the folder of this path, links resolved, lie in the prefix?"""
        folder = posixpath.dirname(path)
        if folder not in self._inside:
            prefix = os.path.realpath(self.prefix).rstrip("/")
            self._inside[folder] = (os.path.realpath(folder) + "/").startswith(prefix + "/")
        return self._inside[folder]

    def place(self, site: str, path: str) -> str | None:
        """A path of a RECORD in `site`, normalised and relative to it; None where it leaves the prefix."""
        absolute = posixpath.normpath(posixpath.join(site, path.replace("\\", "/")))
        if not absolute.startswith(self.prefix.rstrip("/") + "/"):
            return None
        return posixpath.relpath(absolute, site)

    def listing(self, site: str) -> Listing:
        """The names of a site folder's tree; put together once: 70,000 entries take 0.3 s."""
        if site not in self._listings:
            marks = {name: mark(entry) for name, entry in self.trees[site].entries.items()}
            tops = tuple(name for name in marks if "/" not in name)
            links = tuple(name for name, one in marks.items() if one == LINK)
            self._listings[site] = Listing({name: one for name, one in marks.items() if one != FOLDER}, tops, links)
        return self._listings[site]

    def mark(self, path: str) -> int | None:
        """The mark of an absolute path in a site folder; None where there is none, or only `entry` can tell."""
        for site in self.sites:
            if path.startswith(site + "/"):
                return self.listing(site).files.get(path[len(site) + 1 :])
        return None

    def text(self, path: str) -> str | Trouble | None:
        """A small text file of this environment, undecodable bytes kept; None: nothing there."""
        entry = self.entry(path)
        if entry is None or isinstance(entry, Trouble):
            return entry
        content = self.disk.read(self.resolve(path, entry))
        return content if isinstance(content, Trouble) else content.decode("utf-8", "surrogateescape")

    def resolve(self, path: str, entry: Entry) -> str:
        """A file of a wheel may be a link into the installer's cache (uv's link mode `symlink`): the file that python
        would read."""
        return os.path.realpath(path) if entry.kind == "l" else path

    def troubles(self) -> Iterator[Trouble]:
        for tree in self.trees.values():
            yield from tree.troubles


def sites_of(interpreter: Interpreter) -> tuple[str, ...]:
    """The site folders of an environment, each once."""
    sites: dict[str, str] = {}
    for site in interpreter.site_packages:  # lib64 is a link to lib: one folder, one site
        sites.setdefault(os.path.realpath(site), site)
    return tuple(sites.values())


def open_ground(interpreter: Interpreter, disk: Disk, exclude: tuple[str, ...]) -> Ground:
    """Walk (or re-state) the trees of an environment."""
    sites = sites_of(interpreter)
    trees = {site: disk.tree(site, exclude, follow_root=True) for site in sites}
    if interpreter.kind == "conda":
        inner = [posixpath.relpath(site, interpreter.prefix) for site in sites]
        apart = (*_CONDA_APART, *(f"{site}/**" for site in inner if not site.startswith("..")))
        trees[interpreter.prefix] = disk.tree(interpreter.prefix, apart, follow_root=True)
    ordered = dict(sorted(trees.items(), key=lambda item: -len(item[0])))
    return Ground(disk, interpreter.prefix, interpreter.bin, sites, ordered, exclude)
