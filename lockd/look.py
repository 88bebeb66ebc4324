"""Look at the machine: run the probes of a policy, and hold what they saw together.

Always holds: one disk a look, so that no file is read twice; an error inside a probe becomes an Unknown about its rule, never an
end of the look; what was left out on purpose stands in `not_looked`.
Never: compares or judges, or looks at what the policy does not name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Optional

from lockd.facts import Facts

if TYPE_CHECKING:
    from lockd.disk import Disk
    from lockd.probes import Manifest, Seen
    from lockd.rules import Policy


@dataclass(frozen=True)
class Launch:
    """The launch that a look is for. source: "this process", "pid 4242", "run:7"; argv empty where no command was given."""

    environ: Mapping[str, str]
    cwd: str = "/"
    argv: tuple[str, ...] = ()
    source: str = "this process"


class Memo:
    """What was derived from stamps before. This one remembers nothing; the state folder's remembers over processes."""

    def recall(self, key: tuple[Any, ...], stamp: str, compute: Callable[[], Seen]) -> Seen:
        """What `compute` gave when `key` had this `stamp`, else compute it now and keep it."""
        return compute()


@dataclass
class Look:
    """One look: what probes share. launch None: left out, and said so (the daemon). commands: whether `[[command]]` may run."""

    policy: Policy
    disk: Disk
    launch: Optional[Launch] = None
    commands: bool = True
    memo: Memo = field(default_factory=Memo)
    not_looked: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Sight:
    """What a look gave. claimed: fact name → (section, rule). manifests: on demand, fact name → manifest."""

    facts: Facts
    claimed: Mapping[str, tuple[str, Any]]
    manifests: Callable[[], Mapping[str, Manifest]]
    not_looked: tuple[str, ...] = ()


def look_at(look: Look) -> Sight:
    """Run every probe of the policy."""
    raise NotImplementedError
