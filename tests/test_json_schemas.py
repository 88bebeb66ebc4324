"""Real outputs of the real command against the schemas in docs/schemas."""

from __future__ import annotations

import json
import os
import shutil
import venv
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from tests.scene import Scene

SCHEMAS = Path(__file__).parents[1] / "docs" / "schemas"


def valid(document: Any, name: str) -> Any:
    schema = json.loads((SCHEMAS / f"{name}.schema.json").read_text())
    jsonschema.Draft202012Validator(schema).validate(document)
    return document


def install(scene: Scene, name: str, version: str, body: str = "x = 1\n") -> None:
    """A package without hashes in its RECORD, which is enough to be seen."""
    site = next((scene.root / "env" / "lib").glob("python3*/site-packages"))
    info = site / f"{name}-{version}.dist-info"
    info.mkdir()
    (site / f"{name}.py").write_text(body)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    (info / "RECORD").write_text(f"{name}.py,,\n{info.name}/METADATA,,\n{info.name}/RECORD,,\n")


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    """An environment, scripts, a cache, variables and a command, accepted."""
    made = Scene(tmp_path)
    venv.EnvBuilder(with_pip=False, symlinks=True).create(tmp_path / "env")
    install(made, "helper", "1.0")
    model, _ = made.file("job/model.py"), made.file("cache/entry")
    made.file("job/notes.txt")
    made.write_policy(
        f"""
[[python]]
name = "train"
path = "{tmp_path}/env"
forbid = ["sglang"]
[[file]]
path = "{model}"
[[file]]
path = "{tmp_path}/job/*.txt"
on_drift = "record"
[[cache]]
path = "{tmp_path}/cache"
[env]
LD_LIBRARY_PATH = "locked"
[[command]]
name = "one"
run = ["echo", "1"]
"""
    )
    accepted = made.accept()
    assert accepted.code == 0, accepted.err
    return made


def drift(scene: Scene) -> None:
    """One finding of each change: changed, missing, added, forbidden, unreadable where modes bind."""
    install(scene, "sglang", "0.5")
    install(scene, "extra", "1.0")
    (scene.root / "cache" / "entry").unlink()
    (scene.root / "job" / "model.py").unlink()
    (scene.root / "job" / "notes.txt").write_text("other")


def test_verify_is_as_its_schema_says(scene: Scene) -> None:
    assert valid(scene.verify().document, "verify")["verdict"] == "ok"
    drift(scene)
    answer = scene.verify("--all", env={"LD_LIBRARY_PATH": "/lib"})
    document = valid(answer.document, "verify")
    assert {one["change"] for one in document["findings"]} >= {"changed", "missing", "added", "forbidden"}
    assert {one["severity"] for one in document["findings"]} == {"block", "warn", "record"}
    valid(scene.verify("--full").document, "verify")


def test_verify_without_a_lock_is_as_its_schema_says(scene: Scene) -> None:
    scene.lock.unlink()
    assert valid(scene.verify().document, "verify")["lock"] is None


def test_accept_is_as_its_schema_says(scene: Scene) -> None:
    drift(scene)
    answer = scene.accept("--json", "--dry-run", "--only", "file:" + str(scene.root / "job" / "model.py"))
    planned = valid(answer.document, "accept")
    assert planned["recorded"] is False and planned["generation"] == 2
    assert [one["change"] for one in planned["differences"]] == ["missing"]
    refused = scene.accept("--json")
    assert refused.code == 1 and valid(refused.document, "error")["error"]["what"]
    shutil.rmtree(next((scene.root / "env" / "lib").glob("python3*/site-packages/sglang-0.5.dist-info")))
    recorded = valid(scene.accept("--json").document, "accept")
    assert recorded["recorded"] is True and {one["change"] for one in recorded["differences"]} >= {"added", "missing"}


def test_errors_are_as_their_schema_says(scene: Scene) -> None:
    scene.lock.write_text("no lock")
    assert valid(scene.verify().document, "error")["error"]["where"] == str(scene.lock)
    scene.write_policy("nonsense = 1\n")
    for words in (("verify", "--json"), ("diff", "--json"), ("export", "--json")):
        valid(scene.lockd(*words).document, "error")
    valid(scene.lockd("verify", "--json", env={"LOCKD_POLICY": "/none.toml"}).document, "error")


def test_diff_is_as_its_schema_says(scene: Scene) -> None:
    assert valid(scene.lockd("diff", "--json").document, "diff")["differences"] == []
    drift(scene)
    assert len(valid(scene.lockd("diff", "--json").document, "diff")["differences"]) >= 5


def test_export_is_as_its_schema_says(scene: Scene) -> None:
    for state in ("now", "lock", "@1"):
        document = valid(scene.lockd("export", state).document, "export")
        assert any(row["fact"] == "package:train/helper" for row in document["facts"])
    document = scene.lockd("export", "now").document
    assert any("tokens" in row for row in document["facts"])


def test_log_is_as_its_schema_says(scene: Scene) -> None:
    drift(scene)
    scene.verify()
    events = valid(scene.lockd("log", "--json").document, "log")
    assert {"accept", "drift"} <= {event["kind"] for event in events}
    schema = json.loads((SCHEMAS / "log.schema.json").read_text())
    from lockd.history import KINDS

    assert set(schema["items"]["properties"]["kind"]["enum"]) == set(KINDS)


def test_doctor_is_as_its_schema_says(scene: Scene) -> None:
    valid(scene.lockd("doctor", "--json").document, "doctor")


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads every mode")
def test_an_unreadable_fact_is_as_the_schema_says(scene: Scene) -> None:
    (scene.root / "job" / "model.py").chmod(0)
    document = valid(scene.verify().document, "verify")
    assert "unreadable" in {one["change"] for one in document["findings"]}
