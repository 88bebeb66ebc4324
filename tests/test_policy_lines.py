"""Lines of keys: whatever a TOML document looks like, the keys found are those of the parser, each at its line."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lockd.toml_lines import KeyPath, dotted, key_lines

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

DOCUMENT = """# a comment = no key
schema = 1
"quoted.key" = 'a = b' # c = d
text = '''
[not.a.table]
x = 1
'''
basic = \"\"\"
y = 2 \\\"\"\" still
z = 3\"\"\"
a.b . "c d" = { e = [1, 2], 'f' = { g = "}" } }
many = [
  { h = 1 }, # ]
  [ "i", [] ],
]
[[python]]
name = "one"
  [python.packages]
  torch = { version = "]]" }
[[python]]
[python.packages.triton]
version = "3"
[[python.sub]]
[[python.sub]]
k = 1979-05-27T07:32:00Z
[ env ]
"\\u0041\\n" = ""
"""


def keys(value: Any, path: KeyPath = ()) -> Iterator[KeyPath]:
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in inner:
        yield (*path, key)
        yield from keys(item, (*path, key))


def test_every_key_of_a_crowded_document_is_found_at_its_line() -> None:
    lines = key_lines(DOCUMENT)
    assert set(lines) == set(keys(tomllib.loads(DOCUMENT)))
    assert lines["quoted.key",] == 3
    assert lines["a", "b", "c d", "f", "g"] == 11
    assert lines["many", 0, "h"] == 13
    assert lines["many", 1, 1] == 14
    assert lines["python", 0, "packages", "torch", "version"] == 19
    assert lines["python", 1, "packages", "triton", "version"] == 22
    assert lines["python", 1, "sub", 1, "k"] == 25
    assert lines["env", "A\n"] == 27


def test_a_key_path_reads_like_the_mistakes() -> None:
    assert dotted(("python", 0, "packages", "torch")) == "python[0].packages.torch"


NAMES = st.sampled_from(["a", "b", "c-d", "e.f", "g h", "ü", "", 'q"', "x\\y", "tab\t", "'"])
SCALARS = st.one_of(
    st.integers(-5, 5).map(str),
    st.sampled_from(
        ["true", "1.5", "inf", "07:32:00", "1979-05-27", "1979-05-27 07:32:00", '""', "''", "'[x]'", '"a#b"']
    ),
    st.sampled_from(['"""\n]\nk = 1\n"""', "'''\n[t]\n'''", '"""a""b"""', '"""x\\"""y"""', "''''q'''"]),
)


@st.composite
def quoted(draw: st.DrawFn, name: str) -> str:
    forms = ['"' + name.replace("\\", "\\\\").replace('"', '\\"').replace("\t", "\\t") + '"']
    if "'" not in name:
        forms.append(f"'{name}'")
    if name.isascii() and name and all(character.isalnum() or character in "-_" for character in name):
        forms.append(name)
    return draw(st.sampled_from(forms))


@st.composite
def values(draw: st.DrawFn, depth: int = 2) -> str:
    kind = draw(st.sampled_from(["scalar", "scalar", "array", "inline"])) if depth else "scalar"
    if kind == "scalar":
        return draw(SCALARS)
    gap = draw(st.sampled_from(["", " ", "\n", " # ] , }\n  "]))
    if kind == "array":
        items = draw(st.lists(values(depth - 1), max_size=3))
        comma = draw(st.sampled_from(["", ","])) if items else ""
        return "[" + gap + ("," + gap).join(items) + comma + gap + "]"
    pairs = [
        f"{draw(quoted(name))} = {draw(values(depth - 1))}" for name in draw(st.lists(NAMES, unique=True, max_size=3))
    ]
    return "{ " + ", ".join(pairs) + " }"


@st.composite
def documents(draw: st.DrawFn) -> str:
    """Tables, arrays of tables and their children; names may clash, and the parser then refuses the document."""
    lines: list[str] = []
    for _ in range(draw(st.integers(1, 5))):
        header = draw(st.lists(NAMES, min_size=1, max_size=3))
        dots = draw(st.sampled_from([".", " . "])).join([draw(quoted(name)) for name in header])
        lines.append(draw(st.sampled_from([f"[{dots}]", f"[[{dots}]]", f"[[ {dots} ]] # x", ""])))
        for name in draw(st.lists(NAMES, unique=True, max_size=3)):
            key = draw(quoted(name))
            key = f"{key}.{draw(quoted(draw(NAMES)))}" if draw(st.booleans()) else key
            lines.append(f"{draw(st.sampled_from(['', '  ', chr(10)]))}{key} = {draw(values())}")
    return draw(st.sampled_from(["\n", "\n\n# c\n"])).join(lines)


@settings(max_examples=400, deadline=None)
@given(documents())
def test_the_keys_found_are_those_of_the_parser(text: str) -> None:
    try:
        document = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, ValueError):
        return
    lines = key_lines(text)
    assert set(lines) == set(keys(document))
    last = text.count("\n") + 1
    assert all(1 <= line <= last for line in lines.values())


@pytest.mark.parametrize("text", ["", "\n", "# only a comment", "a = 1", "a = 1 # no newline"])
def test_small_documents(text: str) -> None:
    assert set(key_lines(text)) == set(keys(tomllib.loads(text)))
