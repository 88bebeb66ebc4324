"""Compare the facts held good with those found, and the found ones with the policy's own pins.

Always holds: one difference a fact, whatever it differs from. The order of the input never matters, and facts
compared with themselves give nothing. A thing that is absent on both sides is no difference; one that could not be
read is `unreadable`, never equal. A `grow` set is compared by its locked entries alone. Facts of an environment that
is gone, or of which nothing could be read, fold into the one difference about that environment; what a half-done
removal left, into that about its package.
Never: reads the machine, a clock or the policy's severities, or guesses a cause that no requirement states.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from lockd.facts import ABSENT, LAUNCH_KINDS, Fact, Facts, Unknown, Value, set_digest, shown
from lockd.findings import Against, Breach, ChangeKind, Difference, FileChanges
from lockd.plain import replace

Manifest = Mapping[str, str]

EXAMPLES = 5  # names of files that a difference carries
_METADATA = (".dist-info/", ".egg-info/", "/__pycache__/")
_FOLDER = frozenset(("present", "digest", "entries", "files", "folders", "bytes"))
_LOOKS = {"package": frozenset(("content", "sources")), "tree": _FOLDER, "cache": _FOLDER}  # there by the rule's choice
_EXECUTE = "+x"  # at the end of the word for a file that may be executed
_WHEEL = "wheel "  # an origin that is a local wheel: by its hash (`sha256:…`), or by name where none was noted
_INSTALLED = ("version", "record", "tag", "origin", "build", "channel")  # what moves when a package is installed anew


def compare(expected: Facts | None, found: Facts, breaches: Iterable[Breach] = ()) -> tuple[Difference, ...]:
    """What differs between the lock (None: none yet) and the machine, and where the policy's own pins are broken."""
    pins = _by_fact(breaches)
    locked: Mapping[str, Fact | Unknown] = expected if expected is not None else {}
    # 1. each fact by itself; without a lock only what could not be read and what breaks a pin
    differences = {}
    for name in sorted({*locked, *found, *pins}):
        difference = _differ(name, locked.get(name), found.get(name), tuple(pins.get(name, ())), expected is not None)
        if difference is not None:
            differences[name] = difference
    # 2. what an absent or unreadable environment takes with it
    differences = _fold(differences, {_environment(name) for name, fact in found.items() if not _is_absent(fact)})
    differences = _with_leftovers(differences)
    # 3. what brought what
    causes = _causes(differences)
    return tuple(replace(one, because=causes.get(name)) for name, one in differences.items())


def restrict(found: Fact, locked: Fact | Unknown | None) -> Fact:
    """A `grow` set cut down to the entries that the lock knows, an equal package with the lock's word for the archive
    that it came from; any other fact as it is."""
    if not isinstance(locked, Fact):
        return found
    if found.kind == "package" and _is_same_archive(found.attributes, locked.attributes):
        origin = {"origin": locked.attributes["origin"]} if "origin" in locked.attributes else {}
        rest = {name: value for name, value in found.attributes.items() if name != "origin"}
        return replace(found, attributes={**rest, **origin})
    if found.tokens is None or locked.tokens is None or found.tokens == locked.tokens:
        return found
    kept = found.tokens & locked.tokens
    attributes: dict[str, Value] = {**found.attributes, "entries": len(kept), "digest": set_digest(kept)}
    return replace(found, attributes=attributes, tokens=kept)


def _is_same_archive(found: Mapping[str, Value], locked: Mapping[str, Value]) -> bool:
    """Was one wheel installed twice, of which at least one installer noted no hash (an index, uv from a file)?

    RECORD and all else that is compared have to be equal. Two hashes that differ are two archives, and any origin that
    is no local wheel is another source.
    """
    if found.get("origin") == locked.get("origin") or not found.get("record"):
        return False
    origins = [str(attributes.get("origin", _WHEEL)) for attributes in (found, locked)]
    if not all(text.startswith(_WHEEL) and ", " not in text for text in origins) or all(
        ":" in text for text in origins
    ):
        return False
    names = {*found, *locked} - {"origin"}
    return all(_same(found.get(name), locked.get(name)) for name in names)


def incomparable(one: Difference) -> bool:
    """Whether nothing but the way of looking differs: the lock holds the thing as another rule had it looked at.

    Its shape tells: contents or none of a package, sizes or contents of a tree, entries or mere presence of a cache.
    """
    before, after = one.expected, one.found
    if before is None or not isinstance(after, Fact) or before.absent or after.absent or one.breaches:
        return False
    looks = _LOOKS.get(after.kind, frozenset())
    return one.attributes.keys() <= looks and _shape(before, looks) != _shape(after, looks)


def _shape(fact: Fact, looks: frozenset[str]) -> tuple[object, ...]:
    read, files = fact.told.get("read"), fact.attributes.get("files")
    return fact.attributes.keys() & looks, read == 0, read == files


def relaxed(locked: Fact, found: Fact | Unknown | None) -> Fact:
    """What is left of a locked fact where the rule asks less than it did: a folder's presence, no contents."""
    if not isinstance(found, Fact) or locked.absent or found.absent:
        return locked
    if "present" in found.attributes and "digest" in locked.attributes:
        kept = {name: value for name, value in locked.attributes.items() if name not in _LOOKS[locked.kind]}
        return replace(locked, attributes={"present": True, **kept}, tokens=None)
    if locked.kind == "package" and "content" in locked.attributes and "content" not in found.attributes:
        kept = {name: value for name, value in locked.attributes.items() if name not in _LOOKS["package"]}
        return replace(locked, attributes=kept)
    return locked


def restricted(found: Facts, locked: Facts | None) -> list[Fact | Unknown]:
    """Every found fact, grow sets restricted to the lock: what the environment id is made of."""
    known: Mapping[str, Fact | Unknown] = locked or {}
    return [restrict(fact, known.get(name)) if isinstance(fact, Fact) else fact for name, fact in found.items()]


def file_changes(old: Manifest, new: Manifest, *, grow: bool = False) -> FileChanges:
    """How many files changed, came and went between two manifests; under `grow` what came does not count."""
    changed = [path for path, word in new.items() if path in old and old[path] != word]
    added = [] if grow else [path for path in new if path not in old]
    missing = [path for path in old if path not in new]
    gone = [path for path in changed if new[path] == "missing"]  # listed by its package, but not there
    changed = [path for path in changed if new[path] != "missing"]
    telling = sorted([*changed, *added, *missing, *gone], key=_telling)[:EXAMPLES]
    links = tuple(shown(_redirected(old[path], new[path])) for path in telling if _are_links(path, old, new))
    bits = [(old[path], new[path]) for path in changed if not old[path].startswith("-> ")]
    lost = sum(was == f"{now}{_EXECUTE}" for was, now in bits)
    gained = sum(now == f"{was}{_EXECUTE}" for was, now in bits)
    names = tuple(map(shown, telling))
    return FileChanges(len(changed), len(added), len(missing) + len(gone), names, links, lost, gained)


def _are_links(path: str, old: Manifest, new: Manifest) -> bool:
    return old.get(path, "").startswith("-> ") and new.get(path, "").startswith("-> ")


def _redirected(old: str, new: str) -> str:
    return f"leads to {new.removeprefix('-> ')}, not {old.removeprefix('-> ')}"


def _telling(path: str) -> tuple[bool, bool, bool, int, str]:
    """Version files first, then sources, shallow ones first; a package's metadata last."""
    metadata = any(mark in path for mark in _METADATA)
    return metadata, not path.endswith("/version.py"), not path.endswith(".py"), path.count("/"), path


def _by_fact(breaches: Iterable[Breach]) -> dict[str, list[Breach]]:
    pins: dict[str, list[Breach]] = {}
    for breach in sorted(breaches, key=lambda breach: (breach.fact, breach.key, breach.attribute, breach.text)):
        pins.setdefault(breach.fact, []).append(breach)
    return pins


def _differ(
    name: str, locked: Fact | Unknown | None, found: Fact | Unknown | None, pins: tuple[Breach, ...], has_lock: bool
) -> Difference | None:
    expected = locked if isinstance(locked, Fact) else None
    if isinstance(found, Unknown):
        against: tuple[Against, ...] = ("lock",) if expected else ("policy",)
        return Difference(name, "unreadable", expected, found, against, breaches=pins)
    if any(pin.forbidden for pin in pins):
        return Difference(name, "forbidden", expected, found, ("policy",), breaches=pins)
    attributes = _attributes(expected, restrict(found, expected) if found else None) if has_lock else {}
    if not attributes and not pins:
        return None
    sides: tuple[Against, ...] = (*(("lock",) if attributes else ()), *(("policy",) if pins else ()))
    change = _change(expected, found) if attributes else _broken(found)
    return Difference(name, change, expected, found, sides, attributes, pins)


def _present(fact: Fact | None) -> Mapping[str, Value] | None:
    return None if fact is None or fact.absent else fact.attributes


def _attributes(locked: Fact | None, found: Fact | None) -> dict[str, tuple[Value | None, Value | None]]:
    """The attributes that differ; for a fact without any that came or went, `absent`."""
    before, after = _present(locked), _present(found)
    if before is None and after is None:
        # a rule that the lock has never seen, over something that is not there: nobody accepted that
        unseen = locked is None and found is not None and found.kind not in LAUNCH_KINDS
        return {"absent": (None, True)} if unseen else {}
    old, new = before if before is not None else ABSENT, after if after is not None else ABSENT
    names = sorted({*old, *new})
    moved = {name: (old.get(name), new.get(name)) for name in names if not _same(old.get(name), new.get(name))}
    if len(moved) > 1:
        moved.pop("absent", None)  # that it came or went is said by `change`
    return moved


def _same(old: Value | None, new: Value | None) -> bool:
    return type(old) is type(new) and old == new  # True and 1 are equal in Python, but not one value


def _change(locked: Fact | None, found: Fact | None) -> ChangeKind:
    if _present(found) is None:
        return "missing"
    return "added" if _present(locked) is None else "changed"


def _broken(found: Fact | None) -> ChangeKind:
    """The word for a fact that only breaks a pin."""
    return "missing" if _present(found) is None else "changed"


# -- folding -----------------------------------------------------------------------------------------------------------


def _is_absent(fact: Fact | Unknown) -> bool:
    return fact.kind == "unowned" or (isinstance(fact, Fact) and fact.absent)


def _fold(differences: dict[str, Difference], filled: set[str | None]) -> dict[str, Difference]:
    """What belongs to an environment that is gone or unreadable folds into the finding about the environment.

    filled: the environments that hold a package; one that changed and holds none any more is as good as gone. One whose
    interpreter alone could not be read (a plain user, root's Python) hides no package that was seen.
    """
    gone = {
        one.name.partition(":")[2]
        for one in differences.values()
        if one.name.startswith("python:") and (one.change == "missing" or _is_hollow(one, filled))
    }
    if not gone:
        return differences
    kept = {name: one for name, one in differences.items() if _environment(name) not in gone}
    for environment in gone:
        folded = tuple(
            pin for name, one in differences.items() if _environment(name) == environment for pin in one.breaches
        )
        whole = kept[f"python:{environment}"]
        if folded:  # a pin inside still is broken, or nobody could tell
            sides: tuple[Against, ...] = tuple(sorted({*whole.against, "policy"}))
            kept[whole.name] = replace(whole, breaches=(*whole.breaches, *folded), against=sides)
    return kept


def _is_hollow(one: Difference, filled: set[str | None]) -> bool:
    return (one.change == "unreadable" or "state" in one.attributes) and one.name[len("python:") :] not in filled


def _environment(name: str) -> str | None:
    """The environment that a package or its unowned files belong to; None for any other fact."""
    kind, _, subject = name.partition(":")
    if kind == "package":
        return subject.rpartition("/")[0]
    return subject if kind == "unowned" else None


# -- causes ------------------------------------------------------------------------------------------------------------


def _causes(differences: Mapping[str, Difference]) -> dict[str, str]:
    """Package → the package that brought it, whose own requirement for it came, went or changed along with it.

    Chains end at their root. A pin that is broken is a cause of its own. In a ring the first name is the root.
    """
    installed = {name: one for name, one in differences.items() if name.startswith("package:") and _reinstalled(one)}
    brought: dict[str, set[str]] = {}  # parent → the packages that its changed requirements name
    for parent, one in installed.items():
        targets = {f"package:{_environment(parent)}/{name}" for name in _moved_requirements(one)}
        brought[parent] = {
            child for child in targets if child in installed and child != parent and _may_be_brought(installed[child])
        }
    children = {child for targets in brought.values() for child in targets}
    causes: dict[str, str] = {}
    roots = [name for name in sorted(installed) if name not in children]
    seen = _spread(roots, brought, causes, set())
    for name in sorted(children):
        if name not in seen and name in _reached(name, brought):
            seen = _spread([name], brought, causes, seen)
    return causes


def _spread(roots: list[str], brought: Mapping[str, set[str]], causes: dict[str, str], seen: set[str]) -> set[str]:
    """Breadth first from all roots at once: the nearest root is the cause, ties go to the first name."""
    root_of = {root: root for root in roots}
    level = roots
    while level:
        following = []
        for parent in level:
            for child in sorted(brought[parent] - root_of.keys() - seen):
                causes[child] = root_of[child] = root_of[parent]
                following.append(child)
        level = following
    return seen | root_of.keys()


def _reached(start: str, brought: Mapping[str, set[str]]) -> set[str]:
    """Every package on a way from `start`; itself only where the way comes back."""
    reached: set[str] = set()
    level = {start}
    while level:
        level = set().union(*(brought[name] for name in level)) - reached
        reached |= level
    return reached


def _reinstalled(one: Difference) -> bool:
    """A package that an installer touched; one whose files were edited by hand brings nothing and was not brought."""
    return one.change in ("added", "missing", "forbidden") or any(name in one.attributes for name in _INSTALLED)


def _may_be_brought(one: Difference) -> bool:
    return not one.breaches


def _moved_requirements(one: Difference) -> set[str]:
    before = _requirements(one.expected)
    after = _requirements(one.found if isinstance(one.found, Fact) else None)
    return {name for name in {*before, *after} if before.get(name) != after.get(name)}


def _requirements(fact: Fact | None) -> dict[str, tuple[str, ...]]:
    """Normalised name → the requirements of that name, as the package states them."""
    listed = fact.told.get("requires") if fact is not None else None
    required: dict[str, tuple[str, ...]] = {}
    for text in sorted(listed) if isinstance(listed, tuple) else ():
        name = _name(text)
        required[name] = (*required.get(name, ()), text)
    return required


def _name(requirement: str) -> str:
    """The PEP 503 name at the start of a requirement."""
    end = next(
        (at for at, character in enumerate(requirement) if not (character.isalnum() or character in "-_.")),
        len(requirement),
    )
    return "-".join(part for part in requirement[:end].lower().replace("_", "-").replace(".", "-").split("-") if part)


def _with_leftovers(differences: dict[str, Difference]) -> dict[str, Difference]:
    """`unowned:ENV` folds into the package that is gone, where all that is new there is what its removal left."""
    kept = dict(differences)
    for name, one in differences.items():
        if not name.startswith("unowned:") or not isinstance(one.found, Fact):
            continue
        left = one.found.told.get("leftovers")
        before = one.expected.attributes.get("files") if one.expected else 0
        new = _number(one.found.attributes.get("files")) - _number(before)
        if not isinstance(left, tuple) or new != _number(one.found.told.get("leftover_files")):
            continue
        of = f"package:{name[8:]}/"
        gone = [other for other, two in differences.items() if other.startswith(of) and two.change == "missing"]
        cause = next((other for other in gone if _left_by(other[len(of) :], left)), None)
        if cause is not None:
            kept[cause] = replace(kept[cause], left=left)
            del kept[name]
    return kept


def _left_by(package: str, names: tuple[str, ...]) -> bool:
    from lockd.probes.python.names import leftover_of

    spelled = frozenset((package, package.replace("-", "_")))
    stems = (name.rpartition("-")[0] if name.endswith("-info") else name for name in names)
    return any(leftover_of(stem.lower(), spelled) for stem in stems)


def _number(value: Value | None) -> int:
    return value if isinstance(value, int) else 0
