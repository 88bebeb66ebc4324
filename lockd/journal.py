"""The journal of restores: what was there before each, so that it can be taken back.

Always holds: a journal is on disk before the first path changes, and says how far its restore came. Its rows are an
object, whose contents `gc` leaves alone as long as the journal stands.
Never: changes anything outside the state.
"""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

from lockd import atomic, keep, objects
from lockd.place import Row
from lockd.plain import dataclass, replace

if TYPE_CHECKING:
    from lockd.state import State
    from lockd.store import Store

BEGUN, DONE, UNDONE, CONTINUED = "begun", "done", "undone", "continued"


@dataclass(frozen=True)
class Journal:
    """One restore: what was there before it, as rows in an object. kind: restore or undo; status: how far it came."""

    number: int
    kind: str
    status: str
    at: str
    generation: int
    facts: tuple[str, ...]
    rows: str

    def text(self) -> bytes:
        return json.dumps({name: getattr(self, name) for name in self.__annotations__}, indent=1).encode()


def folder_of(state: State) -> str:
    return os.path.join(state.folder, "restores")


def every(state: State) -> list[Journal]:
    """Every restore of this state, oldest first."""
    try:
        files = sorted(name for name in os.listdir(folder_of(state)) if name.endswith(".json"))
    except FileNotFoundError:
        return []
    return [_read(os.path.join(folder_of(state), name)) for name in files]


def unfinished(state: State) -> Journal | None:
    """The restore that was killed, if the last one was."""
    last = next(reversed(every(state)), None)
    return last if last is not None and last.status == BEGUN else None


def rows_of(store: Store, journal: Journal) -> list[Row]:
    """What was there before a restore."""
    return keep.unpack(objects.whole(store, journal.rows))


def forget(state: State, journal: Journal) -> None:
    """A restore can't be taken back any more."""
    os.unlink(os.path.join(folder_of(state), f"{journal.number:06d}.json"))


def undone(state: State, journal: Journal) -> None:
    """Remember that a restore was taken back."""
    write(state, replace(journal, status=UNDONE))


def write(state: State, journal: Journal) -> None:
    os.makedirs(folder_of(state), mode=0o700, exist_ok=True)
    atomic.write(os.path.join(folder_of(state), f"{journal.number:06d}.json"), journal.text(), mode=0o600)


def _read(path: str) -> Journal:
    with open(path, "rb") as file:
        values: dict[str, Any] = json.loads(file.read())
    return Journal(**{**values, "facts": tuple(values["facts"])})
