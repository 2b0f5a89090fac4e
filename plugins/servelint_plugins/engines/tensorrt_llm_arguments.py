"""What the arguments of `trtllm-serve` and its file of options set, in keys of a spec.

Sources: tensorrt_llm/commands/serve.py (flags; the file's values go before them) and
tensorrt_llm/llmapi/llm_args.py (keys, values that are refused; models forbid keys that they do not declare) of
NVIDIA/TensorRT-LLM, read between releases 0.20 and 1.3. What is known of keys is the union of these.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any

from servelint.errors import ManifestError
from servelint.launch.flags import Flag, FlagTable, Given, read_options
from servelint.launch.flags import read as read_flags
from servelint.launch.invocation import Invocation, Reading, Setting, Trouble, Word
from servelint.launch.manifest import Node
from servelint.lineage import KeyPath
from servelint.suggest import nearest
from servelint_plugins.engines.layers import Layers, file_beside, number, owners
from servelint_plugins.engines.methods import method

PARALLEL = ("policy", "parallelism")
BATCHING = ("policy", "batching")
CACHE = ("policy", "kv_cache")
QUANTIZATION = ("policy", "quantization")
SPECULATION = ("policy", "speculation")
OTHER_COMMANDS = ("disaggregated", "disaggregated_mpi_worker", "mm_embedding_serve")
"""Subcommands that serve no language model by themselves."""

_FLAGS = (
    Flag("tensor-parallel-size", (*PARALLEL, "tensor"), "int", ("--tp-size",)),
    Flag("pipeline-parallel-size", (*PARALLEL, "pipeline"), "int", ("--pp-size",)),
    Flag("context-parallel-size", (*PARALLEL, "context"), "int", ("--cp-size",)),
    Flag("moe-expert-parallel-size", (*PARALLEL, "expert"), "int", ("--ep-size", "--expert-parallel-size")),
    Flag("moe-cluster-parallel-size", (), "int", ("--cluster-size",)),
    Flag("max-batch-size", (*BATCHING, "max_sequences"), "int"),
    Flag("max-num-tokens", (*BATCHING, "max_batched_tokens"), "int"),
    Flag("max-seq-len", ("model", "max_model_len"), "int"),
    Flag(
        "free-gpu-memory-fraction",
        (*CACHE, "memory_utilization"),
        "float",
        ("--kv-cache-free-gpu-memory-fraction", "--kv-cache-free-gpu-mem-fraction"),
    ),
    Flag("enable-chunked-prefill", (*BATCHING, "chunked_prefill"), "switch"),
    Flag("model", ("model", "id"), "text", ("--model-path",)),
    Flag("config", (), "text", ("--extra-llm-api-options", "--extra-engine-args")),
    Flag("kv-cache-dtype", (), "text"),
    Flag("max-beam-width", (), "int"),
    Flag("gpus-per-node", (), "int"),
    Flag("num-postprocess-workers", (), "int"),
    Flag("port", (), "int"),
    Flag("trust-remote-code", (), "switch"),
    Flag("fail-fast-on-attention-window-too-large", (), "switch"),
    *(
        Flag(name)
        for name in (
            "backend", "chat-template", "custom-module-dirs", "custom-tokenizer", "disagg-cluster-uri", "host",
            "log-level", "media-io-kwargs", "metadata-server-config-file", "otlp-traces-endpoint", "reasoning-parser",
            "revision", "server-role", "tokenizer", "tool-parser",
        )
    ),
)  # fmt: skip

_TOP = (
    "allreduce_strategy attention_dp_config attn_backend backend batch_wait_max_tokens_ratio batch_wait_timeout_iters "
    "batch_wait_timeout_ms batched_logits_processor batching_type build_config cache_transceiver_config calib_config "
    "checkpoint_format checkpoint_loader context_parallel_size cp_config cuda_graph_config custom_tokenizer "
    "decoding_config disable_flashinfer_sampling disable_overlap_scheduler disagg_cluster dtype "
    "embedding_parallel_mode enable_attention_dp enable_autotuner enable_build_cache enable_chunked_prefill "
    "enable_iter_perf_stats enable_iter_req_stats enable_layerwise_nvtx_marker enable_lm_head_tp_in_adp enable_lora "
    "enable_min_latency enable_prompt_adapter enable_sleep enable_tqdm env_overrides "
    "extended_runtime_perf_knob_config fail_fast_on_attention_window_too_large fast_build "
    "force_dynamic_quantization garbage_collection_gen0_threshold gather_generation_logits gpus_per_node "
    "guided_decoding_backend iter_stats_max_iterations kv_cache_config kv_connector_config "
    "layer_wise_benchmarks_config load_format lora_config max_batch_size max_beam_width max_input_len max_num_tokens "
    "max_prompt_adapter_token max_seq_len max_stats_len mm_encoder_only model model_kwargs "
    "moe_cluster_parallel_size moe_config moe_expert_parallel_size moe_tensor_parallel_size mpi_session "
    "normalize_log_probs num_postprocess_workers nvfp4_gemm_config orchestrator_type otlp_traces_endpoint "
    "peft_cache_config perf_metrics_max_requests pipeline_parallel_size postprocess_tokenizer_dir pp_partition "
    "print_iter_log quant_config ray_placement_config ray_worker_extension_cls reasoning_parser "
    "request_stats_max_iterations return_perf_metrics revision sampler_force_async_worker sampler_type "
    "scheduler_config skip_tokenizer_init sparse_attention_config speculative_config stream_interval "
    "tensor_parallel_size tokenizer tokenizer_mode tokenizer_revision torch_compile_config trust_remote_code "
    "use_cute_dsl_blockscaling_bmm use_cute_dsl_blockscaling_mm workspace "
    # Keys of 0.20 and 1.0 that later releases name otherwise.
    "attn_backend autotuner_enabled auto_parallel cuda_graph_batch_sizes cuda_graph_max_batch_size "
    "cuda_graph_padding_enabled enable_mixed_sampler enable_trtllm_sampler kv_cache_dtype max_lora_rank max_loras "
    "max_cpu_loras moe_backend moe_load_balancer moe_max_num_tokens pytorch_backend_config torch_compile_enabled "
    "torch_compile_fullgraph use_cuda_graph use_torch_sampler"
)
TOP = frozenset(_TOP.split())
NESTED: Mapping[str, frozenset[str]] = {
    "kv_cache_config": frozenset(
        [
            "attention_dp_events_gather_period_ms",
            "copy_on_partial_reuse",
            "cross_kv_cache_fraction",
            "dtype",
            "enable_block_reuse",
            "enable_partial_reuse",
            "event_buffer_max_size",
            "free_gpu_memory_fraction",
            "host_cache_size",
            "mamba_ssm_cache_dtype",
            "max_attention_window",
            "max_gpu_total_bytes",
            "max_tokens",
            "max_util_for_resume",
            "onboard_blocks",
            "secondary_offload_min_priority",
            "sink_token_length",
            "tokens_per_block",
            "use_kv_cache_manager_v2",
            "use_uvm",
        ]
    ),
    "scheduler_config": frozenset(
        ["capacity_scheduler_policy", "context_chunking_policy", "dynamic_batch_config", "waiting_queue_policy"]
    ),
    "cuda_graph_config": frozenset(["batch_sizes", "enable_padding", "max_batch_size"]),
    "moe_config": frozenset(
        ["backend", "disable_finalize_fusion", "load_balancer", "max_num_tokens", "use_low_precision_moe_combine"]
    ),
    "cache_transceiver_config": frozenset(
        [
            "backend",
            "kv_transfer_sender_future_timeout_ms",
            "kv_transfer_timeout_ms",
            "max_tokens_in_buffer",
            "transceiver_runtime",
        ]
    ),
    "attention_dp_config": frozenset(["batching_wait_iters", "enable_balance", "timeout_iters"]),
    "speculative_config": frozenset(
        [
            "acceptance_length_threshold",
            "acceptance_window",
            "allow_advanced_sampling",
            "begin_thinking_phase_token",
            "decoding_type",
            "draft_len_schedule",
            "dynamic_tree_max_topK",
            "eagle3_layers_to_capture",
            "eagle3_model_arch",
            "eagle3_one_model",
            "eagle_choices",
            "end_thinking_phase_token",
            "file_prefix",
            "greedy_sampling",
            "is_keep_all",
            "is_public_pool",
            "is_use_oldest",
            "load_format",
            "mask_token_id",
            "max_concurrency",
            "max_draft_len",
            "max_matching_ngram_size",
            "max_ngram_size",
            "max_non_leaves_per_layer",
            "max_total_draft_tokens",
            "max_verification_set_size",
            "max_window_size",
            "medusa_choices",
            "mtp_eagle_one_model",
            "num_eagle_layers",
            "num_medusa_heads",
            "num_nextn_predict_layers",
            "output_directory",
            "posterior_threshold",
            "prompt_lookup_num_tokens",
            "pytorch_weights_path",
            "relaxed_delta",
            "relaxed_topk",
            "speculative_model",
            "speculative_model_dir",
            "use_dynamic_tree",
            "use_mtp_vanilla",
            "use_relaxed_acceptance_for_thinking",
            "write_interval",
        ]
    ),
}
"""Keys of the file of options, and of those of its tables in which a wrong key changes memory or speed."""

CACHE_FORMATS = {"fp8": "fp8", "nvfp4": "nvfp4", "bfloat16": "bf16", "float16": "fp16", "int8": "int8"}
ALGORITHMS = {
    "FP8": "fp8",
    "FP8_BLOCK_SCALES": "fp8-block128",
    "FP8_PER_CHANNEL_PER_TOKEN": "fp8",
    "NVFP4": "nvfp4",
    "NVFP4_AWQ": "nvfp4",
    "W4A16": "int4-g128",
    "W4A16_AWQ": "int4-g128",
    "W4A16_GPTQ": "int4-g128",
    "W4A8_AWQ": "int4-g128",
    "W4A8_NVFP4_FP8": "nvfp4",
    "W4A8_QSERVE_PER_CHANNEL": "int4-g128",
    "W4A8_QSERVE_PER_GROUP": "int4-g128",
    "W8A16": "int8-weight-only",
    "W8A16_GPTQ": "int8-g128",
    "W8A8_SQ_PER_CHANNEL": "int8",
    "W8A8_SQ_PER_CHANNEL_PER_TENSOR_PLUGIN": "int8",
    "W8A8_SQ_PER_CHANNEL_PER_TOKEN_PLUGIN": "int8",
    "W8A8_SQ_PER_TENSOR_PER_TOKEN_PLUGIN": "int8",
    "W8A8_SQ_PER_TENSOR_PLUGIN": "int8",
}
"""Algorithms by name (tensorrt_llm/quantization/mode.py); the others are taken as other engines' open methods are."""

METHODS = {
    "MTP": "mtp",
    "EAGLE": "eagle",
    "EAGLE3": "eagle",
    "MEDUSA": "eagle",
    "NGRAM": "ngram",
    "LOOKAHEAD": "ngram",
    "DRAFTTARGET": "draft",
}
MOST_UNKNOWN = 50
"""Keys that are compared with the known ones; a file with more was written for something else."""

POLICIES = ("GUARANTEED_NO_EVICT", "MAX_UTILIZATION", "STATIC_BATCH")


@cache
def table() -> FlagTable:
    """The flags of `trtllm-serve`; click takes no beginnings of names."""
    return FlagTable("TensorRT-LLM", _FLAGS, prefixes=False, owners=owners)


def read(invocation: Invocation, words: tuple[Word, ...], version: str | None) -> Reading:
    """Return what an invocation of TensorRT-LLM's server sets."""
    if words and words[0].text in OTHER_COMMANDS:
        return Reading()
    return _Reader(invocation, words[1:] if words and words[0].text == "serve" else words, version).reading()


class _Reader:
    def __init__(self, invocation: Invocation, words: tuple[Word, ...], version: str | None) -> None:
        line = read_flags(words, table(), version)
        given = dict(line.given)
        if line.positional and "model" not in given:
            model = line.positional[0]
            given["model"] = Given(table().flags["model"], model.text, model, Word("MODEL", model.place))
        options = dict(invocation.options)
        troubles: list[Trouble] = []
        config = given.get("config")
        if config is not None:
            path = config.word.text
            try:
                beside = file_beside(invocation, path)
            except ManifestError as error:
                beside = {}
                troubles.append(Trouble("bad-value", config.word.place, f"the file {path[:80]!r}: {error}"))
            if beside is None and not options:
                troubles.append(
                    Trouble(
                        "unresolved",
                        config.word.place,
                        f"--{config.flag.name} names {path[:80]!r}, and nothing here holds it: what it sets is unknown",
                    )
                )
            options |= beside or {}
        self.options = {name.replace("-", "_"): node for name, node in options.items()}
        # The file's values go before those of the command.
        below = frozenset().union(*NESTED.values()) - TOP
        own = {n: node for n, node in options.items() if node.kind == "scalar" and n.replace("-", "_") not in below}
        self.flags = Layers(line._replace(given=given), read_options(own, table(), version))
        self.flags.used |= {"config"}
        self.flags.troubles += troubles
        self.invocation = invocation
        self.looked_up = 0

    def reading(self) -> Reading:
        """Everything that the arguments and the file set."""
        self.flags.as_they_stand()
        tensor = self.flags.value("tensor-parallel-size") or 1
        if self._value("enable_attention_dp") is True and tensor > 1:
            self._set(("enable_attention_dp",), (*PARALLEL, "attention_data"), tensor)
        cache = CACHE_FORMATS.get(str(self.flags.value("kv-cache-dtype")))
        if cache is not None:
            self.flags.set("kv-cache-dtype", (*QUANTIZATION, "kv_cache"), cache)
        if isinstance(self._value("attn_backend"), str):
            self._set(("attn_backend",), ("engine", "attention_backend"))
        self._cache()
        self._graphs()
        self._speculation()
        self._quantization()
        policy = self._value("scheduler_config", "capacity_scheduler_policy")
        if isinstance(policy, str):
            self._set(("scheduler_config", "capacity_scheduler_policy"), (*BATCHING, "admission"))
            if policy.upper() not in POLICIES:
                self._refused(("scheduler_config", "capacity_scheduler_policy"), f"expected {', '.join(POLICIES)}")
        self._degrees(tensor)
        self.flags.one_device(self.invocation, "--tp_size")
        self._keys()
        made = self.flags.reading(table())
        read_here = ("enable_attention_dp", "attn_backend", *NESTED, "quant_config", "decoding_config")
        known = {name.replace("-", "_") for name in table().flags}
        unused = tuple(n for n in self.options if n in TOP and n not in known and n not in read_here)
        return made._replace(unused=(*made.unused, *unused))

    def _node(self, *path: str) -> Node | None:
        first = self.options.get(path[0])
        return first.get(*path[1:]) if first is not None else None

    def _value(self, *path: str) -> Any:
        node = self._node(*path)
        return None if node is None else node.value

    def _set(self, at: tuple[str, ...], path: KeyPath, value: object = None, note: str = "") -> None:
        node = self._node(*at)
        if node is not None:
            value = node.value if value is None else value
            self.flags.settings[path] = Setting(path, value, node.place, ".".join(at), note)

    def _refused(self, at: tuple[str, ...], expected: str, help_: str = "") -> None:
        node = self._node(*at)
        if node is not None:
            found = node.text[:40] or node.kind
            self.flags.troubles.append(
                Trouble("bad-value", node.place, f"{'.'.join(at)}: found {found!r}, {expected}", help_)
            )

    def _cache(self) -> None:
        home = "kv_cache_config"
        fraction = number(self._node(home, "free_gpu_memory_fraction"))
        if fraction is not None and 0 < fraction <= 1:
            self._set((home, "free_gpu_memory_fraction"), (*CACHE, "memory_utilization"), float(fraction))
        elif fraction is not None:
            self._refused((home, "free_gpu_memory_fraction"), "expected a share from 0 to 1")
        if isinstance(self._value(home, "enable_block_reuse"), bool):
            self._set((home, "enable_block_reuse"), (*CACHE, "prefix_reuse"))
        if isinstance(number(self._node(home, "tokens_per_block")), int):
            self._set((home, "tokens_per_block"), (*CACHE, "page_size"))
        most = number(self._node(home, "max_gpu_total_bytes"))
        if most:
            self._set((home, "max_gpu_total_bytes"), (*CACHE, "memory_bytes"), most)
        tokens = number(self._node(home, "max_tokens"))
        if isinstance(tokens, int) and tokens > 0:
            self._set((home, "max_tokens"), (*CACHE, "max_tokens"))
        if number(self._node(home, "host_cache_size")):
            self._set((home, "host_cache_size"), (*CACHE, "offload"), "host memory")
        cache = CACHE_FORMATS.get(str(self._value(home, "dtype")).lower())
        if cache is not None:
            self._set((home, "dtype"), (*QUANTIZATION, "kv_cache"), cache)

    def _graphs(self) -> None:
        home, eager = "cuda_graph_config", ("engine", "enforce_eager")
        node = self._node(home)
        if node is not None and node.kind == "scalar" and node.value is None:
            self._set((home,), eager, True, "no configuration")
        if self._value("use_cuda_graph") is False:
            self._set(("use_cuda_graph",), eager, True)
        listed = self._node(home, "batch_sizes")
        sizes = listed.plain() if listed is not None and listed.kind == "sequence" else []
        for at, value in (
            ((home, "batch_sizes"), max((size for size in sizes if isinstance(size, int)), default=None)),
            ((home, "max_batch_size"), number(self._node(home, "max_batch_size"))),
            (("cuda_graph_max_batch_size",), number(self._node("cuda_graph_max_batch_size"))),
        ):
            if isinstance(value, int) and value > 0:
                self._set(at, ("engine", "cuda_graph_max_batch"), value)

    def _speculation(self) -> None:
        home = "speculative_config"
        kind = str(self._value(home, "decoding_type") or "").upper().replace("_", "")
        method = METHODS.get(kind)
        if method is None:
            return
        self._set((home, "decoding_type"), (*SPECULATION, "method"), method)
        names = ("num_nextn_predict_layers", "max_draft_len") if method == "mtp" else ("max_draft_len",)
        name = next((n for n in names if number(self._node(home, n))), None)
        if name is not None:
            self._set((home, name), (*SPECULATION, "tokens"))
        elif method == "mtp":
            self._set((home, "decoding_type"), (*SPECULATION, "tokens"), 1, "the engine's default")
        elif kind in ("EAGLE", "EAGLE3", "NGRAM", "DRAFTTARGET"):
            self._refused((home, "decoding_type"), "expected max_draft_len beside it", "add max_draft_len")
        if method == "draft":
            model = next((n for n in ("speculative_model", "speculative_model_dir") if self._value(home, n)), None)
            if model is not None:
                self._set((home, model), (*SPECULATION, "draft_model"))

    def _quantization(self) -> None:
        weights, path = method(self._value("quant_config", "quant_algo"), ALGORITHMS), (*QUANTIZATION, "weights")
        if weights is not None:
            self._set(("quant_config", "quant_algo"), path, weights.format)
            made = self.flags.settings[path]
            self.flags.settings[path] = made._replace(note=weights.note, assumed=bool(weights.note))
        cache = CACHE_FORMATS.get(str(self._value("quant_config", "kv_cache_quant_algo")).lower())
        if cache is not None:
            self._set(("quant_config", "kv_cache_quant_algo"), (*QUANTIZATION, "kv_cache"), cache)

    def _degrees(self, tensor: int) -> None:
        experts = self.flags.value("moe-expert-parallel-size")
        split = number(self._node("moe_tensor_parallel_size"))
        if experts and experts > 0 and split and split > 0 and experts * split != tensor:
            self.flags.trouble(
                "unsupported",
                "moe-expert-parallel-size",
                f"{experts} expert ranks x {split} ranks of an expert are not the tensor-parallel {tensor}: the server "
                "does not start",
                "leave moe_tensor_parallel_size out",
            )

    def _keys(self) -> None:
        """Say which keys of the file are none, or stand at the wrong level: models forbid what they do not declare."""
        known = TOP | {name.replace("-", "_") for name in table().flags}
        known |= {alias.lstrip("-").replace("-", "_") for flag in table().flags.values() for alias in flag.aliases}
        for name, node in self.options.items():
            homes = [home for home, keys in NESTED.items() if name in keys]
            if name not in TOP and homes:
                help_ = f"move it below {homes[0]}"
                self._unknown(name, node, f"it belongs below {' or '.join(homes)}", help_)
            elif name not in known:
                self._near(name, node, TOP)
            for inner, below in node.items() if name in NESTED else ():
                keys = NESTED[name]
                if inner not in keys and inner in TOP:
                    self._unknown(f"{name}.{inner}", below, "it belongs at the top level", "move it to the top level")
                elif inner not in keys:
                    self._near(inner, below, keys, f"{name}.")

    def _near(self, name: str, node: Node, keys: Iterable[str], home: str = "") -> None:
        self.looked_up += 1
        if self.looked_up > MOST_UNKNOWN:
            return
        # What is only somewhat alike may be a key of a newer release.
        close = [k for k in nearest(name, sorted(keys), 1) if abs(len(k) - len(name)) <= 2 and _alike(k, name)]
        if close:
            self._unknown(f"{home}{name}", node, f"close to it is {close[0]}", f"did you mean {close[0]}?")

    def _unknown(self, name: str, node: Node, instead: str, help_: str) -> None:
        message = f"TensorRT-LLM has no key {name[:80]} here and refuses the file; {instead}"
        self.flags.troubles.append(Trouble("unknown", node.place, message, help_))


def _alike(one: str, other: str) -> bool:
    """Whether two names differ in two characters or so."""
    from difflib import SequenceMatcher

    return SequenceMatcher(None, one, other.lower(), autojunk=False).ratio() >= 0.88
