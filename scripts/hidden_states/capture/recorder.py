"""Follows the server's forwards and hands the rows of our requests to the sink.

The hooks run in the scheduler's thread, one forward at a time, in this order: ``forward_batch`` opens, the model runs
(its final norm is hooked), ``logits`` sees the auxiliary states, ``forward_batch`` closes. Nothing raised here reaches
the server; nothing here touches the disk.
"""

import inspect
import logging
import time
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy
import torch

from hidden_states.capture.float8 import quantised
from hidden_states.capture.model import CapturedModel
from hidden_states.capture.reports import Reports
from hidden_states.capture.request import Request, Segment
from hidden_states.capture.settings import SAFE_RID, CaptureSettings
from hidden_states.capture.sink import Sink

log = logging.getLogger(__name__)

STORED_AS = {"bfloat16": torch.bfloat16, "float8": torch.float8_e4m3fn}

ABANDONED_SECONDS = 300
"""A request whose next rows do not come for so long has lost its client. One that does go on later fails, and is sent
again by its client."""


class Recorder:
    """One per scheduler process that writes."""

    def __init__(self, settings: CaptureSettings, model: CapturedModel) -> None:
        self._settings, self._model = settings, model
        self._aux_layers = [layer for layer in settings.layers if layer < model.num_layers]
        self._requests: dict[str, Request] = {}
        self._segments: list[Segment] = []
        self._hook_seconds = 0.0
        self._forwards = self._rows = 0
        self._looked_for_abandoned = time.monotonic()
        self._reports = Reports(settings.dump)
        self._sink = Sink(settings, model.hidden_size, model.device, self._reports, STORED_AS[settings.storage])
        self._reports.start(self.stats)

    def forward_batch(self, original: Callable, worker: Any, *args: Any, **kwargs: Any) -> Any:
        """Around ``TpModelWorker.forward_batch_generation(self, batch, …)``: which rows of this forward are whose."""
        start = time.monotonic()
        batch = _argument(original, "batch", (worker, *args), kwargs)
        self._model.final.clear()
        try:
            self._segments = self._plan(batch)
        except Exception as error:
            self._segments = []
            self._fail_batch(batch, error)
        self._hook_seconds += time.monotonic() - start
        result = original(worker, *args, **kwargs)
        if self._segments:
            self._fail_segments("not_captured", "the forward showed no hidden states (a replayed CUDA graph?)")
        self._model.final.clear()
        return result

    def logits(self, original: Callable, processor: Any, *args: Any, **kwargs: Any) -> Any:
        """Around ``LogitsProcessor.forward``: its ``aux_hidden_states`` are the auxiliary layers of this forward."""
        if self._segments:
            start = time.monotonic()
            segments = self._segments
            try:
                if self._take(_argument(original, "aux_hidden_states", (processor, *args), kwargs)):
                    self._segments = []
            except Exception as error:
                log.exception("capture of a forward failed")
                self._segments = segments
                self._fail_segments("capture_failed", f"{type(error).__name__}: {error}")
            self._hook_seconds += time.monotonic() - start
        return original(processor, *args, **kwargs)

    def stats(self) -> dict[str, float]:
        """Figures since the start: forwards and rows captured, seconds in the hooks and, apart, waiting for buffers,
        files and bytes written, host memory of the buffers."""
        waited = self._sink.pool.wait_seconds
        return {
            "forwards": self._forwards,
            "rows": self._rows,
            "hook_seconds": round(self._hook_seconds - waited, 6),
            "wait_seconds": round(waited, 6),
            "files": self._sink.files_written,
            "bytes": self._sink.bytes_written,
            "buffer_bytes": self._sink.pool.allocated_bytes,
        }

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
            if request is None:
                continue
            # Rows past the prompt are of tokens that the server generated.
            count = min(int(length), len(request.token_ids) - request.next_position)
            if count > 0 and not request.failed:
                segments.append(Segment(request, begin, begin + count))
            request.next_position += count
            if request.next_position >= len(request.token_ids):
                del self._requests[request.rid]
        if now - self._looked_for_abandoned > ABANDONED_SECONDS / 10:
            self._drop_abandoned(now)
        return segments

    def _follow(self, req: Any, prefix: int, now: float) -> Request | None:
        """The request that ``req`` continues, or begins, with row ``prefix``; None when it is not captured."""
        rid = str(req.rid)
        if not SAFE_RID.fullmatch(rid):
            log.error("a request with our prefix has an unsafe name and is not captured: %r", rid[:250])
            return None
        request = self._requests.get(rid)
        if req.to_finish is not None or len(req.output_ids):
            # Aborted: SGLang still pushes one token through under its name. Or past its prompt, which we have.
            if request is not None:
                self._sink.drop(self._requests.pop(rid))
            return None
        if request is None or prefix == 0:
            if request is not None:
                # Begun again: retracted by the scheduler, or sent anew after its client went away.
                self._sink.drop(request)
            request = self._sink.open(rid, numpy.array(req.origin_input_ids, dtype=numpy.int64))
            self._requests[rid] = request
        request.last_seen = now
        if prefix != request.next_position:
            self._sink.fail(
                request,
                "rows_missing",
                f"the server went on with row {prefix} where row {request.next_position} was due (prefix cache on?)",
            )
            request.next_position = prefix
        return request

    def _take(self, aux: Any) -> bool:
        """Send the states of this forward to the sink; False when its final norm was not seen."""
        final = self._model.final
        if final.pre_norm is None or final.post_norm is None:
            return False
        state = final.pre_norm if self._settings.final == "pre_norm" else final.post_norm
        aux_slots = _split(aux, len(self._aux_layers))
        # L = n is the residual stream before the final norm.
        slots = [*aux_slots, *[final.pre_norm] * (len(self._settings.layers) - len(aux_slots)), state]
        num_rows = self._segments[-1].end
        for slot in slots:
            if slot.dim() != 2 or slot.shape[0] < num_rows or slot.shape[1] != self._model.hidden_size:
                raise ValueError(f"states of shape {list(slot.shape)} for {num_rows} rows of {self._model.hidden_size}")
        # A copy on the compute stream: norms write in place, and a graph's outputs are overwritten by the next forward.
        slots = [slot[:num_rows] for slot in slots]
        if self._settings.storage == "float8":
            rows, scales = quantised(slots)
        else:
            rows, scales = torch.stack([slot.to(torch.bfloat16) for slot in slots], dim=1), None
        self._sink.take(rows.view(num_rows, -1), scales, self._segments)
        self._forwards += 1
        self._rows += sum(segment.end - segment.begin for segment in self._segments)
        return True

    def _fail_segments(self, reason: str, detail: str) -> None:
        for segment in self._segments:
            self._sink.fail(segment.request, reason, detail)
        self._segments = []

    def _fail_batch(self, batch: Any, error: Exception) -> None:
        log.exception("capture could not read a batch")
        detail = f"{type(error).__name__}: {error}"
        for req in getattr(batch, "reqs", None) or []:
            rid = str(getattr(req, "rid", ""))
            if not (rid.startswith(self._settings.rid_prefix) and SAFE_RID.fullmatch(rid)):
                continue
            request = self._requests.pop(rid, None)
            if request is not None:
                self._sink.fail(request, "capture_failed", detail)
            else:
                self._reports.failure(rid, "capture_failed", detail)

    def _drop_abandoned(self, now: float) -> None:
        """Forget requests whose client went away in mid-prefill, and what was written of them."""
        self._looked_for_abandoned = now
        for rid, request in list(self._requests.items()):
            if now - request.last_seen > ABANDONED_SECONDS:
                log.warning("%s did not go on and is forgotten", rid)
                self._sink.drop(self._requests.pop(rid))


def _split(aux: Any, count: int) -> list[torch.Tensor]:
    """``count`` tensors [rows, hidden_size] from a list of them or from one packed [rows, count * hidden_size].

    Raises ValueError when there are more or fewer.
    """
    if isinstance(aux, torch.Tensor):
        return list(aux.view(aux.shape[0], count, -1).unbind(1))
    slots = list(aux) if aux is not None else []
    if len(slots) != count:
        raise ValueError(f"{len(slots)} auxiliary states instead of {count}")
    return slots


@lru_cache
def _position(original: Callable, name: str) -> int:
    return list(inspect.signature(original).parameters).index(name)


def _argument(original: Callable, name: str, args: tuple, kwargs: dict[str, Any]) -> Any:
    """The argument ``name`` of a call of ``original``; None when it was left to its default."""
    if name in kwargs:
        return kwargs[name]
    position = _position(original, name)
    return args[position] if position < len(args) else None
