"""Write again what is made from the code: docs/facts.md from the probes' own tables.

`--check` writes nothing and exits with 1 when the file is not up to date.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

from lockd.probes import PROBES, probe

FACTS = Path(__file__).parent.parent / "docs" / "facts.md"
HEAD = """# Facts

Made from the probes by `make docs`; attribute names change only with `schema`. An attribute that does not apply is not
there. Compared attributes count in the environment or launch id; those marked "told" are shown and kept, never
compared. A thing that is not there has the one attribute `absent`.
"""


def lines() -> Iterator[str]:
    yield HEAD
    for section in PROBES:
        module = probe(section)
        for kind in module.KINDS:
            yield f"## `{kind}:` (policy section `{section}`)\n"
            yield "| attribute | what it is |\n| --- | --- |"
            yield from (f"| `{name}` | {text} |" for name, text in module.ATTRIBUTES[kind].items())
            yield ""


def main() -> int:
    text = "\n".join(lines())
    if "--check" in sys.argv:
        return 0 if FACTS.exists() and FACTS.read_text() == text else 1
    FACTS.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
