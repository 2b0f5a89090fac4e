"""What was probably meant by a key that does not exist: a near match, another tool's name, another table.

Imported only when a spec has an unknown key.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from servelint.descriptors import Policy
from servelint.spec.model import Deployment
from servelint.spec.schema import Problem, Table, kinds
from servelint.suggest import meant, nearest

MOST_HINTS = 50
"""Unknown keys of a file that get a hint; a file with more of them is no spec with typing errors."""

SYNONYMS: Mapping[str, tuple[str, ...]] = {
    # hardware
    **dict.fromkeys(("gpu", "gpu_type", "gpu_name", "device", "device_type", "sku", "chip"), ("accelerator",)),
    **dict.fromkeys(("gpus", "num_gpus", "n_gpus", "gpu_count", "num_devices", "device_count"), ("devices",)),
    **dict.fromkeys(("gpus_per_node", "num_gpus_per_node"), ("devices_per_node",)),
    **dict.fromkeys(("num_nodes", "nnodes", "node_count"), ("nodes",)),
    **dict.fromkeys(("replica_count", "num_replicas"), ("replicas",)),
    **dict.fromkeys(("p2p", "enable_p2p"), ("peer_to_peer",)),
    "instance_type": ("instance",),
    # model
    "name": ("id", "accelerator"),
    **dict.fromkeys(("model", "model_id", "model_name", "hf_model", "checkpoint"), ("id",)),
    **dict.fromkeys(
        ("max_seq_len", "max_sequence_length", "max_context", "context_length", "context_len"), ("max_model_len",)
    ),
    # parallelism
    **dict.fromkeys(("tensor_parallel_size", "tensor_parallel", "tp_size", "tp"), ("tensor",)),
    **dict.fromkeys(("pipeline_parallel_size", "pipeline_parallel", "pp_size", "pp"), ("pipeline",)),
    **dict.fromkeys(("expert_parallel_size", "expert_parallel", "ep_size", "ep"), ("expert",)),
    **dict.fromkeys(("data_parallel_size", "data_parallel", "dp_size", "dp"), ("data",)),
    **dict.fromkeys(("context_parallel_size", "decode_context_parallel_size", "dcp", "cp"), ("context",)),
    # memory and batching
    **dict.fromkeys(
        ("gpu_memory_utilization", "mem_fraction_static", "gpu_memory_fraction", "free_gpu_memory_fraction"),
        ("memory_utilization",),
    ),
    **dict.fromkeys(("block_size", "tokens_per_block"), ("page_size",)),
    **dict.fromkeys(("enable_prefix_caching", "prefix_caching", "prefix_cache"), ("prefix_reuse",)),
    **dict.fromkeys(
        ("max_num_seqs", "max_running_requests", "max_batch_size", "batch_size", "max_batch"), ("max_sequences",)
    ),
    **dict.fromkeys(("max_num_batched_tokens", "max_num_tokens", "max_batch_tokens"), ("max_batched_tokens",)),
    "enable_chunked_prefill": ("chunked_prefill",),
    "chunked_prefill_size": ("prefill_chunk",),
    # formats
    **dict.fromkeys(("kv_cache_dtype", "kv_dtype", "kv_cache_format"), ("kv_cache",)),
    **dict.fromkeys(("dtype", "weight_dtype", "weights_dtype"), ("weights",)),
    # speculation
    **dict.fromkeys(("num_speculative_tokens", "speculative_tokens", "draft_tokens"), ("tokens",)),
    "acceptance_rate": ("acceptance",),
    **dict.fromkeys(("speculative_model", "draft"), ("draft_model",)),
    # workload
    **dict.fromkeys(("qps", "rps", "request_rate", "requests_per_second", "arrival_rate"), ("rate",)),
    **dict.fromkeys(("input_tokens", "input_length", "input_len", "prompt_length", "isl"), ("prompt_tokens",)),
    **dict.fromkeys(
        ("completion_tokens", "output_length", "output_len", "generated_tokens", "max_tokens", "osl"),
        ("output_tokens",),
    ),
    **dict.fromkeys(("max_concurrency", "users", "concurrent_users", "concurrent_requests"), ("concurrency",)),
    **dict.fromkeys(("prefix_hit_rate", "cache_hit_rate", "prefix_cache_hit_rate"), ("prefix_hit",)),
    # objectives and quantiles
    **dict.fromkeys(("tbt", "inter_token_latency", "time_between_tokens"), ("itl",)),
    **dict.fromkeys(("time_to_first_token", "first_token"), ("ttft",)),
    "time_per_output_token": ("tpot",),
    **dict.fromkeys(("e2el", "latency", "end_to_end"), ("e2e",)),
    **dict.fromkeys(("avg", "average"), ("mean",)),
    **dict.fromkeys(("stddev", "sd"), ("std",)),
    "median": ("p50",),
    **dict.fromkeys(("p99.9", "p99_9"), ("p999",)),
    "p100": ("max",),
}
"""Names of other tools and habits, in lower case with underscores, and the keys here that they may stand for."""


def with_hints(problems: list[Problem], policies: Iterable[Policy]) -> list[Problem]:
    """Return the problems, the first unknown keys among them with what was probably meant."""
    places = _places(policies)
    hinted, left = [], MOST_HINTS
    for problem in problems:
        if problem.known and left:
            left -= 1
            hint = meant(_meant(problem, places)) or f"; there are {', '.join(sorted(problem.known))}"
            problem = problem._replace(message=problem.message + hint)
        hinted.append(problem)
    return hinted


def _meant(problem: Problem, places: Mapping[str, list[str]]) -> list[str]:
    """The keys of the same table that may be meant, by key path where they are in another table."""
    key, known = str(problem.path[-1]), problem.known
    name = key[:80].lower().replace("-", "_")
    synonyms = SYNONYMS.get(name, ())
    own = [s for s in (name, *synonyms) if s in known]
    if own:
        return own[:1]
    # What a claim or its evidence states is of its own; other tables do not have it.
    elsewhere = {} if problem.path[0] in ("claim", "evidence") else places
    beside = [path for path in _few(elsewhere, *synonyms) if path.removeprefix("policy.") not in synonyms]
    return beside or [*nearest(key, known), *_few(elsewhere, name)][:3]


def _few(places: Mapping[str, list[str]], *names: str) -> list[str]:
    """Where keys of these names are, when that is no more than two places: a name found everywhere says nothing."""
    found = [path for name in names for path in places.get(name, ())]
    return found if len(found) <= 2 else []


def _places(policies: Iterable[Policy]) -> dict[str, list[str]]:
    """Key paths by the name of the last key, of tables that a spec has once."""
    found: dict[str, list[str]] = {}
    tables = [(f"{name}.", kind.cls) for name, (_, kind, _) in kinds(Deployment).items() if isinstance(kind, Table)]
    for policy in policies:
        found.setdefault(policy.name, []).append(f"policy.{policy.name}")
        tables.append((f"policy.{policy.name}.", policy.config))
    for prefix, cls in tables:
        for name in kinds(cls):
            found.setdefault(name, []).append(prefix + name)
    return found
