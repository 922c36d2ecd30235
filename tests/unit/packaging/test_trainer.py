"""speculators 0.9.0 itself, from its command line to real training steps, on a packaged dataset (on the CPU)."""

import argparse
import math
import shlex
import warnings

import numpy as np
import pytest
import torch
from helpers.finished_run import Run, Sample
from hidden_states.layers import resolve_layers

cli = pytest.importorskip("speculators.train.cli", reason="speculators, the trainer, is not installed")

NUM_SAMPLES, SEQUENCE, DRAFTED = 20, 256, 48


@pytest.fixture(scope="module")
def trained_on(demo_model, tmp_path_factory) -> tuple[Run, dict]:
    """A dataset of the demo model's states, computed with Transformers, and its provenance."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(demo_model, dtype=torch.float32).eval()
    layers = resolve_layers("eagle3", model.config.num_hidden_layers)
    final = []
    model.model.norm.register_forward_pre_hook(lambda _, inputs: final.append(inputs[0]))
    random = np.random.default_rng(7)
    samples = []
    for _ in range(NUM_SAMPLES):
        ids = random.integers(0, model.config.vocab_size, int(random.integers(20, 90)))
        with torch.no_grad():
            hidden = model(torch.tensor(ids)[None], output_hidden_states=True).hidden_states
        states = torch.stack([*(hidden[layer][0] for layer in layers), final.pop()[0]], dim=1).to(torch.bfloat16)
        mask = [0] * 8 + [1] * (len(ids) - 8)
        samples.append(Sample([int(value) for value in ids], mask, states.view(torch.uint16).numpy()))
    half = NUM_SAMPLES // 2
    root = tmp_path_factory.mktemp("trainer")
    run = Run(root, [samples[:half], samples[half:]], layers, model=demo_model, vocabulary=model.config.vocab_size)
    return run, run.write().package()


@pytest.fixture
def arguments(trained_on) -> argparse.Namespace:
    """The trainer's settings from the very line that packaging prints, and what the CPU needs beside it."""
    _, content = trained_on
    words = shlex.split(content["train"])
    assert words[:2] == ["speculators", "train"]
    cpu = ["--loss-implementation", "eager", "--draft-attn-impl", "eager", "--hidden-states-dtype", "float32"]
    small = ["--total-seq-len", str(SEQUENCE), "--num-workers", "0", "--train-data-ratio", "0.9"]
    return argparse.Namespace(**cli.TrainConfig.resolve(words[2:] + cpu + small).flatten())


def loaders(arguments: argparse.Namespace, model: torch.nn.Module):
    return cli.create_train_val_loaders(
        data_path=arguments.data_path,
        total_seq_len=arguments.total_seq_len,
        hidden_states_dtype=torch.float32,
        vllm_endpoint=arguments.vllm_endpoint,
        on_missing=arguments.on_missing,
        verifier_name_or_path=arguments.verifier_name_or_path,
        request_timeout=arguments.request_timeout,
        max_retries=arguments.max_retries,
        generation_validation_retries=arguments.generation_validation_retries,
        max_consecutive_generation_failures=arguments.max_consecutive_generation_failures,
        hidden_size=model.config.transformer_layer_config.hidden_size,
        num_target_layers=len(model.target_layer_ids),
        num_workers=arguments.num_workers,
        prefetch_factor=arguments.prefetch_factor,
        preprocess=cli.shift_batch,
        train_data_ratio=arguments.train_data_ratio,
        seed=arguments.seed,
    )


def test_the_printed_line_trains_a_drafter(arguments):
    """Every row is accepted by the trainer's own checks, and its loss is finite and falls."""
    cli.set_seed(arguments.seed)
    model_class = cli.SpeculatorModel.registry["eagle3"]
    d2t, t2d, draft_vocab_size = cli.parse_vocab_mappings(arguments)
    model = cli.build_draft_model(arguments, model_class, t2d, d2t, draft_vocab_size)
    train_loader, validation_loader = loaders(arguments, model)
    assert len(train_loader.dataset) + len(validation_loader.dataset) == NUM_SAMPLES

    trained, _ = model_class.get_trainer_kwargs(**vars(arguments))
    optimizer = torch.optim.AdamW([weight for weight in model.parameters() if weight.requires_grad], lr=3e-3)
    losses, errors, documents = [], 0, 0
    for _ in range(4):
        total = []
        for batch in train_loader:
            errors += batch.pop("error_records")
            documents += int(batch["document_ids"].max()) + 1
            _, loss, _ = model(**batch, **trained)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total.append(loss.item())
        losses.append(sum(total) / len(total))
    assert (errors, documents) == (0, 4 * len(train_loader.dataset))
    assert all(math.isfinite(loss) for loss in losses)
    assert losses[-1] < 0.9 * losses[0]


def test_the_trainer_sees_the_states_and_masks_of_the_run(trained_on):
    from speculators.train.data import ArrowDataset

    run, _ = trained_on
    dataset = ArrowDataset(max_len=SEQUENCE, datapath=run.folder, on_missing="raise")
    for row, sample in enumerate(sample for chunk in run.chunks for sample in chunk):
        item = dataset[row]
        states = torch.from_numpy(sample.states).view(torch.bfloat16)
        assert torch.equal(item["hidden_states"], states[:, :-1].flatten(1))
        assert torch.equal(item["verifier_last_hidden_states"], states[:, -1])
        assert item["input_ids"].tolist() == sample.ids
        assert item["loss_mask"].tolist() == sample.mask


def test_the_trainer_notices_files_shifted_by_one_row(trained_on, tmp_path):
    """Shows that its check, which passes above, is at work."""
    import shutil

    from speculators.train.data import ArrowDataset, SampleUnavailable

    run, _ = trained_on
    folder = tmp_path / "shifted"
    shutil.copytree(run.folder, folder)
    for row in range(NUM_SAMPLES):
        (folder / f"hidden_states/hs_{row}.safetensors").unlink()
        shutil.copy(
            run.folder / f"hidden_states/hs_{(row + 1) % NUM_SAMPLES}.safetensors",
            folder / f"hidden_states/hs_{row}.safetensors",
        )
    dataset = ArrowDataset(max_len=SEQUENCE, datapath=folder, on_missing="raise")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert all(isinstance(dataset[row], SampleUnavailable) for row in range(NUM_SAMPLES))
    assert sum("match input ids" in str(warning.message) for warning in caught) == NUM_SAMPLES


def test_the_trainer_makes_its_draft_vocabulary_from_our_frequencies(trained_on, arguments, tmp_path):
    import shutil

    run, content = trained_on
    arguments.data_path = str(shutil.copytree(run.folder, tmp_path / "copy"))
    arguments.draft_vocab_size = 32
    d2t, t2d, size = cli.parse_vocab_mappings(arguments)
    assert size == 32 and int(t2d.sum()) == 32 and len(d2t) == 32
    assert len(t2d) == content["model"]["vocab_size"]


def test_the_trainer_takes_our_draft_vocabulary_and_would_choose_the_same(trained_on, tmp_path):
    """From the line that packaging prints to a forward pass with the smaller vocabulary."""
    from speculators.train.vocab_mapping import build_vocab_mappings_from_distribution

    trained, _ = trained_on
    run = Run(
        tmp_path, trained.chunks, trained.layers, model=trained.model, vocabulary=1024, draft_vocabulary=DRAFTED
    ).write()
    words = shlex.split(run.package()["train"])
    small = ["--total-seq-len", str(SEQUENCE), "--num-workers", "0", "--loss-implementation", "eager"]
    cpu = ["--draft-attn-impl", "eager", "--hidden-states-dtype", "float32"]
    arguments = argparse.Namespace(**cli.TrainConfig.resolve(words[2:] + small + cpu).flatten())
    before = run.snapshot()
    d2t, t2d, size = cli.parse_vocab_mappings(arguments)
    assert run.snapshot() == before, "the trainer has found the mappings, and made none"
    counts = torch.load(run.folder / "token_freq.pt", weights_only=True)
    own_d2t, own_t2d = build_vocab_mappings_from_distribution(counts, DRAFTED, 1024)
    assert size == DRAFTED and torch.equal(d2t, own_d2t) and torch.equal(t2d, own_t2d)
    assert (d2t.dtype, t2d.dtype) == (own_d2t.dtype, own_t2d.dtype)

    model_class = cli.SpeculatorModel.registry["eagle3"]
    model = cli.build_draft_model(arguments, model_class, t2d, d2t, size)
    assert model.lm_head.weight.shape[0] == DRAFTED and torch.equal(model.t2d, t2d)
    train_loader, _ = loaders(arguments, model)
    keywords, _ = model_class.get_trainer_kwargs(**vars(arguments))
    batch = next(iter(train_loader))
    assert batch.pop("error_records") == 0
    _, loss, _ = model(**batch, **keywords)
    assert math.isfinite(loss.item())
