"""The entry point that SGLang calls in each of its processes."""

import logging
import multiprocessing
import os
import sys
from pathlib import Path
from typing import Any

from hidden_states.capture.settings import SWITCH, CaptureSettings
from hidden_states.capture.small_file import write_small_file

log = logging.getLogger(__name__)

SCHEDULER = "sglang.srt.managers.scheduler"


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
    """Whether this is a scheduler process, and not the server's main one or a detokenizer.

    Processes are alike when plug-ins are loaded (they get their names later), but SGLang's scheduler module is the one
    that loads them here.
    """
    frame = sys._getframe()
    while frame is not None:
        if frame.f_globals.get("__name__") == SCHEDULER:
            return multiprocessing.parent_process() is not None
        frame = frame.f_back
    return False


class Capture:
    """The hooks; they pass everything through until a model is loaded and its rank is one that writes."""

    def __init__(self) -> None:
        self._prepared = False
        self._recorder: Any = None

    def after_load_model(self, result: Any, runner: Any, *args: Any, **kwargs: Any) -> None:
        """Prepare the model and announce the plug-in, or say why it cannot capture. Later models (a drafter's) are
        left alone."""
        if self._prepared or getattr(runner, "is_draft_worker", False):
            return
        self._prepared = True
        dump = Path(os.environ[SWITCH])
        try:
            self._recorder = _prepare(runner, dump)
        except Exception as error:
            # Raising here would only kill the server with a trace; the launcher reads this and refuses the server.
            log.exception("hidden-state capture could not be set up")
            try:
                content = {"reason": type(error).__name__, "detail": str(error)}
                write_small_file(dump / "capture.error.json", content)
            except OSError:
                log.exception("capture.error.json could not be written")

    def around_logits(self, original: Any, *args: Any, **kwargs: Any) -> Any:
        if self._recorder is None:
            return original(*args, **kwargs)
        return self._recorder.logits(original, *args, **kwargs)

    def around_forward_batch(self, original: Any, *args: Any, **kwargs: Any) -> Any:
        if self._recorder is None:
            return original(*args, **kwargs)
        return self._recorder.forward_batch(original, *args, **kwargs)


def _prepare(runner: Any, dump: Path) -> Any:
    """Set the model up; on the rank that writes, announce it and return its recorder. Raises what went wrong."""
    settings = CaptureSettings.from_environment()
    if str(runner.device) == "cpu":
        from hidden_states.capture.cpu.minimax import use_torch_qk_norm
        from hidden_states.capture.cpu.mla import register_mla

        register_mla()
        use_torch_qk_norm(runner.model)
    from hidden_states.capture.model import prepare_model

    model = prepare_model(runner.model, settings.layers)
    if not _writes():
        return None
    from hidden_states.capture.recorder import Recorder

    recorder = Recorder(settings, model)
    write_small_file(dump / "capture.json", _announcement(settings, model, runner))
    return recorder


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
