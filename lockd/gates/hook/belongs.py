"""Part of the hook: does this process belong to an admitted launch that lives? By that launch's ticket, see `tickets`.

Always holds: pid, start time and boot have to fit, in a folder that only root or this user writes.
Never: believes a variable.
"""

# mypy: allow-untyped-defs, allow-untyped-calls
import os

DEPTH = 128  # parents looked at


def is_inside(policy, uid):
    """Does this process descend from an admitted launch that lives, or is it that launch?"""
    folder = os.path.join(base(policy, uid), policy["folder"], "launches")
    try:
        about = os.stat(folder)
        known = set(os.listdir(folder))
    except OSError:
        return False
    if not known or about.st_uid not in (0, uid) or about.st_mode & 0o022:
        return False
    for pid, start in above(os.getpid()):
        if str(pid) in known and read(os.path.join(folder, str(pid))).split()[:2] == [start, boot()]:
            return True
    return False


def above(pid):
    """(pid, start time) of a process, its parents, then of the leader of its session and its parents."""
    row = status(pid)
    seen: set[int] = set()
    for at in (pid, row[2]) if row else ():
        while at and at not in seen and len(seen) < DEPTH:
            seen.add(at)
            row = status(at)
            if row is None:
                break
            yield at, row[0]
            at = row[1]


def status(pid):
    """(start time, parent, session) of a process; None where nothing is told."""
    fields = read(f"/proc/{pid}/stat").rpartition(b")")[2].split()
    try:
        return fields[19], int(fields[1]), int(fields[3])
    except (IndexError, ValueError):
        return None


def boot():
    return read("/proc/sys/kernel/random/boot_id").strip()


def read(path):
    """The first bytes of a file; none where it can't be read."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return b""
    try:
        return os.read(descriptor, 4096)
    except OSError:
        return b""
    finally:
        os.close(descriptor)


def base(policy, uid):
    """The folder of this user's states, as it stood when the hook was installed."""
    known = policy["state"].get(uid)
    if known or uid == 0:
        return known or "/var/lib/lockd"
    import pwd

    try:
        return os.path.join(pwd.getpwuid(uid).pw_dir, ".local/state/lockd")
    except KeyError:
        return "/nonexistent"
