"""Look at the machine: run the probes of a policy, and hold what they saw together.

Always holds: one disk a look, so that no file is read twice; an error inside a probe becomes an Unknown about its
rule, never an end of the look; what was left out on purpose stands in `not_looked`.
Never: compares or judges, or looks at what the policy does not name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from lockd.facts import Fact, Facts, Unknown, shown
from lockd.plain import dataclass, field

if TYPE_CHECKING:
    from lockd.disk import Disk
    from lockd.lastlook import LastLooks
    from lockd.probes import Manifest, Seen
    from lockd.probes.bounded import Begun
    from lockd.rules import Policy


@dataclass(frozen=True)
class Launch:
    """The launch that a look is for.

    source: "this process", "pid 4242", "run:7"; argv: empty where no command was given.
    """

    environ: Mapping[str, str]
    cwd: str = "/"
    argv: tuple[str, ...] = ()
    source: str = "this process"


class Memo:
    """What was derived from stamps before. This one remembers nothing; the state folder's remembers over processes."""

    def recall(self, key: tuple[Any, ...], stamp: str, compute: Callable[[], Seen]) -> Seen:
        """What `compute` gave when `key` had this `stamp`, else compute it now and keep it."""
        return compute()

    remembers = False  # does it hold what it is given to `keep`?

    def kept(self, key: tuple[Any, ...]) -> Any:
        """The last value that was given to `keep` under this key, whatever became of the stamps since; None: none."""
        return None

    def keep(self, key: tuple[Any, ...], value: Any) -> None:
        """Keep plain values (those that marshal takes), from which the next derivation starts."""


@dataclass
class Look:
    """One look: what probes share.

    launch None: left out, and said so (the daemon). commands: whether `[[command]]` may run. secret_key: what keyed
    digests of secret variables are made with (`secrets.key`); None: there is no state to keep it in. only: the sections
    that this look is about, None for all. hooks: environment → digest of the site hook that lockd put into it.
    begun: tools at work whose answers a probe will want.
    last: where last looks at large trees are kept. may_age: may this fact be that of the last look, where its rule has
    a `max_age`? aged: the facts that are.
    """

    policy: Policy
    disk: Disk
    launch: Launch | None = None
    commands: bool = True
    memo: Memo = field(default_factory=Memo)
    secret_key: bytes | None = None
    hooks: Mapping[str, str] = field(default_factory=dict)
    only: frozenset[str] | None = None
    last: LastLooks | None = None
    may_age: Callable[[str], bool] = lambda fact: False
    aged: list[str] = field(default_factory=list)
    not_looked: list[str] = field(default_factory=list)
    begun: dict[str, Begun] = field(default_factory=dict)


@dataclass(frozen=True)
class Sight:
    """What a look gave. claimed: fact name → (section, rule). manifests: on demand, fact name → manifest.

    failures: the tracebacks of probes that broke, for whoever debugs them; the facts say it as Unknown. aged: the facts
    that are those of an earlier look.
    """

    facts: Facts
    claimed: Mapping[str, tuple[str, Any]]
    manifests: Callable[[], Mapping[str, Manifest]]
    not_looked: tuple[str, ...] = ()
    failures: tuple[str, ...] = ()
    aged: tuple[str, ...] = ()


def look_at(look: Look) -> Sight:
    """Run every probe of the policy."""
    try:
        _begin(look)
        return _look_at(look)
    finally:
        while look.begun:  # the look was left before anybody asked for these answers
            look.begun.popitem()[1].drop()


def _begin(look: Look) -> None:
    """Start what works by itself while the rest is looked at."""
    rule = look.policy.gpu
    if not rule or (look.only is not None and "gpu" not in look.only):
        return
    from lockd.probes import gpu

    try:
        gpu.begin(rule, look)
    except Exception:  # noqa: S110  the probe itself meets it again, and says it
        pass


def _look_at(look: Look) -> Sight:
    from lockd.probes import rules

    facts: dict[str, Fact | Unknown] = {}
    claimed: dict[str, tuple[str, Any]] = {}
    behind: dict[str, Callable[[], Mapping[str, Manifest]]] = {}
    failures: list[str] = []
    for section, rule in rules(look.policy):
        if look.only is not None and section not in look.only:
            continue
        seen = _guarded(section, rule, look, failures)
        for fact in seen.facts:
            if fact.name not in facts or _is_literal(rule, fact.subject):
                facts[fact.name], claimed[fact.name] = fact, (section, rule)
                behind[fact.name] = seen.manifests
    told = tuple(look.not_looked), tuple(failures), tuple(look.aged)
    return Sight(Facts(facts.values()), claimed, lambda: Manifests(behind), *told)


def rule_fact(section: str, rule: Any) -> tuple[str, str]:
    """Kind and subject of the fact that stands for a whole rule, when nothing under it could be read."""
    if section in ("env", "launch", "gpu", "host"):
        return section, "path" if section == "launch" else "*"
    named = rule.name if section in ("python", "command") else rule.path
    return section, shown(named)


def _guarded(section: str, rule: Any, look: Look, failures: list[str]) -> Seen:
    from lockd.probes import Seen, mounted, probe

    try:
        silent = mounted.under(rule)
        if silent:
            return Seen((Unknown(*rule_fact(section, rule), silent),))
        return probe(section).look(rule, look)
    except Exception as error:  # the boundary: a broken probe is an Unknown about its rule, and the look goes on
        import traceback

        failures.append("".join(traceback.format_exception(type(error), error, error.__traceback__)))
        kind, subject = rule_fact(section, rule)
        return Seen((Unknown(kind, subject, shown(f"the {section} probe failed: {type(error).__name__}: {error}")),))


def _is_literal(rule: Any, subject: str) -> bool:
    """A rule that names the very path answers for it before a glob that matches it as well."""
    path = getattr(rule, "path", None)
    return isinstance(path, str) and shown(path) == subject


class Manifests(Mapping[str, "Manifest"]):
    """Fact → manifest. A rule's manifests are made when one of its facts is asked for, and once."""

    def __init__(self, behind: Mapping[str, Callable[[], Mapping[str, Manifest]]]) -> None:
        self._behind = behind
        self._made: dict[Callable[[], Mapping[str, Manifest]], Mapping[str, Manifest]] = {}

    def __getitem__(self, name: str) -> Manifest:
        make = self._behind[name]
        if make not in self._made:
            self._made[make] = make()
        return self._made[make][name]

    def __iter__(self) -> Iterator[str]:
        return (name for name in self._behind if name in self)

    def __len__(self) -> int:
        return sum(1 for _ in self)
