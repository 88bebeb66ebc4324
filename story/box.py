"""The story's machine: a privileged container with systemd, lockd in a venv of its own, the training beside it.

Always holds: nothing comes from a network; packages come by uv from wheel files, the cache is a real one. The daemon is
the service that `lockd service install` puts in place.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

from story import packages, scripts
from tests.container import Container
from tests.daemons import until
from tests.wheels import UV

ROOT = Path(__file__).parents[1]
PYTHON = "/root/venv/bin/python"
_NEEDS = ("pydantic", "pydantic_core", "annotated_types", "typing_extensions", "typing_inspection")
_NEEDS_TOO = ("packaging", "structlog", "watchdog")
_LOCKD = "#!/opt/lockd/bin/python -I\nimport sys\nfrom lockd.__main__ import main\nsys.exit(main())\n"
_METRIC = r"ktok_s=throughput ([\d.]+) Ktok/s"


@dataclass(frozen=True)
class Box:
    """The machine, and what people do there. `show` gets each command of lockd with its answer."""

    container: Container
    show: Callable[[str, CompletedProcess[str]], None]

    def run(self, *command: str, **env: Any) -> str:
        return self.container.run(*command, **env).stdout

    def hand(self, code: str, **env: str) -> None:
        """A shell as a person uses it: `lxc-attach`, bash, and what is typed there. It lives a moment longer."""
        self.run("bash", "-c", f"{code}\nsleep 0.3", **env)

    def uv(self, *words: str) -> None:
        self.run("/usr/local/bin/uv", *words, UV_OFFLINE="1", UV_NO_CACHE="1", UV_LINK_MODE="copy")

    def pip(self, what: str, folder: str, *options: str, python: str = PYTHON) -> None:
        """`uv pip install`, from a folder of wheels."""
        find = ("--no-index", "--find-links", f"/root/wheels/{folder}", "--python", python)
        self.uv("pip", "install", "--quiet", *find, *options, *what.split())

    def lockd(self, *words: str, cached: bool = True) -> CompletedProcess[str]:
        """lockd as the owner calls it, in a shell with the launch's variable (or without)."""
        env: dict[str, Any] = {"TORCHINDUCTOR_CACHE_DIR": scripts.CACHE} if cached else {}
        done = self.container.run("/opt/lockd/bin/lockd", *words, check=False, **env)
        self.show(" ".join(words), done)
        return done

    def document(self, *words: str) -> Any:
        return json.loads(self.run("/opt/lockd/bin/lockd", *words, "--json"))

    def launch(self, *options: str, python: str = PYTHON, cached: bool = True) -> CompletedProcess[str]:
        return self.lockd("run", *options, "--metric", _METRIC, "--", python, scripts.JOB, cached=cached)

    def log(self, after: int = 0) -> list[dict[str, Any]]:
        """The entries behind that number, oldest first."""
        return [entry for entry in self.document("log", "--reverse") if entry["id"] > after]

    def last(self) -> int:
        return max((entry["id"] for entry in self.log()), default=0)


def furnish(container: Container, show: Callable[[str, CompletedProcess[str]], None]) -> Box:
    """All that stood there on the good day, accepted, with the daemon running."""
    box = Box(container, show)
    with tempfile.TemporaryDirectory(prefix="lockd-story-") as name:
        _bring_lockd(container, Path(name))
        _bring_training(box, Path(name))
    box.run("mkdir", "-p", "/etc/lockd")
    (container.path / scripts.POLICY_PATH[1:]).write_text(scripts.POLICY)
    for words in (("accept", "-m", "12.8 Ktok/s on this", "--yes"), ("service", "install", "--now")):
        done = box.lockd(*words)
        assert done.returncode == 0, done.stdout + done.stderr
    until(lambda: box.document("status")["daemon"], "the daemon to answer")
    return box


def _bring_lockd(container: Container, scratch: Path) -> None:
    container.run("python3", "-m", "venv", "--without-pip", "/opt/lockd")
    site = next((container.path / "opt/lockd/lib").glob("python3*/site-packages")).relative_to(container.path)
    for name in (*_NEEDS, *_NEEDS_TOO):
        spec = find_spec(name)
        assert spec and spec.origin
        source = Path(spec.origin)
        source = source.parent if source.name == "__init__.py" else source
        container.push(source, f"/{site}/{source.name}")
    container.push(ROOT / "lockd", f"/{site}/lockd")
    container.push(ROOT / "units", f"/{site}/lockd/_units")
    script = scratch / "lockd"
    script.write_text(_LOCKD)
    script.chmod(0o755)
    container.push(script, "/opt/lockd/bin/lockd")


def _bring_training(box: Box, scratch: Path) -> None:
    assert UV is not None, "the story needs uv"
    packages.write(scratch / "wheels")
    box.container.push(scratch / "wheels", "/root/wheels")
    box.container.push(Path(UV), "/usr/local/bin/uv")
    box.container.push(ROOT / "tests/data/torchinductor_root.tgz", "/root/cache.tgz")
    box.uv("venv", "--quiet", "--python", "/usr/bin/python3", "/root/venv")
    box.pip("torch transformers nvidia-nccl-cu12", "good")
    for path, text in ((scripts.JOB, scripts.JOB_TEXT), (scripts.MODEL, scripts.MODEL_TEXT)):
        (box.container.path / path[1:]).write_text(text)
    box.run("tar", "-C", "/tmp", "--no-same-owner", "-xzf", "/root/cache.tgz")
    data = box.container.path / scripts.DATA[1:]
    data.mkdir(parents=True)
    for number in range(100):
        (data / f"shard-{number:05}.arrow").write_bytes(bytes([number]) * 4096)
