"""Which paths are kept of a fact: a file with what it links to, the entries of a cache, the files of an environment.

Always holds: paths are absolute and their folders resolved, so that a restore need not follow a link. Byte-code,
locks and leftovers are derived and not kept.
Never: reads a content.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from lockd.disk import Disk, Trouble
from lockd.environments import open_environment
from lockd.facts import Fact
from lockd.keep import Wanted
from lockd.place import resolved
from lockd.probes.paths import find_root, unshown

if TYPE_CHECKING:
    from lockd.lock import Lock
    from lockd.look import Sight
    from lockd.probes import Manifest
    from lockd.rules import CacheRule, FileRule, PythonRule

NOTES = "#notes"  # behind the name of an environment: what installers noted beside its packages
_SMALL = 1 << 20  # bytes of a start-up file that is kept unasked


def wanted(sight: Sight, lock: Lock, chosen: frozenset[str]) -> Iterator[tuple[str, list[Wanted]]]:
    """Each chosen fact of which something is kept, with the paths."""
    manifests: Mapping[str, Manifest] | None = None
    environments: dict[str, PythonRule] = {}
    for name, fact in lock.facts.items():
        section, rule = sight.claimed.get(name, ("", None))
        if section == "python" and name in chosen:
            environments[rule.name] = rule
        if name not in chosen or not isinstance(fact, Fact) or fact.absent or rule is None:
            continue
        if section == "file" and rule.keep:
            yield name, file_paths(rule, fact)
        elif section == "cache" and rule.keep and rule.change not in ("present", "empty"):
            manifests = sight.manifests() if manifests is None else manifests
            yield name, cache_paths(rule, manifests.get(name, {}))
    for rule in environments.values():
        manifests = sight.manifests() if manifests is None else manifests
        yield from environment_paths(rule, manifests, chosen)


def file_paths(rule: FileRule, fact: Fact) -> list[Wanted]:
    """A file; of a link, the link and what is at its end."""
    path = unshown(fact.subject)
    digest = str(fact.attributes.get("digest", "")).removeprefix("sha256:")
    kind = fact.attributes.get("type")
    paths = [Wanted(resolved(path), digest if kind == "file" else "")] if kind in ("file", "link") else []
    if fact.attributes.get("target_type") == "file":
        paths.append(Wanted(os.path.realpath(path), digest))
    return paths


def cache_paths(rule: CacheRule, manifest: Manifest) -> list[Wanted]:
    """The entries of a cache, the folders that lead to them, and where its path is a link, that link."""
    root = find_root(rule.path)
    if root is None or isinstance(root, Trouble):
        return []
    place = os.path.realpath(root.path)
    folders = {place}
    for path in manifest:
        folder = os.path.dirname(path)
        while folder and f"{place}/{folder}" not in folders:
            folders.add(f"{place}/{folder}")
            folder = os.path.dirname(folder)
    link = [Wanted(resolved(rule.path))] if resolved(rule.path) != place else []
    entries = [Wanted(f"{place}/{path}", "" if word.startswith("-> ") else word) for path, word in manifest.items()]
    return [*link, *map(Wanted, sorted(folders)), *entries]


def environment_paths(
    rule: PythonRule, manifests: Mapping[str, Manifest], chosen: frozenset[str]
) -> Iterator[tuple[str, list[Wanted]]]:
    """Start-up code and installers' notes always, for they are tiny; with `keep`, every package and loose file."""
    environment = open_environment(rule, Disk())
    if environment is None:
        return
    name = f"python:{rule.name}"
    if name in chosen:
        yield name, [Wanted(resolved(path)) for path in environment.start_up() if _is_small(path)]
    yield name + NOTES, [Wanted(resolved(path)) for path in environment.notes() if _is_small(path)]
    if not rule.keep:
        return
    for package in environment.stock.values():
        fact = f"package:{rule.name}/{package.name}"
        if fact in chosen:
            seen = {package.absolute(path): word for path, word in manifests.get(fact, {}).items()}
            paths = sorted(environment.files_of(package.name))
            yield fact, [Wanted(resolved(path), _digest(seen.get(path, "")), read_through=True) for path in paths]
    loose = f"unowned:{rule.name}"
    if loose in chosen:
        yield loose, [Wanted(resolved(environment.absolute(path))) for path in manifests.get(loose, {})]


def _digest(word: str) -> str:
    """The sha256 in a manifest's word; of a script, which has its shebang left out there, none."""
    digest = word.partition("+")[0]
    return digest if len(digest) == 64 else ""


def _is_small(path: str) -> bool:
    return os.lstat(path).st_size <= _SMALL
