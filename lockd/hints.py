"""The way out of a finding, in the exact words to type.

Always holds: a hint names `lockd diff` and, where something can be put back, `lockd restore`; where the rule keeps
nothing to put back, it says that; where a pin is broken, also the line of the policy that says so.
Never: tells anybody to accept in order to get past a gate.
"""

from __future__ import annotations

from typing import Any

from lockd.facts import Fact, Unknown, shown
from lockd.findings import Breach, Difference
from lockd.rules import Policy

_RESTORABLE = ("package", "python", "unowned", "file", "cache")
_NOT_KEPT = {
    "file": "lockd restore says what is wanted, its content was not kept (keep = true keeps it)",
    "cache": "a good run fills it; lockd restore has none of its entries (keep = true keeps them)",
}
_LARGE = (" bytes", "mib", "too large")  # ends of reasons, in small letters
_CLOSED = ("permission denied", "not permitted")


def hint(difference: Difference, policy: Policy, rule: Any = None) -> str:
    """One line: what to look at, how to go back, and which line to edit if the new state is meant.

    rule: what answers for the fact, where that is known.
    """
    if difference.change == "unreadable" and difference.name.startswith("command:"):
        return "run it by hand to see why; commands of an edited policy run once its owner has reviewed them"
    if isinstance(difference.found, Unknown):
        return f"{_remedy(difference.found.reason.lower())}; lockd doctor says what else lockd cannot read"
    parts = [*_way_back(difference, policy, rule), *_edits(difference.breaches, policy)]
    return "; ".join(parts)


def _remedy(reason: str) -> str:
    """What makes a thing readable, by why it is not."""
    if reason.endswith(_LARGE):
        return "exclude it in the policy, or make it smaller, then lockd verify"
    if reason.endswith("name too long"):
        return "exclude it in the policy, or move it up: the kernel takes paths of 4,095 bytes; then lockd verify"
    if reason.endswith(_CLOSED):
        return "make it readable for this user, then lockd verify"
    return "look at it by hand, then lockd verify"


def fact_argument(name: str) -> str:
    """A fact's name as a shell word for `restore`, `diff` and `accept --only`."""
    if all(character.isalnum() or character in "-_./:+@%=," for character in name):
        return name
    return "'" + name.replace("'", "'\"'\"'") + "'"


def short_name(name: str, policy: Policy) -> str:
    """The shortest word that names a fact: `torch` where there is one environment, else `train/torch`."""
    kind, _, subject = name.partition(":")
    if kind != "package":
        return fact_argument(name)
    return fact_argument(subject.rpartition("/")[2] if len(policy.python) == 1 else subject)


def _way_back(difference: Difference, policy: Policy, rule: Any) -> list[str]:
    kind, _, subject = difference.name.partition(":")
    short = short_name(difference.name, policy)
    if difference.change == "missing" and difference.expected is None and not difference.breaches:
        return ["lockd diff", "the policy names it since the last accept: put it there, or correct the policy"]
    if kind == "env":
        return [f"lockd diff; start the launch {_variable(difference, subject)}"]
    if kind == "python" and any(pin.attribute == "gate" for pin in difference.breaches):
        return [f"lockd diff; lockd gate install site --env {subject}, or lockd gate remove site --env {subject}"]
    if kind == "launch" and subject == "python":
        wanted = next((rule.path for rule in policy.python if rule.name == policy.launch.python), "")
        return [f"start it with {shown(wanted)}/bin/python" if wanted else "lockd diff"]
    if kind == "tree":
        return ["lockd diff", "put it back by hand: lockd restore has no copy of data"]
    if kind in _NOT_KEPT and _is_lost(difference) and not getattr(rule, "keep", True):
        return ["lockd diff", _NOT_KEPT[kind]]
    if kind in _RESTORABLE and difference.change != "forbidden":
        return (
            ["lockd diff", f"lockd restore {short}"] if difference.expected else [f"lockd diff; lockd restore {short}"]
        )
    if difference.change == "forbidden" and kind == "package":
        return [f"lockd diff; lockd restore {short}, or uninstall it"]
    return ["lockd diff"]


def _is_lost(difference: Difference) -> bool:
    """Is something gone or altered that was good? What only came can be taken away, kept or not."""
    if difference.expected is None or difference.expected.absent:
        return False
    return difference.files is None or bool(difference.files.changed or difference.files.missing)


def _variable(difference: Difference, name: str) -> str:
    """How the variable has to stand; a value that is only known as a digest is not shown."""
    wanted = next((pin.wanted for pin in difference.breaches if pin.wanted and not pin.forbidden), None)
    if wanted is None and isinstance(difference.expected, Fact) and not difference.expected.absent:
        value = difference.expected.attributes.get("value")
        wanted = value if isinstance(value, str) else None
        if wanted is None:
            return f"with {name} as it was when the lock was accepted"
    return f"without {name}" if wanted is None else f"with {name}={wanted}"


def _edits(breaches: tuple[Breach, ...], policy: Policy) -> list[str]:
    """`or, if 2.11.0+cu130 is meant, edit ct200.toml:21 first`, once a line of the policy."""
    said: dict[str, str] = {}
    pins = [pin for pin in breaches if pin.attribute != "gate"]  # of the hook no line of the policy says anything
    for pin in sorted(pins, key=lambda pin: pin.attribute != "version"):
        meant = "it" if pin.forbidden or pin.found is None else pin.found
        said.setdefault(policy.line(pin.key), f"or, if {meant} is meant, edit {policy.line(pin.key)} first")
    return list(said.values())[:3]
