"""MiniMax-M2 on the CPU."""

from typing import Any


def use_torch_qk_norm(model: Any) -> None:
    """Norm queries and keys with SGLang's own forward in torch, where a model calls a Triton kernel for both at once.

    That kernel asserts a CUDA device, unless the processor has AMX and SGLang its kernels for it. Other models, which
    have no such norm, are left as they are.
    """
    for module in model.modules():
        norms = getattr(module, "qk_norm_impl", None)
        if norms is not None:
            norms._forward_impl = lambda q, k, norms=norms: (norms._q_norm(q), norms._k_norm(k))
