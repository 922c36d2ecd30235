"""The plug-in as a folder for PYTHONPATH: for a server in a container, where nothing of ours is installed."""

import shutil
from pathlib import Path

import hidden_states

MODULES = ("__init__.py", "store/__init__.py", "store/state_file.py")
"""What the plug-in needs besides its own room."""


def export_plugin(folder: Path) -> Path:
    """Copy the plug-in into ``folder`` with the entry point by which SGLang finds it; returns ``folder``.

    The folder goes on the server's PYTHONPATH. An earlier export there is replaced. Raises OSError.
    """
    package = Path(hidden_states.__file__).parent
    target = folder / "hidden_states"
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(package / "capture", target / "capture", ignore=shutil.ignore_patterns("__pycache__"))
    (target / "store").mkdir()
    for module in MODULES:
        shutil.copyfile(package / module, target / module)
    for earlier in folder.glob("hidden_states-*.dist-info"):
        shutil.rmtree(earlier)
    information = folder / f"hidden_states-{hidden_states.__version__}.dist-info"
    information.mkdir()
    (information / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: hidden-states\nVersion: {hidden_states.__version__}\n"
    )
    (information / "entry_points.txt").write_text(
        "[sglang.srt.plugins]\nhidden_states_capture = hidden_states.capture.plugin:register\n"
    )
    return folder
