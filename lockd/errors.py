"""One family of errors. Each says what is wrong, where, and how to mend it, and knows its exit code.

Always holds: whatever a user can cause raises one of these; only `cli` prints them or exits.
Never: a traceback in front of a user, or an error without a place.
"""

from __future__ import annotations

from collections.abc import Iterable

OK, BLOCK, USAGE, UNKNOWN, REFUSED, CANNOT_LOOK, INTERRUPTED = 0, 1, 2, 3, 78, 125, 130  # exit codes of the contract


class LockdError(Exception):
    """`what` went wrong, `where` (a path, a `file:line: key`), and the `hint` how to mend it. Exit code `code`."""

    code = UNKNOWN

    def __init__(self, what: str, *, where: str = "", hint: str = "") -> None:
        super().__init__(what)
        self.what, self.where, self.hint = what, where, hint

    def __str__(self) -> str:
        return f"{self.where}: {self.what}" if self.where else self.what


class UsageError(LockdError):
    """The command was called wrongly: an unknown option, an ambiguous name."""

    code = USAGE


class PolicyError(LockdError):
    """The policy is wrong. `problems` lists every mistake, one line each, `FILE:LINE: KEY: TEXT`."""

    code = USAGE

    def __init__(self, problems: Iterable[str], *, where: str = "", hint: str = "") -> None:
        self.problems = tuple(problems)
        super().__init__("\n".join(self.problems), where=where, hint=hint)

    def __str__(self) -> str:
        return self.what


class LockError(LockdError):
    """The lock is truncated, edited by hand, from a newer schema, or of another policy."""

    code = USAGE


class RefusedError(LockdError):
    """A deed was refused on purpose: a broken pin, another state than the reviewed one, modified packages."""

    code = BLOCK


class LookError(LockdError):
    """Something that had to be looked at could not be: the answer is unknown, never ok."""

    code = UNKNOWN
