"""Imports run one way: each module may import only from floors below its own. `docs/design.md` says it in words."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "lockd"

# From the ground up. A folder stands for all that is in it.
FLOORS: tuple[tuple[str, ...], ...] = (
    ("plain", "frozen", "wellformed", "errors", "facts", "training"),
    ("rules",),
    ("findings",),
    (
        "globs",
        "atomic",
        "place",
        "put",
        "clock",
        "secrets",
        "origin",
        "lineage",
        "names",
        "pool",
        "hashing",
        "ahead",
        "statcache",
        "walk",
        "entries",
        "disk",
        "trust",
        "torchkeys",
    ),
    ("look", "memo", "lastlook", "probes", "processes", "conditions", "supervise"),
    (
        "toml_lines",
        "policy",
        "policy_check",
        "policy_cache",
        "policy_schema",
        "policy_sense",
        "policy_shape",
        "lock",
        "lock_cache",
        "state",
        "store",
        "store_file",
        "store_reading",
        "store_schema",
        "compare",
        "requirements",
        "verdict",
        "ranking",
        "manifests",
        "hints",
        "watch",
        "protocol",
        "client",
    ),
    ("held", "explain", "check", "history", "overrides", "session", "consequences", "evidence"),
    (
        "accept",
        "accept_record",
        "accept_run",
        "gc",
        "init",
        "report",
        "running",
        "restore",
        "runs",
        "launch_evidence",
        "guests",
        "spool",
        "keep",
        "keep_paths",
        "objects",
        "restore_apply",
        "journal",
        "pending",
        "restore_python",
        "wheels",
        "unpack",
        "texts",
        "environments",
        "launched",
        "sources",
    ),
    ("gates", "ungated"),
    ("daemon", "log", "service", "doctor"),
    ("commands", "cli", "arguments", "parser", "progress"),
    ("__main__",),
)
FLOOR = {name: level for level, names in enumerate(FLOORS) for name in names}


def modules() -> Iterator[tuple[str, Path]]:
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(PACKAGE).with_suffix("").parts
        if parts != ("__init__",):
            yield parts[0], path


def imported(path: Path) -> Iterator[str]:
    """The lockd modules that a file imports, late imports included, those for the type checker left out."""
    tree = ast.parse(path.read_text())
    typing_only = {id(inner) for node in ast.walk(tree) if _for_types(node) for inner in ast.walk(node)}
    for node in ast.walk(tree):
        if id(node) in typing_only:
            continue
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "lockd":
            parts = (node.module or "").split(".")[1:]
            yield from parts[:1] or [alias.name for alias in node.names]
        elif isinstance(node, ast.Import):
            yield from (alias.name.split(".")[1] for alias in node.names if alias.name.startswith("lockd."))


def _for_types(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"


def test_every_module_has_a_floor() -> None:
    assert {name for name, _ in modules()} <= FLOOR.keys()


@pytest.mark.parametrize(
    ("name", "path"), [pytest.param(*found, id=str(found[1].relative_to(PACKAGE))) for found in modules()]
)
def test_imports_run_down(name: str, path: Path) -> None:
    above = {target for target in imported(path) if target != name and FLOOR.get(target, -1) > FLOOR[name]}
    assert not above, f"{path.name} stands on floor {FLOOR[name]} and imports from above: {sorted(above)}"
