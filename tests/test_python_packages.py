"""Environments in odd states: half-removed, doubled, tampered with, installed by others. Each kind is told, never
passed over."""

from __future__ import annotations

import base64
import hashlib
import os
import socket
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lockd.disk import Disk, Tree, Trouble
from lockd.facts import ABSENT, Fact, Facts, Unknown
from lockd.findings import Breach, Difference
from lockd.probes import python
from lockd.rules import PackagePin, Policy, PythonRule
from tests.python_looks import differences, facts, package, rule_of, seen, state, unknown, unowned
from tests.wheels import Env, Wheel, build_venv, install, record_hash

TORCH = {
    "torch/__init__.py": "x = 1\n",
    "torch/version.py": "__version__ = '2.11.0+cu128'\ncuda = '12.8'\ngit_version = 'abc'\n",
    "torch/lib/libtorch.so": "ELF",
}


@pytest.fixture
def env(tmp_path: Path) -> Env:
    """A venv with torch in it."""
    made = build_venv(tmp_path / "venv")
    put(made, Wheel("torch", "2.11.0", TORCH))
    return made


def put(env: Env, wheel: Wheel, *, by: str = "uv") -> Path:
    """Unpack a wheel as an installer would, without one: what these tests are about is done to it afterwards."""
    rows = []
    for path, content in wheel.members().items():
        target = env.site / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content)
        rows.append((path, record_hash(content), str(len(content))))
    rows += [(path, *row) for path, row in wheel.rows.items()]
    info = env.site / wheel.info
    (info / "INSTALLER").write_text(by)
    text = "".join(",".join(row) + "\n" for row in rows)
    (info / "RECORD").write_text(text + f"{wheel.info}/INSTALLER,,\n{wheel.info}/RECORD,,\n")
    return info


def row(env: Env, name: str, old: str, new: str) -> None:
    """Edit RECORD."""
    record = env.info(name) / "RECORD"
    text = record.read_text()
    assert old in text
    record.write_text(text.replace(old, new))


# -- metadata that is not whole ----------------------------------------------------------------------------------------


def test_a_lost_record_is_a_change_and_unverifiable(env: Env) -> None:
    before = facts(env.prefix)
    (env.info("torch") / "RECORD").unlink()
    moved = differences(before, facts(env.prefix))["package:train/torch"].attributes
    assert moved["state"] == (None, "unverifiable: no RECORD") and moved["record"][1] is None
    assert unowned(env.prefix).attributes["files"] == 0, "its files still are its own"


def test_without_record_an_edit_still_is_a_change_of_content(env: Env) -> None:
    (env.info("torch") / "RECORD").unlink()
    before = facts(env.prefix)
    (env.site / "torch/__init__.py").write_text("x = 2\n")
    assert set(differences(before, facts(env.prefix))["package:train/torch"].attributes) == {"content"}


@pytest.mark.parametrize("text", [None, "", "\n", "Metadata-Version: 2.1\n", "\xff\x00"])
def test_missing_or_empty_metadata_is_broken(env: Env, text: str | None) -> None:
    metadata = env.info("torch") / "METADATA"
    metadata.unlink() if text is None else metadata.write_text(text, encoding="latin-1")
    fact = package(env.prefix, "torch")
    assert state(fact).startswith("broken: METADATA")
    assert fact.attributes["version"] == "2.11.0+cu128", "the folder and the version file still tell"
    assert fact.told["modified"] == 1


def test_a_folder_that_only_holds_a_licence_is_stale_metadata(env: Env) -> None:
    """Entware#1052: an uninstall left `x.dist-info/LICENSE`."""
    (env.site / "gone-1.0.dist-info").mkdir()
    (env.site / "gone-1.0.dist-info/LICENSE").write_text("free")
    fact = package(env.prefix, "gone")
    assert state(fact) == "broken: METADATA missing; unverifiable: no RECORD"


def test_metadata_that_names_another_package_is_broken(env: Env) -> None:
    metadata = env.info("torch") / "METADATA"
    metadata.write_text(metadata.read_text().replace("Name: torch", "Name: numpy"))
    assert "broken: METADATA names numpy" in state(package(env.prefix, "torch"))
    assert "package:train/numpy" not in facts(env.prefix)


def test_two_metadata_folders_of_one_name_are_a_duplicate(env: Env) -> None:
    """cpython#100666, importlib_metadata#106: which one wins depends on the order of a folder."""
    before = facts(env.prefix)
    put(env, Wheel("Torch", "2.10.0"))
    fact = package(env.prefix, "torch")
    assert "duplicate: Torch-2.10.0.dist-info, torch-2.11.0.dist-info" in state(fact)
    assert fact.attributes["version"] == "2.10.0, 2.11.0"
    assert "duplicate" in python.word(differences(before, facts(env.prefix))["package:train/torch"])


def test_an_empty_older_metadata_folder_does_not_win(env: Env) -> None:
    """importlib_metadata#457: an empty folder made version() return None."""
    (env.site / "torch-2.10.0.dist-info").mkdir()
    fact = package(env.prefix, "torch")
    assert fact.attributes["metadata_version"] == "2.11.0"
    assert "duplicate: torch-2.10.0.dist-info, torch-2.11.0.dist-info" in state(fact)


def test_a_folder_with_requested_alone_is_seen_beside_the_sound_one(env: Env) -> None:
    (env.site / "torch-2.12.0.dist-info").mkdir()
    (env.site / "torch-2.12.0.dist-info/REQUESTED").write_text("")
    fact = package(env.prefix, "torch")
    assert "duplicate" in state(fact) and fact.attributes["metadata_version"] == "2.11.0"


def test_names_are_equal_whatever_their_spelling(env: Env) -> None:
    """importlib_metadata#459: METADATA says Cython, the folder cython."""
    put(env, Wheel("Ruamel.YAML_clib", "1", {"ruamel_yaml_clib.py": ""}))
    assert package(env.prefix, "ruamel-yaml-clib").subject == "train/ruamel-yaml-clib"


# -- leftovers ---------------------------------------------------------------------------------------------------------


def test_a_leftover_is_told_on_the_package_that_it_was(env: Env) -> None:
    """pip#10452: `Ignoring invalid distribution -orch`."""
    before = facts(env.prefix)
    for name in ("~orch", "~-rch", "~orch-2.10.0.dist-info"):
        (env.site / name).mkdir()
        (env.site / name / "file").write_text("x")
    assert state(package(env.prefix, "torch")) == "leftover ~-rch, ~orch, ~orch-2.10.0.dist-info"
    assert set(differences(before, facts(env.prefix))) == {"package:train/torch"}


def test_a_leftover_without_its_package_folds_into_the_package_that_is_missing(env: Env) -> None:
    before = facts(env.prefix)
    (env.site / "torch").rename(env.site / "~orch")
    env.info("torch").rename(env.site / "~orch-2.11.0.dist-info")
    found = differences(before, facts(env.prefix))
    assert list(found) == ["package:train/torch"] and found["package:train/torch"].change == "missing"
    said = "torch 2.11.0+cu128 is gone; its removal left ~orch, ~orch-2.11.0.dist-info"
    assert python.word(found["package:train/torch"]) == said
    (env.site / "mine.py").write_text("")
    assert set(differences(before, facts(env.prefix))) == {"package:train/torch", "unowned:train"}, "more than that"


def test_a_leftover_of_something_else_is_a_finding_of_its_own(env: Env) -> None:
    before = facts(env.prefix)
    (env.site / "torch").rename(env.site / "~umpy")
    env.info("torch").rename(env.site / "~umpy-2.11.0.dist-info")
    assert set(differences(before, facts(env.prefix))) == {"package:train/torch", "unowned:train"}


def test_a_link_in_the_place_of_a_packages_folder_is_said(env: Env) -> None:
    before = facts(env.prefix)
    (env.site / "torch").rename(env.prefix / "elsewhere")
    (env.site / "torch").symlink_to(env.prefix / "elsewhere")
    found = differences(before, facts(env.prefix))
    assert list(found) == ["package:train/torch"]
    said = python.word(found["package:train/torch"])
    assert f"torch is a link to {env.prefix}/elsewhere" in said and "missing" not in said


def test_a_link_deep_in_a_package_is_named(env: Env) -> None:
    put(env, Wheel("deep", "1", {"deep/__init__.py": "", "deep/a/b/__init__.py": "x = 1\n"}))
    before = facts(env.prefix)
    (env.site / "deep/a/b").rename(env.prefix / "elsewhere")
    (env.site / "deep/a/b").symlink_to(env.prefix / "elsewhere")
    found = differences(before, facts(env.prefix))
    assert list(found) == ["package:train/deep"]
    assert f"deep/a/b is a link to {env.prefix}/elsewhere" in python.word(found["package:train/deep"])


# -- rows that are not true --------------------------------------------------------------------------------------------


def test_a_cut_hash_is_a_violation(env: Env) -> None:
    """tirith#155: `sha256=AAAA` was passed over as unverifiable."""
    row(env, "torch", record_hash(b"ELF"), "sha256=AAAA")
    assert state(package(env.prefix, "torch")).startswith("malformed RECORD row: torch/lib/libtorch.so")


@pytest.mark.parametrize(
    "hashed", ["md5=1B2M2Y8AsgTpgAmY7PhCfg", "sha256", "sha256=!!!", "crc=AA", "sha1=2jmj7l5rSw0yVb_vlWAYkK_YBwk"]
)
def test_a_hash_that_proves_nothing_is_a_violation(env: Env, hashed: str) -> None:
    row(env, "torch", record_hash(b"ELF"), hashed)
    assert "malformed RECORD row" in state(package(env.prefix, "torch"))


def test_a_longer_hash_is_checked_as_well(env: Env) -> None:
    longer = base64.urlsafe_b64encode(hashlib.sha512(b"ELF").digest()).rstrip(b"=").decode()
    row(env, "torch", record_hash(b"ELF"), f"sha512={longer}")
    assert (package(env.prefix, "torch").told["modified"], state(package(env.prefix, "torch"))) == (0, "")
    (env.site / "torch/lib/libtorch.so").write_text("fle")
    assert package(env.prefix, "torch").told["modified_files"] == ("torch/lib/libtorch.so",)


def test_rows_without_hash_are_unverifiable(env: Env) -> None:
    row(env, "torch", f"{record_hash(b'ELF')},3", ",")
    assert state(package(env.prefix, "torch")) == "unverifiable: 1 of 5 files are listed without a hash"


def test_a_row_outside_the_environment_is_told_and_never_read(env: Env, monkeypatch: pytest.MonkeyPatch) -> None:
    outside = env.prefix.parent / "secret"
    outside.write_text("secret")
    asked: list[str] = []
    digests = Disk.digests

    def noted(disk: Disk, paths: Iterable[str]) -> dict[str, str | Trouble]:
        asked.extend(wanted := list(paths))
        return digests(disk, wanted)

    monkeypatch.setattr(Disk, "digests", noted)
    for path in ("../../../../secret", str(outside), "torch/../../../../../secret"):
        row(env, "torch", "torch/lib/libtorch.so,", f"{path},{record_hash(b'other')},5\ntorch/lib/libtorch.so,")
    assert "RECORD row outside the environment: ../../../../secret" in state(package(env.prefix, "torch"))
    assert asked and str(outside) not in asked


def test_a_folder_linked_out_of_the_environment_is_not_read_through(env: Env, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere/libtorch.so").write_text("ELF")
    (env.site / "torch/lib/libtorch.so").unlink()
    (env.site / "torch/lib").rmdir()
    (env.site / "torch/lib").symlink_to(tmp_path / "elsewhere")
    assert package(env.prefix, "torch").told["modified_files"] == ("torch/lib/libtorch.so",)


@pytest.mark.parametrize("kind", ["folder", "fifo", "socket", "dangling link", "loop"])
def test_a_listed_file_that_is_no_file_neither_hangs_nor_passes(env: Env, kind: str) -> None:
    path = env.site / "torch/lib/libtorch.so"
    path.unlink()
    if kind == "folder":
        path.mkdir()
    elif kind == "fifo":
        os.mkfifo(path)
    elif kind == "socket":
        here = Path.cwd()
        os.chdir(path.parent)  # a socket's path may not be long
        try:
            socket.socket(socket.AF_UNIX).bind(path.name)
        finally:
            os.chdir(here)
    else:
        path.symlink_to("nowhere" if kind == "dangling link" else path.name)
    found = package(env.prefix, "torch")
    assert found.told["modified_files"] == ("torch/lib/libtorch.so",)


def test_odd_names_in_record_are_read_and_shown_escaped(env: Env) -> None:
    names = [b"two\nlines.py", b"caf\xe9.py", b'quo"te.py', b"com,ma.py"]
    info = put(env, Wheel("odd", "1.0"))
    with (info / "RECORD").open("ab") as record:
        for name in names:
            (Path(os.fsdecode(os.fsencode(env.site) + b"/" + name))).write_bytes(b"x")
            record.write(b'"' + name.replace(b'"', b'""') + b'",' + record_hash(b"x").encode() + b",1\n")
    assert unowned(env.prefix).attributes["files"] == 0
    assert package(env.prefix, "odd").told["modified"] == 0
    Path(os.fsdecode(os.fsencode(env.site) + b"/two\nlines.py")).write_bytes(b"y")
    Path(os.fsdecode(os.fsencode(env.site) + b"/caf\xe9.py")).write_bytes(b"y")
    assert package(env.prefix, "odd").told["modified_files"] == ("caf\\xe9.py", "two\\nlines.py")


def test_a_file_that_cannot_be_read_makes_its_package_unknown(env: Env, monkeypatch: pytest.MonkeyPatch) -> None:
    victim = str(env.site / "torch/lib/libtorch.so")
    digests = Disk.digests

    def refused(disk: Disk, paths: list[str]) -> dict[str, str | Trouble]:
        found = digests(disk, paths)
        return {
            path: Trouble(path, "permission denied") if path == victim else digest for path, digest in found.items()
        }

    monkeypatch.setattr(Disk, "digests", refused)
    assert unknown(facts(env.prefix), "package:train/torch").reason == f"{victim}: permission denied"


def test_a_folder_that_cannot_be_listed_is_unknown_not_missing(env: Env, monkeypatch: pytest.MonkeyPatch) -> None:
    tree = Disk.tree
    trouble = Trouble(str(env.site / "torch/lib"), "permission denied")

    def refused(disk: Disk, root: str, *words: tuple[str, ...], follow_root: bool = False) -> Tree:
        found = tree(disk, root, *words, follow_root=follow_root)
        if root != str(env.site):
            return found
        entries = {path: entry for path, entry in found.entries.items() if not path.startswith("torch/lib/")}
        return replace(found, entries=entries, troubles=(trouble,))

    monkeypatch.setattr(Disk, "tree", refused)
    found = facts(env.prefix)
    assert "permission denied" in unknown(found, "package:train/torch").reason
    assert "permission denied" in unknown(found, "unowned:train").reason


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
def test_what_a_plain_user_may_not_read_is_unknown(env: Env) -> None:
    (env.site / "torch/version.py").chmod(0)
    assert "permission denied" in unknown(facts(env.prefix), "package:train/torch").reason.lower()
    (env.site / "torch/version.py").chmod(0o644)
    (env.site / "torch/lib").chmod(0)
    assert "permission denied" in unknown(facts(env.prefix), "package:train/torch").reason.lower()
    (env.site / "torch/lib").chmod(0o755)
    env.site.chmod(0)
    found = facts(env.prefix)
    env.site.chmod(0o755)
    assert list(found) == ["python:train"] and isinstance(found["python:train"], Unknown)


def test_an_unreadable_site_folder_makes_the_environment_unknown(env: Env, monkeypatch: pytest.MonkeyPatch) -> None:
    trouble = Trouble(str(env.site), "permission denied")
    monkeypatch.setattr(Disk, "tree", lambda disk, root, *_, **__: Tree(root, {}, (trouble._replace(path=root),), "x"))
    assert list(facts(env.prefix)) == ["python:train"]
    assert "permission denied" in unknown(facts(env.prefix), "python:train").reason


def test_no_environment_is_an_absent_fact(tmp_path: Path) -> None:
    assert seen(tmp_path / "nowhere").facts == (Fact("python", "train", ABSENT),)


# -- unowned files -----------------------------------------------------------------------------------------------------


def test_a_file_of_no_package_is_one_difference_with_its_name(env: Env) -> None:
    before = facts(env.prefix)
    (env.site / "sneaky.py").write_text("import os\n")
    (env.site / "torch/extra.py").write_text("x\n")
    (difference,) = differences(before, facts(env.prefix)).values()
    assert difference.name == "unowned:train"
    assert python.word(difference) == "files of train that belong to no package: 0 → 2: sneaky.py, torch/extra.py"
    assert set(seen(env.prefix).manifests()["unowned:train"]) == {"sneaky.py", "torch/extra.py"}


def test_an_edited_unowned_file_is_a_difference(env: Env) -> None:
    (env.site / "sneaky.py").write_text("a = 1\n")
    before = facts(env.prefix)
    (env.site / "sneaky.py").write_text("a = 2\n")
    assert set(differences(before, facts(env.prefix))["unowned:train"].attributes) == {"digest"}


def test_start_up_code_is_not_unowned(env: Env) -> None:
    before = facts(env.prefix)
    (env.site / "zz.pth").write_text("import os\n")
    (env.site / "sitecustomize.py").write_text("x = 1\n")
    assert set(differences(before, facts(env.prefix))) == {"python:train"}


def test_a_link_among_unowned_files_is_not_read_through(env: Env, tmp_path: Path) -> None:
    (tmp_path / "target").write_text("one")
    (env.site / "linked.py").symlink_to(tmp_path / "target")
    before = facts(env.prefix)
    (tmp_path / "target").write_text("two")
    assert not differences(before, facts(env.prefix))
    assert seen(env.prefix).manifests()["unowned:train"] == {"linked.py": f"-> {tmp_path}/target"}


def test_installers_notes_that_no_row_lists_are_owned(env: Env) -> None:
    (env.info("torch") / "uv_cache.json").write_text("{}")
    (env.info("torch") / "REQUESTED").write_text("")
    assert unowned(env.prefix).attributes["files"] == 0


def test_byte_code_whose_source_is_gone_is_unowned(env: Env) -> None:
    (env.site / "torch/__pycache__").mkdir()
    (env.site / "torch/__pycache__/__init__.cpython-311.pyc").write_bytes(b"x")
    assert unowned(env.prefix).attributes["files"] == 0
    (env.site / "torch/__pycache__/gone.cpython-311.pyc").write_bytes(b"x")
    assert unowned(env.prefix).told["examples"] == ("torch/__pycache__/gone.cpython-311.pyc",)


# -- older forms -------------------------------------------------------------------------------------------------------


def test_an_egg_info_folder_with_its_own_list_is_a_package(env: Env) -> None:
    info = env.site / "old-1.0-py3.11.egg-info"
    info.mkdir()
    (info / "PKG-INFO").write_text("Metadata-Version: 1.1\nName: Old\nVersion: 1.0\n")
    (info / "installed-files.txt").write_text("../old.py\nPKG-INFO\n")
    (env.site / "old.py").write_text("x = 1\n")
    before = facts(env.prefix)
    assert package(env.prefix, "old").attributes["version"] == "1.0"
    assert state(package(env.prefix, "old")).startswith("unverifiable: ")
    (env.site / "old.py").write_text("x = 2\n")
    assert set(differences(before, facts(env.prefix))) == {"package:train/old"}


def test_a_distribution_package_of_one_file_is_a_package_without_record(env: Env) -> None:
    """Debian's and distutils' `name-version.egg-info` file."""
    (env.site / "six-1.16.0.egg-info").write_text("Metadata-Version: 1.1\nName: six\nVersion: 1.16.0\n")
    (env.site / "six.py").write_text("x\n")
    fact = package(env.prefix, "six")
    assert fact.attributes["version"] == "1.16.0" and state(fact) == "unverifiable: no RECORD"
    assert unowned(env.prefix).attributes["files"] == 0


def test_an_egg_link_beside_a_regular_install_is_a_duplicate(env: Env, tmp_path: Path) -> None:
    """pip#718: a regular and an editable install of one package, both there."""
    (tmp_path / "checkout").mkdir()
    (env.site / "torch.egg-link").write_text(f"{tmp_path}/checkout\n.")
    fact = package(env.prefix, "torch")
    assert "duplicate: torch-2.11.0.dist-info, torch.egg-link" in state(fact)
    assert fact.attributes["origin"] == f"editable {tmp_path}/checkout"


@pytest.mark.skipif(not Path("/usr/lib/python3/dist-packages").is_dir(), reason="no Python of Debian's here")
def test_packages_of_the_system_are_never_sound_without_record() -> None:
    found = facts("/usr/bin/python3")
    packages = [
        fact for fact in found.known() if fact.kind == "package" and str(fact.told["root"]).endswith("dist-packages")
    ]
    bare = [fact for fact in packages if "record" not in fact.attributes]
    if not bare:
        pytest.skip("no package without RECORD in this system's dist-packages")
    assert all("unverifiable" in state(fact) and fact.attributes["content"] for fact in bare)


# -- pins --------------------------------------------------------------------------------------------------------------


def broken(env: Env, **words: Any) -> list[Breach]:
    rule = rule_of(env.prefix, **words)
    policy = Policy("tests", python=(PythonRule("other", "/nowhere"), rule))
    return list(python.breaches(rule, policy, Facts(seen(env.prefix, **words).facts)))


@pytest.mark.parametrize(
    "pin", ["2.11.0", "==2.11.0", "2.11.0+cu128", "==2.11.0+cu128", ">=2.10,<3", "~=2.11.0", "==2.11.*"]
)
def test_pins_that_hold(env: Env, pin: str) -> None:
    assert broken(env, packages={"torch": pin}) == []


@pytest.mark.parametrize("pin", ["2.11.0+cu130", "2.11.0+cu1", "==2.10.0", "<2.11", "!=2.11.0", "not a version"])
def test_pins_that_are_broken(env: Env, pin: str) -> None:
    (breach,) = broken(env, packages={"torch": pin})
    assert (breach.fact, breach.key, breach.found) == (
        "package:train/torch",
        "python[1].packages.torch",
        "2.11.0+cu128",
    )
    assert breach.wanted == pin and "2.11.0+cu128" in breach.text


def test_cuda_hip_and_git_are_exact(env: Env) -> None:
    found = broken(
        env, packages={"Torch": PackagePin(version="2.11.0", cuda="13.0", hip="6.2", git="abc", on_drift="warn")}
    )
    assert [(one.attribute, one.wanted, one.found) for one in found] == [("cuda", "13.0", "12.8"), ("hip", "6.2", None)]
    assert found[0].text == "CUDA 13.0 pinned, 12.8 found" and found[0].on_drift == "warn"


def test_a_pinned_package_that_is_not_there_is_a_breach(env: Env) -> None:
    (breach,) = broken(env, packages={"Flash_Attn": "2.8.3", "nvidia-*": "==1"})
    assert (breach.fact, breach.text) == ("package:train/flash-attn", "flash-attn is not installed, pinned 2.8.3")


def test_a_glob_pin_holds_every_package_that_it_means(env: Env) -> None:
    put(env, Wheel("nvidia-nccl-cu12", "2.27.5"))
    put(env, Wheel("nvidia_cudnn.cu12", "9.1"))
    found = broken(env, packages={"NVIDIA_*": "2.27.5"})
    assert [one.fact for one in found] == ["package:train/nvidia-cudnn-cu12"]


def test_forbidden_packages_are_breaches_by_name_and_glob(env: Env) -> None:
    put(env, Wheel("flashinfer_python", "0.6.11"))
    put(env, Wheel("SGLang", "0.5"))
    found = broken(env, forbid=("sglang", "FlashInfer*"))
    assert [(one.fact, one.key, one.forbidden) for one in found] == [
        ("package:train/sglang", "python[1].forbid[0]", True),
        ("package:train/flashinfer-python", "python[1].forbid[1]", True),
    ]


def test_an_unreadable_environment_breaks_no_pin_but_its_own(env: Env) -> None:
    rule = rule_of(env.prefix, packages={"torch": "2.11.0"})
    found = Facts([Unknown("python", "train", "permission denied")])
    assert list(python.breaches(rule, Policy("tests", python=(rule,)), found)) == []


# -- severity, claims, watching ----------------------------------------------------------------------------------------


def test_severities_come_from_the_rule_and_the_pin() -> None:
    rule = PythonRule("train", "/v", extra="record", unowned="ignore", packages={"torch": PackagePin(on_drift="warn")})
    policy = Policy("tests", on_drift="block", python=(rule,))

    def severity(kind: str, subject: str, change: str = "changed") -> str:
        return python.severity(rule, policy, kind, subject, change)

    assert severity("package", "train/numpy") == "block" and severity("package", "train/numpy", "added") == "record"
    assert severity("package", "train/torch") == "warn" and severity("package", "train/torch", "forbidden") == "block"
    assert severity("unowned", "train") == "ignore" and severity("python", "train") == "block"


def test_a_rule_claims_its_own_environment_only() -> None:
    rule = PythonRule("train", "/v")
    assert python.claims(rule, "package", "train/torch") and python.claims(rule, "python", "train")
    assert not python.claims(rule, "package", "other/torch") and not python.claims(rule, "unowned", "training")


def test_what_is_watched_is_where_the_environment_lies(env: Env, tmp_path: Path) -> None:
    watched = set(python.watched(rule_of(env.prefix)))
    assert {str(env.site), str(env.bin), str(env.prefix / "pyvenv.cfg")} <= watched
    assert list(python.watched(rule_of(tmp_path / "nowhere"))) == [str(tmp_path / "nowhere")]


def test_every_attribute_is_documented(env: Env) -> None:
    put(env, Wheel("odd", "1.0", rows={"gone.py": (record_hash(b"x"), "1")}))
    (env.site / "loose.py").write_text("x")
    for fact in facts(env.prefix).known():
        assert {*fact.attributes, *fact.told} <= python.ATTRIBUTES[fact.kind].keys(), fact


def test_a_new_package_and_a_lost_one_are_worded(env: Env) -> None:
    before = facts(env.prefix)
    put(env, Wheel("helper", "1.0"))
    assert python.word(differences(before, facts(env.prefix))["package:train/helper"]) == "helper 1.0 is new"
    assert python.word(differences(facts(env.prefix), before)["package:train/helper"]) == "helper 1.0 is gone"


def test_a_broken_pin_alone_is_worded_by_the_pin(env: Env) -> None:
    (breach,) = broken(env, packages={"torch": "2.11.0+cu130"})
    difference = Difference(breach.fact, "changed", None, package(env.prefix, "torch"), ("policy",), breaches=(breach,))
    assert python.word(difference) == "torch 2.11.0+cu130 pinned, 2.11.0+cu128 found"


def test_the_order_of_installs_never_matters(tmp_path: Path) -> None:
    wheels = [Wheel(name, "1.0", {"shared/a.py": name, f"{name}.py": ""}) for name in ("alpha", "beta", "gamma")]
    found = []
    for number, order in enumerate((wheels, wheels[::-1])):
        env = build_venv(tmp_path / str(number))
        for wheel in order:
            put(env, wheel)
        (env.site / "shared/a.py").write_text("last")
        found.append({name: fact.attributes for name, fact in facts(env.prefix).items() if isinstance(fact, Fact)})
    assert found[0] == found[1]


def test_real_pip_agrees_with_the_hand_made_install(env: Env, tmp_path: Path) -> None:
    """What `put` does in these tests is what an installer does."""
    other = build_venv(tmp_path / "other")
    install(other, Wheel("torch", "2.11.0", TORCH))
    assert package(other.prefix, "torch").attributes == package(env.prefix, "torch").attributes


def test_the_first_of_two_headers_counts(env: Env) -> None:
    metadata = env.info("torch") / "METADATA"
    metadata.write_text(metadata.read_text().replace("Version: 2.11.0\n", "Version: 2.11.0\nVersion: 9\nName: other\n"))
    fact = package(env.prefix, "torch")
    assert fact.attributes["metadata_version"] == "2.11.0" and state(fact) == ""


def test_many_packages_without_record_do_not_claim_each_others_files(env: Env) -> None:
    for name in ("alpha", "beta"):
        put(env, Wheel(name, "1.0", {f"{name}/__init__.py": "", f"{name}_more.py": "", f"{name}/data.txt": name}))
        (env.info(name) / "RECORD").unlink()
    (env.info("beta") / "top_level.txt").write_text("alpha\nbeta\nbeta_more\n")
    manifests = seen(env.prefix).manifests()
    assert {"alpha/__init__.py", "alpha/data.txt"} <= manifests["package:train/alpha"].keys()
    assert {"beta/data.txt", "beta_more.py"} <= manifests["package:train/beta"].keys()
    assert not manifests["package:train/alpha"].keys() & manifests["package:train/beta"].keys()
    assert manifests["unowned:train"].keys() == {"alpha_more.py"}
