"""Packages that stand in two folders of the path at once, and which of them import takes.

Always holds: folders are asked in the order of sys.path: the user's site folder before an interpreter's own, an
environment's own before those of its base, folders of `.pth` lines last.
Never: reads more than the names of metadata folders.
"""

from __future__ import annotations

from collections.abc import Iterator

from lockd.facts import shown
from lockd.probes.python.interpreter import Interpreter, user_site_of


def doubles(interpreter: Interpreter) -> Iterator[str]:
    """One line for each package that is hidden by one of the same name, sorted."""
    folders = _in_path_order(interpreter)
    if not folders:
        return
    from lockd.probes.python.distributions import names_in

    taken: dict[str, tuple[str, str]] = {}
    lines = []
    for folder in folders:
        for name, version in names_in(folder):
            first = taken.setdefault(name, (version, folder))
            if first[1] != folder:
                lines.append(f"{name} {first[0]} of {shown(first[1])} wins over {version} of {shown(folder)}")
    yield from sorted(lines)


def _in_path_order(interpreter: Interpreter) -> list[str]:
    if not interpreter.base_site:
        return []  # one folder only: two of a name in it are the package's own matter
    user = user_site_of(interpreter)
    early = [user] if interpreter.kind != "venv" and user in interpreter.base_site else []
    return list(dict.fromkeys([*early, *interpreter.site_packages, *interpreter.base_site]))
