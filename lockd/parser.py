"""argparse as lockd wants it: mistakes are UsageErrors, and the common options may stand anywhere.

Always holds: an option that was not given leaves no trace, so that one given before the command is not overwritten.
Never: exits for a mistake.
"""

from __future__ import annotations

import argparse
from typing import Any, NoReturn

from lockd.arguments import OPTIONS
from lockd.errors import UsageError


class _Commands(argparse._SubParsersAction):  # type: ignore[type-arg]
    """The commands of a parser: what the list of them says of one stands in its own help too."""

    def add_parser(self, name: str, **settings: Any) -> Any:
        settings.setdefault("description", settings.get("help"))
        return super().add_parser(name, **settings)


class Parser(argparse.ArgumentParser):
    """A parser; those of the commands below it are of this class too."""

    verb = ""  # the command that was called, once that is known

    def __init__(self, **settings: Any) -> None:
        settings["allow_abbrev"] = False
        super().__init__(**settings)
        self.register("action", "parsers", _Commands)
        for option, how in OPTIONS.items():
            self.add_argument(option, default=argparse.SUPPRESS, **how)  # type: ignore[arg-type]

    def error(self, message: str) -> NoReturn:
        unknown = message.removeprefix("unrecognized arguments: ")
        where = " ".join(part for part in (self.prog.removeprefix("lockd").strip(), self.verb) if part)
        what = message
        if unknown != message:
            what = f"{'unknown option' if unknown.startswith('-') else 'too many arguments, from'} {unknown}"
        raise UsageError(what, where=where, hint=" ".join(filter(None, ("lockd", where, "--help"))))
