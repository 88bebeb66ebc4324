"""What a service says to systemd and gets from it: ready, status, watchdog, sockets.

systemd-python is used where it is installed (`lockd[systemd]`). It is a source package that needs a compiler and
libsystemd's headers, which a training container seldom has; so its two small protocols, a datagram to $NOTIFY_SOCKET
and descriptors from 3 on, are spoken here where it is not.
Always holds: outside systemd everything here does nothing.
Never: raises for a manager that is gone.
"""

from __future__ import annotations

import os
import socket

_FIRST_DESCRIPTOR = 3


def notify(*lines: str) -> bool:
    """Tell the manager; False where there is none to tell."""
    if not os.environ.get("NOTIFY_SOCKET"):
        return False
    text = "\n".join(lines).encode("utf-8", "replace").decode()  # systemd-python takes no surrogates
    try:
        from systemd import daemon
    except ImportError:
        return _datagram(os.environ["NOTIFY_SOCKET"], text)
    try:
        return bool(daemon.notify(text))
    except OSError:  # the manager's socket is gone
        return False


def _datagram(address: str, text: str) -> bool:
    """sd_notify(3): one datagram; a leading @ names an abstract socket."""
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as channel:
            channel.connect("\0" + address[1:] if address.startswith("@") else address)
            channel.sendall(text.encode())
    except OSError:
        return False
    return True


def watchdog_interval() -> float | None:
    """Seconds between two pets: half of what the unit allows. None: nobody watches."""
    try:
        allowed, pid = int(os.environ["WATCHDOG_USEC"]), int(os.environ.get("WATCHDOG_PID", os.getpid()))
    except (KeyError, ValueError):
        return None
    return allowed / 2e6 if allowed > 0 and pid == os.getpid() else None


def listeners() -> list[socket.socket]:
    """The listening sockets that systemd passed (sd_listen_fds(3)); the variables are taken off, for no child."""
    words = {name: os.environ.pop(name, "") for name in ("LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES")}
    if words["LISTEN_PID"] != str(os.getpid()) or not words["LISTEN_FDS"].isdigit():
        return []
    found = []
    for descriptor in range(_FIRST_DESCRIPTOR, _FIRST_DESCRIPTOR + int(words["LISTEN_FDS"])):
        os.set_inheritable(descriptor, False)
        passed = socket.socket(fileno=descriptor)
        if passed.family == socket.AF_UNIX and passed.type == socket.SOCK_STREAM:
            found.append(passed)
        else:
            passed.close()
    return found
