"""The policies that travel with lockd, their README, and the JSON Schema: what is written is what the code takes."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import sys
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from lockd import policy, rules
from lockd.commands.policy import schema_text
from lockd.disk import Disk
from lockd.look import Look, look_at
from lockd.policy_shape import MANY, ONE
from lockd.probes import probe

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

REPOSITORY = Path(__file__).parent.parent
POLICIES = sorted((REPOSITORY / "policies").glob("*.toml"))
SCHEMA = REPOSITORY / "docs" / "schemas" / "policy.schema.json"


def load(name: str) -> rules.Policy:
    """As it is written; who may write the checkout is not what is asked here."""
    return policy.parse((REPOSITORY / "policies" / name).read_text(), f"/etc/lockd/{name}")


def test_there_are_the_three() -> None:
    assert [path.name for path in POLICIES] == ["ct200-evidence.toml", "ct200.toml", "single-gpu.toml"]


@pytest.mark.parametrize("path", POLICIES, ids=lambda path: path.name)
def test_each_loads_and_the_schema_agrees(path: Path) -> None:
    assert load(path.name).name == path.stem
    jsonschema.validate(tomllib.loads(path.read_text()), json.loads(SCHEMA.read_text()))


def test_ct200_pins_the_facts_of_the_fast_machine() -> None:
    loaded = load("ct200.toml")
    train = loaded.python[0]
    assert (loaded.on_drift, loaded.launch.scripts) == ("block", ("/root/train_dflash_pipeline.py",))
    assert train.packages["torch"] == rules.PackagePin(version="2.11.0+cu128", cuda="12.8")
    assert train.packages["triton"] == rules.PackagePin(version="==3.6.0")
    assert train.forbid == ("sglang", "flashinfer*")
    assert [(file.path, file.keep, file.digest) for file in loaded.file] == [
        ("/root/dflash_model.py", True, None),
        ("/root/train_dflash_pipeline.py", True, None),
    ]
    cache = loaded.cache[0]
    assert (cache.path, cache.kind, cache.change, cache.keep) == ("/tmp/torchinductor_root", "inductor", "grow", True)


def test_ct200_holds_its_gpus_and_what_the_loader_takes() -> None:
    loaded = load("ct200.toml")
    assert loaded.gpu == rules.SystemRule({"count": 8, "driver": "locked"})
    assert loaded.launch.loader


def test_the_evidence_pins_what_was_read_while_it_was_slow() -> None:
    loaded = load("ct200-evidence.toml")
    assert loaded.python[0].packages["torch"] == rules.PackagePin(
        version="2.11.0+cu130", cuda="13.0", git="70d99e998b4955e0049d13a98d77ae1b14db1f45"
    )
    assert [(file.path, file.digest) for file in loaded.file] == [
        ("/root/dflash_model.py", "md5:b59fa7a2073cbae07b20d8daea07f11d"),
        ("/root/train_dflash_pipeline.py", "md5:03835dc46af1c679d330eef93d1351b2"),
    ]


def test_the_evidence_holds_a_real_scene_to_its_md5_pins(tmp_path: Path) -> None:
    """The scripts of that night are not here: one stands in with its own md5 as the pin, one with other bytes."""
    evidence = load("ct200-evidence.toml")
    model, script = tmp_path / "dflash_model.py", tmp_path / "train_dflash_pipeline.py"
    model.write_text("the bytes that were read\n")
    script.write_text("other bytes\n")
    read = "md5:" + hashlib.md5(model.read_bytes()).hexdigest()
    scene = dataclasses.replace(
        evidence,
        python=(),
        cache=(),
        file=(
            dataclasses.replace(evidence.file[0], path=str(model), digest=read),
            dataclasses.replace(evidence.file[1], path=str(script)),
        ),
    )
    found = look_at(Look(scene, Disk())).facts
    assert list(probe("file").breaches(scene.file[0], scene, found)) == []
    breach = next(iter(probe("file").breaches(scene.file[1], scene, found)))
    assert breach.fact == f"file:{script}"
    assert "03835dc46af1c679d330eef93d1351b2" in breach.text + breach.wanted


def test_the_readme_explains_every_key() -> None:
    text = (REPOSITORY / "policies" / "README.md").read_text()
    for rule in (rules.Policy, rules.PackagePin, rules.EnvRule, *MANY.values(), rules.LaunchRule):
        for field in dataclasses.fields(rule):
            if field.name not in ("lines", "owner"):
                assert field.name in text, f"{rule.__name__}.{field.name}"


# -- the schema --------------------------------------------------------------------------------------------------------


def test_the_schema_in_docs_is_the_one_that_is_printed() -> None:
    assert SCHEMA.read_text() == schema_text(), "run: lockd policy schema > docs/schemas/policy.schema.json"


def test_the_schema_is_one() -> None:
    jsonschema.Draft7Validator.check_schema(json.loads(SCHEMA.read_text()))


@pytest.mark.parametrize(
    "section",
    [
        {"fiel": [{"path": "/a"}]},
        {"file": [{"path": "a"}]},
        {"file": [{"path": "/a", "digets": "md5:00"}]},
        {"file": [{}]},
        {"file": {"path": "/a"}},
        {"cache": [{"path": "/a", "change": "sometimes"}]},
        {"python": [{"name": "a", "path": "/v", "packages": {"torch": 2.11}}]},
        {"python": [{"name": "a", "path": "/v", "packages": {"torch": {"cudda": "1"}}}]},
        {"env": {"A": 8}},
        {"env": {"A": {"valeu": "x"}}},
        {"gpu": {"count": "eight"}},
        {"host": {"kernel": {"vlaue": "x"}}},
        {"launch": [{}], "file": [{"path": "/a"}]},
        {"path": "/x", "file": [{"path": "/a"}]},
        {},
    ],
)
def test_an_editor_sees_the_mistakes_that_lockd_tells(section: dict[str, Any]) -> None:
    document = {"schema": 1, "name": "ct", **section}
    errors = list(jsonschema.Draft7Validator(json.loads(SCHEMA.read_text())).iter_errors(document))
    assert errors


def test_an_editor_takes_every_form_that_lockd_takes() -> None:
    document = {
        "schema": 1,
        "name": "ct",
        "env": {
            "A": "locked",
            "B": {"value": "x"},
            "C": {"forbid": True},
            "NCCL_*": {"secret": True, "on_drift": "warn"},
        },
        "gpu": {"count": 8, "driver": "locked", "idle": "warn"},
        "host": {"kernel": {"on_drift": "warn"}},
        "python": [{"name": "a", "path": "/v", "packages": {"torch": "2", "triton": {"version": "==3"}}}],
    }
    jsonschema.validate(document, json.loads(SCHEMA.read_text()))


def test_every_key_of_the_schema_has_a_description() -> None:
    schema = json.loads(SCHEMA.read_text())
    for name, definition in {"": schema, **schema["definitions"]}.items():
        for key, value in definition["properties"].items():
            assert value.get("description"), f"{name}.{key}"
    assert set(schema["properties"]) == {"schema", "name", "on_drift", "on_unknown", "env", *MANY, *ONE}


def test_the_names_of_the_policies_say_no_registry() -> None:
    for path in [*POLICIES, REPOSITORY / "policies" / "README.md"]:
        assert "https://" not in path.read_text(), path.name


def test_policies_can_be_read_by_everybody_and_written_by_the_owner() -> None:
    for path in POLICIES:
        assert os.stat(path).st_mode & 0o002 == 0, path.name
