"""RECORD, version files, origins and launchers: what their texts mean."""

from __future__ import annotations

import csv
import hashlib
import io
import json
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockd.probes.python import builds, origins, scripts
from lockd.probes.python.names import leftover_of, matches, normal, split_folder
from lockd.probes.python.record import Record, parse
from tests.wheels import record_hash

INFO = "x-1.0.dist-info"
NAMES = st.text(st.characters(blacklist_characters="\x00/\\\r", blacklist_categories=["Cs"]), min_size=1, max_size=12)


def read(text: str) -> Record:
    return parse(text, INFO, lambda path: None if path.startswith("../../../../") else path)


def rows(*lines: str, eol: str = "\n") -> str:
    return "".join(line + eol for line in lines)


ONE, TWO = f"x/a.py,{record_hash(b'a')},1", f"x/b.py,{record_hash(b'b')},1"


def test_order_line_ends_and_installers_rows_do_not_move_the_identity() -> None:
    plain = read(rows(ONE, TWO))
    other = read(
        rows(
            TWO,
            f"{INFO}/INSTALLER,{record_hash(b'pip')},3",
            f"{INFO}/REQUESTED,,0",
            f"{INFO}/direct_url.json,{record_hash(b'{}')},2",
            f"{INFO}/uv_cache.json,{record_hash(b'{}')},2",
            f"{INFO}/RECORD,,",
            "x/__pycache__/a.cpython-311.pyc,,",
            f"../../../bin/run,{record_hash(b'#!')},2",
            ONE,
            eol="\r\n",
        )
    )
    assert plain.identity == other.identity and plain.listed.items() <= other.listed.items()
    assert "../../../bin/run" in other.listed and f"{INFO}/RECORD" in other.notes


def test_any_other_row_moves_the_identity() -> None:
    known = {read(rows(ONE, TWO)).identity}
    for text in (rows(ONE), rows(ONE, TWO, f"x/c.py,{record_hash(b'')},0"), rows(ONE, TWO.replace(",1", ",2"))):
        known.add(read(text).identity)
    assert len(known) == 4


def test_a_digest_in_hex_is_as_good() -> None:
    """Debian's builds write `sha256=` and 64 hex digits."""
    digest = hashlib.sha256(b"a").hexdigest()
    found = read(f"x/a.py,sha256={digest},1\n")
    assert found.listed == read(ONE + "\n").listed == {"x/a.py": digest} and not found.problems
    assert read(f"x/a.py,sha256={'z' * 64},1\n").problems


def test_two_hashes_for_one_path_are_malformed() -> None:
    problems = read(rows(ONE, f"x/a.py,{record_hash(b'other')},5")).problems
    assert problems == ("malformed RECORD row: x/a.py",)


def test_many_bad_rows_are_one_problem_with_their_number() -> None:
    (problem,) = read(rows(*(f"x/{number}.py,sha256=AA,1" for number in range(10)))).problems
    assert problem == "malformed RECORD row: x/0.py, x/1.py, x/2.py and 7 more"


def test_rows_without_three_fields_are_malformed() -> None:
    assert read("x/a.py\n").problems == ("malformed RECORD row: x/a.py",)
    assert read('"x/a.py",one\n').problems == ("malformed RECORD row: x/a.py",)


@given(st.lists(NAMES, min_size=1, max_size=8, unique=True), st.randoms(use_true_random=False))
def test_what_csv_writes_is_read_back_in_any_order(names: list[str], shuffler: random.Random) -> None:
    paths = [f"x/{name}.py" for name in names]
    shuffled = list(paths)
    shuffler.shuffle(shuffled)

    def text(order: list[str]) -> str:
        out = io.StringIO()
        csv.writer(out, lineterminator="\n").writerows([path, record_hash(path.encode()), "1"] for path in order)
        return out.getvalue()

    assert read(text(paths)).listed.keys() == set(paths)
    assert read(text(paths)).identity == read(text(shuffled)).identity


@given(st.text(max_size=200))
def test_no_text_breaks_the_reader(text: str) -> None:
    read(text)
    origins.origin(text)
    builds.stated("torch", lambda path: text)
    scripts.word(text.encode("utf-8", "surrogatepass"))


# -- names -------------------------------------------------------------------------------------------------------------


def test_names_and_globs_follow_pep_503() -> None:
    assert normal("Flash__Attn.v2") == "flash-attn-v2"
    assert matches("FlashInfer_*", "flashinfer-python") and matches("nvidia-nccl-cu1[23]", "nvidia-nccl-cu13")
    assert not matches("torch", "torchvision")


def test_folders_tell_name_and_version() -> None:
    assert split_folder("torch-2.11.0.dist-info") == ("torch", "2.11.0")
    assert split_folder("old-1.0-py3.11.egg-info") == ("old", "1.0")


def test_leftovers_are_matched_to_what_they_were() -> None:
    known = frozenset({"torch", "numpy", "orch"})
    assert leftover_of("~orch", known) == "torch" and leftover_of("~-rch", known) == "torch"
    assert leftover_of("~umpy", known) == "numpy" and leftover_of("~else", known) is None


# -- builds ------------------------------------------------------------------------------------------------------------


def test_only_plain_assignments_of_known_names_are_taken() -> None:
    text = (
        "from os import system\n__all__ = ['x']\n__version__: str = '2.11.0+cu130'\ncuda = get()\nhip = None\n"
        "if True:\n    cuda = '12.8'\ngit_version = 'abc' 'def'\nunknown = 'z'\n__version__ = '9'\n"
    )
    assert builds.stated("torch", lambda path: text) == {"version": "2.11.0+cu130", "git": "abcdef"}
    assert builds.stated("numpy", lambda path: text) == {}


def test_chained_assignments_of_setuptools_scm_are_taken() -> None:
    text = "__version__ = version = '0.11.0+cu128'\n__commit_id__ = commit_id = 'gabc'\n"
    assert builds.stated("vllm", lambda path: text if path.endswith("_version.py") else None) == {
        "version": "0.11.0+cu128",
        "git": "gabc",
    }


def test_no_code_of_a_version_file_runs(tmp_path: object) -> None:
    text = f"__version__ = __import__('os').mkdir({str(tmp_path) + '/ran'!r})\n"
    assert builds.stated("torch", lambda path: text) == {}


@pytest.mark.parametrize(
    ("metadata", "code", "version"),
    [
        ("2.11.0", "2.11.0+cu130", "2.11.0+cu130"),  # PyPI: METADATA leaves the label out
        ("2.11.0+cu128", "2.11.0+cu130", "2.11.0+cu130"),  # relabelled by hand
        ("3.6.0+gitabc", "3.6.0", "3.6.0+gitabc"),
        ("2.11.0", "", "2.11.0"),
        ("2.11.0", "2.10.0", "2.10.0"),  # METADATA is not what runs
    ],
)
def test_the_label_is_taken_from_wherever_it_is_written(metadata: str, code: str, version: str) -> None:
    assert builds.version(metadata, code) == version


def test_the_abi_stands_in_a_label() -> None:
    assert builds.abi("2.8.3+cu12torch2.8cxx11abiTRUE") == "TRUE" and builds.abi("2.8.3+cu12") is None


# -- origins -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("raw", "text"),
    [
        (
            {"url": "https://u:p@example.org/f.git?x=1", "vcs_info": {"vcs": "git", "commit_id": "abc"}},
            "git+https://example.org/f.git@abc",
        ),
        (
            {"url": "https://example.org/f.git", "vcs_info": {"vcs": "git", "commit_id": "a"}, "subdirectory": "py"},
            "git+https://example.org/f.git@a#subdirectory=py",
        ),
        ({"url": "file:///a%20b", "dir_info": {"editable": True}}, "editable /a b"),
        ({"url": "file:///a", "dir_info": {}}, "directory /a"),
        (
            {"url": "file:///w/x-1.whl", "archive_info": {"hash": "sha256=ab", "hashes": {"sha256": "ab"}}},
            "wheel sha256:ab",
        ),
        ({"url": "file:///w/x-1.whl", "archive_info": {"hash": "sha256=ab"}}, "wheel sha256:ab"),
        ({"url": "file:///w/x-1.whl", "archive_info": {}}, "wheel x-1.whl"),
        (
            {"url": "https://t@example.org/x.whl", "archive_info": {"hash": "sha256=ab"}},
            "url https://example.org/x.whl sha256:ab",
        ),
    ],
)
def test_origins_in_one_line_without_credentials(raw: object, text: str) -> None:
    assert origins.origin(json.dumps(raw)).text == text


@pytest.mark.parametrize("text", ["{", "[]", '{"url": 3}', '{"url": "x", "vcs_info": 1}', '{"vcs_info": {}}'])
def test_a_direct_url_that_cannot_be_read_is_broken(text: str) -> None:
    assert origins.origin(text).problem == "broken: direct_url.json"


# -- scripts -----------------------------------------------------------------------------------------------------------

LAUNCHERS = [
    "import sys\nfrom a.b import main\nif __name__ == '__main__':\n"
    "    sys.argv[0] = sys.argv[0].removesuffix('.exe')\n    sys.exit(main())\n",
    "# -*- coding: utf-8 -*-\nimport re\nimport sys\nfrom a.b import main\nif __name__ == '__main__':\n"
    "    sys.argv[0] = re.sub(r'(-script\\.pyw|\\.exe)?$', '', sys.argv[0])\n    sys.exit(main())\n",
    '# -*- coding: utf-8 -*-\nimport sys\nfrom a.b import main\nif __name__ == "__main__":\n'
    '    if sys.argv[0].endswith("-script.pyw"):\n        sys.argv[0] = sys.argv[0][:-11]\n'
    '    elif sys.argv[0].endswith(".exe"):\n        sys.argv[0] = sys.argv[0][:-4]\n    sys.exit(main())\n',
]


@pytest.mark.parametrize("body", LAUNCHERS)
def test_launchers_of_all_installers_are_what_they_start(body: str) -> None:
    assert scripts.word(f"#!/v/bin/python\n{body}".encode()) == "launcher a.b:main"
    longer = f"#!/bin/sh\n'''exec' \"/a b/python\" \"$0\" \"$@\"\n' '''\n{body}"
    assert scripts.word(longer.encode()) == "launcher a.b:main"


@pytest.mark.parametrize("body", LAUNCHERS)
def test_an_edited_launcher_is_a_script_by_its_bytes(body: str) -> None:
    edited = body.replace("    sys.exit(main())", "    import os\n    sys.exit(main())")
    assert scripts.word(f"#!/v/bin/python\n{edited}".encode()).startswith("script ")


def test_a_binary_in_bin_is_its_bytes() -> None:
    assert scripts.word(b"\x7fELF") != scripts.word(b"\x7fELG")
