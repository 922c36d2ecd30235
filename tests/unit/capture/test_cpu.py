"""What SGLang lacks on a CPU and is given there."""

import torch
from hidden_states.capture.cpu.minimax import use_torch_qk_norm


class Norms:
    """As SGLang's: two norms, and a kernel for both that does not run on the CPU."""

    def __init__(self) -> None:
        self._q_norm, self._k_norm = (lambda q: 2 * q), (lambda k: 3 * k)
        self._forward_impl = self._kernel

    def _kernel(self, q: torch.Tensor, k: torch.Tensor) -> None:
        raise AssertionError("not on a CPU")


def test_each_attentions_own_norms_take_the_place_of_the_kernel() -> None:
    model = torch.nn.ModuleList([torch.nn.Identity(), torch.nn.Identity(), torch.nn.Identity()])
    model[0].qk_norm_impl, model[1].qk_norm_impl = Norms(), Norms()
    model[1].qk_norm_impl._q_norm = lambda q: 5 * q
    use_torch_qk_norm(model)
    ones = torch.ones(2)
    assert [float(part[0]) for part in model[0].qk_norm_impl._forward_impl(ones, ones)] == [2, 3]
    assert [float(part[0]) for part in model[1].qk_norm_impl._forward_impl(ones, ones)] == [5, 3]
    assert not hasattr(model[2], "qk_norm_impl")
