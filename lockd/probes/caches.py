"""`[[cache]]`: a compile cache, or another folder of derived files.

Always holds: an entry is a file or link that its kind counts (`cache.kinds`), by path and contents; touching, locks
and leftovers never count, nor do folders by themselves. `grow` carries a token an entry, so that new ones are no
drift; `exact` counts them all; `present` asks for the folder; `empty` for no entry, and there a folder that is not
there is as good as an empty one. What is odd about a cache (half-written objects, other owners, a /tmp cleared at
boot) is told.
Never: follows a link below the root, opens what is not a regular file, or loads an entry.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

from lockd.disk import Trouble
from lockd.facts import ABSENT, Fact, Facts, Unknown, Value, set_digest, shown, token
from lockd.findings import Breach
from lockd.lineage import row
from lockd.plain import replace
from lockd.probes import Seen, common, paths
from lockd.probes.cache import condition, kinds, whole

if TYPE_CHECKING:
    from lockd.disk import Entry, Tree
    from lockd.findings import Difference
    from lockd.look import Look
    from lockd.rules import CacheRule, Policy, Severity

KINDS = ("cache",)
ATTRIBUTES: Mapping[str, Mapping[str, str]] = {
    "cache": {
        "absent": "true where nothing is at the path",
        "present": 'true, under `change = "present"`, where a folder is there',
        "type": "what is at the path where that is no folder: file, fifo, socket or device",
        "entries": "entries that count; under `grow` the lock's own alone are compared",
        "digest": "over one token for each entry: its path and contents",
        "kind": "told: the kind of cache, as the policy says",
        "bytes": "told: sum of the sizes of the entries",
        "ignored": "told: files that never count: locks, leftovers",
        "holds": "told: what the entries are, in words",
        "first": "told: the first entries, where there should be none",
        "half_written": "told: entries that are not whole: objects, pickles, JSON, references to nothing",
        "left": "told: what writers that died left, unfinished downloads, build locks that stand",
        "planted": "told: links, other owners, a folder that anybody may write in",
        "place": "told: the file system, or what clears the folder",
        "torch_key": "told, in a lock: torch's key when it was accepted, under which it was filled",
        "triton_key": "told, in a lock: sha256 of triton's key at that time",
        "filed_torch_key": "told: entries that are filed under torch's key, which another key hides",
        "filed_triton_key": "told: entries that are filed under triton's key",
        "environment": "told, in a lock: the environment id at that time",
        "driver": "told, in a lock: the GPU driver at that time",
        "gpu": "told, in a lock: the GPUs at that time",
    }
}

_BUILD = 3  # rises when what is derived from equal trees changes, so that no older memo answers
_Entries = Mapping[str, "Entry"]


def look(rule: CacheRule, look: Look) -> Seen:
    """Read the one fact of a rule."""
    subject = shown(rule.path)
    # 1. what is at the path
    root = paths.find_root(rule.path)
    if isinstance(root, Trouble):
        return Seen((common.could_not_read("cache", subject, [root]),))
    if root is None:
        return Seen((_nothing(rule, subject),))
    if root.type != "folder":
        return Seen((Fact("cache", subject, {"type": root.type}),))
    if rule.change == "present":
        return _placed(Seen((Fact("cache", subject, {"present": True}, {"kind": rule.kind}),)), root.path)
    # 2. the walk
    tree = look.disk.tree(root.path, rule.exclude)
    if tree.missing:
        return Seen((_nothing(rule, subject),))
    if tree.troubles:
        return Seen((common.could_not_read("cache", subject, tree.troubles, root.path),))
    # 3. what follows from it
    key = ("cache", _BUILD, rule.path, root.path, rule.kind, rule.change, rule.exclude, look.policy.owner)
    seen = look.memo.recall(key, tree.stamp, lambda: _seen(rule, tree, look))
    return _placed(seen, root.path)


def claims(rule: CacheRule, kind: str, subject: str) -> bool:
    """Is it this rule's cache?"""
    return kind == "cache" and subject == shown(rule.path)


def severity(rule: CacheRule, policy: Policy, kind: str, subject: str, change: str) -> Severity:
    """The rule's own word, else the policy's."""
    return common.severity(rule, policy)


def breaches(rule: CacheRule, policy: Policy, found: Facts) -> Iterator[Breach]:
    """Entries where the policy wants none."""
    fact = found.get(f"cache:{shown(rule.path)}")
    if rule.change != "empty" or not isinstance(fact, Fact):
        return
    number = fact.attributes.get("entries")
    if number == 0:
        return
    key = common.pin_key(policy, "cache", rule, "change")
    first = fact.told.get("first", ())
    names = f": {', '.join(first)}" if isinstance(first, tuple) and first else ""
    text = f"{number:,} entries, must be empty{names}" if isinstance(number, int) else "not an empty folder"
    yield Breach(fact.name, key, text, attribute="entries", wanted="0", found=None if number is None else str(number))


def word(difference: Difference) -> str:
    """`/tmp/torchinductor_root: 1 of 310 entries gone: triton/0/QKEY/flex_attention.cubin`."""
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
    if "digest" not in changed and "entries" not in changed:
        return subject
    return "; ".join([f"{subject}: {_of_entries(difference)}", *oddities(difference.found, difference.expected)])


def oddities(found: Fact | Unknown | None, known: Fact | Unknown | None = None) -> Iterator[str]:
    """What is odd about a cache, and was not so when it was accepted: `not whole: ab/x.so: 10 of 65,536 bytes`."""
    for name, word in (("half_written", "not whole"), ("planted", "planted"), ("left", "left behind")):
        now, before = (one.told.get(name) if isinstance(one, Fact) else () for one in (found, known))
        if isinstance(now, tuple) and now and now != before:
            yield f"{word}: {', '.join(now)}"


def watched(rule: CacheRule) -> Iterable[str]:
    """The folder, and where it leads when it is a link."""
    return paths.with_target(rule.path)


# -- the fact


def _nothing(rule: CacheRule, subject: str) -> Fact:
    """No folder is the same as an empty one where it must be empty, and else an absence."""
    return Fact("cache", subject, {"entries": 0} if rule.change == "empty" else ABSENT, {"kind": rule.kind})


def _placed(seen: Seen, root: str) -> Seen:
    """Where it lies is no part of the stamp: told anew at each look."""
    place = condition.place(root)
    facts = (
        replace(fact, told={**fact.told, "place": place}) if place and isinstance(fact, Fact) else fact
        for fact in seen.facts
    )
    return Seen(tuple(facts), seen.manifests)


def _seen(rule: CacheRule, tree: Tree, look: Look) -> Seen:
    """The fact of one walked cache, and its manifest."""
    subject = shown(rule.path)
    entries, ignored = _sorted_out(rule.kind, tree)
    told: dict[str, Value] = {
        "kind": rule.kind,
        "ignored": len(ignored),
        "bytes": sum(entry.size for entry in entries.values()),
    }
    if rule.change == "empty":
        first = {"first": tuple(shown(path) for path in list(entries)[: condition.LINES])} if entries else {}
        return Seen((Fact("cache", subject, {"entries": len(entries)}, {**told, **first}),))
    contents = _contents(tree.root, entries, look)
    if isinstance(contents, Trouble):
        return Seen((common.could_not_read("cache", subject, [contents]),))
    tokens = frozenset(token(path, content) for path, content in contents.items())
    attributes: dict[str, Value] = {"entries": len(contents), "digest": set_digest(tokens)}
    told.update(kinds.filed(rule.kind, entries))
    told.update(_condition(rule, tree.root, entries, ignored, look.policy.owner))
    fact = Fact("cache", subject, attributes, told, tokens if rule.change == "grow" else None)
    return Seen((fact,), lambda: {fact.name: contents})


def _sorted_out(kind: str, tree: Tree) -> tuple[_Entries, _Entries]:
    """The entries that count, and the files that do not."""
    counts = kinds.counts(kind)
    names = {path: entry for path, entry in tree.entries.items() if entry.kind != "d"}
    entries = {path: entry for path, entry in names.items() if counts(path)}
    return entries, {path: entry for path, entry in names.items() if path not in entries}


def _contents(root: str, entries: _Entries, look: Look) -> dict[str, str] | Trouble:
    """Path → sha256, of a link what it says. An entry that went while the cache was looked at is none."""
    files = {path: os.path.join(root, path) for path, entry in entries.items() if entry.kind == "f"}
    digests = look.disk.digests(files.values()) if files else {}
    contents: dict[str, str] = {}
    for path, entry in entries.items():
        content: str | Trouble = f"-> {paths.link_text(os.path.join(root, path))}" if entry.kind == "l" else "special"
        if entry.kind == "f":
            content = digests[files[path]]
        if not isinstance(content, Trouble):
            contents[path] = content
        elif paths.lstat(files[path]) is not None:
            return content
    return contents


def _condition(rule: CacheRule, root: str, entries: _Entries, ignored: _Entries, owner: int) -> dict[str, Value]:
    """What is odd about it; only what there is."""
    sizes = ((path, one.size) for path, one in entries.items() if one.kind == "f")
    unfinished = [*condition.half_written(root, sizes), *whole.unfinished(rule.kind, root, entries)]
    told: dict[str, Value] = {
        "holds": kinds.holds(rule.kind, entries),
        "half_written": condition.few(unfinished),
        "left": condition.few(list(whole.left_behind(rule.kind, ignored, lambda pid: row(pid) is not None))),
        "planted": condition.planted(rule.path, root, ((path, one.kind) for path, one in entries.items()), owner),
    }
    return {name: value for name, value in told.items() if value}


# -- words


def _of_entries(difference: Difference) -> str:
    """How many entries changed, by name where the manifests are known, else by the tokens or the numbers."""
    expected, found, files = difference.expected, difference.found, difference.files
    total = expected.attributes.get("entries") if isinstance(expected, Fact) else None
    growing = isinstance(found, Fact) and found.tokens is not None
    if files is not None and isinstance(total, int):
        numbers = ((files.missing, "gone"), (files.changed, "changed"))
        parts = [f"{number:,} of {total:,} entries {what}" for number, what in numbers if number]
        parts += [f"{files.added:,} new"] if files.added and not growing else []
        if parts:
            return ", ".join(parts) + (f": {', '.join(files.examples)}" if files.examples else "")
    lost = common.known_gone(difference, "entries")
    if lost:
        return lost
    was, now = difference.attributes.get("entries", (None, None))
    return f"{common.amount(was, now)} entries" if was != now else "same number of entries, other names or contents"
