"""What the real server captures of a tiny model of each family, against Transformers in float32 and its own logits."""

import json
import random
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy
import torch
from helpers.capture_server import PREFIX, CaptureServer, capture_server
from helpers.family_models import NUM_LAYERS, UNUSED_ROWS, VOCABULARY, make_family, wrap_as_kimi_k25
from hidden_states.checkpoint import Checkpoint
from hidden_states.verification import reference, replay
from hidden_states.verification.samples import CapturedSample
from safetensors.torch import load_file

LENGTHS = (1, 7, 40, 127, 128, 129, 300, 420)
"""Around the prefill chunk of 128 tokens: some share a forward, some span several."""
DEFAULT = (2, NUM_LAYERS // 2, NUM_LAYERS - 3)
"""What ``capture.layers: eagle3`` comes to."""
EXPLICIT = (3, NUM_LAYERS // 2 + 1, NUM_LAYERS)
"""Of the kind that speculators 0.3 captured, with L = n, the state before the final norm, as an auxiliary layer."""


@dataclass(frozen=True)
class Measured:
    """``slots``: of each slot its layer and the median and largest relative error per token. ``bfloat16``: the medians
    that Transformers' own forward in bfloat16 has, which is what rounding alone costs."""

    family: str
    model_class: str
    layers: list[int]
    final: str
    setter_argument: list[int]
    read_back: list[int]
    slots: list[dict[str, float]]
    bfloat16: list[float]
    tokens: int
    replay_agreement: float
    logprob_difference: float


@dataclass(frozen=True)
class Refused:
    """``words``: why the server cannot serve or capture the family, in its words or the plug-in's."""

    family: str
    layers: list[int]
    final: str
    words: str


def measure(family: str, layers: tuple[int, ...], final: str, folder: Path) -> Measured | Refused:
    """Make the model in ``folder``, start the server, capture ``LENGTHS`` prompts sent at once, compare every slot."""
    text = folder / "text"
    if not text.exists():
        make_family(family, text)
    served = text
    if family == "kimi_k25":
        served = folder / "wrapper"
        if not served.exists():
            wrap_as_kimi_k25(text, served)
    work = folder / f"{'-'.join(map(str, layers))}-{final}"
    try:
        # Its processor of images is Python code in the checkpoint.
        arguments = {"trust_remote_code": family == "kimi_k25"}
        variables = {"SGLANG_HS_FINAL": final}
        with capture_server(served, work, layers, environment=variables, arguments=arguments) as server:
            announced = json.loads(server.wait_for("capture.json").read_text())
            samples = _captured(server)
    except (AssertionError, OSError):
        words = _words(work)
        if words is None:
            # It was slow, say: nobody refused anything.
            raise
        return Refused(family, list(layers), final, words)
    slots = reference.check(text, False, layers, final, samples).slots
    rounded = reference.check(text, False, layers, final, _rounded(text, layers, final)).slots
    found = replay.check(Checkpoint(served), final, samples)
    return Measured(
        family=family,
        model_class=announced["model_class"],
        layers=list(layers),
        final=final,
        setter_argument=announced["setter_argument"],
        read_back=announced["layers_read_back"],
        slots=[asdict(slot) for slot in slots],
        bfloat16=[slot.median for slot in rounded],
        tokens=sum(LENGTHS),
        replay_agreement=found.agreement,
        logprob_difference=found.median_abs_logprob_difference,
    )


def _prompts() -> list[list[int]]:
    generator = random.Random(5)
    return [[generator.randrange(VOCABULARY - UNUSED_ROWS) for _ in range(length)] for length in LENGTHS]


def _rounded(model: Path, layers: tuple[int, ...], final: str) -> list[CapturedSample]:
    """The same prompts through Transformers in bfloat16."""
    from transformers import AutoModelForCausalLM

    decoder = AutoModelForCausalLM.from_pretrained(model, dtype=torch.bfloat16).eval().model
    kept = {}
    decoder.norm.register_forward_hook(lambda _, inputs, output: kept.update(pre_norm=inputs[0], post_norm=output))
    samples = []
    for ids in _prompts():
        with torch.no_grad():
            hidden = decoder(torch.tensor([ids]), output_hidden_states=True, use_cache=False).hidden_states
        aux = [hidden[layer][0] if layer < NUM_LAYERS else kept["pre_norm"][0] for layer in layers]
        samples.append(CapturedSample(numpy.array(ids), torch.stack([*aux, kept[final][0]], dim=1), [], []))
    return samples


def _captured(server: CaptureServer) -> list[CapturedSample]:
    prompts = {f"{PREFIX}{len(ids)}": ids for ids in _prompts()}
    replies = server.generate_at_once(prompts, return_logprob=True, logprob_start_len=0, top_logprobs_num=1)
    samples = []
    for rid, ids in prompts.items():
        meta = replies[rid]["meta_info"]
        states = load_file(server.wait_for(f"{rid}.safetensors"))["hidden_states"]
        assert states.dtype == torch.bfloat16
        top1 = [entry[0][1] if entry else None for entry in meta["input_top_logprobs"]]
        logprobs = [entry[0] for entry in meta["input_token_logprobs"]]
        samples.append(CapturedSample(numpy.array(ids), states, top1, logprobs))
    return samples


def _words(work: Path) -> str | None:
    """The plug-in's reason; or the error that ended the scheduler, or the server, with the line that raised it; None
    where there is neither."""
    reason = work / "dump" / "capture.error.json"
    if reason.exists():
        return json.loads(reason.read_text())["detail"]
    before, *traces = (work / "server.log").read_text(errors="replace").split("Traceback (most recent call last):\n")
    if not traces:
        return None
    heads = [before, *traces[:-1]]
    chosen = next((t for head, t in zip(heads, traces, strict=True) if head.endswith("exception: ")), traces[-1])
    lines = chosen.split("\n\n", 1)[0].splitlines()
    first = next((number for number, line in enumerate(lines) if not line.startswith(" ")), 0)
    raised = [line.strip() for line in lines[max(first - 4, 0) : first] if line.strip(" ^~")]
    words = " ".join(lines[first:])
    return f"{words} ({raised[-1]})" if raised and ":" not in words else words
