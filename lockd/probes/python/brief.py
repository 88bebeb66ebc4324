"""Long values made short for one line of text: digests and wheel tags. The full ones stay in the attributes.

Always holds: two values that differ are still two different texts.
Never: shortens what is no digest, such as a part of a file name.
"""

from __future__ import annotations

import re

_DIGITS = 12
_DIGEST = re.compile(r"(?<![\w./-])((?:[a-z0-9]+:)?)([0-9a-f]{32,128})(?![\w./-])")
_LEGACY = {"manylinux1": (2, 5), "manylinux2010": (2, 12), "manylinux2014": (2, 17)}
_PLATFORM = re.compile(r"(?:many|musl)linux_(\d+)_(\d+)_|macosx_(\d+)_(\d+)_")


def digests(text: str) -> str:
    """Every digest and commit of a text with its first 12 digits: `sha256:0123456789ab`."""
    return _DIGEST.sub(lambda match: match[1] + match[2][:_DIGITS], text)


def digest_pair(old: str, new: str) -> tuple[str, str]:
    """Two texts made short, unless that would make them equal."""
    short = digests(old), digests(new)
    return short if short[0] != short[1] else (old, new)


def tag_pair(old: str, new: str) -> tuple[str, str]:
    """Two sets of wheel tags by their most specific ones; where these are equal, by all."""
    short = tag(old), tag(new)
    return short if short[0] != short[1] else (old, new)


def tag(tags: str) -> str:
    """Of wheel tags joined by dots the one that fits the fewest machines: `cp311-cp311-manylinux_2_28_x86_64`."""
    return max(tags.split("."), key=_narrowness, default="")


def _narrowness(one: str) -> tuple[bool, bool, bool, tuple[int, int], bool, str]:
    """A platform before none, an ABI before none, CPython before any Python, a newer system before an older."""
    python, _, rest = one.partition("-")
    abi, _, platform = rest.partition("-")
    match = _PLATFORM.match(platform)
    numbers = [int(number) for number in match.groups() if number] if match else []
    system = (numbers[0], numbers[1]) if numbers else _LEGACY.get(platform.partition("_")[0], (0, 0))
    return platform != "any", abi != "none", not python.startswith("py"), system, bool(numbers), one
