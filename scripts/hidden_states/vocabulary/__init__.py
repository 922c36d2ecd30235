"""Token ids against the model: the rows of its embedding, and the tokenizer that belongs to it."""
