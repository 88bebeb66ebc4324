"""The NVIDIA driver on both sides of the border: the kernel's module, and the libraries that processes would load.

Always holds: everything is read from files below a root (`/`, or a test's), so that no driver call can hang here. No
module, no library and no device is an absent driver, a fact. A library is known by the file that its soname leads to
(`libcuda.so.580.159.04`). In a container the module is the host's and the libraries are its own: just there they part.
Never: calls NVML, or loads a library.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator
from typing import NamedTuple

from lockd.facts import ABSENT, Fact, Unknown, Value, shown
from lockd.probes import ldcache
from lockd.probes.system import dpkg

_LIBRARIES = {"libcuda": "libcuda.so.1", "libnvidia_ml": "libnvidia-ml.so.1"}
_VERSION = re.compile(r"\b(\d{3}\.\d+(?:\.\d+)?)\b")
_NODE = re.compile(r"nvidia(?:\d+|ctl|-uvm|-uvm-tools|-modeset)")
_MAJORS = {"nvidia-uvm": "nvidia-uvm", "nvidia-uvm-tools": "nvidia-uvm"}  # node → its name in /proc/devices
_DRIVER_PACKAGES = ("nvidia-fabricmanager*", "libnvidia-compute*", "libcuda1", "libnvidia-ml1", "nvidia-utils-*")
_LARGEST = 1 << 16


class Library(NamedTuple):
    """version: of the file behind the soname, "" where its name has none. problem: why it cannot be loaded."""

    path: str
    version: str
    problem: str = ""


def driver(root: str = "/") -> Fact | Unknown:
    """`gpu:driver`."""
    # 1. the module, by two witnesses
    told_by_proc = _read(root, "proc/driver/nvidia/version")
    told_by_sys = _read(root, "sys/module/nvidia/version")
    unread = next((text for text in (told_by_proc, told_by_sys) if isinstance(text, OSError)), None)
    if unread is not None:
        return Unknown("gpu", "driver", shown(f"{unread.filename}: {unread.strerror}"))
    version = _module(str(told_by_proc or "")) or str(told_by_sys or "").strip()
    # 2. the libraries, and what the package manager says of the driver's other parts
    libraries = {name: found for name, soname in _LIBRARIES.items() if (found := _library(root, soname))}
    told: dict[str, Value] = {name: shown(found.path) for name, found in libraries.items()}
    packages = tuple(sorted(f"{one.name} {one.version}" for one in dpkg(root, _DRIVER_PACKAGES) if one.installed))
    told.update(_kernel_modules(root))
    if _exists(root, "run/reboot-required"):
        told["reboot"] = "the system wants a reboot since packages were installed"
    if not version and not libraries and not packages:
        return Fact("gpu", "driver", ABSENT, told)
    attributes: dict[str, Value] = {name: one.problem or one.version for name, one in libraries.items()}
    if version:
        attributes.update({"version": shown(version), "module": _flavour(str(told_by_proc or ""))})
        if told_by_sys and str(told_by_sys).strip() != version:
            attributes["module_other"] = shown(str(told_by_sys).strip())
    else:
        attributes["module"] = "not loaded"
    if packages:
        attributes["packages"] = packages
    return Fact("gpu", "driver", attributes, told)


def mismatches(fact: Fact) -> Iterator[tuple[str, str]]:
    """What cannot work together, whatever a lock says: (attribute, in words)."""
    version = fact.attributes.get("version")
    for name in _LIBRARIES:
        found = fact.attributes.get(name)
        if isinstance(found, str) and found and not _VERSION.fullmatch(found):
            yield name, f"{_LIBRARIES[name]} {found}"
        elif found and version and found != version and "/compat/" not in str(fact.told.get(name)):
            yield name, f"module {version}, {_LIBRARIES[name]} {found}: driver/library version mismatch"
    other = fact.attributes.get("module_other")
    if other:
        yield "module_other", f"/proc tells of module {version}, /sys of {other}"
    packages = fact.attributes.get("packages")
    for line in packages if isinstance(packages, tuple) and version else ():
        name, _, package = line.partition(" ")
        upstream = package.partition(":")[2] if ":" in package else package
        if upstream.split("-")[0] != version and _VERSION.match(upstream):
            yield "packages", f"package {name} is {upstream.split('-')[0]}, the loaded module {version}"


def _module(text: str) -> str:
    line = next((line for line in text.splitlines() if line.startswith("NVRM version:")), "")
    found = _VERSION.search(line)
    return found[1] if found else ""


def _flavour(text: str) -> str:
    return "open" if "Open Kernel Module" in text else "proprietary" if "NVRM version" in text else "loaded"


def _library(root: str, soname: str) -> Library | None:
    """What the loader would take for a soname, LD_LIBRARY_PATH aside; a link to nothing is passed over while there is
    another. None: nothing of that name."""
    dangling: Library | None = None
    for path in ldcache.candidates(ldcache.read(root), soname):
        place = _inside(root, path)
        if place is None or not os.path.lexists(place):
            continue
        real = _resolved(root, path)
        if real is not None:
            found = re.search(r"\.so\.(\d{3}\.[\d.]+\d)$", real)
            return Library(path, found[1] if found else "")
        dangling = dangling or Library(path, "", shown(f"{path} {_link(place)} leads to nothing"))
    return dangling


def _resolved(root: str, path: str) -> str | None:
    """What a path leads to, links read as if `root` were `/`; None: to nothing."""
    for _ in range(40):
        place = _inside(root, path)
        if place is None or not os.path.lexists(place):
            return None
        if not os.path.islink(place):
            return path
        path = os.path.normpath(os.path.join(os.path.dirname(path), os.readlink(place)))
    return None


def _inside(root: str, path: str) -> str | None:
    """A path below the root, with the links of its folders read as if `root` were `/`."""
    if root == "/":
        return path
    folder, name = os.path.split(path)
    if folder not in ("", "/"):
        above = _resolved(root, folder)
        if above is None:
            return None
        folder = above
    return os.path.join(root, folder.lstrip("/"), name)


def _link(place: str) -> str:
    return f"-> {os.readlink(place)}" if os.path.islink(place) else "gone"


def _kernel_modules(root: str) -> dict[str, Value]:
    """For which kernels dkms has built the driver, and which kernel runs: why a driver is gone after a reboot."""
    built = []
    base = os.path.join(root, "var/lib/dkms/nvidia")
    for version in _listed(base):
        for kernel in _listed(os.path.join(base, version)):
            if kernel not in ("source", "build") and not kernel.startswith("kernel-"):
                built.append(shown(f"{version} for {kernel}"))
    if not built:
        return {}
    release = _read(root, "proc/sys/kernel/osrelease")
    return {"dkms": tuple(sorted(built)), "kernel": shown(release.strip()) if isinstance(release, str) else ""}


# -- device nodes ------------------------------------------------------------------------------------------------------


def devices(root: str = "/") -> Fact | Unknown:
    """`gpu:devices`: the nodes, and those whose number is no longer the driver's."""
    folder = os.path.join(root, "dev")
    try:
        names = sorted(name for name in os.listdir(folder) if _NODE.fullmatch(name))
        names += sorted(f"nvidia-caps/{name}" for name in _listed(os.path.join(folder, "nvidia-caps")))
        names += ["kfd"] if os.path.lexists(os.path.join(folder, "kfd")) else []
        found = [(name, os.lstat(os.path.join(folder, name))) for name in names]
    except FileNotFoundError:
        return Fact("gpu", "devices", ABSENT)
    except OSError as error:
        return Unknown("gpu", "devices", shown(f"{error.filename}: {error.strerror}"))
    if not found:
        return Fact("gpu", "devices", ABSENT)
    majors = _majors(root)
    numbers, wrong = [], []
    for name, status in found:
        if not stat.S_ISCHR(status.st_mode):
            wrong.append(shown(f"/dev/{name} is no device"))
            continue
        major, minor = os.major(status.st_rdev), os.minor(status.st_rdev)
        numbers.append(shown(f"/dev/{name} {major}:{minor}"))
        wanted = majors.get(_MAJORS.get(name, ""))
        if wanted is not None and wanted != major:
            wrong.append(shown(f"/dev/{name} is {major}:{minor}, the driver's is {wanted}:{minor}"))
    attributes: dict[str, Value] = {"nodes": tuple(shown(f"/dev/{name}") for name, _ in found)}
    if wrong:
        attributes["wrong"] = tuple(wrong)
    return Fact("gpu", "devices", attributes, {"numbers": tuple(numbers)})


def _majors(root: str) -> dict[str, int]:
    text = _read(root, "proc/devices")
    rows = (line.split() for line in text.splitlines()) if isinstance(text, str) else ()
    return {row[1]: int(row[0]) for row in rows if len(row) == 2 and row[0].isdigit()}


# -- counting ----------------------------------------------------------------------------------------------------------


def count(root: str = "/") -> Fact:
    """`gpu:count`: the GPUs that the drivers tell of."""
    nvidia = len(_listed(os.path.join(root, "proc/driver/nvidia/gpus")))
    if not nvidia:  # a container may be given the nodes alone
        nvidia = sum(bool(re.fullmatch(r"nvidia\d+", name)) for name in _listed(os.path.join(root, "dev")))
    amd = len(amd_cards(root))
    return Fact("gpu", "count", {"count": nvidia + amd}, {"nvidia": nvidia, "amd": amd})


def amd_cards(root: str) -> list[str]:
    """The folders of AMD's GPUs in sysfs, in their order."""
    base = os.path.join(root, "sys/class/drm")
    cards = sorted((name for name in _listed(base) if re.fullmatch(r"card\d+", name)), key=lambda name: int(name[4:]))
    folders = [f"{base}/{name}/device" for name in cards]
    return [folder for folder in folders if _first_line(f"{folder}/vendor") == "0x1002"]


def _first_line(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="surrogateescape") as file:
            return file.readline(4096).strip()
    except OSError:
        return ""


def _listed(folder: str) -> list[str]:
    try:
        return sorted(os.listdir(folder))
    except OSError:
        return []


def _exists(root: str, path: str) -> bool:
    return os.path.lexists(os.path.join(root, path))


def _read(root: str, path: str) -> str | OSError | None:
    """A small file; None: not there."""
    try:
        with open(os.path.join(root, path), encoding="utf-8", errors="surrogateescape") as file:
            return file.read(_LARGEST)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        return error
