"""`[gpu]`: the driver on both sides of the border, how many GPUs there are, their settings, and who uses them.

Always holds: facts are made for what the section names, and for nothing else: `count`, `driver` and `devices` from
files alone, the settings of the GPUs only where one is named. `gpus` names every setting; an index names one GPU. What
cannot work together (a module and a library of two versions, a node with a foreign number) breaks the policy without
any lock. UUIDs and bus numbers are told, never compared.
Never: changes a setting, or waits longer than a bound for a driver that hangs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

from lockd.facts import Fact, Facts, Unknown
from lockd.findings import Breach
from lockd.plain import replace
from lockd.probes import Seen
from lockd.probes.gpu import driver
from lockd.probes.wishes import Wish, pin, said, strictest, wishes

if TYPE_CHECKING:
    from lockd.findings import Difference
    from lockd.look import Look
    from lockd.rules import Policy, Severity, SystemRule

ROOT = "/"
KINDS = ("gpu",)
ATTRIBUTES: Mapping[str, Mapping[str, str]] = {
    "gpu": {
        "absent": "driver, devices: true where there is no such thing",
        "count": "count: how many GPUs the drivers tell of",
        "version": "driver: version of the loaded kernel module",
        "module": "driver: open, proprietary, or not loaded",
        "module_other": "driver: version that /sys tells of, where that is another",
        "libcuda": "driver: version of the libcuda that processes would load, or why it cannot be loaded",
        "libnvidia_ml": "driver: likewise of libnvidia-ml",
        "packages": "driver: packages of its other parts (fabric manager, compute libraries), by dpkg",
        "nodes": "devices: the device nodes",
        "wrong": "devices: nodes that are no devices, or have another number than the driver's",
        "wanted": "idle: true; who uses the GPUs breaks the policy, and is no part of the state",
        "present": "INDEX: true where the GPU has none of the settings that are named",
        "name": "INDEX: product",
        "memory": "INDEX: in MiB",
        "persistence": "INDEX: persistence mode, on or off",
        "ecc": "INDEX: ECC, on or off",
        "ecc_pending": "INDEX: ECC after the next reset",
        "mig": "INDEX: MIG, on or off",
        "mig_pending": "INDEX: MIG after the next reset",
        "power_limit": "INDEX: in watts",
        "clocks_max": "INDEX: highest clocks of SM and memory",
        "clocks_application": "INDEX: application clocks of SM and memory",
        "pcie_max": "INDEX: generation and width of the PCIe link at its best",
        "compute_mode": "INDEX: default, exclusive_process, exclusive_thread or prohibited",
        "nvlinks": "INDEX: how many NVLinks are active",
        "power_cap": "INDEX, AMD: in watts",
        "performance": "INDEX, AMD: performance level of the driver",
        "uuid": "told, INDEX: of this one GPU",
        "bus": "told, INDEX: where it is plugged",
        "vbios": "told, INDEX: its firmware",
        "temperature": "told, INDEX: now, in degrees",
        "clock": "told, INDEX: SM clock now",
        "throttle": "told, INDEX: NVML's reasons for lower clocks now",
        "pcie_now": "told, INDEX: width of the link where it is narrower now",
        "numbers": "told, devices: major and minor number of each node",
        "dkms": "told, driver: which kernels the module was built for",
        "kernel": "told, driver: the kernel that runs",
        "reboot": "told, driver: that the system wants a reboot",
        "nvidia": "told, count: how many are NVIDIA's",
        "amd": "told, count: how many are AMD's",
        "users": "told, idle: processes that hold a GPU open",
    }
}

ALL = "gpus"  # every setting of every GPU
_PINNED = {"count": "count", "driver": "version"}
_WORDS = {"count": "number of GPUs", "driver": "driver", "devices": "device nodes", "idle": "GPUs", "*": "GPUs"}


def begin(rule: SystemRule, look: Look) -> None:
    """Ask NVML where a setting is named, before the rest of the machine is looked at: its driver takes its time."""
    if _settings(wishes(rule)):
        from lockd.probes.gpu import cards

        begun = cards.begin(ROOT)
        if begun is not None:
            look.begun["nvml"] = begun


def look(rule: SystemRule, look: Look) -> Seen:
    """Read what the section names."""
    named = wishes(rule)
    facts: list[Fact | Unknown] = []
    if "driver" in named:
        facts.append(driver.driver(ROOT))
    if "count" in named:
        facts.append(driver.count(ROOT))
    if "devices" in named:
        facts.append(driver.devices(ROOT))
    if _idle(named) != "ignore":
        facts.append(_users())
    wanted = _settings(named)
    if wanted:
        from lockd.probes.gpu.cards import cards

        facts += [one for one in cards(ROOT, wanted, look.begun.pop("nvml", None)) if _names_card(named, one.subject)]
        facts += _gone(named, facts)
    return Seen(tuple(facts))


def claims(rule: SystemRule, kind: str, subject: str) -> bool:
    """Does the section name that fact?"""
    named = wishes(rule)
    return kind == "gpu" and (subject in named or (_is_card(subject) and _names_card(named, subject)))


def severity(rule: SystemRule, policy: Policy, kind: str, subject: str, change: str) -> Severity:
    """The strictest word of the keys that name the fact."""
    named = wishes(rule)
    if subject == "idle":
        return _idle(named)
    if not _is_card(subject):
        return strictest(rule, policy, [named[subject]] if subject in named else [])
    own = [named[subject]] if subject in named else [wish for key, wish in named.items() if key in _card_keys()]
    return strictest(rule, policy, own)


def breaches(rule: SystemRule, policy: Policy, found: Facts) -> Iterator[Breach]:
    """Wanted values that are others, versions that do not fit each other, and users of GPUs that should be idle."""
    named = wishes(rule)
    for fact in found.known():
        if fact.kind != "gpu":
            continue
        if fact.subject == "count" and "count" in named:
            counted = pin("gpu", named["count"], fact, "count", _WORDS["count"])
            yield from (replace(one, text=f"{_number(one.found)}, pinned {one.wanted}") for one in counted)
        if fact.subject == "driver" and "driver" in named:
            yield from pin("gpu", named["driver"], fact, "version", _WORDS["driver"])
        if fact.subject == "driver" and "driver" in named:
            yield from _unfit(named["driver"], fact, driver.mismatches(fact))
        elif fact.subject == "devices" and "devices" in named and "wrong" in fact.attributes:
            yield from _unfit(named["devices"], fact, [("wrong", said(fact.attributes["wrong"]))])
        elif fact.subject == "idle":
            yield from _in_use(fact, _idle(named))
        elif fact.subject.isdigit():
            for key in _card_keys() & named.keys() - {ALL}:
                yield from pin("gpu", named[key], fact, key, key.replace("_", " "))


def word(difference: Difference) -> str:
    """`driver 580.159.04 → 580.95.05`, `GPU 3: ecc on → off`."""
    subject = difference.name.partition(":")[2]
    what = f"GPU {subject}" if subject.isdigit() else _WORDS.get(subject, subject)
    found = difference.found
    if isinstance(found, Unknown):
        return f"{what} could not be read: {found.reason}"
    if difference.change == "missing" and difference.expected is not None:
        return f"{what} {_version(difference.expected)}is gone{_why_gone(found)}"
    if difference.change == "added":
        return f"{what} {_version(found)}is new"
    if subject == "idle":
        return f"other processes use the GPUs: {said(found.told.get('users', ())) if found else ''}"
    moved = [_part(name, old, new) for name, (old, new) in _moved(difference)]
    if subject in _PINNED and moved and _PINNED[subject] in difference.attributes:
        old, new = difference.attributes[_PINNED[subject]]
        rest = [one for one in moved if not one.startswith(f"{_PINNED[subject]} ")]
        first = f"{what} {_said(old)} → {_said(new)}{_why_gone(found) if new is None else ''}"
        return "; ".join([*_unfit_words(difference), first, *rest])
    texts = [breach.text for breach in difference.breaches]
    return "; ".join([*_unfit_words(difference), f"{what}: {'; '.join(moved)}"]) if moved else "; ".join(texts) or what


def watched(rule: SystemRule) -> Iterable[str]:
    """The loader's cache, dpkg's status and the folder of device nodes: what a driver's upgrade touches."""
    return ("/etc/ld.so.cache", "/var/lib/dpkg/status")


# -- which keys name what ----------------------------------------------------------------------------------------------


def _card_keys() -> set[str]:
    from lockd.probes.gpu.cards import SETTINGS

    return {ALL, *SETTINGS}


def _settings(named: Mapping[str, Wish]) -> set[str]:
    """The settings that are compared: all of them where every GPU, or one of them, is named as a whole."""
    keys = _card_keys()
    if ALL in named or any(key.isdigit() for key in named):
        return keys - {ALL}
    return keys & named.keys()


def _is_card(subject: str) -> bool:
    return subject.isdigit() or subject == "*"


def _names_card(named: Mapping[str, Wish], subject: str) -> bool:
    return subject == "*" or subject in named or bool(_card_keys() & named.keys())


def _gone(named: Mapping[str, Wish], facts: list[Fact | Unknown]) -> Iterator[Fact]:
    """A GPU that is named by its index, and is not there."""
    from lockd.facts import ABSENT

    there = {one.subject for one in facts}
    if "*" not in there:
        yield from (Fact("gpu", key, ABSENT) for key in named if key.isdigit() and key not in there)


# -- who uses them -----------------------------------------------------------------------------------------------------


def _idle(named: Mapping[str, Wish]) -> Severity:
    word: Severity = named["idle"].value if "idle" in named else "ignore"
    return word


def _users() -> Fact:
    from lockd.conditions import gpu_users

    told = [f"{one['name']} (pid {one['pid']}) on {', '.join(one['devices'])}" for one in gpu_users()]
    return Fact("gpu", "idle", {"wanted": True}, {"users": tuple(told)} if told else {})


def _in_use(fact: Fact, word: Severity) -> Iterator[Breach]:
    users = fact.told.get("users")
    if users:
        yield Breach(fact.name, "gpu.idle", f"other processes use the GPUs: {said(users)}", on_drift=word)


def _number(found: str | None) -> str:
    return "no GPU" if found in (None, "0") else f"{found} GPU" + ("s" if found != "1" else "")


def _unfit(wish: Wish, fact: Fact, wrong: Iterable[tuple[str, str]]) -> Iterator[Breach]:
    for attribute, text in wrong:
        value = fact.attributes.get(attribute)
        wanted = said(fact.attributes.get("version", "the driver's"))
        found = None if value is None else said(value)
        yield Breach(fact.name, f"gpu.{wish.key}", text, attribute, wanted, found, on_drift=wish.on_drift)


# -- words -------------------------------------------------------------------------------------------------------------


def _unfit_words(difference: Difference) -> list[str]:
    """That a module and a library do not fit comes first: it is why nothing starts."""
    return [pin.text for pin in difference.breaches if pin.attribute == "libcuda"][:1]


def _part(name: str, old: object, new: object) -> str:
    if isinstance(old, tuple) and isinstance(new, tuple):
        old, new = tuple(one for one in old if one not in new), tuple(one for one in new if one not in old)
    return f"{name.replace('_', ' ')} {_said(old) or 'none'} → {_said(new) or 'none'}"


def _moved(difference: Difference) -> list[tuple[str, tuple[object, object]]]:
    return [(name, pair) for name, pair in difference.attributes.items() if name != "absent"]


def _said(value: object) -> str:
    return "none" if value is None else said(value)


def _version(fact: Fact | None) -> str:
    version = fact.attributes.get("version") if fact is not None else None
    return f"{version} " if version else ""


def _why_gone(found: Fact | None) -> str:
    """After an upgrade of the kernel: which kernels have the module, and which one runs."""
    if found is None or "dkms" not in found.told:
        return ""
    return f" (dkms built {said(found.told['dkms'])}; kernel {found.told.get('kernel', '?')} runs)"
