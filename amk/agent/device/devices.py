"""Which GPUs this machine has, from files: the driver process of a search never talks to the CUDA driver."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from amk.targets.target import Target

DRIVER = Path("/proc/driver/nvidia/gpus")


@dataclass(frozen=True)
class LocalGpu:
    """`ordinal` is the position in bus order, which is CUDA's with CUDA_DEVICE_ORDER=PCI_BUS_ID. uuid: of the card, ""
    where the driver does not tell."""

    ordinal: int
    name: str
    uuid: str = ""


def local_gpus(root: Path = DRIVER) -> list[LocalGpu]:
    found = []
    try:
        folders = sorted(root.iterdir())
    except OSError:
        return []
    for ordinal, folder in enumerate(folders):
        try:
            lines = (folder / "information").read_text(encoding="utf-8", errors="replace").splitlines()
        except OSError:
            continue
        found.append(LocalGpu(ordinal, value_of(lines, "Model"), card_name(value_of(lines, "GPU UUID"))))
    return found


def visible(gpus: Sequence[LocalGpu], setting: str | None) -> list[LocalGpu]:
    """Those that CUDA may use, in its order and with its ordinals.

    setting: CUDA_VISIBLE_DEVICES, which names ordinals or beginnings of uuids, and ends at the first that is none."""
    if setting is None:
        return list(gpus)
    found: list[LocalGpu] = []
    for word in (each.strip() for each in setting.split(",")):
        named = [g for g in gpus if str(g.ordinal) == word or (word.startswith("GPU-") and g.uuid.startswith(word))]
        if len(named) != 1:
            break
        found.append(replace(named[0], ordinal=len(found)))
    return found


def value_of(lines: list[str], what: str) -> str:
    """The value of a line "what: value"; "" if there is none."""
    return next((line.partition(":")[2].strip() for line in lines if line.startswith(what)), "")


def card_name(uuid: str) -> str:
    """The driver writes question marks where it does not know."""
    return "" if "?" in uuid else uuid


def matching(target: Target, gpus: list[LocalGpu]) -> list[LocalGpu]:
    """The GPUs that are the target."""
    return [gpu for gpu in gpus if same_model(target.title, gpu.name)]


def same_model(title: str, name: str) -> bool:
    """Whether a driver's name means the GPU of a title: "NVIDIA H200" is an "NVIDIA H200 SXM 141GB", and an
    "NVIDIA A100-SXM4-80GB" an "NVIDIA A100 80GB", but an "NVIDIA H100 PCIe" is no "NVIDIA H100 SXM 80GB"."""
    wanted, here = (re.split(r"[\s-]+", text.lower()) for text in (title, name))
    model = [next((w for w in words if any(c.isdigit() for c in w)), "") for words in (wanted, here)]
    memory = [{w for w in words if re.fullmatch(r"\d+gb", w)} for words in (wanted, here)]
    other_form = any(w in here and w not in wanted for w in ("pcie", "nvl", "laptop", "ada"))
    return model[0] == model[1] != "" and not other_form and (not all(memory) or memory[0] == memory[1])
