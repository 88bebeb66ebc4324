"""The interpreter of a python rule and the folders it would import from, read from outside.

Always holds: nothing is started; what `site` and `getpath` would decide (pyvenv.cfg, include-system-site-packages, user
site, `.pth` paths) is decided here from the same files. Paths are absolute and not resolved, as people wrote them.
Never: imports, or trusts the name of a folder for what its `pyvenv.cfg` says otherwise.
"""

from __future__ import annotations

import os
import pwd
import re
from collections.abc import Callable, Iterable, Iterator
from typing import Literal

from lockd.disk import Disk, Trouble
from lockd.facts import Unknown, shown
from lockd.globs import matches
from lockd.plain import dataclass, replace
from lockd.probes.python.pth import names_in, real_bytes, start_files
from lockd.rules import PythonRule

Kind = Literal["venv", "conda", "system"]
_NAME = re.compile(r"(?:python|pypy)(\d+(?:\.\d+)?)?t?")
_LIB = re.compile(r"(?:python|pypy)(\d+)\.(\d+)t?")


@dataclass(frozen=True)
class Interpreter:
    """Where a Python stands and what it sees.

    version: "3.12.3" as the environment states it, "3.12" where only that can be told, "" where nothing can.
    site_packages: its own site folders, in path order. base_site: what else comes into sight: user site, the site
    folders of the base (include-system-site-packages), folders that `.pth` lines add. sites: all the folders whose
    `.pth` files are taken. stdlib: the folder of the standard library, or "". user_site: the user's site folder would
    be taken. config: pyvenv.cfg, keys in lower case. library: "3.13t" of lib/python3.13t. broken: why it cannot start,
    or "".
    """

    prefix: str
    executable: str
    version: str
    kind: Kind
    site_packages: tuple[str, ...]
    bin: str
    base_site: tuple[str, ...] = ()
    sites: tuple[str, ...] = ()
    system_site: bool = False
    user_site: bool = False
    base_prefix: str = ""
    stdlib: str = ""
    config: tuple[tuple[str, str], ...] = ()
    library: str = ""
    broken: str = ""

    @property
    def minor(self) -> str:
        """ "3.12" of "3.12.3"."""
        return ".".join(self.version.split(".")[:2])


def find(rule: PythonRule, disk: Disk) -> Interpreter | Unknown | None:
    """The interpreter of a rule: a venv, conda or system prefix (`/usr`), or an interpreter file. None: nothing."""
    try:
        os.stat(rule.path)
    except (FileNotFoundError, NotADirectoryError):
        if not os.path.islink(rule.path):  # a link that leads nowhere may be the interpreter of a base that went away
            return None
    except OSError as error:
        return Unknown("python", rule.name, f"{shown(rule.path)}: {error.strerror}")
    prefix, executable = _places(rule.path)
    found = _interpreter(prefix, executable, disk, matches(rule.exclude))
    return Unknown("python", rule.name, f"{shown(found.path)}: {found.reason}") if isinstance(found, Trouble) else found


def _places(path: str) -> tuple[str, str]:
    """(prefix, executable) of a rule's path; executable "" where it still has to be found in the prefix's bin."""
    if os.path.isdir(path):
        return path.rstrip("/") or "/", ""
    folder = os.path.dirname(path)
    if os.path.lexists(
        os.path.join(os.path.dirname(folder), "pyvenv.cfg")
    ):  # getpath looks beside and above, links unresolved
        return os.path.dirname(folder), path
    return os.path.dirname(os.path.dirname(os.path.realpath(path))), path


def _interpreter(
    prefix: str, executable: str, disk: Disk, excluded: Callable[[str], bool]
) -> Interpreter | Trouble | None:
    config = _config(prefix, disk)
    programs = names_in(os.path.join(prefix, "bin"))
    for trouble in (config, programs):
        if isinstance(trouble, Trouble):
            return trouble
    assert not isinstance(config, Trouble) and not isinstance(programs, Trouble)
    executable = executable or _executable(prefix, programs)
    conda = os.path.isdir(os.path.join(prefix, "conda-meta"))
    kind: Kind = "venv" if config is not None else "conda" if conda else "system"
    if not (os.path.lexists(executable) or kind != "system" or _libraries(prefix)):
        return None  # a folder, but no Python of any sort
    found = _described(kind, prefix, executable, dict(config or {}))
    return _with_base_site(found, disk, excluded)


def _config(prefix: str, disk: Disk) -> dict[str, str] | Trouble | None:
    """pyvenv.cfg, read as `site` reads it; None where there is none."""
    content = real_bytes(os.path.join(prefix, "pyvenv.cfg"), disk)
    if content is None or isinstance(content, Trouble):
        return content
    lines = content.decode("utf-8", "surrogateescape").splitlines()
    pairs = (line.partition("=") for line in lines if "=" in line)
    return {key.strip().lower(): value.strip() for key, _, value in pairs}


def _executable(prefix: str, programs: Iterable[str]) -> str:
    named = [name for name in programs if _NAME.fullmatch(name)]
    best = min(named, key=lambda name: (name != "python", name != "python3", name), default="python")
    return os.path.join(prefix, "bin", best)


def _libraries(prefix: str) -> list[str]:
    """ "3.12" for each lib/python3.12 of a prefix, the newest first."""
    names = names_in(os.path.join(prefix, "lib"))
    found = [match for match in map(_LIB.fullmatch, [] if isinstance(names, Trouble) else names) if match]
    found.sort(key=lambda match: (int(match[1]), int(match[2])), reverse=True)
    return [f"{match[1]}.{match[2]}" for match in found]


def _described(kind: Kind, prefix: str, executable: str, config: dict[str, str]) -> Interpreter:
    broken = _broken(executable)
    base = _base(kind, prefix, executable, config, broken)
    version = _version(kind, prefix, executable, config, broken)
    minor = ".".join(version.split(".")[:2])
    library = f"{minor}{_abi(prefix, base, minor)}"
    system_site = kind == "venv" and config.get("include-system-site-packages", "true").lower() == "true"
    own = tuple(_site_folders(prefix, library, in_venv=kind == "venv", debian=_debian(base)))
    user_site = kind != "venv" or system_site
    return Interpreter(
        prefix=prefix,
        executable=executable,
        version=version,
        kind=kind,
        site_packages=own,
        bin=os.path.join(prefix, "bin"),
        system_site=system_site,
        user_site=user_site,
        base_prefix=base,
        stdlib=_first_folder(os.path.join(base, lib, f"python{library}") for lib in ("lib", "lib64")),
        config=tuple(sorted(config.items())),
        library=library,
        broken=broken
        or _unled(kind, prefix, executable)
        or _homeless(executable, config)
        or _elsewhere(prefix, minor, own, kind),
    )


def _broken(executable: str) -> str:
    """Why the interpreter cannot start: it is not there, a link that leads nowhere, or no program."""
    name = "/".join(executable.split("/")[-2:])
    if os.path.exists(executable):
        is_program = os.path.isfile(executable) and os.access(executable, os.X_OK)
        return "" if is_program else f"{shown(name)} is no executable file"
    if not os.path.islink(executable):
        return f"{shown(name)} is missing"
    target = executable
    for _ in range(40):  # the last link of the chain names what is gone
        if not os.path.islink(target):
            return f"{shown(name)} -> {shown(os.path.normpath(target))} (missing)"
        target = os.path.join(os.path.dirname(target), os.readlink(target))
    return f"{shown(name)} is a link to itself"


def _base(kind: Kind, prefix: str, executable: str, config: dict[str, str], broken: str) -> str:
    """The prefix of the base interpreter, where the standard library lies."""
    if kind != "venv":
        return prefix
    home = os.path.normpath(config["home"]) if config.get("home") else ""
    stated = os.path.dirname(home) if os.path.basename(home) == "bin" else home
    if stated and not os.path.exists(os.path.join(stated, "pyvenv.cfg")):
        return stated
    names = (os.path.basename(executable), "python3", "python")  # a venv made from a venv: its base is behind the link
    places = [os.path.join(home, name) for name in names] if home else [] if broken else [executable]
    real = next((os.path.realpath(place) for place in places if os.path.exists(place)), "")
    return os.path.dirname(os.path.dirname(real))


def _version(kind: Kind, prefix: str, executable: str, config: dict[str, str], broken: str) -> str:
    """What runs decides: the name of the binary behind the links; the environment's word only adds the last digits."""
    stated = re.match(
        r"\d+\.\d+(?:\.\d+(?:(?:a|b|rc)\d+)?)?", config.get("version") or config.get("version_info") or ""
    )
    version = stated[0] if stated else _conda_version(prefix) if kind == "conda" else ""
    named = "" if broken else _NAME.sub(r"\1", os.path.basename(os.path.realpath(executable)))
    running = named if re.fullmatch(r"\d+\.\d+", named) else ""
    if running and version.split(".")[:2] != running.split("."):
        return running
    return version or next(iter(_libraries(prefix)), "")


def _abi(prefix: str, base: str, minor: str) -> str:
    """ "t" for a free-threaded build, which has folders of its own."""
    plain, threaded = (
        any(os.path.isdir(os.path.join(place, f"lib/python{minor}{abi}")) for place in (prefix, base))
        for abi in ("", "t")
    )
    return "t" if threaded and not plain else ""


def _conda_version(prefix: str) -> str:
    names = names_in(os.path.join(prefix, "conda-meta"))
    for name in [] if isinstance(names, Trouble) else names:
        match = re.fullmatch(r"python-(\d+\.\d+\.\d+(?:(?:a|b|rc)\d+)?)-[^-]+\.json", name)
        if match:
            return match[1]
    return ""


def _debian(base: str) -> bool:
    return os.path.isdir(os.path.join(base, "lib/python3/dist-packages"))


def _site_folders(prefix: str, minor: str, *, in_venv: bool, debian: bool) -> Iterator[str]:
    """`site.getsitepackages` for one prefix, Debian's patch included; existing folders only, each once."""
    names = [f"lib/python{minor}/site-packages", f"lib64/python{minor}/site-packages"]
    if debian:
        patched = [
            f"local/lib/python{minor}/dist-packages",
            "lib/python3/dist-packages",
            f"lib/python{minor}/dist-packages",
        ]
        names = (names[:1] if in_venv else []) + patched
    names += [f"lib/pypy{minor}/site-packages"]
    seen = set()
    for folder in (os.path.join(prefix, name) for name in names):
        real = os.path.realpath(folder)  # lib64 is a link to lib in most environments
        if real not in seen and os.path.isdir(folder):
            seen.add(real)
            yield folder


def _first_folder(folders: Iterable[str]) -> str:
    return next((folder for folder in folders if os.path.isdir(folder)), "")


def _elsewhere(prefix: str, minor: str, own: tuple[str, ...], kind: Kind) -> str:
    """A venv whose base moved to another minor version keeps its packages where nobody looks."""
    others = [f"lib/python{other}" for other in _libraries(prefix) if other != minor]
    if kind == "venv" and not own:
        return f"runs Python {minor}, its packages lie in {', '.join(others)}" if others else "no site-packages folder"
    return ""


def _unled(kind: Kind, prefix: str, executable: str) -> str:
    """Without its pyvenv.cfg a venv's Python is that of its base, and the packages of the venv are out of sight."""
    path, real = os.path.join(prefix, "pyvenv.cfg"), os.path.realpath(executable)
    if kind != "system" or real.startswith(os.path.realpath(prefix).rstrip("/") + "/"):
        return ""
    what = "is no file" if os.path.lexists(path) else "is missing"
    return f"pyvenv.cfg {what}: {shown('/'.join(executable.split('/')[-2:]))} runs as {shown(real)}"


def _homeless(executable: str, config: dict[str, str]) -> str:
    """The standard library is found by `home` of pyvenv.cfg, whatever bin/python leads to: both must be one Python."""
    home = os.path.normpath(config["home"]) if config.get("home") else ""
    if not home:
        return ""
    real = os.path.realpath(executable)
    names = dict.fromkeys((os.path.basename(executable), os.path.basename(real), "python3", "python"))
    there = {os.path.realpath(place) for place in (os.path.join(home, name) for name in names) if os.path.exists(place)}
    if not there:
        return f"home = {shown(home)} of pyvenv.cfg {'holds no Python' if os.path.isdir(home) else 'is missing'}"
    if os.path.islink(executable) and real not in there:
        return (
            f"home = {shown(home)} of pyvenv.cfg is another Python than {shown(os.path.basename(executable))} leads to"
        )
    return ""


def _with_base_site(found: Interpreter, disk: Disk, excluded: Callable[[str], bool]) -> Interpreter | Trouble:
    """Add what comes into sight from outside, in the order of sys.path."""
    sites = list(found.site_packages)
    if found.user_site:
        user = user_site_of(found)
        sites += [user] if names_in(user) else []
    if found.system_site and found.base_prefix:
        sites += _site_folders(found.base_prefix, found.library, in_venv=True, debian=_debian(found.base_prefix))
    base = sites[len(found.site_packages) :]
    for folder in sites:
        files = start_files(folder, disk, excluded)
        if isinstance(files, Trouble):
            return files
        base += [path for file in files for path in file.paths if os.path.isdir(path)]
    known = {os.path.realpath(folder) for folder in found.site_packages}
    roots = {os.path.realpath(folder): folder for folder in reversed(base)}  # the first name of a folder stays
    ordered = [folder for folder in dict.fromkeys(base) if roots[os.path.realpath(folder)] == folder]
    outside = tuple(folder for folder in ordered if not _within(os.path.realpath(folder), known))
    return replace(found, base_site=outside, sites=tuple(sites))


def _within(path: str, folders: Iterable[str]) -> bool:
    return any(path == folder or path.startswith(folder + "/") for folder in folders)


def user_site_of(interpreter: Interpreter) -> str:
    """Where the user's site folder of this Python would lie."""
    return os.path.join(home(), ".local", "lib", f"python{interpreter.library}", "site-packages")


def home() -> str:
    """The home whose user site would be taken: $HOME as `site` has it, else that of the account."""
    try:
        return os.environ.get("HOME") or pwd.getpwuid(os.geteuid()).pw_dir
    except KeyError:  # an account that no database knows
        return "/"
