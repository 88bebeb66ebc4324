"""`[[git]]`: repositories made by the real git, read through pygit2, hostile ones included."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from lockd.facts import Fact, Facts, Unknown, environment_id
from lockd.rules import GitRule, Policy
from tests import probing
from tests.scene import Scene

pytest.importorskip("pygit2")
if not shutil.which("git"):
    pytest.skip("no git on this machine to make repositories with", allow_module_level=True)

_CALM = {
    "PATH": os.environ["PATH"],
    "HOME": "/nonexistent",
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_AUTHOR_NAME": "a",
    "GIT_AUTHOR_EMAIL": "a@example.org",
    "GIT_COMMITTER_NAME": "a",
    "GIT_COMMITTER_EMAIL": "a@example.org",
}


def git(folder: Path, *args: str) -> str:
    done = subprocess.run(
        ["git", "-c", "protocol.file.allow=always", *args], cwd=folder, env=_CALM, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A repository of two commits, clean."""
    folder = tmp_path / "dflash"
    folder.mkdir()
    git(folder, "init", "-q", "-b", "main")
    for text in ("x = 1\n", "x = 2\n"):
        (folder / "train.py").write_text(text)
        (folder / ".gitignore").write_text("wandb/\n")
        git(folder, "add", "-A")
        git(folder, "commit", "-q", "-m", f"train with {text.strip()}")
    return folder


def held(path: Path, **rule: Any) -> Policy:
    return probing.policy(git=(GitRule(str(path), **rule),))


def fact(path: Path, **rule: Any) -> Fact:
    return probing.fact(held(path, **rule), f"git:{path}")


def line(path: Path, before: tuple[Facts, dict[str, Any]], **rule: Any) -> str:
    (text,) = probing.words(held(path, **rule), before)
    return text.removeprefix(f"{path}: ")


def seen(path: Path, **rule: Any) -> tuple[Facts, dict[str, Any]]:
    return probing.seen(probing.looking(held(path, **rule)))


# -- what is read ------------------------------------------------------------------------------------------------------


def test_head_and_branch_are_gits_own(repository: Path) -> None:
    found = fact(repository)
    assert found.attributes == {"head": git(repository, "rev-parse", "HEAD"), "branch": "main"}
    assert found.told["subject"] == "train with x = 2"


def test_a_commit_a_branch_an_edit_and_a_new_file(repository: Path) -> None:
    before = seen(repository)
    head = git(repository, "rev-parse", "HEAD")
    (repository / "train.py").write_text("x = 3\n")
    assert line(repository, before) == "1 file differs from HEAD: train.py"
    git(repository, "commit", "-q", "-am", "three")
    assert line(repository, before) == f"{head[:8]} → {git(repository, 'rev-parse', 'HEAD')[:8]}"
    git(repository, "reset", "-q", "--hard", head)
    git(repository, "checkout", "-q", "-b", "try")
    assert line(repository, before) == "branch main → try"
    git(repository, "checkout", "-q", "--detach")
    assert line(repository, before) == "branch main → detached"
    git(repository, "checkout", "-q", "main")
    (repository / "patch.py").write_text("import train\n")
    assert line(repository, before) == "1 file untracked: patch.py"
    (repository / "patch.py").unlink()
    assert probing.drift(held(repository), before[0]) == []


def test_staging_an_edit_changes_nothing_and_the_next_edit_does(repository: Path) -> None:
    (repository / "train.py").write_text("x = 3\n")
    edited = fact(repository).attributes
    git(repository, "add", "train.py")
    assert fact(repository).attributes == edited
    (repository / "train.py").write_text("x = 4\n")
    assert fact(repository).attributes["dirty"] != edited["dirty"]


def test_a_deleted_file_a_link_and_the_execute_bit_are_dirty(repository: Path) -> None:
    digests = set()
    for change in ("unlink", "chmod", "symlink"):
        path = repository / "train.py"
        if change == "chmod":
            path.chmod(0o755)
        else:
            path.unlink()
            if change == "symlink":
                path.symlink_to("/etc/hostname")
        digests.add(fact(repository).attributes["dirty"])
        git(repository, "checkout", "-q", "--", "train.py")
    assert len(digests) == 3


def test_untracked_files_as_the_rule_says(repository: Path) -> None:
    for name in ("notes.txt", "ext.so.1", "deep/model.py", "wandb/run.py", "__pycache__/x.pyc"):
        (repository / name).parent.mkdir(exist_ok=True)
        (repository / name).write_text(name)
    assert fact(repository).told["new"] == ("deep/model.py", "ext.so.1")
    assert fact(repository, untracked="all").attributes["untracked_files"] == 4
    assert "untracked" not in fact(repository, untracked="ignore").attributes
    assert fact(repository, exclude=("deep/**",)).told["new"] == ("ext.so.1",)


def test_touching_is_no_drift_and_the_index_is_not_written(repository: Path) -> None:
    before = seen(repository)[0]
    index = (repository / ".git/index").read_bytes()
    os.utime(repository / "train.py", (1, 1))
    assert probing.drift(held(repository), before) == []
    assert (repository / ".git/index").read_bytes() == index


def test_equal_clones_are_one_environment(repository: Path, tmp_path: Path) -> None:
    git(tmp_path, "clone", "-q", str(repository), str(tmp_path / "clone"))
    first, second = fact(repository), fact(tmp_path / "clone")
    assert first.attributes == second.attributes
    assert second.told["origin"] == str(repository)


def test_credentials_of_a_remote_are_not_shown(repository: Path) -> None:
    git(repository, "remote", "add", "origin", "https://me:sEcReT123@example.org/x.git")
    assert fact(repository).told["origin"] == "https://example.org/x.git"


def test_a_merge_under_way_is_a_state(repository: Path) -> None:
    git(repository, "checkout", "-q", "-b", "other", "HEAD~1")
    (repository / "train.py").write_text("x = 9\n")
    git(repository, "commit", "-q", "-am", "nine")
    subprocess.run(["git", "merge", "main"], cwd=repository, env=_CALM, capture_output=True)
    found = fact(repository)
    assert found.attributes["state"] == "merge"
    assert found.attributes["dirty_files"] == 1


def test_submodules_by_commit(repository: Path, tmp_path: Path) -> None:
    inner = tmp_path / "inner"
    git(tmp_path, "clone", "-q", str(repository), str(inner))
    git(repository, "submodule", "add", "-q", str(inner), "lib")
    git(repository, "commit", "-q", "-m", "lib")
    before = seen(repository)
    head = git(inner, "rev-parse", "HEAD")
    assert fact(repository).attributes["submodules"] == (f"lib {head}",)
    git(repository / "lib", "checkout", "-q", "HEAD~1")
    assert f"submodules lib {head} → lib {git(inner, 'rev-parse', 'HEAD~1')}" in line(repository, before)
    (repository / "lib/train.py").write_text("edited\n")
    assert fact(repository).attributes["submodules"] == (f"lib {git(inner, 'rev-parse', 'HEAD~1')}+",)


def test_linked_worktrees_and_shallow_clones(repository: Path, tmp_path: Path) -> None:
    git(repository, "worktree", "add", "-q", str(tmp_path / "tree"), "-b", "side")
    assert fact(tmp_path / "tree").attributes["branch"] == "side"
    git(tmp_path, "clone", "-q", "--depth", "1", f"file://{repository}", str(tmp_path / "shallow"))
    assert fact(tmp_path / "shallow").told["shallow"] is True


def test_names_that_are_no_utf8_are_read(repository: Path) -> None:
    name = os.fsencode(str(repository)) + b"/\xff\n.py"
    with open(name, "wb") as file:
        file.write(b"x")
    found = probing.facts(held(repository))[f"git:{repository}"]
    if isinstance(found, Unknown):
        assert "a name that is no UTF-8" in found.reason
        pytest.skip("this pygit2 reads no such names, which is said")
    assert fact(repository).told["new"] == ("\\xff\\n.py",)


# -- the policy and its lock -------------------------------------------------------------------------------------------


def test_committing_the_policy_and_the_lock_is_no_drift(repository: Path) -> None:
    policy = Policy(name="ct", path=str(repository / "lockd.toml"), git=(GitRule(str(repository), untracked="all"),))
    before = probing.facts(policy)
    (repository / "lockd.toml").write_text("schema = 1\n")
    (repository / "lockd.lock").write_text("x\n")
    assert probing.drift(policy, before) == []
    git(repository, "add", "-A")
    assert probing.drift(policy, before) == []
    git(repository, "commit", "-q", "-m", "the lock")
    assert probing.drift(policy, before) == []
    (repository / "lockd.lock").write_text("y\n")
    git(repository, "commit", "-q", "-am", "the next lock")
    assert probing.drift(policy, before) == []
    (repository / "train.py").write_text("x = 4\n")
    (repository / "lockd.lock").write_text("z\n")
    git(repository, "commit", "-q", "-am", "both")
    (difference,) = probing.drift(policy, before)
    assert set(difference.attributes) == {"head"}


# -- what is not there, or broken --------------------------------------------------------------------------------------


def test_no_repository_and_no_folder_are_absent(tmp_path: Path) -> None:
    assert fact(tmp_path).absent
    assert fact(tmp_path / "gone").absent


def test_a_folder_inside_a_repository_is_none_itself(repository: Path) -> None:
    (repository / "deep").mkdir()
    assert fact(repository / "deep").absent


def test_a_repository_without_a_commit_is_unborn(tmp_path: Path) -> None:
    git(tmp_path, "init", "-q", "-b", "main")
    assert fact(tmp_path).attributes == {"head": "unborn", "branch": "main"}


def test_a_bare_repository_has_a_head_and_no_work(repository: Path, tmp_path: Path) -> None:
    git(tmp_path, "clone", "-q", "--bare", str(repository), str(tmp_path / "bare"))
    assert fact(tmp_path / "bare").attributes["head"] == git(repository, "rev-parse", "HEAD")


@pytest.mark.parametrize("broken", ["objects", "HEAD", "index", "refs"])
def test_what_is_half_cloned_or_torn_is_unknown(repository: Path, broken: str) -> None:
    path = repository / ".git" / broken
    if broken in ("objects", "refs"):
        shutil.rmtree(path)
        path.mkdir()
        if broken == "refs":
            (repository / ".git/HEAD").write_text("ref: not a name\n")
    else:
        path.write_bytes(b"\x00garbage")
    found = probing.unknown(held(repository), f"git:{repository}")
    assert found.reason.startswith("git: ")


@pytest.mark.parametrize("name", ["config", "HEAD", "index", "info/exclude"])
def test_a_fifo_in_the_place_of_a_file_is_not_waited_for(repository: Path, name: str) -> None:
    path = repository / ".git" / name
    path.unlink(missing_ok=True)
    path.parent.mkdir(exist_ok=True)
    os.mkfifo(path)
    assert "which git would wait for" in probing.unknown(held(repository), f"git:{repository}").reason


@pytest.mark.parametrize("key", ["include.path", "core.excludesfile", "core.attributesfile"])
def test_a_fifo_that_the_configuration_names_is_not_waited_for(repository: Path, tmp_path: Path, key: str) -> None:
    os.mkfifo(tmp_path / "fifo")
    git(repository, "config", "user.name", "x")  # the file is there before it names what git itself would wait for
    section, _, name = key.partition(".")
    with open(repository / ".git/config", "a") as file:
        file.write(f"[{section}]\n\t{name} = {tmp_path}/fifo\n")
    assert "which git would wait for" in probing.unknown(held(repository), f"git:{repository}").reason


def test_without_pygit2_it_is_unknown_with_the_way_out(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pygit2", None)
    found = probing.unknown(held(repository), f"git:{repository}")
    assert found.reason == "pygit2 is not installed beside lockd: pip install 'lockd[git]'"


# -- hostile -----------------------------------------------------------------------------------------------------------


def test_nothing_of_a_hostile_repository_runs(repository: Path, tmp_path: Path) -> None:
    """Filters, hooks, fsmonitor, diff drivers, text conversion, credential helpers, pagers, ssh: all leave a mark."""
    mark = tmp_path / "ran"
    evil = tmp_path / "evil.sh"
    evil.write_text(f"#!/bin/sh\necho $0 $* >> {mark}\ncat\n")
    evil.chmod(0o755)
    (repository / ".gitattributes").write_text("* filter=evil diff=evil merge=evil\n")
    git(repository, "add", "-A")
    git(repository, "commit", "-q", "-m", "attributes")
    for hook in ("post-index-change", "pre-commit", "fsmonitor-watchman", "post-checkout", "reference-transaction"):
        shutil.copy(evil, repository / ".git/hooks" / hook)
    with open(repository / ".git/config", "a") as file:
        file.write(
            f'[filter "evil"]\n\tclean = {evil}\n\tsmudge = {evil}\n\tprocess = {evil}\n\trequired = true\n'
            f'[diff "evil"]\n\ttextconv = {evil}\n\tcommand = {evil}\n[diff]\n\texternal = {evil}\n'
            f"[core]\n\tfsmonitor = {evil}\n\tpager = {evil}\n\tsshCommand = {evil}\n\thooksPath = .git/hooks\n"
            f'[credential]\n\thelper = {evil}\n[gpg]\n\tprogram = {evil}\n[remote "origin"]\n\turl = ext::{evil}\n'
        )
    (repository / "train.py").write_text("x = 5\n")
    os.utime(repository / "train.py", (1, 1))
    subprocess.run(["git", "status"], cwd=repository, env=_CALM, capture_output=True)
    assert mark.exists(), "the repository is not hostile enough: git itself runs nothing of it"
    mark.unlink()
    found = fact(repository, untracked="all")
    assert found.attributes["dirty_files"] == 1
    assert not mark.exists(), mark.read_text()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_a_repository_of_somebody_else_is_read(repository: Path) -> None:
    before = fact(repository).attributes
    for path in (repository, *repository.rglob("*")):
        os.lchown(path, 4242, 4242)
    assert fact(repository).attributes == before


def test_what_the_account_configures_changes_nothing(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a process of its own: libgit2 reads HOME once."""
    (repository / "local.py").write_text("x\n")
    home = tmp_path / "home"
    home.mkdir()
    (home / ".gitconfig").write_text(f"[core]\n\texcludesfile = {home}/ignore\n")
    (home / "ignore").write_text("*.py\n")
    scene = Scene(tmp_path / "scene", {"HOME": str(home)})
    scene.root.mkdir()
    scene.write_policy(f'[[git]]\npath = "{repository}"\n')
    rows = scene.lockd("export").out
    assert "untracked_files" in rows


# -- end to end --------------------------------------------------------------------------------------------------------


def test_accepted_drifted_and_told_by_the_command(repository: Path, tmp_path: Path) -> None:
    scene = Scene(tmp_path / "scene")
    scene.root.mkdir()
    scene.write_policy(f'[[git]]\npath = "{repository}"\n')
    assert scene.accept().code == 0
    assert scene.verify().document["verdict"] == "ok"
    (repository / "train.py").write_text("x = 7\n")
    answer = scene.verify()
    assert (answer.code, answer.facts) == (1, [f"git:{repository}"])
    assert "differs from HEAD: train.py" in answer.document["findings"][0]["message"]


def test_the_environment_id_follows_the_state_and_comes_back(repository: Path) -> None:
    def identity() -> str:
        return environment_id([fact(repository)])

    first = identity()
    (repository / "train.py").write_text("x = 7\n")
    assert identity() != first
    git(repository, "checkout", "-q", "--", "train.py")
    assert identity() == first


def test_a_file_that_cannot_be_read_makes_it_unknown(repository: Path) -> None:
    (repository / "train.py").write_text("x = 7\n")
    (repository / "train.py").chmod(0)
    with probing.blind():
        found = probing.facts(held(repository))[f"git:{repository}"]
    assert isinstance(found, Unknown)
