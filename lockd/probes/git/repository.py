"""One repository read through libgit2, with nothing of the machine's or the user's git configuration.

Always holds: only the repository's own files decide, so that every account reads the same. libgit2 knows no external
filter, hook, fsmonitor, diff driver or helper, so none can run. Its check of the owner is off, for nothing runs that
the owner could have planted. `head` is the newest commit, by first parents, that touches more than the policy and its
lock: committing these two is no drift.
Never: writes, refreshes the index, or fetches.
"""

from __future__ import annotations

import hashlib
import os
import re
import stat
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from lockd.disk import Trouble
from lockd.facts import Value, shown
from lockd.globs import matches
from lockd.probes import paths
from lockd.secrets import mask

if TYPE_CHECKING:
    from lockd.disk import Disk
    from lockd.rules import GitRule

_CODE = re.compile(r".*\.(?:py|pyc|pyd|so(?:\.\d+)*|pth|pyz|egg|start)", re.DOTALL)
_WALKED = 1_000  # commits that touch nothing but policy and lock
_NAMED = 5
_STATES = {
    1: "merge",
    2: "revert",
    3: "revert",
    4: "cherry-pick",
    5: "cherry-pick",
    6: "bisect",
    7: "rebase",
    8: "rebase",
    9: "rebase",
    10: "am",
    11: "rebase",
}
Read = tuple[dict[str, Value], dict[str, Value], dict[str, str]]  # attributes, told, manifest


class _Work(NamedTuple):
    """What is not as HEAD has it: path → a word for its content, and the submodules apart."""

    dirty: dict[str, str]
    untracked: dict[str, str]


def read(rule: GitRule, disk: Disk, apart: Iterable[str]) -> Read | str | None:
    """Attributes, told and manifest; why they could not be read; None: no repository at the path."""
    import pygit2

    trouble = _not_safe(rule.path)
    if trouble is not None:
        return trouble or None
    _alone(pygit2)
    try:
        repository = pygit2.Repository(rule.path, pygit2.enums.RepositoryOpenFlag.NO_SEARCH)
        return _read(repository, rule, disk, apart)
    except UnicodeDecodeError:
        return "git: a name that is no UTF-8, which this pygit2 cannot read; a newer one can"
    except (pygit2.GitError, KeyError, ValueError, OSError) as error:
        return f"git: {error}" if not isinstance(error, KeyError) else f"git: object {error} is not there"


def _not_safe(path: str) -> str | None:
    """Why libgit2 must not be given this path: it would wait for a FIFO for ever. "": no repository; None: it may."""
    folder = os.path.join(path, ".git")
    found = paths.lstat(folder)
    if found is None:
        bare = all(os.path.exists(os.path.join(path, name)) for name in ("HEAD", "objects", "refs"))
        if not bare:
            return ""
        folder = path
    elif isinstance(found, Trouble):
        return found.reason
    elif not (stat.S_ISDIR(found.st_mode) or stat.S_ISREG(found.st_mode) or stat.S_ISLNK(found.st_mode)):
        return ".git is neither a folder nor a file"
    for name in ("config", "HEAD", "index", "packed-refs", "info/exclude", "info/attributes", "commondir"):
        special = _special(os.path.join(folder, name))
        if special:
            return f"{special}, which git would wait for"
    return _hostile_include(folder)


def _special(path: str) -> str:
    try:
        mode = os.stat(path).st_mode
    except OSError:
        return ""
    return "" if stat.S_ISREG(mode) or stat.S_ISDIR(mode) else f"{path} is a {paths.file_type(mode)}"


def _hostile_include(folder: str) -> str | None:
    """Files that the repository's configuration has git read, where they are no files."""
    try:
        with open(os.path.join(folder, "config"), encoding="utf-8", errors="surrogateescape") as file:
            text = file.read(1 << 20)
    except OSError:
        return None
    for value in re.findall(r"^\s*(?:path|excludesfile|attributesfile)\s*=\s*\"?([^\"\n;#]+)", text, re.M | re.I):
        named = os.path.join(folder, os.path.expanduser(value.strip()))
        special = _special(named)
        if special:
            return f"{special}, which git would wait for"
    return None


def _alone(pygit2: Any) -> None:
    """Only the repository's own configuration, whoever owns it."""
    levels = pygit2.enums.ConfigLevel
    for level in (levels.PROGRAMDATA, levels.SYSTEM, levels.XDG, levels.GLOBAL):
        try:
            pygit2.settings.search_path[level] = ""
        except (ValueError, pygit2.GitError):  # a level that this platform does not have
            pass
    pygit2.option(pygit2.GIT_OPT_SET_OWNER_VALIDATION, 0)


def _read(repository: Any, rule: GitRule, disk: Disk, apart: Iterable[str]) -> Read:
    # 1. HEAD
    base = repository.workdir
    own = _inside(base, apart) if base else frozenset()
    attributes: dict[str, Value] = {}
    told: dict[str, Value] = {}
    if repository.head_is_unborn:
        attributes["head"] = "unborn"
    else:
        commit = repository.head.peel(1)  # GIT_OBJECT_COMMIT
        attributes["head"] = str(_without(repository, commit, own).id)
        told["subject"] = shown(mask(commit.message.split("\n")[0][:120]))
        told["committed"] = paths.iso(commit.commit_time * 1_000_000_000)
    branch = _branch(repository)
    if branch:
        attributes["branch"] = shown(branch)
    state = _STATES.get(int(repository.state())) if hasattr(repository, "state") else None
    if state:
        attributes["state"] = state
    told.update(_remote(repository))
    if repository.is_shallow:
        told["shallow"] = True
    if not base:
        return attributes, told, {}
    # 2. the working tree
    work = _work(repository, rule, disk, base, own)
    for name, listed, some in (("dirty", work.dirty, "changed"), ("untracked", work.untracked, "new")):
        if listed:
            attributes[name] = _digest(listed)
            attributes[f"{name}_files"] = len(listed)
            told[some] = tuple(map(shown, sorted(listed)[:_NAMED]))
    # 3. submodules
    modules = tuple(sorted(_submodules(repository, base)))
    if modules:
        attributes["submodules"] = modules
    return attributes, told, {**work.dirty, **work.untracked}


def _inside(base: str, named: Iterable[str]) -> frozenset[str]:
    """The policy and the lock, relative to the working tree that they lie in."""
    real = os.path.realpath(base)
    inside = (os.path.relpath(os.path.realpath(path), real) for path in named if path)
    return frozenset(path for path in inside if not path.startswith("../"))


def _without(repository: Any, commit: Any, own: frozenset[str]) -> Any:
    """The newest commit, by first parents, that touches something besides these files."""
    for _ in range(_WALKED if own else 0):
        if len(commit.parents) != 1:
            return commit
        parent = commit.parents[0]
        moved = {delta.new_file.path for delta in parent.tree.diff_to_tree(commit.tree).deltas}
        if not moved or not moved <= own:
            return commit
        commit = parent
    return commit


def _branch(repository: Any) -> str:
    if repository.head_is_detached:
        return ""
    target = repository.lookup_reference("HEAD").target
    return str(target).removeprefix("refs/heads/") if isinstance(target, str) else ""


def _remote(repository: Any) -> Iterator[tuple[str, Value]]:
    try:
        url = repository.config["remote.origin.url"]
    except (KeyError, ValueError):
        return
    yield "origin", shown(mask(re.sub(r"//[^/@]*@", "//", url)))


def _work(repository: Any, rule: GitRule, disk: Disk, base: str, own: frozenset[str]) -> _Work:
    excluded = matches(rule.exclude) if rule.exclude else None
    names = {"code": "all", "all": "all", "ignore": "no"}[rule.untracked]
    modules = set(repository.listall_submodules())
    dirty, untracked = [], []
    for path, flags in repository.status(untracked_files=names).items():
        if path in own or path in modules or (excluded and excluded(path)) or not flags or flags & 16384:
            continue
        if flags == 128:  # WT_NEW alone
            if rule.untracked == "all" or (_CODE.fullmatch(path) and "__pycache__/" not in path):
                untracked.append(path)
        else:
            dirty.append(path)
    digests = disk.digests(os.path.join(base, path) for path in (*dirty, *untracked) if not path.endswith("/"))
    return _Work(
        {path: _content(base, path, digests) for path in dirty},
        {path: _content(base, path, digests) for path in untracked},
    )


def _content(base: str, path: str, digests: Mapping[str, str | Trouble]) -> str:
    """A word for what a file holds; one that could not be read raises, for a digest without it would lie."""
    whole = os.path.join(base, path)
    status = paths.lstat(whole.rstrip("/"))
    if status is None:
        return "missing"
    if isinstance(status, Trouble):
        raise ValueError(f"{path}: {status.reason}")
    if stat.S_ISLNK(status.st_mode):
        return f"link {paths.link_text(whole)}"
    if not stat.S_ISREG(status.st_mode):
        return paths.file_type(status.st_mode)
    digest = digests[whole]
    if isinstance(digest, Trouble):
        raise ValueError(f"{path}: {digest.reason}")
    return f"{'x' if status.st_mode & 0o100 else 'f'} {digest}"


def _digest(listed: Mapping[str, str]) -> str:
    lines = "\n".join(f"{path}\0{word}" for path, word in sorted(listed.items()))
    return "sha256:" + hashlib.sha256(lines.encode("utf-8", "surrogateescape")).hexdigest()


def _submodules(repository: Any, base: str) -> Iterator[str]:
    """`path commit`, `+` where files in it differ, as git writes it."""
    import pygit2

    for path in repository.listall_submodules():
        try:
            inner = pygit2.Repository(os.path.join(base, path), pygit2.enums.RepositoryOpenFlag.NO_SEARCH)
            changed = "+" if inner.status(untracked_files="no") else ""
            yield shown(f"{path} {inner.head.target}{changed}")
        except (pygit2.GitError, KeyError):
            yield shown(f"{path} not checked out")
