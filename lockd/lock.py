"""The `.lock` file: the facts known to be good, one generation of them, as sorted TOML that is reviewed and committed.

Always holds: what is written reads back equal; the same facts give the same bytes below the header; one fact a line,
what is only told apart from it, so that a diff shows what changed and nothing else. `digest` covers every other byte,
so that a hand edit or a cut is known. Unknown facts are never in a lock.
Never: judges, or reads a lock that others may write.
"""

from __future__ import annotations

import hashlib
import os
import re
import stat
import sys
from collections.abc import Iterator, Mapping
from typing import Any

from lockd import atomic
from lockd.errors import LockError, LookError
from lockd.facts import Fact, Facts, Value
from lockd.plain import dataclass, replace

SCHEMA = 1
LIMIT = 64 << 20  # bytes of a lock that are read
ENTRIES = 100_000  # entries of one set that a lock holds; more stay in the store
LEFT_TO_STORE = "entries_in_store"  # told: the set was too large for the lock
HEADER = (
    "policy",
    "policy_digest",
    "generation",
    "accepted_at",
    "by",
    "why",
    "environment",
    "launch",
    "previous",
    "host",
)
SPELLED = {"launch": "launch_id", "host": "machine"}  # header words that would be kinds of fact, as the file has them
TABLES = ("told", "entries")  # tables that are no kind of fact
MEND = "put the accepted one back: `git checkout` it, or a copy of it"

_COMMENT = (
    "# The known-good state, written by `lockd accept`. Review it, commit it; a line edited by hand makes it invalid.\n"
)
_BARE = r"[A-Za-z0-9_-]+"
_SIXTEEN_HEX = r"[0-9a-f]{16}"
_DIGEST_LINE = rb'(?m)^digest = "(sha256:[0-9a-f]{64})"\n'


class BrokenLock(LockError):
    """Edited by hand or cut short: what it says can't be trusted, but a whole accept may replace it."""


@dataclass(frozen=True)
class Lock:
    """One generation.

    accepted_at: ISO UTC. previous: the digest of the lock before. digest: this one's, once it has bytes.
    """

    policy: str
    policy_digest: str
    generation: int
    accepted_at: str
    by: str
    why: str
    environment: str
    launch: str
    facts: Facts
    previous: str | None = None
    host: str | None = None
    schema: int = SCHEMA
    digest: str = ""

    def __eq__(self, other: object) -> bool:
        """Equal in all that a lock says; one that has no bytes yet has no digest."""
        names = (*HEADER, "schema", "facts")
        return isinstance(other, Lock) and all(getattr(self, name) == getattr(other, name) for name in names)


# -- reading


def read(path: str, *, policy: str | None = None, trust_unmapped: bool = False) -> Lock | None:
    """The lock at `path`; None where there is none. `policy`: the name that it must bear.

    LockError for one that can't be trusted, LookError for one that can't be read.
    """
    data = read_bytes(path, trust_unmapped=trust_unmapped)
    return None if data is None else of_policy(parse(data, path), policy, path)


def read_cached(
    path: str, cache_dir: str | None, *, policy: str | None = None, trust_unmapped: bool = False
) -> Lock | None:
    """The same, without parsing the TOML when `cache_dir` holds what these very bytes said before."""
    data = read_bytes(path, trust_unmapped=trust_unmapped)
    if data is None:
        return None
    if cache_dir is None:
        return of_policy(parse(data, path), policy, path)
    from lockd import lock_cache

    key = hashlib.sha256(data).hexdigest()
    lock = lock_cache.recall(cache_dir, key)
    if lock is None:
        lock = parse(data, path)
        lock_cache.keep(cache_dir, key, lock)
    return of_policy(lock, policy, path)


def read_bytes(path: str, *, trust_unmapped: bool = False) -> bytes | None:
    """The bytes of a lock that only its owner may have written. None: not there."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        if os.path.islink(path):
            raise LockError("is a link to nothing", where=path, hint="point it at the lock, or remove it") from None
        return None
    except OSError as error:
        if os.path.lexists(path) and not os.path.isfile(path):
            raise LockError("is not a regular file", where=path, hint="move it away") from None
        hint = "make it readable for this user, and run it again"
        raise LookError(f"could not be read: {error.strerror}", where=path, hint=hint) from None
    try:
        data = _regular(descriptor, path)
    finally:
        os.close(descriptor)
    _check_trust(path, trust_unmapped)
    return data


def _regular(descriptor: int, path: str) -> bytes:
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        raise LockError("is not a regular file", where=path, hint="move it away")
    with open(descriptor, "rb", closefd=False) as file:
        data = file.read(LIMIT + 1)
    if len(data) > LIMIT:
        raise LockError(f"is larger than {LIMIT >> 20} MiB, which no lock is", where=path, hint=MEND)
    return data


def _check_trust(path: str, trust_unmapped: bool) -> None:
    from lockd import trust

    trust.check(path, "lock", trust_unmapped=trust_unmapped)


def parse(data: bytes, where: str) -> Lock:
    """A lock from its bytes. LockError says what is wrong with them."""
    document = _document(data, where)
    schema = document.get("schema")
    if isinstance(schema, int) and schema > SCHEMA:
        raise LockError(
            f"has schema {schema}, this lockd knows {SCHEMA}",
            where=where,
            hint="use the lockd that wrote it, or a newer one",
        )
    digest = digest_of(data)
    if digest is None or document.get("digest") != digest:
        raise BrokenLock("was edited by hand or cut short: its digest does not fit", where=where, hint=MEND)
    try:
        header = {name: document[_spelled(name)] for name in HEADER if _spelled(name) in document}
        return Lock(**header, facts=Facts(_facts(document)), schema=SCHEMA, digest=digest)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise BrokenLock(f"was edited by hand or cut short: {error}", where=where, hint=MEND) from None


def digest_of(data: bytes) -> str | None:
    """`sha256:…` over all bytes but the digest line itself. None where there is not exactly one such line."""
    rest, lines = re.subn(_DIGEST_LINE, b"", data)
    return "sha256:" + hashlib.sha256(rest).hexdigest() if lines == 1 else None


def _document(data: bytes, where: str) -> dict[str, Any]:
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib
    try:
        return tomllib.loads(data.decode("utf-8"))
    except UnicodeDecodeError:
        raise BrokenLock("was edited by hand or cut short: it is not UTF-8", where=where, hint=MEND) from None
    except (ValueError, RecursionError) as error:  # ValueError: not TOML, or a number that Python does not hold
        raise BrokenLock(f"was edited by hand or cut short: it is not TOML ({error})", where=where, hint=MEND) from None


def of_policy(lock: Lock, policy: str | None, where: str) -> Lock:
    """The lock itself, if it bears the policy's name (None: any)."""
    if policy is not None and lock.policy != policy:
        hint = "the lock lies beside its policy under the same name; put each where it belongs"
        raise LockError(f"is the lock of policy {lock.policy!r}, not of {policy!r}", where=where, hint=hint)
    return lock


def _facts(document: Mapping[str, Any]) -> Iterator[Fact]:
    told, entries = dict(_rows(document.get("told", {}))), document.get("entries", {})
    tables = {name: table for name, table in document.items() if isinstance(table, dict) and name not in TABLES}
    for (kind, subject), attributes in _rows(tables):
        chunks = entries.get(f"{kind}:{subject}")
        yield Fact(
            kind,
            subject,
            attributes,
            told.get((kind, subject), {}),
            None if chunks is None else frozenset(_unchunked(chunks)),
        )


def _rows(tables: Mapping[str, Any]) -> Iterator[tuple[tuple[str, str], dict[str, Value]]]:
    """((kind, subject), values) of each fact line."""
    for kind, table in tables.items():
        for subject, values in table.items():
            if kind == "package":
                yield from (((kind, f"{subject}/{name}"), _values(inner)) for name, inner in values.items())
            else:
                yield (kind, subject), _values(values)


def _values(row: Mapping[str, Any]) -> dict[str, Value]:
    values = {name: tuple(value) if isinstance(value, list) else value for name, value in row.items()}
    odd = [name for name, value in values.items() if not isinstance(value, (str, int, tuple))]
    if odd:
        raise ValueError(f"{odd[0]} has a value of a type that no fact has")
    return values


def _unchunked(chunks: Mapping[str, str]) -> Iterator[str]:
    for chunk in chunks.values():
        if len(chunk) % 16:
            raise ValueError("an entry is cut")
        yield from (chunk[start : start + 16] for start in range(0, len(chunk), 16))


# -- writing


def write(path: str, lock: Lock) -> Lock:
    """Write the lock whole, or leave the old one. Returns it with its digest."""
    data = dumps(lock)
    atomic.write(path, data)
    return replace(lock, digest=digest_of(data) or "")


def dumps(lock: Lock) -> bytes:
    """The bytes of a lock. ValueError for what none can hold: unknown facts, odd values, odd kinds."""
    unknown = next(lock.facts.unknown(), None)
    if unknown is not None:
        raise ValueError(f"{unknown.name} is unknown and can't be known good")
    facts = [_bounded(fact) for fact in lock.facts.known()]
    rest = "\n".join((*_header(lock), *_tables(facts, "attributes"), *_tables(facts, "told"), *_entries(facts), ""))
    digest = hashlib.sha256((_COMMENT + rest).encode("utf-8")).hexdigest()
    return f'{_COMMENT}digest = "sha256:{digest}"\n{rest}'.encode()


def _bounded(fact: Fact) -> Fact:
    """A set with too many entries for a text file: the lock has its digest, the store its entries."""
    if fact.tokens is None or len(fact.tokens) <= ENTRIES:
        return fact
    return replace(fact, tokens=None, told={**fact.told, LEFT_TO_STORE: len(fact.tokens)})


def _header(lock: Lock) -> Iterator[str]:
    yield f"schema = {lock.schema}"
    for name in HEADER:
        value = getattr(lock, name)
        if value is not None:
            yield f"{_spelled(name)} = {_toml(value)}"


def _spelled(name: str) -> str:
    return SPELLED.get(name, name)


def _tables(facts: list[Fact], part: str) -> Iterator[str]:
    """One table a kind (packages: one an environment), one line a fact."""
    standing = None
    for fact in facts:
        values: Mapping[str, Value] = getattr(fact, part)
        if part == "told" and not values:
            continue
        table, name = _place(fact)
        if table != standing:
            yield f"\n[{'told.' if part == 'told' else ''}{table}]"
            standing = table
        yield f"{_key(name)} = {_inline(values)}"


def _place(fact: Fact) -> tuple[str, str]:
    if fact.kind in (*map(_spelled, HEADER), *TABLES, "schema", "digest"):
        raise ValueError(f"{fact.name}: a lock can't hold that kind of fact")
    if fact.kind != "package":
        return _key(fact.kind), fact.subject
    environment, slash, name = fact.subject.partition("/")
    if not slash:
        raise ValueError(f"{fact.name}: a package belongs to an environment")
    return f"package.{_key(environment)}", name


def _entries(facts: list[Fact]) -> Iterator[str]:
    """The tokens of each set, a line for each leading digits, so that one more entry changes one line."""
    for fact in facts:
        if fact.tokens is None:
            continue
        yield f"\n[entries.{_key(fact.name)}]"
        chunks: dict[str, list[str]] = {}
        width = _width(len(fact.tokens))
        for token in sorted(fact.tokens):
            if not re.fullmatch(_SIXTEEN_HEX, token):
                raise ValueError(f"{fact.name}: {token!r} is no token")
            chunks.setdefault(token[:width] or "all", []).append(token)
        yield from (f'"{name}" = "{"".join(chunk)}"' for name, chunk in chunks.items())


def _width(count: int) -> int:
    """Leading digits a line: about 2 to 32 entries on each."""
    return 0 if count <= 32 else 1 if count <= 512 else 2 if count <= 8192 else 3


def _inline(values: Mapping[str, Value]) -> str:
    return (
        "{ " + ", ".join(f"{_key(name)} = {_toml(values[name])}" for name in sorted(values)) + " }" if values else "{}"
    )


def _toml(value: Value) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value)
    if isinstance(value, str):
        return _string(value)
    if isinstance(value, tuple) and all(isinstance(item, str) for item in value):
        return "[" + ", ".join(map(_string, value)) + "]"
    raise ValueError(f"{value!r} is no value of a fact")


def _key(name: str) -> str:
    return name if re.fullmatch(_BARE, name) else _string(name)


def _string(text: str) -> str:
    if text.isascii() and text.isprintable() and '"' not in text and "\\" not in text:
        return f'"{text}"'
    return '"' + "".join(map(_escaped, text)) + '"'


def _escaped(character: str) -> str:
    if character in '"\\':
        return "\\" + character
    if character.isprintable() or character == " ":
        return character
    point = ord(character)
    if 0xD800 <= point <= 0xDFFF:
        raise ValueError("a name that is not UTF-8 was not escaped")
    return f"\\u{point:04x}" if point < 0x10000 else f"\\U{point:08x}"
