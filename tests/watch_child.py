"""A watcher in a process of its own that speaks JSON lines: started by `watching.Remote`, also in containers.

    python -m tests.watch_child best|inotify COOKIES PATH…

First line out: the states. Then for each word in (`sync`, `retry`): {"synced", "hints" since the last, "states"}.
"""

from __future__ import annotations

import json
import sys
import threading
from typing import Any

from lockd.watch.hints import Hint
from lockd.watch.watcher import Watcher


def states(watcher: Watcher) -> dict[str, list[str]]:
    return {path: [state.mode, state.why] for path, state in watcher.state().items()}


def _serve(use: Any, cookies: str, paths: list[str]) -> None:
    got: list[dict[str, Any]] = []
    lock = threading.Lock()

    def take(hint: Hint) -> None:
        with lock:
            got.append({"path": hint.path, "kind": hint.kind, "detail": hint.detail, "who": hint.who.as_dict()})

    def say(value: Any) -> None:
        print(json.dumps(value), flush=True)

    with Watcher(paths, on_hint=take, cookie_folder=cookies, use=use) as watcher:
        say(states(watcher))
        for word in sys.stdin:
            if word.strip() == "retry":
                watcher.retry()
            synced = watcher.sync(30)
            with lock:
                hints, got[:] = list(got), []
            say({"synced": synced, "hints": hints, "states": states(watcher)})


if __name__ == "__main__":
    _serve(sys.argv[1], sys.argv[2], sys.argv[3:])
