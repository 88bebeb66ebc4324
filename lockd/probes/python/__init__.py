"""The probe of `[[python]]`: an environment read from outside, its packages, unowned files and start-up code.

Always holds: nothing of the environment is imported or run; the same environment gives the same facts wherever it lies.
Never: reads outside the prefix what is not a site folder, a checkout of an editable install or a linked installer
cache.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

from lockd.facts import Fact, Facts, Unknown
from lockd.findings import Breach
from lockd.probes.python import environment, hook, pins, startup
from lockd.probes.python.interpreter import find
from lockd.rules import PythonRule

if TYPE_CHECKING:
    from lockd.findings import Difference
    from lockd.look import Look
    from lockd.probes import Seen
    from lockd.rules import Policy, Severity

KINDS: tuple[str, ...] = ("python", "package", "unowned")
ATTRIBUTES: Mapping[str, Mapping[str, str]] = {
    "python": startup.ATTRIBUTES,
    "package": {
        "version": "version with its local label, wherever that is written",
        "metadata_version": "version as METADATA says it",
        "tag": "wheel tags, sorted, joined by dots",
        "origin": "direct_url.json in one line: VCS commit, editable path, wheel hash; absent for an index",
        "build": "conda build string",
        "channel": "conda channel and platform",
        "conda": "conda's name of the package, where it is another",
        "cuda": "CUDA version that the package's own version file states",
        "hip": "HIP version that it states",
        "git": "commit that it states",
        "abi": "C++11 ABI that its label states",
        "record": "digest of RECORD's rows, equal for every installer of one wheel",
        "content": "digest of the contents and execute bits of the files that it lists",
        "state": "what is wrong with it: broken, duplicate, leftover, unverifiable, malformed rows",
        "shared": "paths that another package lists with another digest",
        "commit": "commit of an editable install's checkout",
        "dirty": "what differs from that commit: clean, a digest, or why it is not known",
        "sources": "digest of the checkout's code files",
        "files": "told: number of files compared",
        "requires": "told: requirements that hold here",
        "installer": "told: what installed it, as it says",
        "requested": "told: asked for by name, not brought by another",
        "modified": "told: files that are gone or differ from the package's own record",
        "modified_files": "told: some of their names",
        "links": "told: a changed file is hard-linked elsewhere",
        "root": "told: the folder that its paths are relative to",
        "torch_key": "told: torch's own key over its sources, in the name of all that inductor compiles",
        "triton_key": "told: sha256 of triton's own key, in the name of all that triton compiles",
    },
    "unowned": {
        "files": "number of files in site-packages that belong to no package",
        "digest": "digest of their paths and contents",
        "examples": "told: some of their names",
        "leftovers": "told: `~` names among them, which removals that were not finished left",
        "leftover_files": "told: how many of the files these hold",
    },
}


def look(rule: PythonRule, look: Look) -> Seen:
    """Every fact of one environment."""
    return environment.look_at(rule, look)


def claims(rule: PythonRule, kind: str, subject: str) -> bool:
    """`python:ENV`, `unowned:ENV` and `package:ENV/NAME` of this rule's environment."""
    return (subject.rpartition("/")[0] if kind == "package" else subject) == rule.name


def severity(rule: PythonRule, policy: Policy, kind: str, subject: str, change: str) -> Severity:
    """The rule's word, with `extra` for packages that the lock does not know, `unowned`, and a pin's own."""
    if kind == "unowned":
        return rule.unowned
    if kind == "package":
        name = subject.rpartition("/")[2]
        pinned = pins.pin_severity(rule, name)
        if pinned is not None and change != "forbidden":
            return pinned
        if change == "added":
            return rule.extra
    return rule.on_drift or policy.on_drift


def breaches(rule: PythonRule, policy: Policy, found: Facts) -> Iterator[Breach]:
    """Broken pins, forbidden packages, and a site hook of lockd's that is not as it was put in."""
    index = next((at for at, one in enumerate(policy.python) if one is rule or one == rule), 0)
    yield from pins.breaches(rule, f"python[{index}]", found)
    fact = found.get(f"python:{rule.name}")
    trouble = fact.told.get(hook.BREACH) if isinstance(fact, Fact) else None
    if isinstance(trouble, str) and trouble:
        yield Breach(fact=f"python:{rule.name}", key=f"python[{index}]", text=trouble, attribute=hook.BREACH)


def word(difference: Difference) -> str:
    """One line, from → to."""
    from lockd.probes.python import brief, startup_words, wording

    kind = difference.name.partition(":")[0]
    lines = {"package": wording.package_line, "unowned": wording.unowned_line}
    return lines[kind](difference) if kind in lines else brief.digests(startup_words.word(difference))


def watched(rule: PythonRule) -> Iterable[str]:
    """The site folders, `bin`, the interpreter, pyvenv.cfg, checkouts of editable installs, of a conda prefix its `lib`
    and records; of an environment that is not there, the path where it would be."""
    import os

    from lockd.disk import Disk
    from lockd.probes.python.origins import checkouts

    disk = Disk()
    interpreter = find(rule, disk)
    if interpreter is None or isinstance(interpreter, Unknown):
        return (rule.path,)
    more = {"venv": ["pyvenv.cfg", "share"], "conda": ["conda-meta", "lib"]}.get(interpreter.kind, [])
    inside = [f"{interpreter.prefix}/{name}" for name in more]
    binary = os.path.realpath(interpreter.executable)
    edited = sorted(set(checkouts(disk, interpreter.site_packages)))
    return (*interpreter.site_packages, interpreter.bin, binary, *interpreter.base_site, *inside, *edited)
