"""What to watch for a policy: every path that its probes name, pruned, and the policy and the lock themselves.

Always holds: what a rule excludes is not watched; a path that several rules name is watched for all of them.
Never: watches what no rule names.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from lockd.globs import literal_root, matches
from lockd.probes import mounted, rules
from lockd.watch.hints import Target
from lockd.watch.watcher import as_target

if TYPE_CHECKING:
    from lockd.rules import Policy


def targets(policy: Policy) -> tuple[Target, ...]:
    """The targets of a policy. One path that two rules exclude differently is watched with neither's exclusions."""
    found: dict[str, Target] = {}
    for target in (*_of_rules(policy), *_own(policy)):
        before = found.get(target.path)
        found[target.path] = target if before is None else _both(before, target)
    return tuple(found.values())


def _of_rules(policy: Policy) -> Iterator[Target]:
    for section, rule in rules(policy):
        for path in mounted.watched(section, rule):
            yield _target(section, rule, path)


def _target(section: str, rule: Any, path: str) -> Target:
    path = path.rstrip("/") or "/"
    pattern = getattr(rule, "path", "")
    if section == "file" and pattern and literal_root(pattern) != pattern:
        rest = pattern[len(literal_root(pattern)) :].strip("/")
        deep = "/" in rest or "**" in rest
        return Target(path, tuple(rule.exclude), deep, None if deep else _names(rest))
    own = pattern and path in (
        pattern.rstrip("/"),
        os.path.realpath(pattern),
    )  # exclusions are relative to the rule's path
    return Target(path, tuple(getattr(rule, "exclude", ())) if own else ())


def _names(pattern: str) -> Callable[[str], bool]:
    return matches((pattern,))


def _own(policy: Policy) -> Iterator[Target]:
    for path in (policy.path, policy.lock_path):
        for place in dict.fromkeys((path, os.path.realpath(path))):
            yield as_target(place)


def _both(one: Target, other: Target) -> Target:
    exclude = one.exclude if one.exclude == other.exclude else ()
    return Target(one.path, exclude, one.deep or other.deep, one.only if one.only is other.only else None)
