"""Where and when a measurement was made: the GPU's state as nvidia-smi reports it, versions, commit, date."""

from __future__ import annotations

import os
import subprocess

from amk.bench.tools.provenance import software
from amk.lowering.launch import Device

QUERIES = {
    "name": "name",
    "uuid": "uuid",
    "driver": "driver_version",
    "sm_clock_mhz": "clocks.sm",
    "memory_clock_mhz": "clocks.mem",
    "temperature_c": "temperature.gpu",
    "power_w": "power.draw",
    "power_limit_w": "power.limit",
    "throttle_reasons": "clocks_event_reasons.active",
    "memory_used_mib": "memory.used",
}


def gpu_state(device: Device) -> dict[str, str]:
    """Clocks, temperature and tenants; only the driver's name of the GPU where nvidia-smi cannot be run."""
    fields = _nvidia_smi(device, "--query-gpu=" + ",".join(QUERIES.values()))
    if fields is None:
        return {"name": device.name, "uuid": device.uuid(), "nvidia-smi": "not available"}
    values = [value.strip() for value in fields.split(",")]
    state = dict(zip(QUERIES, values, strict=False))
    tenants = _nvidia_smi(device, "--query-compute-apps=pid")
    state["compute_processes"] = str(len((tenants or "").split()))
    return state


def smi_name(ordinal: int) -> str:
    """What nvidia-smi calls the process's GPU: CUDA_VISIBLE_DEVICES hides the others from the process only."""
    visible = [name for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name]
    return visible[ordinal] if ordinal < len(visible) else str(ordinal)


def _nvidia_smi(device: Device, query: str) -> str | None:
    command = ["nvidia-smi", f"--id={smi_name(device.ordinal)}", query, "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def provenance(command: str, device: Device) -> dict[str, object]:
    """`software`, and the state of the GPU."""
    return software(command) | {"hardware": gpu_state(device)}
