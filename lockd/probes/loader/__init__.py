"""`launch.loader = true`: which libraries of CUDA and which libstdc++ the launch would load, and what else is in sight.

Always holds: one fact a family (`launch:loader/libnccl`), the file that wins and the rule by which it does. Paths in
the environment are written from its prefix on, so that equal launches have equal facts. A file outside counts by its
build id or digest; inside, the package's own fact holds its bytes. The other files in sight are told.
What is opened by name at run time (a plug-in of NCCL, libcuda) is looked up as that would be.
Never: loads or runs anything, or guesses what a program opens by a path that it makes up.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from lockd.facts import Fact, Unknown
from lockd.findings import Breach

if TYPE_CHECKING:
    from lockd.findings import Difference
    from lockd.look import Launch, Look
    from lockd.probes.python.interpreter import Interpreter

PREFIX = "loader/"
ATTRIBUTES: Mapping[str, str] = {
    "path": "loader/NAME: the file that would be loaded; ENV/ stands for the environment's prefix",
    "file": "loader/NAME: name of the file behind its links, which tells its version",
    "by": "loader/NAME: what finds it: RPATH, RUNPATH, LD_LIBRARY_PATH, LD_PRELOAD, ld.so.cache, default folder",
    "build": "loader/NAME, outside the environment: build id, or sha256",
    "missing": "loader/NAME: who needs it, where nothing is found",
    "mixed": "loader/NAME: parts that would come from another folder than the library itself",
    "also": "told, loader/NAME: other files of that name in sight",
    "needed_by": "told, loader/NAME: who needs it first",
}


def facts(look: Look, launch: Launch, interpreter: Interpreter) -> Iterator[Fact | Unknown]:
    """A fact for each family that would be loaded, is missed, or is in sight."""
    from lockd.probes.loader import families  # late: most launches hold no loader

    return families.facts(look, launch, interpreter)


def breaches(fact: Fact) -> Iterator[Breach]:
    """What cannot work, whatever a lock says: parts of two builds, a library that is needed and not there."""
    family = fact.subject.removeprefix(PREFIX)
    for attribute, text in (("mixed", f"{family} of two builds"), ("missing", f"{family} is needed and not found")):
        listed = fact.attributes.get(attribute)
        if isinstance(listed, tuple):
            yield Breach(
                fact.name, "launch.loader", f"{text}: {', '.join(listed)}", attribute, "none", ", ".join(listed)
            )


def word(difference: Difference) -> str:
    """`libnccl: the launch would load /opt/nccl/libnccl.so.2 (LD_LIBRARY_PATH), not ENV/… (RPATH)`."""
    family = difference.name.partition(PREFIX)[2]
    old, new = difference.expected, difference.found
    if isinstance(new, Unknown):
        return f"what the launch would load could not be told: {new.reason}"
    if new is None:
        return f"{family}: the launch would load none any more{f', was {_said(old)}' if old else ''}"
    if old is None or not {"path", "by"} & difference.attributes.keys():
        moved = difference.attributes.get("file") or difference.attributes.get("build")
        if old is not None and moved:
            return f"{family}: {_said(new)} is another file: {moved[0]} → {moved[1]}"
        return f"{family}: the launch would load {_said(new)}"
    also = new.told.get("also")
    more = f"; also in sight: {', '.join(also[:3])}" if isinstance(also, tuple) else ""
    return f"{family}: the launch would load {_said(new)}, not {_said(old)}{more}"


def _said(fact: Fact) -> str:
    if "path" not in fact.attributes:
        return "nothing"
    return f"{fact.attributes['path']} ({fact.attributes.get('file')}, by {fact.attributes.get('by')})"
