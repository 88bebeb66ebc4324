"""Part of the hook: start lockd where no daemon answers, with a clean environment, the launch as data.

Always holds: the wait is bounded by lack of progress alone; whatever happens, nothing of lockd stays behind.
Never: waits for a reader, or leaves a descriptor open.
"""

# mypy: allow-untyped-defs, allow-untyped-calls
import os

from lockd.gates.hook.belongs import base
from lockd.gates.hook.daemon import VERSION
from lockd.gates.hook.saying import Waiting
from lockd.gates.hook.which import HOOK

PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


class Fault(Exception):
    """lockd itself could not answer."""


def ask_lockd(policy, argv, cwd, uid):
    """Start lockd with a clean environment, the launch as data; (exit code, lines). Fault when it does not answer."""
    python = HOOK["python"]
    environ = {"PATH": PATH, "LANG": "C.UTF-8"}
    data, reading, writing = (high(one) for one in (request(policy, argv, cwd, uid), *os.pipe()))
    try:
        null = (os.POSIX_SPAWN_OPEN, 2, os.devnull, os.O_WRONLY, 0)
        actions = [(os.POSIX_SPAWN_DUP2, data, 0), (os.POSIX_SPAWN_DUP2, writing, 1), null]
        words = [python, "-I", "-m", "lockd.gates.ask"]
        pid = os.posix_spawn(python, words, environ, file_actions=actions)
    except OSError as error:
        os.close(reading)
        raise Fault(f"lockd could not be started: {python}: {error.strerror}") from None
    finally:
        os.close(data)
        os.close(writing)
    try:
        return listen(reading, pid, policy)
    finally:
        os.close(reading)
        end(pid)


def request(policy, argv, cwd, uid):
    """A descriptor that holds the whole request, so that nobody waits for a reader; parts end with NUL."""
    environ = [b"%s=%s" % pair for pair in os.environb.items()]
    head = [str(VERSION), str(os.getpid()), policy["policy"], base(policy, uid), policy["runtime"].get(uid, "")]
    head += ["unmapped" if policy["trust_unmapped"] else "", cwd, str(len(argv))]
    parts = [os.fsencode(part) for part in head + argv] + environ
    descriptor = os.memfd_create("lockd-launch")
    with open(descriptor, "wb", closefd=False) as file:
        file.write(b"".join(part + b"\0" for part in parts))
    os.lseek(descriptor, 0, os.SEEK_SET)
    return descriptor


def high(descriptor):
    """The same file under a number above the standard streams, which may be closed."""
    low = []
    while descriptor < 3:
        low.append(descriptor)
        descriptor = os.dup(descriptor)
    for one in low:
        os.close(one)
    return descriptor


def listen(descriptor, pid, policy):
    """Read until the answer; as long as lockd gets on, wait."""
    import select
    from time import monotonic

    poll = select.poll()
    poll.register(descriptor, select.POLLIN | select.POLLHUP)
    waiting, buffer, heard = Waiting(policy), b"", monotonic()
    try:
        while True:
            if not poll.poll(200):
                if monotonic() - heard > HOOK["patience"]:
                    raise Fault(f"lockd made no progress for {HOOK['patience']} s and was given up")
                waiting.say("")
                continue
            data, heard = os.read(descriptor, 1 << 16), monotonic()
            buffer += data
            if b"\0" in buffer:
                code, _, lines = buffer.partition(b"\0")[0].rpartition(b"\1")[2].decode("utf-8").partition("\n")
                if not code.isdigit():
                    raise Fault(lines)
                return int(code), lines.splitlines()
            if not data:
                raise Fault(f"lockd ended without an answer; `{HOOK['python']} -I -m lockd doctor` tells more")
            waiting.say(buffer.rpartition(b"\1")[2].decode("utf-8", "replace") if b"\1" in buffer else "")
    finally:
        waiting.end()


def end(pid):
    """Reap lockd; one that is stuck is killed, and left where not even that helps."""
    from time import sleep

    for step in range(100):
        try:
            if os.waitpid(pid, os.WNOHANG)[0]:
                return
            if step == 20:
                os.kill(pid, 9)
        except OSError:
            return
        sleep(0.01)
