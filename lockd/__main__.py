"""`python -I -m lockd` and the console script: hand over to `cli`, which imports nothing that it does not need."""

from __future__ import annotations

import sys


def main() -> int:
    from lockd.cli import main as run

    return run(sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main())
