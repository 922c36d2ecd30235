"""Follows the server's forwards and hands the rows of our requests to the sink.

The three hooks run in the scheduler's thread, one forward at a time, in this order: ``forward_batch`` opens, the model
runs (its final norm is hooked), ``logits`` sees the auxiliary states, ``forward_batch`` closes.
"""

import json
import logging
import re
import time
from collections.abc import Callable
from typing import Any

import numpy
import torch

from hidden_states.capture.model import CapturedModel
from hidden_states.capture.settings import CaptureSettings
from hidden_states.capture.sink import Request, Segment, Sink, write_error

log = logging.getLogger(__name__)

SAFE_RID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,199}")
"""A rid becomes a file name: no separators, no leading dot, bounded length."""
ABANDONED_SECONDS = 900
STATS_SECONDS = 5


class Recorder:
    """One per scheduler process that writes."""

    def __init__(self, settings: CaptureSettings, model: CapturedModel) -> None:
        self._settings, self._model = settings, model
        self._sink = Sink(settings, model.hidden_size, model.device)
        self._requests: dict[str, Request] = {}
        self._segments: list[Segment] = []
        self._taken = False
        self._hook_seconds = 0.0
        self._forwards = 0
        self._stats_at = time.monotonic()

    def forward_batch(self, original: Callable, worker: Any, batch: Any = None, *args: Any, **kwargs: Any) -> Any:
        """Around ``TpModelWorker.forward_batch_generation``: which rows of this forward are whose."""
        start = time.monotonic()
        self._segments, self._taken = [], False
        try:
            self._segments = self._plan(batch)
        except Exception as error:
            self._fail_batch(batch, error)
        self._hook_seconds += time.monotonic() - start
        result = original(worker, batch, *args, **kwargs)
        start = time.monotonic()
        if self._segments and not self._taken:
            self._fail_segments("not_captured", "the forward gave no hidden states (was a CUDA graph replayed?)")
        self._segments = []
        self._model.final.clear()
        self._write_stats()
        self._hook_seconds += time.monotonic() - start
        return result

    def logits(self, original: Callable, processor: Any, *args: Any, **kwargs: Any) -> Any:
        """Around ``LogitsProcessor.forward``: its ``aux_hidden_states`` are the auxiliary layers of this forward."""
        if self._segments and not self._taken:
            start = time.monotonic()
            try:
                aux = kwargs.get("aux_hidden_states", args[4] if len(args) > 4 else None)
                self._take(aux)
            except Exception as error:
                log.exception("capture of a forward failed")
                self._fail_segments("capture_failed", f"{type(error).__name__}: {error}")
            self._hook_seconds += time.monotonic() - start
        return original(processor, *args, **kwargs)

    def _plan(self, batch: Any) -> list[Segment]:
        """The rows of this forward that belong to our requests; rows lie in the order of ``reqs``."""
        if batch is None or not batch.forward_mode.is_extend():
            return []
        segments, row, now = [], 0, time.monotonic()
        for req, prefix, length in zip(batch.reqs, batch.prefix_lens, batch.extend_lens, strict=True):
            begin, row = row, row + int(length)
            if not str(req.rid).startswith(self._settings.rid_prefix):
                continue
            request = self._follow(req, int(prefix), now)
            if request is not None and length:
                segments.append(Segment(request, begin, row))
                request.next_position += int(length)
                if request.next_position >= len(request.token_ids):
                    del self._requests[request.rid]
        return segments

    def _follow(self, req: Any, prefix: int, now: float) -> Request | None:
        """The request that ``req`` continues or begins with row ``prefix``; None when it is not captured."""
        rid = str(req.rid)
        if not SAFE_RID.fullmatch(rid):
            log.error("a request with our prefix has an unsafe name and is not captured: %r", rid[:250])
            return None
        if req.to_finish is not None:
            # Aborted before it ran: SGLang still pushes one token through under its name.
            self._requests.pop(rid, None)
            return None
        request = self._requests.get(rid)
        if request is None:
            self._drop_abandoned(now)
            request = Request(rid, numpy.array(req.origin_input_ids, dtype=numpy.int64))
            self._requests[rid] = request
        elif prefix == 0 and request.next_position:
            # Retracted by the scheduler and begun again.
            request.generation += 1
            request.next_position = 0
        request.last_seen = now
        if prefix != request.next_position:
            self._sink.fail(
                request,
                "rows_missing",
                f"rows {request.next_position} to {prefix} were not computed (prefix cache on?)",
            )
            request.next_position = prefix
        return request

    def _take(self, aux: Any) -> None:
        final = self._model.final
        state = final.pre_norm if self._settings.final == "pre_norm" else final.post_norm
        if state is None:
            return
        num_rows = self._segments[-1].end
        aux_layers = [layer for layer in self._settings.layers if layer < self._model.num_layers]
        if isinstance(aux, torch.Tensor):
            aux = list(aux.view(aux.shape[0], len(aux_layers), -1).unbind(1))
        aux = list(aux or [])
        if len(aux) != len(aux_layers):
            raise ValueError(f"{len(aux)} auxiliary states instead of {len(aux_layers)}")
        # L = n is the residual stream before the final norm.
        slots = [*aux, *[final.pre_norm] * (len(self._settings.layers) - len(aux_layers)), state]
        short = [slot.shape[0] for slot in slots if slot.shape[0] < num_rows]
        if short:
            raise ValueError(f"{short[0]} rows where the batch has {num_rows}")
        rows = torch.stack([slot[:num_rows].to(torch.bfloat16) for slot in slots], dim=1)
        self._sink.take(rows.view(num_rows, -1), self._segments)
        self._taken = True
        self._forwards += 1

    def _fail_segments(self, reason: str, detail: str) -> None:
        for segment in self._segments:
            self._sink.fail(segment.request, reason, detail)
        self._taken = True

    def _fail_batch(self, batch: Any, error: Exception) -> None:
        log.exception("capture could not read a batch")
        for req in getattr(batch, "reqs", None) or []:
            rid = str(getattr(req, "rid", ""))
            if rid.startswith(self._settings.rid_prefix) and SAFE_RID.fullmatch(rid):
                self._requests.pop(rid, None)
                write_error(self._settings.dump, rid, "capture_failed", f"{type(error).__name__}: {error}")

    def _drop_abandoned(self, now: float) -> None:
        """Forget requests whose client went away in mid-prefill, and what was written of them."""
        for rid, request in list(self._requests.items()):
            if now - request.last_seen > ABANDONED_SECONDS:
                del self._requests[rid]
                self._sink.drop(rid)

    def _write_stats(self) -> None:
        if time.monotonic() - self._stats_at < STATS_SECONDS:
            return
        self._stats_at = time.monotonic()
        temporary = self._settings.dump / "capture_stats.tmp"
        try:
            temporary.write_text(json.dumps(self.stats()))
            temporary.rename(self._settings.dump / "capture_stats.json")
        except OSError as error:
            log.warning("capture_stats.json could not be written: %s", error)

    def stats(self) -> dict[str, float]:
        """Figures since the start: forwards captured, seconds in the hooks and waiting, files, bytes, host memory."""
        return {
            "forwards": self._forwards,
            "hook_seconds": self._hook_seconds,
            "wait_seconds": self._sink.pool.wait_seconds,
            "files": self._sink.files_written,
            "bytes": self._sink.bytes_written,
            "buffer_bytes": self._sink.pool.allocated_bytes,
        }
