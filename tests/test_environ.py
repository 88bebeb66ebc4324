"""Facts of the launch environment, and secrets: which they are, what is kept of them, what is masked."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from lockd import secrets
from lockd.errors import LookError
from lockd.facts import Fact, Unknown
from lockd.probes import environ, probe
from lockd.rules import EnvRule, Policy
from tests.probing import drift, fact, facts, looking, policy, seen, unknown, words

KEY = bytes(range(32))
LOCKED = EnvRule(locked=True)


def pinned(**rules: EnvRule) -> Policy:
    return policy(env=rules)


def test_a_locked_variable_is_its_value_and_unset_counts() -> None:
    held = pinned(LD_LIBRARY_PATH=LOCKED)
    before = seen(looking(held, environ={"LD_LIBRARY_PATH": "/opt/lib", "OTHER": "1"}))
    assert list(before[0]) == ["env:LD_LIBRARY_PATH"]
    assert words(held, before, environ={}) == ['LD_LIBRARY_PATH "/opt/lib" → not set']
    unset = facts(held, environ={})
    assert unset["env:LD_LIBRARY_PATH"].absent  # type: ignore[union-attr]
    assert [one.change for one in drift(held, unset, environ={"LD_LIBRARY_PATH": ""})] == ["added"]
    assert drift(held, unset, environ={}) == []


def test_a_value_in_the_policy_is_a_pin_with_its_line() -> None:
    held = pinned(TORCHINDUCTOR_CACHE_DIR=EnvRule(value="/tmp/torchinductor_root"))
    before = facts(held, environ={"TORCHINDUCTOR_CACHE_DIR": "/tmp/torchinductor_root"})
    assert drift(held, before, environ={"TORCHINDUCTOR_CACHE_DIR": "/tmp/torchinductor_root"}) == []
    (one,) = drift(held, before, environ={"TORCHINDUCTOR_CACHE_DIR": "/tmp/else"})
    (breach,) = one.breaches
    assert set(one.against) == {"lock", "policy"}
    assert (breach.key, breach.wanted, breach.found) == (
        "env.TORCHINDUCTOR_CACHE_DIR",
        "/tmp/torchinductor_root",
        "/tmp/else",
    )
    (breach,) = environ.breaches(held.env, held, facts(held, environ={}))
    assert breach.found is None


def test_a_forbidden_variable_is_one_finding_against_the_policy_alone() -> None:
    held = pinned(PYTHONPATH=EnvRule(forbid=True))
    before = facts(held, environ={})
    assert dict(before) == {}
    (one,) = drift(held, before, environ={"PYTHONPATH": "/shadow"})
    assert (one.name, one.change, one.against) == ("env:PYTHONPATH", "forbidden", ("policy",))
    assert "/shadow" in environ.word(one)


def test_a_glob_holds_every_variable_that_was_set() -> None:
    held = pinned(**{"NCCL_*": LOCKED})
    before = facts(held, environ={"NCCL_DEBUG": "INFO", "NCCL_IB_HCA": "mlx5", "NVCC": "1"})
    assert set(before) == {"env:NCCL_DEBUG", "env:NCCL_IB_HCA"}
    changes = drift(held, before, environ={"NCCL_DEBUG": "WARN", "NCCL_ALGO": "Ring"})
    assert {one.name: one.change for one in changes} == {
        "env:NCCL_DEBUG": "changed",
        "env:NCCL_IB_HCA": "missing",
        "env:NCCL_ALGO": "added",
    }
    assert environ.claims(held.env, "env", "NCCL_IB_HCA") and not environ.claims(held.env, "env", "NVCC")


def test_of_two_rules_the_more_specific_counts() -> None:
    held = pinned(
        **{
            "NCCL_*": EnvRule(locked=True, on_drift="warn"),
            "NCCL_IB_*": EnvRule(forbid=True, on_drift="block"),
            "NCCL_IB_HCA": EnvRule(locked=True, on_drift="record"),
        }
    )
    assert environ.severity(held.env, held, "env", "NCCL_DEBUG", "changed") == "warn"
    assert environ.severity(held.env, held, "env", "NCCL_IB_HCA", "changed") == "record"
    found = facts(held, environ={"NCCL_IB_HCA": "mlx5", "NCCL_IB_DISABLE": "1"})
    assert [one.fact for one in environ.breaches(held.env, held, found)] == ["env:NCCL_IB_DISABLE"]
    plain = pinned(X=LOCKED)
    assert environ.severity(plain.env, plain, "env", "X", "changed") == "block"


def test_without_a_launch_nothing_is_looked_at_and_that_is_said() -> None:
    look = looking(pinned(X=LOCKED))
    assert dict(seen(look)[0]) == {}
    assert look.not_looked == ["env (the daemon has no launch)"]


@pytest.mark.parametrize(
    ("name", "rule"),
    [("HF_TOKEN", LOCKED), ("ANYTHING", EnvRule(secret=True)), ("AWS_REGION", LOCKED), ("WANDB_API_KEY", EnvRule())],
)
def test_of_a_secret_only_a_keyed_digest_is_kept(name: str, rule: EnvRule) -> None:
    held = policy(env={name: EnvRule(locked=True) if rule == EnvRule() else rule})
    found = fact(held, f"env:{name}", environ={name: "hunter2-value"}, secret_key=KEY)
    assert "hunter2" not in repr(found)
    assert found.attributes == {"digest": secrets.digest(KEY, "hunter2-value")} and found.told["secret"]
    before = seen(looking(held, environ={name: "hunter2-value"}, secret_key=KEY))
    assert drift(held, before[0], environ={name: "hunter2-value"}, secret_key=KEY) == []
    (line,) = words(held, before, environ={name: "other-value"}, secret_key=KEY)
    assert "other-value" not in line and line.startswith(f"{name} secret ")
    (line,) = words(held, before, environ={name: "hunter2-value"}, secret_key=KEY[::-1])
    assert "cannot be compared" in line


def test_a_set_secret_without_a_key_is_unknown_an_unset_one_is_absent() -> None:
    held = pinned(HF_TOKEN=EnvRule(secret=True))
    reason = unknown(held, "env:HF_TOKEN", environ={"HF_TOKEN": "hunter2"}).reason
    assert reason.startswith("set, but ") and "hunter2" not in reason
    assert fact(held, "env:HF_TOKEN", environ={}).absent


def test_a_secret_with_a_value_in_the_policy_is_compared_but_never_shown() -> None:
    held = pinned(HF_TOKEN=EnvRule(value="hunter2"))
    good = facts(held, environ={"HF_TOKEN": "hunter2"}, secret_key=KEY)
    assert list(environ.breaches(held.env, held, good)) == []
    bad = facts(held, environ={"HF_TOKEN": "hunter3"}, secret_key=KEY)
    (breach,) = environ.breaches(held.env, held, bad)
    assert "hunter" not in repr(breach) + repr(dict(bad))


def test_credentials_in_a_value_make_it_a_secret() -> None:
    held = pinned(HTTP_PROXY=LOCKED)
    found = fact(held, "env:HTTP_PROXY", environ={"HTTP_PROXY": "http://ana:hunter2@proxy:3128"}, secret_key=KEY)
    assert "hunter2" not in repr(found) and "digest" in found.attributes
    assert fact(held, "env:HTTP_PROXY", environ={"HTTP_PROXY": "http://proxy:3128"}).attributes["value"]


def test_a_forbidden_secret_is_not_shown_either() -> None:
    held = pinned(HF_TOKEN=EnvRule(forbid=True))
    (one,) = drift(held, facts(held, environ={}), environ={"HF_TOKEN": "hunter2"})
    assert one.change == "forbidden" and "hunter2" not in repr(one) + environ.word(one)


def test_values_that_are_no_text_are_escaped_and_long_ones_are_digested() -> None:
    held = pinned(X=LOCKED)
    found = fact(held, "env:X", environ={"X": os.fsdecode(b"caf\xe9\n\x1b[2J")})
    assert found.attributes["value"] == "caf\\xe9\\n\\x1b[2J"
    long = fact(held, "env:X", environ={"X": "y" * 100_000}).attributes["value"]
    assert str(long).startswith("sha256:") and len(str(long)) < 120
    assert fact(held, "env:X", environ={"X": "y" * 100_001}).attributes["value"] != long


def test_a_long_path_is_worded_by_what_came_and_went() -> None:
    held = pinned(LD_LIBRARY_PATH=LOCKED)
    many = [f"/opt/some/long/folder/number{number}/lib" for number in range(10)]
    before = seen(looking(held, environ={"LD_LIBRARY_PATH": ":".join(many)}))
    (line,) = words(held, before, environ={"LD_LIBRARY_PATH": ":".join(["/usr/cudnn/lib", *many[1:]])})
    assert line == f"LD_LIBRARY_PATH now has /usr/cudnn/lib; no longer has {many[0]}"


def test_every_attribute_is_documented() -> None:
    held = pinned(A=LOCKED, HF_TOKEN=EnvRule(value="x"), B=LOCKED)
    for one in facts(held, environ={"A": "1", "HF_TOKEN": "x"}, secret_key=KEY).values():
        assert isinstance(one, Fact)
        assert set(one.attributes) | set(one.told) <= set(probe("env").ATTRIBUTES["env"])


# -- secrets


def test_the_key_is_made_once_private_and_random(tmp_path: Path) -> None:
    path = tmp_path / "secrets.key"
    assert secrets.key(str(path), create=False) is None
    made = secrets.key(str(path))
    assert made is not None and len(made) == 32 and path.stat().st_mode & 0o777 == 0o600
    assert secrets.key(str(path)) == made == secrets.key(str(path), create=False)
    assert secrets.key(str(tmp_path / "other.key")) != made
    assert sorted(one.name for one in tmp_path.iterdir()) == ["other.key", "secrets.key"]


def test_many_that_make_the_key_at_once_get_the_same_one(tmp_path: Path) -> None:
    program = "import sys; from lockd import secrets; print(secrets.key(sys.argv[1]).hex())"
    argv = [sys.executable, "-c", program, str(tmp_path / "key")]
    started = [subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) for _ in range(6)]
    assert len({process.communicate()[0] for process in started}) == 1


@pytest.mark.parametrize("fault", ["mode", "short", "folder", "link", "fifo"])
def test_a_key_that_cannot_be_trusted_is_refused(tmp_path: Path, fault: str) -> None:
    path = tmp_path / "key"
    secrets.key(str(path))
    if fault == "mode":
        path.chmod(0o640)
    elif fault == "short":
        os.truncate(path, 7)
    else:
        path.unlink()
        if fault == "folder":
            path.mkdir()
        elif fault == "fifo":
            os.mkfifo(path, 0o600)
        else:
            (tmp_path / "real").write_bytes(bytes(32))
            path.symlink_to("real")
    with pytest.raises(LookError) as refusal:
        secrets.key(str(path))
    assert refusal.value.where == str(path)


@pytest.mark.parametrize(
    "name",
    [
        "HF_TOKEN",
        "WANDB_API_KEY",
        "AWS_PROFILE",
        "DB_PASSWORD",
        "MY_SECRET",
        "GITHUB_TOKEN_2",
        "APIKEY",
        "api-key",
        "token",
    ],
)
def test_names_of_secrets_are_known(name: str) -> None:
    assert secrets.token_like(name)


@pytest.mark.parametrize(
    "name",
    [
        "TOKENIZERS_PARALLELISM",
        "MAX_NEW_TOKENS",
        "MONKEY",
        "KEYBOARD",
        "PWD",
        "LD_LIBRARY_PATH",
        "NCCL_DEBUG",
        "CUDA_HOME",
        "LAWS_X",
    ],
)
def test_names_of_no_secrets_are_left_alone(name: str) -> None:
    assert not secrets.token_like(name)


@pytest.mark.parametrize(
    ("argv", "masked"),
    [
        (["train", "--token", "abc", "--lr", "1e-4"], ["train", "--token", "***", "--lr", "1e-4"]),
        (["train", "--api-key=abc"], ["train", "--api-key=***"]),
        (["env", "HF_TOKEN=abc", "python"], ["env", "HF_TOKEN=***", "python"]),
        (["pip", "install", "-i", "https://ana:pw@host/simple"], ["pip", "install", "-i", "https://***@host/simple"]),
        (["x", "hf_" + "a" * 30], ["x", "***"]),
        (["curl", "-H", "Authorization: Bearer abcdefgh"], ["curl", "-H", "Authorization: Bearer ***"]),
        (["sh", "-c", "TOKEN='a b' run --password pw1"], ["sh", "-c", "TOKEN=*** run --password ***"]),
        (["train", "--tokenizer", "gpt2", "--key-frames=3"], ["train", "--tokenizer", "gpt2", "--key-frames=3"]),
    ],
)
def test_command_lines_are_masked(argv: list[str], masked: list[str]) -> None:
    assert list(secrets.mask_argv(argv)) == masked


def test_a_huge_argument_is_masked_and_cut() -> None:
    (masked,) = secrets.mask_argv([f"export HF_TOKEN=hunter2 {'x' * 1_000_000}"])
    assert masked.startswith("export HF_TOKEN=*** xxx") and len(masked) < 100_000


def test_masking_keeps_other_text_as_it_is() -> None:
    text = "uv pip install torch==2.11.0 --index-url https://download.example/whl/cu128"
    assert secrets.mask(text) == text


def test_unknown_is_no_fact() -> None:
    assert isinstance(facts(pinned(T=EnvRule(secret=True)), environ={"T": "1"})["env:T"], Unknown)
    assert json.dumps(dict(fact(pinned(T=LOCKED), "env:T", environ={"T": "1"}).attributes))
