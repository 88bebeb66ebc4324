"""The lock file: nothing is lost in it, nothing wrong passes for one."""

from __future__ import annotations

import os
import re
import tracemalloc
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lockd import lock
from lockd.errors import LockError
from lockd.facts import ABSENT, Attributes, Fact, Facts, Unknown, set_digest, token
from lockd.lock import Lock

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
KINDS = st.sampled_from(
    ["file", "cache", "tree", "env", "python", "gpu", "unowned", "launch", "host", "odd kind", 'quo"te', "a.b"]
)
VALUES = st.one_of(TEXT, st.integers(), st.booleans(), st.lists(TEXT, max_size=3).map(tuple))
ROWS = st.dictionaries(TEXT, VALUES, max_size=4)
TOKENS = st.none() | st.frozensets(st.integers(0, 2**64 - 1).map(lambda number: f"{number:016x}"), max_size=60)
PLAIN = st.builds(Fact, KINDS, TEXT, ROWS, ROWS, TOKENS)
PACKAGES = st.builds(Fact, st.just("package"), st.tuples(TEXT, TEXT).map("/".join), ROWS, ROWS)
FACTS = st.lists(PLAIN | PACKAGES, max_size=8, unique_by=lambda fact: fact.name).map(Facts)


NONE = Facts()


def made(facts: Facts = NONE, **header: object) -> Lock:
    base = Lock(
        policy="ct200",
        policy_digest="sha256:00",
        generation=3,
        accepted_at="2026-11-30T19:04:11Z",
        by="root (SUDO_USER=ana, ssh)",
        why='a "good"\nday',
        environment="env1:3f",
        launch="launch1:77",
        facts=facts,
    )
    return replace(base, **header)  # type: ignore[arg-type]


SOME = Facts(
    [
        Fact("package", "train/torch", {"version": "2.11.0+cu128"}, {"files": 9412, "requires": ("triton ==3.6.0",)}),
        Fact("package", "train/triton", {"version": "3.6.0"}),
        Fact("file", "/root/train.py", {"digest": "sha256:aa", "executable": False}),
        Fact("env", "LD_LIBRARY_PATH", ABSENT),
        Fact("cache", "/tmp/c", {"entries": 2}, {}, frozenset((token("a", "1"), token("b", "2")))),
    ]
)


def same(a: Facts, b: Facts) -> bool:
    """Equal with types: True is not 1."""
    return repr(list(map(typed, a.known()))) == repr(list(map(typed, b.known())))


def typed(fact: Fact) -> tuple[object, ...]:
    tokens = None if fact.tokens is None else sorted(fact.tokens)
    return fact.kind, fact.subject, sorted(fact.attributes.items()), sorted(fact.told.items()), tokens


@settings(max_examples=200, deadline=None)
@given(FACTS, TEXT, TEXT)
def test_what_is_written_reads_back_equal(facts: Facts, why: str, by: str) -> None:
    written = made(facts, why=why, by=by, previous="sha256:11", host="h")
    read = lock.parse(lock.dumps(written), "x.lock")
    assert read == written
    assert same(read.facts, facts)


@settings(max_examples=50, deadline=None)
@given(FACTS)
def test_order_of_facts_and_attributes_never_matters(facts: Facts) -> None:
    def turn(values: Attributes) -> Attributes:
        return dict(reversed(list(values.items())))

    def turned(fact: Fact) -> Fact:
        return replace(fact, attributes=turn(fact.attributes), told=turn(fact.told))

    other = Facts(turned(fact) for fact in reversed(list(facts.known())))
    assert lock.dumps(made(other)) == lock.dumps(made(facts))


def body(data: bytes) -> list[str]:
    return data.decode().split("\n\n", 1)[1].splitlines()


def test_another_generation_of_the_same_facts_changes_the_header_alone() -> None:
    first, second = lock.dumps(made(SOME)), lock.dumps(made(SOME, generation=4, why="again", accepted_at="2027"))
    assert first != second
    assert body(first) == body(second)


def test_one_changed_fact_changes_one_line() -> None:
    facts = {**SOME, "package:train/triton": Fact("package", "train/triton", {"version": "3.7.0"})}
    old, new = body(lock.dumps(made(SOME))), body(lock.dumps(made(Facts(facts.values()))))
    assert len(old) == len(new)
    assert [(a, b) for a, b in zip(old, new, strict=True) if a != b] == [
        ('triton = { version = "3.6.0" }', 'triton = { version = "3.7.0" }')
    ]


def test_one_more_cache_entry_changes_one_line_of_entries() -> None:
    def lines(count: int) -> list[str]:
        tokens = frozenset(token(str(number), "x") for number in range(count))
        return body(lock.dumps(made(Facts([Fact("cache", "/c", {"digest": "d"}, {}, tokens)]))))

    assert len(set(lines(301)) ^ set(lines(300))) == 2


def test_packages_stand_under_their_environment_and_told_apart() -> None:
    text = lock.dumps(made(SOME)).decode()
    assert '[package.train]\ntorch = { version = "2.11.0+cu128" }\n' in text
    assert '[told.package.train]\ntorch = { files = 9412, requires = ["triton ==3.6.0"] }' in text


def test_unknown_facts_never_enter_a_lock() -> None:
    with pytest.raises(ValueError, match="unknown"):
        lock.dumps(made(Facts([Unknown("file", "/a", "no right to read it")])))


@pytest.mark.parametrize("kind", ["digest", "schema", "told", "entries", "generation"])
def test_a_kind_that_is_a_word_of_the_header_is_refused_not_lost(kind: str) -> None:
    with pytest.raises(ValueError, match="kind"):
        lock.dumps(made(Facts([Fact(kind, "x", {})])))


def test_a_name_that_was_not_escaped_is_refused_not_lost() -> None:
    with pytest.raises(ValueError, match="UTF-8"):
        lock.dumps(made(Facts([Fact("file", "/caf\udce9", {})])))


# -- what is no lock


@pytest.fixture
def path(tmp_path: Path) -> Path:
    tmp_path.chmod(0o700)
    where = tmp_path / "ct200.lock"
    lock.write(str(where), made(SOME))
    return where


def refused(path: Path, text: str, **how: str) -> None:
    with pytest.raises(LockError) as caught:
        lock.read(str(path), **how)  # type: ignore[arg-type]
    assert caught.value.code == 2
    assert re.search(text, caught.value.what)
    assert str(path) in str(caught.value)
    assert caught.value.hint


def test_a_lock_reads_back_from_its_file_with_its_digest(path: Path) -> None:
    read = lock.read(str(path), policy="ct200")
    assert read == made(SOME)
    assert read is not None
    assert read.digest.startswith("sha256:")


def test_no_lock_is_none_not_an_error(tmp_path: Path) -> None:
    assert lock.read(str(tmp_path / "none.lock")) is None


def test_a_link_to_nothing_is_no_missing_lock(tmp_path: Path) -> None:
    os.symlink("gone", tmp_path / "x.lock")
    refused(tmp_path / "x.lock", "link to nothing")


def test_every_cut_is_known(path: Path) -> None:
    data = path.read_bytes()
    for length in range(0, len(data), 7):
        path.write_bytes(data[:length])
        refused(path, "cut short|not TOML")


def test_every_edited_line_is_known(path: Path) -> None:
    lines = path.read_text().split("\n")
    for number, line in enumerate(lines):
        if not line.startswith("schema"):
            path.write_text("\n".join([*lines[:number], line + " # seen", *lines[number + 1 :]]))
            refused(path, "edited by hand|not TOML")


def test_a_second_digest_line_does_not_hide_an_edit(path: Path) -> None:
    lines = path.read_text().split("\n")
    path.write_text("\n".join([*lines, lines[1]]))
    refused(path, "edited by hand|not TOML")


def test_a_newer_schema_is_refused_as_newer(path: Path) -> None:
    path.write_text(path.read_text().replace("schema = 1", "schema = 2"))
    refused(path, "schema 2, this lockd knows 1")


def test_the_lock_of_another_policy_is_refused(path: Path) -> None:
    refused(path, "lock of policy 'ct200', not of 'other'", policy="other")


def test_a_lock_that_is_not_utf8_is_refused(path: Path) -> None:
    path.write_bytes(path.read_bytes() + b"\xff")
    refused(path, "not UTF-8")


def test_a_fifo_is_refused_and_does_not_hang(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "x.lock")
    refused(tmp_path / "x.lock", "not a regular file")


def test_a_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x.lock").mkdir()
    refused(tmp_path / "x.lock", "not a regular file")


def test_a_huge_file_is_refused_unparsed(tmp_path: Path) -> None:
    (tmp_path / "x.lock").touch(0o600)
    os.truncate(tmp_path / "x.lock", lock.LIMIT + 1)
    refused(tmp_path / "x.lock", "larger than 64 MiB")


def test_deep_nesting_is_refused_not_a_crash(path: Path) -> None:
    path.write_text("a = " + "[" * 100_000)
    refused(path, "not TOML")


def test_a_set_beyond_the_limit_is_left_to_the_store_and_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lock, "ENTRIES", 3)
    tokens = frozenset(token(str(number), "x") for number in range(4))
    fact = Fact("cache", "/c", {"digest": set_digest(tokens)}, {}, tokens)
    read = lock.parse(lock.dumps(made(Facts([fact]))), "x").facts["cache:/c"]
    assert isinstance(read, Fact)
    assert read.tokens is None
    assert read.told[lock.LEFT_TO_STORE] == 4


# -- writing


def test_an_existing_lock_keeps_its_mode_and_owner(path: Path) -> None:
    path.chmod(0o444)
    if os.geteuid() == 0:
        os.chown(path, 0, 12345)
    lock.write(str(path), made(SOME, generation=4))
    assert path.stat().st_mode & 0o777 == 0o444
    assert path.stat().st_gid == (12345 if os.geteuid() == 0 else os.getegid())


def test_a_new_lock_is_readable_by_all_and_leaves_nothing_beside(tmp_path: Path) -> None:
    old = os.umask(0o077)
    try:
        lock.write(str(tmp_path / "n.lock"), made(SOME))
    finally:
        os.umask(old)
    assert (tmp_path / "n.lock").stat().st_mode & 0o777 == 0o644
    assert os.listdir(tmp_path) == ["n.lock"]


def test_a_linked_lock_stays_a_link(path: Path, tmp_path: Path) -> None:
    link = tmp_path / "etc.lock"
    link.symlink_to(path)
    lock.write(str(link), made(SOME, generation=9))
    assert link.is_symlink()
    read = lock.read(str(path))
    assert read is not None
    assert read.generation == 9


# -- the cache


def test_the_cached_reading_is_equal_and_parses_no_toml(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = lock.read_cached(str(path), str(tmp_path))
    monkeypatch.setattr(lock, "parse", None)
    second = lock.read_cached(str(path), str(tmp_path))
    assert first == second == made(SOME)
    assert first is not None and second is not None
    assert same(first.facts, second.facts)
    assert second.digest == first.digest


@pytest.mark.parametrize("damage", [b"", b"\0" * 40, None])
def test_a_damaged_cache_is_ignored(path: Path, tmp_path: Path, damage: bytes | None) -> None:
    lock.read_cached(str(path), str(tmp_path))
    cached = tmp_path / "lock"
    data = cached.read_bytes()
    cached.write_bytes(data[:-1] + b"\xff" if damage is None else damage)
    assert lock.read_cached(str(path), str(tmp_path)) == made(SOME)


def test_the_cache_answers_for_the_same_bytes_only(path: Path, tmp_path: Path) -> None:
    lock.read_cached(str(path), str(tmp_path))
    lock.write(str(path), made(SOME, generation=5))
    read = lock.read_cached(str(path), str(tmp_path))
    assert read is not None
    assert read.generation == 5


def test_a_cache_of_another_policy_is_still_refused(path: Path, tmp_path: Path) -> None:
    lock.read_cached(str(path), str(tmp_path))
    with pytest.raises(LockError, match="not of 'other'"):
        lock.read_cached(str(path), str(tmp_path), policy="other")


def test_a_hundred_thousand_entries_fit_in_bounded_memory() -> None:
    tokens = frozenset(f"{number * 184467440737095:016x}" for number in range(lock.ENTRIES))
    big = made(Facts([Fact("cache", "/c", {"digest": set_digest(tokens)}, {}, tokens)]))
    tracemalloc.start()
    try:
        data = lock.dumps(big)
        assert len(data) < 2_000_000
        assert lock.parse(data, "x") == big
        assert tracemalloc.get_traced_memory()[1] < 60 << 20
    finally:
        tracemalloc.stop()
