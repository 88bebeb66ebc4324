"""`lockd init`: a first policy that loads, from the machine or a running job; nothing overwritten, no secret in it."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from lockd import policy
from lockd.errors import LockdError, UsageError
from lockd.init import Written, configs, init, machine, process
from lockd.init.text import clean_name
from lockd.probes import PROBES

VERSION = """__version__ = '2.11.0+cu130'
debug = False
cuda: Optional[str] = '13.0'
git_version = '70d99e998b4955e0049d13a98d77ae1b14db1f45'
hip: Optional[str] = None
"""


@pytest.fixture(autouse=True)
def only_this_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The homes of whoever runs the tests are not looked into."""
    monkeypatch.setattr(machine, "_roots", lambda home, cwd: [cwd, home])
    monkeypatch.setattr(configs, "ETC", str(tmp_path / "etc"))
    monkeypatch.setattr(machine, "_inductor", lambda environ: str(tmp_path / "torchinductor_me"))


def build_venv(path: Path, torch: bool = True) -> Path:
    """A venv as far as init reads one: pyvenv.cfg, and torch's version file."""
    site = path / "lib" / "python3.12" / "site-packages"
    site.mkdir(parents=True)
    (path / "pyvenv.cfg").write_text("home = /usr/bin\n")
    if torch:
        (site / "torch").mkdir()
        (site / "torch" / "version.py").write_text(VERSION)
        (site / "triton-3.6.0.dist-info").mkdir()
    return path


def write(tmp_path: Path, environ: Mapping[str, str] | None = None, **how: int) -> Written:
    home = tmp_path / "home"
    home.mkdir(exist_ok=True)
    output = str(tmp_path / "lockd.toml")
    environ = {"HOME": str(home), **(environ or {})}
    return init(output, name="box", environ=environ, cwd=str(tmp_path / "project"), **how)


def test_a_machine_with_a_venv_a_script_and_caches(tmp_path: Path) -> None:
    project = tmp_path / "project"
    build_venv(project / ".venv")
    (project / "train_it.py").write_text("")
    (project / "other.py").write_text("")
    (project / "go.sh").write_text("torchrun --nproc 8 \\\n  other.py --lr 1\n# torchrun no.py\n")
    (tmp_path / "torchinductor_me").mkdir()
    (tmp_path / "triton").mkdir()
    written = write(tmp_path, {"TRITON_CACHE_DIR": str(tmp_path / "triton")})
    loaded = policy.load(written.path)
    assert (loaded.name, loaded.on_drift, loaded.on_unknown) == ("box", "warn", "warn")
    train = loaded.python[0]
    assert (train.name, train.path) == ("project", str(project / ".venv"))
    torch = train.packages["torch"]
    assert not isinstance(torch, str)
    assert (torch.version, torch.cuda) == ("2.11.0+cu130", "13.0")
    assert loaded.launch.scripts == (str(project / "other.py"), str(project / "train_it.py"))
    assert loaded.launch.python == "project"
    assert [(cache.kind, cache.path) for cache in loaded.cache] == [
        ("inductor", str(tmp_path / "torchinductor_me")),
        ("triton", str(tmp_path / "triton")),
    ]
    assert [(file.path, file.keep) for file in loaded.file] == [(script, True) for script in loaded.launch.scripts]
    assert loaded.env["PYTHONPATH"].forbid
    assert any("torch 2.11.0+cu130 (CUDA 13.0)" in line for line in written.found)


def test_environments_without_torch_are_told_but_not_held_beside_one_with_it(tmp_path: Path) -> None:
    build_venv(tmp_path / "project" / "a", torch=False)
    build_venv(tmp_path / "project" / "b")
    written = write(tmp_path)
    assert [rule.path for rule in policy.load(written.path).python] == [str(tmp_path / "project" / "b")]
    assert f"left out, no torch in it: {tmp_path}/project/a" in written.found


def test_environments_of_one_name_get_names_of_their_own(tmp_path: Path) -> None:
    for folder in ("x/train", "y/train", "train"):
        build_venv(tmp_path / "project" / folder)
    assert sorted(rule.name for rule in policy.load(write(tmp_path).path).python) == ["train", "train-2", "train-3"]


def test_a_conda_prefix_is_found(tmp_path: Path) -> None:
    (tmp_path / "home" / "envs" / "ml" / "conda-meta").mkdir(parents=True)
    assert "# a conda prefix" in Path(write(tmp_path).path).read_text()


def test_a_file_that_is_there_is_never_overwritten(tmp_path: Path) -> None:
    build_venv(tmp_path / "project" / "venv")
    (tmp_path / "lockd.toml").write_text("mine")
    with pytest.raises(UsageError, match="never overwritten") as caught:
        write(tmp_path)
    assert caught.value.code == 2 and "-o FILE" in caught.value.hint
    assert (tmp_path / "lockd.toml").read_text() == "mine"
    (tmp_path / "lockd.toml").unlink()
    (tmp_path / "lockd.toml").symlink_to("elsewhere")
    with pytest.raises(UsageError, match="never overwritten"):
        write(tmp_path)
    assert not (tmp_path / "elsewhere").exists()


def test_where_there_is_nothing_to_hold_nothing_is_written(tmp_path: Path) -> None:
    (tmp_path / "project").mkdir()
    with pytest.raises(UsageError, match="found no environment"):
        write(tmp_path)
    assert not (tmp_path / "lockd.toml").exists()


def test_a_folder_in_which_others_write_gets_no_policy(tmp_path: Path) -> None:
    build_venv(tmp_path / "project" / "venv")
    tmp_path.chmod(0o777)
    with pytest.raises(LockdError, match="writable by everybody"):
        write(tmp_path)
    assert not (tmp_path / "lockd.toml").exists()


def test_names_that_no_policy_can_hold_are_said(tmp_path: Path) -> None:
    project = tmp_path / "project"
    build_venv(project / "venv")
    (project / "train\nx.py").write_text("")
    os.close(os.open(os.fsencode(str(project / "train_")) + b"\xff.py", os.O_CREAT))
    (project / 'train"[1].py').write_text("")
    written = write(tmp_path)
    assert policy.load(written.path).launch.scripts == (f'{project}/train"[[]1].py',)
    assert [line for line in written.found if "left out" in line] == [
        f"left out, its name can't stand in a policy: {project}/train\\nx.py",
        f"left out, its name can't stand in a policy: {project}/train_\\xff.py",
    ]


def test_gpus_stand_as_a_comment_until_they_are_built(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    build_venv(tmp_path / "project" / "venv")
    (tmp_path / "project" / ".git").mkdir()
    (tmp_path / "project" / "train.py").write_text("")
    monkeypatch.setattr(machine, "count_gpus", lambda: 8)
    without = {name: module for name, module in PROBES.items() if name not in ("gpu", "git")}
    for built in (without, {**without, "gpu": "", "git": ""}):
        monkeypatch.setattr("lockd.init.PROBES", built)
        monkeypatch.setattr("lockd.policy.PROBES", built)
        written = Path(write(tmp_path).path)
        assert ("\n[gpu]\ncount = 8\n" in written.read_text()) == ("gpu" in built)
        assert ("\n# [gpu]\n# count = 8\n" in written.read_text()) == ("gpu" not in built)
        assert ("\n[[git]]\n" in written.read_text()) == ("git" in built)
        written.unlink()


# -- from a running job ------------------------------------------------------------------------------------------------


@pytest.fixture
def job(tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A real process: a venv's python runs a script, with caches and a secret in its environment."""
    project = tmp_path / "project"
    project.mkdir()
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", "--symlinks", project / "venv"], check=True)
    (project / "run_me.py").write_text("import sys, time\nprint('up', flush=True)\ntime.sleep(300)\n")
    environ = {
        "HOME": str(tmp_path / "home"),
        "PATH": os.environ["PATH"],
        "TORCHINDUCTOR_CACHE_DIR": "ind",
        "TRITON_CACHE_DIR": str(tmp_path / "triton"),
        "NCCL_DEBUG": "INFO\n[gpu]",
        "HF_TOKEN": "hf_abcdefghijklmnopqrstu",
        "TORCHELASTIC_RUN_ID": "none",
        "OTHER": "x",
    }
    command = ["venv/bin/python", "-u", "run_me.py", "--token", "s3cr3t-value", "--lr=1"]
    with subprocess.Popen(command, cwd=project, env=environ, stdout=subprocess.PIPE) as running:
        assert running.stdout and running.stdout.readline() == b"up\n"
        yield running
        running.kill()


def test_a_policy_from_a_running_job(tmp_path: Path, job: subprocess.Popen[bytes]) -> None:
    written = write(tmp_path, pid=job.pid)
    text = Path(written.path).read_text()
    loaded = policy.load(written.path)
    project = tmp_path / "project"
    assert loaded.launch.scripts == (str(project / "run_me.py"),)
    assert [rule.path for rule in loaded.python] == [str(project / "venv")]
    assert loaded.launch.python == loaded.python[0].name
    assert (loaded.file[0].path, loaded.file[0].keep) == (str(project / "run_me.py"), True)
    assert [(cache.path, cache.kind, cache.keep) for cache in loaded.cache] == [
        (str(project / "ind"), "inductor", True),
        (str(tmp_path / "triton"), "triton", True),
    ]
    assert loaded.env["NCCL_DEBUG"].locked and loaded.env["TORCHINDUCTOR_CACHE_DIR"].locked
    assert loaded.env["HF_TOKEN"].secret
    assert "OTHER" not in loaded.env and "TORCHELASTIC_RUN_ID" not in loaded.env
    assert "hf_abc" not in text and "s3cr3t" not in text and "--lr=1" in text


def test_a_job_that_is_gone(tmp_path: Path, job: subprocess.Popen[bytes]) -> None:
    job.kill()
    job.wait()
    with pytest.raises(UsageError, match="is not there") as caught:
        write(tmp_path, pid=job.pid)
    assert caught.value.where == f"process {job.pid}"
    assert not (tmp_path / "lockd.toml").exists()


def test_a_job_that_ended_but_was_not_waited_for(tmp_path: Path, job: subprocess.Popen[bytes]) -> None:
    job.kill()
    os.waitid(os.P_PID, job.pid, os.WEXITED | os.WNOWAIT)
    with pytest.raises(UsageError, match="has ended"):
        write(tmp_path, pid=job.pid)


@pytest.mark.skipif(os.geteuid() != 0, reason="becomes another user")
def test_the_job_of_another_user(tmp_path: Path, job: subprocess.Popen[bytes]) -> None:
    child = os.fork()
    if child == 0:
        os.setgid(12345)
        os.setuid(12345)
        try:
            process.read(job.pid)
        except UsageError as error:
            os._exit(42 if "belongs to user root" in str(error) and "root" in error.hint else 1)
        os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 42


@pytest.mark.skipif(os.geteuid() != 0, reason="makes a mount namespace")
def test_a_job_in_a_container_is_sent_there(tmp_path: Path) -> None:
    with subprocess.Popen(["unshare", "--mount", "sleep", "300"], stderr=subprocess.DEVNULL) as running:
        for _ in range(200):
            if running.poll() is not None:
                pytest.skip("no mount namespaces here")
            if os.readlink(f"/proc/{running.pid}/exe").endswith("sleep"):
                break
            time.sleep(0.02)
        try:
            with pytest.raises(UsageError, match="runs in a container"):
                process.read(running.pid)
        finally:
            running.kill()


@pytest.mark.parametrize(
    ("command", "launched"),
    [
        ("python train.py --x", ("/w/train.py", "")),
        ("/v/bin/python3 -u -X dev -W ignore /a/train.py", ("/a/train.py", "")),
        ("python -m pkg.train --m", ("", "pkg.train")),
        ("python -m torch.distributed.run --nproc 8 t.py -m", ("/w/t.py", "")),
        ("torchrun --nproc-per-node 8 -m pkg.t", ("", "pkg.t")),
        ("/v/bin/python /v/bin/torchrun --nproc 2 ../t.py", ("/t.py", "")),
        ("/v/bin/python /v/bin/accelerate launch --config x t.py", ("/w/t.py", "")),
        ("python -c pass t.py", ("", "")),
        ("python -", ("", "")),
        ("python", ("", "")),
    ],
)
def test_what_a_command_line_launches(command: str, launched: tuple[str, str]) -> None:
    assert process.launched(tuple(command.split()), "/w") == launched


def test_a_torch_that_is_not_plain_is_not_guessed(tmp_path: Path) -> None:
    venv = build_venv(tmp_path / "venv")
    version = venv / "lib" / "python3.12" / "site-packages" / "torch" / "version.py"
    version.write_text("__version__ = open('/etc/hostname').read()\n")
    assert machine.read_environment(str(venv), "virtualenv").torch == {}
    version.write_text("not python (\n")
    assert machine.read_environment(str(venv), "virtualenv").torch == {}


def test_a_name_is_made_of_any_text() -> None:
    assert clean_name("gpu box/1!") == "gpu-box-1"
    assert clean_name("…") == ""


# -- configuration and models ------------------------------------------------------------------------------------------


def hub_model(hub: Path) -> Path:
    """A model as the hub's client keeps it: blobs, refs, and a snapshot of links."""
    model, revision = hub / "models--org--drafter", "0a" * 20
    snapshot = model / "snapshots" / revision
    for folder in (model / "blobs", model / "refs", snapshot):
        folder.mkdir(parents=True)
    (model / "refs" / "main").write_text(revision)
    for at, name in enumerate(("tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "modeling_x.py")):
        (model / "blobs" / str(at)).write_text(name)
        (snapshot / name).symlink_to(f"../../blobs/{at}")
    return model


def configured(home: Path, project: Path) -> dict[str, str]:
    """Every kind of configuration, where its tool looks for it; gives their paths, by a short name."""
    places = {
        "accelerate": home / "hf" / "accelerate" / "default_config.yaml",
        "deepspeed": project / "conf" / "ds_config_zero3.json",
        "pip": home / ".config" / "pip" / "pip.conf",
        "venv's pip": project / "venv" / "pip.conf",
        "uv": home / ".config" / "uv" / "uv.toml",
        "nccl": home / ".nccl.conf",
        "the machine's nccl": home.parent / "etc" / "nccl.conf",
        "the machine's pip": home.parent / "etc" / "pip.conf",
    }
    for path in places.values():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("index-url = https://user:hunter2@example.invalid/\n")
    return {name: str(path) for name, path in places.items()}


def assert_held(written: Written, places: dict[str, str], model: Path, home: Path) -> None:
    """All of them are rules of a policy that loads, and nothing of their content is in it."""
    loaded = policy.load(written.path)
    files = {rule.path for rule in loaded.file}
    assert set(places.values()) <= files
    expected = ("refs/**", "snapshots/*/tokenizer*", "snapshots/*/chat_template*", "snapshots/*/*.py")
    assert {f"{model}/{one}" for one in expected} == {path for path in files if path.startswith(str(model))}
    assert [(rule.path, rule.check) for rule in loaded.tree] == [(f"{home}/hf/modules/transformers_modules", "full")]
    assert "hunter2" not in Path(written.path).read_text() and not any("hunter2" in line for line in written.found)


def test_configuration_and_models_of_a_machine_are_found(tmp_path: Path) -> None:
    project, home = tmp_path / "project", tmp_path / "home"
    build_venv(project / "venv")
    places, model = configured(home, project), hub_model(home / "hf" / "hub")
    (home / "hf" / "modules" / "transformers_modules").mkdir(parents=True)
    (project / "other.py").write_text("")
    (project / "other.json").write_text("")
    (project / "go.sh").write_text("deepspeed other.py \\\n --deepspeed conf/ds_config_zero3.json --data other.json\n")
    written = write(tmp_path, {"HF_HOME": str(home / "hf")})
    assert_held(written, places, model, home)
    assert str(project / "other.json") not in Path(written.path).read_text()
    assert any("which revision of org/drafter" in line for line in written.found)


def test_configuration_and_models_of_a_running_job_are_found(tmp_path: Path) -> None:
    project, home = tmp_path / "project", tmp_path / "home"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", "--symlinks", project / "venv"], check=True)
    places, model = configured(home, project), hub_model(home / "hf" / "hub")
    (home / "hf" / "modules" / "transformers_modules").mkdir(parents=True)
    (project / "run_me.py").write_text("import time\nprint('up', flush=True)\ntime.sleep(300)\n")
    environ = {"HOME": str(home), "HF_HOME": str(home / "hf"), "PATH": os.environ["PATH"]}
    command = ["venv/bin/python", "run_me.py", "--deepspeed=conf/ds_config_zero3.json"]
    with subprocess.Popen(command, cwd=project, env=environ, stdout=subprocess.PIPE) as job:
        try:
            assert job.stdout is not None and job.stdout.readline() == b"up\n"
            assert_held(write(tmp_path, pid=job.pid), places, model, home)
        finally:
            job.kill()


def test_a_variable_that_moves_a_configuration_moves_it_here(tmp_path: Path) -> None:
    home = tmp_path / "home"
    configured(home, tmp_path / "project")
    (tmp_path / "mine.conf").write_text("")
    environ = {"NCCL_CONF_FILE": str(tmp_path / "mine.conf"), "PIP_CONFIG_FILE": os.devnull, "UV_NO_CONFIG": "1"}
    found = [one.pattern for one in configs.find(environ, str(home), "/")]
    assert found == [str(tmp_path / "etc" / "nccl.conf"), str(tmp_path / "mine.conf")]
