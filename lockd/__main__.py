"""`python -I -m lockd` and the console script: hand over to `cli`, which imports nothing that it does not need.

Always holds: a short command is over before the garbage collector would have found anything, so it runs rarely; what
was written is flushed before the end.
"""

from __future__ import annotations

import gc
import os
import sys


def main() -> int:
    gc.set_threshold(50_000, 20, 50)  # the default walks every module several times while they are imported
    from lockd.cli import main as run

    code = run(sys.argv[1:])
    if sys.stderr is not None:
        sys.stderr.flush()
    # Taking all modules apart again costs as much as an interpreter's start. `run` has flushed stdout and told if it
    # could not; nothing registers with atexit, or leaves a thread behind that must be waited for.
    os._exit(code)


if __name__ == "__main__":
    sys.exit(main())
