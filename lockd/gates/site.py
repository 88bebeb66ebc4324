"""The site hook of an environment: put in, taken out, told about.

Always holds: two files in the first site folder, written aside and renamed in, the module before the `.pth` that loads
it, taken out in the other order; with the last policy they go without a trace, byte-code included. What was put in is
recorded in the state (`hooks.json`) by digest, so that the probe knows it for no drift and misses it when it is gone.
Never: runs what is installed in the environment, touches a file there that is not the hook, or leaves half a hook.
"""

from __future__ import annotations

import ast
import errno
import glob
import json
import os
import sys
from typing import TYPE_CHECKING, Any

from lockd import atomic
from lockd.errors import LockdError, UsageError
from lockd.gates import compiled
from lockd.plain import dataclass
from lockd.probes.python import hook

if TYPE_CHECKING:
    from lockd.probes.python.interpreter import Interpreter
    from lockd.rules import Policy
    from lockd.state import State

MODULE, PTH, PTH_TEXT = hook.MODULE, hook.PTH, hook.PTH_TEXT
PATIENCE = 20  # seconds without progress after which a hook gives lockd up


@dataclass(frozen=True)
class Place:
    """The environment of a rule: its name, and the folder that the hook goes into."""

    name: str
    prefix: str
    folder: str


@dataclass(frozen=True)
class Status:
    """How a hook stands. trouble: what is wrong with it, "" where nothing is; hint: how to mend that."""

    place: Place
    installed: bool
    policies: tuple[str, ...] = ()
    trouble: str = ""
    hint: str = ""

    @property
    def is_ours(self) -> bool:
        """Is the policy that was asked about among those that the hook serves?"""
        return self.installed and not self.trouble


class NotThere(LockdError):
    """The environment is not where the policy says. name: what the policy calls it."""

    def __init__(self, name: str, path: str) -> None:
        hint = "make it; or, if it was moved, write its new path into the policy: its hook moved with it, and asks"
        super().__init__(f"the environment {name} is not there", where=path, hint=hint)
        self.name = name


def place(policy: Policy, name: str | None) -> Place:
    """The environment that is meant, by its name in the policy. UsageError where it can have no hook."""
    from lockd.disk import Disk
    from lockd.facts import Unknown
    from lockd.probes.python.interpreter import find

    known = [rule.name for rule in policy.python]
    wanted = name or policy.launch.python or (known[0] if len(known) == 1 else None)
    if wanted is None:
        raise UsageError("which environment?", where=policy.path, hint=f"--env {' or '.join(known) or 'NAME'}")
    rule = next((rule for rule in policy.python if rule.name == wanted), None)
    if rule is None:
        hint = f"it names {', '.join(known)}" if known else "name one in a [[python]] section"
        raise UsageError(f"the policy names no environment {wanted}", where=policy.path, hint=hint)
    found = find(rule, Disk())
    if isinstance(found, Unknown):
        raise LockdError(found.reason, where=rule.path, hint="make it readable, then install again")
    if found is None:
        raise NotThere(wanted, rule.path)
    if found.broken:
        hint = "make it anew, then install the hook"
        raise LockdError(f"the environment {wanted} cannot start: {found.broken}", where=rule.path, hint=hint)
    return Place(wanted, found.prefix, _folder(found, rule.path))


def _folder(found: Interpreter, path: str) -> str:
    if found.kind == "system":
        hint = "gate the launch by `lockd run -- CMD`, or by the unit that starts it"
        raise UsageError("a system's Python takes no hook, only a virtualenv or a conda prefix", where=path, hint=hint)
    folder = next((one for one in found.site_packages if os.path.isdir(one)), None)
    if folder is None:
        raise LockdError("the environment has no site-packages", where=path, hint="make it anew, then install")
    return os.path.realpath(folder)


# -- install and remove


def install(policy: Policy, where: Place, state: State | None, *, trust_unmapped: bool = False) -> Status:
    """Put the hook in, or this policy into the hook that is there. Policies that are gone are served no longer."""
    if not policy.launch.scripts and not policy.launch.modules:
        hint = 'name them under [launch]: scripts = ["/root/train.py"], modules = ["pkg.train"]'
        raise UsageError("the policy names no launch, so a hook would never ask", where=policy.path, hint=hint)
    _check_self()
    others = [one for one in _installed(where) if one["policy"] != policy.path and os.path.exists(one["policy"])]
    entry = _entry(policy, trust_unmapped)
    policies = sorted([*others, entry], key=lambda one: str(one["policy"]))
    put(where, render({"python": sys.executable, "patience": PATIENCE, "policies": policies}))
    _record(state, where, installed=True)
    return status(policy, where, state)


def gone_policies(where: Place) -> list[str]:
    """The policies that the hook serves and that are not there any more: it refuses what they name."""
    return [str(one["policy"]) for one in _installed(where) if not os.path.exists(one["policy"])]


def forget(state: State | None, name: str) -> None:
    """Expect no hook in an environment that is not there any more."""
    if state is not None:
        _record(state, Place(name, "", ""), installed=False)


def remove(policy: Policy, where: Place, state: State | None) -> bool:
    """Take this policy out of the hook, and the hook out with the last one. False: there was nothing to take out."""
    known = _installed(where)
    others = [one for one in known if one["policy"] != policy.path]
    there = any(os.path.lexists(os.path.join(where.folder, name)) for name in (MODULE, PTH))
    if others and len(others) < len(known):
        content = content_of(where) or {}
        put(where, render({**content, "policies": others}))
    elif there and not others:
        _take_out(where)
    _record(state, where, installed=False)
    return there and len(others) < max(len(known), 1)


def render(content: dict[str, Any]) -> bytes:
    """The module with what it has to know filled in."""
    lines = hook.template().splitlines(keepends=True)
    filled = [f"{hook.FILLED}{content!r}\n" if line.startswith(hook.FILLED) else line for line in lines]
    return hook.sealed("".join(filled)).encode("utf-8", "surrogateescape")


def _entry(policy: Policy, trust_unmapped: bool) -> dict[str, Any]:
    from lockd import state

    uid, runtime, base = os.geteuid(), state.runtime_dir(), state.base_dir()
    return {
        "policy": policy.path,
        "name": policy.name,
        "folder": state.folder_name(policy.path),
        "scripts": list(policy.launch.scripts),
        "modules": list(policy.launch.modules),
        "on_unknown": policy.on_unknown,
        "on_fault": policy.launch.on_fault,
        "trust_unmapped": trust_unmapped,
        "state": {uid: base} if base else {},
        "runtime": {uid: runtime} if runtime else {},
    }


def _check_self() -> None:
    """The hook starts this Python on its own: it has to find lockd by itself, as `python -I` does."""
    import subprocess

    words = [sys.executable, "-I", "-c", "import lockd.gates.ask"]
    done = subprocess.run(words, env={}, capture_output=True, stdin=subprocess.DEVNULL, timeout=60)
    if done.returncode:
        hint = "install lockd into a virtualenv of its own and run that one's lockd"
        raise LockdError("this Python does not find lockd by itself", where=sys.executable, hint=hint)


def put(where: Place, module: bytes) -> None:
    """Write both files, the module first. A link in a file's place goes; what it leads to is not the hook's."""
    try:
        _forget_bytecode(where.folder)
        for path in (os.path.join(where.folder, name) for name in (MODULE, PTH)):
            if os.path.islink(path):
                os.unlink(path)
        atomic.write(os.path.join(where.folder, MODULE), module)
        compiled.put(os.path.join(where.folder, MODULE))
        atomic.write(os.path.join(where.folder, PTH), PTH_TEXT.encode())
    except OSError as error:
        raise _unwritable(where, error) from None


def _take_out(where: Place) -> None:
    try:
        for name in (PTH, MODULE):
            try:
                os.unlink(os.path.join(where.folder, name))
            except FileNotFoundError:
                pass
        _forget_bytecode(where.folder)
        os.rmdir(os.path.join(where.folder, "__pycache__"))
    except FileNotFoundError:
        pass
    except OSError as error:
        if os.path.lexists(os.path.join(where.folder, MODULE)) or os.path.lexists(os.path.join(where.folder, PTH)):
            raise _unwritable(where, error) from None


def _forget_bytecode(folder: str) -> None:
    stem = MODULE.removesuffix(".py")
    for path in glob.glob(f"{glob.escape(folder)}/__pycache__/{stem}.*"):
        os.unlink(path)


def _unwritable(where: Place, error: OSError) -> LockdError:
    hint = "run this as the environment's owner"
    if error.errno == errno.EROFS:
        hint = "mount it writable for this; or gate the launch by `lockd run -- CMD`, or by its unit"
    return LockdError(f"the hook could not be written: {error.strerror}", where=where.folder, hint=hint)


# -- what is there


def status(policy: Policy, where: Place, state: State | None) -> Status:
    """How the hook of an environment stands, for this policy."""
    recorded = {} if state is None else hook.recorded(state.folder)
    found = hook.read(where.folder, recorded.get(where.name))
    again = _again(where.name)
    if found is None:
        return Status(where, False, (), "the hook that was installed is gone" if where.name in recorded else "", again)
    content = content_of(where)
    policies = tuple(str(one["policy"]) for one in (content or {}).get("policies", ()))
    trouble = _trouble(policy, content, found, policies)
    return Status(where, True, policies, trouble, again if trouble else "")


def stale(policy: Policy, state: State | None) -> list[Status]:
    """The hooks in this policy's environments that should be installed anew, each with its trouble.

    An environment without a hook that none was recorded for is none; one that can't be read is left to the look.
    """
    found = []
    for rule in policy.python:
        try:
            one = status(policy, place(policy, rule.name), state)
        except (LockdError, OSError):
            continue
        if one.installed and policy.path not in one.policies and one.policies:
            continue  # another policy's alone
        if one.installed and not one.trouble and not hook.is_of_this_version(one.place.folder):
            one = Status(
                one.place, True, one.policies, "it was installed by another version of lockd", _again(rule.name)
            )
        found += [one] if one.trouble else []
    return found


def _again(name: str) -> str:
    return f"lockd gate install site --env {name}"


def _trouble(policy: Policy, content: dict[str, Any] | None, found: hook.Hook, policies: tuple[str, ...]) -> str:
    if found.state != "genuine" or content is None:
        return hook.WORDS[found.state]
    if policy.path not in policies:
        return "the hook is another policy's and does not serve this one"
    python = str(content["python"])
    if not os.access(python, os.X_OK):
        return f"the lockd that it starts is gone: {python}"
    entry = next(one for one in content["policies"] if one["policy"] == policy.path)
    wanted = _entry(policy, bool(entry["trust_unmapped"]))
    stale = [name for name in ("name", "scripts", "modules", "on_unknown", "on_fault") if entry[name] != wanted[name]]
    if stale:
        return f"the policy has changed since: {', '.join(stale)}"
    gone = [path for path in policies if not os.path.exists(path)]
    return f"it refuses the launches of a policy that is gone: {', '.join(gone)}" if gone else ""


def _installed(where: Place) -> list[dict[str, Any]]:
    """The policies of the hook that is there; none of one that can't be read, which is then written anew."""
    return list((content_of(where) or {}).get("policies", ()))


def content_of(where: Place) -> dict[str, Any] | None:
    """What the hook that is there was filled with. None: there is none, or it is no hook of this shape."""
    try:
        with open(os.path.join(where.folder, MODULE), encoding="utf-8", errors="surrogateescape") as file:
            line = next(line for line in file if line.startswith("HOOK = "))
        found = ast.literal_eval(line.partition(" = ")[2])
        return found if isinstance(found, dict) and "python" in found and "policies" in found else None
    except (OSError, StopIteration, ValueError, SyntaxError):
        return None


def _record(state: State | None, where: Place, *, installed: bool) -> None:
    """Remember by digest what was put in, or that nothing is expected there any more."""
    if state is None:
        return
    known = dict(hook.recorded(state.folder))
    known.pop(where.name, None)
    found = hook.read(where.folder) if installed else None
    if found is not None:
        known[where.name] = found.digest
    if known or os.path.lexists(os.path.join(state.folder, hook.RECORD)):
        atomic.write(os.path.join(state.folder, hook.RECORD), json.dumps(known).encode(), mode=0o600)
