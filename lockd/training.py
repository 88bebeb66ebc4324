"""`note(ktok_s=12.8)`: a number of the running launch, from inside a training script. Standard library alone.

`lockd run --notes -- CMD` names a file in `LOCKD_NOTES`; each call appends one line of JSON to it, and lockd reads it
when the launch ends, or when somebody looks. A training environment has no lockd in it: copy this file beside the
script.
Always holds: a call is one write; without `LOCKD_NOTES`, or where it can't be written, nothing happens.
Never: raises for what the machine holds, imports anything of lockd, or slows a step by more than one small write.
"""

from __future__ import annotations

import json
import os
import time

VARIABLE = "LOCKD_NOTES"


def note(**values: object) -> bool:
    """Note values of this launch; the last of a name counts. True if they were written."""
    path = os.environ.get(VARIABLE)
    if not path or not values:
        return False
    line = json.dumps({"at": time.time(), "values": values}, default=str) + "\n"
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
        try:
            return os.write(descriptor, line.encode()) == len(line.encode())
        finally:
            os.close(descriptor)
    except OSError:
        return False
