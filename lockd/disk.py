"""The file system as the probes see it: trees without following links, digests through a stat cache, bounded reads.

Always holds: nothing is opened that is not a regular file; no link is followed; names are surrogateescape strings as
`os` gives them; what could not be read is a `Trouble` with its reason; output order is sorted. A digest comes from
the cache only while file system, inode, size, mtime_ns, ctime_ns and mode are the same, it was not racy, and no
writable mapping could live (field notes).
Never: writes outside the cache folder, crosses into what `exclude` names, or caches a digest that it could not be
sure of.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterable, Mapping
from hashlib import sha256
from typing import NamedTuple

from lockd import hashing
from lockd.ahead import Ahead
from lockd.entries import Entries, Entry, Finder, entry_of
from lockd.globs import matches
from lockd.hashing import Hashed, Identity, Progress
from lockd.plain import dataclass, field
from lockd.statcache import (
    NO_DIGEST,
    Page,
    Record,
    joined,
    load,
    packed,
    prune,
    read_packed,
    store,
    unpacked,
    write_packed,
)
from lockd.walk import Excluded, folders_of, newcomers, refresh, row_of

__all__ = ["Disk", "Entry", "Progress", "Tree", "Trouble"]

_KEPT = 64  # cache files; those of roots that no policy names any more go first
_FEW = 64  # files that are read at once rather than waiting for all that are read ahead
_LOOSE = ("loose files",)  # the cache key of files that no tree holds


class Trouble(NamedTuple):
    """Something that could not be read: the path as the OS gave it, and the reason in words."""

    path: str
    reason: str


@dataclass(frozen=True)
class Tree:
    """What lies under `root` (absolute), by path relative to it, sorted; folders included, the root itself left out.

    stamp: equal stamps mean that facts derived from this tree (names, rows, `Disk.digests` and `Disk.read` of its
    files) are still true. It changes whenever any name, kind, size, time, inode or mode does. A file whose digest
    could not be trusted (it was younger than the clock's grain, or somebody could write to it) is read again at each
    look, and moves the stamp only when its bytes moved. A stamp says nothing of what lies outside the tree, and never
    meets one of a cache that was lost, or of a Disk without a cache.
    entries: holds for this look; at the next look of the same Disk it shows that one. missing: the root is not there.
    A root that is a link (unless it was to be followed) or a file is a Trouble.
    """

    root: str
    entries: Mapping[str, Entry]
    troubles: tuple[Trouble, ...]
    stamp: str
    missing: bool = False


@dataclass
class _Held:
    """A tree that this Disk knows.

    Root: as asked for; place: where it really lies; finder: None until this look has seen it. new: no look saw it
    before this one.
    """

    root: str
    place: str
    device: int
    key: tuple[object, ...]
    record: Record
    finder: Finder | None = None
    new: bool = False


class _Found:
    """Where a path lies in a held tree."""

    __slots__ = ("held", "index", "page", "relative")

    def __init__(self, held: _Held, relative: str, page: Page, index: int) -> None:
        self.held, self.relative, self.page, self.index = held, relative, page, index

    def row(self) -> bytes:
        """What this look saw of it."""
        return self.page.row(self.index)

    def is_file(self) -> bool:
        """Did this look see a regular file?"""
        return stat.S_ISREG(next(unpacked(self.row()))[0])

    def is_of(self, status: os.stat_result) -> bool:
        """Is this what a stat of it gives now?"""
        return self.is_at(hashing.identity_of(status))

    def is_at(self, identity: Identity) -> bool:
        """Is this identity the one that this look saw?"""
        return self.row() == packed([*identity[:6], identity[6] - self.held.device])


@dataclass
class _Loose:
    """Trusted digests of files outside all trees: path → (lasting identity, digest)."""

    known: dict[str, tuple[tuple[int, ...], bytes]] = field(default_factory=dict)
    dirty: bool = False


class Disk:
    """Looks at the file system, one after another; `new_look` begins the next. Within one look nothing is read twice.

    full: read every byte, whatever is known. cache_dir: where the stat cache lies between processes; None: nothing is
    kept.
    progress: called with (bytes done, bytes in all) of one `digests` at most ten times a second.
    """

    def __init__(self, *, full: bool = False, cache_dir: str | None = None, progress: Progress | None = None) -> None:
        self.full = full
        self._cache_dir, self._progress = cache_dir, progress
        self._held: dict[tuple[object, ...], _Held] = {}
        self._loose: _Loose | None = None
        self._hints: tuple[str, ...] | None = None
        self._ahead: tuple[Ahead, list[_Found]] | None = None
        self._begin()

    def _begin(self) -> None:
        self._leave_ahead()
        self._trees: dict[tuple[object, ...], Tree] = {}
        self._fresh: dict[str, Hashed | str] = {}  # readings that hold for this look only
        self._filesystems: dict[int, int] = {}
        self._remote = hashing.remote_devices()

    def new_look(self, hints: Iterable[str] | None = None) -> None:
        """Begin another look.

        hints: the absolute paths that may have changed since the last one, and no others; None: anything may have.
        """
        self._begin()
        self._hints = None if hints is None or self.full else tuple(hints)
        for held in self._held.values():
            held.finder = None
        if self.full:
            self._held.clear()
            self._loose = None

    @property
    def restates(self) -> bool:
        """Does this look re-state everything, and not only what hints name?"""
        return self._hints is None

    def tree(self, root: str, exclude: tuple[str, ...] = (), *, follow_root: bool = False) -> Tree:
        """Everything under `root`.

        `exclude`: globs relative to root, `**` crosses folders; an excluded folder is not entered.
        """
        root = root.rstrip("/") or "/"
        key = (root, tuple(exclude), follow_root)
        if key not in self._trees:
            self._trees[key] = self._look(key, root, matches(exclude), follow_root)
        return self._trees[key]

    def _look(self, key: tuple[object, ...], root: str, excluded: Excluded, follow_root: bool) -> Tree:
        try:
            place = os.path.realpath(root) if follow_root else root
            status = os.lstat(place)
        except (OSError, ValueError) as error:
            self._held.pop(key, None)
            why = hashing.reason(error)
            if why == "not there":
                return Tree(root, {}, (), "missing", missing=True)
            return _unreadable(root, why)
        if not stat.S_ISDIR(status.st_mode):
            self._held.pop(key, None)
            return _unreadable(root, f"{hashing.kind_of(status.st_mode)}, not a folder")
        held = self._hold(key, root, place, status)
        before = held.record.contents()
        hinted = self._hints is not None and held.record.root_row
        only = folders_of(held.record, held.place, self._hints or ()) if hinted else None
        held.record.unsure |= newcomers(held.record, held.place, self._hints or ()) if hinted else set()
        held.new = not held.record.root_row
        refresh(held.record, held.place, status, excluded, only)
        held.finder = Finder(held.record)
        self._read_again(held)
        if self.full:
            self._prove(held)
        held.record.dirty |= held.record.contents() != before
        troubles = sorted(held.record.troubles.items())
        listed = tuple(Trouble(f"{held.root}/{path}" if path else root, why) for path, why in troubles)
        return Tree(root, Entries(held.record, held.finder), listed, held.record.stamped())

    def _hold(self, key: tuple[object, ...], root: str, place: str, status: os.stat_result) -> _Held:
        filesystem = self._filesystem(status.st_dev, place)
        held = self._held.get(key)
        root, place = root.rstrip("/"), place.rstrip("/")  # "" for "/", so that "/name" can be put behind both
        if held is None or (held.record.filesystem, held.place) != (filesystem, place):
            known = None
            if self._cache_dir is not None:
                known = load(self._file(key), (*key, place), filesystem)
            held = _Held(root, place, status.st_dev, (*key, place), known or Record(filesystem))
            self._held[key] = held
        held.device = status.st_dev
        return held

    def _read_again(self, held: _Held) -> None:
        """Read the files whose digests could not be trusted.

        One that has other bytes under the same row salts the stamp.
        """
        record = held.record
        files: list[tuple[str, int]] = []
        places: list[tuple[Page, int]] = []
        for relative in sorted(record.untrusted):
            place = held.finder.find(relative) if held.finder else None
            if place:
                files.append((relative, place[0].size(place[1])))
                places.append(place)
            else:
                record.forget(relative)
        paths = [(f"{held.place}/{relative}", size) for relative, size in files]
        for index, result in hashing.hash_files(paths, self._remote):
            relative = files[index][0]
            before = record.untrusted[relative]
            now = result.digest if isinstance(result, Hashed) else b""
            self._remember(f"{held.root}/{relative}", result, [_Found(held, relative, *places[index])])
            if now != before:
                record.salted[relative] = now or sha256(str(result).encode()).digest()
                record.touch()

    def _prove(self, held: _Held) -> None:
        """Read every file whose digest was known; one that has other bytes under the same row salts the stamp.

        So a stamp that stands after a full look is proven by every byte that it answers for, and what was derived from
        it holds. A file whose row changed, or whose digest nobody ever asked for, has none here.
        """
        files: list[tuple[str, int]] = []
        known: list[tuple[str, Page, int]] = []
        for folder, pages in held.record.folders.items():
            for page in pages:
                if not page.digests:
                    continue
                for index, name in enumerate(page.listed()):
                    if page.digest(index):
                        relative = joined(folder, name)
                        files.append((f"{held.place}/{relative}", page.size(index)))
                        known.append((relative, page, index))

        def expected(number: int) -> bytes:
            _, page, index = known[number]
            return page.digest(index)

        for number, result in hashing.hash_files(files, self._remote, self._progress, expected):
            relative, page, index = known[number]
            before = page.digest(index)
            page.keep(index, NO_DIGEST)
            now = self._remember(f"{held.root}/{relative}", result, [_Found(held, relative, page, index)])
            if now != before.hex():
                held.record.salted[relative] = sha256(str(now).encode()).digest()
                held.record.touch()

    def foresee(self, tree: Tree, wanted: Callable[[str], bool]) -> None:
        """Begin to read the files of a tree that this look saw first, while the caller goes on; `digests` takes them.

        wanted: which names (without folders) will be asked for. Where a look saw the tree before, nothing is begun.
        """
        held = next((one for one in self._held.values() if one.root == tree.root.rstrip("/") and one.finder), None)
        if held is None or not held.new or self._ahead is not None:
            return
        files: list[tuple[str, int]] = []
        places: list[_Found] = []
        for folder, pages in held.record.folders.items():
            for page in pages:
                for index, name in enumerate(page.listed()):
                    if wanted(name) and page.is_file(index):
                        found = _Found(held, joined(folder, name), page, index)
                        files.append((f"{held.place}/{found.relative}", page.size(index)))
                        places.append(found)
        if hashing.worth_forking(sum(size for _, size in files), len(files)):
            self._ahead = Ahead(files, self._remote), places

    def _take_ahead(self, progress: Progress | None) -> None:
        """Take in what was read ahead."""
        if self._ahead is not None:
            ahead, places = self._ahead
            for index, result in ahead.results(progress):
                found = places[index]
                self._remember(f"{found.held.root}/{found.relative}", result, [found])
        self._leave_ahead()

    def _leave_ahead(self) -> None:
        if self._ahead is not None:
            self._ahead[0].end()
            self._ahead = None

    def digests(self, paths: Iterable[str], progress: Progress | None = None) -> dict[str, str | Trouble]:
        """sha256 hex of each regular file (absolute paths, no link followed in the last component), in parallel."""
        answers: dict[str, str | Trouble] = dict.fromkeys(paths, "")
        if len(answers) > _FEW:
            self._take_ahead(progress or self._progress)
        misses: list[tuple[str, int]] = []
        places: list[list[_Found]] = []
        for path in answers:
            found = self._find(path)
            known, size = self._known(path, found)
            if known is None:
                misses.append((path, size))
                places.append(found)
            else:
                answers[path] = known
        for index, result in hashing.hash_files(misses, self._remote, progress or self._progress):
            path = misses[index][0]
            answers[path] = self._remember(path, result, places[index])
        return answers

    def _known(self, path: str, found: list[_Found]) -> tuple[str | Trouble | None, int]:
        """(the answer, when it can be given without reading; the file's size, for sharing out the work)."""
        if path in self._fresh:
            result = self._fresh[path]
            if isinstance(result, str) or all(place.is_at(result.identity) for place in found):
                return self._remember(path, result, found), 0
        if found:
            digests = {(place.row(), place.page.digest(place.index)) for place in found}
            ((_, digest),) = digests if len(digests) == 1 else ((b"", b""),)  # trees that differ: it changes just now
            return (digest.hex(), 0) if digest else (None, found[0].page.size(found[0].index))
        try:
            identity = hashing.identity_of(os.lstat(path))
        except (OSError, ValueError) as error:
            return Trouble(path, hashing.reason(error)), 0
        known = self._loose_files().known.get(path)
        if known is not None and known[0] == self._lasting(path, identity):
            return known[1].hex(), 0
        return None, identity[2]

    def _find(self, path: str) -> list[_Found]:
        """The places of a path in the trees that this look has seen."""
        places = []
        for held in self._held.values():
            if held.finder is not None and path.startswith(held.root + "/"):
                relative = path[len(held.root) + 1 :]
                found = held.finder.find(relative)
                if found is not None:
                    places.append(_Found(held, relative, *found))
        return places

    def _remember(self, path: str, result: Hashed | str, found: list[_Found]) -> str | Trouble:
        """Keep what a reading gave, in all trees that hold the file, as far as it can be trusted; give the answer."""
        kept = [_note(place, result) for place in found]
        trusted = isinstance(result, Hashed) and result.trusted
        if not trusted or not all(kept):
            self._fresh[path] = result
        if isinstance(result, str):
            return Trouble(path, result)
        if trusted and not found:
            loose = self._loose_files()
            loose.known[path] = (self._lasting(path, result.identity), result.digest)
            loose.dirty = True
        return result.digest.hex()

    def entry(self, path: str) -> Entry | Trouble | None:
        """lstat of one path, now. None: not there."""
        try:
            status = os.lstat(path)
        except (OSError, ValueError) as error:
            why = hashing.reason(error)
            return None if why == "not there" else Trouble(path, why)
        return entry_of(tuple(row_of(status, status.st_dev)))

    def read(self, path: str, limit: int = 16 << 20) -> bytes | Trouble:
        """The bytes of one regular file, no more than `limit` (a larger one is a Trouble).

        In a tree, its stamp answers for them.
        """
        found = hashing.read_file(path, limit, self._remote)
        if isinstance(found, str):
            if found != hashing.too_large(limit):
                self._remember(path, found, self._find(path))
            return Trouble(path, found)
        self._remember(path, found[1], self._find(path))
        return found[0]

    # for whoever reads every byte behind the looks

    def folders(self) -> list[str]:
        """Every folder that the last look saw, sorted, each once."""
        found = {f"{held.place}/{name}".rstrip("/") for held in self._held.values() for name in held.record.folders}
        return sorted(found.union(map(os.path.dirname, self._loose_files().known)))

    def hashed_in(self, folder: str) -> list[tuple[str, Callable[[os.stat_result], bool], bytes]]:
        """(path, "is this still the row that was seen?", trusted digest) of the files directly in one folder."""
        listed: dict[str, tuple[str, Callable[[os.stat_result], bool], bytes]] = {}
        for held in self._held.values():
            if folder != held.place and not folder.startswith(f"{held.place}/"):
                continue
            for page in held.record.folders.get(folder[len(held.place) + 1 :], ()) if held.finder else ():
                for index, name in enumerate(page.listed() if page.digests else ()):
                    digest, path = page.digest(index), f"{folder}/{name}"
                    if digest:
                        found = _Found(held, path[len(held.place) + 1 :], page, index)
                        listed[path] = (path, found.is_of, digest)
        for path, (lasting, digest) in self._loose_files().known.items():
            if os.path.dirname(path) == folder and path not in listed:
                listed[path] = (path, self._is_loose(path, lasting), digest)
        return list(listed.values())

    def _is_loose(self, path: str, lasting: tuple[int, ...]) -> Callable[[os.stat_result], bool]:
        return lambda status: self._lasting(path, hashing.identity_of(status)) == lasting

    def disprove(self, path: str, digest: bytes) -> None:
        """Other bytes than the trusted ones were read under the same row: never trust that digest again."""
        self._loose_files().known.pop(path, None)
        for held in self._held.values():
            if held.finder is None or not path.startswith(f"{held.place}/"):
                continue
            relative = path[len(held.place) + 1 :]
            place = held.finder.find(relative)
            if place is not None:
                place[0].keep(place[1], NO_DIGEST)
                held.record.untrusted[relative] = held.record.salted[relative] = digest
                held.record.dirty = True
                held.record.touch()

    def save(self) -> Trouble | None:
        """Write what changed in the cache.

        A cache that cannot be written costs time at the next look, nothing else: told, not raised.
        """
        self._leave_ahead()
        if self._cache_dir is None:
            return None
        try:
            os.makedirs(self._cache_dir, mode=0o700, exist_ok=True)
            for key, held in self._held.items():
                if held.record.dirty:
                    store(self._file(key), held.key, held.record)
                    prune(self._cache_dir, (".stat",), _KEPT)
            if self._loose is not None and self._loose.dirty:
                write_packed(self._file(_LOOSE), _LOOSE, self._loose.known)
                self._loose.dirty = False
        except OSError as error:
            return Trouble(self._cache_dir, hashing.reason(error))
        return None

    def _loose_files(self) -> _Loose:
        if self._loose is None:
            known = read_packed(self._file(_LOOSE), _LOOSE) if self._cache_dir is not None and not self.full else None
            self._loose = _Loose(known or {})
        return self._loose

    def _lasting(self, path: str, identity: Identity) -> tuple[int, ...]:
        """An identity that outlives a reboot: device numbers go by mount order, file system ids stay."""
        return (*identity[:6], self._filesystem(identity[6], path))

    def _filesystem(self, device: int, path: str) -> int:
        if device not in self._filesystems:
            try:
                self._filesystems[device] = os.statvfs(path).f_fsid or device
            except OSError:
                return device
        return self._filesystems[device]

    def _file(self, key: tuple[object, ...]) -> str:
        name = sha256(repr(key).encode("utf-8", "backslashreplace")).hexdigest()[:32]
        return os.path.join(self._cache_dir or "", f"{name}.stat")


def _note(place: _Found, result: Hashed | str) -> bool:
    """Note in a tree's record what a reading of one of its files gave. True: kept, as a trusted digest."""
    record, relative = place.held.record, place.relative
    if isinstance(result, Hashed):
        if not place.is_at(result.identity):
            return False  # it changed since the tree was looked at, which the next look will see by its row
        if result.trusted:
            place.page.keep(place.index, result.digest)
            record.untrusted.pop(relative, None)
            record.dirty = True
            return True
    digest = result.digest if isinstance(result, Hashed) else b""  # a trouble: to be tried again at the next look
    if place.is_file() and record.untrusted.get(relative) != digest:
        record.untrusted[relative] = digest
        record.dirty = True
    return False


def _unreadable(root: str, why: str) -> Tree:
    # The stamp is of this one look: what was wrong may be mended without a trace in anything that could be stamped
    return Tree(root, {}, (Trouble(root, why),), f"trouble {os.urandom(16).hex()}")
