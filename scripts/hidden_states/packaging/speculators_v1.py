"""The dataset that speculators 0.3 and 0.4 read: a file per row, and papers about them.

Facts about those releases, from their sources and scripts/data_generation_offline.py of the same tags:

- their trainers walk the folder for names ending in ``pt``, so the counts of tokens must have another name here;
- ``sample_lengths.json`` maps the row's number, as a string, to its tokens; 0.3 does not read it, and estimates;
- a layer id is the number, from 0, of the layer whose output was kept: L − 1, and n − 1 for the final state;
- three layers and the final state are expected; 0.4 applies the model's norm to the latter, 0.3 does not.
"""

import json
import logging
import os
import shlex
from pathlib import Path
from typing import Any

import hidden_states
from hidden_states.layout import Results
from hidden_states.packaging.card import dataset_card
from hidden_states.packaging.draft_vocabulary import mapping_names, write_draft_vocabulary
from hidden_states.packaging.frequencies import TokenCounts, write_token_frequencies
from hidden_states.packaging.inputs import Inputs, read_inputs
from hidden_states.packaging.provenance import TRAINER_SEQUENCE, provenance, to_bytes
from hidden_states.packaging.record import Record
from hidden_states.packaging.repair import damaged_files
from hidden_states.packaging.samples import write_samples
from hidden_states.packaging.survey import Survey, state_rows
from hidden_states.store.state_file import StateHeader

log = logging.getLogger(__name__)

FORMAT = "speculators-v1"
DATA_CONFIG, SAMPLE_LENGTHS, TOKEN_COUNTS = "data_config.json", "sample_lengths.json", "token_freq.bin"
CONFIG_VERSION = "2.0"
"""Of ``data_config.json``, as 0.3 and 0.4 number it."""

TORCH_NAMES = {"BF16": "torch.bfloat16", "F16": "torch.float16", "F32": "torch.float32"}


def package(settings: dict[str, Any], results: Results, model_folder: Path) -> None:
    """Bring ``dataset/speculators-v1`` up to date with tokens, manifests and store; what is right is not touched.

    ``provenance.json`` comes last, so a folder that has it is complete. Raises UserError when a chunk is not extracted,
    chunks do not fit together, a state file is not the published one, or there is no room.
    """
    write_dataset(read_inputs(settings, results, model_folder))


def write_dataset(inputs: Inputs) -> None:
    """As ``package``, of what was read already."""
    results, survey = inputs.results, inputs.survey
    record = Record(results.dataset(FORMAT))
    record.folder.mkdir(parents=True, exist_ok=True)
    if len(inputs.header.layers) != 3:
        log.warning(
            "speculators 0.3 and 0.4 train on three layers besides the final state; capture.layers has %d",
            len(inputs.header.layers),
        )
    samples = write_samples(results, survey, record, damaged_files(results, record.folder))

    record.write(SAMPLE_LENGTHS, lambda stream: _write_lengths(stream, results, survey))
    counts = TokenCounts(inputs)
    write_token_frequencies(counts, record, TOKEN_COUNTS)
    drafted = write_draft_vocabulary(counts, inputs.settings["packaging"]["draft_vocabulary"], record)
    record.write_bytes(DATA_CONFIG, to_bytes(data_config(inputs)))
    content = provenance(FORMAT, inputs) | {"draft_vocabulary": drafted}
    content["layers"]["layer_ids"] = layer_ids(inputs.header, inputs.model.num_layers)
    content["layers"]["trainers"] = trainer_words(inputs.header.final)
    content["drafter"]["speculators"]["words"] = (
        "The numbers L; the trainers of 0.3 and 0.4 do not note them themselves."
    )
    content["train"] = train_command(record.folder, content)
    record.write_bytes("README.md", dataset_card(content).encode())
    record.finish(to_bytes(content))
    log.info(
        "%s: %d rows written, %d kept, %d files removed; also written: %s",
        record.folder,
        samples.made,
        samples.kept,
        samples.removed,
        ", ".join(record.changed) or "nothing",
    )


def layer_ids(header: StateHeader, num_layers: int) -> list[int]:
    """The layers whose outputs the slots are, numbered from 0, the final one included."""
    return [layer - 1 for layer in header.layers] + [num_layers - 1]


def trainer_words(final: str) -> dict[str, str]:
    """By release: what its trainer does to the final state, and whether this dataset's suits it."""
    if final == "pre_norm":
        return {
            "0.4": "speculators 0.4 applies norm and lm_head to the last slot, the state before the final norm.",
            "0.3": "speculators 0.3 applies lm_head alone to the last slot, without the norm, to its own states too: "
            "its targets are not the model's predictions; train with 0.4, or capture `final: post_norm`.",
        }
    return {
        "0.4": "**The last slot is the state after the final norm**, and speculators 0.4 would apply it once more.",
        "0.3": "speculators 0.3 applies lm_head alone to the last slot, which is right for the state after the norm.",
    }


def train_command(folder: Path, content: dict[str, Any]) -> str:
    """The line that trains an EAGLE-3 drafter with a checkout of speculators 0.4, whose trainer is no command."""
    words = ["python", "speculators/scripts/train.py", "--speculator-type", "eagle3"]
    words += ["--verifier-name-or-path", content["model"]["folder"], "--data-path", os.path.abspath(folder)]
    if content["counts"]["longest_sample"] > TRAINER_SEQUENCE:
        words += ["--total-seq-len", str(content["counts"]["longest_sample"])]
    if drafted := content["draft_vocabulary"]:
        for option, name in zip(("--t2d-path", "--d2t-path"), mapping_names(drafted["size"]), strict=True):
            words += [option, os.path.abspath(folder / name)]
    return shlex.join(words)


def data_config(inputs: Inputs) -> dict[str, Any]:
    """``data_config.json`` with the keys of 0.4; what has no meaning here is null, and there is no time in it."""
    model, header, survey = inputs.model, inputs.header, inputs.survey
    dtype = TORCH_NAMES[header.dtype]
    return {
        "version": CONFIG_VERSION,
        "generated_at": None,
        "speculators_version": None,
        "reproducibility": {
            "command": "snakemake all",
            "package_versions": {
                "hidden_states": hidden_states.__version__,
                "sglang": inputs.server.get("sglang_version"),
            },
            "gpu": inputs.server.get("device"),
        },
        "model": {
            "target_model_path": os.path.abspath(inputs.model_folder),
            "tensor_parallel_size": None,
            "gpu_memory_utilization": None,
            "hidden_size": model.hidden_size,
        },
        "data": {
            "train_data_path": None,
            "seq_length": survey.longest,
            "max_samples": None,
            "num_samples": survey.rows,
            "seed": None,
            "chat_template_note": "The conversations and how they were tokenized are in provenance.json",
        },
        "hidden_states": {
            "layer_ids": layer_ids(header, model.num_layers),
            "description": "Layers for EAGLE-3, numbered from 0 by their outputs, and the final state",
        },
        "generation": {"cache_dir": None},
        "format": {
            "file_pattern": "data_{idx}.pt",
            "schema": {
                "input_ids": {"dtype": "torch.long", "shape": "[seq_len]", "description": "Token ids"},
                "hidden_states": {
                    "dtype": f"list[{dtype}]",
                    "shape": f"list of [seq_len, {survey.hidden_size}]",
                    "num_tensors": survey.slots,
                    "description": f"Hidden states from {survey.slots} layers",
                },
                "loss_mask": {
                    "dtype": "torch.long",
                    "shape": "[seq_len]",
                    "description": "1 for the tokens that the loss counts, 0 elsewhere",
                },
            },
        },
    }


def _write_lengths(stream: Any, results: Results, survey: Survey) -> None:
    """``{"0": tokens, …}``, row by row."""
    separator = "{\n"
    for row in state_rows(results, survey):
        stream.write(f"{separator}  {json.dumps(str(row.row))}: {row.num_tokens}".encode())
        separator = ",\n"
    stream.write(b"\n}\n")
