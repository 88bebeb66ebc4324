"""`[[tree]]`: a dataset or a folder of configuration, by names, types and sizes, and where asked by contents.

Always holds: the digest is that of a set of tokens, one for each name (folders included), so order never matters and
`exact` and `grow` agree. A link counts by what it says. Times are told, never compared. What part of a tree could not
be read makes the whole an Unknown. A root that is a link is followed, for the policy names it; where it leads is an
attribute. `sample` reads, of an exact tree, one file in 64 chosen by a hash of its path and the 8 largest; of a
growing one, where the largest would change with every new file, one in 16. A full look reads every byte of `full` and
`sample`; a sample's digest stays that of its sample, so that the two looks agree, and what could not be read is told
by an Unknown either way. `max_age`: a gate takes the last look at a large tree instead of a new one; what is at the
path is looked at all the same.
Never: follows a link below the root, opens what is not a regular file, or keeps a token for each name of an exact tree.
"""

from __future__ import annotations

import hashlib
import os
from array import array
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, NamedTuple

from lockd.disk import Trouble
from lockd.facts import ABSENT, Fact, Facts, Unknown, Value, set_digest, shown, token
from lockd.lastlook import ENTRIES, begin, old
from lockd.probes import Manifest, Seen, common, paths
from lockd.wellformed import seconds

if TYPE_CHECKING:
    from lockd.disk import Disk, Entry, Tree
    from lockd.findings import Breach, Difference
    from lockd.look import Look
    from lockd.rules import Policy, Severity, TreeRule

KINDS = ("tree",)
ATTRIBUTES: Mapping[str, Mapping[str, str]] = {
    "tree": {
        "absent": "true where nothing is at the path",
        "present": 'true, under `change = "present"`, where a folder is there',
        "type": "what is at the path where that is no folder: file, fifo, socket or device",
        "target": "what the path says where it is a link",
        "digest": "over one token for each name: its path, type and size, and its contents as far as they were read",
        "files": "regular files (not under `grow`)",
        "folders": "folders (not under `grow`)",
        "bytes": "sum of the sizes of regular files (not under `grow`)",
        "entries": "names, under `grow`; the lock's own alone are compared",
        "links": "told: symbolic links",
        "newest": "told: when the file written last was written",
        "read": "told: files whose contents were read",
    }
}

SAMPLE, SAMPLE_GROWING, LARGEST = 64, 16, 8
_CHUNK = 1 << 16


def look(rule: TreeRule, look: Look) -> Seen:
    """Read the one fact of a rule."""
    subject = shown(rule.path)
    # 1. what is at the path
    root = paths.find_root(rule.path)
    if isinstance(root, Trouble):
        return Seen((common.could_not_read("tree", subject, [root]),))
    if root is None:
        return Seen((Fact("tree", subject, ABSENT),))
    link: dict[str, Value] = {"target": root.target} if root.target else {}
    if root.type != "folder":
        return Seen((Fact("tree", subject, {"type": root.type, **link}),))
    if rule.change == "present":
        return Seen((Fact("tree", subject, {"present": True, **link}),))
    key = ("tree", rule.path, root.path, root.target, rule.check, rule.change, rule.exclude, look.disk.full)
    last = _Last(rule, look, (*key[:-1], paths.inode(root.path)))
    known = last.find(f"tree:{subject}")
    if known is not None:
        return Seen((known,))
    # 2. the walk
    tree = look.disk.tree(root.path, rule.exclude)
    if tree.missing:
        return Seen((Fact("tree", subject, ABSENT),))
    if tree.troubles:
        last.forget()
        return Seen((common.could_not_read("tree", subject, tree.troubles, root.path),))
    # 3. what follows from it
    seen = look.memo.recall(key, tree.stamp, lambda: Seen((_fact(rule, subject, link, tree, look.disk),)))
    last.keep(tree, seen.facts[0])
    # the memo keeps no manifest: of a large tree it would be far larger than all else, and the walk is at hand
    return Seen(seen.facts, lambda: {f"tree:{subject}": _manifest(rule, tree, look.disk)})


def claims(rule: TreeRule, kind: str, subject: str) -> bool:
    """Is it this rule's tree?"""
    return kind == "tree" and subject == shown(rule.path)


def severity(rule: TreeRule, policy: Policy, kind: str, subject: str, change: str) -> Severity:
    """The rule's own word, else the policy's."""
    return common.severity(rule, policy)


def breaches(rule: TreeRule, policy: Policy, found: Facts) -> Iterator[Breach]:
    """A tree has no pins of its own."""
    return iter(())


def word(difference: Difference) -> str:
    """`/data/dflash: 500 new and 1 changed: shard-0003.jsonl.gz (20 → 520 files, 10,240 → 10,744 bytes)`."""
    plain = common.plain_word(difference)
    if plain is not None:
        return plain
    subject = difference.name.partition(":")[2]
    changed = difference.attributes
    if "type" in changed:
        return (
            f"{subject} was a folder, is a {changed['type'][1]}"
            if changed["type"][1]
            else f"{subject} is a folder again"
        )
    parts = [f"link to {changed['target'][0]} → {changed['target'][1]}"] if "target" in changed else []
    growing = isinstance(difference.found, Fact) and difference.found.tokens is not None
    named = common.counted(difference.files, growing=growing) or common.known_gone(difference, "names")
    if named:
        parts.append(named)
    totals = [f"{common.amount(*changed[name])} {name}" for name in ("files", "folders", "bytes") if name in changed]
    if totals:
        parts.append(", ".join(totals))
    elif not named and "digest" in changed:
        parts.append("same number and bytes, other names, sizes or contents")
    return f"{subject}: {'; '.join(parts)}" if parts else subject


def watched(rule: TreeRule) -> Iterable[str]:
    """The folder, and where it leads when it is a link."""
    return paths.with_target(rule.path)


# -- the last look


class _Last:
    """The last look at one large tree, where its rule says how old it may be. Made before the walk begins."""

    def __init__(self, rule: TreeRule, look: Look, key: tuple[object, ...]) -> None:
        self._look, self._key = look, key
        self._seconds = 0.0 if rule.max_age is None or look.last is None else seconds(rule.max_age)
        self._began = begin() if self._seconds else (0.0, "", 0.0)

    def find(self, name: str) -> Fact | None:
        """Its fact, where this look may take it; said among what was not looked at."""
        if not self._seconds or self._look.last is None or self._look.disk.full or not self._look.may_age(name):
            return None
        known = self._look.last.find(self._key, self._seconds)
        if known is None:
            return None
        self._look.aged.append(name)
        self._look.not_looked.append(f"{name} ({old(known[1])})")
        return known[0]

    def forget(self) -> None:
        """The tree could not be read: what was seen before is not the last look."""
        if self._seconds and self._look.last is not None:
            self._look.last.forget(self._key)

    def keep(self, tree: Tree, fact: Fact | Unknown) -> None:
        """What a walk of everything gave; one that listed only what hints name proves nothing of the rest."""
        if not self._seconds or self._look.last is None or not self._look.disk.restates:
            return
        if isinstance(fact, Fact) and len(tree.entries) > ENTRIES:
            self._look.last.keep(self._key, self._began, tree.stamp, fact)
        else:
            self.forget()


# -- what is there


class _Survey(NamedTuple):
    """What one pass over a tree gave. tokens: of each name, as numbers; newest: ns, of the file written last."""

    tokens: array[int]
    files: int
    folders: int
    links: int
    size: int
    newest: int


def _fact(rule: TreeRule, subject: str, link: Mapping[str, Value], tree: Tree, disk: Disk) -> Fact | Unknown:
    """The fact of one walked tree."""
    contents = _contents(rule, tree, disk)
    if isinstance(contents, Trouble):
        return common.could_not_read("tree", subject, [contents])
    survey = _survey(tree, contents)
    told: dict[str, Value] = {"links": survey.links, "read": len(contents)}
    if survey.files:
        told["newest"] = paths.iso(survey.newest)
    if rule.change == "grow":
        tokens = frozenset(f"{one:016x}" for one in survey.tokens)
        return Fact("tree", subject, {"entries": len(tokens), "digest": set_digest(tokens), **link}, told, tokens)
    totals: dict[str, Value] = {"files": survey.files, "folders": survey.folders, "bytes": survey.size}
    return Fact("tree", subject, {**totals, "digest": _digest(survey.tokens), **link}, told)


# -- contents


def _contents(rule: TreeRule, tree: Tree, disk: Disk) -> Mapping[str, str] | Trouble:
    """sha256 by relative path of the files whose contents count."""
    chosen = _chosen(rule, tree)
    read = _files(tree) if disk.full and rule.check == "sample" else chosen
    if not read:
        return {}
    digests = disk.digests([os.path.join(tree.root, path) for path in read])
    trouble = next((one for one in digests.values() if isinstance(one, Trouble)), None)
    if trouble is not None:
        return trouble
    return {path: str(digests[os.path.join(tree.root, path)]) for path in chosen}


def _files(tree: Tree) -> list[str]:
    return [path for path, entry in tree.entries.items() if entry.kind == "f"]


def _chosen(rule: TreeRule, tree: Tree) -> list[str]:
    if rule.check == "stat":
        return []
    if rule.check == "full":
        return _files(tree)
    one_in = SAMPLE if rule.change == "exact" else SAMPLE_GROWING
    chosen = {path for path, entry in tree.entries.items() if entry.kind == "f" and _hash(path) % one_in == 0}
    return sorted(chosen | _largest(tree)) if rule.change == "exact" else sorted(chosen)


def _hash(path: str) -> int:
    return int.from_bytes(hashlib.sha256(os.fsencode(path)).digest()[:8], "big")


def _largest(tree: Tree) -> set[str]:
    import heapq

    sizes = ((-entry.size, path) for path, entry in tree.entries.items() if entry.kind == "f")
    return {path for _, path in heapq.nsmallest(LARGEST, sizes)}


# -- tokens and totals


def _survey(tree: Tree, contents: Mapping[str, str]) -> _Survey:
    """One pass over all names: eight bytes a name are kept, so that a million of them stay in bounded memory."""
    tokens = array("Q")
    files = folders = links = size = newest = 0
    for path, entry in tree.entries.items():
        tokens.append(int(token(path, _word(tree.root, path, entry, contents)), 16))
        if entry.kind == "f":
            files += 1
            size += entry.size
            newest = max(newest, entry.mtime) if files > 1 else entry.mtime
        folders += entry.kind == "d"
        links += entry.kind == "l"
    return _Survey(tokens, files, folders, links, size, newest)


def _word(root: str, path: str, entry: Entry, contents: Mapping[str, str]) -> str:
    """What counts about one name."""
    if entry.kind == "f":
        return f"f:{entry.size}:{contents[path]}" if path in contents else f"f:{entry.size}"
    return f"l:{paths.link_text(os.path.join(root, path))}" if entry.kind == "l" else entry.kind


def _digest(tokens: Iterable[int]) -> str:
    """`facts.set_digest` over tokens that are numbers."""
    ordered = sorted(tokens)
    digest = hashlib.sha256()
    for start in range(0, len(ordered), _CHUNK):
        digest.update("".join(f"{one:016x}" for one in ordered[start : start + _CHUNK]).encode())
    return f"sha256:{digest.hexdigest()}"


def _manifest(rule: TreeRule, tree: Tree, disk: Disk) -> Manifest:
    """Path → sha256 where the contents were read, else the size; folders, links and others by their word."""
    read = _contents(rule, tree, disk)
    contents = {} if isinstance(read, Trouble) else read
    return {
        path: contents.get(path, str(entry.size)) if entry.kind == "f" else _word(tree.root, path, entry, contents)
        for path, entry in tree.entries.items()
    }
