"""What the tests of probes share: a policy of a few rules, one look at it, and the loss of root's right to read all."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from lockd.compare import compare, file_changes
from lockd.disk import Disk
from lockd.facts import Fact, Facts, Unknown
from lockd.findings import Difference
from lockd.look import Launch, Look, Memo
from lockd.probes import Seen, probe, rules
from lockd.rules import Policy

CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH = 1, 2
_VERSION_3 = 0x20080522


def policy(**sections: Any) -> Policy:
    """A policy of these sections."""
    return Policy(name="test", path="/etc/lockd/test.toml", owner=os.geteuid(), **sections)


def looking(
    held: Policy,
    *,
    full: bool = False,
    cache: str | None = None,
    environ: dict[str, str] | None = None,
    commands: bool = True,
    memo: Memo | None = None,
    secret_key: bytes | None = None,
) -> Look:
    """One look at the machine by that policy, with a disk of its own."""
    launch = None if environ is None else Launch(environ)
    return Look(held, Disk(full=full, cache_dir=cache), launch, commands, memo or Memo(), secret_key)


def seen(look: Look) -> tuple[Facts, dict[str, Any]]:
    """What every rule of the policy gave: its facts, and its manifests."""
    every: list[Seen] = [probe(section).look(rule, look) for section, rule in rules(look.policy)]
    manifests: dict[str, Any] = {}
    for one in every:
        manifests.update(one.manifests())
    look.disk.save()
    return Facts(fact for one in every for fact in one.facts), manifests


def facts(held: Policy, **how: Any) -> Facts:
    """The facts of one look."""
    return seen(looking(held, **how))[0]


def fact(held: Policy, name: str, **how: Any) -> Fact:
    """One fact that could be read."""
    found = facts(held, **how)[name]
    assert isinstance(found, Fact), found
    return found


def unknown(held: Policy, name: str, **how: Any) -> Unknown:
    """One fact that could not be read."""
    found = facts(held, **how)[name]
    assert isinstance(found, Unknown), found
    return found


def drift(held: Policy, before: Facts, **how: Any) -> list[Difference]:
    """What differs from `before` now."""
    found = facts(held, **how)
    pins = [one for section, rule in rules(held) for one in probe(section).breaches(rule, held, found)]
    return list(compare(before, found, pins))


def words(held: Policy, before: tuple[Facts, dict[str, Any]], **how: Any) -> list[str]:
    """The probes' lines for what differs from `before`, with the files named as the manifests tell."""
    from dataclasses import replace

    found, manifests = seen(looking(held, **how))
    pins = [one for section, rule in rules(held) for one in probe(section).breaches(rule, held, found)]
    lines = []
    for one in compare(before[0], found, pins):
        growing = isinstance(one.found, Fact) and one.found.tokens is not None
        old, new = before[1].get(one.name), manifests.get(one.name)
        files = file_changes(old, new, grow=growing) if old is not None and new is not None else None
        section = next(section for section, rule in rules(held) if probe(section).claims(rule, *one.name.split(":", 1)))
        lines.append(probe(section).word(replace(one, files=files)))
    return lines


@contextmanager
def blind() -> Iterator[None]:
    """File modes bind root, too, in this thread and what it forks."""
    libc = ctypes.CDLL(None, use_errno=True)
    header = (ctypes.c_uint32 * 2)(_VERSION_3, 0)
    data = (ctypes.c_uint32 * 6)()  # effective, permitted, inheritable, twice
    assert libc.capget(header, data) == 0
    before = list(data)
    data[0] &= ~(1 << CAP_DAC_OVERRIDE | 1 << CAP_DAC_READ_SEARCH)
    assert libc.capset(header, data) == 0
    try:
        yield
    finally:
        assert libc.capset(header, (ctypes.c_uint32 * 6)(*before)) == 0
