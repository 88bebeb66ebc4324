"""Which build of a package this is: the local label, CUDA, HIP, commit and ABI that METADATA does not tell.

Always holds: version files are parsed with `ast`, only plain assignments of known names at the top level count;
nothing is imported or evaluated. A package that is not in the table has the label of its METADATA and nothing else.
Never: guesses a CUDA version from a file name or from another package.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator, Mapping

# PEP 503 name → files of the installed package that state its build, first wins by attribute
VERSION_FILES: Mapping[str, tuple[str, ...]] = {
    "torch": ("torch/version.py",),
    "torchvision": ("torchvision/version.py",),
    "torchaudio": ("torchaudio/version.py",),
    "triton": ("triton/__init__.py",),
    "pytorch-triton": ("triton/__init__.py",),
    "pytorch-triton-rocm": ("triton/__init__.py",),
    "jaxlib": ("jaxlib/version.py",),
    "jax": ("jax/version.py",),
    "flash-attn": ("flash_attn/__init__.py",),
    "vllm": ("vllm/_version.py", "vllm/version.py"),
    "sglang": ("sglang/_version.py", "sglang/version.py"),
    "sgl-kernel": ("sgl_kernel/version.py",),
    "flashinfer-python": ("flashinfer/_build_meta.py",),
    "xformers": ("xformers/version.py",),
    "deepspeed": ("deepspeed/git_version_info_installed.py",),
    "apex": ("apex/version.py",),
    "transformer-engine": ("transformer_engine/version.py",),
}
_WORDS: Mapping[str, str] = {
    "__version__": "version",
    "version": "version",
    "_version": "version",
    "cuda": "cuda",
    "cuda_version": "cuda",
    "__cuda__": "cuda",
    "hip": "hip",
    "git_version": "git",
    "__git_version__": "git",
    "git_hash": "git",
    "_git_hash": "git",
    "__commit_id__": "git",
    "commit_id": "git",
}
_ABI = re.compile(r"cxx11abi(TRUE|FALSE)", re.IGNORECASE)
_LONGEST = 256  # a value longer than this is no version


def stated(name: str, read: Callable[[str], str | None]) -> dict[str, str]:
    """What the package's own version files say: version, cuda, hip, git, as far as they do. `read` gives a file's
    text or None."""
    found: dict[str, str] = {}
    for path in VERSION_FILES.get(name, ()):
        text = read(path)
        for word, value in _assignments(text) if text is not None else ():
            found.setdefault(word, value)
    return found


def _assignments(text: str) -> Iterator[tuple[str, str]]:
    try:
        module = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return  # not Python: the content digest still tells that it changed
    for statement in module.body:
        value = getattr(statement, "value", None)
        if isinstance(value, ast.Constant) and isinstance(value.value, str) and len(value.value) <= _LONGEST:
            for target in _targets(statement):
                if target in _WORDS:
                    yield _WORDS[target], value.value


def _targets(statement: ast.stmt) -> list[str]:
    targets = statement.targets if isinstance(statement, ast.Assign) else [getattr(statement, "target", None)]
    return [target.id for target in targets if isinstance(target, ast.Name)]


def version(metadata: str, build: str) -> str:
    """The version with its label wherever that is written. Code and METADATA at odds: what the code says of itself."""
    if not build or build == metadata:
        return metadata
    same_release = build.partition("+")[0] == metadata.partition("+")[0]
    return metadata if same_release and "+" not in build else build


def abi(label_version: str) -> str | None:
    """`TRUE` or `FALSE` where a label such as `+cu12torch2.8cxx11abiTRUE` tells the C++ ABI."""
    match = _ABI.search(label_version)
    return match.group(1).upper() if match else None
