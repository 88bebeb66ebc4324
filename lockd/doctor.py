"""Can lockd do its job here? One small check a question, each answered ok, warn or fail with the way to mend it.

Always holds: every check looks at this machine now; what cannot be read is a warning that says so, never ok.
Never: changes anything, or decides a verdict about the environment.
"""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from lockd.errors import LockdError
from lockd.facts import shown

if TYPE_CHECKING:
    from lockd.lock import Lock
    from lockd.rules import Policy
    from lockd.state import State

Status = Literal["ok", "warn", "fail"]

FULL_LOOK = "full-look"  # a file of the state: when every byte was read last
_SILENT = (
    "nfs",
    "nfs4",
    "cifs",
    "smb3",
    "smbfs",
    "ceph",
    "lustre",
    "9p",
    "afs",
    "gpfs",
)  # change without an event here
_STALE = 7 * 86400  # seconds after which a full look is old
_FIRST_SANE = 1_767_225_600  # 2026-01-01, UTC
_FOLDERS = 2_000_000  # folders counted at most
_MOUNTINFO = "/proc/self/mountinfo"


class Check(NamedTuple):
    """One answer. `what` says what was found, `hint` how to mend it."""

    name: str
    status: Status
    what: str
    hint: str = ""


class Patient(NamedTuple):
    """What the checks look at, as far as it could be opened."""

    path: str
    policy: Policy | None
    state: State | None
    lock: Lock | None


def examine(find: Callable[[], str]) -> list[Check]:
    """Every check, for the policy whose path `find` gives; where it finds none, what can be said without."""
    found: list[Check] = []
    path = _opened(found, "policy", lambda: (find(), None)) or ""
    policy = _opened(found, "policy", lambda: _policy(path)) if path else None
    state = _opened(found, "state", lambda: _state(path)) if path else None
    lock = _opened(found, "lock", lambda: _lock(policy)) if policy is not None else None
    patient = Patient(path, policy if policy is None else _answering(found, policy), state, lock)
    for check in CHECKS:
        found += _guarded(check, patient)
    return found


def _answering(found: list[Check], policy: Policy) -> Policy:
    """The policy without what lies on a mount that does not answer, which is said: to ask it would wait for ever."""
    from lockd.probes import mounted

    kept, silent = mounted.answering(policy)
    hint = "mend or unmount it (umount -l); until then what it holds is unknown"
    for key, problem in silent.items():
        found.append(Check("mounts", "fail", f"{policy.line(key)}: {key}: {problem}", hint))
    return kept


def _opened(found: list[Check], name: str, opening: Callable[[], tuple[Any, Check | None]]) -> Any:
    try:
        value, check = opening()
    except LockdError as error:
        found.append(Check(name, "fail", str(error), error.hint))
        return None
    if check is not None:
        found.append(check)
    return value


def _guarded(check: Callable[[Patient], Iterable[Check]], patient: Patient) -> list[Check]:
    try:
        return list(check(patient))
    except OSError as error:
        name = check.__name__.removeprefix("_")
        return [Check(name, "warn", f"could not look: {error.strerror}: {error.filename}")]


# -- what lockd itself needs -------------------------------------------------------------------------------------------


def _policy(path: str) -> tuple[Any, Check]:
    from lockd import policy

    loaded = policy.load(path)
    return loaded, Check("policy", "ok", f"{loaded.name}: {path}")


def _state(path: str) -> tuple[Any, Check]:
    from lockd import state

    opened = state.open(path, create=False)
    if opened is not None:
        return opened, _writable(opened) or Check("state", "ok", opened.folder)
    if not os.path.exists(path) or not state.may_accept(os.stat(path).st_uid):
        return None, Check("state", "warn", "this user keeps no state for this policy: every look reads everything")
    return None, Check("state", "warn", "nothing is kept yet", "lockd verify makes it")


def _writable(opened: State) -> Check | None:
    """What keeps it from being written to; None where nothing does."""
    from lockd import store_reading

    what, hint = store_reading.obstacle(opened.folder)
    return Check("state", "fail", f"nothing can be recorded, {what}: {opened.folder}", hint) if what else None


def _lock(policy: Policy) -> tuple[Any, Check]:
    from lockd import lock

    found = lock.read(policy.lock_path, policy=policy.name)
    if found is None:
        return None, Check(
            "lock", "warn", f"no known-good yet: {policy.lock_path}", "lockd accept -m WHY, once it is good"
        )
    return found, Check("lock", "ok", f"generation {found.generation} of {found.accepted_at}: {policy.lock_path}")


def _python(patient: Patient) -> Iterator[Check]:
    """lockd lives outside what it watches."""
    version = ".".join(map(str, sys.version_info[:3]))
    own = os.path.realpath(sys.prefix)
    rules = patient.policy.python if patient.policy else ()
    inside = [rule.name for rule in rules if os.path.realpath(rule.path) == own]
    if inside and sys.prefix != sys.base_prefix:
        hint = "install lockd in a virtualenv of its own: pipx install lockd, or uv tool install lockd"
        yield Check("python", "fail", f"lockd is installed inside the environment {inside[0]} that it watches", hint)
    else:
        yield Check("python", "ok", f"{version} in {sys.prefix}")


def _tools(patient: Patient) -> Iterator[Check]:
    """What restore may need."""
    found = [tool for tool in ("uv", "pip", "pip3") if shutil.which(tool)]
    if not patient.policy or not patient.policy.python:
        return
    if found:
        yield Check("tools", "ok", f"packages can be restored with {found[0]}")
    else:
        yield Check("tools", "warn", "neither uv nor pip is on PATH: packages that are not kept cannot be restored")


def _privileges(patient: Patient) -> Iterator[Check]:
    """Who changed a file is told only to those who may ask the kernel."""
    rights = _effective_capabilities()
    initial = _first_word("/proc/self/uid_map", 2) == "4294967295"
    if rights is not None and rights >> 21 & 1 and initial:
        yield Check("privileges", "ok", f"uid {os.geteuid()}, CAP_SYS_ADMIN: the daemon can tell who changed what")
    else:
        where = "a user namespace" if not initial else "no CAP_SYS_ADMIN"
        yield Check("privileges", "warn", f"uid {os.geteuid()}, {where}: drift is seen, but not who caused it")


def _effective_capabilities() -> int | None:
    with open("/proc/self/status", encoding="ascii", errors="replace") as lines:
        value = next((line.split()[1] for line in lines if line.startswith("CapEff:")), None)
    return None if value is None else int(value, 16)


def _clock(patient: Patient) -> Iterator[Check]:
    """Times in the log and of caches are only as good as the clock."""
    now = time.time()
    stamp = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(now))
    if now < _FIRST_SANE:
        yield Check(
            "clock", "fail", f"it is {stamp} here, before lockd was made", "set the clock, or start a time service"
        )
    elif patient.lock is not None and patient.lock.accepted_at > stamp:
        yield Check("clock", "warn", f"it is {stamp} here; the lock was accepted at {patient.lock.accepted_at}, later")
    else:
        yield Check("clock", "ok", stamp)


def _disabled(patient: Patient) -> Iterator[Check]:
    if os.path.lexists("/etc/lockd/disabled"):
        yield Check("gates", "warn", "all gates are switched off by /etc/lockd/disabled", "remove it to switch them on")


# -- what is watched ---------------------------------------------------------------------------------------------------


def _watched(policy: Policy) -> list[str]:
    """The folders and files that a daemon would watch, each once."""
    from lockd.probes import mounted, rules

    return sorted({path for section, rule in rules(policy) for path in mounted.watched(section, rule)})


def _inotify(patient: Patient) -> Iterator[Check]:
    """Watches and instances, against what the policy needs."""
    if patient.policy is None:
        return
    watches = _number("/proc/sys/fs/inotify/max_user_watches")
    needed = sum(_folders(path) for path in _watched(patient.policy))
    text = f"{needed:,} folders to watch, {watches:,} watches allowed"
    hint = "sysctl fs.inotify.max_user_watches=1048576 (on the host, for a container)"
    yield Check("watches", "ok", text) if needed < watches * 0.8 else Check("watches", "warn", text, hint)
    instances, used = _number("/proc/sys/fs/inotify/max_user_instances"), _instances()
    text = f"{used} inotify instances of this user in use, {instances} allowed"
    hint = "sysctl fs.inotify.max_user_instances=1024 (containers of one host user share the budget)"
    yield Check("instances", "ok", text) if used < instances - 2 else Check("instances", "warn", text, hint)


def _folders(path: str) -> int:
    """Folders under a path, itself included; links are not followed."""
    count, open_folders = 0, [path]
    while open_folders and count < _FOLDERS:
        try:
            with os.scandir(open_folders.pop()) as entries:
                count += 1
                open_folders += [entry.path for entry in entries if entry.is_dir(follow_symlinks=False)]
        except OSError:  # a file, or not there: one watch on what is above it
            count += not open_folders and not count
    return count


def _instances() -> int:
    """inotify descriptors of processes of this user, as far as they may be read."""
    used = 0
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            if os.stat(f"/proc/{name}").st_uid != os.geteuid():
                continue
            for descriptor in os.listdir(f"/proc/{name}/fd"):
                used += os.readlink(f"/proc/{name}/fd/{descriptor}") == "anon_inode:inotify"
        except OSError:  # ended meanwhile, or another user's
            continue
    return used


def _file_systems(patient: Patient) -> Iterator[Check]:
    """Where a change raises no event, only looking helps."""
    if patient.policy is None:
        return
    mounts = _mounts()
    silent = {}
    for path in _watched(patient.policy):
        kind = file_system(path, mounts)
        if kind in _SILENT or kind.startswith("fuse"):
            silent[path] = kind
    if silent:
        listed = ", ".join(f"{shown(path)} ({kind})" for path, kind in list(silent.items())[:5])
        yield Check(
            "file systems", "warn", f"changes made elsewhere raise no event here, so lockd looks on a timer: {listed}"
        )
    else:
        yield Check("file systems", "ok", "all pinned paths lie where changes raise events")


def file_system(path: str, mounts: Iterable[tuple[str, str]]) -> str:
    """The type of the file system that holds a path: the last mount on the longest mount point above it."""
    real = os.path.realpath(path)
    best, kind = "", "unknown"
    for point, name in mounts:
        if (real == point or real.startswith(point.rstrip("/") + "/")) and len(point) >= len(best):
            best, kind = point, name
    return kind


def _mounts() -> list[tuple[str, str]]:
    """(mount point, type) of every mount, in the order of the kernel."""
    with open(_MOUNTINFO, encoding="utf-8", errors="surrogateescape") as lines:
        return [parsed for parsed in map(parse_mount, lines) if parsed is not None]


def parse_mount(line: str) -> tuple[str, str] | None:
    """Mount point and type of one line of mountinfo, octal escapes resolved; None for a line that is none."""
    front, dash, back = line.partition(" - ")
    fields = front.split()
    if not dash or len(fields) < 5 or not back.split():
        return None
    return fields[4].encode("utf-8", "surrogateescape").decode("unicode_escape"), back.split()[0]


def _wiped(patient: Patient) -> Iterator[Check]:
    """A compile cache on a /tmp that is cleared at boot is gone with it."""
    if patient.policy is None or not patient.policy.cache:
        return
    mounts = _mounts()
    cleared = [rule.path for rule in patient.policy.cache if file_system(rule.path, mounts) == "tmpfs"]
    cleared += [
        rule.path for rule in patient.policy.cache if rule.path not in cleared and _cleared_by_tmpfiles(rule.path)
    ]
    if cleared:
        hint = "move it (TORCHINDUCTOR_CACHE_DIR, TRITON_CACHE_DIR) to a disk that stays"
        yield Check("caches", "warn", f"gone after a reboot: {', '.join(map(shown, cleared))}", hint)
    else:
        yield Check("caches", "ok", "no pinned cache is cleared at boot")


def _cleared_by_tmpfiles(path: str) -> bool:
    """Whether a tmpfiles.d line of type D (or R) covers the path; files of /etc win over those of /run and /usr/lib."""
    seen: set[str] = set()
    for folder in ("/etc/tmpfiles.d", "/run/tmpfiles.d", "/usr/lib/tmpfiles.d"):
        for name in sorted(os.listdir(folder)) if os.path.isdir(folder) else ():
            if name.endswith(".conf") and name not in seen:
                seen.add(name)
                if any(_covers(line, path) for line in _lines(os.path.join(folder, name))):
                    return True
    return False


def _covers(line: str, path: str) -> bool:
    fields = line.split()
    if len(fields) < 2 or fields[0].rstrip("!+-=~^") not in ("D", "R"):
        return False
    return path == fields[1] or path.startswith(fields[1].rstrip("/") + "/")


def _lines(path: str) -> list[str]:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return [line for line in file if not line.startswith("#")]
    except OSError:
        return []


def _full_look(patient: Patient) -> Iterator[Check]:
    """Only a full look proves every byte."""
    if patient.state is None or patient.lock is None:
        return
    try:
        at = os.stat(os.path.join(patient.state.folder, FULL_LOOK)).st_mtime
    except FileNotFoundError:
        yield Check("full look", "warn", "no full look was ever made here", "lockd verify --full")
        return
    age = time.time() - at
    text = f"every byte was read {_age(age)} ago"
    yield Check("full look", "ok", text) if age < _STALE else Check("full look", "warn", text, "lockd verify --full")


def _age(seconds: float) -> str:
    for size, unit in ((86400, "days"), (3600, "hours"), (60, "minutes")):
        if seconds >= size * 2:
            return f"{int(seconds // size)} {unit}"
    return f"{max(0, int(seconds))} seconds"


def _number(path: str) -> int:
    return int(_first_word(path, 0))


def _first_word(path: str, index: int) -> str:
    with open(path, encoding="ascii") as file:
        return file.readline().split()[index]


def _hook(patient: Patient) -> Iterator[Check]:
    """Site hooks that ask by an old policy, by another version of lockd, or not at all any more."""
    if patient.policy is None or not patient.policy.python:
        return
    from lockd.gates import site

    for one in site.stale(patient.policy, patient.state):
        yield Check("hook", "warn", f"the site hook of {one.place.name}: {one.trouble}", one.hint)


CHECKS: tuple[Callable[[Patient], Iterable[Check]], ...] = (
    _python,
    _tools,
    _privileges,
    _clock,
    _disabled,
    _hook,
    _inotify,
    _file_systems,
    _wiped,
    _full_look,
)
