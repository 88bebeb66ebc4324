"""The command line as a process: exit codes, streams, errors, options anywhere."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from lockd import __version__, arguments, commands
from lockd.commands import verify
from tests.scene import LOCKD, ROOT, Scene, pinned_file


def test_a_lock_that_is_gone_is_told_from_one_that_never_was(tmp_path: Path) -> None:
    scene, _ = pinned_file(tmp_path)
    assert "is gone" not in scene.lockd("verify").err
    scene.accept()
    scene.lock.unlink()
    answer = scene.lockd("verify")
    assert (answer.code, "no known-good yet" in answer.out) == (3, True)
    assert f"{scene.lock} is gone: it held generation 1 of " in answer.err and "git checkout" in answer.err
    assert "no lock to compare with: 1 fact\n" in scene.accept().out


def test_an_argument_too_many_is_told_with_its_command(tmp_path: Path) -> None:
    scene, _ = pinned_file(tmp_path)
    for words, said in (
        (("verify", "--jsn"), "lockd: verify: unknown option --jsn\n  hint: lockd verify --help\n"),
        (("verify", "x"), "lockd: verify: too many arguments, from x\n  hint: lockd verify --help\n"),
        (
            ("verify", "--policy"),
            "lockd: verify: argument --policy: expected one argument\n  hint: lockd verify --help\n",
        ),
    ):
        answer = scene.lockd(*words)
        assert (answer.code, answer.err) == (2, said)


def test_no_lock_yet_is_unknown(tmp_path: Path) -> None:
    scene, _ = pinned_file(tmp_path)
    answer = scene.verify()
    assert (answer.code, answer.document["verdict"], answer.document["lock"]) == (3, "unknown", None)
    assert "no known-good yet" in scene.lockd("verify").out


def test_a_broken_pin_blocks_without_a_lock(tmp_path: Path) -> None:
    scene, path = pinned_file(tmp_path, f'digest = "md5:{"0" * 32}"')
    answer = scene.verify()
    assert (answer.code, answer.document["verdict"], answer.facts) == (1, "block", [f"file:{path}"])
    assert answer.document["findings"][0]["against"] == ["policy"]


def test_verify_blocks_then_heals(tmp_path: Path) -> None:
    scene, path = pinned_file(tmp_path)
    assert scene.accept().code == 0
    good = scene.verify()
    assert (good.code, good.document["verdict"], good.facts) == (0, "ok", [])
    path.write_text("x = 2\n")
    bad = scene.verify()
    assert (bad.code, bad.document["verdict"], bad.facts) == (1, "block", [f"file:{path}"])
    assert bad.document["environment"] != good.document["environment"] == bad.document["lock"]["environment"]
    path.write_text("x = 1\n")
    assert scene.verify().code == 0


def test_drift_and_heal_are_recorded_once_each(tmp_path: Path) -> None:
    scene, path = pinned_file(tmp_path)
    scene.accept()
    path.write_text("x = 2\n")
    scene.verify()
    scene.verify()
    path.write_text("x = 1\n")
    scene.verify()
    scene.verify()
    assert [event["kind"] for event in scene.lockd("log", "--json").document] == ["heal", "drift", "accept"]


def test_warnings_pass_and_strict_counts_them(tmp_path: Path) -> None:
    scene, path = pinned_file(tmp_path, 'on_drift = "warn"')
    scene.accept()
    path.unlink()
    assert (scene.verify().code, scene.verify("--strict").code) == (0, 1)
    assert scene.verify("--strict").document["verdict"] == "block"


def test_recorded_changes_are_counted_and_listed_with_all(tmp_path: Path) -> None:
    scene, path = pinned_file(tmp_path, 'on_drift = "record"')
    scene.accept()
    path.write_text("x = 2\n")
    quiet, every = scene.verify(), scene.verify("--all")
    assert (quiet.code, quiet.facts, quiet.document["recorded"]) == (0, [], 1)
    assert (every.code, every.facts) == (0, [f"file:{path}"])
    assert "1 recorded change" in scene.lockd("verify").out


def test_a_rule_that_left_the_policy_is_counted_and_no_drift(tmp_path: Path) -> None:
    scene, path = pinned_file(tmp_path)
    other = scene.file("job/other.py")
    scene.write_policy(f'[[file]]\npath = "{path}"\n[[file]]\npath = "{other}"\n')
    scene.accept()
    scene.write_policy(f'[[file]]\npath = "{path}"\n')
    other.unlink()
    answer = scene.verify()
    assert (answer.code, answer.document["unclaimed"]) == (0, [f"file:{other}"])


def test_a_rule_that_joined_the_policy_is_said_to_be_new(tmp_path: Path) -> None:
    scene, path = pinned_file(tmp_path)
    scene.accept()
    other = scene.file("job/other.py")
    scene.write_policy(f'[[file]]\npath = "{path}"\n[[file]]\npath = "{other}"\n')
    (finding,) = scene.verify().document["findings"]
    assert (finding["fact"], finding["change"]) == (f"file:{other}", "added")
    assert "the policy was edited since the last accept" in finding["message"]


def test_commands_of_an_edited_policy_do_not_run(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    canary = tmp_path / "canary"
    scene.write_policy('[[command]]\nname = "one"\nrun = ["echo", "1"]\n')
    assert scene.accept().code == 0
    assert scene.verify().code == 0
    scene.write_policy(f'[[command]]\nname = "one"\nrun = ["touch", "{canary}"]\n')
    answer = scene.verify()
    assert (answer.code, answer.facts) == (3, ["command:one"])
    assert not canary.exists()


def test_a_variable_of_the_launch_is_that_of_this_process(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    scene.write_policy('[env]\nLD_LIBRARY_PATH = "locked"\nPYTHONPATH = { forbid = true }\n')
    launch = {"LD_LIBRARY_PATH": "/lib/x"}
    scene.accept(env=launch)
    assert scene.verify(env=launch).code == 0
    assert scene.verify().facts == ["env:LD_LIBRARY_PATH"]
    drifted = scene.verify(env={**launch, "PYTHONPATH": "/nowhere"})
    assert [(one["fact"], one["change"]) for one in drifted.document["findings"]] == [("env:PYTHONPATH", "forbidden")]
    assert drifted.document["environment"] == scene.verify(env=launch).document["environment"]
    assert drifted.document["launch"] != scene.verify(env=launch).document["launch"]


WORDS = st.sampled_from(
    ["verify", *verify.SWITCHES, "--json", "--debug", "--policy", "x.toml", "--policy=y", "-h", "--"]
)


@example(["verify", "--policy", "--full", "--policy", "x.toml"])
@given(st.lists(WORDS, max_size=6))
def test_the_quick_way_reads_arguments_as_argparse_does(words: list[str]) -> None:
    quick = arguments._switches(verify, "verify", words)
    if quick is None:  # left to argparse
        return
    long = vars(arguments._parsed(verify, "verify", words))
    assert vars(quick) == {name: value for name, value in long.items() if name != "version"}


def test_a_plain_verify_needs_no_argparse(tmp_path: Path) -> None:
    assert arguments._switches(verify, "verify", ["--policy", "x", "verify", "--json", "--full"]) is not None


# -- usage and errors --------------------------------------------------------------------------------------------------


def test_options_stand_before_or_after_the_command(tmp_path: Path) -> None:
    scene, _ = pinned_file(tmp_path)
    scene.accept()
    elsewhere = {"LOCKD_POLICY": ""}
    for words in (
        ("--policy", str(scene.policy), "--json", "verify"),
        ("verify", "--json", "--policy", str(scene.policy)),
        (f"--policy={scene.policy}", "verify", "--json"),
    ):
        answer = scene.lockd(*words, env=elsewhere)
        assert (answer.code, answer.document["policy"]["path"]) == (0, str(scene.policy)), answer.err


def test_the_policy_is_found_in_the_current_folder(tmp_path: Path) -> None:
    scene, path = pinned_file(tmp_path)
    here = scene.file("here/lockd.toml", f'schema = 1\nname = "here"\n[[file]]\npath = "{path}"\n')
    answer = scene.lockd("verify", "--json", env={"LOCKD_POLICY": ""}, cwd=here.parent)
    assert answer.document["policy"]["name"] == "here"


@pytest.mark.skipif(os.path.exists("/etc/lockd/policy.toml"), reason="this machine has a policy of its own")
def test_no_policy_is_wrong_usage_with_a_way_out(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    answer = scene.lockd("verify", "--json", env={"LOCKD_POLICY": ""})
    assert answer.code == 2
    assert answer.document["verdict"] == "unknown"
    assert "lockd init" in answer.document["error"]["hint"]
    assert answer.err.startswith("lockd: ") and "hint:" in answer.err


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("verfy",), "did you mean lockd verify?"),
        (("verify", "--ful"), "--ful"),
        (("verify", "extra"), "extra"),
        ((), "no command"),
        (("--bogus",), "--bogus"),
        (("--policy",), "--policy"),
    ],
)
def test_wrong_usage_is_two_with_a_hint_and_no_traceback(tmp_path: Path, words: tuple[str, ...], says: str) -> None:
    answer = Scene(tmp_path).lockd(*words)
    assert answer.code == 2
    assert says in answer.err and "hint:" in answer.err and answer.out == ""
    assert "Traceback" not in answer.err


def test_version_and_help(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    assert scene.lockd("--version").out == f"lockd {__version__}\n"
    told = scene.lockd("--help")
    assert told.code == 0
    assert all(verb in told.out for verb in commands.available())
    for verb in commands.available():
        assert scene.lockd(verb, "--help").code == 0


def test_every_mistake_of_a_policy_reaches_stderr_and_the_document(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    scene.write_policy('on_drft = "block"\n[[file]]\npath = "relative"\n')
    answer = scene.verify()
    assert answer.code == 2
    for word in ("on_drft", "on_drift", "relative"):
        assert word in answer.err and word in answer.document["error"]["what"]
    assert len([line for line in answer.err.splitlines() if line.startswith("lockd: ")]) == 2


def test_a_broken_lock_is_two(tmp_path: Path) -> None:
    scene, _ = pinned_file(tmp_path)
    scene.accept()
    scene.lock.write_bytes(scene.lock.read_bytes()[:-40])
    answer = scene.verify()
    assert (answer.code, answer.document["verdict"]) == (2, "unknown")
    assert "lock" in answer.err


def test_an_unexpected_error_is_three_in_one_line_and_an_interrupt_130(tmp_path: Path) -> None:
    scene, _ = pinned_file(tmp_path)
    program = (
        f"import sys; sys.path.insert(0, {str(ROOT)!r})\n"
        "import lockd.check\n"
        "def broken(*a, **k): raise ZeroDivisionError('boom')\n"
        "lockd.check.check = broken\n"
        "from lockd.cli import main\n"
        "sys.exit(main(sys.argv[1:]))\n"
    )
    words = {**os.environ, "LOCKD_POLICY": str(scene.policy), "LOCKD_STATE": str(scene.state)}

    def run(*args: str, program: str = program) -> subprocess.CompletedProcess[str]:
        return subprocess.run([sys.executable, "-c", program, *args], env=words, capture_output=True, text=True)

    quiet, debug = run("verify"), run("verify", "--debug")
    assert (quiet.returncode, debug.returncode) == (3, 3)
    assert "ZeroDivisionError: boom" in quiet.stderr and "Traceback" not in quiet.stderr
    assert "Traceback" in debug.stderr
    stopped = run("verify", program=program.replace("ZeroDivisionError('boom')", "KeyboardInterrupt"))
    assert (stopped.returncode, stopped.stderr) == (130, "")


def test_a_reader_that_left_changes_no_exit_code_and_says_nothing(tmp_path: Path) -> None:
    scene, path = pinned_file(tmp_path)
    scene.accept()
    path.write_text("x = 2\n")
    words = {**os.environ, "LOCKD_POLICY": str(scene.policy), "LOCKD_STATE": str(scene.state)}
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run([*LOCKD, "verify"], env=words, stdout=writing, stderr=subprocess.PIPE)
    os.close(writing)
    assert (done.returncode, done.stderr) == (1, b"")


@pytest.mark.parametrize("words", [("policy", "check"), ("policy", "--json", "check"), ("policy", "schema"), ("init",)])
def test_a_reader_that_left_is_no_error_of_any_command(tmp_path: Path, words: tuple[str, ...]) -> None:
    scene, _ = pinned_file(tmp_path)
    environ = {**os.environ, "LOCKD_POLICY": str(scene.policy), "LOCKD_STATE": str(scene.state), "HOME": str(tmp_path)}
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run([*LOCKD, *words], env=environ, cwd=tmp_path, stdout=writing, stderr=subprocess.PIPE)
    os.close(writing)
    assert (done.returncode, done.stderr) == (0, b"")


def test_policy_check_counts_in_plain_words(tmp_path: Path) -> None:
    scene, path = pinned_file(tmp_path)
    assert "is valid: 1 file\n" in scene.lockd("policy", "check").out
    scene.write_policy(f'[[file]]\npath = "{path}"\n[[file]]\npath = "{path}.other"\n')
    assert "is valid: 2 files\n" in scene.lockd("policy", "check").out


def test_a_full_stdout_is_no_ok(tmp_path: Path) -> None:
    scene, _ = pinned_file(tmp_path)
    scene.accept()
    words = {**os.environ, "LOCKD_POLICY": str(scene.policy), "LOCKD_STATE": str(scene.state)}
    with open("/dev/full", "wb") as full:
        done = subprocess.run([*LOCKD, "verify"], env=words, stdout=full, stderr=subprocess.PIPE)
    assert done.returncode == 3
    assert b"could not be written" in done.stderr


def test_output_is_utf8_in_any_locale(tmp_path: Path) -> None:
    scene, path = pinned_file(tmp_path)
    scene.accept()
    path.unlink()
    answer = scene.lockd("verify", env={"LC_ALL": "C", "PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"})
    assert answer.code == 1 and "→" in answer.out


def test_no_name_reaches_the_terminal_raw(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    folder = tmp_path / "job"
    scene.file("job/first.py")
    names = [b"a\x1b[2Jb.py", b"two\nlines.py", b"\xff.py", "\u202etxt.py".encode()]
    scene.write_policy(f'[[file]]\npath = "{folder}/*.py"\n')
    scene.accept()
    for name in names:
        Path(os.fsdecode(os.fsencode(folder) + b"/" + name)).write_text("x")
    for words in (("verify",), ("verify", "--json"), ("diff",), ("log",)):
        answer = scene.lockd(*words)
        assert not {"\x1b", "\u202e"} & set(answer.out + answer.err)
    assert len(scene.verify().facts) == len(names)


def test_colour_only_on_a_terminal(tmp_path: Path) -> None:
    scene, path = pinned_file(tmp_path)
    scene.accept()
    path.unlink()
    assert "\x1b" not in scene.lockd("verify").out


def test_verify_works_where_no_state_can_be_kept(tmp_path: Path) -> None:
    scene, path = pinned_file(tmp_path)
    scene.accept()
    nowhere = {"LOCKD_STATE": "/proc/lockd-state"}
    assert scene.verify(env=nowhere).code == 0
    path.unlink()
    answer = scene.verify(env=nowhere)
    assert (answer.code, answer.facts) == (1, [f"file:{path}"])
    assert "no state is kept" in answer.err


def test_state_that_others_may_write_is_not_used(tmp_path: Path) -> None:
    scene, _ = pinned_file(tmp_path)
    scene.accept()
    scene.state.chmod(0o777)
    answer = scene.verify()
    assert (answer.code, answer.document["verdict"]) == (3, "unknown")
    assert "writable by others" in answer.err


# -- diff, export, doctor ----------------------------------------------------------------------------------------------


def test_diff_exit_codes(tmp_path: Path) -> None:
    scene, path = pinned_file(tmp_path)
    assert scene.lockd("diff").code == 3
    scene.accept()
    assert (scene.lockd("diff").code, scene.lockd("diff", "--exit-code").code) == (0, 0)
    path.write_text("x = 2\n")
    assert (scene.lockd("diff").code, scene.lockd("diff", "--exit-code").code) == (0, 1)
    assert f"file:{path}" in scene.lockd("diff", "--stat").out


def test_diff_names_generations_and_times(tmp_path: Path) -> None:
    scene, path = pinned_file(tmp_path)
    scene.accept()
    path.write_text("x = 2\n")
    scene.accept()
    (one,) = scene.lockd("diff", "@1", "@2", "--json").document["differences"]
    assert (one["fact"], one["change"]) == (f"file:{path}", "changed")
    assert scene.lockd("diff", "@2", "--json").document["differences"] == []
    assert scene.lockd("diff", "@3").code == 3
    assert scene.lockd("diff", "now", "lock", "--json").document["differences"] == []
    assert scene.lockd("diff", "2 hours ago").code == 3
    assert scene.lockd("diff", "@x").code == scene.lockd("diff", "not a state").code == 2


def test_an_export_is_read_back_the_same(tmp_path: Path) -> None:
    scene, path = pinned_file(tmp_path)
    scene.accept()
    exported = scene.file("facts.json", scene.lockd("export").out)
    assert scene.lockd("diff", str(exported), "now", "--json").document["differences"] == []
    assert scene.lockd("diff", "lock", str(exported), "--json").document["differences"] == []
    path.write_text("x = 2\n")
    (one,) = scene.lockd("diff", str(exported), "--json").document["differences"]
    assert one["fact"] == f"file:{path}"
    exported.write_text("{}")
    assert scene.lockd("diff", str(exported)).code == 2


def test_doctor_says_ok_warn_or_fail_about_each_thing(tmp_path: Path) -> None:
    scene, _ = pinned_file(tmp_path)
    scene.accept()
    answer = scene.lockd("doctor", "--json")
    checks = {check["name"]: check for check in answer.document["checks"]}
    assert answer.code == 0, answer.out
    assert {"policy", "lock", "state", "python", "clock", "watches", "file systems", "full look"} <= checks.keys()
    assert checks["full look"]["status"] == "warn"
    assert scene.verify("--full").document["look"] == "full"
    again = {check["name"]: check for check in scene.lockd("doctor", "--json").document["checks"]}
    assert again["full look"]["status"] == "ok"


@pytest.mark.skipif(os.path.exists("/etc/lockd/policy.toml"), reason="this machine has a policy of its own")
def test_doctor_says_what_it_can_without_a_policy(tmp_path: Path) -> None:
    answer = Scene(tmp_path).lockd("doctor", env={"LOCKD_POLICY": ""})
    assert answer.code == 1
    assert "fail  policy" in answer.out and "lockd init" in answer.out and "ok    clock" in answer.out


def test_doctor_fails_on_a_broken_policy(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    scene.write_policy("on_drft = 1\n")
    answer = scene.lockd("doctor")
    assert answer.code == 1 and "fail  policy" in answer.out
