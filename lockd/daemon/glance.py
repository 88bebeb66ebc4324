"""A glance at what hints name, ahead of a slow look: which packages list these files, and what bytes they have now.

Always holds: a package's fact of the last look is amended only by words of files that were read just now, and only
where its manifest is proven to be that fact's (by its digest). `complete` says that every hint was about such a file.
What a glance gives tells a drift early; it takes no look's place: whoever asks waits for the look, and nothing is
called good by a glance.
Never: lists a folder, follows a link, or reads a file larger than LARGEST.
"""

from __future__ import annotations

import os
import re
from bisect import bisect_left
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, NamedTuple

from lockd import hashing
from lockd.facts import Fact, Facts
from lockd.plain import replace
from lockd.probes.paths import unshown
from lockd.probes.python.contents import digest_of

if TYPE_CHECKING:
    from lockd.look import Sight
    from lockd.watch.hints import Hint

MOST = 50  # paths; of more, a look is as quick
LARGEST = 64 << 20  # bytes of a file that is read at a glance
_PLAIN = re.compile(r"[0-9a-f]{64}(\+x)?")  # the word of a file by its bytes
_BYTES = frozenset({"changed", "attrib"})  # hints after which a name still is what it was


class Glance(NamedTuple):
    """The last look's sight, packages amended. owned: fact → the hints about it; complete: there were no others."""

    sight: Sight
    owned: Mapping[str, list[Hint]]
    complete: bool


class _Known(NamedTuple):
    """A package's manifest. lines: as its digest, `content`, goes over them: sorted, which they are by path alone."""

    content: str
    manifest: Mapping[str, str]
    lines: list[str]


class Glancer:
    """Keeps the manifests of the packages that it amended. Used by the deciding thread alone."""

    def __init__(self) -> None:
        self._known: dict[str, list[_Known]] = {}  # fact → as the last look had it, and as the last glance had it
        self._owners: dict[str, tuple[str, str]] = {}  # path → (fact, path as its manifest has it)

    def __call__(self, sight: Sight, hints: Iterable[Hint]) -> Glance | None:
        """None: nothing that a glance could tell."""
        listed = tuple(hints)
        paths = {hint.path for hint in listed}
        if len(paths) > MOST:
            return None
        self._find(sight, paths)
        words = {path: word for path in self._owners if (word := _word(path)) is not None}
        if not words:
            return None
        changed: dict[str, dict[str, str]] = {}
        owned: dict[str, list[Hint]] = {}
        for path, word in words.items():
            fact, name = self._owners[path]
            changed.setdefault(fact, {})[name] = word
            owned.setdefault(fact, []).extend(hint for hint in listed if hint.path == path)
        complete = len(words) == len(paths) and all(hint.kind in _BYTES and not hint.folder for hint in listed)
        return Glance(self._amended(sight, changed), owned, complete)

    def _amended(self, sight: Sight, changed: Mapping[str, Mapping[str, str]]) -> Sight:
        facts = dict(sight.facts)
        made = {}
        for name, words in changed.items():
            before, base = facts[name], self._known[name][0]
            assert isinstance(before, Fact)
            now = _amended(base, words)
            facts[name] = replace(before, attributes={**before.attributes, "content": now.content})
            self._known[name] = [base, now]
            made[name] = now.manifest
        return replace(sight, facts=Facts(facts.values()), manifests=lambda: made)

    def _find(self, sight: Sight, paths: set[str]) -> None:
        """Whose files these are, from what is kept while it is the last look's, else from that look's manifests."""
        kept = {name: one for name, known in self._known.items() if (one := _of(sight, name, known)) is not None}
        owners = {path: owner for path in paths if (owner := self._owners.get(path)) and owner[0] in kept}
        if len(owners) < len(paths):
            made, roots = sight.manifests(), dict(_roots(sight))
            for path in paths - owners.keys():
                for name, root in roots.items():
                    relative = path[len(root) + 1 :] if path.startswith(f"{root}/") else ""
                    if relative and _PLAIN.fullmatch(made.get(name, {}).get(relative, "")):
                        owners[path] = name, relative
                        known = _proven(sight, name, made[name])
                        if name not in kept and known is not None:
                            kept[name] = known
        self._owners = {path: owner for path, owner in owners.items() if owner[0] in kept}
        wanted = {owner[0] for owner in self._owners.values()}
        self._known = {name: [known] for name, known in kept.items() if name in wanted}


def _amended(base: _Known, words: Mapping[str, str]) -> _Known:
    lines = list(base.lines)
    for path, word in words.items():
        lines[bisect_left(lines, f"{path}\0")] = f"{path}\0{word}"
    return _Known(digest_of(lines), {**base.manifest, **words}, lines)


def _proven(sight: Sight, name: str, manifest: Mapping[str, str]) -> _Known | None:
    """The manifest, if it is what the last look's fact came from."""
    lines = sorted(f"{path}\0{word}" for path, word in manifest.items())
    return _of(sight, name, [_Known(digest_of(lines), dict(manifest), lines)])


def _of(sight: Sight, name: str, known: Iterable[_Known]) -> _Known | None:
    """That of the known manifests which the last look's fact came from."""
    fact = sight.facts.get(name)
    content = fact.attributes.get("content") if isinstance(fact, Fact) else None
    return next((one for one in known if one.content == content), None)


def _roots(sight: Sight) -> Iterable[tuple[str, str]]:
    """Packages whose contents count, and the folder that their manifests are relative to."""
    for fact in sight.facts.known():
        if fact.kind == "package" and "content" in fact.attributes:
            yield fact.name, unshown(str(fact.told.get("root", "")))


def _word(path: str) -> str | None:
    """The manifest's word of a plain file as it is now. None: it is none, or is being written."""
    if os.path.realpath(os.path.dirname(path)) != os.path.dirname(path):
        return None
    try:
        if os.lstat(path).st_size > LARGEST:
            return None
    except OSError:
        return None
    read = hashing.hash_file(path, None)
    return None if isinstance(read, str) else read.digest.hex() + ("+x" if read.identity[0] & 0o111 else "")
