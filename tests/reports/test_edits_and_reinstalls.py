"""Files changed inside installed packages: by hand, or by a reinstall that keeps name and version."""

from __future__ import annotations

import os
from pathlib import Path

from tests.reports.ground import accepted, edit, plain, says, swap, told, torch, train
from tests.scene import Scene
from tests.wheels import Wheel

YEAR_2020 = 1_577_836_800


def flashinfer(body: str) -> Wheel:
    return Wheel(
        "flashinfer-python",
        "0.6.11",
        {"flashinfer/__init__.py": "", "flashinfer/data/csrc/decode.cu": f"// {body}\n"},
    )


def jaxlib(version: str, body: str) -> Wheel:
    files = {"jaxlib/__init__.py": "", "jaxlib/version.py": f"__version__ = {version!r}\n"}
    return Wheel("jaxlib", version, {**files, "jaxlib/_jax.so": f"\x7fELF {body}\n"})


def test_metadata_edited_by_hand(tmp_path: Path) -> None:
    """facebookresearch/xformers#1096: users were told to edit Requires-Dist in site-packages; every installer takes
    the edited line at its word."""
    scene = Scene(tmp_path)
    env = train(scene, torch("2.4.1+cu121", "12.1"), plain("xformers", "0.0.28", "torch==2.4.1"))
    accepted(scene)
    edit(env.info("xformers") / "METADATA", "Requires-Dist: torch==2.4.1", "Requires-Dist: torch>=2.4.1")
    found = told(scene, "package:train/xformers", "changed", "1 file differs from its wheel", "METADATA")
    assert says(scene, found)


def test_a_reinstall_of_the_same_version_with_older_times(tmp_path: Path) -> None:
    """flashinfer-ai/flashinfer#4490: the same version installed again, with sources older than what was compiled
    before: ninja kept the stale .so, and the job hung. Times and versions say nothing; the contents do."""
    scene = Scene(tmp_path)
    compiled = scene.file("home/.cache/flashinfer/0.6.11/90a/decode/decode.so", "\x7fELF compiled from the first\n")
    cache = f'[[cache]]\npath = "{scene.root}/home/.cache/flashinfer"\nkind = "flashinfer"\n'
    env = train(scene, flashinfer("first"), more=cache)
    accepted(scene)
    swap(env, flashinfer("second"))
    for path in (env.site / "flashinfer").rglob("*"):
        os.utime(path, (YEAR_2020, YEAR_2020))
    assert compiled.stat().st_mtime > (env.site / "flashinfer/data/csrc/decode.cu").stat().st_mtime
    told(scene, "package:train/flashinfer-python", "changed", "flashinfer-python 0.6.11", "decode.cu")


def test_a_stale_object_of_flashinfer_is_named(tmp_path: Path) -> None:
    """flashinfer-ai/flashinfer#4490, from the other side: the package is the same, the compiled object is not."""
    scene = Scene(tmp_path)
    compiled = scene.file("home/.cache/flashinfer/0.6.11/90a/decode/decode.so", "\x7fELF from the good sources\n")
    folder = scene.root / "home/.cache/flashinfer"
    train(scene, flashinfer("first"), more=f'[[cache]]\npath = "{folder}"\nkind = "flashinfer"\n')
    accepted(scene)
    compiled.write_text("\x7fELF from other sources\n")
    told(scene, f"cache:{folder}", "changed", "1 of 1 entries changed", "decode.so")


def test_an_imported_file_changed_under_a_numba_cache(tmp_path: Path) -> None:
    """numba/numba#9483: numba serves old code after a file that the cached function imports has changed. The index that
    numba keeps did not move; the source did, and is named."""
    scene = Scene(tmp_path)
    source = scene.file("job/kernels/scale.py", "FACTOR = 2\n")
    scene.file("job/kernels/__init__.py", "")
    scene.file("job/__pycache__/train.step-3.py311.nbi", "index\n")
    scene.file("job/__pycache__/train.step-3.py311.1.nbc", "compiled with FACTOR = 2\n")
    rules = f'[[file]]\npath = "{scene.root}/job/**/*.py"\n[[cache]]\npath = "{scene.root}/job/__pycache__"\n'
    scene.write_policy(rules)
    accepted(scene)
    status = source.stat()
    source.write_text("FACTOR = 3\n")
    os.utime(source, ns=(status.st_atime_ns, status.st_mtime_ns))
    told(scene, f"file:{source}", "changed", "scale.py")


def test_a_downgrade_of_jaxlib_in_place(tmp_path: Path) -> None:
    """uwplasma/vmex#222: jaxlib downgraded in place, compiled entries of the newer one left: SIGSEGV."""
    scene = Scene(tmp_path)
    env = train(scene, jaxlib("0.7.2", "new"))
    accepted(scene)
    swap(env, jaxlib("0.6.2", "old"))
    told(scene, "package:train/jaxlib", "changed", "jaxlib 0.7.2 → 0.6.2")


def test_another_binary_of_jaxlib_under_one_version(tmp_path: Path) -> None:
    """jax-ml/jax#27814: the version is the same, the extension's bytes are not."""
    scene = Scene(tmp_path)
    env = train(scene, jaxlib("0.7.2", "as released"))
    accepted(scene)
    swap(env, jaxlib("0.7.2", "built at home"))
    told(scene, "package:train/jaxlib", "changed", "jaxlib 0.7.2: ", "jaxlib/_jax.so")
