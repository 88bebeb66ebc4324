"""Verdict, differences and facts as JSON documents, by the names of the contract; the schemas stand in `docs/schemas`.

Always holds: one document, valid UTF-8; names from the machine are already escaped; `since` and `by` only where
observed.
Never: reads the machine, or prints.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from lockd.facts import Fact, Facts, Unknown, Value, safe, shown
from lockd.findings import Finding

if TYPE_CHECKING:
    from lockd.check import Report
    from lockd.errors import LockdError
    from lockd.lock import Lock

SCHEMA = 1
_DOUBTFUL = re.compile("[\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")  # C0: JSON itself


def dumps(document: Any) -> str:
    """One document as text, safe on a terminal: bytes that were not UTF-8, and characters that steer a terminal, are
    spelled out (`\\xff`, `\\u009b`) in the strings themselves: whoever reads the document gets no broken string."""
    text = json.dumps(document, ensure_ascii=False, indent=1, default=_plain)
    return text if text.isascii() and "\x7f" not in text else re.sub(_DOUBTFUL, _spelled, text)


def _spelled(match: re.Match[str]) -> str:
    return shown(match[0]).replace("\\", "\\\\")


def verify(report: Report, verdict: str, *, every: bool = False) -> dict[str, Any]:
    """`lockd verify --json`. `every`: recorded changes among the findings, too."""
    findings = [*report.findings, *(report.recorded if every else ())]
    override = {} if report.override is None else {"override": report.override.document()}
    return {
        "schema": SCHEMA,
        "verdict": verdict,
        **override,
        "environment": report.environment,
        "launch": report.launch,
        "look": report.look,
        **({"daemon": True} if report.by_daemon else {}),
        **policy_and_lock(report),
        "findings": [finding(one) for one in findings],
        "recorded": len(report.recorded),
        "facts": len(report.sight.facts),
        "unclaimed": list(report.unclaimed),
        "not_looked": list(report.not_looked),
        "elapsed_s": round(report.elapsed, 4),
    }


def policy_and_lock(report: Report) -> dict[str, Any]:
    """Which policy, and which lock it is held against."""
    return {
        "policy": {"name": report.policy.name, "path": safe(report.policy.path), "digest": report.policy.digest},
        "lock": None if report.lock is None else _lock(report.lock),
    }


def finding(one: Finding) -> dict[str, Any]:
    """One finding; what is not known is left out."""
    document: dict[str, Any] = {
        "fact": one.fact,
        "change": one.change,
        "severity": one.severity,
        "against": list(one.against),
        "attributes": {name: [_plain(old), _plain(new)] for name, (old, new) in sorted(one.attributes.items())},
        "message": one.message,
        "hint": one.hint,
    }
    if one.files is not None:
        counts = {name: getattr(one.files, name) for name in ("changed", "added", "missing")}
        document["files"] = {**counts, "examples": list(one.files.examples)}
    for name in ("because", "since", "by"):
        value = getattr(one, name)
        if value is not None:
            document[name] = dict(value) if isinstance(value, Mapping) else value
    return document


def error(problem: LockdError) -> dict[str, Any]:
    """What stands on stdout where JSON was asked for and nothing could be looked at."""
    told = {"what": safe(problem.what), "where": safe(problem.where), "hint": safe(problem.hint)}
    return {"schema": SCHEMA, "verdict": "unknown", "error": told}


def export(facts: Facts, **head: Any) -> dict[str, Any]:
    """`lockd export --format json`: every fact with its attributes, what is only told, and what could not be read."""
    return {
        "schema": SCHEMA,
        **head,
        "facts": [_fact(fact) for fact in facts.known()],
        "unknown": [_unknown(fact) for fact in facts.unknown()],
    }


def imported(document: Any) -> Facts:
    """The facts of an exported document. ValueError, KeyError or TypeError where it is none."""
    if not isinstance(document, dict) or document.get("schema") != SCHEMA or "facts" not in document:
        raise ValueError("it is no export of this schema")
    known = [_imported(row) for row in document["facts"]]
    return Facts([*known, *(Unknown(*_split(row["fact"]), str(row["reason"])) for row in document.get("unknown", ()))])


def _fact(fact: Fact) -> dict[str, Any]:
    row: dict[str, Any] = {"fact": fact.name, "attributes": _values(fact.attributes)}
    if fact.told:
        row["told"] = _values(fact.told)
    if fact.tokens is not None:
        row["tokens"] = sorted(fact.tokens)
    return row


def _unknown(fact: Unknown) -> dict[str, Any]:
    return {"fact": fact.name, "reason": fact.reason}


def _imported(row: Mapping[str, Any]) -> Fact:
    tokens = row.get("tokens")
    kind, subject = _split(row["fact"])
    attributes, told = _read_values(row["attributes"]), _read_values(row.get("told", {}))
    return Fact(kind, subject, attributes, told, None if tokens is None else frozenset(map(str, tokens)))


def _split(name: Any) -> tuple[str, str]:
    if not isinstance(name, str) or ":" not in name:
        raise ValueError(f"{name!r} is no name of a fact")
    kind, _, subject = name.partition(":")
    return kind, subject


def _values(values: Mapping[str, Value]) -> dict[str, Any]:
    return {name: _plain(value) for name, value in sorted(values.items())}


def _read_values(values: Mapping[str, Any]) -> dict[str, Value]:
    read = {name: tuple(map(str, value)) if isinstance(value, list) else value for name, value in values.items()}
    odd = [name for name, value in read.items() if not isinstance(value, (str, int, tuple))]
    if odd:
        raise ValueError(f"{odd[0]} has a value that no fact has")
    return read


def _lock(lock: Lock) -> dict[str, Any]:
    names = ("generation", "accepted_at", "by", "why", "environment")
    return {name: getattr(lock, name) for name in names}


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, (tuple, frozenset, set)) else value
