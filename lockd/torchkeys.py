"""The keys under which torch and triton file what they compile, computed from their files alone.

Always holds: equal to `torch._inductor.codecache.torch_key()` (as hex) and `triton_key()` of an interpreter of the
given version that runs with that site folder: torch_key is over torch's version and every module that could be imported
below `torch/`, triton_key over triton's compiler, backends and language and its library. A file that cannot be read
makes no key at all, never a wrong one.
Never: imports or runs anything of the environment, or says what a key means for a cache.
"""

from __future__ import annotations

import ast
import hashlib
import os
import re
import stat
from bisect import bisect_left
from collections.abc import Callable, Iterator
from itertools import takewhile
from typing import BinaryIO, NamedTuple

TRITON = ("triton", "pytorch-triton", "pytorch-triton-rocm", "triton-rocm")  # distributions that install `triton/`
_LINUX = re.compile(r"\.cpython-(\d+t?)-[\w-]+\.so")
_PLAIN = (".abi3.so", ".so")
_EXTRA = ("_inductor/codegen/aoti_runtime/interface.cpp", "_inductor/script.ld")  # hashed behind the modules
_CHUNK = 1 << 20

Digest = Callable[[str], str]  # absolute path → sha256 of its bytes, as hex


class Module(NamedTuple):
    """One module that an import would find: its dotted name, the file that it is, whether it is a package."""

    name: str
    path: str
    package: bool


def torch_key(site: str, python: str) -> str | None:
    """The key of `<site>/torch` under that Python (`3.12.3`, `3.13.1t`). None: it cannot be computed."""
    root = os.path.join(site, "torch")
    try:
        version = _assigned(_bytes(os.path.join(root, "version.py")))
        if version is None:
            return None
        hasher = hashlib.sha256(version.encode())
        for module in _by_name(root, "", _tag(python)):
            hasher.update(module.name.encode())
            hasher.update(_bytes(module.path))
        for name in _EXTRA:
            path = os.path.join(root, name)
            if os.path.exists(path):
                hasher.update(_bytes(path))
    except (OSError, UnicodeEncodeError):
        return None
    return hasher.hexdigest()


def triton_key(site: str, python: str, digest: Digest | None = None) -> str | None:
    """The key of `<site>/triton`: its version and a digest for each file. `digest` may know some already."""
    root, digest, tag = os.path.join(site, "triton"), digest or sha256, _tag(python)
    try:
        version = _assigned(_bytes(os.path.join(root, "__init__.py")))
        home = _home(root)
        if version is None or home is None:
            return None
        parts = [digest(home)]
        for folder in ("compiler", "backends"):
            parts += [digest(one.path) for one in _walk(os.path.join(root, folder), tag)]
        parts.append(digest(os.path.join(root, "_C", "libtriton.so")))
        parts += [digest(one.path) for one in _walk(os.path.join(root, "language"), tag)]
    except OSError:
        return None
    return version + "-".join(parts)


def sha256(path: str) -> str:
    """The digest of a regular file, as hex."""
    hasher = hashlib.sha256()
    with _regular(path) as file:
        while chunk := file.read(_CHUNK):
            hasher.update(chunk)
    return hasher.hexdigest()


# -- the modules of a folder, as pkgutil and FileFinder see them


def modules(folder: str, prefix: str, tag: str) -> Iterator[Module]:
    """What can be imported from a folder, in the order of its file names; a package before a module of its name."""
    names = sorted(os.listdir(folder))
    seen: set[str] = set()
    for name in names:
        module, inside = _module_name(name, tag), None
        if module is None and "." not in name:
            module, inside = name, _init(os.path.join(folder, name), tag)
            if inside is None:
                continue
        if module is None or module == "__init__" or "." in module or module in seen:
            continue
        seen.add(module)
        yield Module(prefix + module, inside or _chosen(folder, names, module, tag), inside is not None)


def _by_name(folder: str, prefix: str, tag: str) -> Iterator[Module]:
    """Depth first, each folder sorted by module name: the order of `build_code_hash`."""
    for module in sorted(modules(folder, prefix, tag), key=lambda one: one.name):
        yield module
        if module.package:
            yield from _by_name(os.path.dirname(module.path), f"{module.name}.", tag)


def _walk(folder: str, tag: str) -> Iterator[Module]:
    """Depth first in the order of the file names: that of `pkgutil.walk_packages`."""
    for module in modules(folder, "", tag) if os.path.isdir(folder) else ():
        yield module
        if module.package:
            yield from _walk(os.path.dirname(module.path), tag)


def _module_name(name: str, tag: str) -> str | None:
    """The module that a file name stands for (`inspect.getmodulename`), longest suffix first."""
    match = _LINUX.search(name)
    if match is not None and match.end() == len(name) and match[1] == tag:
        return name[: match.start()]
    suffix = next((one for one in (".abi3.so", ".pyc", ".py", ".so") if name.endswith(one)), None)
    return None if suffix is None else name[: -len(suffix)]


def _init(folder: str, tag: str) -> str | None:
    """The file that makes a folder a package."""
    try:
        names = sorted(os.listdir(folder))
    except NotADirectoryError:
        return None
    named = any(_module_name(name, tag) == "__init__" for name in names)
    return _chosen(folder, names, "__init__", tag) if named else None


def _chosen(folder: str, names: list[str], module: str, tag: str) -> str:
    """Of the files of one module the one that an import takes: extensions, then source, then byte-code."""
    start = bisect_left(names, f"{module}.")
    own = list(takewhile(lambda name: name.startswith(f"{module}."), names[start:]))
    tagged = [name for name in own if (match := _LINUX.fullmatch(name[len(module) :])) and match[1] == tag]
    wanted = [*tagged, *(name for suffix in (*_PLAIN, ".py", ".pyc") if (name := module + suffix) in own)]
    paths = [os.path.join(folder, name) for name in wanted]
    return next((path for path in paths if len(paths) == 1 or os.path.isfile(path)), os.path.join(folder, module))


# -- small things


def _tag(python: str) -> str:
    """`3.12.3` → `312`, `3.13.1t` → `313t`: how extension modules of that interpreter are marked."""
    match = re.match(r"(\d+)\.(\d+)", python)
    return "" if match is None else match[1] + match[2] + ("t" if python.endswith("t") else "")


def _home(root: str) -> str | None:
    """The file that `triton_key` itself stands in: it hashes its own."""
    for name in ("runtime/cache.py", "compiler/compiler.py"):
        path = os.path.join(root, name)
        if os.path.exists(path) and b"def triton_key(" in _bytes(path):
            return path
    return None


def _assigned(source: bytes) -> str | None:
    """The text that a file assigns to `__version__` at its top level."""
    try:
        body = ast.parse(source).body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    for statement in body:
        targets = statement.targets if isinstance(statement, ast.Assign) else [getattr(statement, "target", None)]
        value = getattr(statement, "value", None)
        named = any(isinstance(target, ast.Name) and target.id == "__version__" for target in targets)
        if named and isinstance(value, ast.Constant) and isinstance(value.value, str):
            return value.value
    return None


def _bytes(path: str) -> bytes:
    with _regular(path) as file:
        return file.read()


def _regular(path: str) -> BinaryIO:
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(f"{path} is no regular file")
    return os.fdopen(descriptor, "rb")
