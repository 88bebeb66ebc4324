"""The command line: finds the verb, imports that command alone, and turns errors into one line and an exit code.

Always holds: results on stdout, talk on stderr, both valid UTF-8; with `--json` stdout holds one document whatever
happens; a traceback is shown only under `--debug`.
Never: looks at the machine, or lets an error pass for a verdict.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from types import ModuleType

from lockd import arguments as parsing
from lockd import commands
from lockd.arguments import OPTIONS, WITH_VALUE
from lockd.errors import INTERRUPTED, OK, UNKNOWN, LockdError, UsageError
from lockd.session import find_policy

__all__ = ["find_policy", "main", "warn"]


def main(argv: Sequence[str]) -> int:
    """Run one command; returns its exit code."""
    if None in (sys.stdin, sys.stdout, sys.stderr):
        _open_streams()
    _safe_streams()
    arguments = list(argv)
    asked = _before_dashes(arguments)
    module: list[ModuleType] = []
    try:
        code = _dispatch(arguments, module)
    except KeyboardInterrupt:
        code = INTERRUPTED
    except Exception as error:
        code = _fail(error, module, as_json="--json" in asked, debug="--debug" in asked)
    return _flush(code)


def warn(text: str) -> None:
    """One line of talk on stderr."""
    from lockd.report.text import safe

    print(f"lockd: {safe(text)}", file=sys.stderr)


def emit(text: str) -> None:
    """A result on stdout. A reader that left is no error of ours; a disk that is full is."""
    try:
        print(text)
    except BrokenPipeError:
        _hush()
    except OSError as error:
        _hush()
        raise LockdError(f"stdout could not be written: {error.strerror}") from None


def _dispatch(arguments: list[str], module: list[ModuleType]) -> int:
    verb = _verb(arguments)
    if verb is None:
        return _without_verb(arguments)
    if not commands.is_available(verb):
        raise UsageError(f"unknown command {verb}", hint=_nearest(verb))
    module.append(commands.load(verb))
    args = parsing.parse(module[0], verb, arguments)
    return int(args.run(args))


def _without_verb(arguments: list[str]) -> int:
    if "--version" in arguments:
        from lockd import __version__

        emit(f"lockd {__version__}")
        return OK
    if "-h" in arguments or "--help" in arguments:
        parsing.print_help(map(commands.load, commands.available()))
        return OK
    if arguments and arguments[-1] in WITH_VALUE:
        raise UsageError(f"{arguments[-1]} wants a value", hint="lockd --help lists the options")
    unknown = [
        argument for argument in arguments if argument.startswith("-") and argument.partition("=")[0] not in OPTIONS
    ]
    what = f"unknown option {unknown[0]}" if unknown else "no command was given"
    raise UsageError(what, hint="lockd --help lists the commands; lockd verify looks and compares")


def _verb(arguments: list[str]) -> str | None:
    """The first word that is neither an option nor the value of one."""
    skip = False
    for argument in arguments:
        if skip:
            skip = False
        elif argument in WITH_VALUE:
            skip = True
        elif not argument.startswith("-"):
            return argument
    return None


def _nearest(verb: str) -> str:
    from difflib import get_close_matches

    near = get_close_matches(verb, commands.available(), 1, 0.5)
    return f"did you mean lockd {near[0]}?" if near else "lockd --help lists the commands"


def _before_dashes(arguments: list[str]) -> list[str]:
    """What is lockd's own: everything before `--`, behind which another command's words stand."""
    return arguments[: arguments.index("--")] if "--" in arguments else arguments


def _fail(error: Exception, module: list[ModuleType], *, as_json: bool, debug: bool) -> int:
    """Say an error: text on stderr, with --json a document on stdout as well. Returns the exit code."""
    from lockd.report import text

    if debug:
        import traceback

        traceback.print_exception(error, file=sys.stderr)
    problem = error if isinstance(error, LockdError) else _unexpected(error)
    print(text.problem(problem), file=sys.stderr)
    if as_json:
        from lockd.report import json

        emit(json.dumps(json.error(problem)))
    own = getattr(module[0], "exit_code", None) if module else None
    return int(own(problem)) if own is not None else problem.code


def _unexpected(error: Exception) -> LockdError:
    """An error that nobody foresaw: one line, never a verdict."""
    if isinstance(error, OSError) and error.strerror:
        return LockdError(error.strerror, where=os.fsdecode(error.filename) if error.filename else "")
    hint = "a mistake in lockd: run it again with --debug and report what it shows"
    return LockdError(f"{type(error).__name__}: {error}", where="internal error", hint=hint)


def _open_streams() -> None:
    """A stream that the caller closed leads to /dev/null: else the next file opened takes its number, and what is
    printed lands in it."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            try:
                null = os.open(os.devnull, os.O_RDWR)
            except OSError:  # a container without /dev
                import io

                setattr(sys, name, io.StringIO())
                continue
            os.dup2(null, number)
            if null != number:
                os.close(null)
            setattr(sys, name, open(number, "w" if number else "r", closefd=False))  # noqa: SIM115 - open to the end


def _safe_streams() -> None:
    """UTF-8 whatever the locale says, and no byte that is not."""
    for stream in (sys.stdout, sys.stderr):
        if stream is not None and hasattr(stream, "reconfigure"):
            stream.reconfigure(encoding="utf-8", errors="backslashreplace")


def _flush(code: int) -> int:
    """Whatever is still in the buffers has to go out before the code may say ok."""
    try:
        if sys.stdout is not None:
            sys.stdout.flush()
    except BrokenPipeError:
        _hush()
    except OSError as error:
        warn(f"stdout could not be written: {error.strerror}")
        _hush()
        return UNKNOWN
    return code


def _hush() -> None:
    """Nothing more goes to stdout, not even at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
