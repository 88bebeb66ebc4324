"""The policy as plain frozen data: what to pin and how strictly. `policy.load` makes it, everybody else reads it.

Always holds: a `Policy` that was loaded was validated whole; paths are absolute; names are PEP 503. These classes are
at once the schema: `policy_shape.py` hands them to pydantic, so that the hot path needs no pydantic and no field is
defined twice. The text beside a type is what the JSON Schema, and so an editor, says of the key.
Never: reads a file or a clock.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from lockd import wellformed
from lockd.plain import dataclass, field
from lockd.wellformed import Check

Severity = Literal["block", "warn", "record", "ignore"]
Blockable = Literal["block", "warn"]
Path = Annotated[str, Check(wellformed.absolute, pattern="^/")]
Glob = Annotated[str, Check(wellformed.pattern, minLength=1)]
Name = Annotated[str, Check(wellformed.name, pattern="^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")]
Word = Annotated[str, Check(wellformed.word, minLength=1)]
Duration = Annotated[str, Check(wellformed.duration, pattern=r"^\d+(\.\d+)?(ms|s|m|h|d)$")]
PackageName = Annotated[str, Check(wellformed.package, minLength=1)]
Variable = Annotated[str, Check(wellformed.variable, pattern="^[^=]+$")]

_STRICT: dict[str, Any] = {"extra": "forbid", "strict": True}  # pydantic's ConfigDict is a plain dict


Drift = Annotated[
    Severity | None, "how a difference is held: block, warn, record or ignore; the policy's own word by default"
]
Excluded = Annotated[tuple[Glob, ...], "globs that are left out, relative to the path; ** crosses folders"]


@dataclass(frozen=True)
class PackagePin:
    """A pin beyond the lock. A bare `version` means `==`; `index` serves restore only."""

    __pydantic_config__ = _STRICT
    version: Annotated[
        Annotated[str, Check(wellformed.version)] | None,
        "a PEP 440 specifier; a bare version means ==; without a local label (+cu128) any build matches",
    ] = None
    cuda: Annotated[Word | None, "the CUDA version that the package states, e.g. 12.8"] = None
    hip: Annotated[Word | None, "the HIP version that the package states"] = None
    git: Annotated[
        Annotated[str, Check(wellformed.commit, pattern="^([0-9a-fA-F]{40}|[0-9a-fA-F]{64})$")] | None,
        "the whole commit that the package states",
    ] = None
    index: Annotated[Word | None, "the index to restore this package from"] = None
    on_drift: Drift = None


@dataclass(frozen=True)
class PythonRule:
    """A virtualenv, conda prefix or system interpreter, read from outside."""

    __pydantic_config__ = _STRICT
    name: Annotated[Name, "the name of the environment in facts: package:NAME/torch"]
    path: Annotated[Path, "the folder of the environment (its prefix), or of the interpreter"]
    integrity: Annotated[
        Literal["full", "metadata"], "full: the bytes of every installed file; metadata: names and builds only"
    ] = "full"
    extra: Annotated[Severity, "packages that the lock does not know"] = "warn"
    unowned: Annotated[Severity, "files in site-packages that belong to no package"] = "warn"
    forbid: Annotated[tuple[PackageName, ...], "packages that must not be installed; names or globs"] = ()
    same_version: Annotated[
        tuple[tuple[PackageName, ...], ...],
        "groups of packages that must be of one version, as far as they are installed",
    ] = ()
    keep: Annotated[bool, "keep every file, so that restore needs no index"] = False
    packages: Annotated[
        Mapping[str, str | PackagePin], "pins beyond the lock; a package not named here is held to the lock"
    ] = field(default_factory=dict)
    exclude: Excluded = ()
    on_drift: Drift = None


@dataclass(frozen=True)
class FileRule:
    """A file, or every file that a glob matches."""

    __pydantic_config__ = _STRICT
    path: Annotated[Path, "an absolute path or glob"]
    digest: Annotated[
        Annotated[str, Check(wellformed.digest, pattern="^(md5|sha1|sha256|sha512|blake2b):[0-9a-fA-F]{32,128}$")]
        | None,
        "ALGORITHM:HEX that the content must have: md5, sha1, sha256, sha512 or blake2b",
    ] = None
    keep: Annotated[bool, "keep the known-good content, for diff and restore"] = False
    exclude: Excluded = ()
    on_drift: Drift = None


CacheKind = Literal["inductor", "triton", "cuda", "flashinfer", "vllm", "huggingface", "torch_extensions", "directory"]


@dataclass(frozen=True)
class CacheRule:
    """A compile cache or another folder of derived files."""

    __pydantic_config__ = _STRICT
    path: Annotated[Path, "the folder of the cache"]
    kind: Annotated[CacheKind, "whose layout it has"] = "directory"
    change: Annotated[
        Literal["exact", "grow", "present", "empty"],
        "exact: as locked; grow: locked entries stay, new ones may come; present: it is there; empty: nothing is in it",
    ] = "grow"
    python: Annotated[Name | None, "the environment whose compiler fills it"] = None
    keep: Annotated[bool, "keep the known-good entries, for restore"] = False
    exclude: Excluded = ()
    on_drift: Drift = None


@dataclass(frozen=True)
class TreeRule:
    """A dataset or a config folder. `max_age` stays as written ("1h"); `wellformed.seconds` reads it."""

    __pydantic_config__ = _STRICT
    path: Annotated[Path, "the folder"]
    check: Annotated[
        Literal["stat", "full", "sample"], "stat: names, types and sizes; full: every byte; sample: some of the bytes"
    ] = "stat"
    change: Annotated[Literal["exact", "grow", "present"], "exact: as locked; grow: new files may come"] = "exact"
    exclude: Excluded = ()
    max_age: Annotated[
        Duration | None, "above 50,000 entries: gates take the last look, no older than this, e.g. 1h"
    ] = None
    on_drift: Drift = None


@dataclass(frozen=True)
class GitRule:
    """A repository: HEAD, branch, dirty diff, untracked files."""

    __pydantic_config__ = _STRICT
    path: Annotated[Path, "the working tree"]
    untracked: Annotated[
        Literal["code", "all", "ignore"], "code: untracked files that python or the loader could import"
    ] = "code"
    exclude: Excluded = ()
    on_drift: Drift = None


@dataclass(frozen=True)
class EnvRule:
    """A variable of the launch, by name or glob: "locked", a value, or one of the flags."""

    __pydantic_config__ = _STRICT
    value: Annotated[str | None, "the value that it must have"] = None
    locked: Annotated[bool, "whatever the lock recorded; unset counts"] = False
    forbid: Annotated[bool, "it must not be set"] = False
    secret: Annotated[bool, "only a keyed digest is ever stored or shown"] = False
    on_drift: Drift = None


@dataclass(frozen=True)
class CommandRule:
    """Any other fact: the output of a command. `timeout` like "5s"."""

    __pydantic_config__ = _STRICT
    name: Annotated[Name, "the name of the fact: command:NAME"]
    run: Annotated[tuple[Word, ...], "the command and its arguments; no shell"]
    timeout: Annotated[
        Annotated[str, Check(wellformed.timeout, pattern=r"^\d+(\.\d+)?(ms|s|m|h|d)$")],
        "the longest it may take, e.g. 5s",
    ] = "5s"
    on_drift: Drift = None


@dataclass(frozen=True)
class LaunchRule:
    """What a launch is, and what it must use."""

    __pydantic_config__ = _STRICT
    scripts: Annotated[tuple[Path, ...], "absolute paths or globs of the scripts whose start is a launch"] = ()
    modules: Annotated[
        tuple[Annotated[str, Check(wellformed.module, minLength=1)], ...],
        "modules whose start by python -m is a launch",
    ] = ()
    python: Annotated[Name | None, "the name of the environment that a launch must use"] = None
    on_fault: Annotated[Blockable, "what a gate does when lockd itself is missing, broken or too slow"] = "warn"
    override_group: Annotated[Word | None, "who may override besides root and the policy's owner"] = None
    loader: Annotated[bool, "hold which libnccl, libcudnn, libcublas, libstdc++ … the launch would load"] = False
    on_drift: Drift = None


# What `[gpu]` and `[host]` can name, beside an index of a GPU, a sysctl (`"vm.swappiness"`) and `package/NAME`
SYSTEM_KEYS: Mapping[str, tuple[str, ...]] = {
    "gpu": (
        *("count", "driver", "devices", "idle", "gpus", "name", "memory", "persistence", "ecc", "ecc_pending", "mig"),
        *("mig_pending", "power_limit", "clocks_max", "clocks_application", "pcie_max", "compute_mode", "nvlinks"),
        *("power_cap", "performance"),
    ),
    "host": ("kernel", "cpu", "memory", "shm", "ulimits", "thp", "mounts", "cgroup", "container", "packages"),
}


@dataclass(frozen=True)
class SystemRule:
    """`[gpu]` or `[host]`: each key a fact's name, "locked", a wanted value, or a table with `value` and `on_drift`."""

    __pydantic_config__ = _STRICT
    values: Mapping[str, Any] = field(default_factory=dict)
    on_drift: Drift = None


@dataclass(frozen=True)
class Policy:
    """One policy, whole.

    path: where it lies, absolute. digest: `sha256:…` of its bytes. lines: key path (`python[0].path`) → line number.
    """

    __pydantic_config__ = _STRICT
    name: Annotated[Name, "the name of this policy, in reports and state"]
    path: str = ""
    digest: str = ""
    on_drift: Annotated[Severity, "how a difference is held where no rule says its own"] = "block"
    on_unknown: Annotated[Blockable, "what a gate does when a pinned fact could not be read"] = "block"
    launch: Annotated[LaunchRule, "what a launch is, and what it must use"] = field(default_factory=LaunchRule)
    python: Annotated[tuple[PythonRule, ...], "virtualenvs, conda prefixes, system interpreters"] = ()
    file: Annotated[tuple[FileRule, ...], "files, by path or glob"] = ()
    cache: Annotated[tuple[CacheRule, ...], "compile caches and other derived files"] = ()
    tree: Annotated[tuple[TreeRule, ...], "datasets and config folders"] = ()
    git: Annotated[tuple[GitRule, ...], "repositories"] = ()
    env: Annotated[Mapping[Variable, EnvRule], "the environment of the launch, by name or glob"] = field(
        default_factory=dict
    )
    gpu: Annotated[SystemRule | None, "facts of the GPUs and their driver"] = None
    host: Annotated[SystemRule | None, "facts of the host"] = None
    command: Annotated[tuple[CommandRule, ...], "any other fact: the output of a command"] = ()
    lines: Mapping[str, int] = field(default_factory=dict)
    owner: int = 0  # uid of the policy file's owner

    def line(self, key: str) -> str:
        """`ct200.toml:21` for a key path such as `python[0].packages.torch`; without the line where it is not known."""
        name = self.path.rpartition("/")[2]
        return f"{name}:{self.lines[key]}" if key in self.lines else name

    @property
    def lock_path(self) -> str:
        """The lock lies beside the policy: `X.toml` → `X.lock`."""
        return self.path.removesuffix(".toml") + ".lock"
