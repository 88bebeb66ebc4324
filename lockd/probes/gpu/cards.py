"""The GPUs one by one: NVIDIA's as NVML tells of them (nvidia-smi where nvidia-ml-py is not installed), AMD's by sysfs.

Always holds: whoever was asked, the words of one setting are the same. The question is asked in a process of its own
that is ended after `SECONDS`. A GPU that does not answer is an Unknown of its index; its neighbours are facts.
UUIDs, bus numbers, and what a GPU does at the moment are told, never compared.
Never: changes a setting, or calls a driver in lockd's own process.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from lockd.facts import Fact, Unknown, Value, shown
from lockd.probes import bounded
from lockd.probes.gpu.driver import amd_cards
from lockd.probes.gpu.smi import parse

SECONDS = 5.0
NVML = (sys.executable, "-I", "-S", os.path.join(os.path.dirname(__file__), "nvml.py"))  # and where pynvml lies
SMI = ("nvidia-smi", "-q")
SETTINGS = (  # attributes of a card that a policy can name
    "name",
    "memory",
    "persistence",
    "ecc",
    "ecc_pending",
    "mig",
    "mig_pending",
    "power_limit",
    "clocks_max",
    "clocks_application",
    "pcie_max",
    "compute_mode",
    "nvlinks",
    "power_cap",
    "performance",
)
_COMPUTE = ("default", "exclusive_thread", "prohibited", "exclusive_process")
_IDLE = 1  # the throttle reason that only says that nothing runs


def begin(root: str) -> bounded.Begun | None:
    """Ask NVML, whose driver takes its time, so that the rest can be looked at meanwhile. None: no NVIDIA GPU here."""
    return bounded.begin((*NVML, *_pynvml()), SECONDS) if _has_nvidia(root) else None


def cards(root: str, wanted: Iterable[str], begun: bounded.Begun | None = None) -> list[Fact | Unknown]:
    """A fact for each GPU with the settings that are wanted. begun: where NVML was asked before."""
    names = frozenset(wanted)
    found: list[Fact | Unknown] = []
    if _has_nvidia(root):
        found += _nvidia(names, begun or bounded.begin((*NVML, *_pynvml()), SECONDS))
    elif begun is not None:
        begun.drop()
    first = len(found)
    for number, folder in enumerate(amd_cards(root)):
        found.append(_fact(first + number, *_amd(folder), names))
    return found


def _has_nvidia(root: str) -> bool:
    return any(os.path.exists(os.path.join(root, path)) for path in ("proc/driver/nvidia", "dev/nvidiactl"))


def _nvidia(names: frozenset[str], begun: bounded.Begun) -> list[Fact | Unknown]:
    answer = _answer(begun)
    if isinstance(answer, str):
        return [Unknown("gpu", "*", shown(answer))]
    found: list[Fact | Unknown] = []
    for index, card in enumerate(answer):
        if "error" in card:
            found.append(Unknown("gpu", str(index), shown(f"NVML: {card['error']}")))
        else:
            found.append(_fact(index, _settings(card), _told(card), names))
    return found


def _answer(begun: bounded.Begun) -> list[Mapping[str, Any]] | str:
    """Every card, or why nobody can tell."""
    asked = begun.answer()
    if asked.problem:
        return f"NVML: {asked.problem}"
    try:
        answer = json.loads(asked.text)
    except ValueError:
        return "NVML: an answer that is no JSON"
    if "cards" in answer:
        listed: list[Mapping[str, Any]] = answer["cards"]
        return listed
    if "error" in answer:
        return f"NVML: {answer['error']}"
    asked = bounded.ask(SMI, SECONDS)
    if asked.problem:
        return f"nvidia-ml-py is not installed beside lockd: pip install 'lockd[nvidia]'; nvidia-smi: {asked.problem}"
    return parse(asked.text)


def _pynvml() -> list[str]:
    """The folder of nvidia-ml-py: the child starts without `site`, which costs more than the question."""
    return [folder for folder in sys.path if os.path.exists(os.path.join(folder, "pynvml.py"))][:1]


def _fact(index: int, settings: Mapping[str, Value], told: Mapping[str, Value], names: frozenset[str]) -> Fact:
    chosen = {name: value for name, value in settings.items() if name in names}
    rest = {name: value for name, value in settings.items() if name not in names}
    return Fact("gpu", str(index), chosen or {"present": True}, {**rest, **told})


def _settings(card: Mapping[str, Any]) -> dict[str, Value]:
    """NVML's numbers in words; what a GPU does not have is not there."""
    mode, links = card.get("compute_mode"), card.get("nvlinks")
    settings: dict[str, Value | None] = {
        "name": shown(str(card["name"])) if card.get("name") else None,
        "memory": f"{card['memory'] >> 20} MiB" if card.get("memory") else None,
        **{name: _switch(card.get(name)) for name in ("persistence", "ecc", "ecc_pending", "mig", "mig_pending")},
        "power_limit": f"{card['power_limit'] / 1000:.0f} W" if card.get("power_limit") else None,
        "clocks_max": _clocks(card.get("clocks_max")),
        "clocks_application": _clocks(card.get("clocks_application")),
        "pcie_max": f"gen{card['pcie_generation']} x{card['pcie_width']}" if card.get("pcie_width") else None,
        "compute_mode": _COMPUTE[mode] if isinstance(mode, int) and 0 <= mode < len(_COMPUTE) else None,
        "nvlinks": f"{sum(links)} of {len(links)} active" if links else None,
    }
    return {name: value for name, value in settings.items() if value is not None}


def _switch(value: Any) -> Value | None:
    return None if value is None else "on" if value else "off"


def _clocks(pair: Any) -> str | None:
    if not pair or None in pair:
        return None
    return f"{pair[0]}/{pair[1]} MHz"


def _told(card: Mapping[str, Any]) -> dict[str, Value]:
    told: dict[str, Value] = {
        name: shown(str(card[name])) for name in ("uuid", "bus", "vbios") if card.get(name) is not None
    }
    now = card.get("now") or {}
    if now.get("temperature") is not None:
        told["temperature"] = now["temperature"]
    if now.get("sm_clock") is not None:
        told["clock"] = f"{now['sm_clock']} MHz"
    if (now.get("throttle") or 0) & ~_IDLE:
        told["throttle"] = f"0x{now['throttle']:x}"
    if now.get("pcie_width") is not None and now["pcie_width"] != card.get("pcie_width"):
        told["pcie_now"] = f"x{now['pcie_width']}"
    return told


# -- AMD ---------------------------------------------------------------------------------------------------------------


def _amd(folder: str) -> tuple[dict[str, Value], dict[str, Value]]:
    """What sysfs gives of one card: its names, memory, and the settings of its driver."""
    settings: dict[str, Value] = {}
    device = _line(f"{folder}/device")
    settings["name"] = shown(_line(f"{folder}/product_name") or f"AMD {device}")
    memory = _line(f"{folder}/mem_info_vram_total")
    if memory.isdigit():
        settings["memory"] = f"{int(memory) >> 20} MiB"
    level = _line(f"{folder}/power_dpm_force_performance_level")
    if level:
        settings["performance"] = shown(level)
    speed, width = _line(f"{folder}/max_link_speed"), _line(f"{folder}/max_link_width")
    if speed and width:
        settings["pcie_max"] = shown(f"{speed} x{width}")
    for cap in _capped(folder):
        settings["power_cap"] = f"{cap // 1_000_000} W"
    told: dict[str, Value] = {"bus": shown(os.path.basename(os.path.realpath(folder)))}
    vbios, unique = _line(f"{folder}/vbios_version"), _line(f"{folder}/unique_id")
    told.update({name: shown(text) for name, text in (("vbios", vbios), ("uuid", unique)) if text})
    return settings, told


def _capped(folder: str) -> Iterator[int]:
    base = f"{folder}/hwmon"
    for name in sorted(os.listdir(base)) if os.path.isdir(base) else ():
        cap = _line(f"{base}/{name}/power1_cap")
        if cap.isdigit():
            yield int(cap)


def _line(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="surrogateescape") as file:
            return file.readline(4096).strip()
    except OSError:
        return ""
