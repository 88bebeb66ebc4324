"""Who may write a policy or a lock: modes, owners, groups, ACLs, folders above, links, user namespaces."""

from __future__ import annotations

import ctypes
import grp
import json
import os
import pwd
import shutil
import struct
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from lockd import trust
from lockd.errors import LockdError, LockError, PolicyError
from tests.scene import Scene

ROOT = os.geteuid() == 0
as_root = pytest.mark.skipif(not ROOT, reason="gives files to other users")
STRANGER = 12345
CLONE_NEWUSER = 0x10000000


@pytest.fixture
def policy(tmp_path: Path) -> Path:
    path = tmp_path / "conf" / "ct.toml"
    path.parent.mkdir(mode=0o755)
    path.write_text("schema = 1\n")
    path.chmod(0o644)
    return path


def refused(path: Path, *words: str, what: trust.What = "policy") -> str:
    """The text and hint of the refusal."""
    with pytest.raises(LockdError) as caught:
        trust.check(str(path), what)
    assert caught.value.code == 2
    told = f"{caught.value}\n{caught.value.hint}"
    for word in words:
        assert word in told
    return told


def acl(path: Path, *entries: tuple[int, int, int]) -> None:
    """Set a POSIX ACL of raw entries (tag, permissions, id), as setfacl does."""
    everybody = 0xFFFFFFFF
    rows = [(0x01, 6, everybody), (0x04, 4, everybody), (0x10, 6, everybody), (0x20, 4, everybody), *entries]
    value = struct.pack("<I", 2) + b"".join(struct.pack("<HHI", *row) for row in sorted(rows))
    try:
        os.setxattr(path, "system.posix_acl_access", value)
    except OSError as error:
        pytest.skip(f"no ACLs on this file system: {error}")


def test_a_file_of_the_user_that_others_only_read_is_trusted(policy: Path) -> None:
    assert trust.check(str(policy), "policy") is None
    policy.chmod(0o444)
    assert trust.check(str(policy), "policy") is None


def test_world_writable_is_refused_and_the_hint_mends_it(policy: Path) -> None:
    policy.chmod(0o666)
    refused(policy, "writable by everybody (mode 0666)", f"chmod go-w {policy}")
    policy.chmod(0o644)
    trust.check(str(policy), "policy")


def test_a_lock_is_refused_as_a_lock_and_a_policy_as_a_policy(policy: Path) -> None:
    policy.chmod(0o646)
    with pytest.raises(LockError, match="the lock is not trusted: writable by everybody"):
        trust.check(str(policy), "lock")
    with pytest.raises(PolicyError, match="the policy is not trusted: writable by everybody") as caught:
        trust.check(str(policy), "policy")
    assert len(caught.value.problems) == 1


def test_what_is_not_there_is_an_error_and_no_pass(tmp_path: Path) -> None:
    refused(tmp_path / "none.toml", "could not look who may write it")


@as_root
def test_another_owner_is_refused(policy: Path) -> None:
    os.chown(policy, STRANGER, -1)
    refused(policy, f"owned by uid {STRANGER}", f"chown 0 {policy}")


@as_root
def test_a_group_of_others_may_not_write(policy: Path) -> None:
    os.chown(policy, -1, 100)
    policy.chmod(0o664)
    refused(policy, "writable by group", "(mode 0664)", f"chmod g-w {policy}")
    policy.chmod(0o644)
    trust.check(str(policy), "policy")


def test_the_private_group_of_the_owner_may_write(policy: Path) -> None:
    try:
        user = pwd.getpwuid(os.geteuid())
        group = grp.getgrnam(user.pw_name)
    except KeyError:
        pytest.skip("this user has no private group")
    others = [one for one in pwd.getpwall() if one.pw_gid == user.pw_gid and one.pw_uid != user.pw_uid]
    if group.gr_gid != user.pw_gid or set(group.gr_mem) - {user.pw_name} or others:
        pytest.skip("the group of this user's name is not private")
    os.chown(policy, -1, group.gr_gid)
    policy.chmod(0o664)
    assert trust.check(str(policy), "policy") is None


@pytest.mark.parametrize("member", ["member", "primary"])
def test_a_private_group_with_somebody_in_it_is_not_private(
    policy: Path, monkeypatch: pytest.MonkeyPatch, member: str
) -> None:
    me = pwd.struct_passwd(("me", "x", os.geteuid(), os.getegid(), "", "/", "/bin/sh"))
    other = pwd.struct_passwd(("other", "x", STRANGER, os.getegid() if member == "primary" else 1, "", "/", ""))
    members = ["me", "other"] if member == "member" else ["me"]
    monkeypatch.setattr(pwd, "getpwuid", lambda uid: me)
    monkeypatch.setattr(pwd, "getpwall", lambda: [me, other])
    monkeypatch.setattr(grp, "getgrgid", lambda gid: grp.struct_group(("me", "x", gid, members)))
    policy.chmod(0o664)
    refused(policy, "writable by group me")


def test_a_named_user_in_the_acl_may_not_write(policy: Path) -> None:
    acl(policy, (0x02, 6, STRANGER))
    refused(policy, f"writable by uid {STRANGER}", "by its ACL")


def test_a_named_group_in_the_acl_may_not_write(policy: Path) -> None:
    acl(policy, (0x08, 6, STRANGER))
    refused(policy, f"writable by group {STRANGER}", "by its ACL")


def test_the_group_bits_of_an_acl_are_only_its_mask(policy: Path) -> None:
    acl(policy, (0x02, 4, STRANGER))
    assert policy.stat().st_mode & 0o020
    assert trust.check(str(policy), "policy") is None


# -- the folders above -------------------------------------------------------------------------------------------------


def test_a_folder_in_which_others_replace_the_file_is_refused(policy: Path) -> None:
    policy.parent.chmod(0o777)
    refused(policy, f"{policy.parent} is a folder writable by everybody", f"chmod go-w {policy.parent}")


def test_a_folder_further_up_counts_as_well(policy: Path, tmp_path: Path) -> None:
    tmp_path.chmod(0o777)
    refused(policy, f"{tmp_path} is a folder writable by everybody")


def test_a_sticky_folder_of_the_owner_is_trusted(policy: Path) -> None:
    policy.parent.chmod(0o1777)
    assert trust.check(str(policy), "policy") is None


@as_root
def test_a_folder_of_somebody_else_is_refused_sticky_or_not(policy: Path) -> None:
    os.chown(policy.parent, STRANGER, -1)
    for mode in (0o755, 0o1777):
        policy.parent.chmod(mode)
        refused(policy, f"{policy.parent} is owned by uid {STRANGER}")


@as_root
def test_in_a_sticky_folder_the_entry_of_somebody_else_is_refused(policy: Path) -> None:
    policy.parent.parent.chmod(0o1777)
    link = policy.parent.parent / "link.toml"
    link.symlink_to(policy)
    assert trust.check(str(link), "policy") is None
    os.lchown(link, STRANGER, -1)
    refused(link, f"owned by uid {STRANGER}", "in a folder writable by everybody")


def test_the_folders_that_links_lead_through_count(policy: Path, tmp_path: Path) -> None:
    open_folder = tmp_path / "open"
    open_folder.mkdir()
    (open_folder / "hop").symlink_to(policy.parent)
    (tmp_path / "entry").symlink_to("open/hop")
    assert trust.check(str(tmp_path / "entry" / "ct.toml"), "policy") is None
    open_folder.chmod(0o777)
    refused(tmp_path / "entry" / "ct.toml", f"{open_folder} is a folder writable by everybody")


def test_the_real_file_is_judged_and_not_the_link(policy: Path, tmp_path: Path) -> None:
    (tmp_path / "link.toml").symlink_to("conf/../conf/ct.toml")
    policy.chmod(0o666)
    refused(tmp_path / "link.toml", "writable by everybody")


def test_a_circle_of_links_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    refused(tmp_path / "a", "circle of links")


# -- user namespaces ---------------------------------------------------------------------------------------------------


@pytest.fixture
def outside() -> Iterator[Path]:
    """A folder that a user namespace reaches: pytest's own are closed to everybody else."""
    folder = Path(tempfile.mkdtemp(prefix="lockd-trust-"))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


def in_namespace(mapping: str, path: Path, trust_unmapped: bool) -> str:
    """The answer of `check` as the root of a user namespace with that uid map, in a process of its own."""
    return done_in_namespace(
        mapping, lambda: f"note: {trust.check(str(path), 'policy', trust_unmapped=trust_unmapped)}"
    )


def done_in_namespace(mapping: str, work: Callable[[], str]) -> str:
    """What `work` gives as the root of a user namespace with that uid map."""
    ready, mapped = os.pipe(), os.pipe()
    answer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            text = _inside(ready[1], mapped[0], work)
        except BaseException as error:
            text = f"failed: {error!r}"
        os.write(answer[1], text.encode())
        os._exit(0)
    os.close(answer[1])
    word = os.read(ready[0], 1)
    if word == b"y":
        for name in ("uid_map", "gid_map"):
            Path(f"/proc/{child}/{name}").write_text(mapping)
    os.write(mapped[1], b"g")
    with open(answer[0], encoding="utf-8") as file:
        text = file.read()
    os.waitpid(child, 0)
    for descriptor in (*ready, *mapped):
        os.close(descriptor)
    if word != b"y":
        pytest.skip("no user namespaces here")
    return text


def _inside(ready: int, mapped: int, work: Callable[[], str]) -> str:
    made = ctypes.CDLL(None, use_errno=True).unshare(CLONE_NEWUSER) == 0
    os.write(ready, b"y" if made else b"n")
    os.read(mapped, 1)
    os.setresgid(0, 0, 0)
    os.setresuid(0, 0, 0)
    try:
        return work()
    except LockdError as error:
        return f"refused: {error} {error.hint}"


@as_root
@pytest.mark.skipif(sys.platform != "linux", reason="user namespaces are Linux")
def test_in_a_user_namespace_what_is_owned_outside_needs_a_word(outside: Path) -> None:
    path = outside / "ct.toml"
    path.write_text("schema = 1\n")
    path.chmod(0o644)
    told = in_namespace("0 100000 65536", path, trust_unmapped=False)
    assert told.startswith("refused") and "owned outside this container" in told and "--trust-unmapped" in told
    told = in_namespace("0 100000 65536", path, trust_unmapped=True)
    assert told.startswith("note") and "owned outside this container" in told
    path.chmod(0o666)
    assert "writable by everybody" in in_namespace("0 100000 65536", path, trust_unmapped=True)


@as_root
def test_what_is_trusted_unmapped_is_said_at_each_verify_accept_and_run(outside: Path) -> None:
    scene = Scene(outside)
    model = scene.file("job/model.py")
    scene.write_policy(f'[[file]]\npath = "{model}"\n')
    os.chown(scene.policy, 4242, 4242)

    def work() -> str:
        accepted, verified = scene.accept("--trust-unmapped"), scene.verify("--trust-unmapped")
        ran = scene.lockd("run", "--trust-unmapped", "--", "true")
        return json.dumps([[one.code, one.out + one.err] for one in (accepted, verified, ran, scene.verify())])

    text = done_in_namespace("0 0 1", work)
    assert text.startswith("["), text
    answers = json.loads(text)
    assert [code for code, _ in answers] == [0, 0, 0, 2], text
    for _, said in answers:
        assert f"{scene.policy}" in said and "owned outside this container" in said


@as_root
def test_in_a_user_namespace_a_file_of_its_nobody_is_never_trusted(outside: Path) -> None:
    path = outside / "ct.toml"
    path.write_text("schema = 1\n")
    os.chown(path, 100000 + 65534, 100000)
    told = in_namespace("0 100000 65536", path, trust_unmapped=True)
    assert told.startswith("refused") and "may be anybody in this container" in told


@as_root
def test_where_nobody_is_not_mapped_what_reads_as_nobody_is_outside(outside: Path) -> None:
    path = outside / "ct.toml"
    path.write_text("schema = 1\n")
    os.chown(path, 4242, 4242)
    told = in_namespace("0 0 1", path, trust_unmapped=False)
    assert told.startswith("refused") and "owned outside this container" in told
    assert in_namespace("0 0 1", path, trust_unmapped=True).startswith("note")


@as_root
def test_outside_a_user_namespace_nobody_is_somebody_else(policy: Path) -> None:
    os.chown(policy, 65534, -1)
    with pytest.raises(PolicyError, match=r"owned by .*65534"):
        trust.check(str(policy), "policy", trust_unmapped=True)
