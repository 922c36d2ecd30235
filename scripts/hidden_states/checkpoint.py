"""What a model's folder says about itself: text config, tensors by name, and a digest of the weights.

Reads ``config.json``, ``model.safetensors.index.json`` and the headers of the shards; no weights are loaded unless
one tensor is asked for. Multimodal wrappers (Kimi-K2.5) nest the language model: numbers come from the nested text
config, and tensor names carry a prefix such as ``language_model.``.
"""

import hashlib
import json
import os
import struct
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hidden_states.errors import UserError
from hidden_states.files import write_json

if TYPE_CHECKING:
    import torch

NESTED_CONFIGS = ("text_config", "language_config", "llm_config")
NAME_PREFIXES = ("", "language_model.", "model.language_model.", "language_model.model.")
MAX_HEADER_BYTES = 100_000_000
DIGEST_BYTES = 64 * 1024
"""Bytes read of every tensor for the weights' digest."""


@dataclass(frozen=True)
class TextConfig:
    """The numbers of the language model; ``raw`` is its (nested) config as read."""

    architectures: tuple[str, ...]
    model_type: str
    num_layers: int
    hidden_size: int
    vocab_size: int
    context_length: int | None
    dtype: str
    raw: dict[str, Any]


@dataclass(frozen=True)
class TensorEntry:
    """One tensor of the checkpoint: ``begin`` and ``end`` are byte offsets in ``file``; ``dtype`` as safetensors
    names it (``BF16``, ``F32``, …)."""

    name: str
    file: Path
    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int


def resolve_model(path: str, revision: str | None) -> Path:
    """The folder of the model: ``path`` itself, or the snapshot of that Hugging Face repository, downloaded if needed.

    Raises UserError when ``path`` is neither.
    """
    folder = Path(path)
    if folder.is_dir():
        return folder
    if path.startswith(("/", "./", "../", "~")) or path.count("/") != 1:
        raise UserError(
            f"config key model.path: there is no folder {path}; give the folder of a model, or the id of a "
            "Hugging Face repository such as owner/name."
        )
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    try:
        return Path(snapshot_download(path, revision=revision))
    except (HfHubHTTPError, HFValidationError, LocalEntryNotFoundError, OSError) as error:
        raise UserError(
            f"config key model.path: {path} is not a folder here, and could not be downloaded from Hugging Face "
            f"(revision {revision or 'main'}): {error}"
        ) from error


def read_text_config(config_file: Path) -> TextConfig:
    """Read ``config.json``; raises UserError naming the file and the key that is missing or wrong."""
    try:
        outer = json.loads(config_file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UserError(
            f"{config_file} is missing: config key model.path must name the folder of a Hugging Face model."
        ) from None
    except (OSError, ValueError) as error:
        raise UserError(f"{config_file} cannot be read as JSON: {error}") from error
    if not isinstance(outer, dict):
        raise UserError(f"{config_file} does not hold a JSON object.")
    nested = next((outer[name] for name in NESTED_CONFIGS if isinstance(outer.get(name), dict)), outer)
    numbers = {}
    for key in ("num_hidden_layers", "hidden_size", "vocab_size"):
        value = nested.get(key)
        if not isinstance(value, int) or isinstance(value, bool) or value <= 0:
            raise UserError(f"{config_file}: {key} is {value!r}; a positive whole number is needed.")
        numbers[key] = value
    dtype = nested.get("dtype") or nested.get("torch_dtype") or outer.get("dtype") or outer.get("torch_dtype")
    return TextConfig(
        architectures=tuple(outer.get("architectures") or nested.get("architectures") or ()),
        model_type=str(nested.get("model_type") or outer.get("model_type") or ""),
        num_layers=numbers["num_hidden_layers"],
        hidden_size=numbers["hidden_size"],
        vocab_size=numbers["vocab_size"],
        context_length=nested.get("max_position_embeddings"),
        dtype=str(dtype or "bfloat16"),
        raw=nested,
    )


class Checkpoint:
    """A model's folder, opened for reading its config and the headers of its weights."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.config = read_text_config(folder / "config.json")

    @cached_property
    def files(self) -> list[Path]:
        """The weight files, as the index lists them; raises UserError when one is missing."""
        index = self.folder / "model.safetensors.index.json"
        if index.is_file():
            try:
                names = sorted(set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()))
            except (OSError, ValueError, KeyError, AttributeError, TypeError) as error:
                raise UserError(f"{index} is not an index of safetensors files: {error}") from error
            files = [self.folder / name for name in names]
        else:
            files = sorted(self.folder.glob("*.safetensors"))
        missing = [file.name for file in files if not file.is_file()]
        if missing or not files:
            raise UserError(
                f"{self.folder}: {missing[0] if missing else 'model.safetensors'} is missing "
                f"({len(missing) or 1} weight file(s)); the weights must be complete and in safetensors format."
            )
        return files

    @cached_property
    def tensors(self) -> dict[str, TensorEntry]:
        """Every tensor by its name, from the headers of all files."""
        entries: dict[str, TensorEntry] = {}
        for file in self.files:
            for entry in _read_header(file):
                if entry.name in entries:
                    raise UserError(
                        f"{self.folder}: tensor {entry.name} is in {entries[entry.name].file.name} and {file.name}."
                    )
                entries[entry.name] = entry
        return entries

    def find(self, name: str) -> TensorEntry:
        """The tensor ``name``, with or without the prefix of a multimodal wrapper.

        Raises UserError unless exactly one tensor matches.
        """
        matches = [self.tensors[full] for prefix in NAME_PREFIXES if (full := prefix + name) in self.tensors]
        if len(matches) != 1:
            found = ", ".join(match.name for match in matches) or "none"
            raise UserError(
                f"{self.folder}: exactly one tensor named {name} (or with a wrapper's prefix) is needed; found {found}."
            )
        return matches[0]

    @property
    def embedding(self) -> TensorEntry:
        """The input embedding, shape [rows, hidden_size]."""
        return self.find("model.embed_tokens.weight")

    @property
    def final_norm(self) -> TensorEntry:
        """The weight of the norm before ``lm_head``, shape [hidden_size]."""
        return self.find("model.norm.weight")

    @property
    def lm_head(self) -> TensorEntry:
        """The output projection, shape [rows, hidden_size]; the embedding where the config ties the two."""
        tied = self.config.raw.get("tie_word_embeddings", False)
        has_own = any(prefix + "lm_head.weight" in self.tensors for prefix in NAME_PREFIXES)
        return self.embedding if tied and not has_own else self.find("lm_head.weight")

    def load(self, entry: TensorEntry) -> "torch.Tensor":
        """Read one tensor into memory, in its own dtype."""
        from safetensors import safe_open

        with safe_open(entry.file, framework="pt") as file:
            return file.get_tensor(entry.name)

    @property
    def weights_bytes(self) -> int:
        return sum(entry.end - entry.begin for entry in self.tensors.values())

    def digest(self, cache: Path) -> str:
        """Hash of the config, the index, the headers and the first 64 KiB of every tensor, 32 hex characters.

        A weight file that still has the path, size, mtime and inode noted in ``cache`` is not read again.
        """
        try:
            known = json.loads(cache.read_text())
        except (OSError, ValueError):
            known = {}
        total = hashlib.blake2b(digest_size=16)
        for name in ("config.json", "model.safetensors.index.json"):
            file = self.folder / name
            total.update(name.encode() + b"\0" + (file.read_bytes() if file.is_file() else b""))
        notes = {}
        for file in self.files:
            status = file.stat()
            identity = f"{file.resolve()}|{status.st_size}|{status.st_mtime_ns}|{status.st_ino}"
            notes[identity] = known.get(identity) or self._file_digest(file)
            total.update(file.name.encode() + b"\0" + notes[identity].encode())
        if notes != known:
            write_json(cache, notes)
        return total.hexdigest()

    def _file_digest(self, file: Path) -> str:
        digest = hashlib.blake2b(digest_size=16)
        with open(file, "rb") as stream:
            for entry in sorted(_read_header(file), key=lambda entry: entry.begin):
                digest.update(f"{entry.name}|{entry.dtype}|{entry.shape}|{entry.begin}|{entry.end}\n".encode())
                stream.seek(entry.begin)
                digest.update(stream.read(min(DIGEST_BYTES, entry.end - entry.begin)))
        return digest.hexdigest()


def _read_header(file: Path) -> list[TensorEntry]:
    """The tensors of one safetensors file; raises UserError when its header or its size is wrong."""
    size = os.path.getsize(file)
    with open(file, "rb") as stream:
        prefix = stream.read(8)
        length = struct.unpack("<Q", prefix)[0] if len(prefix) == 8 else 0
        if not 0 < length <= min(MAX_HEADER_BYTES, size - 8):
            raise UserError(f"{file} is not a safetensors file, or is cut short ({size} bytes).")
        try:
            header = json.loads(stream.read(length))
            entries = [
                TensorEntry(
                    name=name,
                    file=file,
                    dtype=value["dtype"],
                    shape=tuple(value["shape"]),
                    begin=8 + length + value["data_offsets"][0],
                    end=8 + length + value["data_offsets"][1],
                )
                for name, value in header.items()
                if name != "__metadata__"
            ]
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise UserError(f"{file}: its safetensors header cannot be read ({error}).") from error
    if entries and max(entry.end for entry in entries) > size:
        raise UserError(f"{file} is cut short: {size} bytes, but its header promises more. Copy the model again.")
    return entries
