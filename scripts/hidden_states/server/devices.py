"""Which devices there are, and which of them belong to a slot."""

import os
import re
import subprocess
from pathlib import Path

from hidden_states.errors import UserError


def choose_device(setting: str) -> str:
    """``cuda`` or ``cpu``; ``auto`` takes CUDA when an NVIDIA device is visible. Raises UserError without one."""
    if setting == "cpu":
        return "cpu"
    if visible_devices():
        return "cuda"
    if setting == "cuda":
        raise UserError(
            "config key server.device = cuda, but no NVIDIA device is visible here "
            f"(CUDA_VISIBLE_DEVICES is {os.environ.get('CUDA_VISIBLE_DEVICES', 'not set')}); use cpu, or another host."
        )
    return "cpu"


def visible_devices() -> list[str]:
    """The CUDA devices that may be used, in the order of ``CUDA_VISIBLE_DEVICES``, or all of the host."""
    present = sorted(
        (node.name[6:] for node in Path("/dev").glob("nvidia*") if re.fullmatch(r"nvidia\d+", node.name)), key=int
    )
    listed = os.environ.get("CUDA_VISIBLE_DEVICES")
    if listed is None or not present:
        return present
    names = [name.strip() for name in listed.split(",") if name.strip() not in ("", "-1")]
    return [_index(name) for name in names]


def slot_devices(device: str, slot: int, tensor_parallel_size: int) -> list[str]:
    """Names of the devices of a slot: ``cpu-0``, or ``cuda-4`` … ``cuda-7``.

    Slot k owns the devices k·tp to (k+1)·tp of those that are visible. Raises UserError when there are too few.
    """
    if device == "cpu":
        return [f"cpu-{slot}"]
    devices = visible_devices()
    first, end = slot * tensor_parallel_size, (slot + 1) * tensor_parallel_size
    if end > len(devices):
        raise UserError(
            f"config keys server.slots and server.arguments.tensor_parallel_size: slot {slot} needs devices {first} to "
            f"{end - 1}, but only {len(devices)} are visible; lower one of the two."
        )
    return [f"cuda-{name}" for name in devices[first:end]]


def _index(name: str) -> str:
    """The number of a device that is given by its UUID, so that both names take the same lock."""
    if name.isdigit():
        return name
    try:
        listed = subprocess.run(
            ["nvidia-smi", "--query-gpu=index,uuid", "--format=csv,noheader"],
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        ).stdout
    except (OSError, subprocess.SubprocessError):
        return name
    for line in listed.splitlines():
        index, _, uuid = line.partition(", ")
        if uuid.startswith(name):
            return index
    return name
