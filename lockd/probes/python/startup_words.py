"""What changed about a `python:ENV`, in one line for a tired person.

Always holds: what runs code is said first; a long list is counted, never cut in silence.
Never: reads the machine.
"""

from __future__ import annotations

import re

from lockd.facts import Fact, Unknown, Value
from lockd.findings import Difference
from lockd.probes.python import hook
from lockd.probes.python.pth import SUFFIXES


def word(difference: Difference) -> str:
    """One line about a changed `python:ENV`."""
    subject = difference.name.partition(":")[2]
    if difference.change in ("missing", "added", "unreadable"):
        if difference.change == "missing" and difference.expected is None:
            return f"python {subject} is not there, and the lock never saw it"
        reason = difference.found.reason if isinstance(difference.found, Unknown) else ""
        return f"python {subject} {_PLAIN[difference.change]}{': ' + reason if reason else ''}"
    clauses = [breach.text for breach in difference.breaches if breach.attribute == hook.BREACH]
    clauses += [
        _clause(name, *pair) for name, pair in sorted(difference.attributes.items(), key=lambda item: _rank(item[0]))
    ]
    clauses += _doubled(difference) if "extra" in difference.attributes else []
    return f"python {subject}: {'; '.join(filter(None, clauses)) or 'differs'}"


_PLAIN = {"missing": "is gone", "added": "is new", "unreadable": "could not be read"}
_SAID_FIRST = (
    "state",
    "names",
    "version",
    "implementation",
    "system_site",
    "user_site",
    "pth",
    "customize",
    "stale",
    "roots",
    "extra",
)


def _rank(name: str) -> int:
    return _SAID_FIRST.index(name) if name in _SAID_FIRST else len(_SAID_FIRST)


def _clause(name: str, before: Value | None, after: Value | None) -> str:
    if name == "state":
        return str(after) if after else f"no longer {before}"
    if name in ("system_site", "user_site"):
        what = "include-system-site-packages" if name == "system_site" else "user site"
        return f"{what} is {'on' if after else 'off'}"
    if name in ("binary", "libpython"):
        return f"{name} differs" if before and after else ""  # that it came or went is said by `state`
    if isinstance(before, tuple) or isinstance(after, tuple):
        return _moves(name, _lines(before), _lines(after))
    return f"{name} {before or 'none'} → {after or 'none'}"


def _doubled(difference: Difference) -> list[str]:
    told = difference.found.told.get("doubles") if isinstance(difference.found, Fact) else ()
    return [_few(list(told))] if isinstance(told, tuple) and told else []


def _lines(value: Value | None) -> tuple[str, ...]:
    return value if isinstance(value, tuple) else () if value in (None, "") else (str(value),)


_GROUPS = {
    "names": ("{}", "no longer {}"),
    "pth": ("{} at start-up", "no longer {}"),
    "customize": ("runs {}", "no longer runs {}"),
    "stale": ("byte-code of {}", "no longer byte-code of {}"),
    "roots": ("imports from {}", "no longer imports from {}"),
    "extra": ("in sight: {}", "out of sight: {}"),
}


def _moves(name: str, before: tuple[str, ...], after: tuple[str, ...]) -> str:
    came, went = [line for line in after if line not in before], [line for line in before if line not in after]
    changed = {_head(line) for line in came} & {_head(line) for line in went}
    news, olds = _GROUPS.get(name, (f"{name} {{}}", f"{name} no longer {{}}"))
    said = [f"{_few(sorted(changed))} changed"] if changed else []
    came, went = (
        [line for line in came if _head(line) not in changed],
        [line for line in went if _head(line) not in changed],
    )
    said += [news.format(_few([_brief(line) for line in came]))] if came else []
    said += [olds.format(_few([_brief(line) for line in went]))] if went else []
    return ", ".join(said) or f"{name} in another order"


def _head(line: str) -> str:
    return re.split(r" sha256:| -> | is no file| adds nothing", line)[0]


def _brief(line: str) -> str:
    head, runs, _ = line.partition(" sha256:")
    if not runs:
        return line.replace(" -> ", " adds ", 1)
    return f"{head} (runs code)" if head.endswith(SUFFIXES) else head


def _few(lines: list[str]) -> str:
    return ", ".join(lines[:3]) + (f" and {len(lines) - 3} more" if len(lines) > 3 else "")
