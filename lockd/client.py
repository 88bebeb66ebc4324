"""Asking the daemon, for commands and gates.

Always holds: a daemon is believed only if root or this very user runs it, and it speaks this version about the very
policy and lock files that the caller sees. It has a quarter of a second for its first word; then it is waited for as
long as it says what it does. Whatever goes wrong, the answer is None: then the caller looks directly.
Never: starts a daemon, takes an old verdict for a new one, or imports what costs: it stands before every launch.
"""

from __future__ import annotations

import os
import struct
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from lockd import protocol

if TYPE_CHECKING:
    import _socket

    from lockd.look import Launch

_SYSTEM = "/run/lockd"
Said = Callable[[str], None]


def ask(
    policy_path: str, request: Mapping[str, Any], *, said: Said | None = None, first: float = protocol.FIRST
) -> dict[str, Any] | None:
    """The daemon's answer, whole; None where there is none to be had, and a direct look is due.

    said: called with what the daemon is doing while it makes the caller wait. first: seconds for its first word.
    """
    for place in sockets(policy_path):
        try:
            answer = _ask(place, request, said, first)
        except (OSError, protocol.ProtocolError):
            continue
        if answer is not None:
            return answer
    return None


def there(policy_path: str) -> bool:
    """Is there a socket to ask? Costs a stat or two."""
    return any(map(os.path.exists, sockets(policy_path)))


def sockets(policy_path: str) -> list[str]:
    """Where a daemon for this policy may listen: this user's runtime folder, then the system's."""
    from lockd.state import runtime_dir

    bases = [runtime_dir(), None if "LOCKD_RUNTIME" in os.environ else _SYSTEM]
    places = [os.path.join(protocol.folder(base, policy_path), "socket") for base in bases if base]
    return list(dict.fromkeys(places))


def question(policy_path: str, launch: Launch, *, trust_unmapped: bool = False, **how: Any) -> dict[str, Any]:
    """A `verify` request. how: `commands` (run `[[command]]` anew), `every`, `strict`, `colour`, `json`."""
    from lockd import __version__, state

    lock_path = f"{policy_path[: -len('.toml')] if policy_path.endswith('.toml') else policy_path}.lock"
    base = state.base_dir()
    return {
        "ask": "verify",
        "version": __version__,
        "policy": protocol.identity(policy_path),
        "lock": protocol.identity(lock_path),
        "state": os.path.join(base, state.folder_name(policy_path)) if base else None,
        "trust_unmapped": trust_unmapped,
        "launch": {
            "environ": dict(launch.environ),
            "cwd": launch.cwd,
            "argv": list(launch.argv),
            "source": launch.source,
        },
        **how,
    }


def launch(
    policy_path: str, launched: Launch, override: str | None, *, trust_unmapped: bool = False, said: Said | None = None
) -> dict[str, Any] | None:
    """The daemon's decision about a launch by hand, recorded as this process's; None: decide here."""
    if not there(policy_path):
        return None
    request = question(policy_path, launched, trust_unmapped=trust_unmapped)
    return ask(policy_path, {**request, "ask": "launch", "gate": "run", "override": override}, said=said)


def _ask(place: str, request: Mapping[str, Any], said: Said | None, first: float) -> dict[str, Any] | None:
    import _socket  # the `socket` module costs as much as all the rest

    connection = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM | _socket.SOCK_CLOEXEC)
    try:
        connection.settimeout(first)
        with protocol.Address(place) as name:
            connection.connect(name)
        if not _believed(connection):
            return None
        _send(connection, protocol.encode(request, protocol.LIMIT))
        return _answer(connection, said)
    finally:
        connection.close()


def _believed(connection: _socket.socket) -> bool:
    """Is the one who listens root, or this user?"""
    import _socket

    told = connection.getsockopt(_socket.SOL_SOCKET, _socket.SO_PEERCRED, struct.calcsize("3i"))
    return struct.unpack("3i", told)[1] in (0, os.geteuid())


def _send(connection: _socket.socket, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[connection.send(view) :]


def _answer(connection: _socket.socket, said: Said | None) -> dict[str, Any] | None:
    """Frames until the answer. None for `error` with `direct`, and when nothing comes in time."""
    buffer = bytearray()
    began, size = time.monotonic(), 1 << 16
    while True:
        data = connection.recv(size)
        if not data:
            return None
        buffer += data
        for message in protocol.frames(buffer, protocol.ANSWER_LIMIT):
            connection.settimeout(protocol.PATIENCE)
            if "answer" in message:
                return dict(message["answer"])
            if "error" in message:
                return None
            if said is not None and time.monotonic() - began > 1:
                said(str(message.get("looking", "")))
