"""Facts of files: what counts, what is only told, and what is never opened."""

from __future__ import annotations

import hashlib
import os
import socket
import stat
from pathlib import Path

import pytest

from lockd.facts import Fact, Unknown
from lockd.memo import StateMemo
from lockd.probes import files, probe
from lockd.rules import FileRule, Policy
from tests.probing import blind, drift, fact, facts, looking, policy, seen, unknown, words

MODEL = "WINDOW = 512\nDROPOUT = 0.5\n"


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "job" / "dflash_model.py"
    path.parent.mkdir()
    path.write_text(MODEL)
    return path


def pinned(path: Path | str, **rule: object) -> Policy:
    return policy(file=(FileRule(str(path), **rule),))  # type: ignore[arg-type]


def test_contents_type_and_execute_bit_are_the_fact(model: Path) -> None:
    model.chmod(0o750)
    found = fact(pinned(model), f"file:{model}")
    digest = hashlib.sha256(MODEL.encode()).hexdigest()
    assert found.attributes == {"type": "file", "digest": f"sha256:{digest}", "executable": True}
    assert found.told["mode"] == "0750" and found.told["size"] == len(MODEL)
    assert set(found.attributes) | set(found.told) <= set(files.ATTRIBUTES["file"])


def test_an_edit_of_the_same_size_with_times_put_back_is_drift(model: Path) -> None:
    held, before = pinned(model), facts(pinned(model))
    status = model.stat()
    model.write_text(MODEL.replace("0.5", "0.7"))
    os.utime(model, ns=(status.st_atime_ns, status.st_mtime_ns))
    (one,) = drift(held, before)
    assert (one.name, one.change, set(one.attributes)) == (f"file:{model}", "changed", {"digest"})


def test_mode_owner_and_time_are_told_but_the_execute_bit_is_drift(model: Path) -> None:
    held, before = pinned(model), facts(pinned(model))
    model.chmod(0o600)
    os.utime(model, (1, 1))
    if os.geteuid() == 0:
        os.chown(model, 12345, 54321)
        assert fact(held, f"file:{model}").told["owner"] == "12345:54321"
    assert drift(held, before) == []
    assert fact(held, f"file:{model}").told["mtime"] == "1970-01-01T00:00:01Z"
    model.chmod(0o700)
    assert [set(one.attributes) for one in drift(held, before)] == [{"executable"}]


def test_absence_is_a_fact_and_a_file_that_goes_is_missing(model: Path) -> None:
    held, before = pinned(model), seen(looking(pinned(model)))
    model.unlink()
    assert fact(held, f"file:{model}").absent
    assert words(held, before) == [f"{model} is gone"]
    model.parent.rmdir()
    model.parent.write_text("a file where the folder was")  # ENOTDIR
    assert fact(held, f"file:{model}").absent


@pytest.mark.parametrize("kind", ["folder", "fifo", "socket", "device", "link"])
def test_a_file_that_became_something_else_is_changed_and_never_opened(model: Path, kind: str) -> None:
    held, before = pinned(model), seen(looking(pinned(model)))
    model.unlink()
    make(model, kind)
    found = fact(held, f"file:{model}")
    assert found.attributes["type"] == kind and "digest" not in found.attributes
    (line,) = words(held, before)
    assert line == f"{model}: was a file, is a {kind}"


def make(path: Path, kind: str) -> None:
    """Something that is no regular file: whoever opens the FIFO hangs."""
    if kind == "folder":
        path.mkdir()
    elif kind == "fifo":
        os.mkfifo(path)
    elif kind == "link":
        path.symlink_to(path.parent / "nowhere")
    elif kind == "device":
        try:
            os.mknod(path, stat.S_IFCHR | 0o600, os.makedev(1, 5))
        except PermissionError:
            pytest.skip("making a device node needs root and CAP_MKNOD")
    else:
        here = os.getcwd()
        os.chdir(path.parent)  # a socket's path may have 107 bytes
        try:
            with socket.socket(socket.AF_UNIX) as server:
                server.bind(path.name)
        finally:
            os.chdir(here)


def test_of_a_link_its_text_and_the_contents_at_its_end_count(model: Path) -> None:
    link = model.parent / "current.py"
    link.symlink_to(model.name)
    held, before = pinned(link), facts(pinned(link))
    found = fact(held, f"file:{link}")
    assert found.attributes["target"] == "dflash_model.py" and found.attributes["target_type"] == "file"
    model.write_text("other")
    assert [set(one.attributes) for one in drift(held, before)] == [{"digest"}]
    model.write_text(MODEL)
    link.unlink()
    link.symlink_to(f"./{model.name}")
    assert [set(one.attributes) for one in drift(held, before)] == [{"target"}]


def test_a_link_to_nothing_and_a_loop_are_facts(tmp_path: Path) -> None:
    (tmp_path / "gone").symlink_to("nowhere")
    (tmp_path / "loop").symlink_to("loop")
    assert fact(pinned(tmp_path / "gone"), f"file:{tmp_path}/gone").attributes["target_type"] == "absent"
    assert fact(pinned(tmp_path / "loop"), f"file:{tmp_path}/loop").attributes["target_type"] == "loop"


def test_what_may_not_be_read_is_unknown_with_its_reason(model: Path) -> None:
    model.chmod(0)
    with blind():
        assert "ermission denied" in unknown(pinned(model), f"file:{model}").reason
    model.parent.chmod(0)
    try:
        with blind():
            assert "ermission denied" in unknown(pinned(model), f"file:{model}").reason
    finally:
        model.parent.chmod(0o755)


def test_a_glob_that_meets_an_unreadable_folder_is_unknown_not_empty(model: Path) -> None:
    held = pinned(model.parent / "*.py")
    model.parent.chmod(0)
    try:
        with blind():
            assert "ermission denied" in unknown(held, f"file:{model.parent}/*.py").reason
    finally:
        model.parent.chmod(0o755)


def test_a_glob_names_what_is_there_and_a_new_match_is_added(model: Path) -> None:
    held = pinned(model.parent / "*.py")
    before = facts(held)
    assert list(before) == [f"file:{model}"]
    (model.parent / "utils.py").write_text("x = 1\n")
    (model.parent / "notes.txt").write_text("no match\n")
    (one,) = drift(held, before)
    assert (one.name, one.change) == (f"file:{model.parent}/utils.py", "added")
    model.unlink()
    assert {one.change for one in drift(held, before)} == {"added", "missing"}


def test_a_glob_without_a_match_gives_no_fact(tmp_path: Path) -> None:
    assert dict(facts(pinned(tmp_path / "*.py"))) == {}
    assert dict(facts(pinned(tmp_path / "none" / "*.py"))) == {}


def test_a_bare_star_leaves_folders_out_but_a_named_match_that_became_one_is_changed(model: Path) -> None:
    (model.parent / "__pycache__").mkdir()
    assert list(facts(pinned(model.parent / "*"))) == [f"file:{model}"]
    held = pinned(model.parent / "*.py")
    before = facts(held)
    model.unlink()
    model.mkdir()
    assert [one.change for one in drift(held, before)] == ["changed"]


def test_double_star_crosses_folders_and_exclude_leaves_out(tmp_path: Path) -> None:
    for name in ("a.py", "x/b.py", "x/y/c.py", "x/.ipynb_checkpoints/d.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("1")
    (tmp_path / "out").symlink_to("/etc")
    held = pinned(tmp_path / "**" / "*.py", exclude=("**/.ipynb_checkpoints", "x/y/*"))
    assert list(facts(held)) == [f"file:{tmp_path}/a.py", f"file:{tmp_path}/x/b.py"]
    rule = held.file[0]
    assert files.claims(rule, "file", f"{tmp_path}/x/new.py")
    assert not files.claims(rule, "file", f"{tmp_path}/x/y/c.py")
    assert not files.claims(rule, "file", f"{tmp_path}/x/.ipynb_checkpoints/d.py")


@pytest.mark.parametrize(
    "name", [b"caf\xe9\xff.py", b"two\nlines.py", b'quo"te\\.py', b"\x1b[2J.py", "\u202ex.py".encode()]
)
def test_odd_names_are_shown_escaped_and_still_claimed(tmp_path: Path, name: bytes) -> None:
    Path(os.fsdecode(os.fsencode(tmp_path) + b"/" + name)).write_bytes(b"old")
    held = pinned(tmp_path / "*.py")
    (found,) = facts(held).values()
    assert isinstance(found, Fact) and found.subject.isprintable()
    assert found.subject.encode()
    assert files.claims(held.file[0], "file", found.subject)


@pytest.mark.parametrize("algorithm", ["md5", "sha1", "sha256", "sha512", "blake2b"])
def test_a_pinned_digest_is_held_against_the_contents(model: Path, algorithm: str) -> None:
    digest = f"{algorithm}:{hashlib.new(algorithm, MODEL.encode()).hexdigest()}"
    held = pinned(model, digest=digest)
    assert drift(held, facts(held)) == []
    model.write_text("other")
    found = facts(held)
    (breach,) = probe("file").breaches(held.file[0], held, found)
    assert breach.key == "file[0].digest" and breach.wanted == digest
    assert breach.found == f"{algorithm}:{hashlib.new(algorithm, b'other').hexdigest()}"
    assert "pinned" in breach.text


def test_a_pin_on_what_is_gone_or_no_file_is_broken(model: Path) -> None:
    held = pinned(model, digest="md5:" + "0" * 32)
    model.unlink()
    (breach,) = files.breaches(held.file[0], held, facts(held))
    assert breach.found is None and "not there" in breach.text
    model.mkdir()
    (breach,) = files.breaches(held.file[0], held, facts(held))
    assert "a folder" in breach.text


def test_a_pin_on_what_could_not_be_read_is_not_called_broken(model: Path) -> None:
    held = pinned(model, digest="md5:" + "0" * 32)
    model.chmod(0)
    with blind():
        found = facts(held)
    assert isinstance(found[f"file:{model}"], Unknown)
    assert list(files.breaches(held.file[0], held, found)) == []


def test_an_md5_pin_added_later_is_no_drift_of_a_lock_that_never_saw_it(model: Path) -> None:
    before = facts(pinned(model))
    held = pinned(model, digest=f"md5:{hashlib.md5(MODEL.encode()).hexdigest()}")
    assert drift(held, before) == []


def test_looking_moves_no_atime(model: Path) -> None:
    os.utime(model, (1_000_000_000, 1_900_000_000))
    held = pinned(model, digest="md5:" + "0" * 32)
    facts(held)
    assert model.stat().st_atime_ns == 1_000_000_000 * 10**9


def test_the_rules_own_severity_wins(model: Path) -> None:
    held = pinned(model, on_drift="record")
    assert files.severity(held.file[0], held, "file", str(model), "changed") == "record"
    plain = pinned(model)
    assert files.severity(plain.file[0], plain, "file", str(model), "changed") == "block"


def test_words_say_from_what_to_what(model: Path) -> None:
    held, before = pinned(model), seen(looking(pinned(model)))
    model.write_text(MODEL + "# more\n")
    assert words(held, before) == [f"{model}: contents changed (27 → 34 bytes)"]
    model.write_text(MODEL.replace("0.5", "0.7"))
    model.chmod(0o755)
    assert words(held, before) == [f"{model}: contents changed (still 27 bytes), may be executed now"]


def test_what_is_watched_is_the_file_its_target_or_where_a_glob_begins(model: Path) -> None:
    link = model.parent / "current.py"
    link.symlink_to(model.name)
    assert list(files.watched(FileRule(str(link)))) == [str(link), os.path.realpath(model)]
    assert list(files.watched(FileRule(f"{model.parent}/*.py"))) == [str(model.parent)]


def test_a_name_that_looks_like_a_glob_is_found_as_it_stands(tmp_path: Path) -> None:
    (tmp_path / "x[1].py").write_text("x")
    (tmp_path / "x1.py").write_text("x")
    held = pinned(tmp_path / "x[1].py")
    assert list(facts(held)) == [f"file:{tmp_path}/x1.py", f"file:{tmp_path}/x[1].py"]


def test_a_link_to_what_is_no_file_opens_nothing_and_one_into_the_dark_is_unknown(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "to-fifo").symlink_to("fifo")
    (tmp_path / "dark").mkdir()
    (tmp_path / "dark" / "x.py").write_text("x")
    (tmp_path / "to-dark").symlink_to("dark/x.py")
    assert fact(pinned(tmp_path / "to-fifo"), f"file:{tmp_path}/to-fifo").attributes["target_type"] == "fifo"
    (tmp_path / "dark").chmod(0)
    try:
        with blind():
            assert "ermission denied" in unknown(pinned(tmp_path / "to-dark"), f"file:{tmp_path}/to-dark").reason
    finally:
        (tmp_path / "dark").chmod(0o755)


def test_a_pin_other_than_sha256_is_remembered_by_the_contents(model: Path, tmp_path: Path) -> None:
    held = pinned(model, digest="md5:" + "0" * 32)
    memo = StateMemo(str(tmp_path / "memo"))
    for text in (MODEL, "other", MODEL):
        model.write_text(text)
        told = fact(held, f"file:{model}", memo=memo).told["md5"]
        assert told == f"md5:{hashlib.md5(text.encode()).hexdigest()}"
