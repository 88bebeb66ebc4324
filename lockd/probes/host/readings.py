"""Each reading of `[host]`: one function a key, from files below a root.

Always holds: a file that is not there raises FileNotFoundError, one that cannot be read OSError, one that says nothing
sensible ValueError; the caller makes an absent fact or an Unknown of it.
Never: decides what is drift, or looks at what the policy does not name.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, NamedTuple

from lockd.facts import Fact, Value, shown
from lockd.secrets import mask

if TYPE_CHECKING:
    from lockd.look import Look
    from lockd.rules import Policy

_LIMITS = {
    "Max open files": "nofile",
    "Max locked memory": "memlock",
    "Max processes": "nproc",
    "Max stack size": "stack",
    "Max core file size": "core",
    "Max address space": "as",
}
_PIECE, _PIECES = 1 << 16, 64  # /proc/sys gives nothing at all to a reader with a large buffer
_ALL_IDS = ("0", "0", "4294967295")


def kernel(key: str, root: str, look: Look) -> Fact:
    """Release and architecture; the boot is told."""
    told: dict[str, Value] = {}
    for name, path in (("version_text", "sys/kernel/version"), ("boot", "sys/kernel/random/boot_id")):
        told[name] = shown(_optional(root, f"proc/{path}").strip())
    told["command_line"] = shown(mask(_optional(root, "proc/cmdline").strip()))
    release = shown(_text(root, "proc/sys/kernel/osrelease").strip())
    return Fact("host", key, {"release": release, "machine": os.uname().machine}, told)


def cpu(key: str, root: str, look: Look) -> Fact:
    """Model, number and governor."""
    rows = [line.partition(":") for line in _text(root, "proc/cpuinfo").splitlines()]
    models = [value.strip() for name, _, value in rows if name.strip() in ("model name", "Processor", "CPU part")]
    number = sum(name.strip() == "processor" for name, _, _ in rows)
    attributes: dict[str, Value] = {"cpus": number}
    if models:
        attributes["model"] = shown(" / ".join(sorted(set(models))))
    governors = sorted(set(_governors(root)))
    if governors:
        attributes["governor"] = shown(", ".join(governors))
    return Fact("host", key, attributes)


def _governors(root: str) -> Iterator[str]:
    base = os.path.join(root, "sys/devices/system/cpu/cpufreq")
    for name in sorted(os.listdir(base)) if os.path.isdir(base) else ():
        governor = _optional(root, f"sys/devices/system/cpu/cpufreq/{name}/scaling_governor").strip()
        if governor:
            yield governor


def memory(key: str, root: str, look: Look) -> Fact:
    """Memory and swap, in GiB: what is less differs from kernel to kernel."""
    rows = {name: value.split()[0] for name, _, value in _rows(_text(root, "proc/meminfo"), ":") if value.split()}
    if "MemTotal" not in rows:
        raise ValueError("/proc/meminfo has no MemTotal")
    total, swap = (round(int(rows.get(name, "0")) / (1 << 20)) for name in ("MemTotal", "SwapTotal"))
    return Fact("host", key, {"total": f"{total} GiB", "swap": f"{swap} GiB"})


def shm(key: str, root: str, look: Look) -> Fact:
    """Size and file system of /dev/shm, which data loaders share their batches in."""
    path = os.path.join(root, "dev/shm")
    found = os.statvfs(path)
    mount = holding(mounts_of(root), os.path.realpath("/dev/shm"))  # noqa: S108 - only asked for
    attributes: dict[str, Value] = {"size": f"{found.f_blocks * found.f_frsize >> 20} MiB"}
    if mount is not None:
        attributes["type"] = shown(mount.type)
    return Fact("host", key, attributes)


def ulimits(key: str, root: str, look: Look) -> Fact:
    """Limits of the launch: of the process that it is, else of this one, which will become it or stands beside it."""
    process = _process(look)
    attributes: dict[str, Value] = {}
    for line in _text(root, f"proc/{process}/limits").splitlines()[1:]:
        name, soft, hard = line[:26].strip(), *[*line[26:].split(), "", ""][:2]
        if name in _LIMITS:
            attributes[_LIMITS[name]] = f"{soft}/{hard}"
    return Fact("host", key, attributes, {"of": process})


def _process(look: Look) -> str:
    source = look.launch.source if look.launch is not None else ""
    return source[4:] if source.startswith("pid ") and source[4:].isdigit() else "self"


def thp(key: str, root: str, look: Look) -> Fact:
    """Transparent huge pages."""
    base = "sys/kernel/mm/transparent_hugepage"
    chosen = {name: _bracketed(_text(root, f"{base}/{name}")) for name in ("enabled", "defrag")}
    return Fact("host", key, chosen)


def _bracketed(text: str) -> str:
    return shown(text.partition("[")[2].partition("]")[0] or text.strip())


def sysctl(key: str, root: str, look: Look) -> Fact:
    """A sysctl by its dotted name; a dot inside a name (of a network interface) is written as a slash."""
    path = key.replace(".", "\0").replace("/", ".").replace("\0", "/")
    return Fact("host", shown(key), {"value": shown(" ".join(_text(root, f"proc/sys/{path}").split()))})


# -- mounts ------------------------------------------------------------------------------------------------------------


class Mount(NamedTuple):
    """One line of mountinfo."""

    point: str
    type: str
    source: str
    read_only: bool


def mounts_of(root: str) -> list[Mount]:
    """The mount table of this process; of two at one point the later one is seen."""
    found = []
    for line in _text(root, "proc/self/mountinfo").splitlines():
        words = line.split(" ")
        if "-" in words[6:]:
            end = words.index("-", 6)
            options = f"{words[5]},{words[end + 3] if len(words) > end + 3 else ''}".split(",")
            found.append(Mount(_unescaped(words[4]), words[end + 1], _unescaped(words[end + 2]), "ro" in options))
    return found


def holding(table: list[Mount], path: str) -> Mount | None:
    """The mount that a path lies on."""
    best: Mount | None = None
    for mount in table:
        under = path == mount.point or path.startswith(mount.point.rstrip("/") + "/")
        if under and (best is None or len(mount.point) >= len(best.point)):
            best = mount
    return best


def mounts(key: str, root: str, look: Look) -> Fact:
    """File systems under the policy's paths, and those mounted below them."""
    table = mounts_of(root)
    types, told = [], []
    for path in pinned_paths(look.policy):
        mount = holding(table, os.path.realpath(path))
        if mount is not None:
            types.append(_typed(path, mount))
            told.append(shown(f"{path}: {mount.source} on {mount.point}"))
        inside = {one.point: one for one in table if one.point.startswith(path.rstrip("/") + "/")}
        types += [_typed(point, one) for point, one in inside.items()]
    return Fact("host", key, {"types": tuple(sorted(set(types)))}, {"mounted": tuple(sorted(set(told)))})


def _typed(path: str, mount: Mount) -> str:
    return shown(f"{path}: {mount.type}{' ro' if mount.read_only else ''}")


def pinned_paths(policy: Policy) -> list[str]:
    """Every path that a rule of the policy names; of a glob the folder before its first wildcard."""
    from lockd.probes.paths import fixed_folder

    named = [rule.path for rules in (policy.python, policy.cache, policy.tree, policy.git) for rule in rules]
    named += [fixed_folder(rule.path) for rule in policy.file]
    return sorted(set(named))


def _unescaped(text: str) -> str:
    for escape, character in (("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")):
        text = text.replace(escape, character)
    return text


# -- control groups, containers ----------------------------------------------------------------------------------------


def cgroup(key: str, root: str, look: Look) -> Fact:
    """The limits that hold for the launch: each the lowest on the way up to the root of the hierarchy."""
    process = _process(look)
    line = next((row for row in _text(root, f"proc/{process}/cgroup").splitlines() if row.startswith("0::")), "")
    folders = _upwards(line[3:]) if line else []
    found: dict[str, Value] = {}
    lowest = {name: _lowest(root, folders, f"{name}.max") for name in ("memory", "pids")}
    found.update({name: str(value) for name, value in lowest.items() if value is not None})
    shares = [share for folder in folders if (share := _cpus(_optional(root, f"sys/fs/cgroup{folder}/cpu.max")))]
    if shares:
        found["cpu"] = f"{min(shares):g}"
    cpuset = next((text for one in folders if (text := _cpuset(root, one))), "")
    if cpuset:
        found["cpuset"] = shown(cpuset)
    return Fact("host", key, found or {"memory": "max"}, {"of": process})


def _upwards(path: str) -> list[str]:
    path = path.rstrip("/")
    folders = [path]
    while path:
        path = path.rpartition("/")[0]
        folders.append(path)
    return folders


def _lowest(root: str, folders: list[str], name: str) -> int | None:
    texts = [_optional(root, f"sys/fs/cgroup{folder}/{name}").strip() for folder in folders]
    return min((int(text) for text in texts if text.isdigit()), default=None)


def _cpus(text: str) -> float | None:
    words = text.split()
    return int(words[0]) / int(words[1]) if len(words) == 2 and words[0].isdigit() and words[1] != "0" else None


def _cpuset(root: str, folder: str) -> str:
    return _optional(root, f"sys/fs/cgroup{folder}/cpuset.cpus.effective").strip()


def container(key: str, root: str, look: Look) -> Fact:
    """Whether this is a container, and of which kind, by the marks that its manager leaves."""
    kind = _optional(root, "run/systemd/container").strip() or _of_init(root)
    if not kind and os.path.lexists(os.path.join(root, ".dockerenv")):
        kind = "docker"
    if not kind and os.path.lexists(os.path.join(root, "run/.containerenv")):
        kind = "podman"
    mapped = tuple(_text(root, "proc/self/uid_map").split()[:3]) != _ALL_IDS
    return Fact("host", key, {"kind": shown(kind or "none"), "userns": mapped})


def _of_init(root: str) -> str:
    words = _optional(root, "proc/1/environ").split("\0")
    return next((word[10:] for word in words if word.startswith("container=")), "")


# -- files -------------------------------------------------------------------------------------------------------------


def _text(root: str, path: str) -> str:
    pieces: list[bytes] = []
    with open(os.path.join(root, path), "rb", buffering=0) as file:
        while (piece := file.read(_PIECE)) and len(pieces) < _PIECES:
            pieces.append(piece)
    return b"".join(pieces).decode("utf-8", "surrogateescape")


def _optional(root: str, path: str) -> str:
    try:
        return _text(root, path)
    except OSError:
        return ""


def _rows(text: str, mark: str) -> Iterator[tuple[str, str, str]]:
    return (line.partition(mark) for line in text.splitlines())


READERS: Mapping[str, Callable[[str, str, Look], Fact]] = {
    "kernel": kernel,
    "cpu": cpu,
    "memory": memory,
    "shm": shm,
    "ulimits": ulimits,
    "thp": thp,
    "mounts": mounts,
    "cgroup": cgroup,
    "container": container,
}
