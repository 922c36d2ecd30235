"""A second plug-in, for tests only, that plants faults in the capture of requests whose rid asks for it."""

from pathlib import Path

MODULE = """
import os

def register():
    if not os.environ.get("SGLANG_HS_DUMP_DIR"):
        return
    from hidden_states.capture import recorder

    take, plan = recorder.Recorder._take, recorder.Recorder._plan

    def faulty_take(self, aux):
        rids = [segment.request.rid for segment in self._segments]
        if any("raise-in-take" in rid for rid in rids):
            raise RuntimeError("planted")
        if any("short" in rid for rid in rids):
            aux = aux[:-1] if hasattr(aux, "view") else [slot[:-1] for slot in aux]
        if any("no-norm" in rid for rid in rids):
            self._model.final.clear()
        return take(self, aux)

    def faulty_plan(self, batch):
        if batch is not None and any("raise-in-plan" in str(req.rid) for req in batch.reqs):
            raise RuntimeError("planted")
        return plan(self, batch)

    recorder.Recorder._take, recorder.Recorder._plan = faulty_take, faulty_plan
"""


def planted_faults(folder: Path) -> Path:
    """Write the plug-in into ``folder``, to be put on the server's PYTHONPATH."""
    return write_plugin(folder, "planted_faults", MODULE)


def write_plugin(folder: Path, name: str, module: str) -> Path:
    """A plug-in of SGLang: ``module`` with its entry point ``register``, in ``folder``."""
    information = folder / f"{name}-0.dist-info"
    information.mkdir(parents=True)
    (folder / f"{name}.py").write_text(module)
    (information / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 0\n")
    (information / "entry_points.txt").write_text(f"[sglang.srt.plugins]\n{name} = {name}:register\n")
    return folder
