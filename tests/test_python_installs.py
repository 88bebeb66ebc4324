"""Environments that the real pip and uv made: equal installs are equal, and what moved afterwards is seen."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from lockd.compare import compare, restricted
from lockd.disk import Disk
from lockd.facts import Fact, Facts, environment_id
from lockd.probes import python
from lockd.probes.python import contents
from lockd.probes.python.wording import package_line
from tests.python_looks import differences, facts, package, seen, state, unowned
from tests.wheels import UV, Env, Wheel, build_venv, install, record_hash, uninstall

pytestmark = pytest.mark.skipif(UV is None, reason="uv is not installed")

GIT = "70d99e998b4955e0049d13a98d77ae1b14db1f45"
HELPER = Wheel(
    "Help.er_Lib",
    "1.0",
    {
        "helper/__init__.py": "x = 1\n",
        "helper/cli.py": "def main():\n    return 0\n",
        "helper/with, comma.txt": "y\n",
        "helper/bin/tool": "#!/bin/sh\n",
        "@scripts/run-it": "#!python\nprint('run')\n",
        "@data/share/helper/a.txt": "z\n",
    },
    requires=(
        "torch>=2; python_version > '3'",
        "never; python_version < '3'",
        "extra-thing; extra == 'x'",
        "foo [a] (==1)",
    ),
    entry_points={"helper": "helper.cli:main"},
    executable=("helper/bin/tool",),
)


def torch(label: str = "+cu128", cuda: str = "12.8", modules: int = 0) -> Wheel:
    files = {
        "torch/__init__.py": "from .version import __version__\n",
        "torch/version.py": (
            "from typing import Optional\n"
            f"__version__ = '2.11.0{label}'\ndebug = False\ncuda: Optional[str] = '{cuda}'\n"
            f"git_version = '{GIT}'\nhip: Optional[str] = None\n"
        ),
        "torch/fx/_symbolic_trace.py": "def is_fx_symbolic_tracing():\n    return flag\n",
        **{f"torch/gen/m{number:04}.py": f"BUILD = '{label}'\n" for number in range(modules)},
    }
    return Wheel("torch", "2.11.0", files, ("triton==3.6.0",))


def made(tmp_path: Path, *wheels: Wheel, by: str = "uv", link: str = "copy") -> Env:
    env = build_venv(tmp_path / "venv")
    install(env, *wheels, by=by, link=link)
    return env


def with_times_kept(path: Path, old: str, new: str) -> None:
    status = path.stat()
    text = path.read_text()
    assert old in text and len(old) == len(new)
    path.write_text(text.replace(old, new))
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


def test_pip_and_uv_installs_of_one_wheel_have_the_same_identity(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    ours = package(made(tmp_path / "a", HELPER, by="pip").prefix, "help-er-lib")
    theirs = package(made(tmp_path / "b", HELPER, by="uv").prefix, "help-er-lib")
    assert ours.attributes == theirs.attributes
    assert {"record", "content", "version", "tag"} <= ours.attributes.keys()
    assert (ours.told["installer"], theirs.told["installer"]) == ("pip", "uv")
    assert ours.told["files"] == theirs.told["files"] == 10


def test_reinstalling_by_uv_what_pip_installed_is_no_drift(tmp_path: Path) -> None:
    env = made(tmp_path, HELPER, torch(), by="pip")
    before = facts(env.prefix)
    install(env, HELPER, torch(), by="uv")
    assert not differences(before, facts(env.prefix))


def test_byte_code_that_a_run_writes_is_no_drift(tmp_path: Path) -> None:
    env = made(tmp_path, HELPER, torch())
    before = facts(env.prefix)
    subprocess.run([env.python, "-c", "import torch, helper.cli"], check=True, env={"PATH": os.environ["PATH"]})
    assert list(env.site.glob("torch/__pycache__/*.pyc"))
    assert not differences(before, facts(env.prefix))


def test_touching_files_is_no_drift(tmp_path: Path) -> None:
    env = made(tmp_path, HELPER)
    before = facts(env.prefix)
    os.utime(env.site / "helper/__init__.py", (1_900_000_000, 1_900_000_000))
    os.utime(env.bin / "run-it", (1_900_000_000, 1_900_000_000))
    assert not differences(before, facts(env.prefix))


def test_a_pristine_install_is_sound_and_all_of_it_is_owned(tmp_path: Path) -> None:
    env = made(tmp_path, HELPER, by="pip")
    fact = package(env.prefix, "help-er-lib")
    assert fact.told["modified"] == 0 and state(fact) == ""
    assert unowned(env.prefix).attributes == {"files": 0}


def test_requirements_that_do_not_hold_here_are_left_out(tmp_path: Path) -> None:
    assert package(made(tmp_path, HELPER).prefix, "help-er-lib").told["requires"] == ("foo==1", "torch>=2")


def test_a_build_swap_under_one_metadata_version_is_one_difference_with_the_builds(tmp_path: Path) -> None:
    env = made(tmp_path, torch(modules=40))
    before = facts(env.prefix)
    install(env, torch("+cu130", "13.0", modules=40), by="uv")
    (difference,) = differences(before, facts(env.prefix)).values()
    assert difference.attributes["version"] == ("2.11.0+cu128", "2.11.0+cu130")
    assert difference.attributes["cuda"] == ("12.8", "13.0")
    assert isinstance(difference.found, Fact) and difference.found.attributes["git"] == GIT
    assert difference.found.attributes["metadata_version"] == "2.11.0"
    assert python.word(difference) == "torch 2.11.0+cu128 → 2.11.0+cu130 (CUDA 12.8 → 13.0)"


def test_a_hand_patch_with_size_and_times_kept_is_named(tmp_path: Path) -> None:
    env = made(tmp_path, torch())
    before = facts(env.prefix)
    with_times_kept(env.site / "torch/fx/_symbolic_trace.py", "return flag", "return True")
    (difference,) = differences(before, facts(env.prefix)).values()
    assert set(difference.attributes) == {"content"}
    assert python.word(difference) == "torch 2.11.0+cu128: 1 file differs from its wheel: torch/fx/_symbolic_trace.py"


def test_the_bytes_put_back_are_the_good_state_again(tmp_path: Path) -> None:
    env = made(tmp_path, torch())
    before = facts(env.prefix)
    with_times_kept(env.site / "torch/fx/_symbolic_trace.py", "return flag", "return True")
    with_times_kept(env.site / "torch/fx/_symbolic_trace.py", "return True", "return flag")
    assert not differences(before, facts(env.prefix))


def test_a_deleted_file_is_named_though_metadata_is_whole(tmp_path: Path) -> None:
    env = made(tmp_path, torch())
    before = facts(env.prefix)
    (env.site / "torch/fx/_symbolic_trace.py").unlink()
    (difference,) = differences(before, facts(env.prefix)).values()
    assert "content" in difference.attributes and "torch/fx/_symbolic_trace.py" in python.word(difference)
    manifest = seen(env.prefix).manifests()["package:train/torch"]
    assert manifest["torch/fx/_symbolic_trace.py"] == "missing"


def test_a_relabelled_metadata_is_drift_of_its_file_and_version(tmp_path: Path) -> None:
    env = made(tmp_path, torch())
    before = facts(env.prefix)
    metadata = env.info("torch") / "METADATA"
    metadata.write_text(metadata.read_text().replace("Version: 2.11.0\n", "Version: 2.11.0+cu128\n"))
    (difference,) = differences(before, facts(env.prefix)).values()
    assert difference.attributes["metadata_version"] == ("2.11.0", "2.11.0+cu128")
    assert "version" not in difference.attributes
    assert "METADATA" in python.word(difference)


def test_an_execute_bit_is_content(tmp_path: Path) -> None:
    env = made(tmp_path, HELPER)
    before = facts(env.prefix)
    (env.site / "helper/bin/tool").chmod(0o644)
    assert set(differences(before, facts(env.prefix))["package:train/help-er-lib"].attributes) == {"content"}


def test_a_script_counts_but_for_its_shebang(tmp_path: Path) -> None:
    env = made(tmp_path, HELPER, by="pip")
    before = facts(env.prefix)
    script = env.bin / "run-it"
    script.write_text("#!/elsewhere/bin/python\n" + script.read_text().partition("\n")[2])
    assert not differences(before, facts(env.prefix))
    assert package(env.prefix, "help-er-lib").told["modified"] == 0, "a rewritten shebang is no modification"
    script.write_text(script.read_text() + "print('more')\n")
    assert "content" in differences(before, facts(env.prefix))["package:train/help-er-lib"].attributes
    assert package(env.prefix, "help-er-lib").told["modified_files"] == ("../../../bin/run-it",)


@pytest.mark.parametrize("by", ["pip", "uv"])
def test_an_edited_launcher_is_drift(tmp_path: Path, by: str) -> None:
    env = made(tmp_path, HELPER, by=by)
    before = facts(env.prefix)
    launcher = env.bin / "helper"
    launcher.write_text(launcher.read_text().replace("from helper.cli import main", "from helper_cli import main"))
    assert "content" in differences(before, facts(env.prefix))["package:train/help-er-lib"].attributes
    assert package(env.prefix, "help-er-lib").told["modified"] == 1


def test_a_data_file_outside_site_packages_is_content(tmp_path: Path) -> None:
    env = made(tmp_path, HELPER)
    before = facts(env.prefix)
    (env.prefix / "share/helper/a.txt").write_text("other\n")
    assert "share/helper/a.txt" in python.word(differences(before, facts(env.prefix))["package:train/help-er-lib"])


def test_a_hard_linked_change_is_told_to_live_in_the_cache_too(tmp_path: Path) -> None:
    env = made(tmp_path, torch(), link="hardlink")
    with_times_kept(env.site / "torch/fx/_symbolic_trace.py", "return flag", "return True")
    assert (env.site / "torch/fx/_symbolic_trace.py").stat().st_nlink > 1
    assert "hard-linked" in str(package(env.prefix, "torch").told["links"])


def test_an_install_from_a_poisoned_cache_does_not_pass_for_the_good_state(tmp_path: Path) -> None:
    """uv#15700: the edit reached uv's cache through the hard link, and comes back with every install."""
    env = made(tmp_path, torch(), link="hardlink")
    before = facts(env.prefix)
    with_times_kept(env.site / "torch/fx/_symbolic_trace.py", "return flag", "return True")
    other = build_venv(tmp_path / "other")
    local = ("--no-index", "--find-links", str(tmp_path / "wheels"), "--no-deps", "--link-mode=hardlink")
    uv_install(other, *local, "torch==2.11.0")
    assert "return True" in (other.site / "torch/fx/_symbolic_trace.py").read_text(), "uv has mended its cache"
    line = python.word(differences(before, facts(other.prefix))["package:train/torch"])
    assert "torch/fx/_symbolic_trace.py" in line and "uv cache clean torch" in line


@pytest.mark.parametrize("by", ["pip", "uv"])
def test_a_wheel_whose_record_is_false_is_told_from_the_first_look(tmp_path: Path, by: str) -> None:
    """pip#4705, pytorch#47916: installers accept wheels that were changed after their RECORD was written."""
    false = Wheel("patched", "1.0", {"patched.py": "x = 2\n"}, rows={"patched.py": (record_hash(b"x = 1\n"), "6")})
    fact = package(made(tmp_path, false, by=by).prefix, "patched")
    assert (fact.told["modified"], fact.told["modified_files"]) == (1, ("patched.py",))


def test_files_linked_into_the_installers_cache_have_the_identity_of_copies(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    copied = made(tmp_path / "a", torch())
    linked = made(tmp_path / "b", torch(), link="symlink")
    patched = linked.site / "torch/fx/_symbolic_trace.py"
    assert patched.is_symlink()
    before = facts(linked.prefix)
    assert package(copied.prefix, "torch").attributes == package(linked.prefix, "torch").attributes
    with_times_kept(patched.resolve(), "return flag", "return True")
    assert "_symbolic_trace.py" in python.word(differences(before, facts(linked.prefix))["package:train/torch"])


def test_a_cache_that_was_cleaned_under_its_links_leaves_files_missing_not_unread(tmp_path: Path) -> None:
    """`uv cache clean` where uv linked (`--link-mode symlink`): every link of the environment leads to nothing."""
    env = made(tmp_path, torch(), link="symlink")
    before = facts(env.prefix)
    shutil.rmtree(tmp_path / "uv-cache")
    after = facts(env.prefix)
    assert not list(after.unknown())
    said = python.word(differences(before, after)["package:train/torch"])
    assert said.startswith("torch 2.11.0: broken: METADATA missing; 5 files "), said


def test_the_same_environment_elsewhere_has_the_same_facts(tmp_path: Path) -> None:
    env = made(tmp_path, HELPER, torch())
    shutil.copytree(env.prefix, tmp_path / "moved to", symlinks=True)
    assert not differences(facts(env.prefix), facts(tmp_path / "moved to"))


def test_a_path_of_two_packages_with_other_bytes_is_told_on_both(tmp_path: Path) -> None:
    def nccl(cuda: str) -> Wheel:
        files = {"nvidia/__init__.py": "", "nvidia/nccl/lib/libnccl.so.2": f"nccl for {cuda}"}
        return Wheel(f"nvidia-nccl-cu{cuda}", "2.27.5", files)

    env = made(tmp_path, nccl("12"))
    assert "shared" not in package(env.prefix, "nvidia-nccl-cu12").attributes
    install(env, nccl("13"), by="uv")
    line = "1 file, nvidia/nccl/lib/libnccl.so.2"
    assert package(env.prefix, "nvidia-nccl-cu12").attributes["shared"] == (f"nvidia-nccl-cu13: {line}",)
    assert package(env.prefix, "nvidia-nccl-cu13").attributes["shared"] == (f"nvidia-nccl-cu12: {line}",)
    both = [package(env.prefix, f"nvidia-nccl-cu{cuda}").told["modified"] for cuda in ("12", "13")]
    assert sorted(both) == [0, 1], "the winner is sound, the other one is not what its record says"


def test_uninstalling_one_of_two_owners_leaves_the_other_with_missing_files(tmp_path: Path) -> None:
    """sglang#31035: nvidia-nvshmem-cu12 took a file with it that nvshmem-cu13 owned as well."""
    wheels = [
        Wheel(f"nvidia-nvshmem-cu{cuda}", "3.4.5", {"nvidia/nvshmem/lib/libnvshmem.so": "x"}) for cuda in ("12", "13")
    ]
    env = made(tmp_path, *wheels)
    before = facts(env.prefix)
    uninstall(env, "nvidia-nvshmem-cu12", by="pip")
    found = differences(before, facts(env.prefix))
    assert found["package:train/nvidia-nvshmem-cu12"].change == "missing"
    assert "libnvshmem.so" in python.word(found["package:train/nvidia-nvshmem-cu13"])
    assert package(env.prefix, "nvidia-nvshmem-cu13").told["modified"] == 1
    without_contents = package(env.prefix, "nvidia-nvshmem-cu13", integrity="metadata")
    assert state(without_contents) == "missing: nvidia/nvshmem/lib/libnvshmem.so"


def test_an_uninstalled_package_leaves_no_fact_and_no_unowned_file(tmp_path: Path) -> None:
    env = made(tmp_path, torch(), HELPER, by="pip")
    uninstall(env, "torch")
    found = facts(env.prefix)
    assert "package:train/torch" not in found and unowned(env.prefix).attributes == {"files": 0}


def test_metadata_integrity_reads_no_contents(tmp_path: Path) -> None:
    env = made(tmp_path, torch())
    before = facts(env.prefix, integrity="metadata")
    with_times_kept(env.site / "torch/fx/_symbolic_trace.py", "return flag", "return True")
    after = facts(env.prefix, integrity="metadata")
    assert not differences(before, after)
    fact = after["package:train/torch"]
    assert isinstance(fact, Fact) and "content" not in fact.attributes and fact.attributes["cuda"] == "12.8"


def test_excluded_files_are_neither_missing_nor_content(tmp_path: Path) -> None:
    env = made(tmp_path, torch(modules=3))
    before = facts(env.prefix, exclude=("torch/gen/**",))
    (env.site / "torch/gen/m0000.py").unlink()
    (env.site / "torch/gen/new.py").write_text("x")
    assert not differences(before, facts(env.prefix, exclude=("torch/gen/**",)))
    assert differences(before, facts(env.prefix))


def test_the_name_of_a_linked_venv_is_followed(tmp_path: Path) -> None:
    env = made(tmp_path, torch())
    (tmp_path / "current").symlink_to(env.prefix)
    assert package(tmp_path / "current", "torch").attributes == package(env.prefix, "torch").attributes


# -- origins -----------------------------------------------------------------------------------------------------------

BACKEND = """
import base64, hashlib, pathlib, zipfile

def _pack(folder, name, files):
    info = "proj-1.0.dist-info"
    files = {**files, f"{info}/METADATA": "Metadata-Version: 2.1\\nName: proj\\nVersion: 1.0\\n",
             f"{info}/WHEEL": "Wheel-Version: 1.0\\nGenerator: t\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n"}
    rows = ""
    with zipfile.ZipFile(pathlib.Path(folder) / name, "w") as archive:
        for path, text in files.items():
            digest = base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()
            rows += f"{path},sha256={digest},{len(text)}\\n"
            archive.writestr(path, text)
        archive.writestr(f"{info}/RECORD", rows + f"{info}/RECORD,,\\n")
    return name

def build_wheel(folder, settings=None, metadata=None):
    files = {"proj/__init__.py": pathlib.Path("proj/__init__.py").read_text()}
    return _pack(folder, "proj-1.0-py3-none-any.whl", files)

def build_editable(folder, settings=None, metadata=None):
    return _pack(folder, "proj-1.0-py3-none-any.whl", {"__editable__.proj.pth": str(pathlib.Path.cwd()) + "\\n"})
"""


def checkout(folder: Path) -> Path:
    """A git repository with a package that builds without any other."""
    (folder / "proj").mkdir(parents=True)
    (folder / "proj/__init__.py").write_text("x = 1\n")
    (folder / "backend.py").write_text(BACKEND)
    build = '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n'
    (folder / "pyproject.toml").write_text(build + '[project]\nname = "proj"\nversion = "1.0"\n')
    git(folder, "init", "-q", "-b", "main")
    commit(folder, "first")
    return folder


def git(folder: Path, *words: str) -> str:
    identity = ["-c", "user.name=t", "-c", "user.email=t@example.org", "-c", "commit.gpgsign=false"]
    done = subprocess.run(["git", *identity, *words], cwd=folder, check=True, capture_output=True, text=True)
    return done.stdout.strip()


def commit(folder: Path, message: str) -> str:
    git(folder, "add", "-A")
    git(folder, "commit", "-q", "--allow-empty", "-m", message)
    return git(folder, "rev-parse", "HEAD")


def uv_install(env: Env, *words: str) -> None:
    command = [str(UV), "pip", "install", "--python", str(env.python), "--offline", "--quiet", *words]
    cache = {"UV_CACHE_DIR": str(env.prefix.parent / "uv-cache")}
    subprocess.run(command, check=True, env={**os.environ, **cache}, capture_output=True)


def test_an_editable_install_is_known_by_path_commit_and_sources(tmp_path: Path) -> None:
    folder = checkout(tmp_path / "proj")
    env = build_venv(tmp_path / "venv")
    uv_install(env, "-e", str(folder))
    before = facts(env.prefix)
    fact = package(env.prefix, "proj")
    assert fact.attributes["origin"] == f"editable {folder}"
    assert fact.attributes["commit"] == git(folder, "rev-parse", "HEAD")
    dirty = {"dirty"} if importlib.util.find_spec("pygit2") else set()
    assert fact.attributes["dirty"] == ("clean" if dirty else "not looked at: pygit2 is not installed")
    (folder / "proj/__init__.py").write_text("x = 2\n")
    moved = differences(before, facts(env.prefix))["package:train/proj"].attributes
    assert {"sources"} | dirty == set(moved)
    commit(folder, "second")
    moved = differences(before, facts(env.prefix))["package:train/proj"].attributes
    assert {"commit", "sources"} == set(moved)


def test_a_checkout_that_is_gone_is_the_whole_line() -> None:
    """What git would have said of it is gone with it: one cause, not four."""
    good = {"version": "1.0", "commit": "a" * 40, "dirty": "clean", "sources": "sha256:1", "origin": "editable /p"}
    bad = {"version": "1.0", "origin": "editable /p", "state": "broken: /p is missing"}
    (one,) = compare(Facts([Fact("package", "t/pk", good)]), Facts([Fact("package", "t/pk", bad)]))
    assert package_line(one) == "pk 1.0: broken: /p is missing"


def test_an_editable_install_whose_checkout_is_gone_is_broken(tmp_path: Path) -> None:
    folder = checkout(tmp_path / "proj")
    env = build_venv(tmp_path / "venv")
    uv_install(env, "-e", str(folder))
    shutil.rmtree(folder)
    assert state(package(env.prefix, "proj")) == f"broken: {folder} is missing"


@pytest.mark.parametrize("other", ["file", "fifo", "device"])
def test_an_editable_checkout_that_is_no_folder_any_more_is_broken_not_unknown(tmp_path: Path, other: str) -> None:
    """It was read well: another thing stands there."""
    folder = checkout(tmp_path / "proj")
    env = build_venv(tmp_path / "venv")
    uv_install(env, "-e", str(folder))
    before = facts(env.prefix)
    shutil.rmtree(folder)
    words = {"file": "a file", "fifo": "a FIFO", "device": "a device"}
    if other == "file":
        folder.touch()
    elif other == "fifo":
        os.mkfifo(folder)
    else:
        folder.symlink_to("/dev/null")
    difference = differences(before, facts(env.prefix))["package:train/proj"]
    assert difference.change == "changed"
    assert package_line(difference) == f"proj 1.0: broken: {folder} is {words[other]}, not a folder"


def test_the_commit_of_a_vcs_install_is_its_origin(tmp_path: Path) -> None:
    folder = checkout(tmp_path / "proj")
    first = git(folder, "rev-parse", "HEAD")
    env = build_venv(tmp_path / "venv")
    uv_install(env, f"proj @ git+file://{folder}@{first}")
    before = facts(env.prefix)
    assert package(env.prefix, "proj").attributes["origin"] == f"git+file://{folder}@{first}"
    second = commit(folder, "same files")
    uv_install(env, f"proj @ git+file://{folder}@{second}")
    (difference,) = differences(before, facts(env.prefix)).values()
    assert difference.attributes["origin"][1] == f"git+file://{folder}@{second}"
    assert second[:12] in python.word(difference)


def test_the_hash_of_a_local_wheel_is_its_origin(tmp_path: Path) -> None:
    env = build_venv(tmp_path / "venv")
    path = torch().write(tmp_path)
    command = [sys.executable, "-m", "pip", "--python", str(env.python), "install", "--no-deps", "--quiet", str(path)]
    subprocess.run([*command, "--disable-pip-version-check"], check=True, capture_output=True)
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    if digest not in (env.info("torch") / "direct_url.json").read_text():
        pytest.skip("this pip records no hash of local wheels")
    assert package(env.prefix, "torch").attributes["origin"] == f"wheel sha256:{digest}"


def from_file(env: Env, path: Path, by: str) -> None:
    """Install one wheel by its path: what pip notes the hash of in direct_url.json, and uv the name alone."""
    words = ["--force-reinstall", "--no-index", "--no-deps", "--quiet", "--disable-pip-version-check"]
    pip = [sys.executable, "-m", "pip", "--python", str(env.python), "install", *words, str(path)]
    if by == "pip":
        subprocess.run(pip, check=True, capture_output=True)
    else:
        uv_install(env, "--reinstall", "--no-deps", str(path))


@pytest.mark.parametrize("first", ["index", "pip", "uv"])
def test_one_wheel_from_a_file_or_an_index_by_pip_or_uv_is_one_install(tmp_path: Path, first: str) -> None:
    """Which of them notes where the wheel lay, and its hash, is no drift and moves no id, while RECORD and contents are
    equal."""
    env = build_venv(tmp_path / "venv")
    path = HELPER.write(tmp_path / "dist")

    def put(how: str) -> None:
        if how == "index":
            install(env, HELPER)
        else:
            from_file(env, path, how)

    put(first)
    before = facts(env.prefix)
    for again in ("index", "pip", "uv"):
        put(again)
        after = facts(env.prefix)
        assert not differences(before, after), again
        assert environment_id(restricted(after, before)) == environment_id(list(before.values())), again


def test_another_archive_of_equal_contents_is_another_source(tmp_path: Path) -> None:
    env = build_venv(tmp_path / "venv")
    from_file(env, HELPER.write(tmp_path / "dist"), "pip")
    before = facts(env.prefix)
    (note,) = env.site.glob("Help*.dist-info/direct_url.json")
    for other in (
        {"archive_info": {"hashes": {"sha256": "b" * 64}}},
        {"vcs_info": {"vcs": "git", "commit_id": "c" * 40}},
    ):
        note.write_text(json.dumps({"url": "file:///elsewhere/help_er.whl", **other}))
        (difference,) = differences(before, facts(env.prefix)).values()
        assert set(difference.attributes) == {"origin"}


def test_an_archive_without_a_hash_passes_for_nothing_where_the_contents_moved(tmp_path: Path) -> None:
    env = build_venv(tmp_path / "venv")
    from_file(env, HELPER.write(tmp_path / "dist"), "pip")
    before = facts(env.prefix)
    install(env, HELPER)
    (env.site / "helper/__init__.py").write_text("edited = True\n")
    (difference,) = differences(before, facts(env.prefix)).values()
    assert {"content", "origin"} <= set(difference.attributes)


# -- with what was remembered ------------------------------------------------------------------------------------------


def test_a_second_look_at_an_unchanged_environment_reads_nothing_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    memo_module = pytest.importorskip("lockd.memo")
    env = made(tmp_path, HELPER, torch(), by="pip")
    state_folder = str(tmp_path / "state")

    def look() -> Facts:
        disk = Disk(cache_dir=state_folder)
        found = Facts(seen(env.prefix, disk=disk, memo=memo_module.StateMemo(state_folder)).facts)
        disk.save()
        return found

    first = look()
    with monkeypatch.context() as patched:
        patched.setattr(contents, "read", lambda *_: pytest.fail("it was all known"))
        assert dict(look()) == dict(first)
    for path in (env.bin / "run-it", env.prefix / "share/helper/a.txt", env.site / "helper/cli.py"):
        before = path.read_bytes()
        path.write_bytes(before + b"# more\n")
        assert "package:train/help-er-lib" in differences(first, look()), path
        path.write_bytes(before)
        assert not differences(first, look())


def test_an_edit_in_a_linked_cache_is_seen_though_the_tree_did_not_move(tmp_path: Path) -> None:
    memo_module = pytest.importorskip("lockd.memo")
    env = made(tmp_path, torch(), link="symlink")
    state_folder = str(tmp_path / "state")

    def look() -> Facts:
        disk = Disk(cache_dir=state_folder)
        found = Facts(seen(env.prefix, disk=disk, memo=memo_module.StateMemo(state_folder)).facts)
        disk.save()
        return found

    first = look()
    assert not differences(first, look())
    with_times_kept((env.site / "torch/fx/_symbolic_trace.py").resolve(), "return flag", "return True")
    assert set(differences(first, look())) == {"package:train/torch"}


# -- real packages -----------------------------------------------------------------------------------------------------


def from_index(folder: Path, requirement: str) -> Path:
    """The wheel of a requirement, from the index that pip is set up with on this machine."""
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--quiet", "--dest", str(folder), requirement]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"no {requirement} to be had: {done.stderr.strip().splitlines()[-1]}")
    (wheel,) = folder.glob("*.whl")
    return wheel


@pytest.mark.slow
@pytest.mark.network
def test_real_torch_of_pip_and_of_uv_are_the_same_package(tmp_path: Path) -> None:
    """The torch of one index, by both installers: equal in all attributes, sound, and nothing unowned."""
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    ours, theirs = build_venv(tmp_path / "a/venv"), build_venv(tmp_path / "b/venv")
    wheel = from_index(tmp_path / "wheel", "torch==2.13.0")
    install(ours, wheel, by="pip")
    install(theirs, wheel, by="uv")
    first, second = package(ours.prefix, "torch"), package(theirs.prefix, "torch")
    assert first.attributes == second.attributes
    assert first.told["modified"] == second.told["modified"] == 0 and state(first) == ""
    assert str(first.attributes["version"]).startswith("2.13.0+") and len(str(first.attributes["git"])) == 40
    assert unowned(ours.prefix).attributes == unowned(theirs.prefix).attributes == {"files": 0}
    before = facts(theirs.prefix)
    with_times_kept(theirs.site / "torch/fx/_symbolic_trace.py", "def is_fx_tracing", "def is_fx_tracinG")
    (difference,) = differences(before, facts(theirs.prefix)).values()
    assert "torch/fx/_symbolic_trace.py" in python.word(difference)
    for folder in ("a", "b", "wheel"):  # two gigabytes, which pytest would keep
        shutil.rmtree(tmp_path / folder)
