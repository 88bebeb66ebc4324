"""`python -I -m lockd` and the console script: hand over to `cli`, which imports nothing that it does not need.

Always holds: a short command is over before the garbage collector would have found anything, so that it runs rarely.
"""

from __future__ import annotations

import gc
import sys


def main() -> int:
    gc.set_threshold(50_000, 20, 50)  # the default walks every module several times while they are imported
    from lockd.cli import main as run

    return run(sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main())
