"""A plug-in, for tests only, that makes the capture wrong in the way that a file names at the moment.

Each fault is planted where it would arise: in what the model hands out, or in which rows are taken for whose.
"""

from pathlib import Path

from helpers.planted_faults import write_plugin

FAULTS = {
    "layer-one-off": "the first auxiliary slot holds the layer after the one asked for",
    "slots-swapped": "two auxiliary slots are swapped",
    "final-in-slot": "the final state and the first auxiliary one are swapped",
    "earlier-final": "the final slot holds the state of an earlier layer",
    "post-norm": "the final slot holds the state after the final norm",
    "normed-twice": "the final slot holds the state after the final norm, normed once more",
    "rows-shifted": "every row is that of the token before",
    "rows-of-another": "each request has the rows of the next one in the batch",
    "stale-rows": "every forward gives the rows of the forward before it",
    "row-short": "the first row of each request is missing, as after a hit in the prefix cache",
    "zeroed-row": "one row was never written",
    "nan": "one value is not a number",
}

MODULE = """
import os
from pathlib import Path

CONTROL = Path(os.environ.get("PLANTED_CAPTURE", "/nonexistent"))


def fault():
    return CONTROL.read_text().strip() if CONTROL.exists() else ""


def register():
    if not os.environ.get("SGLANG_HS_DUMP_DIR"):
        return
    import torch
    from hidden_states.capture import model as captured, recorder

    prepare, take, plan = captured.prepare_model, recorder.Recorder._take, recorder.Recorder._plan
    models, stale = [], []

    def prepare_model(model, layers):
        result = prepare(model, layers)
        models.append((captured._inner_model(model), result.layers_read_back))
        return result

    def faulty_take(self, aux):
        name, final = fault(), self._model.final
        width = self._model.hidden_size
        slots = list(aux.view(aux.shape[0], -1, width).unbind(1)) if torch.is_tensor(aux) else list(aux)
        if name == "slots-swapped":
            slots[0], slots[1] = slots[1], slots[0]
        if name == "final-in-slot":
            slots[0], final.pre_norm = final.pre_norm, slots[0]
        if name == "earlier-final":
            final.pre_norm = slots[-1]
        if name == "post-norm":
            final.pre_norm = final.post_norm
        if name == "normed-twice":
            rows = final.post_norm.float()
            rows = rows * torch.rsqrt(rows.square().mean(-1, keepdim=True) + 1e-6) * models[0][0].norm.weight.float()
            final.pre_norm = rows.to(final.post_norm.dtype)
        if name == "rows-shifted":
            slots, final.pre_norm = [slot.roll(1, 0) for slot in slots], final.pre_norm.roll(1, 0)
        if name == "zeroed-row":
            slots[1] = slots[1].clone()
            slots[1][self._segments[-1].end - 1] = 0
        if name == "nan":
            slots[1] = slots[1].clone()
            slots[1][self._segments[-1].end - 1, 5] = torch.nan
        if name == "rows-of-another" and len(self._segments) > 1:
            size = self._segments[0].end - self._segments[0].begin
            slots, final.pre_norm = [slot.roll(-size, 0) for slot in slots], final.pre_norm.roll(-size, 0)
        if name == "stale-rows":
            now = [slot.clone() for slot in (*slots, final.pre_norm)]
            if stale and len(stale[-1][0]) >= len(now[0]):
                *slots, final.pre_norm = stale[-1]
            stale.append(now)
        return take(self, slots)

    def faulty_plan(self, batch):
        inner, layers = models[0]
        inner.layers_to_capture = [layers[0] + 1, *layers[1:]] if fault() == "layer-one-off" else layers
        if fault() == "row-short" and batch is not None and batch.forward_mode.is_extend():
            # As the scheduler tells it after a hit: the first row comes from the cache, and is not computed.
            kept = batch.prefix_lens
            batch.prefix_lens = [prefix + (prefix == 0) for prefix in kept]
            try:
                return plan(self, batch)
            finally:
                batch.prefix_lens = kept
        return plan(self, batch)

    captured.prepare_model = prepare_model
    recorder.Recorder._take, recorder.Recorder._plan = faulty_take, faulty_plan
"""


def planted_captures(folder: Path) -> Path:
    """Write the plug-in into ``folder``, to be put on the server's PYTHONPATH; ``PLANTED_CAPTURE`` in its environment
    names the file that holds the name of the fault."""
    return write_plugin(folder, "planted_captures", MODULE)
