"""Frames, addresses, the journal's fields, sd_notify: what goes over sockets."""

from __future__ import annotations

import json
import os
import socket
import sys
from pathlib import Path

import pytest
import structlog
from hypothesis import given
from hypothesis import strategies as st

from lockd import log, protocol
from lockd.daemon import notify

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(st.characters(codec=None)),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=10,
)


@given(st.dictionaries(st.text(max_size=8).filter(lambda name: name != "v"), VALUES, max_size=5), st.data())
def test_what_is_sent_is_what_comes_however_it_is_cut(message: dict[str, object], data: st.DataObject) -> None:
    frame = protocol.encode(message) * 2
    cut = data.draw(st.integers(0, len(frame)))
    buffer, got = bytearray(), []
    for part in (frame[:cut], frame[cut:]):
        buffer += part
        got += list(protocol.frames(buffer, protocol.LIMIT))
    assert got == [{"v": protocol.VERSION, **message}] * 2 and not buffer


@given(st.binary(max_size=60))
def test_rubbish_is_an_error_or_waits_for_more(data: bytes) -> None:
    buffer = bytearray(data)
    try:
        got = list(protocol.frames(buffer, protocol.LIMIT))
    except protocol.ProtocolError:
        return
    assert got == [] and bytes(buffer) == data


@pytest.mark.parametrize(
    "body", [b"1", b"[]", b"{}", b'{"v": 2}', b'{"v": "1"}', b"\xff", b"", b"[" * 50_000, b'{"v": 1']
)
def test_a_body_that_is_no_message_is_refused(body: bytes) -> None:
    with pytest.raises(protocol.ProtocolError):
        protocol.decode(body)


def test_sizes_are_bounded() -> None:
    with pytest.raises(protocol.ProtocolError):
        protocol.encode({"x": "y" * protocol.LIMIT}, protocol.LIMIT)
    with pytest.raises(protocol.ProtocolError):
        list(protocol.frames(bytearray((protocol.LIMIT + 1).to_bytes(4, "big")), protocol.LIMIT))
    with pytest.raises(protocol.ProtocolError):
        list(protocol.frames(bytearray(4), protocol.LIMIT))


def test_names_that_are_not_utf8_come_back_as_they_were() -> None:
    name = os.fsdecode(b"/tmp/\xff\n\x1b")
    (message,) = protocol.frames(bytearray(protocol.encode({"path": name})), protocol.LIMIT)
    assert os.fsencode(message["path"]) == b"/tmp/\xff\n\x1b"


def test_a_long_path_can_be_listened_at(tmp_path: Path) -> None:
    folder = tmp_path / ("n" * 150)
    folder.mkdir()
    with socket.socket(socket.AF_UNIX) as listener, socket.socket(socket.AF_UNIX) as client:
        with protocol.Address(str(folder / "socket")) as name:
            listener.bind(name)
        listener.listen()
        with protocol.Address(str(folder / "socket")) as name:
            client.connect(name)
    assert (folder / "socket").is_socket()


def test_two_policies_of_one_name_have_folders_of_their_own() -> None:
    assert protocol.folder("/run/lockd", "/a/ct.toml") != protocol.folder("/run/lockd", "/b/ct.toml")


# -- the journal


def test_every_event_has_a_message_id_of_its_own() -> None:
    ids = [number for _, number in log.EVENTS.values()]
    assert len(set(ids)) == len(ids) and all(len(one) == 32 and int(one, 16) for one in ids)


def test_the_documents_list_every_message_id() -> None:
    text = (Path(__file__).parents[1] / "docs" / "daemon.md").read_text()
    for event, (_, number) in log.EVENTS.items():
        assert f"`{event}`" in text and number in text


def test_every_event_that_is_logged_is_known() -> None:
    import re

    sources = [*(Path(__file__).parents[1] / "lockd" / "daemon").glob("*.py")]
    said = {name for path in sources for name in re.findall(r'\bsay\(\s*"(\w+)"', path.read_text())}
    assert said and said <= log.EVENTS.keys()


def test_an_entry_has_the_fields_and_survives_several_lines() -> None:
    fields = log.journal_fields({"event": "drift", "fact": "file:/a\nb", "by": {"pid": 1}, "timestamp": "t"}, "warning")
    assert fields["LOCKD_EVENT"] == "drift" and fields["LOCKD_FACT"] == "file:/a\nb" and fields["PRIORITY"] == "4"
    assert json.loads(fields["LOCKD_BY"]) == {"pid": 1} and fields["MESSAGE_ID"] == log.EVENTS["drift"][1]
    assert _parsed(log.datagram(fields)) == fields


def _parsed(data: bytes) -> dict[str, str]:
    """As journald reads it."""
    fields = {}
    while data:
        line, _, rest = data.partition(b"\n")
        if b"=" in line:
            name, _, value = line.partition(b"=")
        else:
            size = int.from_bytes(rest[:8], "little")
            name, value, rest = line, rest[8 : 8 + size], rest[9 + size :]
        fields[name.decode()] = value.decode()
        data = rest
    return fields


@pytest.mark.parametrize("library", [True, False])
def test_a_name_that_is_not_utf8_reaches_the_journal_escaped(library: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """systemd-python takes no surrogates: a path of the full read would have ended the pass, each time anew."""
    sent: list[dict[str, str]] = []
    if library:
        journal = pytest.importorskip("systemd.journal")
        monkeypatch.setattr(journal, "sendv", lambda *parts: sent.append(_parsed(b"".join(map(_line, parts)))))
    else:
        monkeypatch.setitem(sys.modules, "systemd", None)
        monkeypatch.setattr(log, "_send", lambda data: sent.append(_parsed(data)))
    with pytest.raises(structlog.DropEvent):
        log._to_journal(None, "error", {"event": "bytes_differ", "path": "/x/\udcff"})
    (entry,) = sent
    assert entry["LOCKD_PATH"] == "/x/\\udcff" and entry["MESSAGE_ID"] == log.EVENTS["bytes_differ"][1]


def _line(part: str | bytes) -> bytes:
    """What sd_journal_sendv makes of a part: strict UTF-8."""
    return (part if isinstance(part, bytes) else part.encode()) + b"\n"


def test_a_journal_that_is_gone_costs_systemd_python_a_line_only(monkeypatch: pytest.MonkeyPatch) -> None:
    journal = pytest.importorskip("systemd.journal")

    def gone(*_: object) -> None:
        raise ConnectionRefusedError

    monkeypatch.setattr(journal, "sendv", gone)
    with pytest.raises(structlog.DropEvent):
        log._to_journal(None, "info", {"event": "started"})


# -- systemd


def test_notify_reaches_the_manager(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(tmp_path / "notify"))
        manager.settimeout(10)
        monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
        assert notify.notify("READY=1", "STATUS=ok")
        assert manager.recv(100) == b"READY=1\nSTATUS=ok"


def test_without_a_manager_nothing_happens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NOTIFY_SOCKET", raising=False)
    assert not notify.notify("READY=1")
    monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "gone"))
    assert not notify.notify("READY=1")


@pytest.mark.parametrize(
    ("usec", "pid", "seconds"),
    [("90000000", "", 45.0), ("90000000", "1", None), ("rubbish", "", None), ("0", "", None), ("", "", None)],
)
def test_the_watchdog_is_petted_at_half_of_what_is_allowed(
    monkeypatch: pytest.MonkeyPatch, usec: str, pid: str, seconds: float | None
) -> None:
    monkeypatch.setenv("WATCHDOG_USEC", usec)
    monkeypatch.setenv("WATCHDOG_PID", pid or str(os.getpid()))
    assert notify.watchdog_interval() == seconds


def test_sockets_of_another_process_are_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LISTEN_PID", "1")
    monkeypatch.setenv("LISTEN_FDS", "1")
    assert notify.listeners() == [] and "LISTEN_FDS" not in os.environ
