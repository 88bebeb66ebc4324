"""Asks NVML for every GPU and prints JSON: run by itself as `python -I -S nvml.py FOLDER`, where pynvml lies, so that a
driver that hangs or crashes takes nobody with it.

Prints `{"cards": [{…} | {"error": …}]}`, one for each index, or `{"error": …}`, or `{"missing": true}` without
nvidia-ml-py. Numbers are NVML's own: milliwatts, MHz, bytes.
Never: is imported by lockd, or changes a setting.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any


def _tried(ask: Callable[..., Any], *args: Any) -> Any:
    """What NVML says, None where this GPU has no such thing; a GPU that is lost raises."""
    import pynvml

    try:
        value = ask(*args)
    except (
        pynvml.NVMLError_NotSupported,
        pynvml.NVMLError_InvalidArgument,
        pynvml.NVMLError_FunctionNotFound,
        pynvml.NVMLError_NoPermission,
    ):
        return None
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value


def _card(nvml: Any, index: int) -> dict[str, Any]:
    handle = nvml.nvmlDeviceGetHandleByIndex(index)
    ecc = _tried(nvml.nvmlDeviceGetEccMode, handle) or (None, None)
    mig = _tried(nvml.nvmlDeviceGetMigMode, handle) or (None, None)
    memory = _tried(nvml.nvmlDeviceGetMemoryInfo, handle)
    pci = _tried(nvml.nvmlDeviceGetPciInfo, handle)
    bus = getattr(pci, "busId", "") if pci is not None else ""
    return {
        "name": _tried(nvml.nvmlDeviceGetName, handle),
        "uuid": _tried(nvml.nvmlDeviceGetUUID, handle),
        "bus": bus.decode() if isinstance(bus, bytes) else bus,
        "memory": memory.total if memory is not None else None,
        "persistence": _tried(nvml.nvmlDeviceGetPersistenceMode, handle),
        "ecc": ecc[0],
        "ecc_pending": ecc[1],
        "mig": mig[0],
        "mig_pending": mig[1],
        "power_limit": _tried(nvml.nvmlDeviceGetPowerManagementLimit, handle),
        "clocks_max": [_tried(nvml.nvmlDeviceGetMaxClockInfo, handle, one) for one in (1, 2)],
        "clocks_application": [_tried(nvml.nvmlDeviceGetApplicationsClock, handle, one) for one in (1, 2)],
        "pcie_generation": _tried(nvml.nvmlDeviceGetMaxPcieLinkGeneration, handle),
        "pcie_width": _tried(nvml.nvmlDeviceGetMaxPcieLinkWidth, handle),
        "compute_mode": _tried(nvml.nvmlDeviceGetComputeMode, handle),
        "nvlinks": _links(nvml, handle),
        "vbios": _tried(nvml.nvmlDeviceGetVbiosVersion, handle),
        "now": {
            "temperature": _tried(nvml.nvmlDeviceGetTemperature, handle, 0),
            "sm_clock": _tried(nvml.nvmlDeviceGetClockInfo, handle, 1),
            "throttle": _tried(nvml.nvmlDeviceGetCurrentClocksThrottleReasons, handle),
            "pcie_width": _tried(nvml.nvmlDeviceGetCurrPcieLinkWidth, handle),
        },
    }


def _links(nvml: Any, handle: Any) -> list[int] | None:
    """The state of each NVLink, in their order; None where the GPU has none."""
    states = []
    for link in range(getattr(nvml, "NVML_NVLINK_MAX_LINKS", 18)):
        state = _tried(nvml.nvmlDeviceGetNvLinkState, handle, link)
        if state is None:
            break
        states.append(state)
    return states or None


def _ask() -> dict[str, Any]:
    try:
        import pynvml as nvml
    except ImportError:
        return {"missing": True}
    try:
        nvml.nvmlInit()
        cards: list[dict[str, Any]] = []
        for index in range(nvml.nvmlDeviceGetCount()):
            try:
                cards.append(_card(nvml, index))
            except nvml.NVMLError as error:
                cards.append({"error": str(error)})
        return {"cards": cards}
    except nvml.NVMLError as error:
        return {"error": str(error)}


if __name__ == "__main__":
    import sys

    sys.path += sys.argv[1:]
    sys.stdout.write(json.dumps(_ask()))
