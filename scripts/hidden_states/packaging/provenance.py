"""``provenance.json``: which model, layers, settings, versions and inputs made a dataset, and what was left out.

Equal data give equal bytes: there is no time and no random number in it.
"""

import json
import os
import shlex
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import hidden_states
from hidden_states.packaging.drafter import drafter_ids, slot_words
from hidden_states.packaging.inputs import Inputs

PROVENANCE_VERSION = 1
TRAINER_SEQUENCE = 8192
"""speculators' default for --total-seq-len; longer samples would be cut to it."""

PACKAGES = ["torch", "transformers", "tokenizers", "sglang", "safetensors", "pyarrow", "numpy"]


def provenance(format_name: str, inputs: Inputs) -> dict[str, Any]:
    """Everything there is to know about a dataset of this format, but for how to train on it."""
    settings, model, header, survey, summary, server = (
        *(inputs.settings, inputs.model, inputs.header),
        *(inputs.survey, inputs.summary, inputs.server),
    )
    return {
        "provenance_version": PROVENANCE_VERSION,
        "format": format_name,
        "made_by": {"hidden_states": hidden_states.__version__},
        "fingerprint": survey.fingerprint,
        "content": survey.content,
        "model": {
            "name": "the demo model" if settings["model"]["path"] == "demo" else Path(settings["model"]["path"]).name,
            "path": settings["model"]["path"],
            "folder": os.path.abspath(inputs.model_folder),
            "revision": settings["model"]["revision"],
            "architectures": list(model.architectures),
            "model_type": model.model_type,
            "num_layers": model.num_layers,
            "hidden_size": model.hidden_size,
            "vocab_size": model.vocab_size,
            "embedding_rows": summary["embedding_rows"],
            "dtype": model.dtype,
        },
        "layers": {
            "L": list(header.layers),
            "meaning": "L = the residual stream after L decoder layers, as Hugging Face's hidden_states[L] for L < n",
            "final": header.final,
            "slots": slot_words(header.layers, header.final, model.num_layers),
            "dtype": header.dtype,
        },
        "drafter": drafter_ids(header.layers, model.num_layers, server),
        "counts": {
            "rows": survey.rows,
            "tokens": survey.tokens,
            "loss_tokens": survey.loss_tokens,
            "longest_sample": survey.longest,
            "bytes": survey.bytes,
            "rows_read": summary["rows_read"],
            "accepted": summary["accepted"],
            "rejected": summary["rejected"],
            "samples": summary["samples"],
            "rejected_reasons": summary["reasons"],
            "failed": survey.failed,
            "failed_reasons": dict(sorted(survey.reasons.items())),
            "failed_chunks": [chunk.chunk for chunk in survey.chunks if chunk.failed],
        },
        "inputs": {name: summary[name] for name in ("inputs", "files") if name in summary},
        "server": server,
        "versions": {name: found for name in PACKAGES if (found := _version(name))},
        "settings": settings,
    }


def train_command(folder: Path, content: dict[str, Any]) -> str:
    """The line that trains an EAGLE-3 drafter on the dataset with speculators 0.9."""
    layers, model, longest = content["layers"]["L"], content["model"], content["counts"]["longest_sample"]
    words = ["speculators", "train", "--speculator-type", "eagle3"]
    words += ["--verifier-name-or-path", model["folder"], "--data-path", os.path.abspath(folder)]
    words += ["--target-layer-ids", *(str(layer) for layer in layers), "--on-missing", "raise"]
    if longest > TRAINER_SEQUENCE:
        words += ["--total-seq-len", str(longest)]
    if content["settings"]["model"]["trust_remote_code"]:
        words.append("--trust-remote-code")
    if content["draft_vocabulary"]:
        words += ["--draft-vocab-size", str(content["draft_vocabulary"]["size"])]
    return shlex.join(words)


def to_bytes(content: dict[str, Any]) -> bytes:
    return (json.dumps(content, indent=2, sort_keys=True, ensure_ascii=False) + "\n").encode()


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
