"""A drop-in that gates a unit: its ExecStart= becomes `lockd run -- …`, and a refusal (78 or 125) is not restarted.

Why not ExecStartPre=lockd verify: RestartPreventExitStatus= looks at the main process alone (systemd.service(5)), so a
refused ExecStartPre= under Restart=always is tried again for ever (seen with systemd 252). `lockd run` is the main
process until it becomes the command: same pid, Type=notify and KillMode= work as before, and the run is recorded.
Always holds: the drop-in repeats the command lines of the unit and of its other drop-ins as they stand, specifiers and
variables unexpanded; `status` says when these have changed since.
Never: edits a unit file.
"""

from __future__ import annotations

import glob
import os
import re
import subprocess
import sys
from collections.abc import Iterator

from lockd.errors import UsageError
from lockd.gates import owned
from lockd.gates.owned import Told
from lockd.plain import dataclass

NAME = "50-lockd.conf"
FOLDERS = (  # where systemd looks, the first one wins
    "etc/systemd/system",
    "run/systemd/system",
    "usr/local/lib/systemd/system",
    "usr/lib/systemd/system",
    "lib/systemd/system",
)
_PREFIXES = re.compile(r"[-@:+!|]*")


@dataclass(frozen=True)
class Unit:
    """A service as its files say it. fragment: its own file. commands: the values of ExecStart=, in order."""

    name: str
    root: str
    fragment: str
    commands: tuple[str, ...]

    @property
    def drop_in(self) -> str:
        return os.path.join(self.root, FOLDERS[0], f"{self.name}.d", NAME)


def find(name: str, root: str = "/") -> Unit:
    """The unit by its name. UsageError where there is none, or none that can be gated."""
    name = name if "." in name else f"{name}.service"
    if not name.endswith(".service") or "/" in name:
        raise UsageError(f"{name} is no service", hint="name the unit that starts the training: train.service")
    root = os.path.abspath(root)
    fragment = next((path for path in _fragments(name, root) if os.path.isfile(path)), None)
    if fragment is None:
        hint = f"units lie in {os.path.join(root, FOLDERS[0])}; `systemctl list-unit-files` lists them"
        raise UsageError(f"there is no unit {name}", hint=hint)
    return Unit(name, root, fragment, tuple(_commands([fragment, *_drop_ins(name, root)])))


def gated(policy: str, root: str = "/") -> Iterator[Unit]:
    """The units that have a drop-in of this policy, by name; one whose own file is gone is left out."""
    root = os.path.abspath(root)
    for path in sorted(glob.glob(os.path.join(glob.escape(os.path.join(root, FOLDERS[0])), "*.service.d", NAME))):
        if _told_in(owned.read(path) or "")[0] == policy:
            try:
                yield find(os.path.basename(os.path.dirname(path)).removesuffix(".d"), root)
            except UsageError:
                continue


def install(unit: Unit, policy: str, *, trust_unmapped: bool = False) -> Told:
    """Write the drop-in and let systemd read it."""
    owned.write(unit.drop_in, _text(unit, policy, trust_unmapped))
    return Told(f"{unit.name} is gated by {policy}: {unit.drop_in}\n{_reload(unit)}", True)


def remove(unit: Unit) -> Told:
    """Take the drop-in away."""
    if not owned.remove(unit.drop_in):
        return Told(f"{unit.name} has no drop-in of lockd's", False)
    return Told(f"{unit.name} is no longer gated\n{_reload(unit)}", False)


def status(unit: Unit) -> Told:
    """Is the drop-in there, and does it still start what the unit starts?"""
    text = owned.read(unit.drop_in)
    if text is None:
        return Told(f"{unit.name} is not gated", False, sound=False)
    policy, trust = _told_in(text)
    state = owned.state_of({unit.drop_in: _text(unit, policy, trust)})
    if state == "in place":
        return Told(f"{unit.name} is gated by {policy}", True)
    return Told(f"{unit.name}: {state}; lockd gate install systemd {unit.name} writes it anew", True, sound=False)


def _text(unit: Unit, policy: str, trust_unmapped: bool) -> str:
    words = [sys.executable, "-I", "-m", "lockd", "run", "--policy", policy]
    words += ["--trust-unmapped", "--"] if trust_unmapped else ["--"]
    gate = " ".join(map(quoted, words))
    if not unit.commands:
        raise UsageError(f"{unit.name} has no ExecStart=, so there is nothing to gate", where=unit.fragment)
    lines = [f"ExecStart={_gated(unit, command, gate)}" for command in unit.commands]
    head = [owned.MARK, f"# policy: {policy}{' (trusts unmapped owners)' if trust_unmapped else ''}"]
    rest = ["[Service]", "ExecStart=", *lines, "RestartPreventExitStatus=78 125"]
    return "\n".join([*head, *rest]) + "\n"


def _gated(unit: Unit, command: str, gate: str) -> str:
    found = _PREFIXES.match(command)
    prefixes = found[0] if found else ""
    if "@" in prefixes:
        hint = "write the command without @, or put `lockd run --` into the unit by hand"
        raise UsageError("ExecStart=@ names another argv[0], which lockd can't pass on", where=unit.fragment, hint=hint)
    return f"{prefixes}{gate} {command[len(prefixes) :]}"


def quoted(word: str) -> str:
    """A word as systemd reads it back from a command line."""
    plain = word.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%").replace("$", "$$")
    return plain if re.fullmatch(r"[\w@%+=:,./$-]+", plain) else f'"{plain}"'


def _told_in(text: str) -> tuple[str, bool]:
    line = next((line for line in text.splitlines() if line.startswith("# policy: ")), "")
    policy = line.removeprefix("# policy: ")
    return policy.removesuffix(" (trusts unmapped owners)"), policy.endswith(" (trusts unmapped owners)")


def _reload(unit: Unit) -> str:
    if unit.root != "/" or not os.path.isdir("/run/systemd/system"):
        return "systemctl daemon-reload makes it count"
    done = subprocess.run(["systemctl", "daemon-reload"], capture_output=True, text=True, stdin=subprocess.DEVNULL)
    if done.returncode:
        return f"systemctl daemon-reload failed, run it yourself: {done.stderr.strip()}"
    return "systemd has read it; it counts from the next start"


# -- unit files


def _names(name: str) -> list[str]:
    """The unit's name, and of `train@1.service` that of its template."""
    stem, at, _ = name.partition("@")
    return [name, f"{stem}@.service"] if at and name != f"{stem}@.service" else [name]


def _fragments(name: str, root: str) -> Iterator[str]:
    for one in _names(name):
        for folder in FOLDERS:
            yield os.path.join(root, folder, one)


def _drop_ins(name: str, root: str) -> list[str]:
    """The other drop-ins, in the order in which systemd takes them: by name, of one name the first folder's."""
    found: dict[str, str] = {}
    for one in _names(name):
        for folder in FOLDERS:
            for path in glob.glob(os.path.join(glob.escape(os.path.join(root, folder, f"{one}.d")), "*.conf")):
                found.setdefault(os.path.basename(path), path)
    return [found[key] for key in sorted(found) if key != NAME]


def _commands(paths: list[str]) -> list[str]:
    commands: list[str] = []
    for path in paths:
        for value in _values(owned.read(path) or ""):
            commands = [*commands, value] if value else []  # an empty value forgets those before
    return commands


def _values(text: str) -> Iterator[str]:
    """The values of ExecStart= in [Service], lines that end with a backslash joined."""
    section = ""
    for line in re.sub(r"\\\n(?:[ \t]*[#;][^\n]*\n)*", " ", text).splitlines():
        line = line.strip()
        if line.startswith("["):
            section = line
        key, found, value = line.partition("=")
        if found and section == "[Service]" and key.strip() == "ExecStart":
            yield value.strip()
