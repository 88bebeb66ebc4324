"""One package as a fact: the build identity that is compared, and what is told with it.

Always holds: equal installs of one wheel give equal attributes, whoever installed them and wherever they lie. A
package of which a part could not be read is an Unknown. Texts from the machine are escaped.
Never: decides what a difference means.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

from lockd import torchkeys
from lockd.disk import Disk, Entry, Trouble
from lockd.facts import Fact, Unknown, Value, shown
from lockd.hashing import kind_of
from lockd.probes.python import builds, contents, origins
from lockd.probes.python.contents import Content
from lockd.probes.python.ground import Ground
from lockd.probes.python.names import normal
from lockd.probes.python.packages import Package
from lockd.rules import PythonRule

EXAMPLES = 5
_PLAIN = re.compile(r"([A-Za-z0-9][-A-Za-z0-9_.]*)\s*(?:\[[^]]*\])?\s*\(?([^;()@]*)\)?\s*")
_EXTRA = re.compile(r"\bextra\s*==")


@dataclass(frozen=True)
class Surroundings:
    """What the packages of one environment are described with. contents None: `integrity = "metadata"`."""

    rule: PythonRule
    ground: Ground
    version: str
    contents: Mapping[str, Content | Trouble] | None
    shared: Mapping[str, tuple[str, ...]]
    is_excluded: Callable[[str], bool]


def package_fact(package: Package, around: Surroundings) -> tuple[Fact | Unknown, dict[str, str]]:
    """The fact of one package and its manifest. 1. the build, 2. its origin, 3. what is on disk."""
    subject = f"{around.rule.name}/{package.name}"
    skip = [path for path in package.listed if around.is_excluded(package.absolute(path))]
    attributes: dict[str, Value] = _build(package, around.ground)
    state = list(package.state)
    told: dict[str, Value] = _told(package, around)
    troubles = list(package.troubles)
    checkout = _origin(package, around, attributes, state)
    if isinstance(checkout, Trouble):
        troubles.append(checkout)
    manifest = _on_disk(package, around, skip, attributes, told, state)
    if isinstance(manifest, Trouble):
        troubles.append(manifest)
    if troubles:
        first = troubles[0]
        return Unknown("package", subject, f"{shown(first.path)}: {first.reason}"), {}
    attributes["state"] = "; ".join(sorted(set(state)))
    attributes["shared"] = around.shared.get(package.name, ())
    told.update(_keys(package, around))
    kept = {name: value for name, value in attributes.items() if value not in ("", ())}
    assert not isinstance(manifest, Trouble)
    return Fact("package", subject, kept, told), manifest


def _build(package: Package, ground: Ground) -> dict[str, Value]:
    main, conda = package.main, package.conda
    stated = builds.stated(package.name, _reader(package, ground)) if main else {}
    version = (
        builds.version(package.version, stated.get("version", ""))
        if len(package.distributions) < 2
        else package.version
    )
    attributes = {
        "version": version,
        "metadata_version": package.version if main else "",
        "tag": ".".join(main.tags) if main else "",
        "build": conda.build if conda else "",
        "channel": conda.channel if conda else "",
        "conda": conda.name if conda and conda.name != package.name else "",
        "cuda": stated.get("cuda", ""),
        "hip": stated.get("hip", ""),
        "git": stated.get("git", ""),
        "abi": builds.abi(version) or "",
        "record": _record(package),
    }
    return {name: shown(text) for name, text in attributes.items()}


def _reader(package: Package, ground: Ground) -> Callable[[str], str | None]:
    def read(path: str) -> str | None:
        main = package.main
        text = ground.text(f"{main.site}/{path}") if main else None
        return text if isinstance(text, str) else None

    return read


def _record(package: Package) -> str:
    identities = sorted({one.record.identity for one in package.distributions if one.record and one.record.identity})
    if package.conda is None:
        return " ".join(identities)
    packed = package.conda.portable
    rows = sorted(f"{path},{packed.get(path, digest)}" for path, digest in package.conda.listed.items())
    return "sha256:" + hashlib.sha256("\n".join(rows).encode("utf-8", "surrogateescape")).hexdigest()


# -- origin ------------------------------------------------------------------------------------------------------------


def checkout_of(package: Package) -> str:
    """The folder that an editable install imports from, or ""."""
    return next((path for one in package.distributions if (path := origins.origin(one.direct_url).editable)), "")


def _origin(package: Package, around: Surroundings, attributes: dict[str, Value], state: list[str]) -> Trouble | None:
    found = [origins.origin(one.direct_url) for one in package.distributions]
    attributes["origin"] = ", ".join(sorted({one.text for one in found if one.text}))
    state += [one.problem for one in found if one.problem]
    checkout = checkout_of(package)
    if not checkout:
        return None
    disk = around.ground.disk
    other = _no_folder(disk, checkout)
    if other:  # another thing in its place was read well: it is broken, not unknown
        state.append(f"broken: {shown(checkout)} is {other}, not a folder")
        return None
    tree = disk.tree(checkout, origins.SOURCES_APART, follow_root=True)
    if tree.missing:
        state.append(f"broken: {shown(checkout)} is missing")
        return None
    attributes["commit"] = origins.commit(disk, checkout) or ""
    attributes["dirty"] = origins.dirty(disk, checkout) if attributes["commit"] else ""
    if around.contents is not None:
        sources = origins.sources(disk, tree)
        if isinstance(sources, Trouble):
            return sources
        attributes["sources"] = sources
    return None


def _no_folder(disk: Disk, path: str) -> str:
    """What stands at a path, links followed, where that is neither a folder nor nothing; "" otherwise."""
    entry = disk.entry(os.path.realpath(path))
    return kind_of(entry.mode) if isinstance(entry, Entry) and entry.kind != "d" else ""


# -- contents ----------------------------------------------------------------------------------------------------------


def _on_disk(
    package: Package,
    around: Surroundings,
    skip: list[str],
    attributes: dict[str, Value],
    told: dict[str, Value],
    state: list[str],
) -> dict[str, str] | Trouble:
    if around.contents is None:
        return _presence(package, around, skip, told, state)
    manifest = contents.manifest(package, around.contents, skip)
    if isinstance(manifest, Trouble):
        return manifest
    attributes["content"] = contents.digest(manifest)
    differing = contents.modified(around.ground, package, around.contents, skip)
    _tell_modified(differing, told)
    told["files"] = len(manifest)
    if any(_is_linked(around.contents[package.absolute(path)]) for path in differing):
        told["links"] = "a changed file is hard-linked elsewhere: the installer's cache holds the change too"
    return manifest


def _is_linked(content: Content | Trouble) -> bool:
    return not isinstance(content, Trouble) and content.linked


def _tell_modified(differing: list[str], told: dict[str, Value]) -> None:
    told["modified"] = len(differing)
    if differing:
        told["modified_files"] = tuple(shown(path) for path in differing[:EXAMPLES])


def _presence(
    package: Package, around: Surroundings, skip: list[str], told: dict[str, Value], state: list[str]
) -> dict[str, str] | Trouble:
    """Without contents: a listed file that is not there is wrong all the same (sglang#31035: metadata alone is
    green)."""
    skipped = frozenset(skip)
    missing = []
    manifest = {}
    for path in package.listed:
        if path in skipped:
            continue
        entry = around.ground.entry(package.absolute(path))
        if isinstance(entry, Trouble):
            return entry
        manifest[path] = "present" if entry else contents.MISSING
        if entry is None:
            missing.append(path)
    if missing:
        more = f" and {len(missing) - EXAMPLES} more" if len(missing) > EXAMPLES else ""
        state.append("missing: " + ", ".join(shown(path) for path in sorted(missing)[:EXAMPLES]) + more)
    _tell_modified(sorted(missing), told)
    told["files"] = len(manifest)
    return manifest


# -- keys of compile caches --------------------------------------------------------------------------------------------


def _keys(package: Package, around: Surroundings) -> Iterator[tuple[str, str]]:
    """Under which key this package files what it compiles: of torch and triton only, and only from read contents."""
    known, main = around.contents, package.main
    if known is None or main is None or package.name not in ("torch", *torchkeys.TRITON):
        return
    threaded = re.search(r"python\d\.\d+t/", f"{main.site}/") is not None
    python = f"{around.version}t" if threaded else around.version
    if package.name == "torch":
        key = torchkeys.torch_key(main.site, python)
        yield from (("torch_key", key),) if key else ()
        return

    def digest(path: str) -> str:
        content = known.get(path)
        return content.digest if isinstance(content, Content) and content.digest else torchkeys.sha256(path)

    key = torchkeys.triton_key(main.site, python, digest)
    yield from (("triton_key", hashlib.sha256(key.encode()).hexdigest()),) if key else ()


# -- told --------------------------------------------------------------------------------------------------------------


def _told(package: Package, around: Surroundings) -> dict[str, Value]:
    main = package.main
    told: dict[str, Value] = {"root": shown(package.base)}
    if main is None:
        return {**told, "requires": package.conda.requires if package.conda else ()}
    lines = main.header("requires-dist")
    told["requires"] = tuple(sorted({shown(text) for text in _requirements(lines, around.version)}))
    told["installer"] = shown(main.installer or ("conda" if package.conda else ""))
    told["requested"] = main.requested
    return told


def _requirements(lines: Iterable[str], version: str) -> Iterator[str]:
    """`nvidia-nccl-cu12==2.27.5` for each requirement that holds here; those of extras and other machines are left
    out."""
    for line in lines:
        requirement, _, marker = line.partition(";")
        if marker and (_EXTRA.search(marker) or not _holds(marker, version)):
            continue
        match = _PLAIN.match(requirement)
        if match:
            yield normal(match[1]) + "".join(match[2].split())


def _holds(marker: str, version: str) -> bool:
    """Does an environment marker hold on this machine, under the environment's own Python?"""
    from packaging.markers import InvalidMarker, Marker, UndefinedEnvironmentName

    minor = ".".join(version.split(".")[:2])
    known = {"python_version": minor, "python_full_version": version, "extra": ""} if minor else {"extra": ""}
    try:
        return Marker(marker).evaluate(known)
    except (InvalidMarker, UndefinedEnvironmentName, ValueError):
        return True
