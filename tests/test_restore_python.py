"""Restore of environments: packages from kept files, a wheel folder, an index; start-up code; loose files.

The installers are the real pip and uv; the index is a real one on the loopback interface.
"""

from __future__ import annotations

import http.server
import os
import shutil
import subprocess
import threading
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest

from lockd.unpack import Layout, WheelError, unpack
from tests.restoring import Near, contents
from tests.scene import Answer, Scene
from tests.wheels import UV, Env, Wheel, build_venv, install, uninstall

SYMBOLIC = "def is_fx_symbolic_tracing():\n    return True\n"
BY = ["pip", pytest.param("uv", marks=pytest.mark.skipif(UV is None, reason="uv is not installed"))]


def torch(label: str, cuda: str, needs: str) -> Wheel:
    """A small torch: METADATA without the label, which only version.py tells."""
    return Wheel(
        "torch",
        "2.11.0",
        {
            "torch/__init__.py": "from .version import __version__\n",
            "torch/version.py": f'__version__ = "2.11.0+{label}"\ncuda = "{cuda}"\n',
            "torch/fx/_symbolic_trace.py": SYMBOLIC,
            f"torch/lib/lib{label}.so": "machine code of " + label,
            "@scripts/torch-info": "#!python\nprint('info')\n",
        },
        requires=(needs,),
        entry_points={"torchrun": "torch.run:main"},
    )


TORCH, OTHER = torch("cu128", "12.8", "nvidia-nccl-cu12"), torch("cu130", "13.0", "nvidia-nccl-cu13")
NCCL = Wheel("nvidia-nccl-cu12", "2.1", {"nvidia/nccl/lib/libnccl.so.2": "cu12"})
OTHER_NCCL = Wheel("nvidia-nccl-cu13", "2.2", {"nvidia/nccl/lib/libnccl.so.2": "cu13"})
TRANSFORMERS = Wheel("transformers", "4.50.0", {"transformers/__init__.py": "new = 1\n"})
OLDER = Wheel("transformers", "4.40.0", {"transformers/__init__.py": "new = 0\n", "transformers/old.py": "old = 1\n"})


def train(root: Path, rule: str = "", by: str = "pip", pins: str = "") -> tuple[Scene, Env]:
    """An accepted environment with three packages."""
    scene, env = Near(root), build_venv(root / "venv")
    install(env, TORCH, NCCL, TRANSFORMERS, by=by)
    (env.site / "good.pth").write_text("import sys\n")
    scene.write_policy(f'[[python]]\nname = "train"\npath = "{env.prefix}"\n{rule}\n{pins}')
    answer = scene.accept()
    assert answer.code == 0, answer.err
    return scene, env


def wheel_folder(root: Path, *wheels: Wheel) -> str:
    for wheel in wheels:
        wheel.write(root / "good-wheels")
    return str(root / "good-wheels")


def without_byte_code(prefix: Path) -> dict[str, tuple[str, bytes]]:
    return {path: what for path, what in contents(prefix).items() if "__pycache__" not in path}


def good_again(scene: Scene, answer: Answer, identity: str) -> None:
    assert answer.code == 0, answer.out + answer.err
    verdict = scene.verify("--full")
    assert verdict.document["verdict"] == "ok", verdict.out
    assert verdict.document["environment"] == identity


def spoil(env: Env, by: str) -> None:
    """The story's acts: another build with what it brings, a downgrade, a patch by hand, start-up code."""
    uninstall(env, "nvidia-nccl-cu12", by=by)
    install(env, OTHER, OTHER_NCCL, OLDER, by=by)
    (env.site / "torch/fx/_symbolic_trace.py").write_text(SYMBOLIC.replace("True", "False"))
    (env.site / "evil.pth").write_text("import os\n")
    (env.site / "good.pth").write_text("import os\n")


@pytest.mark.parametrize("by", BY)
def test_a_whole_environment_from_its_kept_files(tmp_path: Path, by: str) -> None:
    scene, env = train(tmp_path, "keep = true", by=by)
    identity, good = scene.verify().document["environment"], without_byte_code(env.prefix)
    spoil(env, by)
    bad = without_byte_code(env.prefix)
    good_again(scene, scene.lockd("restore", "--apply"), identity)
    assert without_byte_code(env.prefix) == good
    scene.lockd("restore", "--undo")
    assert without_byte_code(env.prefix) == bad


def test_packages_from_a_folder_of_wheels(tmp_path: Path) -> None:
    scene, env = train(tmp_path)
    identity = scene.verify().document["environment"]
    spoil(env, "pip")
    folder = wheel_folder(tmp_path, TORCH, NCCL, TRANSFORMERS)
    plan = scene.lockd("restore", "--wheels", folder)
    assert plan.code == 0 and "torch-2.11.0-py3-none-any.whl" in plan.out and "torch/version.py" in plan.out
    good_again(scene, scene.lockd("restore", "--apply", "--wheels", folder), identity)
    program = "import torch, transformers; print(torch.__version__, transformers.new)"
    done = subprocess.run([env.python, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["2.11.0+cu128", "1"]
    assert subprocess.run([env.bin / "torch-info"], capture_output=True, text=True, check=True).stdout == "info\n"


def test_a_wheel_of_another_build_is_not_taken_for_its_name(tmp_path: Path) -> None:
    scene, env = train(tmp_path)
    install(env, OTHER)
    before = contents(env.prefix)
    answer = scene.lockd("restore", "torch", "--apply", "--wheels", wheel_folder(tmp_path, OTHER))
    assert answer.code == 1 and "another build" in answer.out and "2.11.0+cu128" in answer.out
    assert contents(env.prefix) == before


def test_a_file_patched_by_hand_comes_back_alone(tmp_path: Path) -> None:
    scene, env = train(tmp_path)
    path = env.site / "torch/fx/_symbolic_trace.py"
    path.write_text(SYMBOLIC.replace("True", "False"))
    said = scene.lockd("restore")
    assert "no source" in said.out and "torch/fx/_symbolic_trace.py" in said.out and "--wheels" in said.out
    folder = wheel_folder(tmp_path, TORCH)
    (step,) = scene.lockd("restore", "--json", "--wheels", folder).document["restore"]
    written = [one["path"] for one in step["paths"] if one["does"] == "write"]
    assert str(path) in written and not any("version.py" in one for one in written)
    assert scene.lockd("restore", "--apply", "--wheels", folder).code == 0
    assert path.read_text() == SYMBOLIC and scene.verify().code == 0


def test_stale_byte_code_goes_with_the_edit(tmp_path: Path) -> None:
    scene, env = train(tmp_path, "keep = true")
    path = env.site / "transformers/__init__.py"
    status = path.stat()
    path.write_text("new = 7\n")
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    program = [str(env.python), "-c", "import transformers; print(transformers.new)"]
    assert subprocess.run(program, capture_output=True, text=True, check=True).stdout in ("7\n", "1\n")
    assert scene.lockd("restore", "--apply").code == 0
    assert subprocess.run(program, capture_output=True, text=True, check=True).stdout == "1\n"


def test_what_was_added_goes_when_named_and_stays_else(tmp_path: Path) -> None:
    scene, env = train(tmp_path)
    install(env, Wheel("sglang", "0.5", {"sglang/__init__.py": "", "sglang/srt/a.py": ""}))
    (env.site / "stray.py").write_text("mine\n")
    answer = scene.lockd("restore", "--apply")
    assert answer.code == 0 and answer.out.count("left alone") == 2 and (env.site / "sglang").exists()
    assert scene.lockd("restore", "sglang", "unowned:train", "--apply").code == 0
    assert not (env.site / "sglang").exists() and not (env.site / "stray.py").exists()
    assert scene.verify().document["verdict"] == "ok"
    scene.lockd("restore", "--undo")
    assert (env.site / "sglang/srt/a.py").exists() and (env.site / "stray.py").read_text() == "mine\n"


def test_a_shared_file_stays_with_the_package_that_is_locked(tmp_path: Path) -> None:
    """nvidia-nccl-cu13 goes, and the path that it shares with -cu12 stays that of -cu12."""
    scene, env = train(tmp_path, "keep = true")
    install(env, Wheel("nvidia-nccl-cu13", "2.2", {"nvidia/nccl/lib/libnccl.so.2": "cu12"}))
    assert scene.lockd("restore", "--all", "--apply").code == 0
    assert (env.site / "nvidia/nccl/lib/libnccl.so.2").read_text() == "cu12" and scene.verify().code == 0


def test_a_second_metadata_folder_goes(tmp_path: Path) -> None:
    scene, env = train(tmp_path, "keep = true")
    (env.site / "torch-2.9.0.dist-info").mkdir()
    (env.site / "torch-2.9.0.dist-info" / "METADATA").write_text("Name: torch\nVersion: 2.9.0\n")
    assert scene.lockd("restore", "--apply").code == 0
    assert not (env.site / "torch-2.9.0.dist-info").exists() and scene.verify().code == 0


def test_start_up_code_is_kept_unasked_and_comes_back_first(tmp_path: Path) -> None:
    scene, env = train(tmp_path)
    config = env.prefix / "pyvenv.cfg"
    good = config.read_text(), (env.site / "good.pth").read_text()
    config.write_text(config.read_text().replace("= false", "= true"))
    (env.site / "good.pth").unlink()
    (env.site / "sitecustomize.py").write_text("import os\n")
    answer = scene.lockd("restore", "--apply")
    assert answer.code == 0, answer.out
    assert (config.read_text(), (env.site / "good.pth").read_text()) == good
    assert not (env.site / "sitecustomize.py").exists() and scene.verify().document["verdict"] == "ok"


def test_nothing_of_the_environment_runs(tmp_path: Path) -> None:
    """No interpreter of the drifted venv is started: its start-up code would run first."""
    scene, env = train(tmp_path)
    install(env, OLDER)
    witness = tmp_path / "it-ran"
    (env.site / "evil.pth").write_text(f"import os; open({str(witness)!r}, 'w').close()\n")
    assert scene.lockd("restore", "--apply", "--wheels", wheel_folder(tmp_path, TRANSFORMERS)).code == 0
    assert not witness.exists()


def test_a_deleted_interpreter_link_comes_back(tmp_path: Path) -> None:
    scene, env = train(tmp_path)
    link = os.readlink(env.python)
    env.python.unlink()
    env.python.symlink_to("/usr/bin/true")
    scene.lockd("restore", "--apply")
    assert os.readlink(env.python) == link and scene.verify().code == 0


def test_loose_files_come_back_where_they_were_kept(tmp_path: Path) -> None:
    scene, env = Near(tmp_path), build_venv(tmp_path / "venv")
    install(env, TRANSFORMERS)
    loose = env.site / "helper.py"
    loose.write_text("good\n")
    scene.write_policy(f'[[python]]\nname = "train"\npath = "{env.prefix}"\nkeep = true\nunowned = "block"\n')
    scene.accept()
    loose.write_text("bad\n")
    (env.site / "extra.py").write_text("extra\n")
    assert scene.lockd("restore", "--apply").code == 0
    assert loose.read_text() == "good\n" and not (env.site / "extra.py").exists() and scene.verify().code == 0


# -- an index


@contextmanager
def index(folder: Path) -> Iterator[tuple[str, list[str]]]:
    """A package index of local files, and the paths that were asked for."""
    asked: list[str] = []

    class Handler(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *args: object) -> None:
            asked.append(self.path)

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), partial(Handler, directory=str(folder)))
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/simple", asked
    finally:
        server.shutdown()
        server.server_close()


def publish(folder: Path, *wheels: Wheel) -> None:
    for wheel in wheels:
        path = wheel.write(folder / "simple" / wheel.name)
        page = path.parent / "index.html"
        page.write_text(f'<a href="{path.name}">{path.name}</a>\n')


def test_packages_from_the_index_that_the_policy_names(tmp_path: Path) -> None:
    """The wheels that torch brings come from torch's index, too; the plan asks nobody."""
    served = tmp_path / "served"
    publish(served, TORCH, NCCL)
    with index(served) as (url, asked):
        pins = f'[python.packages]\ntorch = {{ version = "2.11.0+cu128", index = "{url}" }}\n'
        scene, env = train(tmp_path, pins=pins)
        identity = scene.verify().document["environment"]
        uninstall(env, "nvidia-nccl-cu12")
        install(env, OTHER, OTHER_NCCL)
        plan = scene.lockd("restore")
        assert plan.code == 0 and url in plan.out and asked == []
        good_again(scene, scene.lockd("restore", "--apply"), identity)
        assert any("torch-2.11.0" in path for path in asked)


def test_an_index_with_another_build_changes_nothing(tmp_path: Path) -> None:
    served = tmp_path / "served"
    publish(served, OTHER)
    with index(served) as (url, _):
        scene, env = train(tmp_path, pins=f'[python.packages]\ntorch = {{ version = "2.11.0", index = "{url}" }}\n')
        (env.site / "torch/version.py").write_text("broken\n")
        before = contents(env.prefix)
        answer = scene.lockd("restore", "--apply")
        assert answer.code == 1 and "another build" in answer.out
        assert contents(env.prefix) == before


# -- wheels unpacked


def layout(root: Path) -> Layout:
    prefix = root / "env"
    return Layout(str(prefix), str(prefix / "site"), str(prefix / "bin"), str(prefix / "include"), "/venv/bin/python")


def test_a_wheel_is_laid_out_as_an_installer_does(tmp_path: Path) -> None:
    wheel = Wheel(
        "flash-attn",
        "2.8.3",
        {"flash_attn/__init__.py": "x", "@data/share/a.txt": "a", "@purelib/pure.py": "p", "@headers/f.h": "h",
         "@scripts/run": "#!python\nrun\n"},
        entry_points={"fa": "flash_attn.cli:main.run [extra]"},
    ).write(tmp_path)  # fmt: skip
    unpack(str(wheel), layout(tmp_path))
    env = tmp_path / "env"
    assert (env / "share/a.txt").read_text() == "a" and (env / "site/pure.py").read_text() == "p"
    assert (env / "include/flash_attn/f.h").read_text() == "h"
    assert (env / "bin/run").read_text() == "#!/venv/bin/python\nrun\n" and os.access(env / "bin/run", os.X_OK)
    assert (
        "from flash_attn.cli import main" in (env / "bin/fa").read_text()
        and "main.run()" in (env / "bin/fa").read_text()
    )
    record = (env / "site/flash_attn-2.8.3.dist-info/RECORD").read_text()
    assert "../bin/fa,sha256=" in record and "flash_attn-2.8.3.dist-info/RECORD,,\n" in record


@pytest.mark.parametrize(
    "name", ["../../etc/cron.d/x", "/etc/x", "a-1.data/scripts/../../../x", "a\\..\\x", "a-1.data/odd/x"]
)
def test_a_wheel_that_leaves_its_folder_is_refused(tmp_path: Path, name: str) -> None:
    path = tmp_path / "a-1-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("a-1.dist-info/METADATA", "Name: a\nVersion: 1\n")
        archive.writestr(name, "x")
    with pytest.raises(WheelError):
        unpack(str(path), layout(tmp_path))
    assert not list(tmp_path.rglob("x"))


def test_what_is_no_wheel_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a-1-py3-none-any.whl"
    path.write_bytes(b"PK nothing")
    with pytest.raises(WheelError):
        unpack(str(path), layout(tmp_path))


def test_an_environment_that_is_gone_comes_back_whole(tmp_path: Path) -> None:
    scene, env = train(tmp_path, "keep = true")
    identity = scene.verify().document["environment"]
    shutil.rmtree(env.prefix)
    good_again(scene, scene.lockd("restore", "--apply"), identity)
    program = [str(env.python), "-c", "import torch, transformers; print(torch.__version__)"]
    assert subprocess.run(program, capture_output=True, text=True, check=True).stdout == "2.11.0+cu128\n"


def test_an_environment_that_is_gone_and_was_not_kept_is_said(tmp_path: Path) -> None:
    scene, env = train(tmp_path)
    shutil.rmtree(env.prefix)
    answer = scene.lockd("restore", "--apply")
    assert answer.code == 1 and "build it again" in answer.out and not env.prefix.exists()
