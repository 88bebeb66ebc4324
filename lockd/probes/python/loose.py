"""The fact `unowned:ENV`: files in site-packages that belong to no package.

Always holds: there is one for every environment, with `files = 0` where all is owned. Paths are relative to the site
folder. What could not be read makes it Unknown.
Never: reads through a link.
"""

from __future__ import annotations

from collections.abc import Mapping

from lockd.disk import Trouble
from lockd.facts import Attributes, Fact, Unknown, Value, set_digest, shown, token
from lockd.probes.python import contents, ownership
from lockd.probes.python.contents import Content
from lockd.probes.python.ground import Ground
from lockd.probes.python.names import is_leftover
from lockd.probes.python.packages import Package
from lockd.rules import PythonRule

EXAMPLES = 5


def words(
    rule: PythonRule, ground: Ground, stock: list[Package], owners: Mapping[str, str]
) -> Mapping[str, Content | Trouble]:
    """What is at each path (absolute) that nobody owns."""
    by_site = ownership.unowned(ground, stock, owners)
    paths = [f"{site}/{path}" for site, listed in by_site.items() for path in listed]
    if rule.integrity == "metadata":
        return {path: Content("present") for path in paths}
    return contents.loose(ground, paths)


def fact(
    rule: PythonRule, ground: Ground, read: Mapping[str, Content | Trouble], troubles: list[Trouble]
) -> tuple[Fact | Unknown, dict[str, str]]:
    """The fact and its manifest. `troubles`: what else could not be read of who owns what."""
    every = [*troubles, *ground.troubles(), *(one for one in read.values() if isinstance(one, Trouble))]
    if every:
        first = min(every)
        return Unknown("unowned", rule.name, f"{shown(first.path)}: {first.reason}"), {}
    manifest = {
        _relative(ground, path): content.word for path, content in read.items() if not isinstance(content, Trouble)
    }
    tokens = [token(path, word) for path, word in manifest.items()]
    attributes: Attributes = {"files": len(manifest), "digest": set_digest(tokens)} if manifest else {"files": 0}
    examples = tuple(shown(path) for path in sorted(manifest)[:EXAMPLES])
    told: dict[str, Value] = {"examples": examples} if examples else {}
    return Fact("unowned", rule.name, attributes, {**told, **_leftovers(manifest)}), manifest


def _relative(ground: Ground, path: str) -> str:
    """Relative to the first site folder; in another one, relative to the prefix."""
    first = next(iter(ground.sites), "")
    base = first if path.startswith(first + "/") else ground.prefix
    return path[len(base) + 1 :]


def _leftovers(manifest: Mapping[str, str]) -> dict[str, Value]:
    """The `~orch` names of removals that were not finished, and how many files they hold."""
    tops = [path.partition("/")[0] for path in manifest if is_leftover(path)]
    return {"leftovers": tuple(map(shown, sorted(set(tops)))), "leftover_files": len(tops)} if tops else {}
