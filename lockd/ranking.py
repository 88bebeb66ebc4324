"""What can move the throughput of a training, most first: the groups in which differences are told.

Always holds: every difference is in exactly one group, what a package brought with the package. The order follows what
the difference is about, never a guess of how much it cost. Pure.
Never: drops a difference.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from lockd.findings import Finding

FRAMEWORK = "framework build"
ORPHANED = "sources that a compile cache is keyed by"
CACHE = "compile caches"
LAUNCH = "launch"
DRIVER = "driver, GPUs and host"
SCRIPTS = "scripts"
DATA = "data"
REST = "the rest"
GROUPS = (FRAMEWORK, ORPHANED, CACHE, LAUNCH, DRIVER, SCRIPTS, DATA, REST)

# packages whose build decides what a step costs: frameworks, kernels, the libraries that they call
_FRAMEWORKS = ("torch", "triton", "jax", "tensorflow", "flax", "pytorch-triton")
_KERNELS = ("nvidia", "flash", "xformers", "transformer-engine", "apex", "cupy", "deepspeed", "bitsandbytes", "torch")
_BUILD = frozenset({"version", "tag", "cuda", "hip", "git", "abi", "build", "channel", "origin", "record"})
_KINDS: Mapping[str, str] = {
    "cache": CACHE,
    "env": LAUNCH,
    "launch": LAUNCH,
    "gpu": DRIVER,
    "host": DRIVER,
    "file": SCRIPTS,
    "git": SCRIPTS,
    "tree": DATA,
}


def grouped(findings: Iterable[Finding], orphaning: Iterable[str] = ()) -> list[tuple[str, list[Finding]]]:
    """Groups that hold something, in their order, each with its differences as they came; children behind their cause.

    orphaning: names of facts whose change hides entries of a compile cache.
    """
    listed = list(findings)
    names, keyed = {one.fact: one for one in listed}, frozenset(orphaning)
    groups: dict[str, list[Finding]] = {group: [] for group in GROUPS}
    for one in listed:
        head = names.get(one.because or "", one)
        groups[group_of(head, keyed)].append(one)
    return [(group, sorted(found, key=_place)) for group, found in groups.items() if found]


def group_of(one: Finding, orphaning: frozenset[str] = frozenset()) -> str:
    """The group of one difference."""
    kind, _, subject = one.fact.partition(":")
    if kind == "package":
        if _is_framework(subject.rpartition("/")[2]) and (one.change != "changed" or _BUILD & one.attributes.keys()):
            return FRAMEWORK
        return ORPHANED if one.fact in orphaning else REST
    if kind == "python" and {"version", "implementation"} & one.attributes.keys():
        return FRAMEWORK
    return ORPHANED if one.fact in orphaning else _KINDS.get(kind, REST)


def _is_framework(name: str) -> bool:
    return name in _FRAMEWORKS or name.startswith((*(f"{word}-" for word in _FRAMEWORKS), *_KERNELS))


def _place(one: Finding) -> tuple[int, str, bool, str]:
    """The framework itself before its kernels, each followed by what it brought."""
    head = one.because or one.fact
    name = head.rpartition("/")[2] if head.startswith("package:") else ""
    rank = _FRAMEWORKS.index(name) if name in _FRAMEWORKS else len(_FRAMEWORKS)
    return rank, head, one.fact != head, one.fact
