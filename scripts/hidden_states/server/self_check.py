"""The proof, at every start, that the server captures rightly: by logit replay and by a reference forward."""

import json
import logging
import secrets
import time
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy

from hidden_states.checkpoint import Checkpoint
from hidden_states.errors import UserError
from hidden_states.files import FULL_BYTES, free_bytes
from hidden_states.layout import Results
from hidden_states.server.http import open_local
from hidden_states.server.prompts import choose_prompts
from hidden_states.store.checksums import StateFileError, check_state_file
from hidden_states.store.state_file import NO_CHECKSUM, StateHeader, sample_key

if TYPE_CHECKING:
    from hidden_states.server.lease import LeasedServer
    from hidden_states.server.specification import ServerSpecification
    from hidden_states.verification.reference import ReferenceFigures
    from hidden_states.verification.replay import ReplayFigures
    from hidden_states.verification.samples import CapturedSample

log = logging.getLogger(__name__)

MAX_REFERENCE_MEDIAN = 0.05
"""Largest median over tokens of a slot's relative error against a float32 forward. A server that computes in bfloat16
comes to 0.02 at most (docs/families.md); a wrong layer, a second norm or rows of another request are above 0.2,
multi-head latent attention gone wrong on the CPU above 5. In a deep model a neighbouring layer may be nearer than this:
so each slot must also be as near to its own layer as to any other."""
MAX_SAMPLE_MEDIAN = 0.15
"""The same for a single prompt, which may hold a few tokens only, and those sent to other experts."""
LOGPROB_ALLOWANCE = 0.0001
"""Median difference of log-probabilities that is allowed beyond the rounding of the server's logits, for logits near
zero. Right states stay well below that rounding: at 0.02 to 0.13 of it in models of 8 and 32 layers, with logits of
any size and norm weights of one; the largest seen on a server is half of it. An earlier layer in place of the last
comes to 1.5 times the rounding where layers hardly change the state, to 14 times in the demo model; a second norm to
1.05 times with norm weights of 1 ± 0.02, and is then known by the way it reads."""
MAX_SAMPLE_ROUNDING = 2
"""The same for a single prompt, as a multiple: rows of another request in one short prompt move no figure of all."""
REQUEST_TIMEOUT_SEC = 600
FILE_TIMEOUT_SEC = 120
DEFAULT_PREFILL_CHUNK = 8192


def run_self_check(
    server: "LeasedServer", settings: dict[str, Any], results: Results, info: dict[str, Any]
) -> dict[str, Any]:
    """Send the prompts, compare what was captured, return the figures for ready.json (rounded).

    ``info``: the server's own ``/server_info``. Raises UserError, saying what differs, when the capture is wrong.
    """
    chunk = info.get("chunked_prefill_size") or DEFAULT_PREFILL_CHUNK
    prompts = choose_prompts(
        results,
        settings["extraction"]["chunks"],
        settings["self_check"]["prompts"],
        chunk if chunk > 0 else DEFAULT_PREFILL_CHUNK,
        server.max_req_input_len,
    )
    log.info("self-check: %d prompts, the longest of %d tokens", 1 + len(prompts.together), _longest(prompts.together))
    stranger = f"stranger-{secrets.token_hex(6)}"
    rids = [f"{server.rid_prefix}check-{secrets.token_hex(6)}" for _ in range(1 + len(prompts.together))]
    samples = [_captured(server, rids[0], prompts.alone)]
    with ThreadPoolExecutor(len(prompts.together) + 1) as pool:
        # Somebody else's request, in the midst of ours: it must leave nothing.
        untagged = pool.submit(_generate, server, stranger, prompts.alone)
        samples += pool.map(lambda pair: _captured(server, *pair), zip(rids[1:], prompts.together, strict=True))
        untagged.result()
    _refuse_strangers(server.dump)
    figures: dict[str, Any] = {
        "prompts": len(samples),
        "tokens": sum(sample.token_ids.size for sample in samples),
        "longest": max(sample.token_ids.size for sample in samples),
    }
    figures |= check_samples(Checkpoint(server.specification.model), server.specification, settings, samples)
    return figures


def check_samples(
    checkpoint: Checkpoint,
    specification: "ServerSpecification",
    settings: dict[str, Any],
    samples: list["CapturedSample"],
) -> dict[str, Any]:
    """Replay and reference of captured ``samples``; the figures of both. Raises UserError, with what the figures look
    like, when the capture is wrong, and when neither can be had though ``self_check.reference`` is not ``never``."""
    from hidden_states.verification.diagnosis import likeliest_fault

    replayed, words = _replay(checkpoint, specification.final, samples)
    compared, skipped = _reference(checkpoint, specification, settings, samples)
    if faults := [*_replay_faults(replayed, settings), *_reference_faults(compared)]:
        raise UserError(
            f"self-check: the capture is wrong: {'; '.join(faults)}. {likeliest_fault(samples, replayed, compared)} "
            "Nothing was extracted with this server."
        )
    if replayed is None and compared is None:
        if settings["self_check"]["reference"] != "never":
            raise UserError(
                f"self-check: nothing proves that this server captures rightly: logit replay cannot run ({words}), and "
                f"no reference forward ({skipped}). To go on without a proof set config key self_check.reference to "
                "never."
            )
        log.warning("self-check: NOTHING PROVES these states: replay cannot run, and self_check.reference is never")
    return {
        "proven": replayed is not None or compared is not None,
        "replay": {"impossible": words} if replayed is None else _replay_record(replayed),
        "reference": {"skipped": skipped} if compared is None else {"slots": _slot_records(compared)},
    }


def _longest(prompts: list[numpy.ndarray]) -> int:
    return max(prompt.size for prompt in prompts)


def _captured(server: "LeasedServer", rid: str, token_ids: numpy.ndarray) -> "CapturedSample":
    """Send one prompt and read what was captured of it; the file is removed."""
    from safetensors import safe_open

    from hidden_states.verification.samples import CapturedSample

    meta = _generate(server, rid, token_ids)["meta_info"]
    specification = server.specification
    expected = StateHeader(
        key=sample_key(token_ids.astype("<i8").tobytes()),
        fingerprint=specification.fingerprint,
        layers=specification.layers,
        final=specification.final,
        dtype=specification.dtype,
        num_tokens=token_ids.size,
        hidden_size=specification.hidden_size,
        checksum=NO_CHECKSUM,
    )
    path = _await_file(server, rid, expected.file_bytes)
    try:
        check_state_file(path, expected, token_ids)
    except StateFileError as error:
        raise UserError(f"self-check: the state of a prompt of {token_ids.size} tokens is wrong: {error}.") from error
    with safe_open(path, framework="pt") as file:
        states = file.get_tensor("hidden_states").clone()
    path.unlink()
    return CapturedSample(
        token_ids=token_ids,
        states=states,
        top1=[entry[0][1] if entry else None for entry in meta["input_top_logprobs"]],
        logprobs=[entry[0] for entry in meta["input_token_logprobs"]],
    )


def _generate(server: "LeasedServer", rid: str, token_ids: numpy.ndarray) -> dict[str, Any]:
    body = {
        "input_ids": token_ids.tolist(),
        "rid": rid,
        "sampling_params": {"max_new_tokens": 0},
        "return_logprob": True,
        "logprob_start_len": 0,
        "top_logprobs_num": 1,
    }
    request = urllib.request.Request(
        f"{server.url}/generate",
        json.dumps(body).encode(),
        {**server.headers, "Content-Type": "application/json"},
    )
    try:
        with open_local(request, REQUEST_TIMEOUT_SEC) as answer:
            return json.load(answer)
    except urllib.error.HTTPError as error:
        words = error.read().decode(errors="replace")[:500]
        raise UserError(
            f"self-check: the server refused a prompt of {token_ids.size} tokens: HTTP {error.code}: {words}"
        ) from error
    except OSError as error:
        why = server.why_died() if not server.alive() else str(error)
        raise UserError(f"self-check: no answer to a prompt of {token_ids.size} tokens: {why}") from error


def _await_file(server: "LeasedServer", rid: str, num_bytes: int) -> Path:
    path, error = server.dump / f"{rid}.safetensors", server.dump / f"{rid}.error.json"
    deadline = time.monotonic() + FILE_TIMEOUT_SEC
    while not path.exists():
        if error.exists():
            content = json.loads(error.read_text(encoding="utf-8"))
            if content["reason"] == "disk_full":
                raise _no_room(server.dump, num_bytes)
            raise UserError(f"self-check: a prompt was not captured: {content['reason']}: {content['detail']}.")
        if time.monotonic() > deadline:
            if free_bytes(server.dump) < FULL_BYTES:
                raise _no_room(server.dump, num_bytes)  # the plug-in had none to say so either
            raise UserError(f"self-check: the server answered, but wrote no state within {FILE_TIMEOUT_SEC} s.")
        time.sleep(0.02)
    return path


def _no_room(dump: Path, num_bytes: int) -> UserError:
    return UserError(
        f"self-check: no space left: the state of a prompt needs {num_bytes:,} bytes; {free_bytes(dump):,} bytes are "
        f"free in {dump}. Make room, then run `snakemake --cores 8 all` again."
    )


def _refuse_strangers(dump: Path) -> None:
    foreign = [path.name for path in dump.iterdir() if not path.name.startswith("capture")]
    if foreign:
        raise UserError(f"self-check: a request that was not tagged left {foreign[0]} in {dump}: the capture is wrong.")


def _replay(checkpoint: Checkpoint, final: str, samples: list["CapturedSample"]) -> tuple["ReplayFigures | None", str]:
    """The figures, or None and why there are none."""
    from hidden_states.verification import replay

    try:
        found = replay.check(checkpoint, final, samples)
    except replay.ReplayImpossible as error:
        log.warning("self-check: logit replay cannot run: %s", error)
        return None, str(error)
    log.info(
        "self-check: replay agrees for %.2f%% of %d tokens, log-probabilities to %.4f in median (rounding: %.4f)",
        100 * found.agreement,
        found.tokens,
        found.median_abs_logprob_difference,
        found.rounding,
    )
    return found, ""


def _replay_faults(found: "ReplayFigures | None", settings: dict[str, Any]) -> list[str]:
    if found is None:
        return []
    faults, least = [], settings["self_check"]["min_replay_agreement"]
    if not found.agreement >= least:
        faults.append(
            f"the captured final state gives the server's own next token for {found.agreement:.1%} of {found.tokens} "
            f"tokens, {least:.0%} are needed (config key self_check.min_replay_agreement)"
        )
    allowed = found.rounding + LOGPROB_ALLOWANCE
    if not found.median_abs_logprob_difference <= allowed:
        faults.append(
            f"its log-probabilities differ from the server's by {found.median_abs_logprob_difference:.3f} in median, "
            f"{allowed:.3f} is allowed"
        )
    elif not found.worst_sample <= MAX_SAMPLE_ROUNDING * allowed:
        faults.append(
            f"its log-probabilities differ from the server's by {found.worst_sample:.3f} in median over one prompt, "
            f"{MAX_SAMPLE_ROUNDING * allowed:.3f} is allowed"
        )
    if found.mistaken_for is not None:
        faults.append(f"it is better explained as {found.mistaken_for}")
    return faults


def _replay_record(found: "ReplayFigures") -> dict[str, Any]:
    return {
        "agreement": round(found.agreement, 4),
        "tokens": found.tokens,
        "median_abs_logprob_difference": round(found.median_abs_logprob_difference, 4),
        "max_abs_logprob_difference": round(found.max_abs_logprob_difference, 4),
    }


def _reference(
    checkpoint: Checkpoint,
    specification: "ServerSpecification",
    settings: dict[str, Any],
    samples: list["CapturedSample"],
) -> tuple["ReferenceFigures | None", str]:
    """The figures, or None and why there are none."""
    from hidden_states.verification import reference

    setting, trust = settings["self_check"]["reference"], settings["model"]["trust_remote_code"]
    if setting == "never":
        return None, "config key self_check.reference is never"
    fits, why = reference.fits(checkpoint, trust)
    if not fits:
        if setting == "always":
            raise UserError(f"self-check: config key self_check.reference is always, but it cannot run: {why}.")
        log.warning("self-check: no reference forward: %s", why)
        return None, why
    found = reference.check(checkpoint.folder, trust, specification.layers, specification.final, samples)
    log.info(
        "self-check: relative error against Transformers, median (largest) per token: %s",
        ", ".join(f"layer {slot.layer}: {slot.median:.4f} ({slot.max:.3f})" for slot in found.slots),
    )
    return found, ""


def _reference_faults(found: "ReferenceFigures | None") -> list[str]:
    faults = []
    for slot in found.slots if found else []:
        if not slot.median <= MAX_REFERENCE_MEDIAN:
            faults.append(
                f"the slot of layer {slot.layer} differs from a Transformers forward by {slot.median:.3f} in median "
                f"over tokens, {MAX_REFERENCE_MEDIAN} is allowed"
            )
        elif not slot.worst_sample <= MAX_SAMPLE_MEDIAN:
            faults.append(
                f"the slot of layer {slot.layer} differs from a Transformers forward by {slot.worst_sample:.3f} in "
                f"median over one prompt, {MAX_SAMPLE_MEDIAN} is allowed"
            )
        elif slot.nearest is not None:
            faults.append(f"the slot of layer {slot.layer} is nearer to another state: {slot.nearest}")
    return faults


def _slot_records(found: "ReferenceFigures") -> list[dict[str, Any]]:
    return [
        {
            "layer": slot.layer,
            "median": round(slot.median, 4),
            "max": round(slot.max, 4),
            "relative_error": round(slot.relative_error, 4),
        }
        for slot in found.slots
    ]
