"""The service's units: put in place, taken away, and what became of them.

Always holds: ExecStart= is this lockd by its absolute path, with the policy by its own; what would hide a pinned
path is left out; a file that lockd did not write is never overwritten or removed.
Never: guesses a policy: the one that the service is to serve is read and judged first.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

from lockd import atomic, protocol, state
from lockd.errors import LockdError, RefusedError, UsageError
from lockd.plain import dataclass

if TYPE_CHECKING:
    from lockd.rules import Policy

MARK = "# Put in place by `lockd service install"
UNITS = "etc/systemd/system"
POLICIES = "/etc/lockd"
_PRIVATE = ("/tmp/", "/var/tmp/")  # noqa: S108  what PrivateTmp= would hide
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


@dataclass(frozen=True)
class Service:
    """One service. name: "" for lockd.service, NAME for lockd@NAME.service. root: "/" but in tests."""

    name: str
    policy: str
    root: str = "/"

    @property
    def unit(self) -> str:
        return f"lockd@{self.name}.service" if self.name else "lockd.service"

    @property
    def file(self) -> str:
        return self.path("lockd@.service" if self.name else "lockd.service")

    def path(self, name: str) -> str:
        return os.path.join(self.root, UNITS, name)

    @property
    def is_live(self) -> bool:
        """Is this about the systemd that runs here?"""
        return os.path.realpath(self.root) == "/"


def service(name: str | None, policy_path: str, root: str = "/") -> Service:
    """The service of a name, or of a policy. UsageError for what can't be a name."""
    if not name:
        return Service("", policy_path, root)
    if not _NAME.fullmatch(name):
        raise UsageError(f"{name!r} is no name of a service", hint="letters, digits, . _ and -")
    return Service(name, os.path.join(POLICIES, f"{name}.toml"), root)


# -- install -----------------------------------------------------------------------------------------------------------


def install(one: Service, policy: Policy, *, socket: bool = False, trust_unmapped: bool = False) -> list[str]:
    """Write the units. Gives the files written."""
    text = _source("lockd@.service" if one.name else "lockd.service")
    options = " --trust-unmapped" if trust_unmapped else ""
    place = "/etc/lockd/%i.toml" if one.name else _word(one.policy)
    start = f"ExecStart={lockd_command()} --policy {place} daemon{options}"
    files = {one.file: re.sub(r"(?m)^ExecStart=.*$", lambda _: start, text)}
    folder = f"{one.file}.d"
    files[os.path.join(folder, "attribution.conf")] = _source("lockd.service.d/attribution.conf")
    hardening = _hardening(policy)
    if hardening:
        files[os.path.join(folder, "hardening.conf")] = hardening
    if socket:
        if one.name:
            raise UsageError("only lockd.service has a socket unit", hint="leave out --socket, or --name")
        files[one.path("lockd.socket")] = _socket(policy)
    for path in files:
        _check_ours(path)
    for path, content in files.items():
        _write(path, content)
    return list(files)


def lockd_command() -> str:
    """This lockd, by its absolute path."""
    script = os.path.join(os.path.dirname(sys.executable), "lockd")
    if os.access(script, os.X_OK):
        return _word(script)
    return f"{_word(sys.executable)} -I -m lockd"


def _hardening(policy: Policy) -> str:
    """Mounts of the service's own, where these can be had and hide nothing."""
    if in_container():
        return ""
    text = _source("lockd.service.d/hardening.conf")
    private = not any(_is_in_tmp(path) for path in _paths(policy))
    return text + ("PrivateTmp=yes\n" if private else "")


def _paths(policy: Policy) -> Iterator[str]:
    """Every path that the daemon has to see as everybody does."""
    from lockd.probes import mounted, rules

    for section, rule in rules(policy):
        yield from mounted.watched(section, rule)
    yield from (*policy.launch.scripts, policy.path, sys.executable, os.path.dirname(os.path.abspath(__file__)))
    for rule in policy.command:
        yield from rule.run
        yield _PRIVATE[0]  # a command may look for anything there


def _is_in_tmp(path: str) -> bool:
    return any(f"{one}/".startswith(_PRIVATE) for one in (path, os.path.realpath(path)))


def in_container() -> bool:
    """As systemd's own detection has it."""
    return os.path.exists("/run/systemd/container") or os.path.exists("/.dockerenv")


def _socket(policy: Policy) -> str:
    text = _source("lockd.socket")
    listen = os.path.join(protocol.folder(state.ROOT_RUNTIME, policy.path), "socket")
    text = text.replace("ListenStream=/run/lockd/policy/socket", f"ListenStream={_word(listen)}")
    if policy.launch.override_group:
        text = text.replace("SocketMode=0600", f"SocketMode=0660\nSocketGroup={policy.launch.override_group}")
    return text


def _source(name: str) -> str:
    """A unit as it travels: in the wheel, or in the checkout."""
    here = os.path.dirname(os.path.abspath(__file__))
    for folder in (os.path.join(here, "_units"), os.path.join(os.path.dirname(here), "units")):
        path = os.path.join(folder, name)
        if os.path.isfile(path):
            with open(path, encoding="utf-8") as file:
                return file.read()
    raise LockdError("the units are not where they were installed", where=name, hint="install lockd again")


def _word(path: str) -> str:
    """A path as one word of a unit file: % doubled, quoted where it has to be."""
    path = path.replace("%", "%%")
    return path if re.fullmatch(r"[\w@%+=:,./-]+", path) else '"' + path.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _check_ours(path: str) -> None:
    if os.path.lexists(path) and not is_ours(path):
        raise RefusedError("a file that lockd did not write is in the way", where=path, hint="move it away first")


def is_ours(path: str) -> bool:
    """Did `install` write this file?"""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.readline().startswith(MARK)
    except OSError:
        return False


def _write(path: str, text: str) -> None:
    try:
        os.makedirs(os.path.dirname(path), mode=0o755, exist_ok=True)
        atomic.write(path, text.encode())
    except OSError as error:
        raise LockdError(f"could not be written: {error.strerror}", where=path, hint="run this as root") from None


# -- remove ------------------------------------------------------------------------------------------------------------


def remove(one: Service) -> list[str]:
    """Take the units away, those of a template only when no other name uses it. Gives the files removed."""
    if one.name and any(name != one.unit for name in _instances(one)):
        return []
    folder = f"{one.file}.d"
    files = [one.file, *(os.path.join(folder, name) for name in ("attribution.conf", "hardening.conf"))]
    if not one.name:
        files.append(one.path("lockd.socket"))
    gone = [path for path in files if is_ours(path)]
    for path in gone:
        os.unlink(path)
    try:
        os.rmdir(folder)
    except OSError:  # not there, or somebody else's drop-ins are in it
        pass
    return gone


def _instances(one: Service) -> list[str]:
    """The names that are enabled, from the links that systemctl made."""
    folder = one.path("multi-user.target.wants")
    try:
        return [name for name in os.listdir(folder) if name.startswith("lockd@")]
    except OSError:
        return []


# -- systemctl ---------------------------------------------------------------------------------------------------------


def systemctl(*words: str) -> tuple[int, str]:
    """Run systemctl; its exit code and what it said. LockdError where there is none."""
    if shutil.which("systemctl") is None or not os.path.isdir("/run/systemd/system"):
        hint = "start it by hand: lockd daemon"
        raise LockdError("systemd does not run here", hint=hint)
    done = subprocess.run(["systemctl", *words], capture_output=True, text=True, stdin=subprocess.DEVNULL)
    return done.returncode, (done.stdout + done.stderr).strip()


def enable(one: Service, *, now: bool, socket: bool) -> None:
    """Have it start at boot, and now if asked; a daemon that runs is started anew."""
    _must("daemon-reload")
    units = [one.unit, *(["lockd.socket"] if socket else [])]
    _must("enable", *units)
    if now:
        _must("restart", *(["lockd.socket"] if socket else []), one.unit)


def disable(one: Service) -> None:
    """Stop it, and have it start no more."""
    for unit in (one.unit, *(["lockd.socket"] if not one.name and os.path.exists(one.path("lockd.socket")) else [])):
        systemctl("disable", "--now", unit)


def _must(*words: str) -> None:
    code, said = systemctl(*words)
    if code:
        hint = f"journalctl -u {words[-1]} -n 20" if words[-1].endswith((".service", ".socket")) else ""
        raise LockdError(f"systemctl {' '.join(words)} failed: {said}", hint=hint)
