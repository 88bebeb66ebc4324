"""`nvidia-smi -q` in text, read into the shape in which NVML itself is asked (`nvml.py`).

Always holds: a line is known by the headings above it, so that names that come twice are told apart. `N/A` is a thing
that the GPU does not have.
Never: runs anything.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

_GPU = re.compile(r"GPU ([0-9A-Fa-f]{8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-9A-Fa-f])\s*$")
_COMPUTE = {"Default": 0, "Exclusive_Thread": 1, "Prohibited": 2, "Exclusive_Process": 3}
_SWITCH = {"Enabled": 1, "Disabled": 0}
_NOTHING = ("N/A", "[N/A]", "Requested functionality has been deprecated", "Unknown Error", "[Unknown Error]")


def parse(text: str) -> list[Mapping[str, Any]]:
    """One mapping a GPU, in nvidia-smi's order, which is NVML's."""
    blocks: list[tuple[str, list[str]]] = []
    for line in text.splitlines():
        found = _GPU.match(line)
        if found:
            blocks.append((found[1], []))
        elif blocks:
            blocks[-1][1].append(line)
    return [_card(bus, dict(_paths(lines))) for bus, lines in blocks]


def _paths(lines: list[str]) -> Iterator[tuple[str, str]]:
    """`ECC Mode/Current` → `Enabled`, by indentation."""
    above: list[tuple[int, str]] = []
    for line in lines:
        text = line.strip()
        if not text:
            continue
        indent = len(line) - len(line.lstrip())
        while above and above[-1][0] >= indent:
            above.pop()
        name, colon, value = text.partition(":")
        if colon:
            yield "/".join([*(one for _, one in above), name.strip()]), value.strip()
        else:
            above.append((indent, text))


def _card(bus: str, values: Mapping[str, str]) -> dict[str, Any]:
    name = _get(values, "Product Name")
    if name is None:
        return {"error": f"nvidia-smi could not ask the GPU at {bus}"}
    return {
        "name": name,
        "uuid": _get(values, "GPU UUID"),
        "bus": bus,
        "memory": _scaled(values, "FB Memory Usage/Total", 1 << 20),
        "persistence": _SWITCH.get(_get(values, "Persistence Mode") or ""),
        "ecc": _SWITCH.get(_get(values, "ECC Mode/Current") or ""),
        "ecc_pending": _SWITCH.get(_get(values, "ECC Mode/Pending") or ""),
        "mig": _SWITCH.get(_get(values, "MIG Mode/Current") or ""),
        "mig_pending": _SWITCH.get(_get(values, "MIG Mode/Pending") or ""),
        "power_limit": _power(values),
        "clocks_max": [_number(values, f"Max Clocks/{one}") for one in ("SM", "Memory")],
        "clocks_application": [_number(values, f"Applications Clocks/{one}") for one in ("Graphics", "Memory")],
        "pcie_generation": _number(values, "PCI/GPU Link Info/PCIe Generation/Max"),
        "pcie_width": _number(values, "PCI/GPU Link Info/Link Width/Max"),
        "compute_mode": _COMPUTE.get(_get(values, "Compute Mode") or ""),
        "vbios": _get(values, "VBIOS Version"),
        "now": {
            "temperature": _number(values, "Temperature/GPU Current Temp"),
            "sm_clock": _number(values, "Clocks/SM"),
            "pcie_width": _number(values, "PCI/GPU Link Info/Link Width/Current"),
        },
    }


def _get(values: Mapping[str, str], path: str) -> str | None:
    value = values.get(path)
    return None if value in (None, "", *_NOTHING) else value


def _power(values: Mapping[str, str]) -> int | None:
    for path in ("GPU Power Readings/Current Power Limit", "Power Readings/Power Limit"):
        found = re.match(r"([\d.]+) W", values.get(path, ""))
        if found:
            return round(float(found[1]) * 1000)
    return None


def _number(values: Mapping[str, str], path: str) -> int | None:
    found = re.match(r"\d+", values.get(path, ""))
    return int(found[0]) if found else None


def _scaled(values: Mapping[str, str], path: str, factor: int) -> int | None:
    number = _number(values, path)
    return None if number is None else number * factor
