"""The memo: facts of a stamp come back as they were, or are made anew."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from lockd import memo as memo_module
from lockd.facts import Fact, Unknown
from lockd.memo import StateMemo
from lockd.probes import Manifest, Seen

FACTS = (
    Fact("tree", "/a", {"files": 3, "absent": True, "names": ("x", "y")}, {"note": ""}, frozenset({"t1", "t2"})),
    Fact("file", "/b", {"empty": (), "digest": "sha256:1"}),
    Fact("cache", "/c", {}, {}, frozenset()),
)
MANIFESTS = {"tree:/a": {"bad\udcff\n": "f abc", "y": "l x"}, "file:/b": {}}


class Computer:
    """Counts how often the facts had to be made."""

    def __init__(self, seen: Seen) -> None:
        self.seen, self.count = seen, 0

    def __call__(self) -> Seen:
        self.count += 1
        return self.seen


@pytest.fixture
def compute() -> Computer:
    return Computer(Seen(FACTS, lambda: MANIFESTS))


def types(seen: Seen) -> object:
    return [
        (fact.name, [(key, type(value), value) for key, value in fact.attributes.items()], fact.told, fact.tokens)
        for fact in seen.facts
        if isinstance(fact, Fact)
    ]


def test_facts_and_manifests_come_back_as_they_were(tmp_path: Path, compute: Computer) -> None:
    first = StateMemo(str(tmp_path / "memo")).recall(("a", 1), "stamp", compute)
    again = StateMemo(str(tmp_path / "memo")).recall(("a", 1), "stamp", compute)
    assert compute.count == 1
    assert again.facts == first.facts == FACTS and types(again) == types(first)
    assert again.manifests() == MANIFESTS
    assert compute.count == 1


@pytest.mark.parametrize(("key", "stamp"), [(("a", 2), "stamp"), (("a", 1), "other")])
def test_another_key_or_stamp_computes(tmp_path: Path, compute: Computer, key: tuple[object, ...], stamp: str) -> None:
    memo = StateMemo(str(tmp_path))
    memo.recall(("a", 1), "stamp", compute)
    memo.recall(key, stamp, compute)
    assert compute.count == 2


def test_another_version_of_lockd_computes(tmp_path: Path, compute: Computer, monkeypatch: pytest.MonkeyPatch) -> None:
    StateMemo(str(tmp_path)).recall(("a",), "stamp", compute)
    monkeypatch.setattr(memo_module, "__version__", "0.other")
    StateMemo(str(tmp_path)).recall(("a",), "stamp", compute)
    assert compute.count == 2


@pytest.mark.parametrize("suffix", [".facts", ".manifests"])
@pytest.mark.parametrize("harm", ["cut", "gone"])
def test_a_harmed_file_computes(tmp_path: Path, compute: Computer, suffix: str, harm: str) -> None:
    StateMemo(str(tmp_path)).recall(("a",), "stamp", compute)
    (file,) = [path for path in tmp_path.iterdir() if path.suffix == suffix]
    if harm == "cut":
        file.write_bytes(file.read_bytes()[:-5])
    else:
        file.unlink()
    again = StateMemo(str(tmp_path)).recall(("a",), "stamp", compute)
    assert again.facts == FACTS and again.manifests() == MANIFESTS
    assert compute.count == 2


def test_manifests_of_another_stamp_are_not_taken(tmp_path: Path, compute: Computer) -> None:
    memo = StateMemo(str(tmp_path))
    kept = memo.recall(("a",), "stamp", compute)
    kept = memo.recall(("a",), "stamp", compute)
    newer: Mapping[str, Manifest] = {"tree:/a": {"new": "f"}}
    memo.recall(("a",), "later", Computer(Seen(FACTS, lambda: newer)))
    assert kept.manifests() == MANIFESTS


def test_what_could_not_be_read_is_tried_again(tmp_path: Path) -> None:
    compute = Computer(Seen((*FACTS, Unknown("file", "/x", "permission denied"))))
    for _ in range(2):
        StateMemo(str(tmp_path)).recall(("a",), "stamp", compute)
    assert compute.count == 2


def test_a_memo_that_cannot_be_written_still_answers(tmp_path: Path, compute: Computer) -> None:
    (tmp_path / "memo").write_text("a file where the folder should be")
    assert StateMemo(str(tmp_path / "memo")).recall(("a",), "stamp", compute).facts == FACTS
