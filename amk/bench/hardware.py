"""Where and when a measurement was made: the GPU's state as nvidia-smi reports it, versions, commit, date."""

from __future__ import annotations

import datetime
import os
import platform
import subprocess
from pathlib import Path

from amk import __version__
from amk.lowering.launch import Device

QUERIES = {
    "name": "name",
    "driver": "driver_version",
    "sm_clock_mhz": "clocks.sm",
    "memory_clock_mhz": "clocks.mem",
    "temperature_c": "temperature.gpu",
    "power_w": "power.draw",
    "memory_used_mib": "memory.used",
}


def gpu_state(device: Device) -> dict[str, str]:
    """Clocks, temperature and tenants; only the driver's name of the GPU where nvidia-smi cannot be run."""
    fields = _nvidia_smi(device, "--query-gpu=" + ",".join(QUERIES.values()))
    if fields is None:
        return {"name": device.name, "nvidia-smi": "not available"}
    values = [value.strip() for value in fields.split(",")]
    state = dict(zip(QUERIES, values, strict=False))
    tenants = _nvidia_smi(device, "--query-compute-apps=pid")
    state["compute_processes"] = str(len((tenants or "").split()))
    return state


def _nvidia_smi(device: Device, query: str) -> str | None:
    command = ["nvidia-smi", f"--id={device.ordinal}", query, "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def provenance(command: str, device: Device) -> dict[str, object]:
    """What a recorded row needs so that somebody else can repeat it."""
    return {
        "command": command,
        "commit": commit(),
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "amk": __version__,
        "python": platform.python_version(),
        "hardware": gpu_state(device),
    }


def commit() -> str:
    """The checkout's commit, with '+' when files differ from it; AMK_COMMIT where the code was copied without git."""
    if named := os.environ.get("AMK_COMMIT"):
        return named
    root = Path(__file__).resolve().parents[2]
    if not (root / ".git").exists():
        return f"release {__version__}"
    head, dirty = _git(root, "rev-parse", "--short=12", "HEAD"), _git(root, "status", "--porcelain", "-uno")
    return f"{head}{'+' if dirty else ''}" if head else "unknown"


def _git(root: Path, *words: str) -> str:
    try:
        done = subprocess.run(["git", "-C", str(root), *words], capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""
