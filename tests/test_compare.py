"""compare: what is a difference, what is none, what folds, and what brought what."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from lockd.compare import compare, file_changes, restrict, restricted
from lockd.facts import ABSENT, Fact, Facts, Unknown, set_digest, token
from lockd.findings import Breach, Difference

VALUES = st.one_of(
    st.text(max_size=8), st.integers(), st.booleans(), st.lists(st.text(max_size=4), max_size=3).map(tuple)
)
ATTRIBUTES = st.dictionaries(st.sampled_from(["version", "digest", "record", "cuda"]), VALUES, max_size=4)
NAMES = [("file", "/a"), ("file", "/b"), ("cache", "/c"), ("package", "train/torch"), ("python", "train"), ("env", "X")]


@st.composite
def facts(draw: st.DrawFn) -> Facts:
    drawn: list[Fact | Unknown] = []
    for kind, subject in draw(st.lists(st.sampled_from(NAMES), unique=True)):
        drawn.append(
            draw(
                st.one_of(
                    st.builds(Fact, st.just(kind), st.just(subject), ATTRIBUTES),
                    st.just(Fact(kind, subject, ABSENT)),
                    st.just(Unknown(kind, subject, "mode 000")),
                )
            )
        )
    return Facts(drawn)


def known(given_facts: Facts) -> Facts:
    return Facts(given_facts.known())


def package(name: str, version: str, *requires: str, **more: Any) -> Fact:
    return Fact("package", f"train/{name}", {"version": version, **more}, {"requires": requires})


def by_name(differences: tuple[Difference, ...]) -> dict[str, Difference]:
    return {one.name: one for one in differences}


@given(facts())
def test_facts_compared_with_themselves_give_nothing(some: Facts) -> None:
    assert compare(known(some), known(some)) == ()


@given(facts(), facts(), st.randoms())
def test_order_never_matters(a: Facts, b: Facts, random: Any) -> None:
    shuffled = [list(a.values()), list(b.values())]
    for listed in shuffled:
        random.shuffle(listed)
    assert compare(known(a), b) == compare(known(Facts(shuffled[0])), Facts(shuffled[1]))


@given(facts(), facts())
def test_one_difference_a_fact_and_each_says_why(a: Facts, b: Facts) -> None:
    differences = compare(known(a), b)
    assert len(by_name(differences)) == len(differences)
    assert all(one.attributes or one.change == "unreadable" for one in differences)


@given(facts(), facts())
def test_what_differs_one_way_differs_the_other_way(a: Facts, b: Facts) -> None:
    one, other = (Facts(fact for fact in side.known() if not fact.absent) for side in (a, b))  # absences have their own
    there = {found.name for found in compare(one, other) if not found.name.startswith("package:")}
    back = {found.name for found in compare(other, one) if not found.name.startswith("package:")}
    assert there == back


@given(facts())
def test_what_could_not_be_read_is_never_equal(some: Facts) -> None:
    unreadable = {one.name for one in compare(known(some), some) if one.change == "unreadable"}
    folded = {name for name in unreadable if name.startswith("package:")}
    told = {fact.name for fact in some.unknown()}
    if any(one.change in ("missing", "unreadable") for one in compare(known(some), some) if one.name == "python:train"):
        told = {name for name in told if not name.startswith("package:")} | folded
    assert unreadable == told


def test_an_interpreter_that_cannot_be_read_hides_no_package_that_was() -> None:
    """A plain user under root's Python: what was seen of the packages is told, and blocks."""
    locked = Facts([Fact("python", "train", {"binary": "sha256:1"}), package("torch", "1"), package("gone", "1")])
    closed = Unknown("python", "train", "/root/bin/python: permission denied")
    seen = compare(locked, Facts([closed, package("torch", "2")]))
    assert {one.name: one.change for one in seen} == {
        "python:train": "unreadable",
        "package:train/torch": "changed",
        "package:train/gone": "missing",
    }
    assert [one.name for one in compare(locked, Facts([closed]))] == ["python:train"]  # nothing was seen at all


def test_absence_is_a_fact() -> None:
    there, gone = Fact("file", "/a", {"digest": "sha256:1"}), Fact("file", "/a", ABSENT)
    assert [one.change for one in compare(Facts([there]), Facts([gone]))] == ["missing"]
    assert [one.change for one in compare(Facts([there]), Facts())] == ["missing"]
    assert [one.change for one in compare(Facts([gone]), Facts([there]))] == ["added"]
    assert compare(Facts([gone]), Facts([gone])) == compare(Facts([gone]), Facts()) == ()


def test_an_absence_that_nobody_accepted_is_told() -> None:
    """A rule added after the accept, over something that is not there: no lock ever held that good."""
    (one,) = compare(Facts(), Facts([Fact("python", "train", ABSENT)]))
    assert (one.change, one.against, one.attributes) == ("missing", ("lock",), {"absent": (None, True)})
    assert compare(None, Facts([Fact("python", "train", ABSENT)])) == ()
    assert compare(Facts(), Facts([Fact("env", "NCCL_DEBUG", ABSENT)])) == ()  # an unset variable is as it was


def test_a_fact_without_attributes_that_went_is_missing() -> None:
    (one,) = compare(Facts([Fact("env", "X", {})]), Facts())
    assert (one.change, one.attributes) == ("missing", {"absent": (None, True)})


def test_true_is_not_one() -> None:
    (one,) = compare(Facts([Fact("file", "/a", {"executable": True})]), Facts([Fact("file", "/a", {"executable": 1})]))
    assert one.attributes == {"executable": (True, 1)}


def test_told_is_no_difference() -> None:
    old, new = Fact("file", "/a", {"d": "1"}, {"mtime": "x"}), Fact("file", "/a", {"d": "1"}, {"mtime": "y"})
    assert compare(Facts([old]), Facts([new])) == ()


# -- grow sets ---------------------------------------------------------------------------------------------------------


def grown(*paths: str) -> Fact:
    tokens = frozenset(token(path, "content") for path in paths)
    return Fact("cache", "/c", {"entries": len(tokens), "digest": set_digest(tokens)}, tokens=tokens)


def test_new_entries_of_a_grow_set_are_no_difference_and_do_not_move_the_id() -> None:
    locked, found = Facts([grown("a", "b")]), Facts([grown("a", "b", "c")])
    assert compare(locked, found) == ()
    assert restricted(found, locked) == list(locked.values())
    assert restricted(found, None) == list(found.values())


def test_a_locked_entry_of_a_grow_set_that_is_gone_is_a_difference() -> None:
    (one,) = compare(Facts([grown("a", "b")]), Facts([grown("a", "c")]))
    assert (one.change, one.attributes["entries"]) == ("changed", (2, 1))


@given(st.sets(st.text(max_size=3)), st.sets(st.text(max_size=3)))
def test_restricting_keeps_what_the_lock_knows_and_no_more(locked: set[str], found: set[str]) -> None:
    cut = restrict(grown(*found), grown(*locked))
    assert cut.attributes == grown(*(locked & found)).attributes


# -- pins --------------------------------------------------------------------------------------------------------------


def test_a_fact_that_breaks_lock_and_pin_is_one_difference_against_both() -> None:
    pin = Breach("package:train/torch", "python[0].packages.torch", "pinned 1", "version", "1", "2")
    (one,) = compare(Facts([package("torch", "1")]), Facts([package("torch", "2")]), [pin])
    assert (one.change, one.against, one.breaches) == ("changed", ("lock", "policy"), (pin,))


def test_a_pin_alone_is_against_the_policy() -> None:
    pin = Breach("package:train/torch", "k", "pinned 1", "version", "1", "2")
    (one,) = compare(Facts([package("torch", "2")]), Facts([package("torch", "2")]), [pin])
    assert (one.change, one.against) == ("changed", ("policy",))
    (one,) = compare(Facts(), Facts(), [pin])
    assert (one.change, one.against) == ("missing", ("policy",))


def test_a_forbidden_package_is_one_difference_against_the_policy() -> None:
    pin = Breach("package:train/sglang", "python[0].forbid", "forbidden", forbidden=True)
    (one,) = compare(Facts(), Facts([package("sglang", "1")]), [pin])
    assert (one.change, one.against) == ("forbidden", ("policy",))


def test_without_a_lock_only_pins_and_the_unreadable_are_told() -> None:
    pin = Breach("file:/a", "file[0].digest", "digest", "digest", "md5:1", "md5:2")
    found = Facts([Fact("file", "/a", {"d": "1"}), Fact("file", "/b", {"d": "1"}), Unknown("file", "/c", "mode 000")])
    assert [(one.name, one.change) for one in compare(None, found, [pin])] == [
        ("file:/a", "changed"),
        ("file:/c", "unreadable"),
    ]


# -- folding -----------------------------------------------------------------------------------------------------------


def test_a_lost_environment_is_one_difference() -> None:
    python = Fact("python", "train", {"version": "3.12"})
    locked = Facts([python, package("torch", "1"), package("triton", "1"), Fact("unowned", "train", {"files": 2})])
    for state in (Fact("python", "train", ABSENT), Unknown("python", "train", "permission denied")):
        assert [one.name for one in compare(locked, Facts([state]))] == ["python:train"]


def test_another_environment_does_not_fold() -> None:
    locked = Facts([Fact("python", "train", {"v": "1"}), Fact("package", "train2/torch", {"version": "1"})])
    names = [one.name for one in compare(locked, Facts([Fact("python", "train", ABSENT)]))]
    assert names == ["package:train2/torch", "python:train"]


def test_a_pin_inside_a_lost_environment_stays_broken() -> None:
    pin = Breach("package:train/torch", "k", "torch is missing, pinned 1")
    (one,) = compare(Facts([Fact("python", "train", {"v": "1"})]), Facts([Fact("python", "train", ABSENT)]), [pin])
    assert (one.name, one.breaches, one.against) == ("python:train", (pin,), ("lock", "policy"))
    (one,) = compare(Facts([Fact("python", "train", ABSENT)]), Facts([Fact("python", "train", ABSENT)]), [pin])
    assert (one.name, one.breaches) == ("package:train/torch", (pin,))


# -- causes ------------------------------------------------------------------------------------------------------------


def causes(locked: list[Fact], found: list[Fact], pins: list[Breach] | None = None) -> dict[str, str | None]:
    differences = compare(Facts(locked), Facts(found), pins or [])
    return {one.name.rpartition("/")[2]: one.because and one.because.rpartition("/")[2] for one in differences}


def test_what_the_new_build_requires_and_the_old_one_required_is_because_of_it() -> None:
    locked = [package("torch", "2.11.0+cu128", "nvidia-nccl-cu12==2.27.5"), package("nvidia-nccl-cu12", "2.27.5")]
    found = [package("torch", "2.11.0+cu130", "nvidia_nccl.cu13==2.27.5"), package("nvidia-nccl-cu13", "2.27.5")]
    assert causes(locked, found) == {"torch": None, "nvidia-nccl-cu12": "torch", "nvidia-nccl-cu13": "torch"}


def test_a_chain_ends_at_its_root() -> None:
    locked = [package("torch", "1", "triton==1"), package("triton", "1", "llvm==1"), package("llvm", "1")]
    found = [package("torch", "2", "triton==2"), package("triton", "2", "llvm==2"), package("llvm", "2")]
    assert causes(locked, found) == {"torch": None, "triton": "torch", "llvm": "torch"}


def test_a_ring_has_one_root_and_no_circle() -> None:
    locked = [package("a", "1", "b==1"), package("b", "1", "a==1"), package("aa", "1")]
    found = [package("a", "2", "b==2"), package("b", "2", "a==2", "aa==2"), package("aa", "2")]
    assert causes(locked, found) == {"a": None, "b": "a", "aa": "a"}


def test_a_hand_edit_brings_nothing_and_was_not_brought() -> None:
    locked = [package("torch", "1", "triton==1", content="x"), package("triton", "1", content="x")]
    found = [package("torch", "1", "triton==1", content="y"), package("triton", "1", content="y")]
    assert causes(locked, found) == {"torch": None, "triton": None}


def test_a_requirement_that_did_not_move_is_no_cause() -> None:
    locked = [package("pandas", "1", "numpy>=1"), package("numpy", "1")]
    found = [package("pandas", "2", "numpy>=1"), package("numpy", "2")]
    assert causes(locked, found) == {"pandas": None, "numpy": None}


def test_a_broken_pin_is_a_cause_of_its_own() -> None:
    pin = Breach("package:train/torch", "k", "pinned 1", "version", "1", "2")
    locked, found = [package("torch", "1")], [package("sglang", "1", "torch==2"), package("torch", "2")]
    assert causes(locked, found, [pin]) == {"sglang": None, "torch": None}
    assert causes(locked, found) == {"sglang": None, "torch": "sglang"}


# -- files -------------------------------------------------------------------------------------------------------------


def test_files_are_counted_and_the_telling_ones_are_named() -> None:
    old = {
        "torch/a.py": "1",
        "torch/version.py": "1",
        "torch/b.so": "1",
        "torch-1.dist-info/METADATA": "1",
        "gone": "1",
    }
    new = {"torch/a.py": "2", "torch/version.py": "2", "torch/b.so": "2", "torch-1.dist-info/METADATA": "2", "new": "1"}
    changes = file_changes(old, new)
    assert (changes.changed, changes.added, changes.missing) == (4, 1, 1)
    assert changes.examples == ("torch/version.py", "torch/a.py", "gone", "new", "torch/b.so")


def test_a_listed_file_that_is_gone_counts_as_missing_and_growth_does_not_count() -> None:
    assert file_changes({"a": "1"}, {"a": "missing"}).missing == 1
    assert file_changes({"a": "1"}, {"a": "1", "b": "1"}, grow=True).total == 0


def test_names_of_files_are_shown_escaped() -> None:
    assert file_changes({}, {"a\nb\udcff": "1"}).examples == ("a\\nb\\xff",)
