"""The main job, shown: a real venv is built, accepted, verified, drifted in five ways, and accepted again item by item.

Everything happens in `.demo/` of the checkout. Each lockd command is the real one; its output is shown and its exit
code checked. Ends with 1 when any of them was not what it should be.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent.parent
ROOT = HERE / ".demo"
VENV = ROOT / "venv"
CACHE = ROOT / "torchinductor_root"
POLICY = ROOT / "lockd.toml"
LOCKD = Path(sys.executable).with_name("lockd")
WRONG: list[str] = []

# One version, two builds: compiled for this interpreter, and pure Python: what a CUDA label is to torch, but small.
PACKAGE = "charset-normalizer"
UNWANTED = "einops"  # stands for sglang, which is a thousand times larger

POLICY_TEXT = f"""\
schema = 1
name   = "demo"

[launch]
scripts = ["{ROOT}/train.py"]
python  = "train"

[[python]]
name   = "train"
path   = "{VENV}"
extra  = "warn"                          # a package that the lock does not know
forbid = ["sglang", "flashinfer*", "{UNWANTED}"]

[[file]]
path = "{ROOT}/train.py"
keep = true

[[cache]]
path   = "{CACHE}"
kind   = "inductor"
change = "grow"                          # new entries may come, the known ones must stay
python = "train"

[env]
LD_LIBRARY_PATH = "locked"
PYTHONPATH      = {{ forbid = true }}
"""


def main() -> int:
    """1. build, 2. accept and verify, 3. drift five times, 4. accept by item what was meant, put the rest back."""
    build()
    say("2. What is there now is known to be good: record it, and check it.")
    lockd("accept", "-m", "12.8 Ktok/s on this", "--yes", expect=0)
    lockd("verify", expect=0)
    drift()
    accept_by_item()
    if WRONG:
        print("\nNot as it should be:", *WRONG, sep="\n  ")
        return 1
    print("\nAll exit codes were as they should be. The scene is left in .demo/ to play with:")
    print(f"  export LOCKD_STATE={ROOT}/state; {LOCKD} --policy {POLICY} verify")
    return 0


def build() -> None:
    say("1. A venv with real packages, a training script, a compile cache, and a policy over them.")
    shutil.rmtree(ROOT, ignore_errors=True)
    ROOT.mkdir()
    run([sys.executable, "-m", "venv", str(VENV)])
    pip("install", PACKAGE, "idna", "tqdm")
    (ROOT / "train.py").write_text("WINDOW = 512\n\nprint('training with a window of', WINDOW)\n")
    for number in range(8):
        entry = CACHE / "triton" / "0" / f"KEY{number}" / "flex_attention.cubin"
        entry.parent.mkdir(parents=True)
        entry.write_bytes(bytes([number]) * 4096)
    POLICY.write_text(POLICY_TEXT)
    lockd("policy", "check", expect=0)


def drift() -> None:
    say("3a. Somebody reinstalls one package: the same version, another build.")
    pip("install", "--force-reinstall", "--no-deps", str(pure_wheel()))
    lockd("verify", expect=1)
    say("3b. A file of a package is edited by hand.")
    module = next(VENV.glob("lib/python3*/site-packages/idna/core.py"))
    good_module = module.read_bytes()
    module.write_bytes(good_module.replace(b"def ", b"def  ", 1))
    lockd("verify", expect=1)
    module.write_bytes(good_module)
    say("    (and put back: only the build is left)")
    say("3c. The training script is edited.")
    script = ROOT / "train.py"
    script.write_text(script.read_text().replace("512", "1024"))
    lockd("verify", expect=1)
    lockd("diff", expect=0)
    say("3d. An entry of the compile cache is deleted.")
    shutil.rmtree(CACHE / "triton" / "0" / "KEY3")
    lockd("verify", expect=1)
    say("3e. A forbidden package comes in.")
    pip("install", "--no-deps", UNWANTED)
    lockd("verify", expect=1)


def accept_by_item() -> None:
    say("4. The edit of the script was meant: accept that alone. The package and the other build were not: undo them.")
    lockd("accept", "-m", "window of 1024", "--only", f"file:{ROOT}/train.py", "--yes", expect=0)
    lockd("verify", expect=1)
    pip("uninstall", "--yes", UNWANTED)
    pip("install", "--force-reinstall", "--no-deps", PACKAGE)
    say("The cache entry is gone for good: accept the cache as it is now.")
    lockd("accept", "-m", "one kernel fewer", "--only", f"cache:{CACHE}", "--yes", expect=0)
    lockd("verify", expect=0)
    lockd("log", expect=0)


def pure_wheel() -> Path:
    """The build of PACKAGE without compiled modules, of the version that is installed."""
    version = (
        next(VENV.glob(f"lib/python3*/site-packages/{PACKAGE.replace('-', '_')}-*.dist-info"))
        .name.split("-")[1]
        .removesuffix(".dist")
    )
    wheels = ROOT / "wheels"
    tags = ["--platform", "any", "--only-binary", ":all:"]
    pip("download", *tags, "--no-deps", "--dest", str(wheels), f"{PACKAGE}=={version}")
    return next(wheels.glob("*-none-any.whl"))


def lockd(*words: str, expect: int) -> None:
    """Run lockd, show what it says, and note when its exit code is not `expect`."""
    print(f"\n$ lockd {shlex.join(words)}", flush=True)
    place = {"LOCKD_STATE": str(ROOT / "state"), "LOCKD_RUNTIME": str(ROOT / "run"), "LOCKD_POLICY": str(POLICY)}
    code = subprocess.run([LOCKD, *words], env={**os.environ, **place}, cwd=ROOT, check=False).returncode
    print(f"(exit {code})", flush=True)
    if code != expect:
        WRONG.append(f"lockd {shlex.join(words)}: exit {code}, {expect} expected")


def pip(*words: str) -> None:
    print(f"\n$ pip {shlex.join(words)}", flush=True)
    run([str(VENV / "bin" / "python"), "-m", "pip", "-q", "--disable-pip-version-check", *words])


def run(command: list[str]) -> None:
    subprocess.run(command, check=True, cwd=ROOT)


def say(text: str) -> None:
    print(f"\n\033[1m{text}\033[0m" if sys.stdout.isatty() else f"\n{text}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
