"""The policy as plain frozen data: what to pin and how strictly. `policy.load` makes it, everybody else reads it.

Always holds: a `Policy` that exists was validated whole; paths are absolute; names are PEP 503. These classes are at once the
schema: `policy.py` hands them to pydantic, so that the hot path needs no pydantic and no field is defined twice.
Never: reads a file or a clock.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Optional, Union

Severity = Literal["block", "warn", "record", "ignore"]
Blockable = Literal["block", "warn"]

_STRICT: dict[str, Any] = {"extra": "forbid", "strict": True}  # pydantic's ConfigDict is a plain dict


@dataclass(frozen=True)
class PackagePin:
    """A pin beyond the lock. `version` is a PEP 440 specifier, a bare version means `==`; `index` serves restore only."""

    __pydantic_config__ = _STRICT
    version: Optional[str] = None
    cuda: Optional[str] = None
    hip: Optional[str] = None
    git: Optional[str] = None
    index: Optional[str] = None
    on_drift: Optional[Severity] = None


@dataclass(frozen=True)
class PythonRule:
    """A virtualenv, conda prefix or system interpreter, read from outside."""

    __pydantic_config__ = _STRICT
    name: str
    path: str
    integrity: Literal["full", "metadata"] = "full"
    extra: Severity = "warn"
    unowned: Severity = "warn"
    forbid: tuple[str, ...] = ()
    keep: bool = False
    packages: Mapping[str, Union[str, PackagePin]] = field(default_factory=dict)
    exclude: tuple[str, ...] = ()
    on_drift: Optional[Severity] = None


@dataclass(frozen=True)
class FileRule:
    """A file, or every file that a glob matches."""

    __pydantic_config__ = _STRICT
    path: str
    digest: Optional[str] = None
    keep: bool = False
    exclude: tuple[str, ...] = ()
    on_drift: Optional[Severity] = None


CacheKind = Literal["inductor", "triton", "cuda", "flashinfer", "vllm", "huggingface", "torch_extensions", "directory"]


@dataclass(frozen=True)
class CacheRule:
    """A compile cache or another folder of derived files."""

    __pydantic_config__ = _STRICT
    path: str
    kind: CacheKind = "directory"
    change: Literal["exact", "grow", "present", "empty"] = "grow"
    python: Optional[str] = None
    keep: bool = False
    exclude: tuple[str, ...] = ()
    on_drift: Optional[Severity] = None


@dataclass(frozen=True)
class TreeRule:
    """A dataset or a config folder. `max_age` in seconds once loaded ("1h" in the file)."""

    __pydantic_config__ = _STRICT
    path: str
    check: Literal["stat", "full", "sample"] = "stat"
    change: Literal["exact", "grow", "present"] = "exact"
    exclude: tuple[str, ...] = ()
    max_age: Optional[str] = None
    on_drift: Optional[Severity] = None


@dataclass(frozen=True)
class GitRule:
    """A repository: HEAD, branch, dirty diff, untracked files."""

    __pydantic_config__ = _STRICT
    path: str
    untracked: Literal["code", "all", "ignore"] = "code"
    exclude: tuple[str, ...] = ()
    on_drift: Optional[Severity] = None


@dataclass(frozen=True)
class EnvRule:
    """A variable of the launch, by name or glob: "locked", a value, or one of the flags."""

    __pydantic_config__ = _STRICT
    value: Optional[str] = None
    locked: bool = False
    forbid: bool = False
    secret: bool = False
    on_drift: Optional[Severity] = None


@dataclass(frozen=True)
class CommandRule:
    """Any other fact: the output of a command. `timeout` like "5s"."""

    __pydantic_config__ = _STRICT
    name: str
    run: tuple[str, ...]
    timeout: str = "5s"
    on_drift: Optional[Severity] = None


@dataclass(frozen=True)
class LaunchRule:
    """What a launch is, and what it must use."""

    __pydantic_config__ = _STRICT
    scripts: tuple[str, ...] = ()
    modules: tuple[str, ...] = ()
    python: Optional[str] = None
    on_fault: Blockable = "warn"
    override_group: Optional[str] = None
    on_drift: Optional[Severity] = None


@dataclass(frozen=True)
class SystemRule:
    """`[gpu]` or `[host]`: each key a fact's name, "locked", a wanted value, or a table with `value` and `on_drift`."""

    __pydantic_config__ = _STRICT
    values: Mapping[str, Any] = field(default_factory=dict)
    on_drift: Optional[Severity] = None


@dataclass(frozen=True)
class Policy:
    """One policy, whole. `path` is where it lies, `digest` is `sha256:…` of its bytes, `lines` maps `python[0].path` to a line number."""

    name: str
    path: str = ""
    digest: str = ""
    on_drift: Severity = "block"
    on_unknown: Blockable = "block"
    launch: LaunchRule = field(default_factory=LaunchRule)
    python: tuple[PythonRule, ...] = ()
    file: tuple[FileRule, ...] = ()
    cache: tuple[CacheRule, ...] = ()
    tree: tuple[TreeRule, ...] = ()
    git: tuple[GitRule, ...] = ()
    env: Mapping[str, EnvRule] = field(default_factory=dict)
    gpu: Optional[SystemRule] = None
    host: Optional[SystemRule] = None
    command: tuple[CommandRule, ...] = ()
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
