"""How many token ids the model knows."""

from hidden_states.checkpoint import Checkpoint
from hidden_states.errors import UserError


def embedding_rows(checkpoint: Checkpoint) -> int:
    """Ids from 0 up to this number (excluded) are safe to send.

    It is ``vocab_size`` of the config. The embedding tensor may have more rows, which are padding for speed; with
    fewer, an id that the config allows would kill the server. Raises UserError then, and when the tensor is no
    matrix as wide as the model.
    """
    rows, width = checkpoint.config.vocab_size, checkpoint.config.hidden_size
    entry = checkpoint.embedding
    if len(entry.shape) != 2 or entry.shape[1] != width:
        raise UserError(
            f"{entry.file}: {entry.name} has shape {list(entry.shape)}, but config.json promises [{rows}, {width}]. "
            "The weights do not belong to this config; copy the model again."
        )
    if entry.shape[0] < rows:
        raise UserError(
            f"{entry.file}: {entry.name} has {entry.shape[0]} rows, but config.json says vocab_size {rows}: ids from "
            f"{entry.shape[0]} on would kill the server. Correct vocab_size, or copy the model again."
        )
    return rows
