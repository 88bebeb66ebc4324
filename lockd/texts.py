"""What changed inside files, as unified diffs: kept texts against each other or against what is there now.

Always holds: only the policy's owner and root are shown texts. A text is shown only where its bytes are those of the
state that is compared: a kept one by its digest, a file on disk by the digest that the look saw.
Never: shows a file that no rule keeps, binary contents, or more than a megabyte.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from lockd import keep, objects
from lockd.disk import Disk
from lockd.errors import LockdError
from lockd.facts import Fact, Unknown
from lockd.probes.paths import unshown
from lockd.state import may_accept

if TYPE_CHECKING:
    from lockd.findings import Finding
    from lockd.session import Session
    from lockd.sources import Source
    from lockd.store import Store

_LINES = 400  # of one file


def unified(session: Session, a: Source, b: Source, findings: Iterable[Finding]) -> Iterator[str]:
    """The lines of a unified diff for each changed file whose texts in both states are known."""
    if session.state is None or not may_accept(session.policy.owner):
        return
    names = [one.fact for one in findings if one.fact.startswith("file:") and one.change == "changed"]
    store = session.state.store() if names else None
    if store is None:
        return
    with store:
        for fact in names:
            old, new = (_text(store, one.facts.get(fact)) for one in (a, b))
            if old is not None and new is not None:
                yield from _diff(fact, old, new, a.label, b.label)


def _text(store: Store, fact: Fact | Unknown | None) -> str | None:
    """The text with the digest of a file's fact: kept under that digest, or on disk as it was seen."""
    digest = fact.attributes.get("digest") if isinstance(fact, Fact) else None
    if not isinstance(fact, Fact) or not isinstance(digest, str) or not digest.startswith("sha256:"):
        return None
    data = _kept(store, digest.partition(":")[2])
    if data is None:
        found = Disk().read(unshown(fact.subject), keep.LONGEST_TEXT)
        same = isinstance(found, bytes) and digest == f"sha256:{hashlib.sha256(found).hexdigest()}"
        data = found if isinstance(found, bytes) and same else None
    return None if data is None or b"\0" in data else data.decode("utf-8", "backslashreplace")


def _kept(store: Store, digest: str) -> bytes | None:
    size = store.rows("SELECT size FROM objects WHERE digest = ?", digest)
    if not size or size[0][0] > keep.LONGEST_TEXT:
        return None
    try:
        return objects.whole(store, digest)
    except LockdError:  # damaged: the difference stands without its text
        return None


def _diff(fact: str, old: str, new: str, a: str, b: str) -> Iterator[str]:
    from difflib import unified_diff

    path = fact.partition(":")[2]
    before, after = (f"{path} ({label})" for label in (a, b))
    lines = list(unified_diff(old.splitlines(), new.splitlines(), before, after, lineterm=""))
    yield from lines[:_LINES]
    if len(lines) > _LINES:
        yield f"… and {len(lines) - _LINES:,} lines more"
