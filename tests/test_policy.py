"""The policy file: every mistake at once, with line and key path; what is loaded; what is kept for the hot path."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from lockd import policy, policy_cache, rules
from lockd.errors import PolicyError
from lockd.probes import PROBES

HEAD = 'schema = 1\nname = "ct"\n'
FILE = '[[file]]\npath = "/a"\n'


def problems(text: str) -> list[str]:
    """The mistakes of a text, without the file's name."""
    with pytest.raises(PolicyError) as caught:
        policy.parse(text, "ct.toml")
    assert caught.value.code == 2
    return [line.removeprefix("ct.toml:") for line in caught.value.problems]


def only(text: str) -> str:
    found = problems(text)
    assert len(found) == 1, found
    return found[0]


def write(tmp_path: Path, text: str | bytes, mode: int = 0o644) -> str:
    path = tmp_path / "ct.toml"
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    path.chmod(mode)
    return str(path)


# -- mistakes ----------------------------------------------------------------------------------------------------------


def test_four_mistakes_are_told_at_once_with_line_and_key() -> None:
    text = (
        'schema = 1\nname = "ct"\non_drft = "block"\n[[file]]\npath = "/a"\ndigest = "md5:xyz"\n'
        '[[cache]]\npath = "/c"\nkind = "cuda"\nchange = "sometimes"\n[host]\nkernel = 1.5\n[gpu]\ncount = "eight"\n'
    )
    found = problems(text)
    assert found[0] == "3: on_drft: unknown key; did you mean on_drift?"
    assert any(line.startswith("6: file[0].digest: malformed: md5 wants 32 hex digits") for line in found)
    assert '10: cache[0].change: wants one of exact, grow, present, empty; found "sometimes"' in found
    assert any(line.startswith("14: gpu.count: wants an integer") and '"eight"' in line for line in found)
    assert any(line.startswith("12: host.kernel: wants") for line in found)


def test_an_unknown_key_names_the_nearest_valid_one() -> None:
    text = f'{HEAD}[[python]]\nname = "train"\npath = "/v"\nintegrty = "full"\n'
    assert only(text) == "6: python[0].integrty: unknown key; did you mean integrity?"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (f"{FILE}[[pyhton]]\nname = 'a'\n", "5: pyhton: unknown key; did you mean python?"),
        ("[[file]]\npath = 'a/b'\n", '4: file[0].path: "a/b" is not absolute'),
        ("[[file]]\npath = '$HOME/b'\n", "variables are not expanded"),
        ("[[file]]\npath = '~/b'\n", "~ depends on who runs lockd"),
        ("[[file]]\npath = '/a/../b'\n", 'holds ".."'),
        ("[[file]]\npath = ''\n", "4: file[0].path: is empty"),
        (f"[[file]]\npath = '/{'x' * 4096}'\n", "longer than any path can be"),
        ('[[file]]\npath = "/a\\u0000b"\n', "control character"),
        ("[[file]]\n", "3: file[0].path: required, and missing"),
        ("[[file]]\npath = 8\n", "4: file[0].path: wants a string, found the integer 8"),
        ("[[file]]\npath = 1979-05-27\n", "4: file[0].path: wants a string, found a date or time"),
        ("[[file]]\npath = '/a'\nkeep = 'yes'\n", '5: file[0].keep: wants true or false, found "yes"'),
        ("[[file]]\npath = '/a'\nexclude = '*.py'\n", "5: file[0].exclude: wants an array"),
        (
            "[[file]]\npath = '/a'\nexclude = ['*.py', 3]\n",
            "5: file[0].exclude[1]: wants a string, found the integer 3",
        ),
        ("[file]\npath = '/a'\n", "3: file: wants [[file]], an array of tables"),
        ("[[file]]\npath = '/a'\n[[launch]]\n", "5: launch: wants one table [launch]"),
        ("[[file]]\npath = '/a'\ndigest = 'crc:00'\n", "wants ALGORITHM:HEX"),
        ("[[file]]\npath = '/a'\ndigest = 'sha256:00'\n", "sha256 wants 64 hex digits"),
        ("[[file]]\npath = '/a'\non_drift = 'blok'\n", 'found "blok"; did you mean "block"?'),
        ("[[python]]\nname = 'a/b'\npath = '/v'\n", "4: python[0].name: wants letters"),
        (
            "[[python]]\nname = 'a'\npath = '/v'\n[python.packages]\ntorch = '2.x!'\n",
            '7: python[0].packages.torch: "2.x!"',
        ),
        ("[[python]]\nname = 'a'\npath = '/v'\n[python.packages]\ntorch = ''\n", "an empty pin matches anything"),
        (
            "[[python]]\nname = 'a'\npath = '/v'\npackages.torch = { cudda = '1' }\n",
            "6: python[0].packages.torch.cudda",
        ),
        ("[[python]]\nname = 'a'\npath = '/v'\npackages.torch = 2.11\n", 'found the number 2.11; write "2.11"'),
        ("[[python]]\nname = 'a'\npath = '/v'\npackages.torch = {}\n", "says nothing"),
        ("[[python]]\nname = 'a'\npath = '/v'\npackages.torch = { git = 'abc123' }\n", "the whole commit"),
        ("[[python]]\nname = 'a'\npath = '/v'\npackages = { A_b = '1', a-B = '2' }\n", "the same package as"),
        ("[[python]]\nname = 'a'\npath = '/v'\nforbid = ['fl*']\npackages.Flash = '1'\n", 'forbidden by "fl*"'),
        ("[[tree]]\npath = '/a'\nmax_age = '1 hour'\n", "5: tree[0].max_age: wants a duration"),
        ("[[command]]\nname = 'a'\nrun = ['x']\ntimeout = '0s'\n", "wants a duration above zero"),
        ("[[command]]\nname = 'a'\nrun = []\n", "5: command[0].run: is empty"),
        ("[[cache]]\npath = '/a'\nchange = 'empty'\nkeep = true\n", "6: cache[0].keep: contradicts"),
        ("[env]\nA = 8\n", '4: env.A: wants a string or a table, found the integer 8; write "8"'),
        ("[env]\nA = { forbid = true, locked = true }\n", "4: env.A: contradiction: forbid and locked"),
        ("[env]\nA = { value = 'x', secret = true }\n", "a secret's value has no place"),
        ("[env]\nA = { on_drift = 'warn' }\n", "4: env.A: says nothing"),
        ("[env]\nA = { valeu = 'x', locked = true }\n", "did you mean value?"),
        ("[[file]]\npath = '/a'\n[launch]\non_fault = 'record'\n", "6: launch.on_fault: wants one of block, warn"),
    ],
)
def test_a_mistake_is_told_in_words(text: str, told: str) -> None:
    assert told in only(HEAD + text)


def test_two_of_one_name_and_names_of_nothing() -> None:
    text = (
        f'{HEAD}[[python]]\nname = "a"\npath = "/v"\n[[python]]\nname = "a"\npath = "/v/"\n'
        '[[cache]]\npath = "/c"\npython = "b"\n[launch]\npython = "c"\n'
    )
    assert problems(text) == [
        '7: python[1].name: "a" is already the name of python[0]',
        '8: python[1].path: "/v" is already the path of python[0]',
        '11: cache[0].python: no [[python]] has the name "b"; there are a, a',
        '13: launch.python: no [[python]] has the name "c"; there are a, a',
    ]


@pytest.mark.parametrize("program", ["./x", "../bin/x", "bin/x"])
def test_a_command_by_a_relative_path_is_a_mistake(program: str) -> None:
    found = problems(f"{HEAD}[[command]]\nname = 'x'\nrun = ['{program}', 'y']\n")
    assert found == [f'5: command[0].run[0]: "{program}" depends on the current folder; write the absolute path']


@pytest.mark.parametrize("body", ["", "file = []\n", "[launch]\nscripts = ['/x.py']\n", "[env]\n"])
def test_an_empty_policy_is_an_error(body: str) -> None:
    assert "no rule: an empty policy pins nothing" in only(HEAD + body)


def test_the_head_is_required() -> None:
    found = problems(FILE)
    assert any("schema: required" in line for line in found)
    assert any("name: required" in line for line in found)
    assert "schema 2 is newer than this lockd, which reads schema 1" in only(f'schema = 2\nname = "a"\n{FILE}')
    assert "wants the integer 1" in only(f'schema = "1"\nname = "a"\n{FILE}')


@pytest.mark.parametrize("key", ["path", "digest", "lines", "owner"])
def test_what_lockd_fills_in_is_no_key_of_the_file(key: str) -> None:
    assert f"3: {key}: unknown key" in only(f'{HEAD}{key} = "/x"\n{FILE}')


def test_a_section_without_a_probe_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    text = f"{HEAD}{FILE}[gpu]\ncount = 8\n[host]\nkernel = {{ on_drift = 'warn' }}\n[[git]]\npath = '/g'\n"
    with_all = dict.fromkeys((*PROBES, "gpu", "host", "git"), "")
    monkeypatch.setattr(policy, "PROBES", {name: with_all[name] for name in ("file", "gpu")})
    found = problems(text)
    assert [line.split(":")[1].strip() for line in found] == ["host", "git"]
    assert "the git probe is not built into this lockd yet" in found[1]
    monkeypatch.setattr(policy, "PROBES", with_all)
    loaded = policy.parse(text)
    assert loaded.gpu == rules.SystemRule({"count": 8})
    assert loaded.host == rules.SystemRule({"kernel": {"on_drift": "warn"}})
    assert loaded.git == (rules.GitRule("/g"),)


def test_gpu_and_host_values_are_validated_before_they_are_built() -> None:
    found = problems(f'{HEAD}[gpu]\ncount = -1\nidle = "maybe"\ndriver = {{ vlaue = "1" }}\non_drift = "no"\n')
    assert any(line.startswith("4: gpu.count: wants an integer from 0") for line in found)
    assert any(line.startswith("5: gpu.idle: wants one of block") for line in found)
    assert any(line.startswith("6: gpu.driver.vlaue: unknown key; did you mean value?") for line in found)
    assert any(line.startswith("7: gpu.on_drift: wants one of block") for line in found)


# -- files that are no policies ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ('schema = 1\nname = "ct\n', "2: not TOML: "),
        ('schema = 1\nname = "ct"\nname = "x"\n', "3: not TOML: "),
        ("[[file]\n", "1: not TOML: "),
        ("a = [1,\n", "2: not TOML: "),
        (b"schema = 1\nname = '\xff'\n", "2: not UTF-8"),
        ("\ufeffschema = 1\n", "1: begins with a byte order mark"),
        ("a = " + "[" * 100_000, "nested too deeply"),
    ],
)
def test_what_is_not_toml_is_told_with_its_line(tmp_path: Path, content: str | bytes, told: str) -> None:
    path = write(tmp_path, content)
    with pytest.raises(PolicyError) as caught:
        policy.load(path)
    assert len(caught.value.problems) == 1
    assert told in caught.value.problems[0].removeprefix(path + ":")


def test_ten_megabytes_are_no_policy(tmp_path: Path) -> None:
    path = write(tmp_path, HEAD + FILE + "# " + "x" * (10 << 20))
    with pytest.raises(PolicyError, match="bytes are no policy; at most 1,048,576"):
        policy.load(path)


def test_what_is_not_a_file_is_no_policy_and_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    with pytest.raises(PolicyError, match="not a file"):
        policy.load(str(tmp_path / "fifo"))
    with pytest.raises(PolicyError, match="a folder"):
        policy.load(str(tmp_path))
    with pytest.raises(PolicyError, match="no such policy") as caught:
        policy.load(str(tmp_path / "none.toml"))
    assert "lockd init" in caught.value.hint


def test_thousands_of_mistakes_are_cut(tmp_path: Path) -> None:
    found = problems(HEAD + FILE + "".join(f"k{at} = 1\n" for at in range(5000)))
    assert len(found) == 201
    assert "and 4,800 more" in found[-1]


# -- what is loaded ----------------------------------------------------------------------------------------------------

WHOLE = """schema = 1
name = "ct"
on_drift = "warn"

[launch]
scripts = ["/root//train.py", "/root/./*.py"]
modules = ["pkg.train"]
python = "train"
override_group = "ml"

[[python]]
name = "train"
path = "/root/venv/"
forbid = ["SGLang", "Flash_Infer*"]

[python.packages]
torch = { version = "2.11.0+cu128", cuda = "12.8", index = "file:///wheels" }
Flash_Attn = ">=2, <3"
"zope.interface" = "==5"

[[file]]
path = "/root/a.py"
digest = "MD5:B59FA7A2073CBAE07B20D8DAEA07F11D"
on_drift = "record"

[[cache]]
path = "/c"
kind = "inductor"
python = "train"

[[tree]]
path = "/data"
max_age = "1h"

[env]
A = "locked"
B = "value"
"NCCL_*" = { forbid = true }
T = { secret = true, on_drift = "ignore" }

[[command]]
name = "topo"
run = ["true"]
"""


def test_every_section_is_loaded_and_normalised(tmp_path: Path) -> None:
    path = write(tmp_path, WHOLE)
    loaded = policy.load(path)
    train = loaded.python[0]
    assert (loaded.path, loaded.name, loaded.on_drift, loaded.owner) == (path, "ct", "warn", os.geteuid())
    assert loaded.launch.scripts == ("/root/train.py", "/root/*.py")
    assert train.path == "/root/venv"
    assert train.forbid == ("sglang", "flash-infer*")
    assert train.packages == {
        "torch": rules.PackagePin("2.11.0+cu128", "12.8", index="file:///wheels"),
        "flash-attn": rules.PackagePin(">=2, <3"),
        "zope-interface": rules.PackagePin("==5"),
    }
    assert loaded.file[0].digest == "md5:b59fa7a2073cbae07b20d8daea07f11d"
    assert loaded.env["A"] == rules.EnvRule(locked=True)
    assert loaded.env["B"] == rules.EnvRule(value="value")
    assert loaded.env["NCCL_*"] == rules.EnvRule(forbid=True)
    assert loaded.env["T"] == rules.EnvRule(secret=True, on_drift="ignore")
    assert loaded.command[0].timeout == "5s"
    assert loaded.line("python[0].packages.flash-attn") == "ct.toml:18"
    assert loaded.line("env.NCCL_*") == f"ct.toml:{WHOLE[: WHOLE.index('NCCL')].count(chr(10)) + 1}"
    assert loaded.line("python[0].packages.none") == "ct.toml"


def test_a_policy_is_made_absolute_but_its_links_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "real").mkdir()
    write(tmp_path / "real", WHOLE)
    (tmp_path / "link").symlink_to("real")
    monkeypatch.chdir(tmp_path)
    assert policy.load("link/ct.toml").path == str(tmp_path / "link" / "ct.toml")


def test_the_lines_of_a_windows_file_are_right(tmp_path: Path) -> None:
    path = write(tmp_path, (HEAD + FILE).replace("\n", "\r\n"))
    assert policy.load(path).line("file[0].path") == "ct.toml:4"


def test_the_defaults_are_those_of_the_contract() -> None:
    loaded = policy.parse(f'{HEAD}[[python]]\nname = "a"\npath = "/v"\n[[cache]]\npath = "/c"\n[[tree]]\npath = "/t"\n')
    assert (loaded.on_drift, loaded.on_unknown, loaded.launch.on_fault) == ("block", "block", "warn")
    python, cache, tree = loaded.python[0], loaded.cache[0], loaded.tree[0]
    assert (python.integrity, python.extra, python.unowned, python.keep) == ("full", "warn", "warn", False)
    assert (cache.change, cache.kind) == ("grow", "directory")
    assert (tree.change, tree.check) == ("exact", "stat")


# -- what is kept for the hot path -------------------------------------------------------------------------------------


def test_a_kept_policy_is_the_loaded_one(tmp_path: Path) -> None:
    path = write(tmp_path, WHOLE)
    (tmp_path / "cache").mkdir()
    first = policy.load_cached(path, str(tmp_path / "cache"))
    assert first == policy.load_cached(path, str(tmp_path / "cache")) == policy.load(path)
    assert [entry.name for entry in (tmp_path / "cache").iterdir()] == ["policy.json"]


def test_a_recalled_policy_needs_no_pydantic_no_toml_and_no_packaging(tmp_path: Path) -> None:
    path = write(tmp_path, WHOLE)
    (tmp_path / "cache").mkdir()
    policy.load_cached(path, str(tmp_path / "cache"))
    code = (
        "import sys; from lockd import policy; policy.load_cached(*sys.argv[1:]);"
        "print([name for name in sys.modules if name.split('.')[0] in ('pydantic', 'tomllib', 'tomli', 'packaging')])"
    )
    command = [sys.executable, "-c", code, path, str(tmp_path / "cache")]
    answer = subprocess.run(command, capture_output=True, text=True, check=True, cwd=Path(__file__).parent.parent)
    assert answer.stdout == "[]\n"


@pytest.mark.parametrize("damage", ["", "{", '{"stamp": 1}', "[]", "null", "\xff", "cut", "other class", "stamp"])
def test_a_damaged_cache_is_ignored(tmp_path: Path, damage: str) -> None:
    path = write(tmp_path, WHOLE)
    (tmp_path / "cache").mkdir()
    kept = tmp_path / "cache" / "policy.json"
    want = policy.load_cached(path, str(tmp_path / "cache"))
    content = kept.read_text()
    if damage == "cut":
        content = content[: len(content) // 2]
    elif damage == "other class":
        content = content.replace('"FileRule"', '"Popen"')
    elif damage == "stamp":
        body = json.dumps({**json.loads(content.partition("\n")[2]), "stamp": "0"}).replace("/root/a.py", "/root/b.py")
        content = f"{hashlib.sha256(body.encode()).hexdigest()}\n{body}"
    else:
        content = damage
    kept.write_text(content)
    assert policy.load_cached(path, str(tmp_path / "cache")) == want


def test_an_edited_policy_is_validated_anew(tmp_path: Path) -> None:
    path = write(tmp_path, WHOLE)
    policy.load_cached(path, str(tmp_path))
    write(tmp_path, WHOLE.replace("/root/a.py", "root/a.py"))
    with pytest.raises(PolicyError, match="is not absolute"):
        policy.load_cached(path, str(tmp_path))


def test_a_kept_policy_is_still_judged_by_who_may_write(tmp_path: Path) -> None:
    path = write(tmp_path, WHOLE)
    policy.load_cached(path, str(tmp_path))
    os.chmod(path, 0o666)
    with pytest.raises(PolicyError, match="writable by everybody"):
        policy.load_cached(path, str(tmp_path))


def test_a_cache_that_cannot_be_written_is_done_without(tmp_path: Path) -> None:
    path = write(tmp_path, WHOLE)
    assert policy.load_cached(path, str(tmp_path / "none")) == policy.load(path)
    assert policy.load_cached(path, None) == policy.load(path)


def test_the_stamp_moves_with_path_owner_and_bytes() -> None:
    stamps = {policy_cache.stamp(*one) for one in (("/a", b"x", 0), ("/b", b"x", 0), ("/a", b"y", 0), ("/a", b"x", 1))}
    assert len(stamps) == 4


def test_every_field_of_a_rule_has_a_text_for_editors() -> None:
    from typing import get_type_hints

    for name, rule in vars(rules).items():
        if dataclasses.is_dataclass(rule) and isinstance(rule, type) and name not in ("Policy", "SystemRule"):
            hints = get_type_hints(rule, include_extras=True)
            for field in dataclasses.fields(rule):
                texts = [text for text in getattr(hints[field.name], "__metadata__", ()) if isinstance(text, str)]
                assert texts, f"{name}.{field.name}"
