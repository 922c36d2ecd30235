"""What the plug-in is told, by environment variables alone: they reach every process of the server."""

import os
from dataclasses import dataclass
from pathlib import Path

SWITCH = "SGLANG_HS_DUMP_DIR"


@dataclass(frozen=True)
class CaptureSettings:
    """``layers``: auxiliary layers L, ascending. ``buffer_bytes``: host memory for rows on their way to the disk.
    ``wait_seconds``: longest wait for a free buffer, below the 300 s after which SGLang's watchdog ends the server."""

    dump: Path
    fingerprint: str
    layers: tuple[int, ...]
    final: str
    storage: str
    rid_prefix: str
    buffer_bytes: int
    wait_seconds: float

    @classmethod
    def from_environment(cls) -> "CaptureSettings":
        """Raises KeyError or ValueError for a variable that is missing or wrong."""
        final = os.environ.get("SGLANG_HS_FINAL", "pre_norm")
        if final not in ("pre_norm", "post_norm"):
            raise ValueError(f"SGLANG_HS_FINAL is {final!r}; it must be pre_norm or post_norm")
        storage = os.environ.get("SGLANG_HS_STORAGE", "bfloat16")
        if storage != "bfloat16":
            raise ValueError(f"SGLANG_HS_STORAGE is {storage!r}; it must be bfloat16")
        prefix = os.environ["SGLANG_HS_RID_PREFIX"]
        if not prefix:
            raise ValueError("SGLANG_HS_RID_PREFIX is empty: every request would be captured")
        return cls(
            dump=Path(os.environ[SWITCH]),
            fingerprint=os.environ["SGLANG_HS_FINGERPRINT"],
            layers=tuple(int(layer) for layer in os.environ["SGLANG_HS_LAYERS"].split(",") if layer),
            final=final,
            storage=storage,
            rid_prefix=prefix,
            buffer_bytes=int(os.environ.get("SGLANG_HS_BUFFER_BYTES", str(4 << 30))),
            wait_seconds=float(os.environ.get("SGLANG_HS_WAIT_SECONDS", "60")),
        )
