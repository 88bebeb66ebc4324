"""The socket: many clients, one thread, frames in and frames out.

Always holds: a client has SLOW seconds for its request and as long again for taking its answer; one that sends garbage,
too much or too slowly is dropped and costs nobody else anything. Who asks is told by the kernel (SO_PEERCRED). While a
client waits it hears every second what for, as long as there is progress.
Never: decides anything, or blocks on a client.
"""

from __future__ import annotations

import os
import selectors
import socket
import struct
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from lockd import protocol

SLOW = 5.0  # seconds for a whole request, and for taking an answer
MOST = 900  # clients at once; more wait in the kernel's queue
_CHUNK = 1 << 16
_SAY, _KEEP = 1.0, 0.1  # seconds between two words to a waiting client, and between two rounds of all clients


class Peer(NamedTuple):
    """Who asks, as the kernel says."""

    pid: int
    uid: int
    gid: int


@dataclass(eq=False)
class Client:
    """One connection. until: when it is dropped, by the monotonic clock; asked: its request was taken."""

    socket: socket.socket
    peer: Peer
    until: float
    into: bytearray = field(default_factory=bytearray)
    out: bytearray = field(default_factory=bytearray)
    asked: bool = False
    done: bool = False
    said: float = 0.0

    def left(self) -> bool:
        """Has the client given up? Told at once, before its end is read; from any thread."""
        try:
            return not self.socket.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
        except BlockingIOError:
            return False
        except OSError:
            return True


Handler = Callable[[Client, Mapping[str, Any]], None]


class Server:
    """Serves between `__init__` and `close`; `turn` does what is due. `post` may be called from any thread."""

    def __init__(self, listeners: list[socket.socket], handle: Handler, waiting_for: Callable[[], str | None]) -> None:
        """handle: takes a request, answers by `post`, sooner or later. waiting_for: None where nothing moves."""
        self._handle, self._waiting_for = handle, waiting_for
        self._selector = selectors.DefaultSelector()
        self._listeners, self._accepting = listeners, True
        self._clients: set[Client] = set()
        self._posts: deque[tuple[Client, bytes]] = deque()
        self._kept = 0.0
        self._bell = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        for listener in listeners:
            listener.setblocking(False)
            self._selector.register(listener, selectors.EVENT_READ, None)
        self._selector.register(self._bell, selectors.EVENT_READ, "bell")

    def post(self, client: Client, message: Mapping[str, Any]) -> None:
        """Send a client its last frame."""
        try:
            data = protocol.encode(message)
        except (protocol.ProtocolError, ValueError) as error:
            data = protocol.encode({"error": {"what": str(error), "where": "", "hint": ""}, "direct": True})
        self._posts.append((client, data))
        self.ring()

    def ring(self) -> None:
        """Wake `turn`."""
        os.eventfd_write(self._bell, 1)

    @property
    def clients(self) -> int:
        return len(self._clients)

    def turn(self, seconds: float) -> None:
        """Wait up to `seconds` for something to do, and do it."""
        for key, events in self._selector.select(seconds):
            if key.data is None:
                self._accept(key.fileobj)  # type: ignore[arg-type]
            elif key.data == "bell":
                os.eventfd_read(self._bell)
            else:
                self._serve(key.data, events)
        while self._posts:
            client, data = self._posts.popleft()
            client.done, client.until = True, time.monotonic() + SLOW
            self._send(client, data)
        self._housekeep(time.monotonic())

    def replace(self, listener: socket.socket) -> None:
        """Listen there and nowhere else; who is connected stays."""
        self._pause()
        for old in self._listeners:
            old.close()
        listener.setblocking(False)
        self._listeners = [listener]
        self._resume()

    def close(self) -> None:
        """Drop everybody."""
        for client in list(self._clients):
            self._drop(client)
        for listener in self._listeners:
            listener.close()
        self._selector.close()
        os.close(self._bell)

    def _accept(self, listener: socket.socket) -> None:
        for _ in range(MOST):
            if len(self._clients) >= MOST:
                self._pause()
                return
            try:
                connection, _ = listener.accept()
            except OSError:  # nobody more, or no descriptor left: later
                return
            connection.setblocking(False)
            told = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
            client = Client(connection, Peer(*struct.unpack("3i", told)), time.monotonic() + SLOW)
            self._clients.add(client)
            self._selector.register(connection, selectors.EVENT_READ, client)

    def _pause(self) -> None:
        if self._accepting:
            self._accepting = False
            for listener in self._listeners:
                self._selector.unregister(listener)

    def _resume(self) -> None:
        if not self._accepting and len(self._clients) < MOST:
            self._accepting = True
            for listener in self._listeners:
                self._selector.register(listener, selectors.EVENT_READ, None)

    def _serve(self, client: Client, events: int) -> None:
        if events & selectors.EVENT_WRITE:
            self._flush(client)
        if events & selectors.EVENT_READ and client in self._clients:
            self._read(client)

    def _read(self, client: Client) -> None:
        try:
            data = client.socket.recv(_CHUNK)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._drop(client)
            return
        if client.asked:  # one request a connection; what comes after it is not read
            self._drop(client)
            return
        client.into += data
        try:
            request = next(protocol.frames(client.into, protocol.LIMIT), None)
        except protocol.ProtocolError as error:
            self.post(client, {"error": {"what": str(error), "where": "", "hint": ""}, "direct": True})
            client.asked = True
            return
        if request is not None:
            client.asked, client.until, client.into = True, float("inf"), bytearray()
            self._say(client, time.monotonic())
            self._handle(client, request)

    def _send(self, client: Client, data: bytes) -> None:
        if client in self._clients:
            client.out += data
            self._flush(client)

    def _flush(self, client: Client) -> None:
        try:
            while client.out:
                del client.out[: client.socket.send(client.out)]
        except BlockingIOError:
            pass
        except OSError:
            self._drop(client)
            return
        if client.done and not client.out:
            self._drop(client)
            return
        wanted = selectors.EVENT_READ | (selectors.EVENT_WRITE if client.out else 0)
        self._selector.modify(client.socket, wanted, client)

    def _say(self, client: Client, now: float) -> None:
        what = self._waiting_for()
        if what is not None:
            client.said = now
            self._send(client, protocol.encode({"looking": what}))

    def _housekeep(self, now: float) -> None:
        if now - self._kept < _KEEP:
            return
        self._kept = now
        for client in list(self._clients):
            if now > client.until or len(client.out) > 2 * protocol.ANSWER_LIMIT:
                self._drop(client)
            elif client.asked and not client.done and now - client.said >= _SAY:
                self._say(client, now)
        self._resume()

    def _drop(self, client: Client) -> None:
        if client in self._clients:
            self._clients.remove(client)
            self._selector.unregister(client.socket)
            client.socket.close()
