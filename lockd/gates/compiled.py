"""The site hook's byte-code, put beside it: an interpreter that may write none would compile the hook at each start.

Always holds: it is made by a Python of the environment's own version, this one or the environment's base; that one is
started only where nobody but root and this user could have put it there, without the environment's site. A file in
`__pycache__` is written aside and renamed in. Where there is none to be had, the first start makes it, as for any
module.
Never: fails an install, follows a link that lies in the place of `__pycache__`, or starts the environment's own `site`.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile

from lockd import atomic
from lockd.errors import LockdError

CACHE = "__pycache__"
_LIB = re.compile(r"python\d+\.\d+t?")
_SECONDS = 20
# prints the name that this Python looks for; stale byte-code is told by the source's time and size, as ever
_WORDS = """import py_compile, sys
py_compile.compile(sys.argv[1], sys.argv[2], sys.argv[1], True)
print(sys.implementation.cache_tag)"""


def put(module: str) -> bool:
    """Write the byte-code of a module that lies in a site folder. False: there is none to be had."""
    folder, name = os.path.split(module)
    try:
        python = _python(folder)
        if python is None:
            return False
        with tempfile.TemporaryDirectory(prefix="lockd-") as aside:
            made = os.path.join(aside, "made.pyc")
            words = [python, "-I", "-S", "-B", "-c", _WORDS, module, made]
            done = subprocess.run(
                words, env={}, cwd="/", stdin=subprocess.DEVNULL, capture_output=True, timeout=_SECONDS, check=True
            )
            with open(made, "rb") as file:
                data = file.read()
        tag = done.stdout.decode("ascii").strip()
        cache = _cache(folder)
        if cache is None or not tag:
            return False
        atomic.write(os.path.join(cache, f"{name.removesuffix('.py')}.{tag}.pyc"), data)
        return True
    except (OSError, ValueError, subprocess.SubprocessError):
        return False


def _python(folder: str) -> str | None:
    """An interpreter of the version that the site folder is for, and that may be started."""
    from lockd import trust

    library = os.path.basename(os.path.dirname(folder))
    own = f"python{sys.version_info[0]}.{sys.version_info[1]}{'t' if 't' in sys.abiflags else ''}"
    if library == own and sys.implementation.name == "cpython":
        return sys.executable
    prefix = os.path.dirname(os.path.dirname(os.path.dirname(folder)))
    path = os.path.realpath(os.path.join(prefix, "bin", "python"))
    if not _LIB.fullmatch(library) or not os.access(path, os.X_OK):
        return None
    try:
        trust.check(path, "policy")
    except LockdError:
        return None
    return path


def _cache(folder: str) -> str | None:
    """The folder for byte-code, made as the site folder's owner would have."""
    path, about = os.path.join(folder, CACHE), os.stat(folder)
    try:
        os.mkdir(path, 0o755)
        if os.geteuid() == 0:
            os.chown(path, about.st_uid, about.st_gid, follow_symlinks=False)
    except FileExistsError:
        if os.path.islink(path) or not os.path.isdir(path):
            return None
    return path
