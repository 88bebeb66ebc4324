"""`[host]`: kernel, CPU, memory, limits, mounts, sysctls and packages of the system, as far as the section names them.

Always holds: a key with a dot is a sysctl; `packages` is a list of names or globs, each one found is a fact;
every other key is a reading of `readings.py`. What belongs to one launch (`ulimits`, `cgroup`) is left out, and said,
where the look has none. The boot id is told, never compared.
Never: changes a setting, or runs a tool but rpm, within bounds.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from lockd.facts import ABSENT, LAUNCH_FACTS, Fact, Facts, Unknown, Value, shown
from lockd.probes import Seen
from lockd.probes.wishes import Wish, pin, said, strictest, wishes

if TYPE_CHECKING:
    from lockd.findings import Breach, Difference
    from lockd.look import Look
    from lockd.rules import Policy, Severity, SystemRule

ROOT = "/"
KINDS = ("host",)
PACKAGE = "package/"
ATTRIBUTES: Mapping[str, Mapping[str, str]] = {
    "host": {
        "absent": "true where there is no such thing",
        "release": "kernel: release, as uname -r has it",
        "machine": "kernel: architecture",
        "model": "cpu: model name",
        "cpus": "cpu: how many",
        "governor": "cpu: scaling governor, or the several",
        "total": "memory: in whole GiB",
        "swap": "memory: swap in whole GiB",
        "size": "shm: size of /dev/shm in MiB",
        "type": "shm: its file system",
        "nofile": "ulimits: open files, soft/hard",
        "memlock": "ulimits: locked memory in bytes",
        "nproc": "ulimits: processes",
        "stack": "ulimits: stack in bytes",
        "core": "ulimits: core files in bytes",
        "as": "ulimits: address space in bytes",
        "enabled": "thp: transparent huge pages, always, madvise or never",
        "defrag": "thp: how they are made",
        "types": "mounts: file system under each pinned path, ro where it is read-only",
        "memory": "cgroup: lowest memory.max on the way up",
        "cpu": "cgroup: lowest cpu.max on the way up, in CPUs",
        "cpuset": "cgroup: CPUs that may be used",
        "pids": "cgroup: lowest pids.max on the way up",
        "kind": "container: lxc, docker, podman, …, or none",
        "userns": "container: user ids are mapped",
        "value": "a sysctl: its value",
        "version": "package/NAME: version, by dpkg or rpm",
        "architecture": "package/NAME: its architecture",
        "state": "package/NAME: what else than installed it is",
        "hold": "package/NAME: true where it is kept back from upgrades",
        "version_text": "told, kernel: how it was built",
        "boot": "told, kernel: id of this boot",
        "command_line": "told, kernel: its parameters",
        "mounted": "told, mounts: mount point and source under each pinned path",
        "of": "told, ulimits, cgroup: the process that was read",
    }
}

_MAIN = {
    "kernel": "release",
    "cpu": "model",
    "memory": "total",
    "shm": "size",
    "thp": "enabled",
    "container": "kind",
    "cgroup": "memory",
}


def look(rule: SystemRule, look: Look) -> Seen:
    """Read what the section names."""
    facts: list[Fact | Unknown] = []
    for key in rule.values:
        if f"host:{key}" in LAUNCH_FACTS and look.launch is None:
            look.not_looked.append(f"host:{key} (this look has no launch)")
        elif key == "packages":
            facts += _packages(_globs(rule))
        elif key.startswith(PACKAGE):
            if not any(fnmatchcase(key[len(PACKAGE) :], glob) for glob in _globs(rule)):
                facts += _packages((key[len(PACKAGE) :],))
        else:
            facts.append(_reading(key, look))
    return Seen(tuple(facts))


def claims(rule: SystemRule, kind: str, subject: str) -> bool:
    """Does the section name that fact?"""
    return kind == "host" and bool(_named(rule, subject))


def severity(rule: SystemRule, policy: Policy, kind: str, subject: str, change: str) -> Severity:
    """The key's own word, else the section's, else the policy's."""
    return strictest(rule, policy, _named(rule, subject))


def breaches(rule: SystemRule, policy: Policy, found: Facts) -> Iterator[Breach]:
    """Wanted values that are others."""
    for fact in found.known():
        if fact.kind != "host":
            continue
        for wish in _named(rule, fact.subject):
            attribute = "version" if fact.subject.startswith(PACKAGE) else _MAIN.get(fact.subject, "value")
            if wish.key != "packages":
                yield from pin("host", wish, fact, attribute, fact.subject.replace(PACKAGE, "package "))


def word(difference: Difference) -> str:
    """`kernel 6.8.0-51-generic → 6.8.0-52-generic`."""
    subject = difference.name.partition(":")[2]
    what = subject.replace(PACKAGE, "package ")
    found = difference.found
    if isinstance(found, Unknown):
        return f"{what} could not be read: {found.reason}"
    if difference.change == "missing":
        return f"{what} {_version(difference.expected)}is gone"
    if difference.change == "added":
        return f"{what} {_version(found)}is new"
    parts = [_part(name, old, new) for name, (old, new) in difference.attributes.items()]
    only = next(iter(difference.attributes), "")
    if len(parts) == 1 and only in (_MAIN.get(subject), "value", "version"):
        return f"{what} {parts[0].removeprefix(only).strip()}"
    pins = [breach.text for breach in difference.breaches]
    return f"{what}: {'; '.join(parts)}" if parts else "; ".join(pins) or what


def watched(rule: SystemRule) -> Iterable[str]:
    """dpkg's status, where packages are named; what the kernel tells raises no event."""
    wanted = any(key == "packages" or key.startswith(PACKAGE) for key in rule.values)
    return ("/var/lib/dpkg/status",) if wanted else ()


def _named(rule: SystemRule, subject: str) -> list[Wish]:
    """The key of a fact: its own name, else for a package the list that it is in."""
    named = wishes(rule)
    if subject in named and subject != "packages":
        return [named[subject]]
    if subject == "packages":  # the fact that stands for a list that nobody could read
        return [named["packages"]] if "packages" in named else []
    package = subject.removeprefix(PACKAGE)
    listed = package != subject and any(fnmatchcase(package, glob) for glob in _globs(rule))
    return [named["packages"]] if listed else []


def _globs(rule: SystemRule) -> tuple[str, ...]:
    wish = wishes(rule).get("packages")
    return () if wish is None or wish.value is None else tuple(wish.value)


def _reading(key: str, look: Look) -> Fact | Unknown:
    from lockd.probes.host import readings

    reader = readings.READERS.get(key, readings.sysctl)
    try:
        return reader(key, ROOT, look)
    except FileNotFoundError:
        return Fact("host", shown(key), ABSENT)
    except (OSError, ValueError) as error:
        where = f"{error.filename}: " if isinstance(error, OSError) and error.filename else ""
        reason = f"{where}{error.strerror if isinstance(error, OSError) else error}"
        return Unknown("host", shown(key), shown(reason))


def _packages(globs: tuple[str, ...]) -> Iterator[Fact | Unknown]:
    from lockd.probes import system

    found = system.packages(ROOT, globs)
    plain = [glob for glob in globs if not any(character in glob for character in "*?[")]
    if isinstance(found, system.Trouble):
        named = [f"{PACKAGE}{glob}" for glob in plain] + (["packages"] if len(plain) < len(globs) else [])
        yield from (Unknown("host", shown(subject), shown(found.reason)) for subject in named)
        return
    twice = {one.name for one in found if sum(other.name == one.name for other in found) > 1}
    for package in found:
        name = f"{package.name}:{package.architecture}" if package.name in twice else package.name
        attributes: dict[str, Value] = {"version": shown(package.version), "architecture": shown(package.architecture)}
        if not package.installed:
            attributes["state"] = shown(package.state)
        if package.hold:
            attributes["hold"] = True
        yield Fact("host", shown(PACKAGE + name), attributes)
    there = {one.name for one in found}
    yield from (Fact("host", shown(PACKAGE + name), ABSENT) for name in plain if name not in there)


def _part(name: str, old: object, new: object) -> str:
    if isinstance(old, tuple) and isinstance(new, tuple):
        went, came = [one for one in old if one not in new], [one for one in new if one not in old]
        return f"{name} {', '.join(went) or 'none'} → {', '.join(came) or 'none'}"
    was, now = ("none" if one is None else said(one) for one in (old, new))
    return f"{name} {was} → {now}"


def _version(fact: Fact | None) -> str:
    version = fact.attributes.get("version") if fact is not None else None
    return f"{version} " if version else ""
