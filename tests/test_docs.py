"""What is made from the code is up to date, and the documents say what the program does."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


def test_docs_facts_is_made_from_the_probes() -> None:
    made = subprocess.run([sys.executable, ROOT / "scripts/make_docs.py", "--check"], capture_output=True, check=False)
    assert made.returncode == 0, "docs/facts.md is older than the probes: make docs"


def commands_of(document: str) -> set[str]:
    """The verbs that a document tells the reader to type."""
    return set(re.findall(r"^\s{4}(?:\S* )?lockd ([a-z]+)", (ROOT / document).read_text(), re.M))


@pytest.mark.parametrize("document", ["README.md"])
def test_every_command_of_the_documents_is_there(document: str) -> None:
    told = commands_of(document)
    assert told
    for verb in told:
        asked = subprocess.run([sys.executable, "-I", "-m", "lockd", verb, "--help"], capture_output=True, check=False)
        assert asked.returncode == 0, f"{document} names `lockd {verb}`: {asked.stderr.decode()}"


def test_every_option_of_the_readme_is_in_the_help() -> None:
    for line in (ROOT / "README.md").read_text().splitlines():
        found = re.match(r"\s{4}lockd ([a-z]+)([^#]*)", line)
        for option in re.findall(r"--[a-z-]+", found[2]) if found else []:
            asked = [sys.executable, "-I", "-m", "lockd", found[1] if found else "", "--help"]
            assert option in subprocess.run(asked, capture_output=True, text=True, check=False).stdout, line


def test_every_target_of_the_readme_is_in_the_makefile() -> None:
    made = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.M))
    assert set(re.findall(r"^\s{4}make ([a-z-]+)", (ROOT / "README.md").read_text(), re.M)) <= made
