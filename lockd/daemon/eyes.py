"""The daemon's eyes: a watcher that says where to look, and one Disk that looks again and again.

Always holds: watched first, then looked at. A look with hints re-states what they name and lists nothing else; one
without re-states everything. Facts of commands stay those of their last run, facts of a launch are never kept.
Never: judges. Not for several threads, but for what `files` gives the reader.
"""

from __future__ import annotations

import ctypes
import gc
import os
import threading
from collections import ChainMap
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, cast

from lockd import check
from lockd.daemon.memo import HeldMemo
from lockd.daemon.targets import targets
from lockd.disk import Disk
from lockd.facts import Facts
from lockd.look import Memo, Sight
from lockd.probes import PROBES
from lockd.watch.watcher import Watcher

if TYPE_CHECKING:
    from lockd.look import Launch
    from lockd.rules import Policy
    from lockd.state import State
    from lockd.watch.hints import Hint, WatchState

_LAUNCH, _COMMAND = frozenset({"env", "launch"}), frozenset({"command"})


class Eyes:
    """From `open` (again for another policy) to `close`."""

    def __init__(
        self,
        state: State | None,
        on_hint: Callable[[Hint], None],
        cookies: str,
        say: Callable[..., None],
        progress: Callable[[int, int], None],
    ) -> None:
        self._state, self._on_hint, self._cookies, self._say = state, on_hint, cookies, say
        self._progress = progress
        self._watcher: Watcher | None = None
        self._disk = Disk()
        self._memo: Memo = Memo()
        self._base: Sight | None = None
        self._commands: Sight | None = None
        self.sight: Sight | None = None
        self.guard = threading.Lock()

    def open(self, policy: Policy) -> None:
        """Watch what this policy names, and begin with what the state remembers."""
        from lockd.memo import StateMemo

        self.close()
        folder = None if self._state is None else self._state.cache_dir
        with self.guard:
            self._disk = Disk(cache_dir=folder, progress=self._progress)
        self._memo = HeldMemo(Memo() if self._state is None else StateMemo(f"{folder}/memo"))
        self._base = self._commands = self.sight = None
        watcher = Watcher(targets(policy), on_hint=self._on_hint, cookie_folder=self._cookies)
        try:
            watcher.start()
        except OSError as error:
            self._say("watch_refused", error=str(error))
            return
        self._watcher = watcher

    @staticmethod
    def trim() -> None:
        """Give back what a look at everything needed for a moment."""
        gc.collect()
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc has it
        if trim is not None:
            trim(0)

    def close(self) -> None:
        """Let go of the watcher."""
        watcher, self._watcher = self._watcher, None
        if watcher is not None:
            watcher.stop()

    @property
    def alive(self) -> bool:
        return self._watcher is not None and self._watcher.alive

    def sync(self, seconds: float) -> bool:
        """Was every event up to this call given to the receiver? False: it can't be proved."""
        return self._watcher is not None and self._watcher.sync(seconds)

    def retry(self) -> None:
        """Watch again what could not be, or was taken away: what is polled, and the folder of the cookies."""
        if self._watcher is not None:
            self._watcher.retry()

    def states(self) -> Mapping[str, WatchState]:
        """How each path is watched."""
        return {} if self._watcher is None else self._watcher.state()

    @property
    def polled(self) -> Mapping[str, str]:
        """Paths that raise no events, and why."""
        return {path: state.why for path, state in self.states().items() if state.mode == "polled"}

    def look(self, policy: Policy, hints: Iterable[str] | None, commands: bool, may_age: bool = False) -> Sight:
        """Look at what the hints name (None: at everything), and run the commands if asked. may_age: take the last
        look at large trees whose rules allow it; what differs in one is for the caller to look at again.
        """
        with self.guard:
            self._disk.new_look(hints)
            self._base = self._see(policy, frozenset(PROBES) - _LAUNCH - _COMMAND, may_age=may_age)
            if policy.command and (commands or self._commands is None):
                self._commands = self._see(policy, _COMMAND, commands=True)
            self.sight = self.merged(self._see(policy, _LAUNCH))
        return self.sight

    def look_at_launch(self, policy: Policy, launch: Launch) -> Sight:
        """The facts of one launch alone."""
        return check.see(
            policy, state=self._state, launch=launch, commands=False, disk=Disk(), memo=Memo(), only=_LAUNCH
        )

    def merged(self, launch: Sight) -> Sight:
        """What stands, with the facts of a launch or what was said of there being none."""
        return _merged([one for one in (self._base, self._commands, launch) if one is not None])

    # for the reader's thread

    def folders(self, after: str = "") -> list[str]:
        """Every folder that was seen, sorted, from behind `after` on."""
        with self.guard:
            return [folder for folder in self._disk.folders() if folder > after]

    def hashed_in(self, folder: str) -> list[tuple[str, Callable[[os.stat_result], bool], bytes]]:
        """What the Disk holds of the files in a folder."""
        with self.guard:
            return self._disk.hashed_in(folder)

    def disprove(self, path: str, digest: bytes) -> None:
        """Other bytes lie there than the Disk trusts."""
        with self.guard:
            self._disk.disprove(path, digest)

    def save(self) -> None:
        """Keep what was learned for the next daemon or direct look."""
        trouble = self._disk.save()
        self.trim()
        if trouble is not None:
            self._say("cache_unwritable", error=trouble.reason, path=trouble.path)

    def _see(self, policy: Policy, only: frozenset[str], *, commands: bool = False, may_age: bool = False) -> Sight:
        return check.see(
            policy,
            state=self._state,
            launch=None,
            commands=commands,
            disk=self._disk,
            memo=self._memo,
            only=only,
            may_age=lambda fact: may_age,
        )


def _merged(sights: list[Sight]) -> Sight:
    facts: dict[str, Any] = {}
    claimed: dict[str, tuple[str, Any]] = {}
    for one in sights:
        facts.update(one.facts)
        claimed.update(one.claimed)
    return Sight(
        Facts(facts.values()),
        claimed,
        lambda: ChainMap(*(cast("dict[str, Any]", one.manifests()) for one in sights)),
        tuple(line for one in sights for line in one.not_looked),
        tuple(line for one in sights for line in one.failures),
        tuple(name for one in sights for name in one.aged),
    )
