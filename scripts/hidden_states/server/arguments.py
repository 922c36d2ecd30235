"""The user's ``server.arguments``: which are refused and why, which do not change the states, how they are passed."""

from typing import Any

from hidden_states.errors import UserError

ALIASES = {
    "model": "model_path",
    "tensor_parallel_size": "tp_size",
    "tp": "tp_size",
    "pipeline_parallel_size": "pp_size",
    "pp": "pp_size",
    "data_parallel_size": "dp_size",
    "dp": "dp_size",
    "expert_parallel_size": "ep_size",
    "ep": "ep_size",
    "attention_context_parallel_size": "attn_cp_size",
    "decode_context_parallel_size": "dcp_size",
}
"""Long names of SGLang that mean the same argument; the fingerprint and the checks see the right-hand side."""

_OURS = "the workflow sets it itself"
_SLOTS = "the devices of a server are chosen by its slot; set CUDA_VISIBLE_DEVICES, server.slots and tp_size"
_GRAPH = "a replayed CUDA graph skips the hooks that capture states, so prefill graphs stay off"
_SPECULATIVE = "speculative decoding changes which states the model computes; nothing is decoded here"
_CONTEXT = "context parallelism spreads the rows of a prompt over devices, and one device writes them"
_OTHER_SERVER = "only SGLang's HTTP server on the loopback interface is supported"

REFUSED = {
    **dict.fromkeys(("host", "port", "api_key", "admin_api_key", "skip_server_warmup", "warmups"), _OURS),
    "model_path": "use the config key model.path",
    "revision": "use the config key model.revision",
    "trust_remote_code": "use the config key model.trust_remote_code",
    "device": "use the config key server.device",
    "config": "write the arguments themselves under server.arguments",
    "json_model_override_args": "edit config.json in a copy of the model: everything else reads it there too",
    **dict.fromkeys(("base_gpu_id", "gpu_id_step"), _SLOTS),
    **dict.fromkeys(("nnodes", "node_rank"), "a server runs on one host"),
    **dict.fromkeys(
        ("ssl_keyfile", "ssl_certfile", "ssl_ca_certs", "enable_http2", "use_ray", "grpc_mode", "smg_grpc_mode"),
        _OTHER_SERVER,
    ),
    **dict.fromkeys(("grpc_port", "encoder_only", "is_embedding", "fastapi_root_path"), _OTHER_SERVER),
    "enable_mixed_chunk": "it mixes decoding into the prefills that are captured",
    "enable_two_batch_overlap": "it splits a batch in two, and the captured rows no longer match their requests",
    "enable_layernorm_sp": "it spreads the residual stream over devices, and one device writes the states",
    "enable_attn_tp_input_scattered": "it spreads the residual stream over devices, and one device writes the states",
    "enable_dp_attention": "with DP attention each device holds other requests, and one device writes the states",
    "enable_pdmux": "it runs prefills in pieces that the capture does not follow",
    "allow_auto_truncate": "it cuts prompts silently; set conversations.max_tokens instead",
    "enable_session_radix_cache": "a cached prefix is not computed, so its states would be missing",
    "enable_return_aux_hidden_states": "it sets the captured layers a second time; use capture.layers",
    "cuda_graph_config": _GRAPH,
}
"""Arguments that are refused when they are set to anything but false or null."""

REFUSED_PREFIXES = {"speculative_": _SPECULATIVE, "disaggregation_mode": "prefill and decoding must be one server"}

ONE_ONLY = {
    "pp_size": "no stage of a pipeline holds all layers",
    "dp_size": "each replica would need its own capture; use server.slots for several servers",
    "attn_cp_size": _CONTEXT,
    "dcp_size": _CONTEXT,
}
"""Arguments that may only be 1."""

MUST_BE_TRUE = {
    "disable_radix_cache": "a cached prefix is not computed, so its states would be missing",
    "disable_prefill_cuda_graph": _GRAPH,
}

NEUTRAL = frozenset(
    (
        "log_level",
        "log_level_http",
        "log_requests",
        "log_requests_level",
        "log_requests_format",
        "log_requests_target",
        "decode_log_interval",
        "enable_metrics",
        "show_time_cost",
        "crash_dump_folder",
        "served_model_name",
        "download_dir",
        "watchdog_timeout",
        "soft_watchdog_timeout",
        "sleep_on_idle",
        "dist_timeout",
        "dist_init_addr",
        "nccl_port",
        "numa_node",
        "mem_fraction_static",
        "max_total_tokens",
        "max_running_requests",
        "max_queued_requests",
        "disable_decode_cuda_graph",
        "tokenizer_path",
        "tokenizer_mode",
        "tokenizer_worker_num",
        "chat_template",
        "weight_loader_disable_mmap",
        "weight_loader_prefetch_checkpoints",
        "weight_loader_prefetch_num_threads",
    )
)
"""Arguments that do not change the states, and so stay out of the fingerprint: logging, waiting, memory, and what
concerns text, which is never sent. Everything else makes states of its own."""


def normalise(arguments: dict[str, Any]) -> dict[str, Any]:
    """The arguments by SGLang's own names, without those that are null or false.

    Raises UserError, naming ``server.arguments.X``, for one that breaks the capture or belongs to the workflow.
    """
    names: dict[str, str] = {}
    normal: dict[str, Any] = {}
    for given, value in arguments.items():
        name = given.lstrip("-").replace("-", "_")
        name = ALIASES.get(name, name)
        if name in names:
            raise UserError(f"config keys server.arguments.{names[name]} and .{given} are the same; keep one.")
        names[name] = given
        _check(given, name, value)
        if value is not None and value is not False:
            normal[name] = value
    return normal


def to_flags(arguments: dict[str, Any]) -> list[str]:
    """Command-line flags: true → the bare flag, a list → several values, null and false → nothing."""
    flags: list[str] = []
    for name, value in arguments.items():
        if value is None or value is False:
            continue
        flags.append("--" + name.replace("_", "-"))
        if value is not True:
            flags += [str(item) for item in value] if isinstance(value, list) else [str(value)]
    return flags


def _check(given: str, name: str, value: Any) -> None:
    why = None
    if name in MUST_BE_TRUE:
        why = MUST_BE_TRUE[name] if value is not True and value is not None else None
    elif name in ONE_ONLY:
        why = ONE_ONLY[name] if value is True or value not in (None, 1) else None
    elif value is not None and value is not False:
        why = _why_refused(name)
    if why:
        raise UserError(f"config key server.arguments.{given} = {value!r} is refused: {why}. Remove it.")


def _why_refused(name: str) -> str | None:
    """Also for a shortened name: SGLang's parser takes any beginning of a flag that is unambiguous."""
    if name in REFUSED:
        return REFUSED[name]
    for prefix, why in REFUSED_PREFIXES.items():
        if name.startswith(prefix):
            return why
    if "cuda_graph" in name and ("prefill" in name or "prefill".startswith(name.rpartition("_")[2])):
        return _GRAPH
    guarded = (*REFUSED, *REFUSED_PREFIXES, *ONE_ONLY, *MUST_BE_TRUE, *ALIASES, *ALIASES.values())
    whole = [full for full in guarded if full != name and full.startswith(name)]
    if whole:
        return f"it may be short for {whole[0]}; write names in full"
    return None
