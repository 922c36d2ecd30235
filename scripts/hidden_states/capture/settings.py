"""What the plug-in is told, by environment variables alone: they reach every process of the server."""

import os
import re
from dataclasses import dataclass
from pathlib import Path

from hidden_states.store.state_file import DTYPES

SWITCH = "SGLANG_HS_DUMP_DIR"
SAFE_RID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,199}")
"""A rid becomes a file name: no separators, no leading dot, bounded length."""
MAX_WAIT_SECONDS = 240
"""SGLang's watchdog ends a server whose scheduler stands still for 300 s."""


@dataclass(frozen=True)
class CaptureSettings:
    """``layers``: auxiliary layers L, ascending. ``buffer_bytes``: host memory for rows on their way to the disk.
    ``wait_seconds``: longest wait of one forward for a free buffer."""

    dump: Path
    fingerprint: str
    layers: tuple[int, ...]
    final: str
    storage: str
    rid_prefix: str
    buffer_bytes: int
    wait_seconds: float

    @property
    def num_slots(self) -> int:
        return len(self.layers) + 1

    @classmethod
    def from_environment(cls) -> "CaptureSettings":
        """Raises ValueError, naming the variable, for one that is missing or wrong."""
        fingerprint = _variable("SGLANG_HS_FINGERPRINT")
        if not re.fullmatch(r"[0-9a-f]{32}", fingerprint):
            raise ValueError(f"SGLANG_HS_FINGERPRINT is {fingerprint!r}; it must be 32 hex characters")
        prefix = _variable("SGLANG_HS_RID_PREFIX")
        if not SAFE_RID.fullmatch(prefix) or prefix.startswith("capture"):
            # capture.json, capture.error.json and capture_stats.json are the plug-in's own.
            raise ValueError(f"SGLANG_HS_RID_PREFIX is {prefix!r}; letters, digits, _.- and not capture… are needed")
        wait_seconds = _number("SGLANG_HS_WAIT_SECONDS", "60", float)
        if not 0 < wait_seconds <= MAX_WAIT_SECONDS:
            raise ValueError(f"SGLANG_HS_WAIT_SECONDS is {wait_seconds:g}; 0 < seconds ≤ {MAX_WAIT_SECONDS} is needed")
        return cls(
            dump=Path(_variable(SWITCH)),
            fingerprint=fingerprint,
            layers=_layers(),
            final=_choice("SGLANG_HS_FINAL", "pre_norm", ("pre_norm", "post_norm")),
            storage=_choice("SGLANG_HS_STORAGE", "bfloat16", tuple(DTYPES)),
            rid_prefix=prefix,
            buffer_bytes=_number("SGLANG_HS_BUFFER_BYTES", str(4 << 30), int),
            wait_seconds=wait_seconds,
        )


def _variable(name: str) -> str:
    value = os.environ.get(name, "")
    if not value:
        raise ValueError(f"{name} is not set")
    return value


def _choice(name: str, default: str, choices: tuple[str, ...]) -> str:
    value = os.environ.get(name, default)
    if value not in choices:
        raise ValueError(f"{name} is {value!r}; it must be {' or '.join(choices)}")
    return value


def _number(name: str, default: str, kind: type) -> int | float:
    value = os.environ.get(name, default)
    try:
        return kind(value)
    except ValueError:
        raise ValueError(f"{name} is {value!r}; a number is needed") from None


def _layers() -> tuple[int, ...]:
    """Empty for the final state alone."""
    value = os.environ.get("SGLANG_HS_LAYERS", "")
    try:
        layers = tuple(int(layer) for layer in value.split(",") if layer)
    except ValueError:
        layers = (0,)
    if list(layers) != sorted(set(layers)) or min(layers, default=1) < 1:
        raise ValueError(f"SGLANG_HS_LAYERS is {value!r}; ascending layer numbers such as 2,30,58 are needed")
    return layers
