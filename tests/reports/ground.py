"""What the tests of public reports share: a pinned environment, the good state accepted, one drift, one cause told.

Always holds: installs are by the real pip or uv, lockd runs as a process. `told` fails on any finding beside the one
cause and what it brought.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tests.scene import Scene
from tests.wheels import UV, Env, Wheel, build_venv, install

BY = "uv" if UV else "pip"
GIT = "70d99e998b4955e0049d13a98d77ae1b14db1f45"


def train(scene: Scene, *wheels: Wheel, by: str = BY, rule: str = "", more: str = "") -> Env:
    """A venv of these wheels, and a policy that pins it strictly, with `more` sections behind."""
    env = build_venv(scene.root / "venv")
    install(env, *wheels, by=by)
    words = 'extra = "block"\nunowned = "block"\n' if "extra" not in rule else 'unowned = "block"\n'
    scene.write_policy(f'[[python]]\nname = "train"\npath = "{env.prefix}"\n{words}{rule}\n{more}\n')
    return env


def swap(env: Env, *wheels: Wheel, by: str = BY) -> None:
    """Install over what is there."""
    install(env, *wheels, by=by)


def accepted(scene: Scene, **how: Any) -> None:
    """The good state, accepted, with nothing to tell afterwards."""
    done = scene.accept(**how)
    assert done.code == 0, done.out + done.err
    after = scene.verify(**how)
    assert (after.code, after.facts) == (0, []), after.out


def told(
    scene: Scene, fact: str, change: str, *words: str, brought: Iterable[str] = (), code: int = 1, **how: Any
) -> dict[str, Any]:
    """The one cause that verify tells, of this fact and change, with these words in its one line."""
    answer = scene.verify(**how)
    assert answer.code == code, answer.out + answer.err
    causes = [one for one in answer.document["findings"] if "because" not in one]
    assert [one["fact"] for one in causes] == [fact], answer.out
    (cause,) = causes
    children = {one["fact"] for one in answer.document["findings"] if "because" in one}
    assert children == {f"package:train/{name}" for name in brought}, answer.out
    assert all(one["because"] == fact for one in answer.document["findings"] if "because" in one), answer.out
    assert cause["change"] == change, cause
    for word in words:
        assert word in cause["message"], cause["message"]
    assert "\n" not in cause["message"]
    return dict(cause)


def says(scene: Scene, cause: dict[str, Any], **how: Any) -> bool:
    """Does a line of the text for people say it whole?"""
    return any(line.endswith(cause["message"]) for line in scene.lockd("verify", **how).out.splitlines())


def plain(name: str, version: str, *requires: str, **files: str) -> Wheel:
    """A wheel of one module, whose contents hang on its version. files: `a__b` stands for a/b.py."""
    module = name.replace("-", "_").lower()
    sources = {f"{path.replace('__', '/')}.py": text for path, text in files.items()}
    return Wheel(name, version, {f"{module}/__init__.py": f"VERSION = {version!r}\n", **sources}, tuple(requires))


def torch(version: str, cuda: str | None, *requires: str, labelled: bool = True) -> Wheel:
    """A torch build: `2.6.0+cu124`; METADATA has the label or, as the builds of the public index, has not."""
    public = version.partition("+")[0]
    files = {
        "torch/__init__.py": "from .version import __version__\n",
        "torch/version.py": f"__version__ = {version!r}\ncuda = {cuda!r}\ngit_version = {GIT!r}\nhip = None\n",
        "torch/lib/libtorch.so": f"\x7fELF torch for {cuda}\n",
    }
    return Wheel("torch", version if labelled else public, files, tuple(requires))


def nccl(version: str, generation: str = "12") -> Wheel:
    """NVIDIA's wheel of NCCL: both generations hold the library at one path."""
    files = {
        "nvidia/nccl/__init__.py": "",
        "nvidia/nccl/lib/libnccl.so.2": f"\x7fELF NCCL version {version}+cuda{generation}\n",
    }
    return Wheel(f"nvidia-nccl-cu{generation}", version, files)


def edit(path: Path, old: str, new: str) -> None:
    """Put text in place of other text, by hand."""
    text = path.read_text()
    assert old in text, path
    path.write_text(text.replace(old, new))
