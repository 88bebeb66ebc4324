"""Runs that other users recorded in states of their own, for root: merged into `lockd runs`.

Always holds: another user's store is opened only by a child that has become that user, so that nothing they put there
is read or run with root's rights; what comes back is bounded in size and time, and taken apart by type. The user told
is the account whose store it is, whatever the record says.
Never: writes into another user's state, or follows where `LOCKD_STATE` of another session may have pointed.
"""

from __future__ import annotations

import json
import os
import re
import select
import signal
import time
from collections.abc import Iterator
from typing import Any, NamedTuple

from lockd.runs import Run

_LIMIT = 1 << 25  # bytes of one user's runs
_PATIENCE = 5.0  # seconds for one user
_MOST = 10_000  # runs of one user
_AT = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ")


class Guest(NamedTuple):
    """An account with a store of its own for this policy."""

    name: str
    uid: int
    gid: int
    store: str


def guests(policy_path: str) -> list[Guest]:
    """Accounts that have recorded runs of this policy at the usual place. Nobody for who is not root."""
    if os.geteuid() != 0:
        return []
    import pwd

    from lockd.state import folder_name

    folder = folder_name(os.path.abspath(policy_path))
    found = []
    for row in pwd.getpwall():
        store = os.path.join(row.pw_dir, ".local", "state", "lockd", folder, "store.sqlite")
        if row.pw_uid != 0 and os.path.isabs(row.pw_dir) and os.path.lexists(store):
            found.append(Guest(row.pw_name, row.pw_uid, row.pw_gid, store))
    return found


def runs_of(guest: Guest) -> list[Run]:
    """The runs of one account, newest first. OSError where its store can't be read by itself."""
    data = _as_user(guest)
    try:
        rows = json.loads(data)
        return [run for run in map(_run, rows[:_MOST], [guest.name] * len(rows)) if run is not None]
    except (ValueError, TypeError, RecursionError):
        raise OSError(0, "its answer is no list of runs", guest.store) from None


def _as_user(guest: Guest) -> bytes:
    from lockd import store  # all imports before the rights are given up
    from lockd.store import Store

    ours, theirs = os.pipe()
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            os.close(ours)
            os.setgroups([])
            os.setresgid(guest.gid, guest.gid, guest.gid)
            os.setresuid(guest.uid, guest.uid, guest.uid)
            opened = store.open(guest.store, create=False)
            if isinstance(opened, Store):
                _tell(theirs, opened)
                code = 0
        finally:
            os._exit(code)
    os.close(theirs)
    try:
        data = b"".join(_read(ours))
    finally:
        os.close(ours)
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    if not data:
        raise OSError(0, "it could not be read", guest.store)
    return data


def _tell(descriptor: int, opened: Any) -> None:
    query = (
        "SELECT number, started, ended, environment, launch, generation, body FROM runs ORDER BY number DESC LIMIT ?"
    )
    view = memoryview(json.dumps(opened.rows(query, _MOST)).encode())
    while view:
        view = view[os.write(descriptor, view) :]


def _read(descriptor: int) -> Iterator[bytes]:
    """Blocks until the end, or OSError when it is too much or takes too long."""
    end, size = time.monotonic() + _PATIENCE, 0
    while True:
        if not select.select([descriptor], [], [], max(0, end - time.monotonic()))[0]:
            raise OSError(0, "it took too long")
        block = os.read(descriptor, 1 << 16)
        if not block:
            return
        size += len(block)
        if size > _LIMIT:
            raise OSError(0, "it is too large")
        yield block


def _run(row: Any, user: str) -> Run | None:
    """A run as another user's store tells it; None where it is none."""
    try:
        number, start, end, environment, launch, generation, body = row
        told = json.loads(body)
    except (ValueError, TypeError, RecursionError):
        return None
    times = all(isinstance(at, str) and _AT.fullmatch(at) for at in (start, end) if at is not None)
    if not (isinstance(number, int) and start is not None and times and isinstance(told, dict)):
        return None
    number_of = generation if isinstance(generation, int) else None
    body = {**_body(told), "user": user}
    return Run(number, start, end, _text(environment), _text(launch), number_of, None, body, user)


def _body(told: dict[str, Any]) -> dict[str, Any]:
    """What is understood of a body, each part of the type that it must have."""
    words: dict[str, Any] = {name: _text(told.get(name)) for name in ("cwd", "gate", "verdict", "origin")}
    argv = told.get("argv")
    words["argv"] = [one for one in argv if isinstance(one, str)] if isinstance(argv, list) else []
    notes = told.get("notes")
    pairs = notes.items() if isinstance(notes, dict) else ()
    words["notes"] = {name: value for name, value in pairs if isinstance(value, (str, int, float, bool))}
    code = told.get("exit")
    words |= {"exit": code if isinstance(code, int) else "unknown", "end_seen": told.get("end_seen") is True}
    override = told.get("override")
    if isinstance(override, dict):
        words["override"] = {name: _text(override.get(name)) for name in ("why", "by", "at")}
    return words


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""
