"""`lockd run -- CMD`: the gate by hand. Decides, then becomes CMD, or waits for it.

Always holds: CMD is started with the very environment, folder, descriptors and signals that lockd was started with, and
none of lockd's own. Where it is not there, or can't be executed, that is said as `env` does (127, 126), before anybody
looks at the machine.
Never: starts a shell, or comes back from `become` when CMD could be started.
"""

from __future__ import annotations

import errno
import os
import signal
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

from lockd.errors import LockdError

if TYPE_CHECKING:
    from lockd.look import Launch

NOT_FOUND, NOT_EXECUTABLE = 127, 126
_SHELL = "/bin/sh"  # what execvp takes for a script without a first line that names one


class NoProgram(LockdError):
    """CMD can't be started; the exit code is that of `env`."""

    def __init__(self, name: str, reason: str, code: int) -> None:
        super().__init__(reason, where=name)
        self.code = code


def launch(argv: Sequence[str]) -> Launch:
    """The launch that this process is about to become."""
    from lockd.look import Launch

    try:
        cwd = os.getcwd()
    except FileNotFoundError:
        cwd = "/"
    return Launch(environment(), cwd, tuple(argv), "lockd run")


def environment() -> dict[str, str]:
    """The variables that this process was started with.

    Under the C locale Python sets LC_CTYPE on its own start-up (PEP 538); CMD must not inherit that.
    """
    words = dict(os.environ)
    if words.get("LC_CTYPE", "").startswith("C."):
        try:
            with open("/proc/self/environ", "rb") as file:
                if not any(row.startswith(b"LC_CTYPE=") for row in file.read().split(b"\0")):
                    del words["LC_CTYPE"]
        except OSError:
            pass
    return words


def find(argv: Sequence[str], environ: Mapping[str, str]) -> str:
    """The file that CMD means, as execvp looks for it. NoProgram where there is none that may be executed."""
    name = argv[0]
    denied = False
    for path in [name] if "/" in name else [os.path.join(folder, name) for folder in os.get_exec_path(environ)]:
        if name and os.path.isfile(path):
            if os.access(path, os.X_OK):
                return path
            denied = True
        elif "/" in name and os.path.exists(path):
            denied = True  # a folder
    if denied:
        raise NoProgram(name, "can't be executed: Permission denied", NOT_EXECUTABLE)
    raise NoProgram(name, "no such program", NOT_FOUND)


def become(path: str, argv: Sequence[str], environ: Mapping[str, str]) -> NoReturn:
    """Replace this process by CMD. NoProgram if the kernel will not."""
    restore_signals()
    try:
        try:
            os.execve(path, list(argv), environ)  # noqa: S606  that is the point
        except OSError as error:
            if error.errno != errno.ENOEXEC:
                raise
            os.execve(_SHELL, [_SHELL, path, *argv[1:]], environ)  # noqa: S606
    except OSError as error:
        code = NOT_FOUND if error.errno == errno.ENOENT else NOT_EXECUTABLE
        raise NoProgram(argv[0], f"can't be executed: {error.strerror}", code) from None


def restore_signals() -> None:
    """Python ignores some signals from its start on; CMD gets them as they were."""
    for name in ("SIGPIPE", "SIGXFZ", "SIGXFSZ"):
        number: Any = getattr(signal, name, None)
        if number is not None:
            signal.signal(number, signal.SIG_DFL)
