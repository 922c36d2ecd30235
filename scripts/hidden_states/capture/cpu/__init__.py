"""What SGLang lacks on a machine without a GPU: the names of ``sgl_kernel``, and the right attention for MLA."""

from pathlib import Path


def pythonpath() -> Path:
    """The folder that holds the stand-in for ``sgl_kernel``; to be put first on PYTHONPATH, for the CPU only."""
    return Path(__file__).parent / "standin"
