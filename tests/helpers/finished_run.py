"""A finished extraction, written by hand: tokens, states in the store, manifests, and what the server said."""

import hashlib
import json
import os
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import xxhash
from hidden_states.files import write_json
from hidden_states.layout import Results, chunk_name
from hidden_states.packaging import speculators, speculators_v1
from hidden_states.store.checksums import file_checksum
from hidden_states.store.manifest import write_manifest
from hidden_states.store.state_file import StateHeader, sample_key
from hidden_states.store.tokens import keep_copy

FINGERPRINT = "f" * 32
VOCABULARY = 50
TOKEN_SCHEMA = pa.schema(
    [
        ("sample_id", pa.int64()),
        ("key", pa.string()),
        ("source_file", pa.string()),
        ("source_row", pa.int64()),
        ("input_ids", pa.list_(pa.int32())),
        ("loss_mask", pa.list_(pa.int8())),
        ("n_tokens", pa.int32()),
        ("n_loss_tokens", pa.int32()),
    ]
)


@dataclass
class Sample:
    """``states``: uint16 [num_tokens, slots, hidden_size], bfloat16 bits; None stands for a failed sample."""

    ids: list[int]
    mask: list[int]
    states: np.ndarray | None


@dataclass
class Run:
    """The results folder of one run and the samples of each chunk."""

    root: Path
    chunks: list[list[Sample]]
    layers: tuple[int, ...] = (2, 4, 5)
    fingerprint: str = FINGERPRINT
    link: str = "hard"
    format_name: str = "speculators"
    model: Path | None = None
    vocabulary: int = VOCABULARY
    draft_vocabulary: int | None = None
    results: Results = field(init=False)

    def __post_init__(self) -> None:
        self.results = Results(self.root / "results")
        if self.model is None:
            self.model = self.root / "model"
            numbers = {"num_hidden_layers": 8, "hidden_size": 4, "vocab_size": self.vocabulary}
            write_json(self.model / "config.json", {"architectures": ["Tiny"], **numbers})

    @property
    def folder(self) -> Path:
        return self.results.dataset(self.format_name)

    @property
    def settings(self) -> dict:
        return {
            "model": {"path": str(self.model), "revision": None, "trust_remote_code": False},
            "extraction": {"chunks": len(self.chunks)},
            "packaging": {"formats": [self.format_name], "link": self.link, "draft_vocabulary": self.draft_vocabulary},
        }

    def write(self) -> "Run":
        """Write everything extraction leaves behind; state files that are there already stay."""
        sample_id, files = 0, {}
        for index, samples in enumerate(self.chunks):
            chunk = chunk_name(index)
            tokens, manifest = [], []
            for sample in samples:
                key = sample_key(np.array(sample.ids, "<i8").tobytes())
                tokens.append(
                    {
                        "sample_id": sample_id,
                        "key": key,
                        "source_file": "conversations.jsonl",
                        "source_row": sample_id,
                        "input_ids": sample.ids,
                        "loss_mask": sample.mask,
                        "n_tokens": len(sample.ids),
                        "n_loss_tokens": sum(sample.mask),
                    }
                )
                manifest.append(self._manifest_row(sample_id, key, sample))
                sample_id += 1
            path = self.results.tokens(chunk)
            path.parent.mkdir(parents=True, exist_ok=True)
            pq.write_table(pa.Table.from_pylist(tokens, TOKEN_SCHEMA), path)
            files[path.name] = {"checksum": file_checksum(path), "rows": len(tokens)}
            keep_copy(self.results, chunk)
            write_manifest(self.results.manifest(chunk), manifest)
        summary = {"rows_read": sample_id + 1, "accepted": sample_id, "samples": sample_id, "rejected": 1}
        write_json(
            self.results.summary,
            {**summary, "reasons": {"empty": 1}, "embedding_rows": self.vocabulary, "files": files},
        )
        server = {"sglang_version": "0.5.23", "model_class": "Tiny", "setter_argument": list(self.layers)}
        write_json(self.results.ready, {"fingerprint": self.fingerprint, **server})
        return self

    def _manifest_row(self, sample_id: int, key: str, sample: Sample) -> dict:
        row = {"sample_id": sample_id, "key": key, "fingerprint": self.fingerprint, "n_tokens": len(sample.ids)}
        row |= {"slots": len(self.layers) + 1, "hidden_size": 4, "dtype": "BF16", "seconds": 0.1, "bytes": 0}
        if sample.states is None:
            return (
                row
                | dict.fromkeys(("file", "checksum", "published"))
                | {"status": "failed", "reason": "timeout: nothing came"}
            )
        path = self.state_path(key)
        header, data = self.state_bytes(key, sample)
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(header.to_bytes() + data)
            path.chmod(0o444)
        status = path.stat()
        return row | {
            "status": "ok",
            "reason": None,
            "file": str(path.relative_to(self.results.root)),
            "hidden_size": header.hidden_size,
            "checksum": header.checksum,
            "bytes": status.st_size,
            "published": f"{status.st_ino}:{status.st_mtime_ns}",
        }

    def state_path(self, key: str) -> Path:
        return self.results.states / self.fingerprint / key[:2] / f"{key}.safetensors"

    def state_bytes(self, key: str, sample: Sample) -> tuple[StateHeader, bytes]:
        data = sample.states.tobytes() + np.array(sample.ids, "<i8").tobytes()
        checksum, hidden_size = xxhash.xxh3_128(data).hexdigest(), sample.states.shape[2]
        fields = (key, self.fingerprint, self.layers, "pre_norm", "BF16", len(sample.ids), hidden_size, checksum)
        return StateHeader(*fields), data

    def key(self, row: int) -> str:
        """Key of the ``row``-th packaged sample."""
        good = [sample for chunk in self.chunks for sample in chunk if sample.states is not None]
        return sample_key(np.array(good[row].ids, "<i8").tobytes())

    def package(self) -> dict:
        """Package, and return the provenance."""
        writer = speculators_v1 if self.format_name == speculators_v1.FORMAT else speculators
        writer.package(self.settings, self.results, self.model)
        return json.loads((self.folder / "provenance.json").read_text())

    def snapshot(self) -> dict[str, tuple[int, int, str]]:
        """Inode, mtime and content of every file of the dataset."""
        return {
            str(path.relative_to(self.folder)): (
                path.stat().st_ino,
                path.stat().st_mtime_ns,
                hashlib.sha256(path.read_bytes()).hexdigest(),
            )
            for path in sorted(self.folder.rglob("*"))
            if path.is_file()
        }


def make_sample(seed: int, num_tokens: int, failed: bool = False) -> Sample:
    random = np.random.default_rng(seed)
    states = random.standard_normal((num_tokens, 4, 4), np.float32).view(np.uint32) >> 16
    ids = [int(value) for value in random.integers(0, VOCABULARY, num_tokens)]
    return Sample(
        ids, [int(value) for value in random.integers(0, 2, num_tokens)], None if failed else states.astype("<u2")
    )


def changed(before: dict, after: dict) -> set[str]:
    """Names of files that were made, written, linked anew or removed between two snapshots."""
    return {name for name in before.keys() | after.keys() if before.get(name) != after.get(name)}


def same_inode(one: Path, other: Path) -> bool:
    return os.path.samefile(one, other)
