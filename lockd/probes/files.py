"""`[[file]]`: one file, or every file that a glob matches.

Always holds: the fact is the type, the contents, the execute bit and the target of a link; size, mode, owner and time
are told. The contents of a linked file count: the digest is that of the file at the end. A literal path that is not
there is an absent fact; a glob without a match is none; what could not be read, or a folder that hid what a glob
would match, is an Unknown. A glob whose last component is a bare `*` or `**` leaves folders out.
Never: opens what is not a regular file.
"""

from __future__ import annotations

import errno
import hashlib
import os
import stat
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, NamedTuple

from lockd.disk import Trouble
from lockd.facts import ABSENT, Fact, Facts, Unknown, Value, shown
from lockd.findings import Breach
from lockd.probes import Seen, common, paths

if TYPE_CHECKING:
    from lockd.findings import Difference
    from lockd.look import Look
    from lockd.rules import FileRule, Policy, Severity

KINDS = ("file",)
ATTRIBUTES: Mapping[str, Mapping[str, str]] = {
    "file": {
        "absent": "true where nothing is at the path",
        "type": "file, folder, link, fifo, socket or device",
        "digest": "sha256 of the contents; of a link, of the file that it leads to",
        "executable": "whether anybody may execute it",
        "target": "what a link says",
        "target_type": "what a link leads to: a type as above, `absent` or `loop`",
        "size": "told: bytes",
        "mode": "told: permission bits, octal",
        "owner": "told: user and group",
        "mtime": "told: when the contents were last written",
        "md5": "told: md5 of the contents, where the policy pins it",
        "sha1": "told: likewise",
        "sha512": "told: likewise",
        "blake2b": "told: likewise",
    }
}

_BUFFER = 1 << 20


class _Thing(NamedTuple):
    """What is at a path: its own status, a link's text, and the status at its end (None: nothing there, or a loop)."""

    path: str
    status: os.stat_result
    link: str | None
    end: os.stat_result | None
    end_type: str
    content: str  # path of the regular file whose bytes count; "" where there are none


def look(rule: FileRule, look: Look) -> Seen:
    """Read the facts of one rule: the file that it names, or those that its glob matches."""
    # 1. the names
    names, troubles = paths.expand(rule.path) if paths.is_glob(rule.path) else ([rule.path], [])
    things = [(path, _thing(path)) for path in names if not _left_out(rule, path)]
    # 2. the contents, all at once
    contents = sorted({thing.content for _, thing in things if isinstance(thing, _Thing) and thing.content})
    digests = look.disk.digests(contents) if contents else {}
    # 3. the facts
    facts: list[Fact | Unknown] = []
    for path, thing in things:
        fact = _fact(path, thing, digests, look)
        if fact is not None and not (_is_bare(rule.path) and _is_folder(fact)):
            facts.append(fact)
    if troubles:
        facts.append(common.could_not_read("file", shown(rule.path), troubles))
    return Seen(tuple(facts))


def claims(rule: FileRule, kind: str, subject: str) -> bool:
    """Does this rule answer for that file?"""
    return kind == "file" and paths.covers(rule.path, subject) and not _left_out(rule, paths.unshown(subject))


def severity(rule: FileRule, policy: Policy, kind: str, subject: str, change: str) -> Severity:
    """The rule's own word, else the policy's."""
    return common.severity(rule, policy)


def breaches(rule: FileRule, policy: Policy, found: Facts) -> Iterator[Breach]:
    """The files whose digest is not the pinned one."""
    if rule.digest is None:
        return
    algorithm = rule.digest.partition(":")[0]
    key = common.pin_key(policy, "file", rule, "digest")
    for fact in found.known():
        if fact.kind == "file" and claims(rule, "file", fact.subject):
            is_digest = _digest_of(fact, algorithm)
            if is_digest != rule.digest.lower():
                text = f"{_short(is_digest) if is_digest else _without_contents(fact)}, pinned {_short(rule.digest)}"
                yield Breach(fact.name, key, text, attribute="digest", wanted=rule.digest, found=is_digest)


def word(difference: Difference) -> str:
    """`/root/x.py: contents changed (1,234 → 1,240 bytes)`."""
    plain = common.plain_word(difference)
    if plain is not None:
        return plain
    subject = difference.name.partition(":")[2]
    parts = list(_changes(difference))
    return f"{subject}: {', '.join(parts)}" if parts else subject


def watched(rule: FileRule) -> Iterable[str]:
    """The file, or the folder in which a glob begins; and what a link leads to."""
    if paths.is_glob(rule.path):
        return (paths.fixed_folder(rule.path),)
    return paths.with_target(rule.path)


# -- names


def _left_out(rule: FileRule, path: str) -> bool:
    return bool(rule.exclude) and paths.excluded(rule.exclude, paths.fixed_folder(rule.path), path)


def _is_bare(pattern: str) -> bool:
    return pattern.rpartition("/")[2] in ("*", "**")


def _is_folder(fact: Fact | Unknown) -> bool:
    return isinstance(fact, Fact) and fact.attributes.get("type") == "folder"


# -- what is there


def _thing(path: str) -> _Thing | Trouble | None:
    status = paths.lstat(path)
    if status is None or isinstance(status, Trouble):
        return status
    if not stat.S_ISLNK(status.st_mode):
        content = path if stat.S_ISREG(status.st_mode) else ""
        return _Thing(path, status, None, status, paths.file_type(status.st_mode), content)
    try:
        return _linked(path, status)
    except OSError as error:
        return Trouble(path, paths.reason(error))


def _linked(path: str, status: os.stat_result) -> _Thing:
    link = os.readlink(path)
    try:
        real = os.path.realpath(path, strict=True)
        end = os.stat(real)
    except (FileNotFoundError, NotADirectoryError):
        return _Thing(path, status, link, None, "absent", "")
    except OSError as error:
        if error.errno != errno.ELOOP:
            raise
        return _Thing(path, status, link, None, "loop", "")
    return _Thing(path, status, link, end, paths.file_type(end.st_mode), real if stat.S_ISREG(end.st_mode) else "")


def _fact(
    path: str, thing: _Thing | Trouble | None, digests: Mapping[str, str | Trouble], look: Look
) -> Fact | Unknown | None:
    subject = shown(path)
    if thing is None:
        return Fact("file", subject, ABSENT)
    if isinstance(thing, Trouble):
        return common.could_not_read("file", subject, [thing])
    content = digests[thing.content] if thing.content else ""
    if isinstance(content, Trouble):
        gone = paths.lstat(path) is None  # while it was read
        return Fact("file", subject, ABSENT) if gone else common.could_not_read("file", subject, [content])
    told = _told(thing)
    for algorithm in sorted(_algorithms(look.policy, subject)) if content else ():
        pinned = _other_digest(thing.content, algorithm, content, look)
        if isinstance(pinned, Trouble):
            return common.could_not_read("file", subject, [pinned])
        told[algorithm] = pinned
    return Fact("file", subject, _attributes(thing, content), told)


def _attributes(thing: _Thing, content: str) -> dict[str, Value]:
    attributes: dict[str, Value] = {"type": paths.file_type(thing.status.st_mode)}
    if thing.link is not None:
        attributes.update(target=shown(thing.link), target_type=thing.end_type)
    if content and thing.end is not None:
        attributes.update(digest=f"sha256:{content}", executable=bool(thing.end.st_mode & 0o111))
    return attributes


def _told(thing: _Thing) -> dict[str, Value]:
    status = thing.end or thing.status
    mode = format(stat.S_IMODE(status.st_mode), "04o")
    return {
        "size": status.st_size,
        "mode": mode,
        "owner": paths.owner(status),
        "mtime": paths.iso(status.st_mtime_ns),
    }


# -- other digests than sha256, for pins


def _algorithms(policy: Policy, subject: str) -> set[str]:
    """What any rule of the policy pins this file by: which rule a file belongs to is not for the probe to say."""
    pins = (rule.digest.partition(":")[0] for rule in policy.file if rule.digest and claims(rule, "file", subject))
    return {algorithm for algorithm in pins if algorithm != "sha256"}


def _other_digest(path: str, algorithm: str, content: str, look: Look) -> str | Trouble:
    """`md5:…` of a file whose sha256 is `content`; remembered by that, for equal contents have equal digests."""

    def compute() -> Seen:
        read = _stream(path, algorithm)
        if isinstance(read, Trouble):
            return Seen((Unknown("file", shown(path), read.reason),))
        if read[0] != content:
            return Seen((Unknown("file", shown(path), "it changes while it is read"),))
        return Seen((Fact("file", shown(path), {algorithm: f"{algorithm}:{read[1]}"}),))

    fact = look.memo.recall(("file digest", path, algorithm), content, compute).facts[0]
    return str(fact.attributes[algorithm]) if isinstance(fact, Fact) else Trouble(path, fact.reason)


def _stream(path: str, algorithm: str) -> tuple[str, str] | Trouble:
    """sha256 and another digest of one regular file, read once in pieces."""
    hashes = (hashlib.sha256(), hashlib.new(algorithm, usedforsecurity=False))
    try:
        descriptor = paths.open_regular(path)
        try:
            while piece := os.read(descriptor, _BUFFER):
                for one in hashes:
                    one.update(piece)
        finally:
            os.close(descriptor)
    except OSError as error:
        return Trouble(path, paths.reason(error))
    return hashes[0].hexdigest(), hashes[1].hexdigest()


# -- words


def _digest_of(fact: Fact, algorithm: str) -> str | None:
    value = fact.attributes.get("digest") if algorithm == "sha256" else fact.told.get(algorithm)
    return str(value) if value is not None else None


def _short(digest: str) -> str:
    algorithm, _, value = digest.partition(":")
    return f"{algorithm} {value[:12]}…"


def _without_contents(fact: Fact) -> str:
    if fact.absent:
        return "not there"
    kind = fact.attributes.get("type")
    return (
        f"a {kind}"
        if kind != "link"
        else f"a link to {fact.attributes.get('target')} ({fact.attributes.get('target_type')})"
    )


def _changes(difference: Difference) -> Iterator[str]:
    """What changed, in words: the type first, for it explains the rest."""
    changed = difference.attributes
    if "type" in changed:
        was, became = changed["type"]
        yield f"was a {was}, is a {became}"
        return
    if "target" in changed:
        was, became = changed["target"]
        yield f"link to {was} → {became}"
    if "target_type" in changed:
        was, became = changed["target_type"]
        yield f"what it leads to was {was}, is {became}"
    if "digest" in changed:
        yield f"contents changed{_sizes(difference)}"
    if "executable" in changed:
        yield "may be executed now" if changed["executable"][1] else "may no longer be executed"


def _sizes(difference: Difference) -> str:
    if not isinstance(difference.expected, Fact) or not isinstance(difference.found, Fact):
        return ""
    was, now = difference.expected.told.get("size"), difference.found.told.get("size")
    if not isinstance(was, int) or not isinstance(now, int):
        return ""
    return f" ({was:,} → {now:,} bytes)" if was != now else f" (still {now:,} bytes)"
