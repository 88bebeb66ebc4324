"""The file of the store: made whole, brought to this version, refused when newer, moved aside when corrupt.

Always holds: a store is built under another name and linked in, so that none is ever half there; SQLite's errors come
out in our words, with what to do. A corrupt store is kept beside, with the time in its name.
Never: loses what an older lockd recorded.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from lockd import store_reading
from lockd.errors import LockdError
from lockd.store_schema import MIGRATIONS, VERSION

if TYPE_CHECKING:
    import sqlite3

BUSY = 10.0  # seconds to wait for another lockd's transaction


class StoreError(LockdError):
    """The store can't be used: full, newer, unreadable. The lock is untouched by that."""


def connect(path: str, *, create: bool, thorough: bool = False) -> tuple[sqlite3.Connection, tuple[str, ...]] | None:
    """A connection, and what a person should be told. None: there is no store, and none was to be made."""
    notices: tuple[str, ...] = ()
    for _ in range(2):
        if not os.path.exists(path):
            if not create:
                return None
            _build(path)
        connection, broken = _connect(path, thorough) if create else _connect_to_read(path, thorough)
        if connection is not None:
            return connection, notices
        if not create:
            hint = "the next accept moves it aside and starts a new one"
            raise StoreError(f"the store is corrupt ({broken})", where=path, hint=hint)
        notices += (f"the store was corrupt ({broken}); it was moved to {_move_aside(path)}, the lock still decides",)
    raise StoreError("the store can't be made", where=path)


@contextmanager
def spoken(path: str) -> Iterator[None]:
    """SQLite's errors in our words."""
    import sqlite3

    try:
        yield
    except sqlite3.Error as error:
        what, hint = store_reading.reason(path, error)
        raise StoreError(f"the store could not be used: {what}", where=path, hint=hint) from error


def _connect_to_read(path: str, thorough: bool) -> tuple[sqlite3.Connection | None, str]:
    """The same for who may do without writing: on a full or read-only disk the store is read all the same."""
    try:
        return _connect(path, thorough)
    except StoreError as error:
        cause = error.__cause__
        connection = None if cause is None or not store_reading.is_unwritable(cause) else store_reading.connect(path)
        if connection is None or connection.execute("PRAGMA user_version").fetchone()[0] != VERSION:
            raise
        return connection, ""


def _connect(path: str, thorough: bool) -> tuple[sqlite3.Connection | None, str]:
    """A connection of the right version; or None and what is corrupt."""
    import sqlite3

    with spoken(path):
        connection = sqlite3.connect(path, timeout=BUSY, isolation_level=None)
        try:
            version = connection.execute("PRAGMA user_version").fetchone()[0]
            for pragma in ("foreign_keys = ON", "synchronous = FULL"):
                connection.execute(f"PRAGMA {pragma}")
            connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
            found = connection.execute("PRAGMA quick_check(1)").fetchone()[0] if thorough else "ok"
        except sqlite3.OperationalError:  # busy, or no right to it: not corrupt
            connection.close()
            raise
        except sqlite3.DatabaseError as error:
            connection.close()
            return None, str(error)
    if found != "ok":
        connection.close()
        return None, found.replace("\n", " ")
    if version > VERSION:
        connection.close()
        hint = "use the lockd that wrote it, or a newer one"
        raise StoreError(f"the store has version {version}, this lockd knows {VERSION}", where=path, hint=hint)
    _migrate(connection, version, path)
    return connection, ""


def _migrate(connection: sqlite3.Connection, version: int, path: str) -> None:
    with spoken(path):
        for number in range(version, VERSION):
            script = f"BEGIN IMMEDIATE;{MIGRATIONS[number]};PRAGMA user_version = {number + 1};COMMIT;"
            connection.executescript(script)


def _build(path: str) -> None:
    """A new store, whole, under another name; then renamed in, unless somebody else was faster."""
    import sqlite3

    aside = f"{path}.{os.getpid()}.new"
    _remove(aside)
    try:
        with spoken(path):
            connection = sqlite3.connect(aside, isolation_level=None)
            try:
                connection.execute("PRAGMA journal_mode = WAL")
                _migrate(connection, 0, path)
            finally:
                connection.close()
        os.chmod(aside, 0o600)
        try:
            os.link(aside, path)  # fails where another lockd was first: theirs stays
        except FileExistsError:
            pass
        except OSError:  # a file system without hard links
            os.rename(aside, path)
    finally:
        _remove(aside)


def _move_aside(path: str) -> str:
    from lockd.clock import stamp

    name = f"{path}.corrupt-{stamp().replace(':', '')}"
    for ending in ("", "-wal", "-shm"):
        try:
            os.rename(path + ending, name + ending)
        except FileNotFoundError:
            pass
    return name


def _remove(path: str) -> None:
    for name in (path, f"{path}-wal", f"{path}-shm"):
        try:
            os.unlink(name)
        except FileNotFoundError:
            pass
