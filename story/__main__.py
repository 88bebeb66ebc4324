"""`make story`: the story acted out before your eyes, each command of lockd with what it answers.

Ends with 1 when anything is not as the story has it, with 77 where there can be no container.
"""

from __future__ import annotations

import sys
from subprocess import CompletedProcess

import pytest

from story.acts import ACTS, LAST
from story.box import furnish
from story.telling import judged_act, judged_end, play, way_back
from tests import container


def main() -> int:
    """1. the good day, 2. twelve acts, 3. the question, 4. the way back."""
    if sys.version_info[:2] != (3, 11):
        print("the container's Python is 3.11, and takes lockd's compiled parts from this one: run it with 3.11")
        return 77
    try:
        made = container.make("privileged")
    except pytest.skip.Exception as reason:
        print(reason)
        return 77
    try:
        return _tell(made)
    finally:
        made.destroy()


def _tell(made: container.Container) -> int:
    _say("The good day: everything accepted, the daemon running, run 1 with its number.")
    box = furnish(made, _show)
    box.launch()
    box.lockd("note", "run:1", "good=true")
    wrong: list[str] = []
    for act in ACTS:
        _say(f"Act {act.number}: {act.title}.")
        wrong += judged_act(act, play(box, act))
    _say("Somebody launches all the same. What changed since it was fast?")
    wrong += judged_end(box, LAST)
    _say("The way back.")
    wrong += way_back(box)
    print("\nAll was as the story has it." if not wrong else "\nNot as the story has it:\n  " + "\n  ".join(wrong))
    return 1 if wrong else 0


def _show(words: str, done: CompletedProcess[str]) -> None:
    lines = (done.stdout + done.stderr).splitlines()
    kept = lines if len(lines) <= 70 else [*lines[:30], f"… {len(lines) - 50} lines …", *lines[-20:]]
    print(f"\n$ lockd {words}", *kept, f"(exit {done.returncode})", sep="\n", flush=True)


def _say(text: str) -> None:
    print(f"\n\033[1m{text}\033[0m" if sys.stdout.isatty() else f"\n{text}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
