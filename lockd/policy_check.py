"""What a person would regret about a valid policy: pins that hold nothing, rules that match nothing, lost caches.

Always holds: each regret is one line, `FILE:LINE: KEY: TEXT`, of what was read here and now; none is an error.
Never: reads what lies inside an environment, a tree or a cache, beyond names and sizes, or counts past a bound.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from fnmatch import fnmatchcase

from lockd.rules import EnvRule, GitRule, PackagePin, Policy, TreeRule

HUGE = 20 << 30  # bytes that nobody means to keep a copy of
_COUNTED = 20_000  # entries looked at before a size is given up
_MAGIC = re.compile(r"[*?\[]")
_TMPFILES = ("/etc/tmpfiles.d", "/run/tmpfiles.d", "/usr/local/lib/tmpfiles.d", "/usr/lib/tmpfiles.d")
_LABELLED = ("torch", "torchvision", "torchaudio", "flash-attn", "xformers", "vllm", "jaxlib")  # built per CUDA version


def regrets(policy: Policy) -> list[str]:
    """Everything that `lockd policy check` warns of, in the order of the file."""
    from lockd.probes import mounted

    _, silent = mounted.answering(policy)
    said = [(key, f"{problem}: no path of this policy was looked at") for key, problem in silent.items()]
    if not silent:
        said += [*_python(policy), *_paths(policy), *_caches(policy), *_launch(policy)]
    said += [*_env(policy), *_severities(policy)]
    lined = [(policy.lines.get(_known(policy, key), 0), key, text) for key, text in said]
    return [f"{policy.line(_known(policy, key))}: {key}: {text}" for _, key, text in sorted(lined)]


def _known(policy: Policy, key: str) -> str:
    """The key itself where it stands in the file, else the rule that it is of."""
    while key not in policy.lines and "." in key:
        key = key.rpartition(".")[0]
    return key


Said = Iterator[tuple[str, str]]


def _python(policy: Policy) -> Said:
    for at, rule in enumerate(policy.python):
        key = f"python[{at}]"
        if not os.path.exists(rule.path):
            yield f"{key}.path", f"{rule.path} is not there"
        elif not os.path.isdir(rule.path):
            yield f"{key}.path", f"{rule.path} is not a folder; name the prefix of the environment"
        for name, pin in rule.packages.items():
            text = _loose(name, pin if isinstance(pin, PackagePin) else PackagePin(version=pin))
            if text:
                yield f"{key}.packages.{name}", text
        if "*" in rule.forbid:
            yield f"{key}.forbid", '"*" forbids every package'
        if rule.keep:
            yield from _too_large(f"{key}.keep", rule.path)


def _loose(name: str, pin: PackagePin) -> str:
    version = (pin.version or "").removeprefix("==").strip()
    if not version or pin.cuda or pin.git or name not in _LABELLED:
        return ""
    if "+" in version or not re.fullmatch(r"[\d.]+\w*", version):
        return ""
    return f'"{version}" accepts any build of it: +cpu, +cu128, +cu130; write the label too, or cuda = "12.8"'


def _paths(policy: Policy) -> Said:
    for at, file in enumerate(policy.file):
        key = f"file[{at}].path"
        if not _matches(file.path):
            yield key, f"matches nothing: {file.path}"
        if file.digest and _MAGIC.search(file.path) and not os.path.exists(file.path):
            yield f"file[{at}].digest", "holds every file that the glob matches to one content"
        if file.keep:
            yield from _too_large(f"file[{at}].keep", file.path)
    for section in ("tree", "git"):
        rules: tuple[TreeRule | GitRule, ...] = getattr(policy, section)
        for at, rule in enumerate(rules):
            if not os.path.isdir(rule.path):
                globbed = "; a glob is not read here" if _MAGIC.search(rule.path) else ""
                yield f"{section}[{at}].path", f"{rule.path} is no folder{globbed}"
            for glob in rule.exclude:
                if glob.startswith("/"):
                    yield f"{section}[{at}].exclude", f'"{glob}" is absolute, and globs here are relative to the path'


def _matches(path: str) -> bool:
    from lockd.globs import expand

    return os.path.lexists(path) or bool(_MAGIC.search(path) and expand(path))


def _caches(policy: Policy) -> Said:
    for at, rule in enumerate(policy.cache):
        key = f"cache[{at}]"
        wiped = cleared_at_boot(rule.path)
        if wiped and rule.change != "empty":
            yield f"{key}.path", f"{rule.path} does not outlive a reboot: {wiped}"
        if not os.path.isdir(rule.path) and rule.change != "empty":
            globbed = "; a glob is not read here" if _MAGIC.search(rule.path) else ""
            yield f"{key}.path", f"{rule.path} is no folder{globbed}"
        if rule.keep:
            yield from _too_large(f"{key}.keep", rule.path)


def cleared_at_boot(path: str) -> str:
    """Why what lies at `path` is gone after a reboot: tmpfs, or a line of tmpfiles.d; empty where it stays."""
    mount = _mount(path)
    if mount and mount[1] in ("tmpfs", "ramfs"):
        return f"{mount[0]} is a {mount[1]}"
    for source, folder in _cleared_folders():
        if path == folder or path.startswith(folder.rstrip("/") + "/"):
            return f"{source} clears {folder} at boot"
    return ""


def _mount(path: str) -> tuple[str, str] | None:
    """The mount point that holds `path`, and the type of its file system."""
    best: tuple[str, str] | None = None
    try:
        with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as file:
            for line in file:
                words = line.split()
                point, kind = words[4].replace("\\040", " "), words[words.index("-") + 1]
                under = path == point or path.startswith(point.rstrip("/") + "/")
                if under and (best is None or len(point) >= len(best[0])):
                    best = (point, kind)
    except OSError:
        return None
    return best


def _cleared_folders() -> Iterator[tuple[str, str]]:
    """(file, folder) of each line that empties a folder at boot; a file of an earlier place hides its namesake."""
    seen: set[str] = set()
    for place in _TMPFILES:
        for name in sorted(os.listdir(place)) if os.path.isdir(place) else ():
            if not name.endswith(".conf") or name in seen:
                continue
            seen.add(name)
            with open(os.path.join(place, name), encoding="utf-8", errors="replace") as file:
                for words in (line.split() for line in file):
                    if len(words) > 1 and re.fullmatch(r"[DR][!+\-=~^$]*", words[0]) and not _MAGIC.search(words[1]):
                        yield os.path.join(place, name), words[1]


def _launch(policy: Policy) -> Said:
    for at, script in enumerate(policy.launch.scripts):
        key = f"launch.scripts[{at}]"
        if not _matches(script):
            yield key, f"matches nothing: {script}"
        if not _pinned(policy, script):
            yield key, f"{script} may change unseen: no [[file]], [[tree]] or [[git]] holds it"
    launch = policy.launch
    if (launch.scripts or launch.modules) and policy.python and not launch.python:
        yield "launch", "names no python, so a launch from another environment is no finding"
    group = launch.override_group
    if group and not _group_exists(group):
        yield "launch.override_group", f"there is no group {group} here"


def _pinned(policy: Policy, script: str) -> bool:
    if any(rule.path == script or fnmatchcase(script, rule.path) for rule in policy.file):
        return True
    roots = [tree.path for tree in policy.tree] + [git.path for git in policy.git]
    return any(script.startswith(root.rstrip("/") + "/") for root in roots)


def _group_exists(name: str) -> bool:
    import grp

    try:
        grp.getgrnam(name)
    except KeyError:
        return False
    return True


def _env(policy: Policy) -> Said:
    from lockd.secrets import token_like

    for name, rule in policy.env.items():
        if isinstance(rule, EnvRule) and rule.value and token_like(name, rule.value):
            yield f"env.{name}", "a secret stands in the policy in plain text; write { secret = true } and change it"
    for at, python in enumerate(policy.python):
        for name, pin in python.packages.items():
            if isinstance(pin, PackagePin) and pin.index and token_like("index", pin.index):
                yield f"python[{at}].packages.{name}", "the index holds credentials in plain text"


def _severities(policy: Policy) -> Said:
    words = {
        rule.on_drift or policy.on_drift
        for rules in (policy.python, policy.file, policy.cache, policy.tree, policy.git, policy.command)
        for rule in rules
    } | {rule.on_drift or policy.on_drift for rule in policy.env.values()}
    if words and words <= {"ignore", "record"}:
        yield "on_drift", "no rule warns or blocks, so the verdict is ok whatever changes"


def _too_large(key: str, path: str) -> Said:
    size, whole = _size(path)
    if size > HUGE or not whole:
        more = "" if whole else f" and more, in over {_COUNTED:,} files"
        yield key, f"keeps a copy of {path}: {size / (1 << 30):.1f} GiB{more}"


def _size(path: str) -> tuple[int, bool]:
    """Bytes below a path; False where it holds more entries than are counted. Links are not followed."""
    size, left, folders = 0, _COUNTED, [path]
    if not os.path.isdir(path):
        return (os.lstat(path).st_size if os.path.lexists(path) else 0), True
    while folders:
        try:
            with os.scandir(folders.pop()) as entries:
                for entry in entries:
                    left -= 1
                    if left < 0:
                        return size, False
                    if entry.is_dir(follow_symlinks=False):
                        folders.append(entry.path)
                    elif entry.is_file(follow_symlinks=False):
                        size += entry.stat(follow_symlinks=False).st_size
        except OSError:  # what can't be listed is not counted; the look itself will say so
            continue
    return size, True
