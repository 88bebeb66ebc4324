"""Links in a conda prefix that an update moves or removes. The prefix has conda's own shape and records."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.reports.ground import accepted, told
from tests.scene import Scene
from tests.test_python_conda import Conda

LINKS = {"lib/libstdc++.so.6": "libstdc++.so.6.0.34"}
LIBRARIES = {"lib/libstdc++.so.6.0.34": "\x7fELF GLIBCXX_3.4.34\n"}


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    """A prefix with the C++ library, accepted."""
    scene = Scene(tmp_path)
    conda = Conda(tmp_path / "conda")
    conda.add("libstdcxx", "15.2.0", "h8f9b012_7", LIBRARIES, links=LINKS)
    scene.write_policy(f'[[python]]\nname = "train"\npath = "{conda.prefix}"\n')
    accepted(scene)
    return scene


def test_the_link_of_libstdcxx_that_an_update_removed(scene: Scene) -> None:
    """rapidsai/ci-imgs#185: a conda update removed the link libstdc++.so.6, and the system's older library was found:
    GLIBCXX not found. The record of the package is unchanged."""
    (scene.root / "conda/lib/libstdc++.so.6").unlink()
    told(scene, "package:train/libstdcxx", "changed", "libstdcxx 15.2.0", "missing", "lib/libstdc++.so.6")


def test_the_link_of_libstdcxx_that_leads_to_an_older_library(scene: Scene) -> None:
    """pytorch/pytorch#157709, #105248: the link leads to another library: GLIBCXX not found."""
    link = scene.root / "conda/lib/libstdc++.so.6"
    link.unlink()
    (link.parent / "libstdc++.so.6.0.29").write_text("\x7fELF GLIBCXX_3.4.29\n")
    link.symlink_to("libstdc++.so.6.0.29")
    told(
        scene,
        "package:train/libstdcxx",
        "changed",
        "lib/libstdc++.so.6; leads to libstdc++.so.6.0.29, not libstdc++.so.6.0.34",
    )
