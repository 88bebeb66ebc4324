"""What lies on the story's machine beside the packages: the policy, the job, its data, the means of the acts.

The job is no training: it imports torch, counts its samples, and tells one of the two numbers of the story, by whether
it finds the compile cache of the good runs. Nobody here measured a throughput.
"""

from __future__ import annotations

CACHE = "/tmp/torchinductor_root"
JOB = "/root/train_dflash_pipeline.py"
MODEL = "/root/dflash_model.py"
DATA = "/data/dflash"
POLICY_PATH = "/etc/lockd/policy.toml"

POLICY = f"""\
schema = 1
name   = "ct200"
on_drift = "block"

[launch]
scripts = ["{JOB}"]
python  = "train"

[[python]]
name   = "train"
path   = "/root/venv"
forbid = ["sglang", "flashinfer*"]
keep   = true                            # small here; a real one would name an index instead

[python.packages]
torch = {{ version = "2.11.0+cu128", cuda = "12.8" }}

[[file]]
path = "/root/*.py"
keep = true

[[cache]]
path   = "{CACHE}"
kind   = "inductor"
change = "grow"
python = "train"
keep   = true

[[tree]]
path = "{DATA}"

[env]
TORCHINDUCTOR_CACHE_DIR = "locked"
"""

MODEL_TEXT = """\
WINDOW = 512


def draft(sample):
    return sample[:WINDOW]
"""

JOB_TEXT = f"""\
import os
from pathlib import Path

import torch
from dflash_model import WINDOW

samples = len(list(Path("{DATA}").glob("*.arrow")))
warm = (Path(os.environ.get("TORCHINDUCTOR_CACHE_DIR", "/tmp/nowhere")) / "fxgraph").is_dir()
print("torch", torch.__version__, "window", WINDOW, "samples", samples)
print("throughput", 12.8 if warm else 4.3, "Ktok/s", flush=True)
"""

# A download: some shards, one after another, by a process of the container.
GROW = f"""\
import time
for number in range(100, 140):
    with open(f"{DATA}/shard-{{number:05}}.arrow", "wb") as file:
        file.write(bytes([number]) * 4096)
    time.sleep(0.005)
"""

# What a compiler leaves: entries that no run before had, written aside and renamed as inductor does.
FILL = f"""\
import hashlib, os, sys, time
import torch
for number in range(60):
    text = f"# {{torch.__version__}} kernel {{number}}\\n"
    name = "c" + hashlib.sha256(text.encode()).hexdigest()[:50]
    folder = os.path.join("{CACHE}", name[1:3])
    os.makedirs(folder, exist_ok=True)
    aside = os.path.join(folder, f".{{os.getpid()}}.{{number}}.tmp")
    with open(aside, "w") as file:
        file.write(text)
    os.rename(aside, os.path.join(folder, name + ".py"))
    time.sleep(0.005)
"""
