"""Findings about packages and unowned files in one line, from → to.

Always holds: names of changed files are in the line when the version stayed; a swap is told by its versions and the
number of files, never by the files. Every line names the package.
Never: guesses who or why.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from lockd.facts import Fact, Unknown, Value
from lockd.findings import Difference, FileChanges
from lockd.plain import replace
from lockd.probes.python import brief

_SHOWN = 3  # file names in a line
_LABELS: Mapping[str, str] = {
    "cuda": "CUDA",
    "hip": "HIP",
    "git": "git",
    "abi": "C++11 ABI",
    "tag": "tag",
    "build": "build",
    "channel": "channel",
    "conda": "conda name",
    "origin": "origin",
    "commit": "commit",
    "dirty": "checkout",
    "metadata_version": "METADATA says",
    "state": "state",
}
_GONE = re.compile(r"broken: (METADATA missing|[^;]* is no conda record|/[^;]* is missing|/[^;]*, not a folder)")
_BARE = ("no conda record", "is missing", "not a folder")  # ends of states that leave nothing else to tell
_Moves = Mapping[str, "tuple[Value | None, Value | None]"]


def package_line(difference: Difference) -> str:
    """One line about a package."""
    name = difference.name.rpartition("/")[2]
    before, after = difference.expected, difference.found
    if isinstance(after, Unknown):
        return f"{name} could not be read: {after.reason}"
    if difference.change == "forbidden":
        return f"{_titled(name, after)} is installed and forbidden"
    if difference.change == "added":
        return f"{_titled(name, after)} is new{_aside(_standing(after))}"
    if difference.change == "missing":
        absent = [pin.text for pin in difference.breaches if pin.found is None]
        left = f"; its removal left {', '.join(difference.left)}" if difference.left else ""
        return f"{_titled(name, before)} is gone{left}" if before else next(iter(absent), f"{name} is not installed")
    if "lock" not in difference.against:
        return _pins(name, difference, after)
    return _changed(name, difference, before, after)


def _pins(name: str, difference: Difference, after: Fact | None) -> str:
    """The broken pins alone, that of the version first: `torch 2.11.0+cu128 pinned, 2.11.0+cu130 found; CUDA …`."""
    ordered = sorted(difference.breaches, key=lambda pin: pin.attribute != "version")
    text = "; ".join(dict.fromkeys(pin.text for pin in ordered))
    return text if text.startswith(f"{name} ") else f"{_titled(name, after)}: {text}"


def _titled(name: str, fact: Fact | None) -> str:
    version = fact.attributes.get("version") if fact else None
    return f"{name} {version}" if version else name


def _standing(fact: Fact | None) -> Iterator[str]:
    for label in ("state", "origin"):
        if fact and fact.attributes.get(label):
            yield brief.digests(str(fact.attributes[label]))


def _aside(details: Iterator[str]) -> str:
    text = "; ".join(details)
    return f" ({text})" if text else ""


def _changed(name: str, difference: Difference, before: Fact | None, after: Fact | None) -> str:
    moves = difference.attributes
    if _GONE.search(str(moves.get("state", ("", ""))[1])):  # what it stated is gone with it
        if str(moves["state"][1]).endswith(_BARE) and not difference.files:
            return f"{_titled(name, after)}: {moves['state'][1]}"
        moves = {"state": moves["state"]}
        difference = replace(
            difference, attributes={**moves, "content": difference.attributes.get("content", ("", ""))}
        )
    if "version" in moves:
        old, new = moves["version"]
        details = [*_details(moves, leave=_implied(moves)), *_count(difference.files)]
        return "; ".join([f"{name} {_value(old)} → {_value(new)}{_aside(iter(details))}", *_edited(after)])
    if "tag" in moves:
        details = [*_details(moves, bare=frozenset({"tag"})), *_shared(moves), *_count(difference.files)]
        return "; ".join([f"{_titled(name, after)}: another build{_aside(iter(details))}", *_edited(after)])
    details = [*_details(moves), *_shared(moves)]
    content = _content(difference, before, after)
    return f"{_titled(name, after)}: " + "; ".join([*details, *content] or ["its record changed, its contents did not"])


def _implied(moves: _Moves) -> frozenset[str]:
    """A METADATA version that moved just as the version did says nothing more."""
    return frozenset({"metadata_version"} if moves.get("metadata_version") == moves.get("version") else ())


def _details(moves: _Moves, leave: frozenset[str] = frozenset(), bare: frozenset[str] = frozenset()) -> Iterator[str]:
    """`CUDA 12.8 → 13.0` for each attribute that moved; those that are bare go without their name."""
    for attribute, label in _LABELS.items():
        if attribute in moves and attribute not in leave:
            old, new = moves[attribute]
            if attribute == "state" and None in (old, new):
                yield str(new) if old is None else f"no longer {old}"
            else:
                shorten = brief.tag_pair if attribute == "tag" else brief.digest_pair
                was, now = shorten(_value(old), _value(new))
                yield f"{was} → {now}" if attribute in bare else f"{label} {was} → {now}"


def _value(value: Value | None) -> str:
    if value is None:
        return "none"
    return ", ".join(value) if isinstance(value, tuple) else str(value)


def _shared(moves: _Moves) -> Iterator[str]:
    if "shared" in moves:
        old, new = moves["shared"]
        yield (
            f"owns paths in common with {_value(new)}" if new else f"no longer owns paths in common with {_value(old)}"
        )


def _count(files: FileChanges | None) -> Iterator[str]:
    if files is not None and files.total:
        yield f"{files.total} file{'' if files.total == 1 else 's'}"


def _content(difference: Difference, before: Fact | None, after: Fact | None) -> Iterator[str]:
    """The names: against the lock where its manifest is known, else against the package's own record."""
    moves, files = difference.attributes, difference.files
    if "content" not in moves and not (files and files.total):
        if "sources" in moves:
            yield "sources of its checkout changed"
        return
    modified = after.told.get("modified_files") if after else None
    if files and files.total:
        names, total = files.examples, files.total
    else:
        names = modified if isinstance(modified, tuple) else ()
        counted = after.told.get("modified") if after else 0
        total = counted if isinstance(counted, int) else 0
    yield _files_line(names, total, bool(modified), files)
    yield from files.links if files and files.total == 1 else ()
    if after and "links" in after.told:
        yield f"{after.told['links']}: `uv cache clean {after.subject.rpartition('/')[2]}` before a reinstall"
    if before and not modified and before.told.get("modified"):
        yield "now as its wheel says"


def _edited(after: Fact | None) -> Iterator[str]:
    """Of another build: the files that are not as its own record has them."""
    count, names = (after.told.get(name) if after else None for name in ("modified", "modified_files"))
    if isinstance(count, int) and count:
        yield _files_line(names if isinstance(names, tuple) else (), count, True, None)


def _files_line(names: tuple[str, ...], total: int, modified: bool, files: FileChanges | None) -> str:
    if not total:
        return "its contents changed"
    gone = files is not None and files.missing == total
    bit = "its execute bit" if total == 1 else "their execute bits"
    verb = (
        "missing"
        if gone
        else f"lost {bit}"
        if files is not None and files.lost == total
        else f"gained {bit}"
        if files is not None and files.gained == total
        else "differs from its wheel"
        if modified and total == 1
        else "differ from its wheel"
        if modified
        else "changed"
    )
    listed = ", ".join(names[:_SHOWN]) + (" …" if total > len(names[:_SHOWN]) else "")
    return f"{total} file{'' if total == 1 else 's'} {verb}: {listed}" if listed else f"{total} files {verb}"


def unowned_line(difference: Difference) -> str:
    """One line about the files that belong to no package."""
    environment = difference.name.partition(":")[2]
    if isinstance(difference.found, Unknown):
        return f"unowned files of {environment} could not be read: {difference.found.reason}"
    files = difference.files
    if files and files.total:
        kinds = ((files.added, "new"), (files.changed, "changed"), (files.missing, "gone"))
        counts = ", ".join(f"{number} {word}" for number, word in kinds if number)
        listed = ", ".join(files.examples[:_SHOWN]) + (" …" if files.total > _SHOWN else "")
        links = f"; {files.links[0]}" if files.links and files.total == 1 else ""
        return f"files of {environment} that belong to no package: {counts}: {listed}{links}"
    old, new = difference.attributes.get("files", (None, None))
    examples = difference.found.told.get("examples") if difference.found else None
    listed = f": {', '.join(examples)}" if isinstance(examples, tuple) and examples else ""
    moved = f"{old or 0} → {new or 0}" if "files" in difference.attributes else "changed"
    return f"files of {environment} that belong to no package: {moved}{listed}"
