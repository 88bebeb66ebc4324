"""A corner of a machine under tmp_path, and the real `lockd` run on it as a process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
LOCKD = (  # this source tree's lockd, whatever folder it is called from
    sys.executable,
    "-c",
    f"import sys; sys.path.insert(0, {str(ROOT)!r}); from lockd.cli import main; sys.exit(main(sys.argv[1:]))",
)


@dataclass(frozen=True)
class Answer:
    """What a command gave. `document` is its stdout as JSON."""

    code: int
    out: str
    err: str

    @property
    def document(self) -> Any:
        return json.loads(self.out)

    @property
    def facts(self) -> list[str]:
        """The facts of the findings of `verify --json`, in their order."""
        return [finding["fact"] for finding in self.document["findings"]]


@dataclass
class Scene:
    """Policy, files and state below `root`; lockd runs with a scratch home and state."""

    root: Path
    environ: dict[str, str] = field(default_factory=dict)

    @property
    def policy(self) -> Path:
        return self.root / "policy" / "ct.toml"

    @property
    def lock(self) -> Path:
        return self.root / "policy" / "ct.lock"

    @property
    def state(self) -> Path:
        return self.root / "state"

    def write_policy(self, text: str, head: str = 'schema = 1\nname = "ct"\n') -> None:
        self.policy.parent.mkdir(parents=True, exist_ok=True)
        self.policy.parent.chmod(0o755)
        self.policy.write_text(head + text)
        self.policy.chmod(0o644)

    def file(self, name: str, text: str = "x = 1\n") -> Path:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    def lockd(self, *args: str, env: Mapping[str, str] | None = None, cwd: Path | None = None) -> Answer:
        words = {"PATH": os.environ["PATH"], "HOME": str(self.root / "home"), "LOCKD_STATE": str(self.state)}
        words |= {
            "LOCKD_RUNTIME": str(self.root / "run"),
            "LOCKD_POLICY": str(self.policy),
            **self.environ,
            **(env or {}),
        }
        done = subprocess.run(
            [*LOCKD, *args],
            env=words,
            cwd=cwd or self.root,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=60,
        )
        return Answer(done.returncode, done.stdout.decode("utf-8"), done.stderr.decode("utf-8"))

    def verify(self, *args: str, **how: Any) -> Answer:
        return self.lockd("verify", "--json", *args, **how)

    def accept(self, *args: str, **how: Any) -> Answer:
        return self.lockd("accept", "-m", "known good", "--yes", *args, **how)


def pinned_file(root: Path, rule: str = "") -> tuple[Scene, Path]:
    """A scene with one file under a rule."""
    scene = Scene(root)
    path = scene.file("job/model.py")
    scene.write_policy(f'[[file]]\npath = "{path}"\n{rule}\n')
    return scene, path
