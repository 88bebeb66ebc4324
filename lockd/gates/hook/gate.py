"""Part of the hook: the decision. Let the launch start, or end this process.

Always holds: an exit by `os._exit` after one message; what is raised in `site` is swallowed, or ends in a traceback.
Never: runs when lockd itself imports it.
"""

# mypy: allow-untyped-defs, allow-untyped-calls
import os
import sys

from lockd.gates.hook.belongs import base, is_inside, read
from lockd.gates.hook.daemon import ask_daemon
from lockd.gates.hook.saying import tell
from lockd.gates.hook.start import Fault, ask_lockd
from lockd.gates.hook.which import HOOK, named

DISABLED = "/etc/lockd/disabled"
CANNOT_LOOK, INTERRUPTED = 125, 130


def is_off():
    """Has root switched the gates off?"""
    try:
        found = os.lstat(DISABLED)
    except OSError:
        return False
    return found.st_mode & 0o170022 == 0o100000 and found.st_uid == 0


def on_fault(policy, uid):
    """As the last good policy says it; else as it said when the hook was installed."""
    last = read(os.path.join(base(policy, uid), policy["folder"], "gate.json"))
    for word in ("warn", "block"):
        if b'"on_fault": "%s"' % word.encode() in last:
            return word
    return policy["on_fault"]


def decide(policy, argv, cwd):
    """Let the launch start, or end this process."""
    uid = os.geteuid()
    try:
        if is_inside(policy, uid):
            return
        code, lines = ask_daemon(policy, argv, cwd, uid) or ask_lockd(policy, argv, cwd, uid)
        tell(lines)
    except Exception as error:
        code = CANNOT_LOOK if on_fault(policy, uid) == "block" else 0
        told = str(error) if isinstance(error, Fault) else f"{type(error).__name__}: {error}"
        head = "refused, nobody could look" if code else "warning: this launch starts without a look"
        tell([f"lockd: {head} (policy {policy['name']}): {told}"])
    if code:
        os._exit(code)


def is_main():
    """Is this the first interpreter of the process? The others run in a launch that has begun."""
    for name in ("_interpreters", "_xxsubinterpreters"):
        try:
            found = __import__(name).get_current()
        except Exception:  # noqa: S112  not in this Python
            continue
        return int(found[0] if isinstance(found, tuple) else found) == 0
    return True


def command_line():
    """What this interpreter was started with; before Python 3.10 only the kernel knows."""
    words = getattr(sys, "orig_argv", None)
    if words is None:
        with open("/proc/self/cmdline", "rb") as file:
            words = os.fsdecode(file.read()).split("\0")[:-1]
    return list(words)


def main():
    try:
        argv = command_line()
        if len(argv) < 2 or not HOOK:
            return
        try:
            cwd = os.getcwd()
        except OSError:  # deleted; what lies above it is still found from there
            cwd = ""
        policies = named(argv, cwd)
    except Exception:  # whatever this is, it is no launch that could be recognised
        return
    try:
        if not policies or not is_main():
            return
        if is_off():
            tell([f"lockd: gates are switched off by {DISABLED}; this launch was not looked at"])
            return
        for policy in policies:
            decide(policy, [sys.executable or argv[0], *argv[1:]], cwd or "/")
    except KeyboardInterrupt:
        os._exit(INTERRUPTED)
    except Exception:  # never into site
        return


if __name__ == "lockd_gate":
    main()
