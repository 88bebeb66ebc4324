"""The packages that metadata folders tell of: every `.dist-info`, `.egg-info` and `.egg-link`, sound or not.

Always holds: one Distribution a metadata folder, so that two of one name are seen as two; a file that could not be
read is a Trouble in it. Names are taken from the folder, as importlib.metadata looks them up, and normalised.
Never: imports or runs what it finds, or stops at the first of two (which one wins depends on the order of a directory).
"""

from __future__ import annotations

import json
import os
import posixpath
from collections.abc import Iterator
from urllib.parse import quote

from lockd.disk import Entry, Trouble
from lockd.facts import shown
from lockd.plain import dataclass
from lockd.probes.python.ground import Ground
from lockd.probes.python.names import is_metadata, split_folder, subject
from lockd.probes.python.record import Record, parse


@dataclass(frozen=True)
class Distribution:
    """One metadata folder (or file) and what it says. state: what is wrong with it, in words. record None: there is
    none."""

    name: str
    site: str
    folder: str
    version: str
    headers: tuple[tuple[str, str], ...]
    tags: tuple[str, ...]
    installer: str
    requested: bool
    direct_url: str
    record: Record | None
    top_level: tuple[str, ...]
    state: tuple[str, ...]
    troubles: tuple[Trouble, ...]

    @property
    def base(self) -> str:
        """The folder that the paths of its record are relative to."""
        return self.site

    def header(self, key: str) -> tuple[str, ...]:
        return tuple(value for name, value in self.headers if name == key)


def scan(ground: Ground) -> list[Distribution]:
    """Every distribution of every site folder, sorted by name and place."""
    found = [
        _read(ground, site, folder)
        for site in ground.sites
        for folder in ground.listing(site).tops
        if is_metadata(folder)
    ]
    found += [link for site in ground.sites for link in _egg_links(ground, site)]
    return sorted(found, key=lambda one: (one.name, one.site, one.folder))


def _read(ground: Ground, site: str, folder: str) -> Distribution:
    """1. the metadata, 2. the small notes beside it, 3. the record."""
    reader = _Reader(ground, f"{site}/{folder}")
    metadata = reader.text("METADATA" if folder.endswith(".dist-info") else "PKG-INFO")
    headers = parse_headers(metadata) if metadata else ()
    written, version = split_folder(folder)
    named = _first(headers).get("name", "")
    name = subject(written if folder.endswith(".dist-info") or not named else named) or subject(folder)
    state = list(_metadata_state(metadata, headers, name, named, folder))
    record = _record(reader, ground, site, folder)
    if record is None:
        state.append("unverifiable: no RECORD")
    elif folder.endswith(".dist-info"):
        state.extend(record.problems)
    wheel = reader.text("WHEEL")
    return Distribution(
        name=name,
        site=site,
        folder=folder,
        version=_first(headers).get("version", "") or version,
        headers=headers,
        tags=tuple(sorted({value for key, value in parse_headers(wheel or "") if key == "tag"})),
        installer=(reader.text("INSTALLER") or "").strip(),
        requested=reader.text("REQUESTED") is not None,
        direct_url=reader.text("direct_url.json") or "",
        record=record,
        top_level=tuple((reader.text("top_level.txt") or "").split()),
        state=(*state, *reader.odd),
        troubles=tuple(reader.troubles),
    )


def _first(headers: tuple[tuple[str, str], ...]) -> dict[str, str]:
    """The first value of each header, as importlib.metadata takes it."""
    return dict(reversed(headers))


def _metadata_state(
    metadata: str | None, headers: tuple[tuple[str, str], ...], name: str, named: str, folder: str
) -> Iterator[str]:
    what = "METADATA" if folder.endswith(".dist-info") else "PKG-INFO"
    if metadata is None:
        yield f"broken: {what} missing"
    elif not named or not _first(headers).get("version"):
        yield f"broken: {what} without name or version"
    elif subject(named) != name:
        yield f"broken: {what} names {shown(named)}"


class _Reader:
    """The small files of one metadata folder.

    What could not be read is kept as trouble; what is no file at all (a folder, a FIFO) is a fact, and told as `odd`.
    """

    def __init__(self, ground: Ground, folder: str) -> None:
        self.ground, self.folder = ground, folder
        self.troubles: list[Trouble] = []
        self.odd: list[str] = []

    def text(self, name: str) -> str | None:
        entry = self.ground.entry(self.folder)
        single = (
            entry is not None and not isinstance(entry, Trouble) and entry.kind in "fl"
        )  # distutils' one-file egg-info
        if single and name != "PKG-INFO":
            return None
        path = self.folder if single else f"{self.folder}/{name}"
        kind = self._kind(path)
        if kind not in ("f", "nothing"):
            self.odd.append(f"broken: {name} is no file")
        if kind != "f":
            return None
        found = self.ground.text(path)
        if isinstance(found, Trouble):
            self.troubles.append(found)
            return None
        return found

    def _kind(self, path: str) -> str:
        """What is there, links followed: "nothing" at their end; "f" as well where nothing can be judged here."""
        entry = self.ground.entry(path)
        if isinstance(entry, Entry) and entry.kind == "l":
            entry = self.ground.disk.entry(os.path.realpath(path))
            return "nothing" if entry is None else entry.kind if isinstance(entry, Entry) else "f"
        return entry.kind if isinstance(entry, Entry) else "f"


def _record(reader: _Reader, ground: Ground, site: str, folder: str) -> Record | None:
    text = reader.text("RECORD")
    if text is not None:
        return parse(text, folder, lambda path: ground.place(site, path))
    listed = reader.text("installed-files.txt")  # setuptools' own list, relative to the egg-info folder, without hashes
    if listed is None:
        return None
    rows = "\n".join(f"{folder}/{line},," for line in listed.splitlines() if line and '"' not in line)
    return parse(rows, folder, lambda path: ground.place(site, path))


def parse_headers(text: str) -> tuple[tuple[str, str], ...]:
    """The headers of METADATA, PKG-INFO or WHEEL, keys in lower case; the description is left out."""
    headers: list[tuple[str, str]] = []
    for line in text.splitlines():
        if not line.strip():
            break
        if line[0] in " \t" and headers:
            key, value = headers[-1]
            headers[-1] = key, f"{value} {line.strip()}"
            continue
        key, colon, value = line.partition(":")
        if colon:
            headers.append((key.strip().lower(), value.strip()))
    return tuple(headers)


def _egg_links(ground: Ground, site: str) -> Iterator[Distribution]:
    """`setup.py develop` leaves `NAME.egg-link` with the path of the checkout; the metadata lies there."""
    for file in ground.listing(site).tops:
        if file.endswith(".egg-link"):
            text = ground.text(f"{site}/{file}")
            name = file.removesuffix(".egg-link")
            path = text.splitlines()[0].strip() if isinstance(text, str) and text.strip() else ""
            url = json.dumps({"url": f"file://{quote(path)}", "dir_info": {"editable": True}})
            listed = Record({file: ""})
            state = () if path else ("broken: egg-link without a path",)
            troubles = (text,) if isinstance(text, Trouble) else ()
            version = _linked_version(ground, name, path)
            yield Distribution(
                subject(name), site, file, version, (), (), "", True, url if path else "", listed, (), state, troubles
            )


def _linked_version(ground: Ground, name: str, path: str) -> str:
    content = ground.disk.read(posixpath.join(path, f"{name.replace('-', '_')}.egg-info", "PKG-INFO")) if path else b""
    return (
        ""
        if isinstance(content, Trouble)
        else dict(parse_headers(content.decode("utf-8", "replace"))).get("version", "")
    )


def names_in(site: str) -> Iterator[tuple[str, str]]:
    """Name and version of each package of a site folder outside the environment, from the folders' names alone."""
    try:
        with os.scandir(site) as entries:
            folders = sorted(entry.name for entry in entries if is_metadata(entry.name))
    except OSError:
        return
    for folder in folders:
        name, version = split_folder(folder)
        yield subject(name), shown(version)
