"""The state file: hidden states of one token sequence, as a safetensors file with a canonical header.

| tensor | dtype | shape | meaning |
|---|---|---|---|
| ``hidden_states`` | BF16 or F8_E4M3 | [num_tokens, num_slots, hidden_size] | slots by layer, the final state last |
| ``token_ids`` | I64 | [num_tokens] | the ids the states belong to |
| ``hidden_states_scales`` | F32 | [num_tokens, 1, 1] | with F8_E4M3 only: what each token's values are multiplied by |

The tensors lie in this order. The scales are as speculators' ``fp8`` backend reads them, one a token for all its slots.

The header's ``__metadata__`` says what the states are (``key``, ``fingerprint``, ``layers``, ``final``) and carries
the checksum of everything after the header. The header has one possible byte string for given values, so that
reading it proves the file's identity, and comparing it finds any change in it. This module is standard library
only: the capture plug-in loads it inside the server.

Format: https://huggingface.co/docs/safetensors (8 bytes little-endian header length, JSON, data; the JSON may be
padded with spaces).
"""

import hashlib
import json
import re
import struct
from dataclasses import dataclass
from typing import Any

FORMAT_VERSION = "1"
HEADER_BYTES = 1024
"""Length of every header, the 8 bytes of its length included; data begins here, known before the first row."""

CHECKSUM_PATTERN = re.compile(r"[0-9a-f]{32}")
NO_CHECKSUM = "0" * 32
DTYPE_BYTES = {"BF16": 2, "F16": 2, "F32": 4, "F8_E4M3": 1}
DTYPES = {"bfloat16": "BF16", "float8": "F8_E4M3"}
"""Storage setting → dtype as safetensors names it."""

FLOAT8 = "F8_E4M3"
SCALE_BYTES = 4


def sample_key(token_ids: bytes) -> str:
    """Key of a token sequence: BLAKE2b-128 of its ids as little-endian int64, in hex (32 characters)."""
    return hashlib.blake2b(token_ids, digest_size=16).hexdigest()


def bytes_per_token(num_slots: int, hidden_size: int, dtype: str) -> int:
    """Bytes of the states of one token, and of their scale where they have one; its id apart."""
    return num_slots * hidden_size * DTYPE_BYTES[dtype] + (SCALE_BYTES if dtype == FLOAT8 else 0)


@dataclass(frozen=True)
class StateHeader:
    """Everything the header of a state file says.

    ``layers`` are the auxiliary layers L, ascending, without the final state; ``final`` is ``pre_norm`` or
    ``post_norm``; ``checksum`` is XXH3-128 of the bytes after the header, in hex.
    """

    key: str
    fingerprint: str
    layers: tuple[int, ...]
    final: str
    dtype: str
    num_tokens: int
    hidden_size: int
    checksum: str

    @property
    def num_slots(self) -> int:
        return len(self.layers) + 1

    @property
    def row_bytes(self) -> int:
        """Bytes of one row of ``hidden_states``, all slots."""
        return self.num_slots * self.hidden_size * DTYPE_BYTES[self.dtype]

    @property
    def bytes_per_token(self) -> int:
        """The same with the row's scale, where it has one."""
        return bytes_per_token(self.num_slots, self.hidden_size, self.dtype)

    @property
    def is_scaled(self) -> bool:
        return self.dtype == FLOAT8

    @property
    def states_bytes(self) -> int:
        return self.num_tokens * self.row_bytes

    @property
    def scales_offset(self) -> int:
        """Where in the file the scales begin, float32 [num_tokens]; the end of the file when there are none."""
        return HEADER_BYTES + self.states_bytes + 8 * self.num_tokens

    @property
    def file_bytes(self) -> int:
        return HEADER_BYTES + self.num_tokens * (self.bytes_per_token + 8)

    def to_bytes(self) -> bytes:
        """The header, exactly HEADER_BYTES long."""
        end, last = self.states_bytes, self.states_bytes + 8 * self.num_tokens
        content: dict[str, Any] = {
            "__metadata__": {
                "checksum": self.checksum,
                "final": self.final,
                "fingerprint": self.fingerprint,
                "format": FORMAT_VERSION,
                "key": self.key,
                "layers": ",".join(str(layer) for layer in self.layers),
            },
            "hidden_states": {
                "dtype": self.dtype,
                "shape": [self.num_tokens, self.num_slots, self.hidden_size],
                "data_offsets": [0, end],
            },
            "token_ids": {
                "dtype": "I64",
                "shape": [self.num_tokens],
                "data_offsets": [end, last],
            },
        }
        if self.is_scaled:
            content["hidden_states_scales"] = {
                "dtype": "F32",
                "shape": [self.num_tokens, 1, 1],
                "data_offsets": [last, last + SCALE_BYTES * self.num_tokens],
            }
        text = json.dumps(content, separators=(",", ":")).encode()
        room = HEADER_BYTES - 8
        if len(text) > room:
            raise ValueError(f"header of {len(text)} bytes does not fit {room}: too many layers ({len(self.layers)})")
        return struct.pack("<Q", room) + text.ljust(room)

    @classmethod
    def from_bytes(cls, raw: bytes) -> "StateHeader":
        """Parse the first HEADER_BYTES of a file.

        Raises ValueError, saying what is wrong, unless ``raw`` is byte for byte what ``to_bytes`` gives.
        """
        if len(raw) < HEADER_BYTES:
            raise ValueError(f"only {len(raw)} bytes, too short for the header of {HEADER_BYTES}")
        raw = raw[:HEADER_BYTES]
        (length,) = struct.unpack("<Q", raw[:8])
        if length != HEADER_BYTES - 8:
            raise ValueError(f"header length {length} instead of {HEADER_BYTES - 8}")
        try:
            content: dict[str, Any] = json.loads(raw[8:])
            metadata = content["__metadata__"]
            num_tokens, _, hidden_size = content["hidden_states"]["shape"]
            header = cls(
                key=metadata["key"],
                fingerprint=metadata["fingerprint"],
                layers=tuple(int(layer) for layer in metadata["layers"].split(",") if layer),
                final=metadata["final"],
                dtype=content["hidden_states"]["dtype"],
                num_tokens=num_tokens,
                hidden_size=hidden_size,
                checksum=metadata["checksum"],
            )
            same = header.to_bytes() == raw
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"header is not that of a state file ({error})") from None
        if not same or not CHECKSUM_PATTERN.fullmatch(header.checksum):
            raise ValueError("header is damaged: it is not the canonical one for its values")
        return header
