"""Faults that were found by attacking the command line, each kept from coming back: odd names, closed streams, a
foreign PYTHONPATH, metadata that is no file, numbers that TOML writes and Python does not hold."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from lockd.facts import Unknown
from lockd.findings import Difference
from lockd.hints import hint
from lockd.rules import Policy
from tests.scene import LOCKD, ROOT, Answer, Scene, pinned_file
from tests.wheels import Env, Wheel, build_venv, record_hash

TORCH = {"torch/__init__.py": "x = 1\n", "torch/version.py": "__version__ = '2.11.0+cu128'\ncuda = '12.8'\n"}


@pytest.fixture
def venv(tmp_path: Path) -> tuple[Scene, Env]:
    """A scene that pins a venv with a torch in it, strictly, and has accepted it."""
    env = build_venv(tmp_path / "venv")
    put(env, Wheel("torch", "2.11.0", TORCH))
    scene = Scene(tmp_path)
    scene.write_policy(f'[[python]]\nname = "train"\npath = "{env.prefix}"\nextra = "block"\nunowned = "block"\n')
    assert scene.accept().code == 0
    return scene, env


def put(env: Env, wheel: Wheel) -> None:
    """Unpack a wheel as an installer would."""
    rows = []
    for path, content in wheel.members().items():
        target = env.site / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content)
        rows.append(f"{path},{record_hash(content)},{len(content)}\n")
    (env.site / wheel.info / "RECORD").write_text("".join(rows) + f"{wheel.info}/RECORD,,\n")


def record(env: Env) -> Path:
    return env.site / "torch-2.11.0.dist-info" / "RECORD"


def shell(scene: Scene, script: str, *args: str) -> Answer:
    """lockd through a shell, which may close its streams first: `script` says "$@"."""
    words = {"PATH": os.environ["PATH"], "HOME": str(scene.root), "LOCKD_STATE": str(scene.state)}
    words |= {"LOCKD_POLICY": str(scene.policy), "LOCKD_RUNTIME": str(scene.root / "run")}
    done = subprocess.run(["sh", "-c", script, "sh", *LOCKD, *args], env=words, capture_output=True, timeout=60)
    return Answer(done.returncode, done.stdout.decode(), done.stderr.decode())


# -- names -------------------------------------------------------------------------------------------------------------


def test_a_metadata_folder_with_a_hostile_name_is_told_and_stored(venv: tuple[Scene, Env]) -> None:
    scene, env = venv
    for name in (b"a\nb-1.0.dist-info", b"\xff-1.dist-info", b"-1.dist-info", b"e/f-1.egg-info".replace(b"/", b"_")):
        folder = os.fsencode(env.site) + b"/" + name
        os.mkdir(folder)
        metadata = b"PKG-INFO" if name.endswith(b".egg-info") else b"METADATA"
        Path(os.fsdecode(folder + b"/" + metadata)).write_bytes(b"Name: ../q\x1b[31m/z\nVersion: 1\n")
    answer = scene.verify()
    assert answer.code == 1
    assert {r"package:train/\xff", r"package:train/a\nb", "package:train/-1-dist-info"} <= set(answer.facts)
    assert all(fact.count("/") == 1 for fact in answer.facts)
    assert "\x1b" not in scene.lockd("verify").out
    assert scene.accept("--allow-modified", "all").code == 0
    assert scene.verify().code == 0


# -- streams and modules of the caller ---------------------------------------------------------------------------------


@pytest.mark.parametrize("closed", [">&-", "2>&-", "<&-", ">&- 2>&- <&-"])
def test_closed_streams_do_not_change_the_verdict(tmp_path: Path, closed: str) -> None:
    scene, path = pinned_file(tmp_path)
    assert shell(scene, f'exec "$@" {closed}', "accept", "-m", "good", "--yes").code == 0
    assert shell(scene, f'exec "$@" {closed}', "verify").code == 0
    path.write_text("x = 2\n")
    assert shell(scene, f'exec "$@" {closed}', "verify").code == 1
    assert shell(scene, f'exec "$@" {closed}', "log").code == 0
    assert shell(scene, f'exec "$@" {closed}', "accept", "-m", "good", "--yes").code == 0
    assert "lock" in scene.lock.read_text()  # and nothing that was meant for a person
    assert scene.verify().code == 0


def test_modules_of_the_callers_pythonpath_do_not_answer_for_lockds_own(tmp_path: Path) -> None:
    scene, path = pinned_file(tmp_path)
    scene.accept()
    path.write_text("x = 2\n")
    for name in ("json", "argparse", "hashlib", "pydantic", "inspect"):
        scene.file(f"evil/{name}.py", "import os\nos._exit(0)\n")
    start = f"import sys; sys.path.insert(0, {str(ROOT)!r}); from lockd.__main__ import main; main()"
    words = {"PATH": os.environ["PATH"], "LOCKD_STATE": str(scene.state), "LOCKD_POLICY": str(scene.policy)}
    for foreign in (f"{tmp_path}/evil", f"/nowhere:{tmp_path}/home/../evil/"):
        command = [sys.executable, "-c", start, "verify", "--json"]
        done = subprocess.run(command, env={**words, "PYTHONPATH": foreign}, capture_output=True, timeout=60)
        assert (done.returncode, b'"verdict": "block"' in done.stdout) == (1, True), done.stderr


# -- metadata ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["RECORD", "METADATA"])
@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir])
def test_metadata_that_became_a_fifo_or_a_folder_is_changed(venv: tuple[Scene, Env], name: str, make: object) -> None:
    scene, env = venv
    path = env.site / "torch-2.11.0.dist-info" / name
    path.unlink()
    assert callable(make)
    make(path)
    answer = scene.verify()
    assert (answer.code, answer.facts) == (1, ["package:train/torch"])
    assert f"{name} is no file" in answer.out


def test_a_record_with_torn_rows_is_one_finding(venv: tuple[Scene, Env]) -> None:
    scene, env = venv
    record(env).write_text(record(env).read_text().replace("sha256=", "sha256=AAAA,"))
    answer = scene.verify()
    assert (answer.code, answer.facts) == (1, ["package:train/torch"])


def test_a_record_of_noise_is_one_finding(venv: tuple[Scene, Env]) -> None:
    scene, env = venv
    record(env).write_bytes(b'a\0b,sha256=x,1\n\xff\xfe,,\n"unclosed')
    answer = scene.verify()
    assert (answer.code, answer.facts) == (1, ["package:train/torch"])


def test_a_second_metadata_folder_of_one_name_is_one_finding(venv: tuple[Scene, Env]) -> None:
    scene, env = venv
    second = shutil.copytree(env.site / "torch-2.11.0.dist-info", env.site / "torch-2.9.0.dist-info")
    (second / "METADATA").write_text("Metadata-Version: 2.1\nName: torch\nVersion: 2.9.0\n")
    answer = scene.verify()
    assert (answer.code, answer.facts) == (1, ["package:train/torch"])
    assert "duplicate" in answer.out


# -- policy and lock ---------------------------------------------------------------------------------------------------


def test_numbers_that_python_does_not_hold_are_a_mistake_in_the_file(tmp_path: Path) -> None:
    scene, _ = pinned_file(tmp_path)
    scene.accept()
    good = scene.lock.read_text()
    scene.lock.write_text(f"{good}\nx = {'9' * 5000}\n")
    assert scene.verify().code == 2
    scene.lock.write_text(good)
    scene.policy.write_text(f"schema = {'9' * 5000}\n")
    answer = scene.verify()
    assert (answer.code, "internal" in answer.err) == (2, False)


# -- whose state -------------------------------------------------------------------------------------------------------


@pytest.mark.skipif(os.geteuid() != 0 or shutil.which("setpriv") is None, reason="needs root to be somebody else")
def test_another_user_looks_without_the_owners_state() -> None:
    with tempfile.TemporaryDirectory() as folder:  # tmp_path's own parents are closed to others
        os.chmod(folder, 0o755)
        scene, path = pinned_file(Path(folder))
        scene.accept()
        scene.state.chmod(0o755)  # made by hand, as a folder that anybody may look into
        nobody = 'exec setpriv --reuid=65534 --regid=65534 --clear-groups "$@"'
        if shell(scene, nobody, "--version").code:
            pytest.skip("another user cannot read this source tree")
        assert shell(scene, nobody, "verify").code == 0
        path.write_text("x = 2\n")
        answer = shell(scene, nobody, "verify")
        assert (answer.code, "looked without state" in answer.err) == (1, True)


# -- environments that fall apart --------------------------------------------------------------------------------------


@pytest.mark.parametrize("what", ["file", "empty", "no site-packages"])
def test_an_environment_that_falls_apart_is_one_finding(venv: tuple[Scene, Env], what: str) -> None:
    scene, env = venv
    shutil.rmtree(env.site if what == "no site-packages" else env.prefix)
    if what == "file":
        env.prefix.write_text("")
    elif what == "empty":
        env.prefix.mkdir()
    answer = scene.verify()
    assert (answer.code, answer.facts) == (1, ["python:train"])


def test_a_home_that_is_not_the_interpreters_is_told(venv: tuple[Scene, Env]) -> None:
    scene, env = venv
    config = env.prefix / "pyvenv.cfg"
    good = config.read_text()
    other = env.prefix.parent / "other" / "bin"
    for home in ("/nowhere/bin", str(other)):
        config.write_text(
            "".join(f"home = {home}\n" if line.startswith("home") else line for line in good.splitlines(True))
        )
        answer = scene.verify()
        assert (answer.code, answer.facts) == (1, ["python:train"])
        assert f"home = {home} of pyvenv.cfg" in answer.out
        other.mkdir(parents=True, exist_ok=True)
        (other / "python3").write_text("#!/bin/sh\n")
    config.write_text(good)
    assert scene.verify().code == 0


# -- a policy that looks otherwise than its lock -----------------------------------------------------------------------

_FOLDERS = [
    ("tree", 'check = "stat"', 'check = "full"', False),
    ("tree", 'check = "full"', 'check = "stat"', False),
    ("tree", 'check = "sample"', 'check = "full"', False),
    ("tree", 'change = "exact"', 'change = "grow"', False),
    ("tree", 'change = "exact"', 'change = "present"', True),
    ("tree", 'change = "present"', 'change = "exact"', False),
    ("cache", 'change = "exact"', 'change = "present"', True),
    ("cache", 'change = "present"', 'change = "grow"', False),
    ("cache", 'change = "exact"', 'change = "grow"', True),
    ("cache", 'change = "grow"', 'change = "exact"', True),
]


@pytest.mark.parametrize(("section", "before", "after", "passes"), _FOLDERS)
def test_a_rule_that_looks_otherwise_says_so_and_names_no_file(
    tmp_path: Path, section: str, before: str, after: str, passes: bool
) -> None:
    scene = Scene(tmp_path)
    for number in range(20):
        scene.file(f"data/shard-{number}", str(number))
    scene.write_policy(f'[[{section}]]\npath = "{tmp_path}/data"\n{before}\n')
    assert scene.accept().code == 0
    scene.write_policy(f'[[{section}]]\npath = "{tmp_path}/data"\n{after}\n')
    answer = scene.verify()
    assert answer.code == (0 if passes else 1)
    for finding in answer.document["findings"]:
        assert "as an earlier policy had it looked at" in finding["message"]
        assert "files" not in finding
    assert scene.accept().code == 0
    assert scene.verify().code == 0


def test_contents_that_the_lock_does_not_hold_are_not_called_changed(venv: tuple[Scene, Env]) -> None:
    scene, _ = venv
    strict = scene.policy.read_text()
    scene.policy.write_text(strict + 'integrity = "metadata"\n')
    assert scene.verify().code == 0  # less is asked than the lock holds
    assert scene.accept().code == 0
    scene.policy.write_text(strict)
    answer = scene.verify()
    assert (answer.code, answer.facts) == (1, ["package:train/torch"])
    assert "as an earlier policy had it looked at" in answer.out
    assert "files" not in answer.document["findings"][0]


def test_a_pinned_package_that_is_not_there_is_said_once(tmp_path: Path) -> None:
    env = build_venv(tmp_path / "venv")
    scene = Scene(tmp_path)
    scene.write_policy(f'[[python]]\nname = "train"\npath = "{env.prefix}"\n[python.packages]\ntriton = "3.6.0"\n')
    answer = scene.verify()
    assert answer.code == 1
    assert answer.document["findings"][0]["message"].count("not installed") == 1


def test_a_package_folder_that_became_a_link_is_one_finding(venv: tuple[Scene, Env]) -> None:
    scene, env = venv
    (env.site / "torch").rename(scene.root / "elsewhere")
    (env.site / "torch").symlink_to(scene.root / "elsewhere")
    answer = scene.verify()
    assert (answer.code, answer.facts) == (1, ["package:train/torch"])


# -- secrets -----------------------------------------------------------------------------------------------------------


def test_a_token_in_the_reason_or_in_a_command_is_masked(tmp_path: Path) -> None:
    token = "hf_" + "AbCdEf0123456789AbCdEf0123456789xy"
    scene = Scene(tmp_path)
    scene.write_policy(f'[[command]]\nname = "c"\nrun = ["/bin/echo", "--token={token}"]\n')
    answer = scene.lockd("accept", "-m", f"with {token}", "--yes")
    assert (answer.code, token in answer.out + answer.err) == (0, False)
    assert token not in scene.lock.read_text() + scene.lockd("log").out + scene.lockd("log", "--json").out
    assert not [path for path in scene.state.rglob("store*") if token.encode() in path.read_bytes()]


def test_a_bit_that_flips_in_the_kept_policy_softens_no_rule(tmp_path: Path) -> None:
    scene, path = pinned_file(tmp_path)
    assert scene.accept().code == 0
    path.write_text("x = 2\n")
    assert scene.verify().code == 1
    (kept,) = scene.state.rglob("policy.json")
    content = kept.read_bytes()
    for place in (content.index(b"model.py"), content.index(b'"block"') + 1, content.index(b'"path"') + 9):
        kept.write_bytes(content[:place] + bytes((content[place] ^ 1,)) + content[place + 1 :])
        answer = scene.verify()
        assert (answer.code, answer.facts) == (1, [f"file:{path}"])


# -- what could not be read, and what has no room ----------------------------------------------------------------------


def test_a_record_of_noise_is_told_in_a_line_that_can_be_read(venv: tuple[Scene, Env]) -> None:
    scene, env = venv
    record(env).write_bytes(bytes(range(1, 256)) * 40)
    answer = scene.lockd("verify")
    assert answer.code == 1 and "torch 2.11.0+cu128: malformed RECORD row: " in answer.out
    assert max(map(len, answer.out.splitlines())) < 2000


@pytest.mark.parametrize(
    ("size", "said"), [(17 << 20, "exclude it in the policy, or make it smaller"), (None, "make it readable")]
)
def test_the_way_out_fits_the_reason(venv: tuple[Scene, Env], size: int | None, said: str) -> None:
    scene, env = venv
    large = env.site / "large.pth"
    if size is None:
        difference = Difference(
            "file:/a", "unreadable", None, Unknown("file", "/a", "/a: Permission denied"), ("policy",)
        )
        assert hint(difference, Policy("ct")).startswith(said)
        return
    with large.open("wb") as file:
        file.truncate(size)
    answer = scene.lockd("verify")
    assert (answer.code, said in answer.out, "make it readable" in answer.out) == (3, True, False)


def test_a_path_longer_than_the_kernel_takes_is_unknown_in_a_line(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    folder = tmp_path / "tree"
    folder.mkdir()
    scene.write_policy(f'[[tree]]\npath = "{folder}"\n')
    here = os.open(folder, os.O_RDONLY)
    for _ in range(45):  # by handle: no path reaches it
        os.mkdir("d" * 100, dir_fd=here)
        below = os.open("d" * 100, os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = below
    os.close(here)
    answer = scene.lockd("verify")
    assert (answer.code, max(map(len, answer.out.splitlines())) < 800) == (3, True)
    assert "ile name too long" in answer.out and "exclude it in the policy, or move it up" in answer.out
