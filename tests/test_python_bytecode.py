"""Byte-code: what is derived from its source, and what runs in its place; forged files are really run."""

from __future__ import annotations

import ast
import importlib.util
import marshal
import os
import py_compile
import subprocess
import sys
import venv
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lockd.disk import Disk
from lockd.look import Look
from lockd.probes.python import codes
from lockd.probes.python.bytecode import NOTHING_STALE, Stale, derived, merged, stale
from lockd.probes.python.interpreter import Interpreter, find
from lockd.rules import Policy, PythonRule

Mode = py_compile.PycInvalidationMode
CLEAN, FOREIGN = "VALUE = 512\n", "VALUE = 666\n"
SITE = f"lib/python{sys.version_info[0]}.{sys.version_info[1]}/site-packages"
FOREIGN_LINE = ("pkg/mod.py runs other code than its source",)


@pytest.fixture
def prefix(tmp_path: Path) -> Path:
    venv.EnvBuilder(with_pip=False, symlinks=True).create(tmp_path / "venv")
    package = tmp_path / "venv" / SITE / "pkg"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "mod.py").write_text(CLEAN)
    return tmp_path / "venv"


def module(prefix: Path) -> Path:
    return prefix / SITE / "pkg/mod.py"


def looked(
    prefix: Path,
    *,
    full: bool = False,
    pristine: Callable[[str], bool | None] = lambda _: True,
    **other: Any,
) -> Stale:
    disk = Disk(full=full)
    interpreter = find(PythonRule("train", str(prefix)), disk)
    assert isinstance(interpreter, Interpreter)
    tree = disk.tree(str(prefix / SITE))
    return stale(replace(interpreter, **other), tree, Look(Policy("ct"), disk), pristine)


def compile_beside(source: Path, mode: Mode = Mode.TIMESTAMP, optimize: int = 0) -> Path:
    return Path(str(py_compile.compile(str(source), doraise=True, invalidation_mode=mode, optimize=optimize)))


def forge(source: Path, mode: Mode) -> Path:
    """Byte-code of foreign code under a header that fits the clean source."""
    pyc = compile_beside(source, mode)
    header = pyc.read_bytes()[:16]
    pyc.write_bytes(header + marshal.dumps(compile(FOREIGN, str(source), "exec")))
    return pyc


def ran(prefix: Path) -> int:
    """What the environment's own python really makes of it."""
    words = {"PATH": "/usr/bin:/bin", "PYTHONDONTWRITEBYTECODE": "1"}
    program = [str(prefix / "bin/python"), "-c", "import pkg.mod; print(pkg.mod.VALUE)"]
    return int(subprocess.run(program, check=True, capture_output=True, env=words, cwd="/").stdout)


# -- derived ---------------------------------------------------------------------------------------------------------

NAMES = {"pkg/mod.py", "top.py", "pkg/kernel.py"}


@pytest.mark.parametrize(
    ("path", "is_derived"),
    [
        ("pkg/__pycache__/mod.cpython-311.pyc", True),
        ("pkg/__pycache__/mod.cpython-39.opt-2.pyc", True),
        ("pkg/__pycache__/mod.pypy310.pyc", True),
        ("pkg/__pycache__/mod.cpython-312-pytest-8.1.1.pyc", True),
        ("pkg/__pycache__/mod.cpython-311.pyc.139921", True),
        ("pkg/__pycache__/kernel.step-12.py311.nbi", True),
        ("pkg/__pycache__/kernel.step-12.py311.1.nbc", True),
        ("__pycache__/top.cpython-311.pyc", True),
        ("pkg/mod.pyc", True),
        ("pkg/__pycache__", True),
        ("pkg/__pycache__/gone.cpython-311.pyc", False),
        ("pkg/gone.pyc", False),
        ("gone.pyc", False),
        ("pkg/__pycache__/gone.f-1.py311.nbi", False),
        ("pkg/__pycache__/mod.txt", False),
        ("pkg/mod.so", False),
        ("other/__pycache__/mod.cpython-311.pyc", False),
    ],
)
def test_byte_code_is_derived_only_beside_a_source_that_exists(path: str, is_derived: bool) -> None:
    assert derived(path, NAMES) is is_derived


# -- benign ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("full", [False, True])
@pytest.mark.parametrize("mode", list(Mode))
def test_honest_byte_code_of_every_mode_is_nothing(prefix: Path, mode: Mode, full: bool) -> None:
    for level in (0, 1, 2):
        compile_beside(module(prefix), mode, level)
    assert looked(prefix, full=full) == NOTHING_STALE


def test_byte_code_that_python_wrote_itself_is_nothing(prefix: Path) -> None:
    subprocess.run([prefix / "bin/python", "-c", "import pkg.mod"], check=True, env={}, cwd="/")
    assert list(module(prefix).parent.glob("__pycache__/mod.*.pyc"))
    assert looked(prefix, full=True) == NOTHING_STALE


def test_byte_code_older_than_its_source_is_compiled_anew_and_benign(prefix: Path) -> None:
    forge(module(prefix), Mode.TIMESTAMP)
    os.utime(module(prefix), (1_900_000_000, 1_900_000_000))
    assert ran(prefix) == 512
    assert looked(prefix, full=True, pristine=lambda _: False) == NOTHING_STALE


def test_byte_code_of_another_python_is_not_what_runs(prefix: Path) -> None:
    pyc = forge(module(prefix), Mode.UNCHECKED_HASH)
    pyc.rename(pyc.with_name("mod.cpython-36.pyc"))
    assert ran(prefix) == 512
    assert looked(prefix, full=True) == NOTHING_STALE


def test_the_path_it_was_compiled_under_does_not_matter(prefix: Path) -> None:
    """A venv that was moved, or byte-code built in another place."""
    source = module(prefix)
    py_compile.compile(str(source), dfile="/build/somewhere/else.py", doraise=True)
    assert looked(prefix, full=True) == NOTHING_STALE


# -- foreign ---------------------------------------------------------------------------------------------------------


def test_unchecked_byte_code_that_runs_other_code_is_found_by_the_usual_look(prefix: Path) -> None:
    """huggingface/kernels#623"""
    forge(module(prefix), Mode.UNCHECKED_HASH)
    assert ran(prefix) == 666
    assert looked(prefix).foreign == ("pkg/mod.py runs other code than its source (unchecked-hash)",)


@pytest.mark.parametrize("mode", [Mode.TIMESTAMP, Mode.CHECKED_HASH])
def test_forged_byte_code_under_a_true_header_is_found_by_a_full_look(prefix: Path, mode: Mode) -> None:
    forge(module(prefix), mode)
    assert ran(prefix) == 666
    assert looked(prefix, full=True).foreign == FOREIGN_LINE


def test_a_source_put_back_within_the_second_leaves_stale_byte_code(prefix: Path) -> None:
    """python/cpython#75953: same second, same size; python would go on running the edit."""
    source = module(prefix)
    source.write_text(FOREIGN)
    os.utime(source, (1_700_000_000, 1_700_000_000))
    compile_beside(source)
    source.write_text(CLEAN)
    os.utime(source, (1_700_000_000, 1_700_000_000))
    assert ran(prefix) == 666
    assert looked(prefix).foreign == FOREIGN_LINE


def test_an_edit_that_stale_byte_code_hides_is_told_with_the_edits_own_finding(prefix: Path) -> None:
    source = module(prefix)
    os.utime(source, (1_700_000_000, 1_700_000_000))
    compile_beside(source)
    source.write_text(FOREIGN)
    os.utime(source, (1_700_000_000, 1_700_000_000))
    assert ran(prefix) == 512, "the edit is not what runs"
    found = looked(prefix, pristine=lambda path: path != "pkg/mod.py")
    assert found == Stale((), ("pkg/mod.py: its byte-code still runs what it was before the edit",), ())


def test_a_source_that_does_not_compile_cannot_have_honest_byte_code(prefix: Path) -> None:
    source = module(prefix)
    pyc = forge(source, Mode.UNCHECKED_HASH)
    source.write_text("def broken(:\n")
    assert pyc.exists() and "does not compile" in looked(prefix).foreign[0]


def test_unchecked_byte_code_that_cannot_be_compared_never_passes_as_equal(prefix: Path) -> None:
    pyc = compile_beside(module(prefix), Mode.UNCHECKED_HASH)
    content = pyc.read_bytes()
    other = pyc.with_name("mod.cpython-38.pyc")
    other.write_bytes((3413).to_bytes(2, "little") + content[2:])
    found = looked(prefix, version="3.8.18", library="3.8")
    assert len(found.foreign) == 1 and "could not be compared: byte-code of Python 3.8" in found.foreign[0]


def test_what_was_not_compared_under_a_full_look_is_said(prefix: Path) -> None:
    pyc = compile_beside(module(prefix))
    content = pyc.read_bytes()
    pyc.with_name("mod.cpython-38.pyc").write_bytes((3413).to_bytes(2, "little") + content[2:])
    found = looked(prefix, full=True, version="3.8.18", library="3.8")
    assert found.foreign == () and "1 .pyc could not be compared: byte-code of Python 3.8" in found.notes[0]


def test_what_another_patch_release_may_have_compiled_is_no_alarm(prefix: Path) -> None:
    """The same names and constants in other instructions: an alarm only where this very release compiled the file."""
    pyc = compile_beside(module(prefix), Mode.UNCHECKED_HASH)
    code = compile(CLEAN, "mod.py", "exec")
    pyc.write_bytes(pyc.read_bytes()[:16] + marshal.dumps(code.replace(co_linetable=b"\x80\x00")))
    minor = f"{sys.version_info[0]}.{sys.version_info[1]}"
    assert looked(prefix).foreign, "compiled after the interpreter was installed, by its release"
    other = looked(prefix, version=f"{minor}.99")
    assert other.foreign == () and "compared loosely" in other.notes[0]
    os.utime(pyc, (1, 1))
    older = looked(prefix)
    assert older.foreign == () and "compared loosely" in older.notes[0], "it may be from before an upgrade"


def test_another_constant_is_foreign_under_any_patch_release(prefix: Path) -> None:
    pyc = forge(module(prefix), Mode.UNCHECKED_HASH)
    os.utime(pyc, (1, 1))
    assert looked(prefix, version=f"{sys.version_info[0]}.{sys.version_info[1]}.99").foreign


@pytest.mark.parametrize("kind", ["fifo", "folder", "link to nothing", "empty"])
def test_odd_things_named_pyc_neither_hang_nor_pass(prefix: Path, kind: str) -> None:
    pyc = compile_beside(module(prefix))
    pyc.unlink()
    if kind == "fifo":
        os.mkfifo(pyc)
    elif kind == "folder":
        pyc.mkdir()
    elif kind == "empty":
        pyc.touch()
    else:
        pyc.symlink_to("/nowhere")
    found = looked(prefix, full=True)
    assert found.foreign == () and bool(found.notes) is (kind in ("fifo", "folder"))


def test_byte_code_through_a_link_is_read_like_import_reads_it(prefix: Path, tmp_path: Path) -> None:
    pyc = forge(module(prefix), Mode.UNCHECKED_HASH)
    pyc.rename(tmp_path / "foreign.pyc")
    pyc.symlink_to(tmp_path / "foreign.pyc")
    assert ran(prefix) == 666
    assert looked(prefix).foreign


def test_a_pycache_that_makes_a_package_by_itself_is_told(prefix: Path) -> None:
    compile_beside(module(prefix))
    for source in module(prefix).parent.glob("*.py"):
        source.unlink()
    subprocess.run([prefix / "bin/python", "-c", "import pkg"], check=True, cwd="/")
    assert looked(prefix).notes == ("pkg: only byte-code is left, and it imports as an empty package",)


def test_many_findings_become_a_bounded_list_that_still_tells_them_apart() -> None:
    many = [Stale((f"m{number}.py: foreign",)) for number in range(100)]
    folded, fewer = merged(many).foreign, merged(many[1:]).foreign
    assert len(folded) == 20 and folded[-1].startswith("and 81 more, all together sha256:")
    assert folded[-1] != fewer[-1]


def test_the_usual_look_compares_a_bounded_number_and_says_how_many_it_left(prefix: Path) -> None:
    for number in range(70):
        source = module(prefix).with_name(f"m{number}.py")
        source.write_text(CLEAN)
        compile_beside(source, Mode.UNCHECKED_HASH)
    assert looked(prefix).notes == ("6 .pyc not compared with their sources (lockd verify --full does)",)
    assert looked(prefix, full=True) == NOTHING_STALE


# -- the reader of marshalled code -----------------------------------------------------------------------------------


def stdlib_sources() -> list[Path]:
    folder = Path(os.__file__).parent
    return sorted(folder.glob("*.py")) + sorted(folder.glob("asyncio/*.py"))


def test_every_module_of_the_standard_library_reads_back_equal() -> None:
    """Its byte-code as marshalled twice: loading and dumping again shares other objects and reorders frozensets."""
    for source in stdlib_sources()[::3]:
        body = codes.compiled(source.read_bytes(), str(source), 0)
        again = marshal.dumps(marshal.loads(body).replace(co_filename="<elsewhere>"))
        assert codes.fingerprint(body) == codes.fingerprint(again), source
        assert codes.fingerprint(body, loose=True) == codes.fingerprint(again, loose=True), source


def test_what_another_process_compiled_is_mostly_equal_byte_for_byte_under_the_path_that_it_states(
    tmp_path: Path,
) -> None:
    """So that the slow reading of both is for the few that are not."""
    place = tmp_path / "moved away since"
    place.mkdir()
    sources = stdlib_sources()[::5]
    for source in sources:
        (place / source.name).write_bytes(source.read_bytes())
    subprocess.run([sys.executable, "-m", "compileall", "-q", str(place)], check=True)
    equal = 0
    for source in sources:
        body = Path(importlib.util.cache_from_source(str(place / source.name))).read_bytes()[16:]
        stated = codes.stated_path(body, source.name)
        assert stated == str(place / source.name)
        wanted = codes.compiled(source.read_bytes(), stated, 0)
        equal += wanted == body
        assert codes.fingerprint(wanted) == codes.fingerprint(body)
    assert equal > len(sources) * 0.6


@pytest.mark.parametrize("body", [b"", b"/a.py", b"/" * 9 + b"/a.py", b"z\x06/x/a.p", b"\xfa\x05\xff/a.py"])
def test_byte_code_that_states_no_path_has_none(body: bytes) -> None:
    assert codes.stated_path(body, "a.py") is None


def test_every_single_constant_and_name_counts() -> None:
    source = "def f(a, b=1.5, *, c='x'):\n    return {1, 2}, a < b, -(1 << 90), 3j, b'y', (None, True, ...), c.real\n"
    wanted = codes.fingerprint(codes.compiled(source.encode(), "a.py", 0))
    edits = [
        ("1.5", "1.6"),
        ("'x'", "'z'"),
        ("{1, 2}", "{1, 3}"),
        ("<", ">"),
        ("90", "91"),
        ("3j", "4j"),
        ("b'y'", "b'z'"),
    ]
    edits += [("True", "False"), ("...", "1"), ("real", "imag"), ("def f", "def g"), ("b'y'", "'y'"), ("-(1", "+(1")]
    for old, new in edits:
        edited = source.replace(old, new, 1)
        ast.parse(edited)
        assert codes.fingerprint(codes.compiled(edited.encode(), "a.py", 0)) != wanted, (old, new)


BOMB = b"(\x01\x00\x00\x00" * 100_000 + b"N"


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"c",
        b"\xff" * 40,
        b"r\x05\x00\x00\x00",
        b"s\xff\xff\xff\x7f",
        b"s\xff\xff\xff\xff",
        b"(\xff\xff\xff\x7fN",
        BOMB,
    ],
)
def test_forged_marshal_data_is_refused_without_harm(body: bytes) -> None:
    with pytest.raises(codes.Unreadable):
        codes.fingerprint(body)


def test_a_body_that_is_cut_anywhere_is_refused() -> None:
    body = codes.compiled(b"def f(x):\n    return [x, 'abc', 1.5]\n", "a.py", 0)
    for end in range(len(body)):
        with pytest.raises(codes.Unreadable):
            codes.fingerprint(body[:end])


def test_a_tower_of_references_costs_what_its_bytes_cost() -> None:
    """A tuple of two references to the tuple before it, sixty floors high: 2**60 elements if it were unfolded."""
    inner = b"\xa9\x01N"
    tower = b"("
    floors = 60
    tower += (floors + 1).to_bytes(4, "little") + inner
    for floor in range(floors):
        tower += b"\xa9\x02" + (b"r" + floor.to_bytes(4, "little")) * 2
    assert len(codes.fingerprint(tower)) == 16


def test_the_magic_numbers_are_those_of_the_releases() -> None:
    from lockd.probes.python.bytecode import _MAGIC

    minor = f"{sys.version_info[0]}.{sys.version_info[1]}"
    if minor in _MAGIC and sys.version_info.releaselevel == "final":
        assert _MAGIC[minor] == int.from_bytes(importlib.util.MAGIC_NUMBER[:2], "little")
