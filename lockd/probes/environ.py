"""`[env]`: the variables of the launch, by name or glob.

Always holds: a variable that a rule names is a fact, set or not; a glob gives a fact for each variable that is set.
Of two rules
for one variable the more specific counts: the name itself, else the glob with more plain characters. A secret, and
whatever looks like one by name or value, is a keyed digest only; without a key a set secret is an Unknown, for nobody
could compare it. A forbidden variable is a fact only while it is set. Without a launch nothing is looked at, and that
is said.
Never: shows or keeps the value of a secret, or reads any environment but the launch's.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

from lockd import globs, secrets
from lockd.facts import ABSENT, Fact, Facts, Unknown, Value, shown
from lockd.findings import Breach
from lockd.probes import Seen, paths

if TYPE_CHECKING:
    from lockd.findings import Difference
    from lockd.look import Look
    from lockd.rules import EnvRule, Policy, Severity

Rule = Mapping[str, "EnvRule"]

KINDS = ("env",)
ATTRIBUTES: Mapping[str, Mapping[str, str]] = {
    "env": {
        "absent": "true where the variable is not set",
        "value": "its value; of more than 4096 characters the sha256",
        "digest": "of a secret: a keyed digest, with a short name of the key",
        "secret": "told: why the value is not shown",
        "pinned": "told, of a secret with a value in the policy: whether it has that value",
    }
}

LONGEST = 4096


def look(rule: Rule, look: Look) -> Seen:
    """Read the variables of the launch that the rule's names and globs name."""
    if look.launch is None:
        look.not_looked.append("env (the daemon has no launch)")
        return Seen(())
    environ = look.launch.environ
    names = sorted({*environ, *(name for name in rule if not paths.is_glob(name))})
    facts = (_fact(name, environ.get(name), rule, look.secret_key) for name in names)
    return Seen(tuple(fact for fact in facts if fact is not None))


def claims(rule: Rule, kind: str, subject: str) -> bool:
    """Does a name or glob of the rule answer for that variable?"""
    return kind == "env" and _key(rule, paths.unshown(subject)) is not None


def severity(rule: Rule, policy: Policy, kind: str, subject: str, change: str) -> Severity:
    """The variable's own word, else the policy's."""
    key = _key(rule, paths.unshown(subject))
    return (rule[key].on_drift if key is not None else None) or policy.on_drift


def breaches(rule: Rule, policy: Policy, found: Facts) -> Iterator[Breach]:
    """Variables that are set though forbidden, or that have another value than the policy's."""
    for fact in found.known():
        key = _key(rule, paths.unshown(fact.subject)) if fact.kind == "env" else None
        if key is None:
            continue
        one = rule[key]
        if one.forbid and not fact.absent:
            yield Breach(fact.name, f"env.{key}", "the policy forbids it", forbidden=True, on_drift=one.on_drift)
        elif one.value is not None and not _as_pinned(fact, one.value):
            yield _pin(fact, f"env.{key}", one)


def word(difference: Difference) -> str:
    """`LD_LIBRARY_PATH "/opt/lib" → not set`."""
    subject = difference.name.partition(":")[2]
    if isinstance(difference.found, Unknown):
        return f"{subject} could not be read: {difference.found.reason}"
    if difference.change == "forbidden":
        return f"{subject} is set ({_said(difference.found)})"
    if "lock" not in difference.against:
        return f"{subject} is {_said(difference.found)}"
    was, now = _value(difference.expected), _value(difference.found)
    paths = _paths(was, now) if was is not None and now is not None else ""
    return f"{subject} {paths or f'{_said(difference.expected)} → {_said(difference.found)}'}{_other_key(difference)}"


def watched(rule: Rule) -> Iterable[str]:
    """Nothing on disk."""
    return ()


# -- the fact


def _key(rule: Rule, name: str) -> str | None:
    """The most specific name or glob of the rule for a variable. None: it names none."""
    if name in rule:
        return name
    matching = [glob for glob in rule if paths.is_glob(glob) and "/" not in name and globs.matches((glob,))(name)]
    return max(matching, key=lambda glob: (sum(one not in "*?[]" for one in glob), glob), default=None)


def _fact(name: str, value: str | None, rule: Rule, secret_key: bytes | None) -> Fact | Unknown | None:
    key = _key(rule, name)
    if key is None:
        return None
    one, subject = rule[key], shown(name)
    if value is None:
        return None if one.forbid else Fact("env", subject, ABSENT)
    why = _why_secret(name, value, one)
    if not why:
        return Fact("env", subject, {"value": _kept(value)})
    told: dict[str, Value] = {"secret": why}
    if one.forbid:  # that it is set is all that counts
        return Fact("env", subject, {"value": secrets.MASK}, told)
    if one.value is not None:
        told["pinned"] = value == one.value
    if secret_key is None:
        return Unknown("env", subject, f"set, but {why}, and there is no key here to compare secrets with")
    return Fact("env", subject, {"digest": secrets.digest(secret_key, value)}, told)


def _why_secret(name: str, value: str, rule: EnvRule) -> str:
    if rule.secret:
        return "the policy says that it is a secret"
    return "it looks like a secret" if secrets.token_like(name, value) else ""


def _kept(value: str) -> str:
    if len(value) <= LONGEST:
        return shown(value)
    return f"sha256:{hashlib.sha256(os.fsencode(value)).hexdigest()} ({len(value):,} characters)"


# -- pins and words


def _as_pinned(fact: Fact, wanted: str) -> bool:
    return fact.told["pinned"] is True if "pinned" in fact.told else fact.attributes.get("value") == _kept(wanted)


def _pin(fact: Fact, key: str, rule: EnvRule) -> Breach:
    secret = "pinned" in fact.told
    wanted = secrets.MASK if secret or rule.value is None or secrets.token_like(fact.subject) else _kept(rule.value)
    found = None if fact.absent else secrets.MASK if secret else str(fact.attributes.get("value"))
    text = f"pinned {'another value' if wanted == secrets.MASK else _quoted(wanted)}"
    return Breach(fact.name, key, text, attribute="value", wanted=wanted, found=found, on_drift=rule.on_drift)


def _value(fact: Fact | Unknown | None) -> str | None:
    value = fact.attributes.get("value") if isinstance(fact, Fact) else None
    return str(value) if value is not None else None


def _said(fact: Fact | Unknown | None) -> str:
    if not isinstance(fact, Fact) or fact.absent:
        return "not set"
    if "digest" in fact.attributes:
        return f"secret {str(fact.attributes['digest']).rpartition(':')[2][:8]}…"
    return _quoted(str(fact.attributes.get("value", "")))


def _quoted(value: str) -> str:
    return f'"{value}"' if len(value) <= 160 else f'"{value[:150]}…" ({len(value):,} characters)'


def _paths(was: str, now: str) -> str:
    """Of two long lists like PATH: what came and what went."""
    old, new = was.split(":"), now.split(":")
    if len(was) + len(now) < 120 or len(old) < 2 or len(new) < 2:
        return ""
    came, went = [one for one in new if one not in old], [one for one in old if one not in new]
    parts = [f"now has {', '.join(came)}"] if came else []
    parts += [f"no longer has {', '.join(went)}"] if went else []
    return "; ".join(parts) or "has the same entries in another order"


def _other_key(difference: Difference) -> str:
    """Digests under two keys differ whatever the values are: say that, or it would be taken for a new secret."""
    keys = [
        str(fact.attributes["digest"]).split(":")[1]
        for fact in (difference.expected, difference.found)
        if isinstance(fact, Fact) and "digest" in fact.attributes
    ]
    differ = len(keys) == 2 and keys[0] != keys[1]
    return " (recorded under the key of another state: they cannot be compared)" if differ else ""
