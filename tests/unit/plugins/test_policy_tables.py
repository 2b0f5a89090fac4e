"""What the tables of policies take, every range at its ends, and what a deployment that says nothing gets."""

from __future__ import annotations

import pytest

from servelint.composition import Composition
from servelint.manager import Plugins
from servelint.spec.document import parse
from servelint.testing import compose, samples

HEAD = 'servelint = 1\n[hardware]\naccelerator = "nvidia/h100-sxm5-80gb"\n[model]\nid = "meta-llama/Llama-3.1-8B"\n'

RANGES = {
    # (least, most), both of which are taken; then what lies just outside.
    "batching.max_sequences": ("1", "1000000", "0", "1000001"),
    "batching.max_batched_tokens": ("1", "100000000", "0", "100000001"),
    "batching.prefill_chunk": ("1", "100000000", "0", "100000001"),
    "batching.parallel_samples": ("1", "1024", "0", "1025"),
    "constrained_decoding.share": ("0", "1", "-0.01", "1.01"),
    "constrained_decoding.cache_hit": ("0", "1", "-0.01", "1.01"),
    "constrained_decoding.compile": ('"0 s"', '"3600 s"', '"-1 s"', '"3601 s"'),
    "constrained_decoding.mask": ('"0 s"', '"3600 s"', '"-1 s"', '"3601 s"'),
    "constrained_decoding.jump_forward": ("0", "0.99", "-0.01", "0.991"),
    "disaggregation.prefill.devices": ("1", "100000", "0", "100001"),
    "disaggregation.prefill.tensor": ("1", "4096", "0", "4097"),
    "disaggregation.prefill.pipeline": ("1", "4096", "0", "4097"),
    "disaggregation.decode.replicas": ("1", "1000000", "0", "1000001"),
    "disaggregation.transfer.bandwidth": ('"1 B/s"', '"1e15 B/s"', '"0 B/s"', '"1.1e15 B/s"'),
    "disaggregation.transfer.setup": ('"0 s"', '"3600 s"', '"-1 s"', '"3601 s"'),
    "kv_cache.memory_utilization": ("0.01", "1.0", "0", "1.001"),
    "kv_cache.memory_bytes": ('"1 B"', '"1e18 B"', '"0 B"', '"1.1e18 B"'),
    "kv_cache.max_tokens": ("1", "1000000000000", "0", "1000000000001"),
    "kv_cache.page_size": ("1", "1000000", "0", "1000001"),
    "kv_cache.tenants": ("1", "1000000", "0", "1000001"),
    "moe.skew": ("1.0", "10000.0", "0.99", "10001.0"),
    "moe.redundant_experts": ("0", "100000", "-1", "100001"),
    "parallelism.tensor": ("1", "4096", "0", "4097"),
    "parallelism.pipeline": ("1", "4096", "0", "4097"),
    "parallelism.pipeline_layers": ("[0, 2000]", f"[{'0, ' * 4095}32]", "[-1, 33]", f"[{'0, ' * 4096}32]"),
    "quantization.group_size": ("1", "65536", "0", "65537"),
    "speculation.tokens": ("0", "64", "-1", "65"),
    "speculation.acceptance": ("0", "1", "-0.01", "1.01"),
    "speculation.acceptance_length": ("1.0", "65.0", "0.99", "65.1"),
    "speculation.draft_tensor": ("1", "4096", "0", "4097"),
}


def table(path: str, value: str) -> str:
    names, _, key = path.rpartition(".")
    return f"{HEAD}[policy.{names}]\n{key} = {value}\n"


@pytest.mark.parametrize("path", RANGES)
def test_a_range_takes_its_ends_and_nothing_beyond(path: str, plugins: Plugins) -> None:
    least, most, *outside = RANGES[path]
    for value in (least, most):
        assert not parse("spec.toml", table(path, value), plugins.policies).problems, value
    for value in outside:
        problems = parse("spec.toml", table(path, value), plugins.policies).problems
        assert [".".join(map(str, p.path[: path.count(".") + 2])) for p in problems] == [f"policy.{path}"], value


def composed(plugins: Plugins, policy: str = "") -> Composition:
    spec = f'[hardware]\naccelerator = "any"\n[model]\nid = "any"\n{policy}'
    return compose(spec, plugins, architecture=samples.dense_model(), accelerator=samples.accelerator())


def test_what_nobody_says_is_a_common_default(plugins: Plugins) -> None:
    found = composed(plugins)
    assert found.memory.page_size == 16
    assert found.memory.budget == pytest.approx(0.9 * found.memory.visible)
    assert found.scheduler.prefix_reuse
    assert found.scheduler.samples == 1


def test_prefix_reuse_that_is_off_finds_nothing_in_the_cache(plugins: Plugins) -> None:
    off = composed(plugins, "[policy.kv_cache]\nprefix_reuse = false\n")
    assert not off.scheduler.prefix_reuse
    on = composed(plugins, "[policy.kv_cache]\nprefix_reuse = true\n")
    assert on.scheduler.prefix_reuse


@pytest.mark.parametrize("samples_each", [1, 2, 5])
def test_outputs_of_a_prompt_are_what_is_declared(samples_each: int, plugins: Plugins) -> None:
    found = composed(plugins, f"[policy.batching]\nparallel_samples = {samples_each}\n")
    assert found.scheduler.samples == samples_each
