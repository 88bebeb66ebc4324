"""The packages of the story, small: each has what lockd reads of the real one (names, labels, `version.py`, keys).

Always holds: a wheel's bytes depend on this file alone. Never: holds code of the real packages.
"""

from __future__ import annotations

from pathlib import Path

from tests.wheels import Wheel

# cu130 states the commit that the real build states; that of the cu128 build was never read, so it has a made one
_GIT = {"cu128": "0f0c0d1280000000000000000000000000000000", "cu130": "70d99e998b4955e0049d13a98d77ae1b14db1f45"}
_CUDA = {"cu128": "12.8", "cu130": "13.0"}
TRACE = "torch/fx/_symbolic_trace.py"
_TRACE = """\
_is_fx_tracing_flag = False


def is_fx_tracing():
    return _is_fx_tracing_flag


def is_fx_symbolic_tracing():
    return _is_fx_tracing_flag and not compiling()


def compiling():
    return False
"""


def torch(build: str) -> Wheel:
    """torch 2.11.0 of one build: METADATA says 2.11.0, `version.py` alone says which."""
    version = f"__version__ = '2.11.0+{build}'\ndebug = False\ncuda = '{_CUDA[build]}'\ngit_version = '{_GIT[build]}'\n"
    files = {f"torch/ops/op{number}.py": f"BUILD = '{build}'\nNUMBER = {number}\n" for number in range(300)}
    files |= {"torch/ops/__init__.py": "", "torch/fx/__init__.py": "", TRACE: _TRACE, "torch/version.py": version}
    files |= {"torch/__init__.py": "from torch.version import __version__, cuda  # noqa: F401\n"}
    files |= {"torch/_inductor/__init__.py": "", "torch/_inductor/codecache.py": f"# how {build} compiles\n"}
    return Wheel("torch", "2.11.0", files, requires=("triton==3.6.0",))


def transformers(version: str) -> Wheel:
    files = {
        "transformers/__init__.py": f"__version__ = '{version}'\n",
        "transformers/modeling_utils.py": f"# {version}\n",
    }
    return Wheel("transformers", version, files)


def everything() -> dict[str, tuple[Wheel, ...]]:
    """The wheels by the folder under /root/wheels that they lie in."""
    triton = Wheel("triton", "3.6.0", {"triton/__init__.py": "__version__ = '3.6.0'\n"})
    nccl = Wheel("nvidia-nccl-cu12", "2.28.9", {"nvidia/nccl/lib/libnccl.so.2": b"\x7fELF nccl 2.28.9"})
    sglang = Wheel("sglang", "0.5.11", {f"sglang/part{number}.py": f"# {number}\n" for number in range(40)})
    flashinfer = Wheel("flashinfer-python", "0.6.1", {f"flashinfer/jit{n}.py": f"# {n}\n" for n in range(40)})
    return {
        "good": (torch("cu128"), triton, nccl, transformers("5.0.0")),
        "cu130": (torch("cu130"),),
        "more": (sglang, flashinfer, transformers("4.57.3")),
    }


def write(folder: Path) -> None:
    """Pack all of them, each into its folder."""
    for name, wheels in everything().items():
        for wheel in wheels:
            wheel.write(folder / name)
