"""Reading a store where nothing can be written: a full state disk, or a read-only one.

SQLite needs a place for its shared index (`-shm`) before it reads a store in WAL mode, so a full disk would hide all
that was recorded. Where no transaction waits in the `-wal`, the file alone is read, as one that nobody changes; else
both are copied to memory or a temporary folder, and read there.
Always holds: what is read was committed; a change through such a connection fails, as it would on the disk itself.
Never: writes beside the store, or leaves a copy behind.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from typing import TYPE_CHECKING
from urllib.parse import quote

if TYPE_CHECKING:
    import sqlite3

_UNWRITABLE = ("full", "disk I/O error", "readonly", "unable to open database file")
FULL = "the disk is full"
_MAKE_ROOM = "make room (`lockd gc` frees history) and run it again"
ROOM = 1 << 18  # bytes without which SQLite does not begin
_MEMORY = "/dev/shm"  # noqa: S108  a folder of our own is made in it


def is_unwritable(error: BaseException) -> bool:
    """Does SQLite complain that there is no room, or no leave, to write?"""
    return any(word in str(error) for word in _UNWRITABLE)


def reason(path: str, error: BaseException) -> tuple[str, str]:
    """What keeps a store from being used, in a person's words, and the way out: SQLite has one word for many causes."""
    if not is_unwritable(error):
        return str(error), "is another lockd stuck?"
    what, hint = obstacle(os.path.dirname(path))
    return (what, hint) if what else (str(error), _MAKE_ROOM)  # a quota, a limit


def obstacle(folder: str) -> tuple[str, str]:
    """What keeps everybody from writing into a folder, and the way out; ("", "") where nothing is seen to."""
    try:
        about = os.statvfs(folder)
    except OSError:
        return "", ""
    if about.f_flag & os.ST_RDONLY:
        return "its file system is read-only", "mount it writable and run it again; what is recorded can be read"
    if about.f_bavail * about.f_frsize < ROOM:
        return FULL, _MAKE_ROOM
    return "", ""


def connect(path: str) -> sqlite3.Connection | None:
    """A connection for reading alone; None where the store can't be read either, or has nowhere to be read."""
    import sqlite3

    try:
        if not _waits(path):
            return _opened(f"file:{quote(path)}?mode=ro&immutable=1")
        with tempfile.TemporaryDirectory(prefix="lockd-", dir=_MEMORY if os.path.isdir(_MEMORY) else None) as folder:
            for ending in ("", "-wal"):
                shutil.copyfile(path + ending, os.path.join(folder, "store" + ending))
            # what was opened stays readable once its name is gone, and SQLite refuses to change a file without one
            return _opened(f"file:{quote(folder)}/store?mode=rw")
    except (OSError, sqlite3.Error):
        return None


def _waits(path: str) -> bool:
    """Are there transactions in the log that the file itself does not have?"""
    try:
        return os.stat(f"{path}-wal").st_size > 0
    except FileNotFoundError:
        return False


def _opened(name: str) -> sqlite3.Connection:
    import sqlite3

    connection = sqlite3.connect(name, uri=True, isolation_level=None)
    try:
        connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
        connection.execute("PRAGMA query_only = ON")
    except sqlite3.Error:
        connection.close()
        raise
    return connection
