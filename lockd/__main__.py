"""`python -I -m lockd` and the console script: hand over to `cli`, which imports nothing that it does not need.

Always holds: a short command is over before the garbage collector would have found anything, so it runs rarely; what
was written is flushed before the end. Modules come from where lockd is installed, never from a job's PYTHONPATH or the
current folder.
"""

from __future__ import annotations

import gc
import os
import sys


def main() -> int:
    gc.set_threshold(50_000, 20, 50)  # the default walks every module several times while they are imported
    if not sys.flags.isolated:
        _leave_foreign_path()
    from lockd.cli import main as run

    code = run(sys.argv[1:])
    if sys.stderr is not None:
        sys.stderr.flush()
    # Taking all modules apart again costs as much as an interpreter's start. `run` has flushed stdout and told if it
    # could not; nothing registers with atexit, or leaves a thread behind that must be waited for.
    os._exit(code)


def _leave_foreign_path() -> None:
    """A `json.py` or an old pydantic that the caller's PYTHONPATH names must not answer for lockd's own."""
    own = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    foreign = set(os.environ.get("PYTHONPATH", "").split(os.pathsep) if not sys.flags.ignore_environment else ())
    try:
        foreign |= set(map(os.path.abspath, foreign))  # as `site` writes them
    except FileNotFoundError:  # the current folder is gone, and with it what is relative to it
        foreign.add("")
    if not getattr(sys.flags, "safe_path", False):
        foreign.update(sys.path[:1])  # of a script its folder, of -m the current one
    sys.path[:] = [path for path in sys.path if path not in foreign or path == own]


if __name__ == "__main__":
    sys.exit(main())
