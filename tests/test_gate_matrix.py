"""Every cell of the matrix in docs/gates.md, held against the real thing."""

from __future__ import annotations

import os
import shutil
import venv
from pathlib import Path

import pytest

from tests import gate_matrix as matrix
from tests.gating import Gated, gated

LOCAL = [one for one in matrix.WAYS if not one.needs]


def test_the_table_in_the_document_is_this_one() -> None:
    if os.environ.get("LOCKD_WRITE_DOCS"):
        matrix.write()
    assert matrix.documented() == matrix.rendered(), "LOCKD_WRITE_DOCS=1 writes it anew"


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Gated:
    made = gated(tmp_path_factory.mktemp("matrix"))
    made.file("pkg/__init__.py", "")
    made.file("pkg/train.py", made.train.read_text())
    matrix.prepare(made)
    venv.EnvBuilder(symlinks=True).create(made.root / "other")
    return made


def cell(scene: Gated, one: matrix.Way, verdict: str, state: str) -> None:
    if one.name == "in tmux" and not shutil.which("tmux"):
        pytest.skip("no tmux")
    argv = matrix.command(scene, one.name, scene.root / "other")
    env = {}
    if "lockd run" in one.name:
        env = {"LOCKD_STATE": str(scene.state), "LOCKD_RUNTIME": str(scene.root / "run")}
    # an override is given for what blocks then, not for what a later launch adds: `launch:python` stays
    with matrix.verdict(scene, verdict), matrix.daemon_is(scene, state) as started:
        found = matrix.outcome(scene, argv, started, **env)
    wanted = one.outcomes[matrix.VERDICTS.index(verdict)]
    assert found == (matrix.STARTS if wanted == matrix.UNGATED else wanted)


@pytest.mark.parametrize("verdict", matrix.VERDICTS)
@pytest.mark.parametrize("state", ["down", "up"])
def test_the_script(scene: Gated, verdict: str, state: str) -> None:
    cell(scene, matrix.WAYS[0], verdict, state)


@pytest.mark.slow
@pytest.mark.parametrize("verdict", matrix.VERDICTS)
@pytest.mark.parametrize("state", matrix.DAEMONS)
@pytest.mark.parametrize("one", LOCAL, ids=[one.name for one in LOCAL])
def test_a_cell(scene: Gated, one: matrix.Way, verdict: str, state: str) -> None:
    cell(scene, one, verdict, state)


def test_every_cell_has_a_test() -> None:
    """Rows that need more than this machine's Python are held by the tests of that kind."""
    held = {"torch": "test_gate_launchers.py", "slurm": "test_gate_slurm.py", "container": "test_gate_systemd.py"}
    for one in matrix.WAYS:
        assert not one.needs or (Path(__file__).parent / held[one.needs]).exists()
        assert len(one.outcomes) == len(matrix.VERDICTS)
