"""The twelve acts, in their order: what is done, what lockd must have seen of it, how the next launch is made.

Always holds: an act does its deed with the real means (uv, an editor, a copy from the host) and tells lockd nothing.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from story import scripts
from story.box import PYTHON, Box
from story.packages import TRACE

SECOND = "/root/venv2/bin/python"


@dataclass(frozen=True)
class Act:
    """One thing that somebody does. fact: what is to be in the log and in the refusal. kind: that of the event.

    writer: a word of the writer's command line; "": the writer stands outside of the container, and that is said.
    undo: what is done when the launch was refused. python, cached: how the next launches are made.
    """

    number: int
    title: str
    fact: str
    names: str
    deed: Callable[[Box], None]
    writer: str
    kind: str = "drift"
    undo: Callable[[Box], None] | None = None
    python: str = PYTHON
    cached: bool = True


def _patch(box: Box) -> None:
    path = next((box.container.path / "root/venv/lib").glob(f"python3*/site-packages/{TRACE}"))
    inside = "/" + str(path.relative_to(box.container.path))
    # -n: a swap file beside the source, for as long as the editor is open, is a drift of its own: unowned:train
    line = "    return _is_fx_tracing_flag and not compiling()"
    box.hand(f"vim.tiny -n -es -c '%s/^{line}$/    return False/' -c 'w' -c 'sleep 300m' -c 'q' {inside} </dev/null")
    assert "return False\n\n\ndef compiling" in path.read_text()


def _edit_on_the_host(box: Box) -> None:
    path = box.container.path / scripts.MODEL[1:]
    path.write_text(path.read_text().replace("512", "1024"))


def _push_in(box: Box) -> None:
    with tempfile.TemporaryDirectory(prefix="lockd-story-") as name:
        copy = Path(name) / "train.py"
        copy.write_text(scripts.JOB_TEXT + "# compile in threads, take 3\n")
        copy.chmod(0o644)
        box.container.push(copy, scripts.JOB)


def _fill(box: Box) -> None:
    box.hand(f"{PYTHON} - <<'EOF'\n{scripts.FILL}EOF", TORCHINDUCTOR_CACHE_DIR=scripts.CACHE)


def _second_venv(box: Box) -> None:
    box.uv("venv", "--quiet", "--python", "/usr/bin/python3", "/root/venv2")
    box.pip("torch", "cu130", "--no-deps", python=SECOND)


def _nothing(box: Box) -> None:
    """`unset` is the shell's own: nothing happens on the machine until a launch."""


def _without(package: str) -> Callable[[Box], None]:
    return lambda box: box.uv("pip", "uninstall", "--quiet", "--python", PYTHON, package)


_PACKAGE, _FILES = "package:train/", MappingProxyType({"model": scripts.MODEL, "job": scripts.JOB})
ACTS = (
    Act(
        1,
        "the dataset grows",
        f"tree:{scripts.DATA}",
        scripts.DATA,
        lambda box: box.hand(f"python3 - <<'EOF'\n{scripts.GROW}EOF"),
        "python3",
    ),
    Act(
        2,
        "sglang comes in, and goes",
        f"{_PACKAGE}sglang",
        "sglang 0.5.11",
        lambda box: box.pip("sglang", "more"),
        "uv pip install",
        undo=_without("sglang"),
    ),
    Act(
        3,
        "flashinfer comes in, and goes",
        f"{_PACKAGE}flashinfer-python",
        "flashinfer-python 0.6.1",
        lambda box: box.pip("flashinfer-python", "more"),
        "uv pip install",
        undo=_without("flashinfer-python"),
    ),
    Act(
        4,
        "torch becomes another build of its version",
        f"{_PACKAGE}torch",
        "torch 2.11.0+cu128 → 2.11.0+cu130",
        lambda box: box.pip("torch", "cu130", "--no-deps", "--reinstall"),
        "uv pip install",
    ),
    Act(
        5,
        "transformers is downgraded",
        f"{_PACKAGE}transformers",
        "transformers 5.0.0 → 4.57.3",
        lambda box: box.pip("transformers==4.57.3", "more"),
        "uv pip install",
    ),
    Act(6, f"{TRACE} is patched by hand", f"{_PACKAGE}torch", TRACE, _patch, "vim.tiny"),
    Act(
        7,
        "dflash_model.py is edited on the host",
        f"file:{_FILES['model']}",
        _FILES["model"],
        _edit_on_the_host,
        "",
    ),
    Act(
        8,
        "train_dflash_pipeline.py is pushed in from there",
        f"file:{_FILES['job']}",
        _FILES["job"],
        _push_in,
        "",
    ),
    Act(
        9,
        "the cache is deleted",
        f"cache:{scripts.CACHE}",
        scripts.CACHE,
        lambda box: box.hand(f"rm -rf {scripts.CACHE}"),
        "rm -rf",
    ),
    Act(
        10,
        "the cache is filled anew under the wrong build",
        f"cache:{scripts.CACHE}",
        scripts.CACHE,
        _fill,
        "python",
    ),
    Act(
        11,
        "TORCHINDUCTOR_CACHE_DIR is unset",
        "env:TORCHINDUCTOR_CACHE_DIR",
        "TORCHINDUCTOR_CACHE_DIR",
        _nothing,
        "lockd run",
        kind="refuse",
        cached=False,
    ),
    Act(
        12,
        "a second venv is built and used for the launch",
        "launch:python",
        "/root/venv2",
        _second_venv,
        "lockd run",
        kind="refuse",
        python=SECOND,
        cached=False,
    ),
)

LAST = ACTS[-1]
