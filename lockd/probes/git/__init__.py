"""`[[git]]`: a repository's HEAD, branch, uncommitted changes, untracked files and submodules.

Always holds: nothing of the repository runs: no git, filter, hook, fsmonitor, external diff or credential helper. A
repository that belongs to somebody else is read all the same. The policy and its lock are left out, so that committing
them is no drift. What cannot be told is an Unknown with the reason.
Never: writes to the repository (its index is not refreshed), or follows it to a network.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

from lockd.disk import Trouble
from lockd.facts import ABSENT, Fact, Facts, Unknown, Value, shown
from lockd.probes import Manifest, Seen, common, paths

if TYPE_CHECKING:
    from lockd.findings import Breach, Difference
    from lockd.look import Look
    from lockd.rules import GitRule, Policy, Severity

Moved = Mapping[str, tuple[Value | None, Value | None]]

KINDS = ("git",)
ATTRIBUTES: Mapping[str, Mapping[str, str]] = {
    "git": {
        "absent": "true where no repository is at the path",
        "head": "commit that HEAD names, or unborn",
        "branch": "branch that is checked out; absent where HEAD is detached",
        "dirty": "digest over tracked files that differ from HEAD, by path, kind and content",
        "dirty_files": "how many they are",
        "untracked": "digest over untracked files, by path and content, as far as the rule holds them",
        "untracked_files": "how many they are",
        "submodules": "path and commit of each submodule, as it is checked out",
        "state": "what is under way: merge, rebase, cherry-pick, bisect, …",
        "upstream": "told: the branch that it follows",
        "origin": "told: where it was cloned from, without credentials",
        "subject": "told: first line of the commit's message",
        "committed": "told: when it was committed",
        "changed": "told: some of the files that differ",
        "new": "told: some of the untracked files",
        "shallow": "told: true where the history is cut off",
    }
}


def look(rule: GitRule, look: Look) -> Seen:
    """Read one repository."""
    subject = shown(rule.path)
    status = paths.lstat(rule.path)
    if isinstance(status, Trouble):
        return Seen((common.could_not_read("git", subject, [status]),))
    if status is None:
        return Seen((Fact("git", subject, ABSENT),))
    try:
        import pygit2  # noqa: F401  only whether it is there
    except ImportError:
        return Seen((Unknown("git", subject, "pygit2 is not installed beside lockd: pip install 'lockd[git]'"),))
    from lockd.probes.git.repository import read

    policy = look.policy
    found = read(rule, look.disk, apart=(policy.path, policy.lock_path))
    if isinstance(found, str):
        return Seen((Unknown("git", subject, shown(found)),))
    if found is None:
        return Seen((Fact("git", subject, ABSENT),))
    attributes, told, manifest = found
    return Seen((Fact("git", subject, attributes, told),), lambda: _manifest(subject, manifest))


def _manifest(subject: str, manifest: Manifest) -> Mapping[str, Manifest]:
    return {f"git:{subject}": manifest}


def claims(rule: GitRule, kind: str, subject: str) -> bool:
    """Is it this rule's repository?"""
    return kind == "git" and subject == shown(rule.path)


def severity(rule: GitRule, policy: Policy, kind: str, subject: str, change: str) -> Severity:
    """The rule's own word, else the policy's."""
    return common.severity(rule, policy)


def breaches(rule: GitRule, policy: Policy, found: Facts) -> Iterator[Breach]:
    """A repository has no pins of its own."""
    return iter(())


def word(difference: Difference) -> str:
    """`/root/dflash: 70d99e99 → 1b2c3d4e; 2 files differ from HEAD: train.py, model.py`."""
    subject = difference.name.partition(":")[2]
    plain = common.plain_word(difference)
    if plain is not None:
        return plain
    moved = difference.attributes
    told = difference.found.told if isinstance(difference.found, Fact) else {}
    parts = []
    if "head" in moved:
        parts.append(f"{_short(moved['head'][0])} → {_short(moved['head'][1])}")
    if "branch" in moved:
        parts.append(f"branch {' → '.join(_named(one, 'detached') for one in moved['branch'])}")
    parts += _files(moved, "dirty", "differ from HEAD", told.get("changed"))
    parts += _files(moved, "untracked", "untracked", told.get("new"))
    if "submodules" in moved:
        parts.append(f"submodules {_sets(*moved['submodules'])}")
    if "state" in moved:
        parts.append(f"{' → '.join(_named(one, 'nothing') for one in moved['state'])} under way")
    return f"{subject}: {'; '.join(parts)}" if parts else subject


def watched(rule: GitRule) -> Iterable[str]:
    """The working tree with its `.git`."""
    return paths.with_target(rule.path)


def _short(value: Value | None) -> str:
    text = "none" if value is None else str(value)
    return text[:8] if len(text) >= 40 else text


def _named(value: Value | None, none: str) -> str:
    return none if value is None else str(value)


def _files(moved: Moved, name: str, how: str, some: Value | None) -> list[str]:
    """Which files differ now; from how many to how many, where the number moved."""
    if name not in moved and f"{name}_files" not in moved:
        return []
    if name in moved and moved[name][1] is None:
        return [f"no file {'differs from HEAD' if name == 'dirty' else 'is untracked'} any more"]
    before, after = moved.get(f"{name}_files", (None, None))
    if after == 1:
        how = how.replace("differ ", "differs ")
    number = "1 file" if after == 1 else f"{after:,} files" if isinstance(after, int) else "files"
    was = f" ({before:,} before)" if isinstance(before, int) else ""
    listed = f": {', '.join(some[:5])}{' …' if len(some) > 5 else ''}" if isinstance(some, tuple) and some else ""
    return [f"{number} {how}{was}{listed}"]


def _sets(before: Value | None, after: Value | None) -> str:
    old, new = (set(one) if isinstance(one, tuple) else set() for one in (before, after))
    return f"{', '.join(sorted(old - new)) or 'none'} → {', '.join(sorted(new - old)) or 'none'}"
