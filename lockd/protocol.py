"""What goes over the daemon's socket, for both ends.

A frame is 4 bytes of length, big-endian, and that many bytes of JSON: one object with `v`, the version. A client sends
one request and reads frames until one holds `answer` or `error`; those before it say `looking`, what is waited for.

| request | besides | answer |
| --- | --- | --- |
| `standing` | | the verdict as it stands, at once: `settled` false while a change is being looked at |
| `status` | | `lockd status --json`, after every event up to now was read |
| `writers` | | who is behind each finding, and who put facts back, as far as that was observed |
| `launch` | `hook` (its version), `policy` (path), `launch` | `hook`: exit code and lines for stderr |
| `launch` | `gate` = `run`, `override`, and what `verify` takes | `outcome`, `lines` for stderr, `run`, `inside` |
| `verify` | `policy`, `lock`, `launch`, … (`client.question`) | verdict, exit code, document or text |

`error` has what, where, hint; `direct` true: the daemon can't answer for this client, who looks for itself.
Always holds: a request is at most LIMIT bytes, an answer ANSWER_LIMIT; a version that is not this one is refused.
Never: carries a file's contents, or takes a verdict from a client.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from typing import Any

VERSION = 1
LIMIT = 1 << 20
ANSWER_LIMIT = 32 << 20
HEAD = 4  # bytes of the length
FIRST = 0.25  # seconds within which a daemon that lives says its first word
PATIENCE = 5.0  # seconds between two frames while a look goes on; the daemon says `looking` every second
_ADDRESS = 107  # bytes that sun_path takes

Identity = tuple[int, ...]


class ProtocolError(ValueError):
    """What came is no frame of this protocol."""


def encode(message: Mapping[str, Any], limit: int = ANSWER_LIMIT) -> bytes:
    """A frame. ProtocolError where it would be larger than `limit`."""
    body = json.dumps({"v": VERSION, **message}, default=list).encode("ascii")
    if len(body) > limit:
        raise ProtocolError(f"{len(body):,} bytes are more than the {limit:,} that one message may have")
    return len(body).to_bytes(HEAD, "big") + body


def frames(buffer: bytearray, limit: int) -> Iterator[dict[str, Any]]:
    """Take the whole frames off the front of a buffer. ProtocolError for what can't become one."""
    while len(buffer) >= HEAD:
        size = int.from_bytes(buffer[:HEAD], "big")
        if not 0 < size <= limit:
            raise ProtocolError(f"a message of {size:,} bytes; at most {limit:,} are taken")
        if len(buffer) < HEAD + size:
            return
        body = bytes(buffer[HEAD : HEAD + size])
        del buffer[: HEAD + size]
        yield decode(body)


def decode(body: bytes) -> dict[str, Any]:
    """The object of one frame. ProtocolError for anything else, or another version."""
    try:
        message = json.loads(body)
    except (ValueError, RecursionError):
        raise ProtocolError("not JSON") from None
    if not isinstance(message, dict):
        raise ProtocolError("not an object")
    if message.get("v") != VERSION:
        raise ProtocolError(f"version {message.get('v')!r}, not {VERSION}")
    return message


def folder(runtime: str, policy_path: str) -> str:
    """The runtime folder of one policy's daemon: `socket`, `pid`, `cookies/`."""
    from lockd.state import folder_name

    return os.path.join(runtime, folder_name(policy_path))


def identity(path: str) -> Identity | None:
    """What tells one state of a file from another: device, inode, size, mtime, ctime. None: it can't be told."""
    try:
        found = os.stat(path)
    except (OSError, ValueError):
        return None
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns


class Address:
    """A socket's name as bind and connect take it: long paths by way of a descriptor of their folder."""

    def __init__(self, path: str) -> None:
        self._folder = -1
        self.name = path
        if len(os.fsencode(path)) > _ADDRESS:
            self._folder = os.open(os.path.dirname(path), os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
            self.name = f"/proc/self/fd/{self._folder}/{os.path.basename(path)}"

    def __enter__(self) -> str:
        return self.name

    def __exit__(self, *_: object) -> None:
        if self._folder >= 0:
            os.close(self._folder)
