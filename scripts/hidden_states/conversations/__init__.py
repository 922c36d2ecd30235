"""From whatever people bring to token ids with an exact loss mask, or a reason why not."""
