"""The deed of a restore: what is there is kept, then each path is put in its place, and all of it can be taken back.

Always holds: nothing is changed before what is there now is kept and the journal that says so is on disk. Each path
changes at once or not at all. Killed anywhere, the next restore goes on: it takes away half-written files, does what
is left, and its journal takes back both. Restores and accepts never run at the same time.
Never: decides what to put back, or forgets what it replaced (`gc --keep` does).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

from lockd import journal as journals
from lockd import keep, objects, place, put
from lockd.clock import stamp
from lockd.errors import RefusedError
from lockd.facts import shown
from lockd.journal import BEGUN, CONTINUED, DONE, Journal, rows_of
from lockd.keep import Wanted
from lockd.objects import Keeping
from lockd.pending import Act, pending
from lockd.place import FIFO, FILE, FOLDER, LINK, NOTHING, OTHER, Folders, PlaceError, Row
from lockd.plain import replace
from lockd.restore import Plan, Step

if TYPE_CHECKING:
    from lockd.disk import Disk
    from lockd.origin import Origin
    from lockd.state import State
    from lockd.store import Store

_BATCH, _BATCH_BYTES = 512, 256 << 20  # files that are brought to the disk together


def apply(
    state: State,
    store: Store,
    plan: Plan,
    who: Origin,
    *,
    kind: str = "restore",
    say: Callable[[int, int], None] | None = None,
) -> Journal | None:
    """Do what the plan says, inside `accept_record.alone`. None: there was nothing to do."""
    acts = plan.acts
    before = journals.unfinished(state)
    with Folders({act.row.path: act.row for act in acts if act.row.kind == FOLDER}) as folders:
        # 1. what a killed restore left half-written
        if before is not None:
            _clear(store, folders, before)
        if not acts:
            return None if before is None else _ended(state, store, before, who)
        # 2. what is there now
        journal = _keep_present(state, store, folders, plan, before, kind)
        # 3. the deed
        _do(store, folders, plan, acts, say)
    # 4. it is done
    if before is not None:
        journals.write(state, replace(before, status=CONTINUED))
    return _ended(state, store, journal, who)


def _ended(state: State, store: Store, journal: Journal, who: Origin) -> Journal:
    """All is in its place: say so, in the journal and in the log."""
    done = replace(journal, status=DONE)
    journals.write(state, done)
    _log(store, done, who)
    return done


def _keep_present(
    state: State, store: Store, folders: Folders, plan: Plan, before: Journal | None, kind: str
) -> Journal:
    """Keep every path that will change, and write the journal that tells of it."""
    with Keeping(store) as keeping:
        rows: dict[str, Row] = {}
        for row in _present(keeping, folders, plan):
            rows.setdefault(row.path, row)
        if before is not None:
            rows = _continued(rows_of(store, before), rows)
        digest = keeping.add_bytes(keep.pack(rows.values()))
        keeping.finish()
        with store.transaction():
            keeping.record()
        keeping.keep()
    number = max((one.number for one in journals.every(state)), default=0) + 1
    facts = tuple(step.fact for step in plan.steps)
    journal = Journal(number, kind, BEGUN, stamp(), plan.generation, facts, digest)
    journals.write(state, journal)
    return journal


def _continued(old: Iterable[Row], new: Mapping[str, Row]) -> dict[str, Row]:
    """What was there before a killed restore, and what it had not come to as it is now."""
    rows = {row.path: row for row in old}
    for path, row in new.items():
        if path not in rows or row.kind != NOTHING:  # gone: it may be that restore that took it away
            rows[path] = row
    return rows


def _present(keeping: Keeping, folders: Folders, plan: Plan) -> Iterator[Row]:
    acts = plan.acts
    replaced: set[str] = set()
    for act in sorted(acts, key=lambda act: act.row.path):
        if act.row.path.rpartition("/")[0] in replaced:
            replaced.add(act.row.path)
            yield Row(act.row.path, NOTHING)
            continue
        row = _kept(keeping, folders, act.row.path)
        if row.kind == NOTHING:
            yield from (Row(folder, NOTHING) for folder in _missing_above(folders, act.row.path))
        yield row
        if row.kind == FOLDER and act.row.kind not in (FOLDER, NOTHING):
            yield from (_kept(keeping, folders, path) for path in place.below(folders, row.path))
        if row.kind != FOLDER and act.row.kind == FOLDER:
            replaced.add(row.path)
    for step in plan.steps:
        yield from (_kept(keeping, folders, path) for path in step.prune)


def _kept(keeping: Keeping, folders: Folders, path: str) -> Row:
    row = keep.keep_path(keeping, folders, Wanted(path))
    if row.kind == OTHER:
        raise PlaceError("a socket or device is there, which lockd does not replace", where=shown(path))
    return row


def _missing_above(folders: Folders, path: str) -> Iterator[str]:
    """The folders that will be made on the way to a path.

    Refused before anything is changed where a link, or a file, stands in the way.
    """
    at = os.path.dirname(path)
    while at not in ("", "/"):
        try:
            folders.open(at)
            return
        except FileNotFoundError:
            yield at
            at = os.path.dirname(at)
        except NotADirectoryError as error:
            hint = "look at who put it there, and take it away"
            where = shown(error.filename or at)
            raise PlaceError("a link or file stands where a folder was", where=where, hint=hint) from None


def _do(store: Store, folders: Folders, plan: Plan, acts: list[Act], say: Callable[[int, int], None] | None) -> None:
    """Take away, start-up code first, else deepest first; then folders, from the top; then files; then their times."""
    gone = sorted((act for act in acts if act.row.kind == NOTHING), key=lambda act: act.row.path, reverse=True)
    gone.sort(key=lambda act: _order(act)[0])
    made = sorted((act for act in acts if act.row.kind == FOLDER), key=lambda act: act.row.path)
    put_there = sorted((act for act in acts if act.row.kind in (FILE, LINK, FIFO)), key=_order)
    for act in gone:
        _take_away(folders, act.row.path)
    for path in sorted((path for step in plan.steps for path in step.prune), reverse=True):
        put.remove_empty(folders, path)
    for act in made:
        _clear_for(folders, act.row)
        put.put_folder(folders, act.row)
    _put_all(store, folders, put_there, say)
    for act in reversed(made):
        put.set_time(folders, act.row)
    for folder in sorted({os.path.dirname(act.row.path) for act in acts}):
        put.sync(folders, folder)


def _order(act: Act) -> tuple[bool, str]:
    """Start-up code and pyvenv.cfg first: what runs in every process of the environment."""
    name = act.row.path.rpartition("/")[2]
    early = name in ("pyvenv.cfg", "sitecustomize.py", "usercustomize.py") or name.endswith((".pth", ".start"))
    return not early, act.row.path


def _take_away(folders: Folders, path: str) -> None:
    """A folder only goes when it is empty: what came into it meanwhile is nobody's to throw away."""
    if place.look(folders, path)[0].kind == FOLDER:
        put.remove_empty(folders, path)
    else:
        put.remove(folders, path)


def _clear_for(folders: Folders, row: Row) -> None:
    there = place.look(folders, row.path)[0].kind
    if there != NOTHING and (there == FOLDER) != (row.kind == FOLDER):
        put.remove(folders, row.path)
        folders.forget(row.path)


def _put_all(store: Store, folders: Folders, acts: list[Act], say: Callable[[int, int], None] | None) -> None:
    """Batch by batch: aside, to the disk, then in place."""
    total, done = sum(act.row.size for act in acts), 0
    for batch in _batches(acts):
        files = [act for act in batch if act.row.kind == FILE]
        try:
            for act in files:
                with _in_words(act):
                    put.write_aside(folders, act.row, _pieces(store, act))
            put.flush(folders, (act.row for act in files))
            for act in batch:
                with _in_words(act):
                    _move_in(folders, act)
        except BaseException:
            for act in files:
                put.discard(folders, act.row)
            raise
        done += sum(act.row.size for act in files)
        if say is not None:
            say(done, total)


def _batches(acts: list[Act]) -> Iterator[list[Act]]:
    batch: list[Act] = []
    size = 0
    for act in acts:
        batch.append(act)
        size += act.row.size
        if len(batch) >= _BATCH or size >= _BATCH_BYTES:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def _move_in(folders: Folders, act: Act) -> None:
    _clear_for(folders, act.row)
    if act.row.kind == FILE:
        put.move_in(folders, act.row)
    else:
        put.put_other(folders, act.row)


@contextmanager
def _in_words(act: Act) -> Iterator[None]:
    """An error of the system in our words."""
    try:
        yield
    except OSError as error:
        hint = "lockd restore --apply goes on where it stopped; --undo takes it back"
        raise PlaceError(f"could not be put back: {error.strerror}", where=shown(act.row.path), hint=hint) from error


def _pieces(store: Store, act: Act) -> Iterator[bytes]:
    if not act.staged:
        yield from objects.pieces(store, act.row.content)
        return
    with open(act.staged, "rb") as file:
        yield from iter(lambda: file.read(1 << 20), b"")


def _clear(store: Store, folders: Folders, journal: Journal) -> None:
    """Take away the half-written files of a killed restore."""
    for row in rows_of(store, journal):
        folder, name = os.path.split(row.path)
        put.remove(folders, f"{folder}/{place.aside_name(name)}")


def _log(store: Store, journal: Journal, who: Origin) -> None:
    from lockd.store import Event

    facts = journal.facts
    some = ", ".join(facts[:12]) + (f" and {len(facts) - 12} more" if len(facts) > 12 else "")
    what = f"as at generation {journal.generation}" if journal.kind == "restore" else "the last restore was taken back"
    fact = facts[0] if len(facts) == 1 else None
    store.append(Event(stamp(), "restore", f"{what}: {some}", fact, who.data(), generation=journal.generation))


def undo_plan(state: State, store: Store, disk: Disk) -> tuple[Journal, Plan]:
    """The last restore that was not taken back, and the way to what was there before it."""
    last = next(
        (one for one in reversed(journals.every(state)) if one.kind == "restore" and one.status in (BEGUN, DONE)), None
    )
    if last is None:
        raise RefusedError("there is no restore to take back", where=state.folder, hint="lockd log --kind restore")
    source = f"kept before the restore of {last.at}"
    acts = tuple(pending(rows_of(store, last), disk, source, strict=True))
    facts = ", ".join(last.facts)
    return last, Plan(
        last.generation, (Step(facts, f"as before the restore of {last.at}", acts),) if acts else (), undo=True
    )
