"""What a person would regret: each warning named after the loss; a policy without regrets gives none."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from lockd import policy, policy_check

HEAD = 'schema = 1\nname = "ct"\n'


def regrets(text: str) -> list[str]:
    return policy_check.regrets(policy.parse(HEAD + text, "/x/ct.toml"))


def told(text: str, *words: str) -> str:
    """The one regret that holds all the words."""
    found = [line for line in regrets(text) if all(word in line for word in words)]
    assert len(found) == 1, regrets(text)
    return found[0]


@pytest.fixture(autouse=True)
def no_reboot(monkeypatch: pytest.MonkeyPatch) -> None:
    """pytest's folders lie in /tmp, which is cleared at boot here and there."""
    monkeypatch.setattr(policy_check, "_cleared_folders", lambda: iter([("tmp.conf", "/wiped")]))
    monkeypatch.setattr(policy_check, "_mount", lambda path: ("/ram", "tmpfs") if path.startswith("/ram") else None)


def test_a_policy_without_regrets(tmp_path: Path) -> None:
    (tmp_path / "venv").mkdir()
    (tmp_path / "train.py").write_text("")
    text = (
        f'[launch]\nscripts = ["{tmp_path}/train.py"]\npython = "train"\n'
        f'[[python]]\nname = "train"\npath = "{tmp_path}/venv"\n[python.packages]\ntorch = "2.11.0+cu128"\n'
        f'[[file]]\npath = "{tmp_path}/*.py"\nkeep = true\n[[tree]]\npath = "{tmp_path}"\n'
        f'[[cache]]\npath = "{tmp_path}"\n'
        '[env]\nA = "locked"\nHF_TOKEN = { secret = true }\n'
    )
    assert regrets(text) == []


@pytest.mark.parametrize(
    ("pin", "loose"),
    [
        ('"2.11.0"', True),
        ('"==2.11.0"', True),
        ('{ version = "2.11.0" }', True),
        ('"2.11.0+cu128"', False),
        ('{ version = "2.11.0", cuda = "12.8" }', False),
        ('">=2.4"', False),
    ],
)
def test_torch_without_a_label_accepts_any_build(tmp_path: Path, pin: str, loose: bool) -> None:
    text = f'[[python]]\nname = "a"\npath = "{tmp_path}"\n[python.packages]\ntorch = {pin}\nnumpy = "2.1.0"\n'
    found = [line for line in regrets(text) if "accepts any build" in line]
    assert len(found) == loose
    assert not found or found[0].startswith("ct.toml:7: python[0].packages.torch: ")


def test_a_rule_that_matches_nothing(tmp_path: Path) -> None:
    told(f'[[file]]\npath = "{tmp_path}/*.py"\n', "ct.toml:4: file[0].path: matches nothing")
    told(f'[[file]]\npath = "{tmp_path}/a.py"\n', "matches nothing")
    told(f'[[tree]]\npath = "{tmp_path}/*"\n', "is no folder; a glob is not read here")
    told(f'[[cache]]\npath = "{tmp_path}/none"\n', "is no folder")
    told(f'[[python]]\nname = "a"\npath = "{tmp_path}/none"\n', "python[0].path", "is not there")


def test_a_cache_that_a_reboot_clears() -> None:
    told('[[cache]]\npath = "/wiped/torchinductor_root"\n', "does not outlive a reboot: tmp.conf clears /wiped at boot")
    told('[[cache]]\npath = "/ram/x"\n', "/ram is a tmpfs")
    assert not [line for line in regrets('[[cache]]\npath = "/wipedout/x"\n') if "reboot" in line]
    assert not regrets('[[cache]]\npath = "/wiped/x"\nchange = "empty"\n')


def test_rules_for_boot_are_read_from_the_files_of_systemd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    etc, usr = tmp_path / "etc", tmp_path / "usr"
    etc.mkdir()
    usr.mkdir()
    (usr / "tmp.conf").write_text("# comment\nD /hidden 1777 root root -\n")
    (etc / "tmp.conf").write_text("D! /emptied 1777 root root 10d\nq /kept 1777 root root 30d\nD /glob/* - - - -\n")
    monkeypatch.setattr(policy_check, "_TMPFILES", (str(etc), str(usr), str(tmp_path / "none")))
    monkeypatch.setattr(policy_check, "_mount", lambda path: None)
    assert policy_check.cleared_at_boot("/emptied/a").endswith("tmp.conf clears /emptied at boot")
    assert [policy_check.cleared_at_boot(path) for path in ("/hidden/a", "/kept/a", "/glob/a", "/emptiedx")] == [""] * 4


def test_the_file_system_of_a_path_is_the_deepest_mount(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    assert policy_check._mount("/proc/self") == ("/proc", "proc")


def test_a_launch_script_that_nothing_holds(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("")
    launch = f'[launch]\nscripts = ["{script}"]\n'
    told(f'{launch}[env]\nA = "locked"\n', "launch.scripts[0]", "may change unseen")
    assert not regrets(f'{launch}[[tree]]\npath = "{tmp_path}"\n')
    told(f'{launch}[[python]]\nname = "a"\npath = "{tmp_path}"\n', "names no python")
    told(
        f'[launch]\noverride_group = "no-such-group"\n[[file]]\npath = "{script}"\n', "there is no group no-such-group"
    )


def test_keeping_something_huge(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    big = tmp_path / "big"
    with open(big, "wb") as file:
        os.truncate(file.fileno(), 30 << 30)
    told(f'[[file]]\npath = "{big}"\nkeep = true\n', "file[0].keep: keeps a copy", "30.0 GiB")
    told(f'[[cache]]\npath = "{tmp_path}"\nkeep = true\n', "cache[0].keep", "30.0 GiB")
    assert not regrets(f'[[file]]\npath = "{big}"\n')
    big.unlink()
    for name in "abc":
        (tmp_path / name).write_text("")
    monkeypatch.setattr(policy_check, "_COUNTED", 2)
    told(f'[[cache]]\npath = "{tmp_path}"\nkeep = true\n', "in over 2 files")


def test_a_policy_that_can_never_warn(tmp_path: Path) -> None:
    told(f'on_drift = "ignore"\n[[tree]]\npath = "{tmp_path}"\n', "ct.toml:3: on_drift: no rule warns or blocks")
    assert not regrets(f'on_drift = "ignore"\n[[tree]]\npath = "{tmp_path}"\non_drift = "warn"\n')


def test_a_secret_in_plain_text_is_told_without_its_value() -> None:
    line = told('[env]\nHF_TOKEN = "hf_abcdefghijklmnopqrstu"\n', "env.HF_TOKEN", "{ secret = true }")
    assert "hf_abc" not in line
