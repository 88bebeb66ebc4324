"""Conda prefixes: builds and channels, files of the whole prefix, and what pip or a failed update does to them."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from lockd.facts import Facts
from lockd.probes import python
from lockd.rules import Policy
from tests.python_looks import differences, facts, package, rule_of, state, unknown, unowned
from tests.wheels import PYTHON


class Conda:
    """A conda-shaped prefix, as `conda create` leaves it."""

    def __init__(self, prefix: Path) -> None:
        self.prefix = prefix
        self.site = prefix / "lib" / PYTHON / "site-packages"
        for folder in (self.site, prefix / "bin", prefix / "conda-meta"):
            folder.mkdir(parents=True)
        self.add("python", f"{PYTHON[6:]}.7", "h955ad1f_0", {f"bin/{PYTHON}": "ELF python"})
        (prefix / "bin" / PYTHON).chmod(0o755)
        (prefix / "bin/python").symlink_to(PYTHON)

    def add(
        self,
        name: str,
        version: str,
        build: str,
        files: dict[str, str],
        *,
        channel: str = "https://conda.anaconda.org/conda-forge/linux-64",
        packed: dict[str, str] | None = None,
        links: dict[str, str] | None = None,
    ) -> Path:
        """Place a package's files and record. packed: files as they are in the package, where the prefix was written
        in."""
        paths: list[dict[str, Any]] = []
        for path, text in files.items():
            target = self.prefix / path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(text)
            was = (packed or {}).get(path, text)
            paths.append({"_path": path, "path_type": "hardlink", "sha256": sha(was), "sha256_in_prefix": sha(text)})
        for path, to in (links or {}).items():
            (self.prefix / path).symlink_to(to)
            paths.append({"_path": path, "path_type": "softlink", "sha256": sha("x"), "sha256_in_prefix": sha("x")})
        record: dict[str, Any] = {
            "name": name,
            "version": version,
            "build": build,
            "channel": channel,
            "subdir": "linux-64",
        }
        record |= {"depends": ["libgcc >=12"], "files": [one["_path"] for one in paths]}
        record["paths_data"] = {"paths_version": 1, "paths": paths}
        meta = self.prefix / f"conda-meta/{name}-{version}-{build}.json"
        meta.write_text(json.dumps(record))
        return meta

    def add_python(self, name: str, version: str, build: str, *, conda_name: str = "", **more: Any) -> Path:
        """A Python package with a dist-info whose RECORD has no hashes, as conda-build writes it."""
        inside = f"lib/{PYTHON}/site-packages"
        info = f"{inside}/{name}-{version}.dist-info"
        files = {
            f"{inside}/{name}/__init__.py": f"__version__ = {version!r}\n",
            f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
            f"{info}/INSTALLER": "conda\n",
            f"{info}/RECORD": f"{name}/__init__.py,,\n{name}-{version}.dist-info/METADATA,,\n",
        }
        return self.add(conda_name or name, version, build, files, **more)


def sha(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


@pytest.fixture
def conda(tmp_path: Path) -> Conda:
    made = Conda(tmp_path / "conda")
    made.add_python("numpy", "1.26.4", "py311_0")
    return made


def test_a_python_package_has_build_and_channel_of_its_record(conda: Conda) -> None:
    fact = package(conda.prefix, "numpy")
    assert (fact.attributes["build"], fact.attributes["channel"]) == ("py311_0", "conda-forge/linux-64")
    assert state(fact) == "" and fact.told["modified"] == 0 and fact.told["installer"] == "conda"
    assert unowned(conda.prefix).attributes == {"files": 0}


def test_another_build_of_one_version_is_drift(conda: Conda) -> None:
    before = facts(conda.prefix)
    (conda.prefix / "conda-meta/numpy-1.26.4-py311_0.json").unlink()
    conda.add_python("numpy", "1.26.4", "py311_1", channel="https://repo.anaconda.com/pkgs/main/linux-64")
    difference = differences(before, facts(conda.prefix))["package:train/numpy"]
    assert difference.attributes["build"] == ("py311_0", "py311_1")
    assert python.word(difference) == (
        "numpy 1.26.4: build py311_0 → py311_1; channel conda-forge/linux-64 → pkgs/main/linux-64"
    )


def test_an_edited_file_differs_from_condas_own_digest(conda: Conda) -> None:
    before = facts(conda.prefix)
    (conda.site / "numpy/__init__.py").write_text("patched")
    difference = differences(before, facts(conda.prefix))["package:train/numpy"]
    assert "numpy/__init__.py" in python.word(difference)
    assert package(conda.prefix, "numpy").told["modified"] == 1


def test_a_package_without_python_is_a_fact_of_the_prefix(conda: Conda) -> None:
    """rapidsai/ci-imgs#185: an update moved the libstdc++.so.6 link."""
    conda.add(
        "libstdcxx",
        "13.2",
        "h1",
        {"lib/libstdc++.so.6.0.32": "ELF"},
        links={"lib/libstdc++.so.6": "libstdc++.so.6.0.32"},
    )
    before = facts(conda.prefix)
    sound = package(conda.prefix, "libstdcxx")
    assert (sound.attributes["version"], sound.told["modified"]) == ("13.2", 0)
    (conda.prefix / "lib/libstdc++.so.6").unlink()
    (conda.prefix / "lib/libstdc++.so.6").symlink_to("libstdc++.so.6.0.29")
    assert set(differences(before, facts(conda.prefix))["package:train/libstdcxx"].attributes) == {"content"}
    (conda.prefix / "lib/libstdc++.so.6").unlink()
    assert package(conda.prefix, "libstdcxx").told["modified_files"] == ("lib/libstdc++.so.6",)


def test_the_prefix_that_conda_writes_into_files_is_no_part_of_the_identity(tmp_path: Path) -> None:
    found = []
    for name in ("one", "another"):
        made = Conda(tmp_path / name)
        packed = {"bin/tool": "#!/placeholder/bin/python\nx\n", "lib/a.pc": "prefix=/placeholder\n"}
        made.add(
            "tool",
            "1",
            "0",
            {path: text.replace("/placeholder", str(made.prefix)) for path, text in packed.items()},
            packed=packed,
        )
        found.append(made)
    first, second = (package(made.prefix, "tool") for made in found)
    assert first.attributes == second.attributes
    (found[1].prefix / "lib/a.pc").write_text("edited")
    assert package(found[1].prefix, "tool").attributes["content"] != first.attributes["content"]


def test_a_stale_second_metadata_folder_is_a_duplicate(conda: Conda) -> None:
    """conda leaves the older dist-info behind when an update is cut off."""
    conda.add_python("scipy", "1.11.0", "0").unlink()
    conda.add_python("scipy", "1.12.0", "0")
    assert "duplicate: scipy-1.11.0.dist-info, scipy-1.12.0.dist-info" in state(package(conda.prefix, "scipy"))


def test_pip_over_a_conda_package_is_told(conda: Conda) -> None:
    before = facts(conda.prefix)
    for file in ("METADATA", "RECORD", "INSTALLER"):
        (conda.site / "numpy-1.26.4.dist-info" / file).unlink()
    (conda.site / "numpy-1.26.4.dist-info").rmdir()
    info = conda.site / "numpy-2.0.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: numpy\nVersion: 2.0.0\n")
    (info / "RECORD").write_text("numpy-2.0.0.dist-info/RECORD,,\n")
    difference = differences(before, facts(conda.prefix))["package:train/numpy"]
    assert difference.attributes["version"] == ("1.26.4", "2.0.0")
    assert "conda records 1.26.4 py311_0, installed is 2.0.0" in python.word(difference)


def test_a_package_that_conda_calls_otherwise_is_one_fact_and_answers_to_both_names(conda: Conda) -> None:
    conda.add_python("torch", "2.5.1", "cuda124_0", conda_name="pytorch")
    found = facts(conda.prefix)
    assert "package:train/pytorch" not in found
    assert package(conda.prefix, "torch").attributes["conda"] == "pytorch"
    rule = rule_of(conda.prefix, packages={"pytorch": "2.5.0"}, forbid=("py*rch",))
    broken = list(python.breaches(rule, Policy("tests", python=(rule,)), Facts(found.values())))
    assert [(one.fact, one.forbidden) for one in broken] == [
        ("package:train/torch", True),
        ("package:train/torch", False),
    ]


@pytest.mark.parametrize("text", ["{", "[]", '{"version": "1"}', '{"name": "x", "paths_data": 3}', ""])
def test_a_record_that_cannot_be_read_makes_ownership_unknown(conda: Conda, text: str) -> None:
    (conda.prefix / "conda-meta/x.json").write_text(text)
    assert "conda-meta/x.json" in unknown(facts(conda.prefix), "unowned:train").reason


def test_a_record_that_is_none_breaks_its_package_and_nothing_else(conda: Conda) -> None:
    before = facts(conda.prefix)
    record = conda.prefix / "conda-meta/numpy-1.26.4-py311_0.json"
    record.write_text(record.read_text()[:90])
    found = differences(before, facts(conda.prefix))
    assert list(found) == ["package:train/numpy"]
    said = python.word(found["package:train/numpy"])
    assert said == "numpy 1.26.4: broken: conda-meta/numpy-1.26.4-py311_0.json is no conda record"


def test_a_library_that_no_record_owns_is_seen_when_it_leads_elsewhere(conda: Conda) -> None:
    link = conda.prefix / "lib/libcuda.so"
    link.symlink_to("libcuda.so.12")
    (conda.prefix / "lib/notes.txt").write_text("x")
    before = facts(conda.prefix)
    assert unowned(conda.prefix).told["examples"] == ("lib/libcuda.so",)
    link.unlink()
    link.symlink_to("libcuda.so.13")
    assert list(differences(before, facts(conda.prefix))) == ["unowned:train"]


def test_tokens_and_hosts_of_channels_are_left_out(conda: Conda) -> None:
    conda.add("a", "1", "0", {}, channel="https://conda.example.org/t/tk-secret/team/linux-64")
    conda.add("b", "1", "0", {}, channel="conda-forge")
    assert package(conda.prefix, "a").attributes["channel"] == "team/linux-64"
    assert package(conda.prefix, "b").attributes["channel"] == "conda-forge/linux-64"


def test_a_path_out_of_the_prefix_is_not_read(conda: Conda) -> None:
    (conda.prefix.parent / "secret").write_text("secret")
    meta = conda.add("evil", "1", "0", {"x": "x"})
    meta.write_text(meta.read_text().replace('"x"', '"../secret"'))
    assert "outside the environment" in unknown(facts(conda.prefix), "package:train/evil").reason
