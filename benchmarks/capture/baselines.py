"""What people use instead, on the same machine and prompts."""

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy

from capture.server import BenchServer
from capture.shapes import SHAPES


def transformers_and_save(
    shape: str, layers: tuple[int, ...], prompts: Iterator[numpy.ndarray], seconds: float, folder: Path
) -> dict[str, Any]:
    """One prompt at a time through Transformers with ``output_hidden_states``, the slots saved with ``torch.save``:
    what the data scripts of EAGLE and several trainers do."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.for_model(**SHAPES[shape])
    with torch.device("cuda"):
        model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).eval()
    path, tokens, start = folder / "baseline.pt", 0, 0.0
    with torch.no_grad():
        for number in range(1_000_000):
            if number == 3:  # the first ones are warm-up
                tokens, start = 0, time.monotonic()
            elif number > 3 and time.monotonic() - start > seconds:
                break
            ids = torch.tensor(next(prompts)[None], device="cuda")
            states = model.model(ids, output_hidden_states=True).hidden_states
            slots = torch.stack([states[layer][0] for layer in (*layers, len(states) - 1)])
            torch.save({"hidden_states": slots.cpu(), "input_ids": ids.cpu()}, path)
            tokens += ids.numel()
    spent = time.monotonic() - start
    path.unlink()
    return {"seconds": round(spent, 1), "tokens_per_second": round(tokens / spent, 1)}


def return_hidden_states(
    server: BenchServer, prompts: Iterator[numpy.ndarray], seconds: float, concurrency: int
) -> dict[str, Any]:
    """SGLang's own way: the last layer's states as JSON in the answer. Needs ``enable_return_hidden_states``."""
    import aiohttp

    tokens, replied, start = 0, 0, time.monotonic()

    async def one(session: aiohttp.ClientSession) -> None:
        nonlocal tokens, replied
        while time.monotonic() - start < seconds:
            ids = next(prompts)
            body = {
                "input_ids": ids.tolist(),
                "return_hidden_states": True,
                "sampling_params": {"max_new_tokens": 1},
            }
            async with session.post(f"{server.url}/generate", json=body) as answer:
                content = await answer.read()
            if answer.status != 200 or b"hidden_states" not in content:
                raise RuntimeError(f"HTTP {answer.status}: {content[:300]!r}")
            tokens, replied = tokens + ids.size, replied + len(content)

    async def run() -> None:
        timeout = aiohttp.ClientTimeout(total=None)
        async with aiohttp.ClientSession(timeout=timeout) as session:
            await asyncio.gather(*(one(session) for _ in range(concurrency)))

    asyncio.run(run())
    spent = time.monotonic() - start
    return {
        "seconds": round(spent, 1),
        "tokens_per_second": round(tokens / spent, 1),
        "bytes_per_token": round(replied / tokens),
    }
