"""What changed inside files, as unified diffs: kept texts against each other or against what is there now.

Always holds: only the policy's owner and root are shown texts. A text is shown only where its bytes are those of the
state that is compared: a kept one by its digest, a file on disk by the digest that the look saw.
Never: shows a file that no rule keeps, binary contents, or more than a megabyte.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

from lockd import keep
from lockd.disk import Disk
from lockd.errors import LockdError
from lockd.facts import Fact
from lockd.probes.paths import unshown
from lockd.state import may_accept

if TYPE_CHECKING:
    from lockd.findings import Finding
    from lockd.session import Session
    from lockd.store import Store

_LINES = 400  # of one file


def unified(
    session: Session, a: int | None, b: int | None, now: Mapping[str, object], findings: Iterable[Finding]
) -> Iterator[str]:
    """The lines of a unified diff for each changed file whose texts are known. a, b: generations; None: `now`."""
    if session.state is None or not may_accept(session.policy.owner):
        return
    names = [one.fact for one in findings if one.fact.startswith("file:") and one.change == "changed"]
    store = session.state.store() if names else None
    if store is None:
        return
    with store:
        for fact in names:
            texts = [_text(store, one, fact, now) for one in (a, b)]
            if texts[0] is not None and texts[1] is not None:
                yield from _diff(fact, texts[0], texts[1], a, b)


def _text(store: Store, generation: int | None, fact: str, now: Mapping[str, object]) -> str | None:
    if generation is not None:
        try:
            return keep.text_of(store, generation, fact)
        except LockdError:  # damaged: the difference stands without its text
            return None
    seen = now.get(fact)
    content = Disk().read(unshown(fact.partition(":")[2]), keep.LONGEST_TEXT)
    if not isinstance(content, bytes) or not isinstance(seen, Fact) or b"\0" in content:
        return None
    same = seen.attributes.get("digest") == f"sha256:{hashlib.sha256(content).hexdigest()}"
    return content.decode("utf-8", "backslashreplace") if same else None


def _diff(fact: str, old: str, new: str, a: int | None, b: int | None) -> Iterator[str]:
    from difflib import unified_diff

    path = fact.partition(":")[2]
    before, after = (path + (" (now)" if one is None else f" (generation {one})") for one in (a, b))
    lines = list(unified_diff(old.splitlines(), new.splitlines(), before, after, lineterm=""))
    yield from lines[:_LINES]
    if len(lines) > _LINES:
        yield f"… and {len(lines) - _LINES:,} lines more"
