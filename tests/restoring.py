"""What the tests of keep and restore share: trees as plain data, and a lockd that is killed at its n-th change.

Always holds: the killed process is a real one, ended by SIGKILL inside a real system call's audit event, so that
nothing of it runs afterwards.
"""

from __future__ import annotations

import contextlib
import io
import os
import stat
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from unittest import mock

from lockd import cli
from tests.scene import ROOT, Answer, Scene

CACHE = Path(__file__).parent / "data" / "torchinductor_root.tgz"
EVENTS = ("os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.chmod", "os.utime", "os.symlink")
_KILLED = """
import os, signal, sys
sys.path.insert(0, {root!r})
from lockd.cli import main
left = {left}
events = {events!r}
def hook(event, arguments):
    global left
    if event in events:
        left -= 1
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
sys.addaudithook(hook)
code = main(sys.argv[1:])
print(left, file=sys.stderr)
sys.exit(code)
"""


class Near(Scene):
    """A scene whose lockd runs in this very process: as true, and ten times as fast as one for each command."""

    def lockd(self, *args: str, env: Mapping[str, str] | None = None, cwd: Path | None = None) -> Answer:
        out, err = io.StringIO(), io.StringIO()
        words = {"PATH": os.environ["PATH"], "HOME": str(self.root / "home"), "LOCKD_STATE": str(self.state)}
        words |= {"LOCKD_RUNTIME": str(self.root / "run"), "LOCKD_POLICY": str(self.policy), **self.environ}
        with (
            mock.patch.dict(os.environ, {**words, **(env or {})}, clear=True),
            _inside(cwd or self.root),
            mock.patch("sys.stdin", io.StringIO()),
            contextlib.redirect_stdout(out),
            contextlib.redirect_stderr(err),
        ):
            code = cli.main(list(args))
        return Answer(code, out.getvalue(), err.getvalue())


@contextlib.contextmanager
def _inside(folder: Path) -> Iterator[None]:
    before = Path.cwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)


def pinned_file(root: Path, rule: str = "") -> tuple[Scene, Path]:
    """A scene with one file under a rule."""
    scene = Near(root)
    path = scene.file("job/model.py")
    scene.write_policy(f'[[file]]\npath = "{path}"\n{rule}\n')
    return scene, path


def tree(root: Path) -> dict[str, tuple[str, int, int, int, bytes]]:
    """Every path below a folder: kind, mode, owner, time (of files) and contents."""
    found = {}
    for folder, folders, files in os.walk(root):
        for name in (*folders, *files):
            path = Path(folder, name)
            status = path.lstat()
            kind = stat.filemode(status.st_mode)[0]
            content = os.fsencode(os.readlink(path)) if kind == "l" else path.read_bytes() if kind == "-" else b""
            time = status.st_mtime_ns if kind == "-" else 0
            found[os.path.relpath(path, root)] = (kind, stat.S_IMODE(status.st_mode), status.st_uid, time, content)
    return found


def contents(root: Path) -> dict[str, tuple[str, bytes]]:
    """The same by kind and contents alone."""
    return {path: (kind, content) for path, (kind, _, _, _, content) in tree(root).items()}


def changes_of(scene: Scene, *args: str) -> int:
    """How many changes of the disk a command makes, counted by doing it."""
    done = _run(scene, 1 << 30, args)
    assert done.returncode in (0, 1), done.stderr
    return (1 << 30) - int(done.stderr.split()[-1])


def killed(scene: Scene, at: int, *args: str) -> bool:
    """Run a command that is killed before its `at`-th change of the disk. False: it came to its end before."""
    done = _run(scene, at, args)
    assert done.returncode in (-9, 0, 1), done.stderr
    return done.returncode == -9


def _run(scene: Scene, left: int, args: tuple[str, ...]) -> subprocess.CompletedProcess[str]:
    words: Mapping[str, str] = {
        "PATH": os.environ["PATH"],
        "HOME": str(scene.root / "home"),
        "LOCKD_STATE": str(scene.state),
        "LOCKD_RUNTIME": str(scene.root / "run"),
        "LOCKD_POLICY": str(scene.policy),
        **scene.environ,
    }
    text = _KILLED.format(root=str(ROOT), left=left, events=EVENTS)
    command = [sys.executable, "-c", text, *args]
    return subprocess.run(
        command, env=words, cwd=scene.root, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120
    )
