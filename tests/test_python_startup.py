"""Start-up code of an environment: what runs or comes into sight before a script's first line, listed and never run."""

from __future__ import annotations

import hashlib
import os
import sys
import venv
from collections.abc import Callable
from pathlib import Path

import pytest

from lockd.disk import Disk
from lockd.facts import Fact, Unknown, Value
from lockd.findings import Difference
from lockd.look import Look
from lockd.probes.python.bytecode import NOTHING_STALE, Stale
from lockd.probes.python.interpreter import Interpreter, find
from lockd.probes.python.startup import ATTRIBUTES, is_startup_file, python_fact, word
from lockd.rules import Policy, PythonRule


@pytest.fixture(autouse=True)
def _own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))


IMPORT, ENTRY, FIRST, SECOND = b"import os\n", b"package:entry\n", b"x = 1\n", b"y = 1\n"


def make_venv(prefix: Path, *, system_site_packages: bool = False) -> Path:
    venv.EnvBuilder(with_pip=False, symlinks=True, system_site_packages=system_site_packages).create(prefix)
    return prefix


def site_of(prefix: Path) -> Path:
    return prefix / f"lib/python{sys.version_info[0]}.{sys.version_info[1]}/site-packages"


def nobody(path: str) -> str | None:
    return None


def looked(
    prefix: Path,
    owned: Callable[[str], str | None] = nobody,
    extra: tuple[str, ...] = (),
    stale: Stale = NOTHING_STALE,
    exclude: tuple[str, ...] = (),
) -> Fact:
    rule, look = PythonRule("train", str(prefix), exclude=exclude), Look(Policy("ct"), Disk())
    interpreter = find(rule, look.disk)
    assert isinstance(interpreter, Interpreter)
    fact = python_fact(rule, look, interpreter, owned, extra, stale)
    assert isinstance(fact, Fact), fact
    assert set(fact.attributes) | set(fact.told) <= set(ATTRIBUTES)
    return fact


def sha(content: bytes) -> str:
    return "sha256:" + hashlib.sha256(content).hexdigest()


def changed(before: Fact, after: Fact) -> str:
    names = set(before.attributes) | set(after.attributes)
    pairs = {name: (before.attributes.get(name), after.attributes.get(name)) for name in names}
    differing: dict[str, tuple[Value | None, Value | None]] = {name: p for name, p in pairs.items() if p[0] != p[1]}
    return word(Difference(after.name, "changed", before, after, ("lock",), differing))


def test_a_fresh_venv_states_version_binary_and_nothing_that_runs(tmp_path: Path) -> None:
    fact = looked(make_venv(tmp_path / "venv"))
    binary = Path(sys.base_prefix, "bin", f"python{sys.version_info[0]}.{sys.version_info[1]}").read_bytes()
    assert fact.attributes["version"] == ".".join(map(str, sys.version_info[:3]))
    assert fact.attributes["implementation"] == "cpython"
    assert fact.attributes["binary"] == sha(binary)
    assert {"pth", "roots", "extra", "state", "stale"}.isdisjoint(fact.attributes)


def test_equal_venvs_have_equal_facts_wherever_they_lie(tmp_path: Path) -> None:
    one, two = make_venv(tmp_path / "one"), make_venv(tmp_path / "elsewhere/two", system_site_packages=False)
    for prefix in (one, two):
        (prefix / "src").mkdir()
        (site_of(prefix) / "dev.pth").write_text(f"{prefix}/src\n")
        (site_of(prefix) / "run.pth").write_text("import os\n")
    facts = looked(one), looked(two)
    assert facts[0].attributes == facts[1].attributes
    assert facts[0].attributes["roots"] == ("src",)


def test_a_venv_named_by_a_link_has_the_facts_of_the_venv(tmp_path: Path) -> None:
    prefix = make_venv(tmp_path / "venv")
    (prefix / "src").mkdir()
    (site_of(prefix) / "dev.pth").write_text(f"{prefix}/src\n")
    (tmp_path / "current").symlink_to(prefix)
    assert looked(tmp_path / "current").attributes == looked(prefix).attributes


def test_an_executing_pth_is_listed_by_hash_and_never_run(tmp_path: Path) -> None:
    prefix, canary = make_venv(tmp_path / "venv"), tmp_path / "canary"
    before = looked(prefix)
    line = f"import pathlib; pathlib.Path({str(canary)!r}).touch()\n".encode()
    (site_of(prefix) / "zz_init.pth").write_bytes(line)
    after = looked(prefix)
    assert after.attributes["pth"] == (f"zz_init.pth {sha(line)}",)
    assert not canary.exists()
    assert changed(before, after) == "python train: zz_init.pth (runs code) at start-up"


def test_a_package_that_owns_it_does_not_clear_an_executing_pth(tmp_path: Path) -> None:
    """BerriAI/litellm#24512: the RECORD of the package listed it."""
    prefix = make_venv(tmp_path / "venv")
    owned = {str(site_of(prefix) / "litellm_init.pth"): "litellm"}
    (site_of(prefix) / "litellm_init.pth").write_text("import base64\n")
    first = looked(prefix, owned.get)
    (site_of(prefix) / "litellm_init.pth").write_text("import base64, os\n")
    second = looked(prefix, owned.get)
    assert first.told["owners"] == ("litellm_init.pth: litellm",)
    assert first.attributes["pth"] != second.attributes["pth"]
    assert changed(first, second) == "python train: litellm_init.pth changed"


@pytest.mark.parametrize("line", ["import\tos\n", "\ufeffimport os\n", "# nothing\n\nimport os\n"])
def test_what_site_would_run_is_what_runs_code(tmp_path: Path, line: str) -> None:
    prefix = make_venv(tmp_path / "venv")
    (site_of(prefix) / "a.pth").write_text(line, encoding="utf-8")
    assert looked(prefix).attributes["pth"] == (f"a.pth {sha(line.encode())}",)


@pytest.mark.parametrize(
    ("content", "listed"),
    [
        (b"/nowhere/at/all\n", "a.pth -> /nowhere/at/all"),
        (b"# only a comment\n", "a.pth adds nothing"),
        (b"", "a.pth adds nothing"),
        (b"importlib_metadata\n", "a.pth -> lib/{python}/site-packages/importlib_metadata"),
        (b"/bad\xff\n", "a.pth -> /bad\\xff"),
        (b"/nul\0\n", "a.pth adds nothing"),
    ],
)
def test_a_pth_that_runs_nothing_is_listed_by_its_paths(tmp_path: Path, content: bytes, listed: str) -> None:
    prefix = make_venv(tmp_path / "venv")
    (site_of(prefix) / "a.pth").write_bytes(content)
    wanted = listed.format(python=f"python{sys.version_info[0]}.{sys.version_info[1]}")
    assert looked(prefix).attributes["pth"] == (wanted,)


def test_a_pth_of_many_thousand_paths_is_counted_and_still_told_from_another(tmp_path: Path) -> None:
    prefix = make_venv(tmp_path / "venv")
    lines = [f"/nowhere/{number}\n" for number in range(5000)]
    (site_of(prefix) / "a.pth").write_text("".join(lines))
    one = looked(prefix)
    line = one.attributes["pth"]
    assert (
        isinstance(line, tuple)
        and len(line) == 1
        and line[0].startswith("a.pth -> 5000 paths, as digest ")
        and len(str(one)) < 20_000
    )
    (site_of(prefix) / "a.pth").write_text("".join([*lines[1:], "/nowhere/else\n"]))
    assert looked(prefix).attributes["pth"] != one.attributes["pth"]


def test_an_editable_installs_path_is_a_root_once(tmp_path: Path) -> None:
    prefix, checkout = make_venv(tmp_path / "venv"), tmp_path / "checkout"
    checkout.mkdir()
    (site_of(prefix) / "__editable__.flash-1.0.pth").write_text(f"{checkout}\n")
    (site_of(prefix) / "easy-install.pth").write_text(f"{checkout}\n")
    fact = looked(prefix)
    assert fact.attributes["roots"] == (str(checkout),)
    assert fact.attributes["pth"] == (
        f"__editable__.flash-1.0.pth -> {checkout}",
        f"easy-install.pth -> {checkout}",
    )


def test_a_start_file_runs_code_whatever_it_holds(tmp_path: Path) -> None:
    prefix = make_venv(tmp_path / "venv")
    (site_of(prefix) / "boot.start").write_text("package:entry\n")
    assert looked(prefix).attributes["pth"] == (f"boot.start {sha(ENTRY)}",)


def test_a_pth_that_is_a_fifo_or_a_broken_link_neither_hangs_nor_hides(tmp_path: Path) -> None:
    prefix = make_venv(tmp_path / "venv")
    os.mkfifo(site_of(prefix) / "fifo.pth")
    (site_of(prefix) / "gone.pth").symlink_to("/nowhere")
    (site_of(prefix) / "folder.pth").mkdir()
    listed = ("fifo.pth is no file", "folder.pth is no file", "gone.pth is no file")
    assert looked(prefix).attributes["pth"] == listed


def test_a_pth_linked_from_an_installers_cache_is_read_through_the_link(tmp_path: Path) -> None:
    prefix = make_venv(tmp_path / "venv")
    (tmp_path / "cached.pth").write_text("import os\n")
    (site_of(prefix) / "a.pth").symlink_to(tmp_path / "cached.pth")
    assert looked(prefix).attributes["pth"] == (f"a.pth {sha(IMPORT)}",)


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
def test_a_pth_that_cannot_be_read_makes_the_fact_unknown(tmp_path: Path) -> None:
    prefix = make_venv(tmp_path / "venv")
    (site_of(prefix) / "a.pth").touch(0)
    rule, look = PythonRule("train", str(prefix)), Look(Policy("ct"), Disk())
    unknown = find(rule, look.disk)
    assert isinstance(unknown, Unknown) and "a.pth" in unknown.reason


def test_sitecustomize_and_usercustomize_are_found_wherever_import_would(tmp_path: Path) -> None:
    prefix, checkout = make_venv(tmp_path / "venv"), tmp_path / "checkout"
    checkout.mkdir()
    base = looked(prefix).attributes.get("customize", ())  # some distributions ship one beside the standard library
    assert isinstance(base, tuple)
    (site_of(prefix) / "dev.pth").write_text(f"{checkout}\n")
    (checkout / "sitecustomize.py").write_text("x = 1\n")
    (site_of(prefix) / "usercustomize.py").write_text("y = 1\n")
    found = looked(prefix).attributes["customize"]
    own = (f"usercustomize.py {sha(SECOND)}", f"{checkout}/sitecustomize.py {sha(FIRST)}")
    assert found == (*base, *own)


def test_a_sitecustomize_that_is_a_package_counts_with_all_its_files(tmp_path: Path) -> None:
    """open-telemetry/opentelemetry-operator#1885"""
    prefix = make_venv(tmp_path / "venv")
    package = site_of(prefix) / "sitecustomize"
    (package / "__pycache__").mkdir(parents=True)
    (package / "__init__.py").write_text("from . import hook\n")
    (package / "hook.py").write_text("x = 1\n")
    first = looked(prefix).attributes["customize"]
    (package / "__pycache__/hook.cpython-311.pyc").write_bytes(b"compiled")
    assert looked(prefix).attributes["customize"] == first, "byte-code is derived"
    (package / "hook.py").write_text("x = 2\n")
    assert looked(prefix).attributes["customize"] != first


def test_system_site_packages_are_one_switch_with_what_it_brings(tmp_path: Path) -> None:
    prefix = make_venv(tmp_path / "venv")
    before = looked(prefix)
    config = prefix / "pyvenv.cfg"
    config.write_text(config.read_text().replace("packages = false", "packages = true"))
    after = looked(prefix, extra=("torch 2.9.0", "numpy 2.0", "torch 2.9.0"))
    assert (before.attributes["system_site"], after.attributes["system_site"]) == (False, True)
    assert after.attributes["extra"] == ("numpy 2.0", "torch 2.9.0")
    roots = after.attributes["roots"]
    assert isinstance(roots, tuple) and any(root.startswith("base:") for root in roots)
    said = changed(before, after)
    assert said.startswith("python train: include-system-site-packages is on; user site is on")
    assert "in sight: numpy 2.0, torch 2.9.0" in said


def test_the_user_site_of_a_system_switch_is_named_without_its_home(tmp_path: Path) -> None:
    prefix = make_venv(tmp_path / "venv", system_site_packages=True)
    minor = f"{sys.version_info[0]}.{sys.version_info[1]}"
    user = tmp_path / f"home/.local/lib/python{minor}/site-packages"
    user.mkdir(parents=True)
    (user / "evil.pth").write_text("import os\n")
    fact = looked(prefix)
    roots, pth = fact.attributes["roots"], fact.attributes["pth"]
    assert isinstance(roots, tuple) and roots[0] == f"~/.local/lib/python{minor}/site-packages"
    assert isinstance(pth, tuple) and any(line.startswith("~/.local/") and "evil.pth sha256:" in line for line in pth)


def test_of_two_packages_of_one_name_it_is_told_which_one_wins(tmp_path: Path) -> None:
    """astral-sh/uv#2038: a second torch beside the one of the base; and the user's before conda's own."""
    minor = f"{sys.version_info[0]}.{sys.version_info[1]}"
    user = tmp_path / f"home/.local/lib/python{minor}/site-packages"
    prefix = make_venv(tmp_path / "venv", system_site_packages=True)
    (user / "torch-2.9.0.dist-info").mkdir(parents=True)
    (site_of(prefix) / "torch-2.11.0.dist-info").mkdir()
    wins = (f"torch 2.11.0 of {site_of(prefix)} wins over 2.9.0 of {user}",)
    assert looked(prefix).told["doubles"] == wins
    conda = tmp_path / "conda"
    for folder in ("bin", "conda-meta", f"lib/python{minor}/site-packages/torch-2.1.dist-info"):
        (conda / folder).mkdir(parents=True)
    (conda / "bin/python").write_bytes(b"\x7fELF")
    before = looked(conda)
    assert before.told["doubles"] == (f"torch 2.9.0 of {user} wins over 2.1 of {site_of(conda)}",)
    after = looked(conda, extra=("torch 2.9.0",))
    assert changed(before, after).endswith(f"in sight: torch 2.9.0; {wins_of(before)}")


def wins_of(fact: Fact) -> str:
    lines = fact.told["doubles"]
    assert isinstance(lines, tuple)
    return ", ".join(lines)


def test_what_the_rule_excludes_by_name_is_left_out(tmp_path: Path) -> None:
    prefix = make_venv(tmp_path / "venv")
    before = looked(prefix)
    (site_of(prefix) / "noisy.pth").write_text(f"import os\n{tmp_path}\n")
    (site_of(prefix) / "usercustomize.py").touch()
    assert looked(prefix, exclude=("noisy.*", "usercustomize.py")).attributes == before.attributes
    assert looked(prefix, exclude=("other.pth",)).attributes != before.attributes


def test_a_base_python_that_is_gone_is_a_state_not_a_crash(tmp_path: Path) -> None:
    prefix = make_venv(tmp_path / "venv")
    before = looked(prefix)
    for name in (prefix / "bin").glob("python*"):
        name.unlink()
    (prefix / "bin/python").symlink_to("/usr/bin/python3.99")
    after = looked(prefix)
    assert after.attributes["state"] == "broken: bin/python -> /usr/bin/python3.99 (missing)"
    assert "binary" not in after.attributes
    assert changed(before, after).startswith("python train: broken: bin/python -> /usr/bin/python3.99 (missing)")


def test_another_interpreter_binary_is_seen_by_its_bytes(tmp_path: Path) -> None:
    prefix = make_venv(tmp_path / "venv")
    before = looked(prefix)
    target = prefix / "bin/python"
    content = Path(os.path.realpath(target)).read_bytes()
    target.unlink()
    target.write_bytes(content + b"\0")
    target.chmod(0o755)
    assert looked(prefix).attributes["binary"] == sha(content + b"\0") != before.attributes["binary"]


def test_condas_binary_is_the_packages_own_wherever_its_prefix_was_written_in(tmp_path: Path) -> None:
    digests = []
    for place in ("one", "another/place"):
        prefix = tmp_path / place
        for folder in ("bin", "conda-meta", "lib/python3.12/site-packages"):
            (prefix / folder).mkdir(parents=True)
        binary = b"\x7fELF" + str(prefix).encode()
        (prefix / "bin/python3.12").write_bytes(binary)
        inside = hashlib.sha256(binary).hexdigest()
        row = f'{{"_path": "bin/python3.12", "sha256": "{"a" * 64}", "sha256_in_prefix": "{inside}"}}'
        (prefix / "conda-meta/python-3.12.7-h1_0.json").write_text(f'{{"paths_data": {{"paths": [{row}]}}}}')
        digests.append(looked(prefix).attributes["binary"])
    assert digests == ["sha256:" + "a" * 64] * 2
    (prefix / "bin/python3.12").write_bytes(b"\x7fELF another")
    assert looked(prefix).attributes["binary"] == sha(b"\x7fELF another")


def test_pip_configuration_and_constraints_are_told_by_hash(tmp_path: Path) -> None:
    """hpc-ai-envs#29: a constraint file protects the builds of the image."""
    prefix, constraint = make_venv(tmp_path / "venv"), tmp_path / "constraint.txt"
    constraint.write_text("torch==2.11.0\n")
    (prefix / "pip.conf").write_text(f"[global]\nconstraint = {constraint}\n")
    told = looked(prefix).told["pip"]
    assert isinstance(told, tuple) and f"{constraint} {sha(constraint.read_bytes())}" in told


def test_what_byte_code_hides_is_told_and_what_it_runs_is_an_attribute(tmp_path: Path) -> None:
    prefix = make_venv(tmp_path / "venv")
    before = looked(prefix)
    fact = looked(prefix, stale=Stale(("a.py: foreign",), ("b.py: hidden",), ("c: lone",)))
    assert fact.attributes["stale"] == ("a.py: foreign",)
    assert (fact.told["hidden_edits"], fact.told["bytecode_notes"]) == (("b.py: hidden",), ("c: lone",))
    assert changed(before, fact) == "python train: byte-code of a.py: foreign"


@pytest.mark.parametrize(
    ("relative", "is_one"),
    [
        ("zz.pth", True),
        ("boot.start", True),
        ("sitecustomize.py", True),
        ("usercustomize.cpython-311-x86_64-linux-gnu.so", True),
        ("sitecustomize/__init__.py", True),
        ("lockd_gate.py", True),
        ("torch/zz.pth", False),
        ("sitecustomizer.py", False),
        ("torch/sitecustomize.py", False),
        ("torch.py", False),
    ],
)
def test_start_up_files_are_those_at_the_top_of_a_site_folder(relative: str, is_one: bool) -> None:
    assert is_startup_file(relative) is is_one


def test_each_name_of_the_interpreter_must_lead_to_it(tmp_path: Path) -> None:
    """A first line or a launch command may name bin/python3 while bin/python still is what it was."""
    prefix = make_venv(tmp_path / "venv")
    for name in ("python", "python3"):
        (prefix / "bin" / name).unlink()
        (prefix / "bin" / name).symlink_to(os.path.realpath(sys.executable))
    good = looked(prefix)
    assert "names" not in good.attributes
    (prefix / "bin/python").unlink()
    assert changed(good, looked(prefix)) == "python train: bin/python is missing"
    (prefix / "bin/python").symlink_to("python3")
    assert looked(prefix).attributes == good.attributes
    (prefix / "bin/python3").unlink()
    (prefix / "bin/python").unlink()
    (prefix / "bin/python").symlink_to(os.path.realpath(sys.executable))
    (prefix / "bin/python3").write_text("#!/bin/sh\n")
    (prefix / "bin/python3").chmod(0o755)
    other = looked(prefix)
    assert changed(good, other) == "python train: bin/python3 is another program"
    (prefix / "bin/python3").write_text("#!/bin/dash\n")
    assert changed(other, looked(prefix)) == "python train: bin/python3 is another program changed"
