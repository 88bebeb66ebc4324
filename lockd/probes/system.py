"""Packages of the system: dpkg's status file read as it is, rpm asked within bounds.

Always holds: of dpkg a package is what its stanza says, its version, architecture, state and hold. A stanza that cannot
be read makes the answer incomplete, and that is said, as is a database in the midst of being written.
Never: runs dpkg, takes a lock, or writes.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from fnmatch import fnmatchcase
from typing import NamedTuple

from lockd.facts import shown
from lockd.probes import bounded

_LARGEST = 256 << 20
_RPM = ("rpm", "-qa", "--qf", r"%{NAME}\t%{EPOCH}:%{VERSION}-%{RELEASE}\t%{ARCH}\n")
_SECONDS = 5.0


class Package(NamedTuple):
    """One package. state: `installed`, or what else dpkg says of it. hold: kept back from upgrades."""

    name: str
    version: str
    architecture: str = ""
    state: str = "installed"
    hold: bool = False

    @property
    def installed(self) -> bool:
        return self.state == "installed"


class Trouble(NamedTuple):
    """Why the packages could not be told."""

    reason: str


def dpkg(root: str, wanted: Iterable[str]) -> list[Package]:
    """dpkg's packages of these names or globs; none where there is no dpkg, or where its file cannot be read."""
    found = read_dpkg(root, tuple(wanted))
    return [] if isinstance(found, Trouble) else found


def packages(root: str, wanted: tuple[str, ...]) -> list[Package] | Trouble:
    """The system's packages of these names or globs, by dpkg, else by rpm."""
    if os.path.exists(os.path.join(root, "var/lib/dpkg/status")):
        return read_dpkg(root, wanted)
    if any(os.path.exists(os.path.join(root, path)) for path in ("var/lib/rpm", "usr/lib/sysimage/rpm")):
        return _ask_rpm(wanted)
    return Trouble("no dpkg and no rpm database here")


def read_dpkg(root: str, wanted: tuple[str, ...]) -> list[Package] | Trouble:
    """From dpkg's status file."""
    path = os.path.join(root, "var/lib/dpkg/status")
    try:
        with open(path, "rb") as file:
            content = file.read(_LARGEST)
    except FileNotFoundError:
        return []
    except OSError as error:
        return Trouble(f"/var/lib/dpkg/status: {error.strerror}")
    pending = _pending(root)
    if pending:
        return Trouble(pending)
    if content.strip() and not content.endswith(b"\n"):
        return Trouble("/var/lib/dpkg/status is cut short")
    return sorted(parse_dpkg(content, wanted))


def parse_dpkg(content: bytes, wanted: tuple[str, ...]) -> Iterator[Package]:
    """The stanzas of these names. Configuration files alone (`deinstall ok config-files`) are no package."""
    match = _matcher(wanted)
    for stanza in content.split(b"\n\n"):
        if stanza.startswith(b"Package: "):
            name = stanza[9:].partition(b"\n")[0].decode("utf-8", "surrogateescape").strip()
            if match(name):
                package = _package(name, stanza)
                if package.state not in ("config-files", "not-installed"):
                    yield package


def _package(name: str, stanza: bytes) -> Package:
    fields = {}
    for line in stanza.split(b"\n"):
        key, colon, value = line.partition(b": ")
        if colon and not line.startswith(b" "):
            fields[key] = value.decode("utf-8", "surrogateescape").strip()
    want, _, state = (fields.get(b"Status", "") + "  ").split(" ")[:3]
    return Package(
        name, fields.get(b"Version", ""), fields.get(b"Architecture", ""), state or "unknown", want == "hold"
    )


def _pending(root: str) -> str:
    """dpkg writes what it did aside and merges it at the end: until then the status file is behind."""
    folder = os.path.join(root, "var/lib/dpkg/updates")
    try:
        waiting = [name for name in os.listdir(folder) if name.isdigit()]
    except OSError:
        return ""
    return "dpkg is in the midst of a change, or was interrupted: dpkg --configure -a ends it" if waiting else ""


def _ask_rpm(wanted: tuple[str, ...]) -> list[Package] | Trouble:
    answer = bounded.ask(_RPM, _SECONDS)
    if answer.problem:
        return Trouble(answer.problem)
    return sorted(parse_rpm(answer.text, wanted))


def parse_rpm(text: str, wanted: tuple[str, ...]) -> Iterator[Package]:
    """The lines of `rpm -qa`, as asked here."""
    match = _matcher(wanted)
    for line in text.splitlines():
        name, _, rest = line.partition("\t")
        version, _, architecture = rest.partition("\t")
        if version and match(name):
            yield Package(name, version.removeprefix("(none):"), architecture)


def _matcher(wanted: tuple[str, ...]) -> Callable[[str], bool]:
    plain = {one for one in wanted if not any(character in one for character in "*?[")}
    globs = [one for one in wanted if one not in plain]
    return lambda name: name in plain or any(fnmatchcase(name, glob) for glob in globs)


def line(package: Package) -> str:
    """A package in words."""
    more = "" if package.installed else f", {package.state}"
    return shown(f"{package.name} {package.version}{more}{', on hold' if package.hold else ''}")
