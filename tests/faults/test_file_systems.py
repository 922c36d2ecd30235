"""A dump directory on another file system than the store, and samples far longer than any buffer."""

import itertools
import json
import random
from pathlib import Path

import psutil
import pytest
from helpers.fault_run import assert_totals_add_up, schedulers
from helpers.file_systems import small_file_system
from helpers.peak_memory import PeakMemory, forget_peak, peak_bytes, resident_bytes
from helpers.snakemake_run import Workflow
from helpers.survived import assert_survived, published

pytestmark = [pytest.mark.faults, pytest.mark.server, pytest.mark.workflow, pytest.mark.timeout(1800)]

LONGEST = 65536
HIDDEN_SIZE, VOCABULARY = 1024, 512
STATE_BYTES = LONGEST * 3 * HIDDEN_SIZE * 2
"""Of the long sample's file, nearly: two layers and the final state in bfloat16, 403 MB."""
BUFFER_GIB = 0.0625
ROOM_FOR_A_STEP = 288 << 20
"""What one prefill step of 8,192 tokens takes beyond what a server that has done one before holds (125 MB were seen):
activations, attention over all tokens before, and the states of the step, put together."""


def test_a_dump_directory_on_another_file_system_than_the_store(run: Workflow, undisturbed: Path) -> None:
    """Files are copied, checked again and renamed; none is left on either side."""
    results = run.folder / "results"
    run.config["extraction"] = {"chunks": 2}
    with small_file_system(results / "dump", "64m"):
        code, output = run.run("all")
        assert code == 0, output
        assert (results / "dump").stat().st_dev != (results / "states").stat().st_dev
        assert not list((results / "dump").glob("*/hs-*"))
        (incoming,) = results.glob("states/*/incoming")
        assert not list(incoming.iterdir())
        assert_survived(run, undisturbed, published(run), "dump directory and store on two file systems")


def make_long_llama(folder: Path) -> None:
    """A llama that takes 70,000 tokens: wide, so that its states are large, with a single narrow head, so that
    attention over them is affordable without a GPU."""
    import torch
    from tokenizers import Tokenizer, models
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    torch.manual_seed(7)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=HIDDEN_SIZE,
        intermediate_size=64,
        num_hidden_layers=3,
        num_attention_heads=1,
        num_key_value_heads=1,
        head_dim=16,
        max_position_embeddings=70_000,
        initializer_range=0.1,
        dtype="bfloat16",
    )
    LlamaForCausalLM(config).to(torch.bfloat16).save_pretrained(folder)
    words = {f"w{index}": index for index in range(VOCABULARY)}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="w0"))
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="w0", eos_token="w1").save_pretrained(folder)


def step(command: list[str]) -> str | None:
    """``extract 0001`` or ``verify`` for the process of such a step, without the shell that starts it."""
    for word, verb in itertools.pairwise(command):
        if word.endswith("hidden-states"):
            return f"{verb} {command[command.index('--chunk') + 1]}" if "--chunk" in command else verb
    return None


def test_memory_does_not_grow_with_a_sample_of_65536_tokens(run: Workflow, tmp_path: Path) -> None:
    """Neither the client's, nor the hook's in the server beyond its buffers, nor that of ``verify``."""
    make_long_llama(tmp_path / "model")
    ids = random.Random(1)
    rows = [{"input_ids": [ids.randrange(VOCABULARY) for _ in range(length)]} for length in (*range(50, 58), LONGEST)]
    corpus = run.folder / "corpus.jsonl"
    corpus.write_text("\n".join(map(json.dumps, rows)))
    run.config |= {
        "model": {"path": str(tmp_path / "model")},
        "conversations": {"files": [str(corpus)], "max_tokens": LONGEST},
        "capture": {"layers": [1, 2], "buffer_memory_gib": BUFFER_GIB},
        "extraction": {"chunks": 2},
        "self_check": {"reference": "never"},  # it would hold the states in float32
        "server": {"device": "cpu", "arguments": {"chunked_prefill_size": 8192, "max_total_tokens": 70_000}},
    }
    slots, servers = run.environment["HIDDEN_STATES_SLOT_DIR"], {}

    def look(process: psutil.Process, command: list[str]) -> str | None:
        """The steps; for the server, its scheduler from when the long sample's chunk begins. Its own check sent such a
        sample before, so its buffers are there, and whatever else is needed once."""
        if (name := step(command)) is None or process.environ().get("HIDDEN_STATES_SLOT_DIR") != slots:
            return None
        if name == "extract 0001":
            if not servers:
                (scheduler,) = schedulers(tmp_path / "slots")
                servers[scheduler.pid] = resident_bytes(scheduler.pid)
                forget_peak(scheduler.pid)
            (pid,) = servers
            memory.bytes_of["server"] = peak_bytes(pid)
        return name

    with PeakMemory(look) as memory:
        code, output = run.run("all")
        assert code == 0, output
        code, output = run.run("verify")
        assert code == 0, output
    assert_totals_add_up(run)
    (stats,) = run.folder.glob("results/dump/*/capture_stats.json")
    buffers = json.loads(stats.read_text())["buffer_bytes"]
    (largest,) = [path for path in run.folder.glob("results/states/*/*/*") if path.stat().st_size > STATE_BYTES]
    (before,) = servers.values()
    growth = memory.bytes_of["server"] - before
    short, long, verify = (memory.bytes_of[name] for name in ("extract 0000", "extract 0001", "verify"))
    print(
        f"a state of {largest.stat().st_size:,} bytes: the server grew by {growth:,} bytes at most, its buffers have "
        f"{buffers:,}; the client had {long:,} at most, {short:,} with short samples; verify {verify:,}"
    )
    assert buffers <= BUFFER_GIB * (1 << 30)
    assert growth < ROOM_FOR_A_STEP < STATE_BYTES
    assert long < short + (64 << 20)
    assert verify < short + (96 << 20)
