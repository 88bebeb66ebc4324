"""The arguments of a command: quickly where there are only switches, through argparse for everything else.

Always holds: the common options stand before or after the command. Both ways give the same names; whatever the quick
way does not know for certain goes the long way, which knows the mistakes and the help.
Never: exits, or prints an error.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from types import ModuleType, SimpleNamespace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lockd.parser import Parser

WITH_VALUE = ("--policy",)
OPTIONS: dict[str, dict[str, str]] = {
    "--policy": {"metavar": "FILE", "help": "the policy (else $LOCKD_POLICY, ./lockd.toml, /etc/lockd/policy.toml)"},
    "--json": {"action": "store_true", "help": "one JSON document on stdout"},
    "--debug": {"action": "store_true", "help": "show tracebacks"},
}


def parse(module: ModuleType, verb: str, arguments: Sequence[str]) -> Any:
    """The arguments of one command. UsageError for a mistake; SystemExit(0) after --help."""
    own, command = list(arguments), []  # type: tuple[list[str], list[str]]
    takes = getattr(module, "TAKES_COMMAND", False)
    if takes and "--" in own:
        at = own.index("--")
        own, command = own[:at], own[at + 1 :]
    args = _switches(module, verb, own) or _parsed(module, verb, own)
    if takes:
        args.command = command
    return args


def print_help(modules: Iterable[ModuleType]) -> None:
    """The help of all commands, on stdout."""
    _parser(modules).print_help()


def _switches(module: ModuleType, verb: str, arguments: Sequence[str]) -> Any:
    """Arguments that are only the verb, its `SWITCHES` and the common options; None for anything else.

    Options with a value have the values that the module's `DEFAULTS` say.

    A gate calls lockd before every launch, and argparse costs half an interpreter's start.
    """
    known = getattr(module, "SWITCHES", None)
    if known is None:
        return None
    given: dict[str, Any] = {_name(switch): False for switch in (*known, "--json", "--debug")}
    given |= getattr(module, "DEFAULTS", {})
    words = iter(arguments)
    for word in words:
        if word in ("--json", "--debug") or (word in known and "verb" in given):
            given[_name(word)] = True
        elif word == "--policy":
            given["policy"] = value = next(words, "")
            if value[:1] in ("", "-"):  # no value, or an option in its place
                return None
        elif word != verb or "verb" in given:
            return None
        else:
            given["verb"] = verb
    if "verb" not in given:
        return None
    return SimpleNamespace(run=module.run, **{"policy": None, **given})


def _name(switch: str) -> str:
    return switch[2:].replace("-", "_")


def _parsed(module: ModuleType, verb: str, arguments: Sequence[str]) -> Any:
    parser = _parser([module])
    parser.verb = verb
    args = parser.parse_args(arguments)
    for option in OPTIONS:
        name = _name(option)
        setattr(args, name, getattr(args, name, None if option in WITH_VALUE else False))
    return args


def _parser(modules: Iterable[ModuleType]) -> Parser:
    from lockd.parser import Parser

    parser = Parser(
        prog="lockd",
        description="Pins the known-good state of a training environment, and says what drifted.",
        epilog="exit codes: 0 ok or warn, 1 block, 2 wrong usage, policy or lock, 3 unknown: could not look",
    )
    parser.add_argument("--version", action="store_true", help="say the version")
    subparsers = parser.add_subparsers(dest="verb", metavar="COMMAND", required=True)
    for module in modules:
        module.register(subparsers)
    return parser
