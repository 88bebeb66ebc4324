"""What the service tells the journal: structlog events with fixed names, each with a MESSAGE_ID and LOCKD_ fields.

Always holds: an event is a name of EVENTS and fields; under systemd it goes to the journal with them (LOCKD_EVENT,
LOCKD_FACT, …), elsewhere to stderr as one line of JSON. systemd-python is used where it is installed, else journald's
own protocol, one datagram, is spoken here.
Never: a sentence put together for a log event, or a secret: what is logged was masked where it was read.
"""

from __future__ import annotations

import json
import os
import socket
import sys
from collections.abc import Mapping, MutableMapping
from typing import Any

JOURNAL = "/run/systemd/journal/socket"
_LONGEST = 16_384  # characters of one field: a datagram holds some 200 KB
_PRIORITY = {"error": "3", "warning": "4", "info": "6"}

# event → (level, MESSAGE_ID); the ids never change, docs/daemon.md lists them
EVENTS: Mapping[str, tuple[str, str]] = {
    "started": ("info", "a5c3aa87a9b845449966ef7c3f2beacf"),
    "stopped": ("info", "f770dd5b420345af836cea2856850c54"),
    "verdict": ("info", "2941923c33564f818707b2953da7ac56"),
    "drift": ("warning", "46db91ba54d9477c9b115448e5435290"),
    "heal": ("info", "2c98aa54b9e54bddb6abd618a7f29c8b"),
    "policy_loaded": ("info", "7ba1f80f5b2f4e1b9f7adfede6226d50"),
    "policy_trouble": ("error", "8ac859cd78df4c02b6a12060abdc53b5"),
    "policy_good": ("info", "5abd9d56edbd4bce94f954359eef4bf3"),
    "watch_overflow": ("warning", "0944d0520caf464ca2acadb83b6e1256"),
    "watch_degraded": ("warning", "08dd371d8e36465da3c66ee8d26cc8fe"),
    "watch_whole": ("info", "808375967dda4cd2b374889d2226b606"),
    "watch_lost": ("error", "6773f11b9a6244eaa110376faf2eef95"),
    "watch_refused": ("error", "c58366080ca54fd5842c6b6ac3093b7c"),
    "look_failed": ("error", "65807ea93d0f420c865bab000f34e5ab"),
    "history_unwritable": ("error", "d6a19d6a945849d4a91db3ce5f342300"),
    "history_writable": ("info", "8e0c23b5e47b4a318cc993cb1475d2ad"),
    "history_failed": ("error", "93d7da34405548408f0145a9fec96f54"),
    "history_unreadable": ("error", "fb26d52f9366442086196c2f98a2eaf5"),
    "cache_unwritable": ("warning", "ee4d2798c8ed4039bb06b667e9556f1c"),
    "bytes_differ": ("error", "e7c8c77a2e5d40cf9dbb17de922c8e2b"),
    "full_read": ("info", "29c80e68508c47468a73782d22fd3573"),
    "launch_ungated": ("warning", "a7beffd5a22c4e6dab2185f136921e8a"),
    "clock_stepped": ("warning", "24ec0fe3fd3f4546981a03e921c11f4e"),
    "socket_lost": ("error", "a9c3cec2a0c54823a9d55e0857ead316"),
    "socket_back": ("info", "52cd7cb350b849f884e31083ddd42411"),
    "socket_odd": ("warning", "b22680fd84584f2fb5b0843dae9c0161"),
    "failed": ("error", "8a6ddca2e5be420a9614daef91bc6826"),
}


def configure() -> None:
    """Set structlog up for this process: the journal if stderr goes there, else stderr."""
    import structlog

    structlog.configure(
        processors=[structlog.processors.TimeStamper("iso", utc=True), _to_journal if in_journal() else _to_stderr],
        cache_logger_on_first_use=True,
    )


def say(event: str, **fields: Any) -> None:
    """Log one event of EVENTS; empty fields are left out."""
    import structlog

    level, _ = EVENTS[event]
    told = {name: value for name, value in fields.items() if value not in ("", None)}
    getattr(structlog.get_logger(), level)(event, **told)


def in_journal() -> bool:
    """Does stderr go to the journal?"""
    stream = os.environ.get("JOURNAL_STREAM", "")
    try:
        found = os.fstat(sys.stderr.fileno())
    except (OSError, ValueError, AttributeError):
        return False
    return stream == f"{found.st_dev}:{found.st_ino}"


def journal_fields(event: Mapping[str, Any], level: str) -> dict[str, str]:
    """The fields of one entry: MESSAGE, MESSAGE_ID, PRIORITY and LOCKD_…"""
    name = str(event["event"])
    told = {key: value for key, value in event.items() if key not in ("event", "timestamp", "level")}
    words = " ".join(f"{key}={_word(value)}" for key, value in told.items() if key != "trace")
    fields = {
        "MESSAGE": f"{name} {words}".rstrip(),
        "MESSAGE_ID": EVENTS[name][1],
        "PRIORITY": _PRIORITY.get(level, "6"),
        "SYSLOG_IDENTIFIER": "lockd",
        "LOCKD_EVENT": name,
    }
    return fields | {f"LOCKD_{key.upper()}": _word(value)[:_LONGEST] for key, value in told.items()}


def datagram(fields: Mapping[str, str]) -> bytes:
    """journald's native protocol: `NAME=value`, or with its length where the value has several lines."""
    parts = []
    for name, value in fields.items():
        data = value.encode()
        head = name.encode("ascii")
        if b"\n" in data:
            parts.append(head + b"\n" + len(data).to_bytes(8, "little") + data + b"\n")
        else:
            parts.append(head + b"=" + data + b"\n")
    return b"".join(parts)


def _word(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, default=str)
    return text.encode("utf-8", "backslashreplace").decode()  # the journal takes no surrogates


def _to_journal(_: Any, level: str, event: MutableMapping[str, Any]) -> Any:
    import structlog

    fields = journal_fields(event, level)
    try:
        from systemd import journal
    except ImportError:
        _send(datagram(fields))
    else:
        try:  # it raises where `_send` loses a line
            journal.send(fields.pop("MESSAGE"), **fields)
        except OSError:
            pass
    raise structlog.DropEvent


def _send(data: bytes) -> None:
    """A journal that is gone or full loses a line; a service that waits for it would lose more."""
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as channel:
            channel.sendto(data, JOURNAL)
    except OSError:
        pass


def _to_stderr(_: Any, level: str, event: MutableMapping[str, Any]) -> Any:
    import structlog

    line = json.dumps({"level": level, **event}, default=str)
    try:
        sys.stderr.write(f"{line}\n")
        sys.stderr.flush()
    except (OSError, ValueError):
        pass
    raise structlog.DropEvent
