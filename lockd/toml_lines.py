"""Where each key of a TOML document stands: key path → line number, for mistakes and for `edit ct200.toml:21 first`.

Always holds: for a document that a TOML parser takes, every key and every element of an array that holds tables has its
line, 1 for the first. A key path is a tuple of names and indexes: `("python", 0, "path")`.
Never: validates, or reads values; `tomllib` does that, and came first.
"""

from __future__ import annotations

import re
from bisect import bisect_right

KeyPath = tuple[str | int, ...]

_BLANK = re.compile(r"(?:[ \t\r\n]|#[^\n]*)*")
_SPACE = re.compile(r"[ \t]*")
_BARE = re.compile(r"[A-Za-z0-9_-]+")
_BASIC = re.compile(r'"((?:[^"\\\n]|\\.)*)"')
_LITERAL = re.compile(r"'([^'\n]*)'")
_BASIC_BLOCK = re.compile(r'"""(?:[^"\\]|\\.|"(?!""))*"{3,5}', re.DOTALL)
_LITERAL_BLOCK = re.compile(r"'''(?:[^']|'(?!''))*'{3,5}", re.DOTALL)
_SCALAR = re.compile(r"[^,\]}#\n]*")
_ESCAPE = re.compile(r"\\(u[0-9A-Fa-f]{4}|U[0-9A-Fa-f]{8}|x[0-9A-Fa-f]{2}|.)")
_LETTERS = {"b": "\b", "t": "\t", "n": "\n", "f": "\f", "r": "\r", "e": "\x1b", '"': '"', "\\": "\\"}


def key_lines(text: str) -> dict[KeyPath, int]:
    """The line of every key in a valid TOML document."""
    return _Scan(text).document()


def dotted(path: KeyPath) -> str:
    """`python[0].packages.torch`: a key path as people read it."""
    words = [f"[{part}]" if isinstance(part, int) else f".{part}" for part in path]
    return "".join(words).removeprefix(".")


class _Scan:
    """One pass over one document: the position, the lines found so far, and the length of each array of tables."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0
        self.newlines = [match.start() for match in re.finditer("\n", text)]
        self.lines: dict[KeyPath, int] = {}
        self.lengths: dict[KeyPath, int] = {}

    def document(self) -> dict[KeyPath, int]:
        table: KeyPath = ()
        self._skip(_BLANK)
        while self.at < len(self.text):
            if self.text.startswith("[", self.at):
                table = self._header()
            else:
                self._pair(table)
            self._skip(_BLANK)
        return self.lines

    def _header(self) -> KeyPath:
        many = self.text.startswith("[[", self.at)
        start = self.at
        self.at += 2 if many else 1
        names = self._key()
        self.at += 2 if many else 1
        table = (*self._table(names[:-1], start), names[-1])
        self._note(table, start)
        if many:
            self.lengths[table] = self.lengths.get(table, 0) + 1
        table = self._last(table)
        self._note(table, start)
        return table

    def _table(self, names: list[str], start: int) -> KeyPath:
        """The key path of the tables above a header's own name: the last element, where one is an array of tables."""
        path: KeyPath = ()
        for name in names:
            path += (name,)
            self._note(path, start)
            path = self._last(path)
        return path

    def _last(self, path: KeyPath) -> KeyPath:
        return (*path, self.lengths[path] - 1) if path in self.lengths else path

    def _pair(self, table: KeyPath) -> None:
        start = self.at
        for name in self._key():
            table += (name,)
            self._note(table, start)
        self.at += 1  # the "="
        self._value(table)

    def _key(self) -> list[str]:
        names = []
        while True:
            self._skip(_SPACE)
            names.append(self._name())
            self._skip(_SPACE)
            if not self.text.startswith(".", self.at):
                return names
            self.at += 1

    def _name(self) -> str:
        for form in (_BARE, _BASIC, _LITERAL):
            match = form.match(self.text, self.at)
            if match:
                self.at = match.end()
                return match[0] if form is _BARE else _unescaped(match[1]) if form is _BASIC else match[1]
        raise ValueError(f"no key at character {self.at}")

    def _value(self, path: KeyPath) -> None:
        self._skip(_SPACE)
        for form in (_BASIC_BLOCK, _LITERAL_BLOCK, _BASIC, _LITERAL):
            if self._skip(form):
                return
        if self.text.startswith("[", self.at):
            self._array(path)
        elif self.text.startswith("{", self.at):
            self._inline(path)
        else:
            self._skip(_SCALAR)

    def _array(self, path: KeyPath) -> None:
        index = 0
        while self._next("]"):
            self._note((*path, index), self.at)
            self._value((*path, index))
            index += 1

    def _inline(self, path: KeyPath) -> None:
        while self._next("}"):
            self._pair(path)

    def _next(self, end: str) -> bool:
        """Go past the opening bracket or the comma; False, and past the end, where no element follows."""
        self._skip(_BLANK)
        if self.text.startswith(end, self.at):
            self.at += 1
            return False
        self.at += 1
        self._skip(_BLANK)
        if self.text.startswith(end, self.at):
            self.at += 1
            return False
        if self.at >= len(self.text):
            raise ValueError(f"the document ends before {end}")
        return True

    def _skip(self, form: re.Pattern[str]) -> bool:
        match = form.match(self.text, self.at)
        if match:
            self.at = match.end()
        return match is not None

    def _note(self, path: KeyPath, position: int) -> None:
        self.lines.setdefault(path, bisect_right(self.newlines, position - 1) + 1)


def _unescaped(text: str) -> str:
    def one(match: re.Match[str]) -> str:
        word = match[1]
        return chr(int(word[1:], 16)) if len(word) > 1 else _LETTERS.get(word, word)

    return _ESCAPE.sub(one, text) if "\\" in text else text
