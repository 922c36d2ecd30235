"""The entry point that SGLang calls in each of its processes."""

import json
import logging
import multiprocessing
import os
from pathlib import Path
from typing import Any

from hidden_states.capture.settings import SWITCH, CaptureSettings

log = logging.getLogger(__name__)


def register() -> None:
    """Hook the scheduler process when ``SGLANG_HS_DUMP_DIR`` is set; do nothing anywhere else.

    Registering a hook imports its target, so the server's main process and the detokenizer are left alone.
    """
    if not os.environ.get(SWITCH) or not _is_scheduler():
        return
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    capture = Capture()
    HookRegistry.register(
        "sglang.srt.model_executor.model_runner.ModelRunner.load_model", capture.after_load_model, HookType.AFTER
    )
    HookRegistry.register(
        "sglang.srt.layers.logits_processor.LogitsProcessor.forward", capture.around_logits, HookType.AROUND
    )
    HookRegistry.register(
        "sglang.srt.managers.tp_worker.TpModelWorker.forward_batch_generation",
        capture.around_forward_batch,
        HookType.AROUND,
    )


def _is_scheduler() -> bool:
    process = multiprocessing.current_process()
    return multiprocessing.parent_process() is not None and "detokenizer" not in process.name.lower()


class Capture:
    """The hooks; they pass everything through until a model is loaded and its rank is one that writes."""

    def __init__(self) -> None:
        self._recorder: Any = None

    def after_load_model(self, result: Any, runner: Any, *args: Any, **kwargs: Any) -> None:
        """Prepare the model and announce the plug-in, or say why it cannot capture."""
        if self._recorder is not None or getattr(runner, "is_draft_worker", False):
            return
        dump = Path(os.environ[SWITCH])
        try:
            settings = CaptureSettings.from_environment()
            if str(runner.device) == "cpu":
                from hidden_states.capture.cpu.mla import register_mla

                register_mla()
            from hidden_states.capture.model import prepare_model

            model = prepare_model(runner.model, settings.layers)
            if not _writes():
                return
            from hidden_states.capture.recorder import Recorder

            recorder = Recorder(settings, model)
            _announce(dump / "capture.json", _announcement(settings, model, runner))
            self._recorder = recorder
        except Exception as error:
            # Raising here would only kill the server with a trace; the launcher reads this and refuses the server.
            log.exception("hidden-state capture could not be set up")
            _announce(dump / "capture.error.json", {"reason": type(error).__name__, "detail": str(error)})

    def around_logits(self, original: Any, *args: Any, **kwargs: Any) -> Any:
        if self._recorder is None:
            return original(*args, **kwargs)
        return self._recorder.logits(original, *args, **kwargs)

    def around_forward_batch(self, original: Any, *args: Any, **kwargs: Any) -> Any:
        if self._recorder is None:
            return original(*args, **kwargs)
        return self._recorder.forward_batch(original, *args, **kwargs)


def _writes() -> bool:
    """One rank writes: after the all-reduce the residual stream is the same on all ranks of a tensor-parallel group,
    and there is but one group, since pipeline parallelism and DP attention are refused before the start."""
    import torch

    return not torch.distributed.is_initialized() or torch.distributed.get_rank() == 0


def _announcement(settings: CaptureSettings, model: Any, runner: Any) -> dict[str, Any]:
    import sglang

    from hidden_states import __version__
    from hidden_states.capture import PLUGIN_FORMAT_VERSION

    return {
        "plugin_version": __version__,
        "format_version": PLUGIN_FORMAT_VERSION,
        "sglang_version": sglang.__version__,
        "pid": os.getpid(),
        "device": str(model.device),
        "model_class": model.model_class,
        "num_layers": model.num_layers,
        "hidden_size": model.hidden_size,
        "dtype": str(runner.dtype).removeprefix("torch."),
        "layers_asked": list(settings.layers),
        "layers_read_back": model.layers_read_back,
        "setter_argument": model.setter_argument,
        "final": settings.final,
        "buffer_bytes": settings.buffer_bytes,
    }


def _announce(path: Path, content: dict[str, Any]) -> None:
    temporary = path.with_suffix(".tmp")
    temporary.write_text(json.dumps(content, indent=2))
    temporary.rename(path)
