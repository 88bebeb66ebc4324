"""The store: whole after anything, shared, and never in the way of the lock."""

from __future__ import annotations

import json
import os
import resource
import sqlite3
import zlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lockd import gc, lock, manifests, state, store
from lockd.facts import Fact, Facts, set_digest, token
from lockd.lock import Lock
from lockd.store import Event, Store, StoreError

NAMES = st.text(st.characters(exclude_characters="\0"), min_size=1, max_size=12).filter(
    lambda name: all(not 0xD800 <= ord(one) <= 0xDFFF or 0xDC80 <= ord(one) <= 0xDCFF for one in name)
)
FACTS = Facts([Fact("file", "/a", {"digest": "sha256:1"})])


def generation(number: int, **header: object) -> tuple[Lock, bytes]:
    made = Lock(
        "ct",
        "sha256:p",
        number,
        f"2026-11-30T00:00:{number:02}Z",
        "root",
        f"why {number}",
        "env1:a",
        "launch1:b",
        FACTS,
    )
    made = replace(made, **header)  # type: ignore[arg-type]
    data = lock.dumps(made)
    return replace(made, digest=lock.digest_of(data) or ""), data


@pytest.fixture
def where(tmp_path: Path) -> str:
    return str(tmp_path / "store.sqlite")


@pytest.fixture
def opened(where: str) -> Iterator[Store]:
    found = store.open(where)
    assert found is not None
    with found:
        yield found


def accept(opened: Store, number: int, manifests: dict[str, dict[str, str]] | None = None, **header: object) -> Lock:
    made, data = generation(number, **header)
    opened.prepare(made, data, manifests or {}, {"user": "root"})
    opened.settle(made, data)
    return made


# -- generations and manifests


def test_a_generation_comes_back_with_its_lock_and_manifests(opened: Store) -> None:
    made = accept(opened, 1, {"file:/a": {"a.py": "aa", "b.py": "bb"}})
    assert [one.number for one in opened.generations()] == [1]
    assert lock.parse(opened.lock_text(1) or b"", "x") == made
    assert opened.manifest(1, "file:/a") == {"a.py": "aa", "b.py": "bb"}
    assert opened.manifest(1, "file:/b") is None
    assert opened.manifest(2, "file:/a") is None


@settings(max_examples=100, deadline=None)
@given(st.dictionaries(NAMES, st.text("0123456789abcdef:", max_size=8), max_size=6))
def test_manifests_keep_names_that_are_not_utf8_or_hold_newlines(manifest: dict[str, str]) -> None:
    assert store.unpack(zlib.compress(store.pack(manifest))) == manifest


def test_equal_manifests_are_kept_once(opened: Store) -> None:
    for number in (1, 2, 3):
        accept(opened, number, {"file:/a": {"a.py": "same"}})
    assert opened.rows("SELECT count(*) FROM manifests") == [(1,)]


def test_what_a_killed_accept_prepared_is_forgotten_if_its_lock_never_came(opened: Store) -> None:
    first = accept(opened, 1)
    second, data = generation(2)
    opened.prepare(second, data, {}, {})
    opened.settle(first, lock.dumps(first))
    assert [one.number for one in opened.generations()] == [1]
    assert opened.lock_text(2) is None


def test_what_a_killed_accept_renamed_in_is_finished(opened: Store) -> None:
    accept(opened, 1)
    second, data = generation(2)
    opened.prepare(second, data, {"file:/a": {"a": "b"}}, {"user": "ana"})
    assert opened.lock_text(2) is None  # not yet
    opened.settle(second, data)
    opened.settle(second, data)  # and only once
    assert [one.event.message for one in opened.events("kind = 'accept'")] == [
        "generation 1 accepted: why 1",
        "generation 2 accepted: why 2",
    ]
    assert opened.events("kind = 'accept'")[-1].event.by == {"user": "ana"}
    assert opened.manifest(2, "file:/a") == {"a": "b"}


def test_a_reader_of_the_log_forgets_nothing_that_an_accept_is_about_to_finish(opened: Store) -> None:
    first = accept(opened, 1)
    second, data = generation(2)
    opened.prepare(second, data, {"file:/a": {"a": "b"}}, {"user": "ana"})
    opened.settle(first, lock.dumps(first), forget=False)
    opened.settle(second, data)
    assert opened.manifest(2, "file:/a") == {"a": "b"}
    assert opened.events()[-1].event.by == {"user": "ana"}


def test_a_lock_from_elsewhere_is_taken_in_and_said(opened: Store) -> None:
    made, data = generation(7)
    opened.settle(made, data)
    assert [one.number for one in opened.generations()] == [7]
    assert "taken in from its lock" in opened.events()[0].event.message


def test_entries_beyond_what_a_lock_holds_are_kept(opened: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lock, "ENTRIES", 3)
    tokens = frozenset(token(str(number), "x") for number in range(5))
    made = accept(opened, 1, facts=Facts([Fact("cache", "/c", {"digest": set_digest(tokens)}, {}, tokens)]))
    assert "cache:/c" in made.facts
    assert opened.entries(1, "cache:/c") == tokens
    assert opened.entries(1, "cache:/d") is None


# -- the log


def test_every_entry_is_bound_to_the_one_before(opened: Store) -> None:
    numbers = [opened.append(Event("2026", "drift", f"m {number}", "file:/a", {"pid": number})) for number in range(5)]
    assert numbers == [1, 2, 3, 4, 5]
    assert opened.check_chain() is None
    events = opened.events()
    assert [one.previous_hash for one in events] == ["", *(one.hash for one in events[:-1])]
    assert events[2].event == Event("2026", "drift", "m 2", "file:/a", {"pid": 2})


@pytest.mark.parametrize(
    ("tamper", "broken"),
    [
        ("UPDATE events SET message = 'nothing' WHERE id = 3", 3),
        ("UPDATE events SET at = '1970' WHERE id = 1", 1),
        ("UPDATE events SET by = NULL WHERE id = 2", 2),
        ("DELETE FROM events WHERE id = 2", 2),
        ("DELETE FROM events WHERE id = 1", 1),
        ("DELETE FROM events WHERE id = 5", 5),
        ("DELETE FROM events", 1),
        ("UPDATE events SET id = 9 WHERE id = 4", 4),
        ("UPDATE events SET message = CAST(x'ff80' AS TEXT) WHERE id = 3", 3),
        ("UPDATE events SET at = CAST(x'ff80' AS TEXT) WHERE id = 1", 1),
        ("UPDATE events SET by = x'00ff' WHERE id = 2", 2),
        ("UPDATE events SET by = 'not json' WHERE id = 2", 2),
        ("UPDATE events SET hash = x'00ff' WHERE id = 5", 5),
    ],
)
def test_the_first_broken_entry_is_named(opened: Store, tamper: str, broken: int) -> None:
    for number in range(5):
        opened.append(Event("2026", "drift", f"m {number}", by={"pid": 1}))
    with opened.transaction():
        opened.change(tamper)
    assert opened.check_chain() == broken
    assert all(json.dumps(one.event._asdict()) for one in opened.events())  # and what is there can be shown


def test_bytes_are_not_taken_for_the_escapes_that_stood_there(opened: Store) -> None:
    opened.append(Event("2026", "drift", r"edited: \xff"))
    with opened.transaction():
        opened.change("UPDATE events SET message = CAST(CAST('edited: ' AS BLOB) || x'ff' AS TEXT)")
    assert opened.events()[0].event.message == r"edited: \xff"
    assert opened.check_chain() == 1


@pytest.mark.parametrize("by", ["'not json'", "'[1]'", "'7'", "x'00ff'", "CAST(x'ff80' AS TEXT)"])
def test_an_entry_whose_who_was_changed_by_hand_is_told_so(opened: Store, by: str) -> None:
    opened.append(Event("2026", "drift", "m", by={"pid": 1}))
    with opened.transaction():
        opened.change(f"UPDATE events SET by = {by}")
    who = opened.events()[0].event.by
    assert who is not None
    assert who["reason"] == "the entry was changed: lockd log --check"


# -- the file


def test_a_new_store_is_private_and_alone(opened: Store, where: str) -> None:
    assert os.stat(where).st_mode & 0o777 == 0o600
    assert [name for name in os.listdir(os.path.dirname(where)) if name.endswith(".new")] == []
    assert opened.rows("PRAGMA journal_mode") == [("wal",)]


def test_none_is_made_where_none_was_asked_for(where: str) -> None:
    assert store.open(where, create=False) is None
    assert not os.path.exists(where)


def test_a_newer_store_is_refused_and_left_alone(opened: Store, where: str) -> None:
    opened.rows("PRAGMA user_version = 99")
    opened.close()
    before = Path(where).read_bytes()
    with pytest.raises(StoreError, match="version 99"):
        store.open(where)
    assert Path(where).read_bytes() == before


def test_a_corrupt_store_is_moved_aside_and_said(where: str) -> None:
    Path(where).write_bytes(b"no database at all" * 1000)
    with pytest.raises(StoreError, match="corrupt"):
        store.open(where, create=False)
    found = store.open(where)
    assert found is not None
    with found:
        assert "the lock still decides" in found.notices[0]
        assert [one.event.message for one in found.events()] == list(found.notices)
        assert found.generations() == []
    aside = [name for name in os.listdir(os.path.dirname(where)) if ".corrupt-" in name]
    assert len(aside) == 1
    assert aside[0] in found.notices[0]


def test_a_page_gone_bad_is_found_by_a_thorough_opening(opened: Store, where: str) -> None:
    for number in range(1, 40):
        accept(opened, number, {"file:/a": {f"{one}": os.urandom(9).hex() for one in range(50)}})
    opened.rows("PRAGMA wal_checkpoint(TRUNCATE)")
    opened.close()
    with open(where, "r+b") as file:
        file.seek(4096 * 12)
        file.write(b"\xff" * 4096 * 4)
    found = store.open(where, thorough=True)
    assert found is not None
    with found:
        assert "corrupt" in found.notices[0]
        assert found.generations() == []


def test_a_failed_transaction_leaves_nothing(opened: Store) -> None:
    with pytest.raises(RuntimeError), opened.transaction():
        opened.append(Event("2026", "note", "half"))
        raise RuntimeError
    assert opened.events() == []
    assert opened.append(Event("2026", "note", "whole")) == 1
    assert opened.check_chain() is None


def test_a_reader_is_not_hindered_by_a_writer(opened: Store, where: str) -> None:
    other = store.open(where)
    assert other is not None
    with other, opened.transaction():
        opened.append(Event("2026", "note", "x"))
        assert other.events() == []


def in_a_child(deed: object) -> int:
    """Run a deed in a forked child, so that its limits are its own; gives the exit code."""
    child = os.fork()
    if child == 0:
        code = 99
        try:
            code = deed()  # type: ignore[operator]
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def test_a_full_disk_loses_nothing_and_says_what_to_do(opened: Store, where: str) -> None:
    accept(opened, 1, {"file:/a": {"a": "b"}})
    opened.close()
    noise = {f"{number}": os.urandom(16).hex() for number in range(20_000)}

    def full() -> int:
        resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, 200_000))
        found = store.open(where)
        assert found is not None
        made, data = generation(2)
        try:
            found.prepare(made, data, {"file:/a": noise}, {})
        except StoreError as error:
            return 3 if error.code == 3 and "make room" in error.hint else 4
        return 0

    assert in_a_child(full) == 3
    found = store.open(where)
    assert found is not None
    with found:
        assert found.rows("PRAGMA integrity_check") == [("ok",)]
        assert [one.number for one in found.generations()] == [1]
        assert found.manifest(1, "file:/a") == {"a": "b"}


def test_history_grows_slowly(opened: Store, where: str) -> None:
    manifest = {f"site/pkg{number % 50}/module_{number}.py": os.urandom(8).hex() for number in range(2_000)}
    for number in range(1, 30):
        accept(opened, number, {f"package:train/p{one}": {**manifest, "x": str(one)} for one in range(3)})
    opened.close()
    assert os.path.getsize(where) < 400_000


# -- gc


def test_gc_frees_what_nothing_refers_to_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tmp_path.chmod(0o700)
    monkeypatch.setenv("LOCKD_STATE", str(tmp_path / "s"))
    (tmp_path / "ct.toml").touch()
    place = state.open(str(tmp_path / "ct.toml"), create=True)
    assert place is not None
    found = place.store(create=True)
    assert found is not None
    with found:
        made = accept(found, 1, {"file:/a": {"a": "kept"}})
        lost, data = generation(2)
        found.prepare(lost, data, {"file:/a": {"a": "lost"}}, {})
        found.settle(made, lock.dumps(made))
    stray = Path(place.objects_dir) / "ab" / "abcd"
    stray.parent.mkdir(parents=True)
    stray.write_bytes(b"x")
    counted = gc.collect(place, dry_run=True)
    assert (counted.manifests, counted.objects) == (1, 1)
    assert stray.exists()
    assert gc.collect(place, dry_run=False) == counted
    assert not stray.exists()
    again = place.store()
    assert again is not None
    with again:
        assert again.manifest(1, "file:/a") == {"a": "kept"}
    assert gc.collect(place, dry_run=False) == gc.Freed()


def test_a_store_of_the_first_version_still_opens(where: str) -> None:
    from lockd.store_schema import MIGRATIONS

    connection = sqlite3.connect(where)
    connection.executescript(MIGRATIONS[0])
    connection.execute("PRAGMA user_version = 1")
    connection.close()
    found = store.open(where)
    assert found is not None
    with found:
        assert found.append(Event("2026", "note", "x")) == 1


# -- manifests by what they have otherwise


@given(st.dictionaries(NAMES, st.sampled_from(["a", "b", ""])), st.dictionaries(NAMES, st.sampled_from(["a", "b", ""])))
def test_a_manifest_comes_back_from_what_it_has_otherwise(old: dict[str, str], new: dict[str, str]) -> None:
    assert manifests.apply_delta(old, manifests.pack_delta(old, new)) == new


def test_states_that_differ_little_take_little(opened: Store, where: str) -> None:
    names = {f"torch/pkg{number % 50}/module_{number}.py": os.urandom(32).hex() for number in range(3_000)}
    accept(opened, 1, {"package:train/torch": names})
    size = os.path.getsize(where) + os.path.getsize(f"{where}-wal")
    with opened.transaction():
        for number in range(50):
            edited = {**names, f"torch/pkg{number}/module_{number}.py": "0" * 64, "torch/new.py": str(number)}
            opened.keep_state(f"{number}", "env1:a", "2026", f"[{number}]", {"package:train/torch": edited})
    assert os.path.getsize(where) + os.path.getsize(f"{where}-wal") < size + 300_000
    for number in (0, 49):
        found = opened.state_manifest(number + 1, "package:train/torch") or {}
        assert found["torch/new.py"] == str(number) and len(found) == 3_001
        assert found[f"torch/pkg{number}/module_{number}.py"] == "0" * 64


def test_gc_keeps_what_another_manifest_is_kept_by(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tmp_path.chmod(0o700)
    monkeypatch.setenv("LOCKD_STATE", str(tmp_path / "s"))
    (tmp_path / "ct.toml").touch()
    place = state.open(str(tmp_path / "ct.toml"), create=True)
    assert place is not None
    found = place.store(create=True)
    assert found is not None
    names = {f"module_{number}.py": os.urandom(32).hex() for number in range(500)}
    with found:
        accept(found, 1, {"package:train/torch": names})
        with found.transaction():
            found.keep_state("1", "env1:a", "2026", "[]", {"package:train/torch": {**names, "x": "1"}})
            found.change("DELETE FROM generations")
        assert found.rows("SELECT count(*) FROM manifests WHERE base IS NOT NULL") == [(1,)]
    assert gc.collect(place, dry_run=False).manifests == 0
    found = place.store()
    assert found is not None
    with found:
        assert found.state_manifest(1, "package:train/torch") == {**names, "x": "1"}


def test_a_state_that_lasts_stands_once_and_each_return_is_marked(opened: Store) -> None:
    with opened.transaction():
        for second, digest in enumerate("aabba"):
            opened.keep_state(digest, "env1:a", f"2026-11-30T00:00:0{second}Z", digest, {})
    assert opened.rows("SELECT at, state FROM sightings") == [
        ("2026-11-30T00:00:00Z", 1),
        ("2026-11-30T00:00:02Z", 2),
        ("2026-11-30T00:00:04Z", 1),
    ]
    assert opened.sighting("2026-11-30T00:00:03Z") == ("2026-11-30T00:00:02Z", 2)
    assert opened.sighting("2025") is None
