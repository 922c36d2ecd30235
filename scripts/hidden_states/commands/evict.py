"""``hidden-states evict``: have one chunk computed anew."""

import argparse
from typing import Any

from hidden_states.layout import Results

HELP = "Remove the states of one chunk from the store, so that the next run computes them anew."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--chunk", required=True, help="name of the chunk, such as 0003")


def run(settings: dict[str, Any], results: Results, arguments: argparse.Namespace) -> None:
    from hidden_states.server.specification import build
    from hidden_states.store.cleanup import evict_chunk
    from hidden_states.store.store import Store

    evicted = evict_chunk(results, arguments.chunk, Store(results, build(settings, results).fingerprint))
    print(f"{evicted.count} states removed, {evicted.num_bytes:,} bytes.")
    shared = [chunk for chunk in evicted.chunks if chunk != arguments.chunk]
    if shared:
        print(f"Some of them were also in chunks {', '.join(shared)}; the manifests of those are removed too.")
    print("To compute them anew: snakemake --cores 8 all")
