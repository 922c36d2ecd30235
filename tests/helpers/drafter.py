"""Training an EAGLE-3 drafter with speculators 0.9.0 on a dataset, and how much of its drafts a target accepts."""

import argparse
import shlex
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from datasets import load_from_disk
from safetensors.torch import load_file, save_file
from speculators.train import cli

STEPS = 3
"""Tokens drafted at each position; the number of unrolled steps that the trainer trains, too."""
TRAIN_RATIO = 0.8
SEQUENCE = 1024


def settings(line: str, dataset: Path) -> argparse.Namespace:
    """The trainer's settings from the ``line`` that packaging prints, for the data in ``dataset`` and on the CPU."""
    words = shlex.split(line)[2:]
    words += ["--loss-implementation", "eager", "--draft-attn-impl", "eager", "--hidden-states-dtype", "float32"]
    words += ["--total-seq-len", str(SEQUENCE), "--num-workers", "0", "--train-data-ratio", str(TRAIN_RATIO)]
    words += ["--data-path", str(dataset), "--ttt-steps", str(STEPS)]
    return argparse.Namespace(**cli.TrainConfig.resolve(words).flatten())


@dataclass(frozen=True)
class Trained:
    """``losses``: of each step. ``error_records``: what the trainer's own checks turned away."""

    model: torch.nn.Module
    losses: list[float]
    error_records: int
    samples: int


def train(arguments: argparse.Namespace, steps: int, learning_rate: float = 4e-3) -> Trained:
    """``steps`` steps of the trainer's own model, loader, collate and loss in a plain AdamW loop (its command line
    wants an accelerator), on the first ``TRAIN_RATIO`` of the rows."""
    cli.set_seed(arguments.seed)
    model_class = cli.SpeculatorModel.registry["eagle3"]
    d2t, t2d, size = cli.parse_vocab_mappings(arguments)
    model = cli.build_draft_model(arguments, model_class, t2d, d2t, size)
    loader = _loader(arguments, model)
    trained, _ = model_class.get_trainer_kwargs(**vars(arguments))
    optimizer = torch.optim.AdamW([weight for weight in model.parameters() if weight.requires_grad], lr=learning_rate)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    losses, errors, samples = [], 0, 0
    while len(losses) < steps:
        for batch in loader:
            errors += int(batch.pop("error_records"))
            samples += int(batch["document_ids"].max()) + 1
            _, loss, _ = model(**batch, **trained)
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            losses.append(loss.item())
            if len(losses) == steps:
                break
    return Trained(model.eval(), losses, errors, samples)


def _loader(arguments: argparse.Namespace, model: Any) -> Any:
    return cli.create_train_val_loaders(
        data_path=arguments.data_path,
        total_seq_len=arguments.total_seq_len,
        hidden_states_dtype=torch.float32,
        vllm_endpoint=arguments.vllm_endpoint,
        on_missing="raise",
        verifier_name_or_path=arguments.verifier_name_or_path,
        request_timeout=arguments.request_timeout,
        max_retries=arguments.max_retries,
        generation_validation_retries=arguments.generation_validation_retries,
        max_consecutive_generation_failures=arguments.max_consecutive_generation_failures,
        hidden_size=model.config.transformer_layer_config.hidden_size,
        num_target_layers=len(model.target_layer_ids),
        num_workers=0,
        prefetch_factor=arguments.prefetch_factor,
        preprocess=cli.shift_batch,
        train_data_ratio=arguments.train_data_ratio,
        seed=arguments.seed,
    )[0]


def with_slots(dataset: Path, order: list[int], folder: Path) -> Path:
    """A copy of ``dataset`` in ``folder`` whose states have their slots in another ``order``."""
    shutil.copytree(dataset, folder)
    for path in (folder / "hidden_states").iterdir():
        content = load_file(path)
        content["hidden_states"] = content["hidden_states"][:, order].contiguous()
        path.unlink()
        save_file(content, path)
    return folder


def held_out_rows(dataset: Path) -> list[torch.Tensor]:
    """The ids of each row that is not trained on."""
    rows = load_from_disk(str(dataset))
    return [torch.tensor(rows[row]["input_ids"]) for row in range(int(len(rows) * TRAIN_RATIO), len(rows))]


@dataclass(frozen=True)
class Acceptance:
    """``first``: share of the positions of held-out rows at which the first drafted token is the one that the target
    finds most likely. ``length``: drafted tokens in a row that the target accepts, of ``STEPS``, averaged over the
    positions of its own greedy continuations of the rows' beginnings."""

    positions: int
    first: float
    continued: int
    length: float


class Target:
    """The model itself, greedy, in float32 by Transformers, and its states as it would give them when serving."""

    def __init__(self, folder: Path, layers: tuple[int, ...]) -> None:
        from transformers import AutoModelForCausalLM

        self.layers = layers
        self._model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()

    @torch.no_grad()
    def continued(self, prompt: torch.Tensor, tokens: int) -> torch.Tensor:
        """``prompt`` and the ``tokens`` that the target finds most likely after it."""
        return self._model.generate(prompt[None], max_new_tokens=tokens, min_new_tokens=tokens, do_sample=False)[0]

    @torch.no_grad()
    def states(self, ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """float32 [T, auxiliary slots · hidden_size], and the id that is most likely after each position."""
        output = self._model(ids[None], output_hidden_states=True)
        return torch.cat([output.hidden_states[layer][0] for layer in self.layers], dim=-1), output.logits[0].argmax(-1)


def acceptance(model: Any, target: Target, rows: list[torch.Tensor], prompt: int = 48, tokens: int = 64) -> Acceptance:
    """Draft at every position of ``rows``, and of the target's continuations of their first ``prompt`` ids by
    ``tokens``.

    At position t the drafter has the states up to t and the ids up to t + 1. A later step is fed the next id of the
    sequence in place of the one drafted before it. In a continuation by the target this makes no difference to the
    tokens that count: all before those agree.
    """
    first, lengths = [], []
    for ids in rows:
        states, likely = target.states(ids)
        # Index j drafts the token at j + 2, which follows position j + 1.
        first.append((_drafted(model, states, ids)[0] == likely[1:]).double())
        if len(ids) <= prompt:
            continue
        continued = target.continued(ids[:prompt], tokens + STEPS)
        drafted = _drafted(model, target.states(continued)[0], continued)
        positions = torch.arange(prompt - 2, len(continued) - 1 - STEPS)
        agree = torch.stack([drafted[k][positions] == continued[positions + 2 + k] for k in range(STEPS)], dim=1)
        lengths.append(agree.int().cumprod(1).sum(1).double())
    return Acceptance(
        sum(map(len, first)), float(torch.cat(first).mean()), sum(map(len, lengths)), float(torch.cat(lengths).mean())
    )


@torch.no_grad()
def _drafted(model: Any, states: torch.Tensor, ids: torch.Tensor) -> list[torch.Tensor]:
    """Of each step the drafted ids, int64 [T - 1]."""
    count = len(ids) - 1
    drafted = model(
        hidden_states=states[None, :-1],
        input_ids=ids[None, 1:],
        document_ids=torch.zeros(1, count, dtype=torch.long),
        position_ids=torch.arange(1, count + 1)[None],
        ttt_steps=STEPS,
    )
    return [step[0] for step in drafted]
