"""Whose state, where, and which folders are never used."""

from __future__ import annotations

import os
import pwd
import tempfile
from pathlib import Path

import pytest

from lockd import state
from lockd.errors import LookError


@pytest.fixture
def base(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    tmp_path.chmod(0o700)
    monkeypatch.setenv("LOCKD_STATE", str(tmp_path / "state"))
    (tmp_path / "ct.toml").write_text("schema = 1\n")
    return tmp_path


def test_one_private_folder_a_policy(base: Path) -> None:
    found = state.open(str(base / "ct.toml"), create=True)
    assert found is not None
    folder = Path(found.folder)
    assert folder.name.startswith("ct-")
    assert len(folder.name) == len("ct-") + 12
    assert folder.stat().st_mode & 0o777 == 0o700
    assert Path(found.cache_dir).is_dir()
    (base / "other").mkdir()
    (base / "other" / "ct.toml").touch()
    other = state.open(str(base / "other" / "ct.toml"), create=True)
    assert other is not None
    assert other.folder != found.folder


def test_nothing_is_made_where_nothing_was_asked_for(base: Path) -> None:
    assert state.open(str(base / "ct.toml"), create=False) is None
    assert not (base / "state").exists()


def test_a_folder_that_others_may_write_to_is_never_used(base: Path) -> None:
    found = state.open(str(base / "ct.toml"), create=True)
    assert found is not None
    os.chmod(found.folder, 0o770)
    with pytest.raises(LookError, match="writable by others") as caught:
        state.open(str(base / "ct.toml"), create=False)
    assert "chmod go-w" in caught.value.hint


def test_a_link_is_never_used_as_state(base: Path) -> None:
    found = state.open(str(base / "ct.toml"), create=True)
    assert found is not None
    os.rename(found.folder, base / "moved")
    os.symlink(base / "moved", found.folder)
    for create in (True, False):
        with pytest.raises(LookError, match="link"):
            state.open(str(base / "ct.toml"), create=create)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder away")
def test_a_folder_of_another_user_is_never_used(base: Path) -> None:
    found = state.open(str(base / "ct.toml"), create=True)
    assert found is not None
    os.chown(found.folder, 12345, 12345)
    with pytest.raises(LookError, match="belongs to uid 12345"):
        state.open(str(base / "ct.toml"), create=False)


def test_a_file_in_the_way_is_said(base: Path) -> None:
    (base / "state").write_text("")
    with pytest.raises(LookError, match="could not be made"):
        state.open(str(base / "ct.toml"), create=True)


def as_user(uid: int, path: str) -> str:
    """What `state.open` gives another user, asked in a child that became that user."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.setgroups([])
            os.setgid(uid)
            os.setuid(uid)
            os.write(writing, repr(state.open(path, create=True)).encode())
        except BaseException as error:
            os.write(writing, repr(error).encode())
        finally:
            os._exit(0)
    os.close(writing)
    os.waitpid(child, 0)
    with os.fdopen(reading) as file:
        return file.read()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_a_user_has_no_state_for_a_policy_of_root_but_for_an_own_one(monkeypatch: pytest.MonkeyPatch) -> None:
    with tempfile.TemporaryDirectory() as name:  # pytest's own folders are closed to other users
        monkeypatch.setenv("LOCKD_STATE", f"{name}/state")
        os.chmod(name, 0o777)
        Path(name, "ct.toml").touch()
        assert as_user(65533, f"{name}/ct.toml") == "None"
        assert not os.path.exists(f"{name}/state")
        os.chown(f"{name}/ct.toml", 65533, 65533)
        assert f"{name}/state/ct-" in as_user(65533, f"{name}/ct.toml")


def test_a_user_without_home_still_has_the_one_of_the_account(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("LOCKD_STATE", "XDG_STATE_HOME", "HOME"):
        monkeypatch.delenv(name, raising=False)
    account = next(row for row in pwd.getpwall() if row.pw_uid != 0)
    monkeypatch.setattr(os, "geteuid", lambda: account.pw_uid)
    assert state.base_dir() == os.path.join(account.pw_dir, ".local", "state", "lockd")
    monkeypatch.setattr(os, "geteuid", lambda: 3_000_000_000)
    assert state.base_dir() is None


def test_relative_xdg_paths_are_ignored_as_the_specification_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LOCKD_STATE", raising=False)
    monkeypatch.delenv("LOCKD_RUNTIME", raising=False)
    monkeypatch.setattr(os, "geteuid", lambda: 1)
    monkeypatch.setenv("HOME", "/home/ana")
    monkeypatch.setenv("XDG_STATE_HOME", "state")
    monkeypatch.setenv("XDG_RUNTIME_DIR", "run")
    assert state.base_dir() == "/home/ana/.local/state/lockd"
    assert state.runtime_dir() is None
    monkeypatch.setenv("XDG_RUNTIME_DIR", "/run/user/1")
    assert state.runtime_dir() == "/run/user/1/lockd"


def test_root_keeps_state_in_var_lib(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LOCKD_STATE", raising=False)
    monkeypatch.delenv("LOCKD_RUNTIME", raising=False)
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert state.base_dir() == "/var/lib/lockd"
    assert state.runtime_dir() == "/run/lockd"


def test_accepted_policies_are_remembered_once(base: Path) -> None:
    found = state.open(str(base / "ct.toml"), create=True)
    assert found is not None
    assert found.accepted_digests() == frozenset()
    for digest in ("sha256:b", "sha256:a", "sha256:b"):
        found.accept_digest(digest)
    assert found.accepted_digests() == {"sha256:a", "sha256:b"}
    assert (Path(found.folder) / "accepted-policies").stat().st_mode & 0o777 == 0o600
