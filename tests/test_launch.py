"""`launch:python` and `launch:path`: which environment a command uses, what beside its script hides a package."""

from __future__ import annotations

import os
import subprocess
import sys
import venv
from collections.abc import Mapping
from pathlib import Path

import pytest

from lockd.disk import Disk
from lockd.facts import Fact, Facts, Unknown
from lockd.findings import Difference
from lockd.look import Launch, Look
from lockd.probes import launch as probe
from lockd.probes.argv import started
from lockd.rules import LaunchRule, Policy, PythonRule

SITE = f"lib/python{sys.version_info[0]}.{sys.version_info[1]}/site-packages"


@pytest.fixture(autouse=True)
def _own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))


@pytest.fixture
def train(tmp_path: Path) -> Path:
    """The pinned venv, with a torch in it, and a job folder with a script."""
    prefix = make_venv(tmp_path / "train")
    (prefix / SITE / "torch").mkdir()
    (prefix / SITE / "torch/__init__.py").touch()
    (tmp_path / "job").mkdir()
    (tmp_path / "job/train.py").touch()
    return prefix


def make_venv(prefix: Path) -> Path:
    venv.EnvBuilder(with_pip=False, symlinks=True).create(prefix)
    return prefix


def script(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)
    return path


def policy_of(tmp_path: Path, **rule: str | tuple[str, ...]) -> Policy:
    named = {"python": "train", "scripts": (f"{tmp_path}/job/*.py",), **rule}
    return Policy("ct", launch=LaunchRule(**named), python=(PythonRule("train", f"{tmp_path}/train"),))  # type: ignore[arg-type]


def looked(policy: Policy, *argv: str | Path, cwd: str | Path = "/", environ: Mapping[str, str] | None = None) -> Facts:
    launch = Launch(environ or {"PATH": "/usr/bin:/bin"}, str(cwd), tuple(map(str, argv)))
    return Facts(probe.look(policy.launch, Look(policy, Disk(), launch)).facts)


def env_of(facts: Facts) -> object:
    fact = facts["launch:python"]
    return fact.reason if isinstance(fact, Unknown) else fact.attributes["env"]


def shadows_of(facts: Facts) -> object:
    fact = facts["launch:path"]
    return fact.reason if isinstance(fact, Unknown) else fact.attributes["shadows"]


# -- which environment -----------------------------------------------------------------------------------------------


def test_the_pinned_environment_breaks_nothing(tmp_path: Path, train: Path) -> None:
    policy = policy_of(tmp_path)
    facts = looked(policy, train / "bin/python", "train.py", cwd=tmp_path / "job")
    assert env_of(facts) == "train"
    assert list(probe.breaches(policy.launch, policy, facts)) == []


def test_another_venv_breaks_the_pin_and_the_words_name_both(tmp_path: Path, train: Path) -> None:
    policy, other = policy_of(tmp_path), make_venv(tmp_path / "venv2")
    facts = looked(policy, other / "bin/python", "train.py", cwd=tmp_path / "job")
    (breach,) = probe.breaches(policy.launch, policy, facts)
    text = f"launch uses {other}, pinned train ({train})"
    assert (breach.key, breach.text, breach.wanted, breach.found) == ("launch.python", text, "train", "outside")
    difference = Difference("launch:python", "changed", None, facts["launch:python"], ("policy",), breaches=(breach,))
    assert probe.word(difference) == text


def test_the_system_python_under_the_venv_is_not_the_venv(tmp_path: Path, train: Path) -> None:
    base = os.path.realpath(train / "bin/python")
    assert env_of(looked(policy_of(tmp_path), base, "train.py")) == "outside"


def test_a_link_to_the_venv_is_the_venv_and_a_link_to_its_python_is_what_python_makes_of_it(
    tmp_path: Path, train: Path
) -> None:
    (tmp_path / "current").symlink_to(train)
    assert env_of(looked(policy_of(tmp_path), tmp_path / "current/bin/python", "x.py")) == "train"
    link = tmp_path / "mypython"
    link.symlink_to(train / "bin/python")
    link.rename(tmp_path / "python3")
    prefix = subprocess.run(
        [str(tmp_path / "python3"), "-c", "import sys; print(sys.prefix)"], capture_output=True, text=True, check=True
    ).stdout.strip()
    expected = "train" if prefix == str(train) else "outside"
    assert env_of(looked(policy_of(tmp_path), tmp_path / "python3", "x.py")) == expected


def test_a_bare_name_is_looked_up_on_the_launchs_own_path(tmp_path: Path, train: Path) -> None:
    other = make_venv(tmp_path / "venv2")
    first = {"PATH": f"/nowhere:{other}/bin:{train}/bin"}
    assert env_of(looked(policy_of(tmp_path), "python", "x.py", environ=first)) == "outside"
    assert env_of(looked(policy_of(tmp_path), "python", "x.py", environ={"PATH": f"{train}/bin"})) == "train"
    assert env_of(looked(policy_of(tmp_path), "bin/python", "x.py", cwd=train)) == "train"


@pytest.mark.parametrize(
    "wrapper",
    [
        "env",
        "env -i",
        "env A=1 B=2",
        "env -u PYTHONPATH --unset=X -C / --",
        "/usr/bin/env -S",
        "nohup",
        "nice -n 10",
        "taskset -c 0-3",
        "numactl -N 0 --membind=0",
        "timeout -k 5 1h",
        "stdbuf -oL",
        "nohup nice env X=1 setsid",
    ],
)
def test_wrappers_are_looked_through(tmp_path: Path, train: Path, wrapper: str) -> None:
    assert env_of(looked(policy_of(tmp_path), *wrapper.split(), train / "bin/python", "x.py")) == "train"


def test_env_may_change_the_path_that_finds_python(tmp_path: Path, train: Path) -> None:
    facts = looked(policy_of(tmp_path), "env", f"PATH={train}/bin", "python", "x.py")
    assert env_of(facts) == "train"


@pytest.mark.parametrize("style", ["plain", "env", "stub"])
def test_a_tool_is_known_by_its_first_line(tmp_path: Path, train: Path, style: str) -> None:
    lines = {
        "plain": f"#!{train}/bin/python\n",
        "env": "#!/usr/bin/env python\n",
        "stub": f"#!/bin/sh\n'''exec' \"{train}/bin/python\" \"$0\" \"$@\"\n' '''\n",
    }
    torchrun = script(tmp_path / "tools/torchrun", lines[style] + "import torch\n")
    environ = {"PATH": f"{train}/bin:/usr/bin:/bin"}
    facts = looked(policy_of(tmp_path), torchrun, "--nproc-per-node", "8", "train.py", environ=environ)
    assert env_of(facts) == "train"


def test_a_real_console_script_of_the_environment_is_the_environment(tmp_path: Path, train: Path) -> None:
    (train / "bin/torchrun").write_text(f"#!{train}/bin/python3\n")
    (train / "bin/torchrun").chmod(0o755)
    facts = looked(policy_of(tmp_path), "torchrun", "train.py", environ={"PATH": f"{train}/bin"})
    assert env_of(facts) == "train"


def test_torchrun_starts_its_ranks_with_python_exec(tmp_path: Path, train: Path) -> None:
    other = make_venv(tmp_path / "venv2")
    environ = {"PATH": "/usr/bin:/bin", "PYTHON_EXEC": f"{other}/bin/python"}
    argv = (train / "bin/python", "-m", "torch.distributed.run", "train.py")
    assert env_of(looked(policy_of(tmp_path), *argv, environ=environ)) == "outside"


def test_a_shell_cannot_tell_so_the_paths_python_is_taken_and_that_is_said(tmp_path: Path, train: Path) -> None:
    environ = {"PATH": f"{train}/bin:/usr/bin:/bin"}
    facts = looked(policy_of(tmp_path), "/bin/sh", "-c", "python train.py", environ=environ)
    fact = facts["launch:python"]
    assert isinstance(fact, Fact) and fact.attributes["env"] == "train"
    assert fact.told["via"] == "the PATH: sh doesn't tell which Python it starts"


def test_a_shim_that_is_a_script_is_unknown_never_ok(tmp_path: Path, train: Path) -> None:
    shim = script(tmp_path / "shims/python", '#!/bin/sh\nexec pyenv exec python "$@"\n')
    assert "can't be told from outside" in str(env_of(looked(policy_of(tmp_path), shim, "train.py")))
    environ = {"PATH": f"{shim.parent}:/usr/bin:/bin"}
    assert "can't be told from outside" in str(
        env_of(looked(policy_of(tmp_path), "sh", "-c", "python x.py", environ=environ))
    )


@pytest.mark.parametrize("words", ["srun -N 2 --gpus=8", "sudo -E -u train", "nsys profile -o report"])
def test_programs_that_run_their_words_start_the_python_among_them(tmp_path: Path, train: Path, words: str) -> None:
    other = make_venv(tmp_path / "venv2")
    name, *options = words.split()
    tool = script(tmp_path / "tools" / name, "\x7fELF")
    environ = {"PATH": f"{train}/bin:{tool.parent}:/usr/bin:/bin"}
    policy = policy_of(tmp_path)
    assert env_of(looked(policy, name, *options, other / "bin/python", "x.py", environ=environ)) == "outside"
    assert env_of(looked(policy, name, *options, "python", "x.py", environ=environ)) == "train"
    assert env_of(looked(policy, name, *options, "./job.sh", environ=environ)) == "train", "the PATH's"


@pytest.mark.parametrize("name", ["uv", "conda", "docker"])
def test_programs_that_choose_their_python_themselves_are_unknown(tmp_path: Path, train: Path, name: str) -> None:
    tool = script(tmp_path / "tools" / name, f"#!{train}/bin/python\n")
    environ = {"PATH": f"{train}/bin:{tool.parent}:/usr/bin:/bin"}
    facts = looked(policy_of(tmp_path), name, "run", "python", "train.py", environ=environ)
    assert env_of(facts) == f"{tool}: which Python it starts can't be told from outside"


def test_no_such_program_and_no_python_at_all_are_unknown(tmp_path: Path, train: Path) -> None:
    policy = policy_of(tmp_path)
    assert "no such program" in str(env_of(looked(policy, "pyhton", "train.py")))
    assert "no program" in str(env_of(looked(policy, "env", "A=1")))
    tool = script(tmp_path / "bin/tool", "#!/bin/sh\n")
    assert "no python on the launch's PATH" in str(env_of(looked(policy, tool, environ={"PATH": str(tool.parent)})))


def test_two_pythons_of_one_prefix_are_two_environments(tmp_path: Path) -> None:
    for minor in ("3.11", "3.12"):
        script(tmp_path / f"opt/bin/python{minor}", "\x7fELF")
        (tmp_path / f"opt/lib/python{minor}/site-packages").mkdir(parents=True)
    rules = tuple(PythonRule(f"p{minor}", f"{tmp_path}/opt/bin/python{minor}") for minor in ("3.11", "3.12"))
    policy = Policy("ct", launch=LaunchRule(python="p3.11"), python=rules)
    assert env_of(looked(policy, tmp_path / "opt/bin/python3.12", "x.py")) == "p3.12"
    assert env_of(looked(policy, tmp_path / "opt/bin/python3.11", "x.py")) == "p3.11"


def test_without_a_command_or_a_pin_there_is_no_launch_python(tmp_path: Path, train: Path) -> None:
    assert set(looked(policy_of(tmp_path))) == {"launch:path"}
    unpinned = Policy("ct", launch=LaunchRule(scripts=("/x.py",)), python=policy_of(tmp_path).python)
    assert set(looked(unpinned, train / "bin/python", "x.py")) == {"launch:path"}


def test_a_lock_without_launch_python_is_no_drift_and_its_pin_still_blocks(tmp_path: Path, train: Path) -> None:
    policy = policy_of(tmp_path)
    assert probe.severity(policy.launch, policy, "launch", "python", "added") == "ignore"
    assert probe.severity(policy.launch, policy, "launch", "path", "changed") == "block"
    (breach,) = probe.breaches(policy.launch, policy, looked(policy, os.path.realpath(train / "bin/python"), "x.py"))
    assert breach.on_drift == "block"


def test_a_look_without_a_launch_says_what_it_left_out(tmp_path: Path) -> None:
    policy = policy_of(tmp_path)
    look = Look(policy, Disk(), None)
    assert probe.look(policy.launch, look).facts == ()
    assert look.not_looked == ["launch (this look has none)"]


# -- what comes first on the path ------------------------------------------------------------------------------------


def test_a_package_beside_the_script_that_hides_an_installed_one_is_named(tmp_path: Path, train: Path) -> None:
    """pytorch/pytorch#574"""
    policy = policy_of(tmp_path)
    before = looked(policy)["launch:path"]
    assert isinstance(before, Fact) and before.attributes["shadows"] == ()
    (tmp_path / "job/torch").mkdir()
    (tmp_path / "job/torch/__init__.py").touch()
    after = looked(policy)["launch:path"]
    assert isinstance(after, Fact) and after.attributes["shadows"] == ("torch: script folder/torch",)
    pair = {"shadows": (before.attributes["shadows"], after.attributes["shadows"])}
    said = probe.word(Difference("launch:path", "changed", before, after, ("lock",), pair))
    assert said == f"the launch would import torch from {tmp_path}/job/torch, not the installed package"


def test_import_agrees_about_what_is_hidden(tmp_path: Path, train: Path) -> None:
    job = tmp_path / "job"
    (job / "torch").mkdir()
    ask = "import torch; print(torch.__file__)"
    (job / "train.py").write_text(ask)
    run = [str(train / "bin/python"), str(job / "train.py")]
    taken = subprocess.run(run, check=True, capture_output=True, text=True, cwd="/").stdout.strip()
    assert taken == f"{train}/{SITE}/torch/__init__.py", "a bare folder loses to an installed package"
    assert shadows_of(looked(policy_of(tmp_path))) == ()
    (job / "torch/__init__.py").touch()
    taken = subprocess.run(run, check=True, capture_output=True, text=True, cwd="/").stdout.strip()
    assert taken == f"{job}/torch/__init__.py"
    assert shadows_of(looked(policy_of(tmp_path))) == ("torch: script folder/torch",)


@pytest.mark.parametrize(
    "name", ["queue.py", "torch.py", "torch.cpython-311-x86_64-linux-gnu.so", "random/__init__.py"]
)
def test_modules_of_every_form_hide_packages_and_the_standard_library(tmp_path: Path, train: Path, name: str) -> None:
    script(tmp_path / "job" / name, "")
    top = name.partition("/")[0]
    assert shadows_of(looked(policy_of(tmp_path))) == (f"{top.partition('.')[0]}: script folder/{top}",)


def test_what_cannot_hide_anything_is_not_told(tmp_path: Path, train: Path) -> None:
    for name in ("os.py", "sys.py", "utils.py", "torch.txt", "torch-2.py", "torch.py.bak", "__main__.py"):
        (tmp_path / "job" / name).touch()
    assert shadows_of(looked(policy_of(tmp_path))) == ()


def test_the_id_of_a_shadow_does_not_depend_on_where_the_job_lies(tmp_path: Path) -> None:
    found = []
    for place in ("one", "two/deeper"):
        (tmp_path / place / "job").mkdir(parents=True)
        (tmp_path / place / "job/train.py").touch()
        (tmp_path / place / "job/queue.py").touch()
        found.append(shadows_of(looked(policy_of(tmp_path / place))))
    assert found[0] == found[1] == ("queue: script folder/queue.py",)


def test_pythonpath_counts_unless_python_is_told_to_ignore_it(tmp_path: Path, train: Path) -> None:
    script(tmp_path / "extra/torch.py", "")
    policy, environ = policy_of(tmp_path), {"PYTHONPATH": f"{tmp_path}/none:{tmp_path}/extra", "PATH": "/bin"}
    line = ("torch: PYTHONPATH/torch.py",)
    python = train / "bin/python"
    assert shadows_of(looked(policy, environ=environ)) == line
    assert shadows_of(looked(policy, python, "x.py", environ=environ)) == line
    assert shadows_of(looked(policy, python, "-I", "x.py", environ=environ)) == ()
    assert shadows_of(looked(policy, python, "-sE", "x.py", environ=environ)) == ()
    assert shadows_of(looked(policy, "env", "-u", "PYTHONPATH", python, "x.py", environ=environ)) == ()


def test_the_current_folder_counts_for_a_module_and_not_for_a_script(tmp_path: Path, train: Path) -> None:
    script(tmp_path / "cwd/torch.py", "")
    policy, python, cwd = policy_of(tmp_path), train / "bin/python", tmp_path / "cwd"
    line = ("torch: current folder/torch.py",)
    assert shadows_of(looked(policy, python, tmp_path / "job/train.py", cwd=cwd)) == ()
    for words in (
        ("-m", "train"),
        ("-mtrain",),
        ("-u", "-X", "dev", "-m", "train"),
        ("-c", "pass"),
        ("-W", "error", "-"),
    ):
        assert shadows_of(looked(policy, python, *words, cwd=cwd)) == line, words
    for words in (("-P", "-m", "train"), ("-I", "-c", "pass")):
        assert shadows_of(looked(policy, python, *words, cwd=cwd)) == (), words
    safe = {"PYTHONSAFEPATH": "1", "PATH": "/bin"}
    assert shadows_of(looked(policy, python, "-m", "train", cwd=cwd, environ=safe)) == ()
    assert shadows_of(looked(policy_of(tmp_path, modules=("train",)), cwd=cwd)) == line


def test_a_launcher_brings_the_folder_of_the_script_that_it_starts(tmp_path: Path, train: Path) -> None:
    script(tmp_path / "other/torch.py", "")
    script(tmp_path / "other/run.py", "")
    policy = policy_of(tmp_path)
    words = ("-m", "torch.distributed.run", "--nproc-per-node=8", "../other/run.py", "--lr", "1")
    assert shadows_of(looked(policy, train / "bin/python", *words, cwd=tmp_path / "job")) == (
        "torch: script folder/torch.py",
    )


def test_a_script_behind_a_link_counts_with_the_folder_of_the_file(tmp_path: Path, train: Path) -> None:
    script(tmp_path / "real/train.py", "")
    script(tmp_path / "real/torch.py", "")
    (tmp_path / "link.py").symlink_to(tmp_path / "real/train.py")
    assert shadows_of(looked(policy_of(tmp_path), train / "bin/python", tmp_path / "link.py")) == (
        "torch: script folder/torch.py",
    )


def test_an_editable_installs_own_folder_hides_nothing(tmp_path: Path, train: Path) -> None:
    script(tmp_path / "job/dflash/__init__.py", "")
    (train / SITE / "__editable__.dflash-1.0.pth").write_text(f"{tmp_path}/job\n")
    assert shadows_of(looked(policy_of(tmp_path))) == ()


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
def test_a_folder_that_cannot_be_listed_is_unknown(tmp_path: Path, train: Path) -> None:
    environ = {"PYTHONPATH": f"{tmp_path}/closed", "PATH": "/bin"}
    (tmp_path / "closed").mkdir(0)
    try:
        assert "ermission" in str(shadows_of(looked(policy_of(tmp_path), environ=environ)))
    finally:
        (tmp_path / "closed").chmod(0o755)


def test_a_fifo_as_program_or_shebang_loops_do_not_hang(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe", 0o755)
    loop = script(tmp_path / "loop", f"#!{tmp_path}/loop\n")
    assert "no such program" in started([str(tmp_path / "pipe")], {"PATH": "/bin"}, "/").trouble
    assert started([str(loop)], {"PATH": str(tmp_path)}, "/").trouble
    deep = started(["env"] * 50, {"PATH": "/usr/bin:/bin"}, "/")
    assert deep.trouble or deep.via.startswith("the PATH: env doesn't tell")


def test_every_attribute_of_the_facts_is_documented(tmp_path: Path, train: Path) -> None:
    (tmp_path / "job/torch.py").touch()
    names = set(probe.ATTRIBUTES["launch"])
    for fact in looked(policy_of(tmp_path), train / "bin/python", "x.py").known():
        assert set(fact.attributes) | set(fact.told) <= names
