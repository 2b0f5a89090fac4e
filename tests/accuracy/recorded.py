"""Maps recorded deployments (start-up logs, issues, benchmark notes) to specs, in one way for all of them.

A record has an engine, a model, a device, and flags by common names, whatever the engine calls them. Nothing here
is chosen by record: a name is looked up, a flag sets the key that means it, what is not stated is left out. A
record that cannot be expressed says why.
"""

from __future__ import annotations

import json
import math
import re
import tempfile
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from published import UnmappedError, plugins

from servelint.opening import open_spec
from servelint.review import Review
from servelint.spec.document import Document
from servelint_plugins import models

DATA = Path(__file__).resolve().parents[1] / "data"
ROOT = Path(tempfile.mkdtemp(prefix="servelint-recorded-")).resolve()
FACTS = DATA / "facts" / "memory_facts.jsonl"
CASES = {kind: DATA / "cases" / f"{kind}.jsonl" for kind in ("memory", "startup", "behaviour")}

MODELS = {
    "01-ai/Yi-34B-Chat": "01-ai/Yi-34B",
    "Chinese-Alpaca-2 (7B class)": "meta-llama/Llama-2-7b-hf",
    "CodeLlama-34b-Instruct": "codellama/CodeLlama-34b-hf",
    "CodeLlama-34B AWQ": "codellama/CodeLlama-34b-hf",
    "DeepSeek-R1": "deepseek-ai/DeepSeek-R1",
    # The published config of the distilled model is that of its base.
    "DeepSeek-R1-Distill-Qwen-7B": "Qwen/Qwen2.5-7B",
    "DeepSeek-V3": "deepseek-ai/DeepSeek-V3",
    "DeepSeek-V4-Flash-0731": "deepseek-ai/DeepSeek-V4-Flash",
    "DeepSeek-V4-Flash-0731 (304B total, 13B active)": "deepseek-ai/DeepSeek-V4-Flash",
    "DeepSeek-V4-Pro": "deepseek-ai/DeepSeek-V4-Pro",
    "DeepSeek-V4-Pro FP8": "deepseek-ai/DeepSeek-V4-Pro",
    "DeepSeek-V4-Pro FP8 + MTP": "deepseek-ai/DeepSeek-V4-Pro",
    "GLM-4.7-FP8": "zai-org/GLM-4.6",
    "GLM-5.2-NVFP4 (433 GB)": "nvidia/GLM-5.2-NVFP4",
    "Gemma-4 26B": "google/gemma-4-26B-A4B",
    "Gemma-4 31B": "google/gemma-4-31B-it",
    "Gemma-4-26B-A4B AWQ + MTP draft": "google/gemma-4-26B-A4B",
    "Kimi-K2-Thinking INT4": "moonshotai/Kimi-K2-Thinking",
    "Kimi-K2.5 INT4": "moonshotai/Kimi-K2.5",
    "Llama 3.3 70B 4.5bpw": "meta-llama/Llama-3.3-70B-Instruct",
    "LLaMA-2-13B": "meta-llama/Llama-2-13b-hf",
    "Llama-2-7B": "meta-llama/Llama-2-7b-hf",
    "Llama-3-70B": "meta-llama/Meta-Llama-3-70B",
    "Llama-3-70B FP8": "meta-llama/Meta-Llama-3-70B",
    "Llama-3.1-70B": "meta-llama/Llama-3.1-70B",
    "Meta-Llama-3-8B-Instruct": "meta-llama/Meta-Llama-3-8B",
    "Meta-Llama-3.1-8B-Instruct": "meta-llama/Llama-3.1-8B",
    "MiniMax-M3 MXFP8": "MiniMaxAI/MiniMax-M3",
    "MiniMax-M3-NVFP4 (250 GB)": "MiniMaxAI/MiniMax-M3",
    "NousResearch/Hermes-3-Llama-3.1-8B": "meta-llama/Llama-3.1-8B",
    "OPEA/Mistral-Small-3.1-24B-Instruct-2503-int4-AutoRound-awq-sym": "mistralai/Mistral-Small-3.1-24B-Instruct-2503",
    "Q4_K_M target (27B class)": "Qwen/Qwen3.5-27B",
    "Qwen/Qwen2.5-3B-Instruct": "Qwen/Qwen2.5-3B",
    "Qwen/Qwen3-Coder-30B-A3B-Instruct-FP8": "Qwen/Qwen3-30B-A3B-FP8",
    "Qwen1.5-14B-Chat": "Qwen/Qwen1.5-14B",
    "Qwen1.5-32B": "Qwen/Qwen1.5-32B",
    "Qwen1.5-72B-Chat": "Qwen/Qwen1.5-72B",
    "Qwen1.5-7B-Chat-GPTQ-Int4": "Qwen/Qwen1.5-7B",
    "Qwen3-32B-FP8": "Qwen/Qwen3-32B-FP8",
    "Qwen3-Coder-30B-A3B FP8": "Qwen/Qwen3-30B-A3B-FP8",
    "Qwen3-Coder-480B-A35B-Instruct-FP8": "Qwen/Qwen3-Coder-480B-A35B-Instruct-FP8",
    # Qwen3.6-27B has the shapes of Qwen3.5-27B; logged block counts of Qwen3.8-27B are whole numbers with them, too.
    "Qwen3.6-27B + DFlash draft": "Qwen/Qwen3.5-27B",
    "Qwen3.6-35B-A3B AWQ": "Qwen/Qwen3.5-35B-A3B",
    "Qwen3.6-35B-A3B NVFP4": "nvidia/Qwen3.6-35B-A3B-NVFP4",
    "Qwen3.8-27B (quantized)": "Qwen/Qwen3.5-27B",
    "Qwen3.8-27B FP8": "Qwen/Qwen3.5-27B",
    "Qwen3.8-27B NVFP4": "Qwen/Qwen3.5-27B",
    "QwQ-32B": "Qwen/Qwen2.5-32B",
    "TheBloke/Mixtral-8x7B-Instruct-v0.1-AWQ": "mistralai/Mixtral-8x7B-v0.1",
    "WizardLM-33B-V1.0-Uncensored": "huggyllama/llama-30b",
    "WizardLM-70B": "meta-llama/Llama-2-70b-hf",
    "c4ai-command-r-plus 104B": "CohereForAI/c4ai-command-r-plus",
    "cyankiwi/Kimi-Linear-48B-A3B-Instruct-AWQ-4bit": "moonshotai/Kimi-Linear-48B-A3B-Instruct",
    "gaunernst/gemma-3-27b-it-int4-awq": "google/gemma-3-27b-it",
    "gemma-2-9b": "google/gemma-2-9b",
    "gemma-3-27b-it": "google/gemma-3-27b-it",
    "gemma-4-31B AWQ": "google/gemma-4-31B-it",
    "gpt-oss-120b": "openai/gpt-oss-120b",
    "openai/gpt-oss": "openai/gpt-oss-20b",
    "opt-125m / starcoder2-3b": "facebook/opt-125m",
    "meta-llama/Meta-Llama-3-70B-Instruct": "meta-llama/Meta-Llama-3-70B",
    "meta-llama/Meta-Llama-3.1-405B-Instruct-FP8": "meta-llama/Llama-3.1-405B-Instruct-FP8",
    "meta-llama/Meta-Llama-3.1-8B-Instruct": "meta-llama/Llama-3.1-8B",
    "mistralai/Mistral-7B-Instruct-v0.1": "mistralai/Mistral-7B-v0.1",
}
"""Names of records by catalogue id; a record's own name is looked up where it is not here."""

PAIRED = {"Qwen2.5-VL-72B-Instruct": ("Qwen/Qwen2.5-VL-7B-Instruct", "Qwen/Qwen2.5-72B")}
"""Models that are one catalogue model's tower beside another one's text layers."""

FORMATS = (
    (r"eetq|int8 weight-only", "int8-weight-only"),
    (r"fp8.*block|fp8 block", "fp8-block128"),
    (r"mxfp8", "mxfp8"),
    (r"\bfp8\b", "fp8"),
    (r"nvfp4", "nvfp4"),
    # The name of the method is kept: older releases have kernels of their own for it.
    (r"awq", "awq"),
    (r"gptq|int4", "int4-g128"),
    (r"q4_k_m", "q4_k_m"),
    # ExLlamaV2: the bits of a weight with its scales.
    (r"4\.5 ?bpw", "int4-g32"),
)
"""How records write weight formats; what is left stays as the checkpoint has it."""

ACCELERATORS = {
    "24GB-class": "nvidia/a10",
    "80GB-class NVIDIA (type not stated)": "nvidia/a100-sxm4-80gb",
    "80GB-class single GPU (Kaggle)": "nvidia/h100-sxm5-80gb",
    "A10": "nvidia/a10",
    "A100": "nvidia/a100-sxm4-80gb",
    # The A100 with two thirds of its NVLink.
    "A800": "nvidia/a100-sxm4-80gb",
    "A100 NVLink": "nvidia/a100-sxm4-80gb",
    "A100-80GB": "nvidia/a100-sxm4-80gb",
    "A30": "nvidia/a30",
    "Apple M1 Ultra": "apple/m1-ultra-64c",
    "B200": "nvidia/b200-sxm6-180gb",
    # Cores, memory and bandwidth of a device are those of the part, on whichever board it is.
    "Blackhole x4": "tenstorrent/blackhole-p150",
    "H100": "nvidia/h100-sxm5-80gb",
    "H100 SXM": "nvidia/h100-sxm5-80gb",
    "H100-80GB": "nvidia/h100-sxm5-80gb",
    "H20": "nvidia/h20-96gb",
    "H200": "nvidia/h200-sxm5-141gb",
    "GH200-96GB": "nvidia/gh200-96gb",
    "H800": "nvidia/h800-sxm5-80gb",
    "L4": "nvidia/l4",
    "L40": "nvidia/l40",
    "L40S": "nvidia/l40s",
    "MI300X": "amd/mi300x-oam-192gb",
    "RTX 3090": "nvidia/rtx-3090",
    "RTX 3090 (NVLink)": "nvidia/rtx-3090",
    "RTX 3090 (PCIe)": "nvidia/rtx-3090",
    "RTX 4090 48GB mod": "nvidia/rtx-4090",
    "RTX 5090": "nvidia/rtx-5090",
    "RTX 5090 Laptop": "nvidia/rtx-5090",
    "Ryzen AI Max+ 395 (Vulkan)": "amd/ryzen-ai-max-395-128gb",
    "T4": "nvidia/t4",
    "Tesla P40": "nvidia/p40",
    "DGX Spark GB10": "nvidia/gb10",
    "DGX Spark GB10 (273 GB/s class memory)": "nvidia/gb10",
    # The part that vLLM names first for TPUs.
    "TPU": "google/tpu-v6e",
    "Tesla T4": "nvidia/t4",
    "Turing, compute capability 7.5": "nvidia/t4",
    "V100": "nvidia/v100-sxm2-32gb",
    "compute capability 8.6 GPU": "nvidia/a10",
}
SMALLER = {("A100", 40): "nvidia/a100-sxm4-40gb"}
"""Parts that are sold with less memory, by the memory that a record states, in tens of GiB."""

STAND_IN = "nvidia/b300-sxm6-270gb"
"""Where a record names no device and its memory is not the question: the one that holds most."""
USUAL = ("nvidia/a100-sxm4-80gb", "nvidia/h100-sxm5-80gb")
"""Where a record of behavior names no device: the commonest whose default lets in what was seen to run by default."""
USUAL_LENGTHS = (1000, 250)
"""Prompt and output tokens where a record of behavior states neither."""
DESCRIBED = {
    "model with MTP head": "Qwen/Qwen3.5-27B",
    "unscaled-RoPE models": "Qwen/Qwen3-8B",
}
"""Models that a record describes instead of naming them: one that is so, where size is not the question."""
EXPERTS = "Qwen/Qwen3-30B-A3B"
"""One with experts, where the record's flags spread some."""
FAMILIES = {
    "baichuan": "huggyllama/llama-13b",
    "deepseek-mla": "deepseek-ai/DeepSeek-V4-Flash",
    "glm": "zai-org/GLM-4.7-Flash",
    "llama": "meta-llama/Llama-3.2-3B",
    "other": "meta-llama/Llama-3.1-8B",
    "qwen-hybrid": "Qwen/Qwen3-8B",
    "step": "Qwen/Qwen3-30B-A3B",
}
"""Where a record names no model that is known and its size is not the question: one of the family."""

ENGINES = {
    "exllamav2": "generic",
    "llama.cpp": "llama.cpp",
    "sglang": "sglang",
    "tensorrt-llm": "tensorrt-llm",
    "tgi": "tgi",
    "vllm": "vllm",
    "vllm (dynamo)": "vllm",
    "vllm fork": "vllm",
    # Platforms outside of vLLM, whose own code plans the memory: no plugin has read it.
    "vllm-metal": "generic",
    "vllm-tpu": "vllm",
    "vllm-tt": "generic",
}
MONTHS = {
    "2023-07": "0.1.2", "2023-09": "0.1.7", "2023-11": "0.2.2", "2023-12": "0.2.6", "2024-01": "0.2.7",
    "2024-02": "0.3.2", "2024-03": "0.3.3", "2024-04": "0.4.1", "2024-06": "0.5.0", "2024-07": "0.5.3",
    "2024-08": "0.5.4", "2024-09": "0.6.1", "2024-12": "0.6.4", "2025-02": "0.7.3", "2025-03": "0.8.2",
    "2025-04": "0.8.4", "2025-05": "0.8.5", "2025-06": "0.9.1", "2025-07": "0.10.0", "2025-08": "0.10.1",
    "2025-09": "0.10.2", "2025-10": "0.11.0", "2025-11": "0.11.1", "2025-12": "0.12.0",
    "2026-01": "0.13.0", "2026-02": "0.15.0", "2026-03": "0.17.0", "2026-04": "0.19.0", "2026-05": "0.21.0",
    "2026-06": "0.22.0", "2026-07": "0.24.0", "2026-08": "0.26.0", "2026-09": "0.28.0",
}  # fmt: skip
"""A release of vLLM of each month, for records that state only that."""

OTHER_MONTHS = {
    "sglang": {"2025-04": "0.4.6", "2025-05": "0.4.6", "2025-06": "0.4.7", "2025-11": "0.5.5", "2026-07": "0.5.15"},
    "tensorrt-llm": {"2023-10": "0.5.0", "2023-11": "0.5.0", "2024-12": "0.15.0"},
}
"""The same of other engines, for the months that records state."""

ISSUES = (
    (25586, "0.11.0"), (27307, "0.11.1"), (29224, "0.12.0"), (30890, "0.13.0"), (33192, "0.15.0"),
    (34832, "0.17.0"), (36518, "0.19.0"), (40148, "0.21.0"), (42129, "0.22.0"),
)  # fmt: skip
"""The first numbers of vLLM's issues and pull requests of a month, and a release of it."""

BACKENDS = {"flashinfer": "FLASHINFER", "triton": "TRITON_ATTN", "flash-attn": "FLASH_ATTN"}

SPELLED = {
    "tp": ("parallelism", "tensor"),
    "pp": ("parallelism", "pipeline"),
    "dp": ("parallelism", "data"),
    "dcp": ("parallelism", "context"),
    "gpu_memory_utilization": ("kv_cache", "memory_utilization"),
    "util": ("kv_cache", "memory_utilization"),
    "mem_fraction_static": ("kv_cache", "memory_utilization"),
    "cuda_memory_fraction": ("kv_cache", "memory_utilization"),
    "kv_cache_free_gpu_mem_fraction": ("kv_cache", "memory_utilization"),
    "block_size": ("kv_cache", "page_size"),
    "tokens_per_block": ("kv_cache", "page_size"),
    "prefix_caching": ("kv_cache", "prefix_reuse"),
    "group_size": ("quantization", "group_size"),
    "max_num_seqs": ("batching", "max_sequences"),
    "max_batch_size": ("batching", "max_sequences"),
    "max_running_requests": ("batching", "max_sequences"),
    "max_concurrent_requests": ("batching", "max_sequences"),
    "max_num_batched_tokens": ("batching", "max_batched_tokens"),
    "max_batch_prefill_tokens": ("batching", "max_batched_tokens"),
    "max_num_tokens": ("batching", "max_batched_tokens"),
    "chunked_prefill": ("batching", "chunked_prefill"),
    "chunked_prefill_size": ("batching", "prefill_chunk"),
    "prefill_decode_interval": ("batching", "prefill_decode_interval"),
}
CACHE_ALONE = ("vllm-tt",)
"""Engines whose share of memory is the cache's alone, weights beside it (tenstorrent/tt-xla#4958)."""
VARIABLES = {"allow long max model len": "VLLM_ALLOW_LONG_MAX_MODEL_LEN"}
SLOTS = ("n_parallel", "n_slots")
SERVER_FLAGS = {"n_ctx": "-c", "n_parallel": "-np", "n_slots": "-np", "kv_unified": "-kvu"}
"""Flags of llama.cpp's server, whose context is that of all slots together: its own reader says what each has."""
TARGETS = re.compile(r"\bgfx\d+")
"""How a compiler names a device: several parts of unlike sizes have the same name."""
LEAST_POSITIONS = 4096
"""Positions of a model of which no record says any: few, so that no length is refused for a guess."""
LENGTHS = ("max_model_len", "max_total_tokens", "n_ctx", "context_length")


class Record(NamedTuple):
    """One recorded deployment: what was run, what was seen, and what a check should say of it."""

    id: str
    kind: str
    category: str
    negative: bool
    confidence: str
    source: str
    engine: str
    version: str
    model: str
    family: str
    arch: Mapping[str, Any]
    gpu: str
    mem_gib: float | None
    count: int | None
    flags: Mapping[str, Any]
    observed: Mapping[str, Any]
    level: str
    message: str


def _rows(path: Path) -> Iterator[dict[str, Any]]:
    with path.open(encoding="utf-8") as file:
        yield from (json.loads(line) for line in file if line.strip())


def cases(kind: str) -> list[Record]:
    """Return the recorded cases of a kind: ``memory``, ``startup`` or ``behaviour``."""
    return [
        Record(
            row["id"],
            kind,
            row["category"],
            row["negative"],
            row["confidence"],
            row["source"],
            row["engine"],
            row["engine_version"],
            row["model"],
            row["family"],
            row["arch"],
            row["hardware"]["gpu"],
            row["hardware"].get("mem_gib"),
            row["count"],
            row["flags"],
            row["observed"],
            row["expected_lint"]["level"],
            row["expected_lint"]["message"],
        )
        for row in _rows(CASES[kind])
    ]


_SEEN = ("kv_", "weights_", "engine_estimated", "concurrency", "draft_", "runtime_")


def facts() -> list[Record]:
    """Return the rows of engines' logged memory; a row of several versions or shares is one record for each."""
    return [record for row in _rows(FACTS) for record in _fact(row)]


_SET = ("tp", "pp", "dcp", "util", "max_model_len", "block_size", "max_num_batched_tokens")
_AT = "concurrency_at_"


def _fact(row: dict[str, Any]) -> Iterator[Record]:
    several = [key for key, value in row.items() if isinstance(value, list) and len(value) > 1]
    for at in range(len(row[several[0]]) if several else 1):
        one = {key: value[at] if key in several else value for key, value in row.items()}
        flags = {k: one[k] for k in _SET if k in one}
        if "fp8" in str(one.get("check", "")):
            flags["kv_cache_dtype"] = "fp8"
        for key in one:
            if key.startswith(_AT):
                # Sequences at once are logged of the longest one.
                flags["max_model_len"] = int(key.removeprefix(_AT))
        observed = {k: v for k, v in one.items() if k.startswith(_SEEN)}
        name = f"{row['id']}.{at + 1}" if several else row["id"]
        gpu, model = str(one.get("gpu", "not stated")), str(one.get("model", "not stated"))
        version = str(one.get("engine_version", "not stated"))
        yield Record(
            name, "fact", "memory", False, "high", row["source"], str(one.get("engine", "")), version, model, "", {},
            gpu, None, one.get("count"), flags, observed, "", "",
        )  # fmt: skip


def number(value: object) -> float | None:
    """The number that a flag states: its own, the first of several, or the first in a remark on a value."""
    if isinstance(value, list):
        value = value[0] if value else None
    if isinstance(value, bool) or value is None:
        return None
    if isinstance(value, int | float):
        return value
    text = str(value)
    found = re.search(r"\d+(?:\.\d+)?", text)
    return None if found is None or text.startswith("default") or "K default" in text else float(found[0])


class Deployed(NamedTuple):
    """A record as a spec: its text, and the model config beside it where the catalogue has no such model."""

    text: str
    config: Mapping[str, object] | None


def deployed(record: Record, *, extra: str = "", stand_ins: bool = False) -> Deployed:
    """Write a record as a spec; UnmappedError says why that is impossible.

    ``extra`` are lines of ``[policy.kv_cache]``. ``stand_ins`` allows a device where the record names none, and a
    model of the family where it names none that is known.
    """
    by_default = str(record.flags.get("max_num_seqs")).startswith("default")
    seen = max(record.observed.get("running", ()), default=0) if by_default else 0
    for usual in USUAL:
        # Of the last one nothing more is asked.
        made = _written(record, extra, stand_ins, usual)
        if not seen or seen <= _admitted(record, made):
            break
    return made


def _admitted(record: Record, made: Deployed) -> float:
    """Sequences that the engine lets in at once; infinite where nothing is composed that says so."""
    found, folder = document(record, made)
    composition = None if found.problems else Review(found, plugins(), folder).composition
    limit = None if composition is None else composition.scheduler.max_sequences
    return math.inf if limit is None else limit


def _written(record: Record, extra: str, stand_ins: bool, usual: str) -> Deployed:
    id_, config = _model(record, stand_ins)
    tables: dict[str, dict[str, object]] = {"hardware": _hardware(record, stand_ins, usual)}
    tables["model"] = {"config": "config.json"} if config is not None else {"id": id_}
    if config is None and "max_position_embeddings" in record.arch:
        tables["model"]["override"] = {"max_position": record.arch["max_position_embeddings"]}
    engine = ENGINES.get(record.engine)
    if engine is None:
        raise UnmappedError("no plugin knows the engine", record.engine)
    version = release(record)
    tables["engine"] = {"name": engine} | ({"version": version} if version else {})
    backend = record.flags.get("attention_backend")
    if backend in BACKENDS and engine == "vllm":
        tables["engine"]["attention_backend"] = BACKENDS[backend]
    if (graphs := number(record.flags.get("cuda_graph_max_bs"))) is not None:
        tables["engine"]["cuda_graph_max_batch"] = int(graphs)
    _policies(record, tables, config if config is not None else models.config(_path(id_)))
    _workload(record, tables)
    if extra:
        tables.setdefault("policy.kv_cache", {})
    lines = ["servelint = 1"]
    for name, keys in tables.items():
        lines += ["", f"[{name}]", *(f"{key} = {_toml(value)}" for key, value in keys.items())]
        if name == "policy.kv_cache" and extra:
            lines.append(extra)
    return Deployed("\n".join(lines) + "\n", config)


@cache
def _paths() -> Mapping[str, Path]:
    return dict(models.catalogue())


def _path(id_: str) -> Path:
    return _paths()[id_]


def _model(record: Record, stand_ins: bool) -> tuple[str, Mapping[str, object] | None]:
    """The id of the catalogue, or a config made of what the record says of the architecture."""
    if record.model in PAIRED:
        tower, text = (models.config(_path(name)) for name in PAIRED[record.model])
        return record.model, tower | {k: v for k, v in text.items() if k not in ("model_type", "architectures")}
    found = plugins().models.resolve(MODELS.get(record.model, record.model))
    if found is not None:
        return found, None
    arch = record.arch
    heads = arch.get("heads") or arch.get("kv_heads")
    inner = next((arch[k] for k in ("intermediate", "sharded_dim") if k in arch), None)
    if heads is None and inner is None and "moe_intermediate" not in arch and "max_position_embeddings" not in arch:
        if stand_ins and record.model in DESCRIBED:
            return DESCRIBED[record.model], None
        if stand_ins and record.family in FAMILIES:
            return EXPERTS if record.flags.get("ep") is True else FAMILIES[record.family], None
        raise UnmappedError("the model is not in the catalogue, and the record has little of its shape", record.model)
    heads = heads or 64
    hidden = heads * arch.get("head_dim", 128)
    made: dict[str, object] = {
        "model_type": "llama",
        "num_hidden_layers": arch.get("layers", 32),
        "num_attention_heads": heads,
        "num_key_value_heads": arch.get("kv_heads", heads),
        "head_dim": arch.get("head_dim", 128),
        "hidden_size": hidden,
        "intermediate_size": inner or -(-hidden * 8 // 3 // 256) * 256,
        "vocab_size": arch.get("vocab", 32_000),
        "max_position_embeddings": arch.get("max_position_embeddings", int(stated_length(record) or LEAST_POSITIONS)),
        "torch_dtype": "bfloat16",
    }
    scaling = re.match(r"(linear|dynamic|yarn) factor ([\d.]+)", str(record.flags.get("rope_scaling") or ""))
    if scaling is not None:
        made["rope_scaling"] = {"type": scaling[1], "factor": float(scaling[2])}
    if "moe_intermediate" in arch:
        made |= {
            "model_type": "qwen3_moe",
            "moe_intermediate_size": arch["moe_intermediate"],
            "num_experts": 128,
            "num_experts_per_tok": 8,
        }
    return record.model, made


def _hardware(record: Record, stand_ins: bool, usual: str) -> dict[str, object]:
    whole = round(record.mem_gib, -1) if record.mem_gib else None
    id_ = SMALLER.get((record.gpu, int(whole)) if whole else ("", 0)) or ACCELERATORS.get(record.gpu)
    unnamed = record.gpu.startswith(("not stated", "any")) or TARGETS.search(record.gpu) is not None
    if id_ is None and stand_ins and unnamed:
        id_ = usual if record.kind == "behaviour" else STAND_IN
    if id_ is None:
        stated = "the device is not stated" if record.gpu.startswith(("not stated", "any")) else "no such device"
        raise UnmappedError(stated, record.gpu)
    found: dict[str, object] = {"accelerator": id_}
    degrees = [number(record.flags.get(name)) or 1 for name in ("tp", "pp", "dp")]
    devices = record.count or int(degrees[0] * degrees[1] * degrees[2])
    if devices > 1:
        found["devices"] = devices
    if nodes := record.flags.get("nnodes") or record.flags.get("nodes"):
        found["nodes"] = nodes
    if record.gpu.endswith("(PCIe)"):
        # GeForce drivers join devices over PCIe through host memory.
        found["peer_to_peer"] = False
    if "replicas" in record.flags:
        found["replicas"] = record.flags["replicas"]
    if record.mem_gib and (record.mem_gib != int(record.mem_gib) or "mod" in record.gpu):
        # A figure with decimals is what the engine saw, not the size that the part is sold by.
        found["override"] = {"memory": f"{record.mem_gib} GiB"}
    return found


def _toml(value: object) -> str:
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{key} = {_toml(inner)}" for key, inner in value.items()) + " }"
    return json.dumps(value)


def release(record: Record) -> str | None:
    """The engine's release: as stated, else one of the month, which the number of vLLM's issue dates, too."""
    if record.engine == "llama.cpp" and re.fullmatch(r"b\d+", record.version):
        return record.version
    stated = re.match(r"(?:main )?(\d+\.\d+(?:\.\d+)?)(?!\d*-)", record.version)
    if stated is not None:
        return stated[1]
    month = re.search(r"20\d\d-\d\d", record.version)
    if ENGINES.get(record.engine) != "vllm":
        return OTHER_MONTHS.get(record.engine, {}).get(month[0]) if month is not None else None
    if month is not None:
        return MONTHS.get(month[0])
    issue = re.match(r"vllm-project/vllm#(\d+)", record.source)
    return None if issue is None else next((v for number, v in reversed(ISSUES) if int(issue[1]) >= number), None)


def stated_length(record: Record) -> float | None:
    """The longest context that the flags allow, in tokens."""
    flags = record.flags
    length = next((number(flags[n]) for n in LENGTHS if n in flags), None)
    if length is None and {"max_input_len", "max_output_len"} <= flags.keys():
        return float(flags["max_input_len"] + flags["max_output_len"])
    return length


def _policies(record: Record, tables: dict[str, dict[str, object]], config: Mapping[str, Any]) -> None:
    def put(policy: str, field: str, value: object) -> None:
        tables.setdefault(f"policy.{policy}", {})[field] = value

    flags = record.flags
    length = stated_length(record)
    if length is None and str(flags.get("max_model_len") or "").startswith("above max_position_embeddings"):
        length = config["max_position_embeddings"] + 1
    if record.engine == "llama.cpp":
        _server(record, tables)
    elif length is not None:
        tables["model"]["max_model_len"] = int(length)
    if flags.get("env_override") in VARIABLES:
        tables["engine"]["env"] = {VARIABLES[flags["env_override"]]: "1"}
    for name, (policy, field) in SPELLED.items():
        value = flags.get(name)
        if field in ("prefix_reuse", "chunked_prefill"):
            if isinstance(value, bool):
                put(policy, field, value)
        elif (found := number(value)) is None:
            continue
        elif field == "memory_utilization" and record.engine in CACHE_ALONE and record.mem_gib:
            put(policy, "memory_bytes", f"{found * record.mem_gib:g} GiB")
        else:
            put(policy, field, found if field == "memory_utilization" else int(found))
    if flags.get("ep") is True:
        put("parallelism", "expert", int((number(flags.get("tp")) or 1) * (number(flags.get("dp")) or 1)))
    kept = config.get("quantization_config") or (config.get("text_config") or {}).get("quantization_config")
    # A name says it where no flag does.
    written = str(flags.get("quantization") or record.model)
    if kept is None:
        weights = next((name for pattern, name in FORMATS if re.search(pattern, written.lower())), None)
        if weights is None and "compressed-tensors" in written:
            raise UnmappedError("the format of the weights is not stated", written)
        if weights is not None:
            put("quantization", "weights", weights)
    if str(flags.get("dtype", "")).startswith("fp16") and "quantization" not in flags:
        put("quantization", "activations", "fp16")
    if str(flags.get("dtype", "")).startswith("bf16") and "quantization" not in flags:
        put("quantization", "activations", "bf16")
    cache_type = re.match(r"(bf16|fp8|nvfp4)(?:[ _(]+(e4m3|e5m2))?", str(flags.get("kv_cache_dtype") or ""))
    if cache_type is not None:
        put("quantization", "kv_cache", "_".join(filter(None, cache_type.groups())))
    _speculation(flags, put)
    if flags.get("mode") == "disaggregated":
        for pool in ("prefill", "decode"):
            put("disaggregation", pool, {"tensor": flags[f"{pool}_tp"]})
    if str(flags.get("structured_output", "")).startswith("guided"):
        put("constrained_decoding", "share", 1.0)
        stated = release(record)
        if record.engine == "vllm" and stated and before(stated, "0.6.5"):
            # XGrammar came with 0.6.5; before, Outlines ran on the logits of each sequence in turn.
            put("constrained_decoding", "backend", "outlines")
            put("constrained_decoding", "overlap", False)
    if record.kind == "behaviour":
        _accepted(record, put)


def _server(record: Record, tables: dict[str, dict[str, object]]) -> None:
    """The arguments of llama.cpp's server; what its slots were seen to advertise is what a request may have."""
    stated = ((spelling, record.flags.get(name)) for name, spelling in SERVER_FLAGS.items())
    words = [
        spelling if value is True else f"{spelling} {value}"
        for spelling, value in stated
        if value is True or (isinstance(value, int) and value is not False)
    ]
    if words:
        tables["engine"]["args"] = " ".join(words)
    if "n_ctx_slot" in record.observed:
        tables["deployment"] = {"sized_for": record.observed["n_ctx_slot"]}


def _accepted(record: Record, put: Any) -> None:
    """Tokens kept a step as the engine logged them; a logged acceptance is the share of all drafted tokens."""
    kept, share = number(record.observed.get("accept_len")), number(record.observed.get("acceptance"))
    tokens = re.search(r"k=(\d+)", str(record.flags.get("speculative")))
    if kept is None and share is not None and tokens is not None:
        kept = 1 + int(tokens[1]) * share
    if kept is not None and tokens is not None:
        put("speculation", "acceptance_length", kept)


def _speculation(flags: Mapping[str, Any], put: Any) -> None:
    method = str(flags.get("speculative") or ("mtp" if "num_speculative_tokens" in flags else ""))
    name = next((n for n in ("mtp", "eagle", "ngram") if n in method), "eagle" if method else "")
    if not name:
        return
    put("speculation", "method", name)
    tokens = re.search(r"k=(\d+)", method)
    count = flags.get("num_speculative_tokens") or (int(tokens[1]) if tokens is not None else None)
    if count is not None:
        put("speculation", "tokens", count)


def _usual(record: Record, prompt: float | None, output: float | None) -> tuple[float | None, float | None]:
    """The lengths, with the usual ones for what is not stated, where the context has room for them."""
    room = stated_length(record) or 1 << 30
    room //= next((int(n) for name in SLOTS if (n := number(record.flags.get(name))) is not None), 1)
    found = prompt or USUAL_LENGTHS[0], output or USUAL_LENGTHS[1]
    return found if sum(found) <= room else (prompt, output)


def before(version: str, other: str) -> bool:
    """Whether a release of numbers comes before another one."""
    mine, theirs = ([int(n) for n in re.findall(r"\d+", v)] for v in (version, other))
    return mine < theirs


PROMPTS = ("isl", "prompt_tokens", "input_len", "prompt_len", "context")
OUTPUTS = ("osl", "output_len", "output_tokens")
LOADS = ("concurrency", "max_concurrency", "batch", "running", "parallel", "num_prompts")


def _workload(record: Record, tables: dict[str, dict[str, object]]) -> None:
    flags = record.flags

    def stated(names: tuple[str, ...]) -> float | None:
        return next((found for n in names if (found := number(flags.get(n))) is not None), None)

    prompt, output = stated(PROMPTS), stated(OUTPUTS)
    rate, users = stated(("request_rate",)), stated(LOADS)
    if record.kind == "behaviour":
        prompt, output = _usual(record, prompt, output)
        if (arrivals := stated(("arrivals_per_min",))) is not None:
            rate = arrivals / 60
    if prompt is None or output is None:
        return
    tables["workload"] = {"prompt_tokens": int(prompt), "output_tokens": int(output)}
    if rate is not None:
        tables["workload"]["rate"] = rate
    elif users is not None:
        tables["workload"]["concurrency"] = int(users)


def document(record: Record, made: Deployed) -> tuple[Document, Path]:
    """Open a record's spec; its model config, where it has one, lies beside it in the returned folder."""
    folder = ROOT / re.sub(r"[^\w.-]", "-", record.id)
    folder.mkdir(parents=True, exist_ok=True)
    if made.config is not None:
        (folder / "config.json").write_text(json.dumps(made.config), encoding="utf-8")
    return open_spec(str(folder / "deployment.toml"), made.text, plugins(), folder), folder


def reviewed(record: Record, *, extra: str = "", stand_ins: bool = False) -> Review:
    """Return the review of a record; UnmappedError where it does not compose."""
    found, folder = document(record, deployed(record, extra=extra, stand_ins=stand_ins))
    if found.problems:
        raise UnmappedError("the spec is refused", "; ".join(p.message for p in found.problems))
    review = Review(found, plugins(), folder)
    if review.composition is None:
        raise UnmappedError("the deployment does not compose", str(review.infeasible or review.unresolved[0].message))
    return review
