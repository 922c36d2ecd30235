"""A tiny random Llama: dense, so that its states in bfloat16 stay close to those in float32."""

from pathlib import Path

NUM_LAYERS = 6
VOCABULARY = 512


def make_llama(folder: Path) -> Path:
    """Write weights in bfloat16, the output projection tied to the embedding, and a tokenizer with one token an id."""
    import torch
    from tokenizers import Tokenizer, models
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    torch.manual_seed(7)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=NUM_LAYERS,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=2048,
        tie_word_embeddings=True,
        initializer_range=0.1,
        dtype="bfloat16",
    )
    model = LlamaForCausalLM(config)
    for name, parameter in model.named_parameters():
        if "norm" in name:
            # Unit weights would hide a state taken on the wrong side of a norm.
            parameter.data = torch.exp(0.5 * torch.randn_like(parameter))
    model.to(torch.bfloat16).save_pretrained(folder)
    words = {f"w{index}": index for index in range(VOCABULARY)}
    PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(models.WordLevel(words, unk_token="w0")), unk_token="w0", eos_token="w1"
    ).save_pretrained(folder)
    return folder
