"""Run by speculators 0.4's own interpreter: reads a v1 dataset and trains on it, with that release's own classes.

Arguments: the dataset, the verifier's folder, a folder for what was read. Prints a line of JSON.
"""

import json
import sys
from pathlib import Path

import torch
from safetensors.torch import save_file
from speculators.model import SpeculatorModel
from speculators.train.data import Eagle3SampleFileDataset, create_collate_fn
from speculators.train.distributed_batch_sampler import MultipackDistributedBatchSamplerV2
from transformers import AutoConfig, LlamaConfig

LENGTH, STEPS = 128, 12


def drafter(folder: str) -> torch.nn.Module:
    """As scripts/train.py of the release makes it: one llama layer of the verifier's sizes, its whole vocabulary."""
    verifier = AutoConfig.from_pretrained(folder)
    names = ("vocab_size", "hidden_size", "intermediate_size", "num_attention_heads", "max_position_embeddings")
    sizes = {name: getattr(verifier, name) for name in (*names, "rms_norm_eps", "initializer_range")}
    config = LlamaConfig(num_hidden_layers=1, num_key_value_heads=verifier.num_attention_heads, **sizes)
    config._attn_implementation = "simple_flex_attention"
    SpeculatorModel.auto_populate_registry()
    return SpeculatorModel.registry["eagle3"].from_training_args(
        verifier_config=config,
        t2d=None,
        d2t=None,
        draft_vocab_size=verifier.vocab_size,
        norm_before_residual=True,
        ttt_steps=3,
        verifier_name_or_path=folder,
    )


def main(dataset_folder: str, verifier_folder: str, out: str) -> None:
    torch.manual_seed(0)
    dataset = Eagle3SampleFileDataset(max_len=LENGTH, datapath=dataset_folder, hidden_states_dtype=torch.float32)
    for index, name in enumerate(dataset.data):
        save_file(
            {key: value.contiguous() for key, value in dataset[index].items()}, f"{out}/{Path(name).stem}.safetensors"
        )
    lengths = {Path(name).stem: length for name, length in zip(dataset.data, dataset.approx_lengths, strict=True)}

    sampler = MultipackDistributedBatchSamplerV2(LENGTH, dataset.approx_lengths, num_replicas=1, rank=0)
    loader = torch.utils.data.DataLoader(dataset, batch_sampler=sampler, collate_fn=create_collate_fn(LENGTH))
    model = drafter(verifier_folder)
    optimizer = torch.optim.AdamW([weight for weight in model.parameters() if weight.requires_grad], lr=3e-3)
    before = model.fc.weight.detach().clone()
    losses, gradients = [], []
    while len(losses) < STEPS:
        for batch in loader:
            _, loss, _ = model(**batch, ttt_steps=3)
            optimizer.zero_grad()
            loss.backward()
            gradients.append(model.fc.weight.grad.norm().item())
            optimizer.step()
            losses.append(loss.item())
    moved = (model.fc.weight.detach() - before).abs().max().item()
    print(json.dumps({"lengths": lengths, "losses": losses, "gradients": gradients, "moved": moved}))


if __name__ == "__main__":
    main(*sys.argv[1:])
