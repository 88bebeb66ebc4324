"""Part of the hook: ask the daemon, in lockd's protocol, with what an interpreter has anyway.

Always holds: a daemon is believed only if root or this very user runs it. It has a quarter of a second for its first
word, and is waited for as long as it says what it does.
Never: imports `socket` or `json`, which cost as much as an interpreter's start.
"""

# mypy: allow-untyped-defs, allow-untyped-calls
import os
import sys

from lockd.gates.hook.saying import Waiting

VERSION = 1
FIRST, NEXT = 0.25, 5.0  # seconds that the daemon has for its first word, and between two


def ask_daemon(policy, argv, cwd, uid):
    """The daemon's answer; None where there is none to be had, and lockd has to be started."""
    places = [policy["runtime"].get(uid), "/run/lockd"]
    for place in dict.fromkeys(filter(None, places)):
        path = os.path.join(place, policy["folder"], "socket")
        if os.path.exists(path):
            try:
                answer = converse(path, policy, argv, cwd, uid)
            except (OSError, ValueError, ImportError):  # stopped, killed in the middle, of another version
                continue
            if answer is not None:
                return answer
    return None


def converse(path, policy, argv, cwd, uid):
    import _socket

    connection = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM | _socket.SOCK_CLOEXEC)
    try:
        connection.settimeout(FIRST)
        connection.connect(path)
        told = connection.getsockopt(_socket.SOL_SOCKET, _socket.SO_PEERCRED, 12)
        if int.from_bytes(told[4:8], sys.byteorder) not in (0, uid):
            return None
        data = question(policy, argv, cwd)
        while data:
            data = data[connection.send(data) :]
        return hear(connection, policy)
    finally:
        connection.close()


def question(policy, argv, cwd):
    """A frame of lockd's protocol: four bytes of length, then JSON."""
    from _json import encode_basestring_ascii as word

    environ = ", ".join(f"{word(name)}: {word(value)}" for name, value in os.environ.items())
    launch = f'"environ": {{{environ}}}, "cwd": {word(cwd)}, "argv": [{", ".join(map(word, argv))}]'
    head = f'"v": 1, "ask": "launch", "hook": {VERSION}, "pid": {os.getpid()}'
    body = f'{{{head}, "policy": {word(policy["policy"])}, "launch": {{{launch}}}}}'
    return len(body).to_bytes(4, "big") + body.encode("ascii")


def hear(connection, policy):
    """(exit code, lines) of the daemon's answer; None when it can't give one."""
    buffer, waiting = b"", Waiting(policy)
    try:
        while True:
            data = connection.recv(1 << 16)
            if not data:
                return None
            buffer += data
            while len(buffer) >= 4 and len(buffer) - 4 >= int.from_bytes(buffer[:4], "big"):
                size = int.from_bytes(buffer[:4], "big")
                body, buffer = buffer[4 : size + 4].decode("ascii"), buffer[size + 4 :]
                connection.settimeout(NEXT)
                if '"answer"' in body:
                    code, _, lines = value(body, "hook").partition("\n")
                    return int(code), lines.splitlines()
                if '"looking"' not in body:
                    return None
                waiting.say(value(body, "looking"))
    finally:
        waiting.end()


def value(body, name):
    """The text behind a name in a JSON object."""
    from _json import scanstring

    mark = f'"{name}": "'
    at = body.find(mark)
    if at < 0:
        raise ValueError(name)
    return scanstring(body, at + len(mark))[0]
