"""The dataset that speculators 0.5 and later reads: table, links to the states, and papers about them."""

import logging
from pathlib import Path
from typing import Any

from hidden_states.layout import Results
from hidden_states.packaging.card import dataset_card
from hidden_states.packaging.draft_vocabulary import write_draft_vocabulary
from hidden_states.packaging.frequencies import TokenCounts, write_token_frequencies
from hidden_states.packaging.inputs import Inputs, read_inputs
from hidden_states.packaging.links import link_states
from hidden_states.packaging.provenance import provenance, to_bytes, train_command
from hidden_states.packaging.record import Record
from hidden_states.packaging.repair import damaged_files
from hidden_states.packaging.shards import write_shards
from hidden_states.packaging.survey import state_rows

log = logging.getLogger(__name__)

FORMAT = "speculators"


def package(settings: dict[str, Any], results: Results, model_folder: Path) -> None:
    """Bring ``dataset/speculators`` up to date with tokens, manifests and store; what is right is not touched.

    ``provenance.json`` comes last, so a folder that has it is complete. Raises UserError when a chunk is not
    extracted, chunks do not fit together or a state file is not the published one.
    """
    write_dataset(read_inputs(settings, results, model_folder))


def write_dataset(inputs: Inputs) -> None:
    """As ``package``, of what was read already."""
    results, survey = inputs.results, inputs.survey
    record = Record(results.dataset(FORMAT))
    record.folder.mkdir(parents=True, exist_ok=True)
    copy = inputs.settings["packaging"]["link"] == "copy"
    suspect = damaged_files(results, record.folder)
    links = link_states(results, survey, state_rows(results, survey), record, copy, suspect)

    write_shards(results, survey, inputs.token_checksums, record)
    counts = TokenCounts(inputs)
    write_token_frequencies(counts, record)
    drafted = write_draft_vocabulary(counts, inputs.settings["packaging"]["draft_vocabulary"], record)
    content = provenance(FORMAT, inputs) | {"draft_vocabulary": drafted}
    content["train"] = train_command(record.folder, content)
    record.write_bytes("README.md", dataset_card(content).encode())
    record.finish(to_bytes(content))
    log.info(
        "%s: %d state files linked or copied, %d kept, %d removed; written: %s",
        record.folder,
        links.made,
        links.kept,
        links.removed,
        ", ".join(record.changed) or "nothing",
    )
