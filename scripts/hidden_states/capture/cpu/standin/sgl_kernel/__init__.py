"""Stand-in for SGLang's kernel package, which is built for CUDA and cannot be loaded without ``libcuda``.

SGLang's CPU path imports these names and calls none of them for the models served here; one that is called says so.
"""

from typing import NoReturn

NAMES = (
    "assign_draft_cache_locs_contiguous_cpu",
    "assign_extend_cache_locs_cpu",
    "assign_req_to_token_pool_cpu",
    "build_tree_kernel_efficient_cpu",
    "copy_all_layer_kv_cache_cpu",
    "fill_accept_out_cache_loc_cpu",
    "fill_bonus_tokens_cpu",
    "rmsnorm",
    "verify_tree_greedy_cpu",
)


def _absent(name: str):
    def function(*args: object, **kwargs: object) -> NoReturn:
        raise NotImplementedError(f"sgl_kernel.{name} was called, but this is the stand-in for a machine without a GPU")

    return function


globals().update({name: _absent(name) for name in NAMES})
