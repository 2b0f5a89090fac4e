"""Formats and what quantization and the KV cache policy do with them, against bits counted by hand."""

from __future__ import annotations

import pytest

from servelint.composition import Composition
from servelint.manager import Plugins
from servelint.resources import Matmul, WeightRead
from servelint.testing import compose, samples

BITS = {
    "fp32": 32,
    "bf16": 16,
    "fp16": 16,
    "fp8": 8,
    # One fp32 scale for 128 x 128 weights.
    "fp8-block128": 8 + 32 / 16384,
    "mxfp8": 8.25,
    "int8": 8,
    "int8-weight-only": 8,
    "fp8-weight-only": 8,
    # 16 bits of scale and a zero point of the weight's own width a group.
    "int4-g128": 4 + 20 / 128,
    "int4-g64": 4 + 20 / 64,
    "int4-g32": 4 + 20 / 32,
    "int8-g128": 8 + 24 / 128,
    # A scale for 64 weights: fp32, or fp8 with an fp32 scale for 256 of these.
    "nf4": 4 + 32 / 64,
    "nf4-double": 4 + 8 / 64 + 32 / (64 * 256),
    "mxfp4": 4.25,
    "nvfp4": 4.5,
    # Bytes of a block of 32 weights: 18, 20, 22, 24, 34 and 18.
    "q4_0": 4.5,
    "q4_1": 5.0,
    "q5_0": 5.5,
    "q5_1": 6.0,
    "q8_0": 8.5,
    "iq4_nl": 4.5,
    "q2_k": 3.1593,
    "q3_k_s": 3.6429,
    "q3_k_l": 4.2979,
    "q4_k_s": 4.6672,
    "q4_k_m": 4.8944,
    "q5_k_s": 5.5704,
    "q5_k_m": 5.7036,
    "q6_k": 6.5633,
    "iq4_xs": 4.4597,
}
GROUPS = {
    "fp8-block128": 128,
    "mxfp8": 32,
    "mxfp4": 32,
    "nvfp4": 16,
    "int4-g128": 128,
    "int4-g64": 64,
    "int4-g32": 32,
    "int8-g128": 128,
    "nf4": 64,
    "nf4-double": 64,
    # Blocks of ggml's types.
    **dict.fromkeys(("q4_0", "q4_1", "q5_0", "q5_1", "q8_0", "iq4_nl"), 32),
}
NATIVE = {
    "fp32": "fp32",
    "bf16": "bf16",
    "fp16": "fp16",
    "fp8": "fp8",
    "fp8-block128": "fp8",
    "mxfp8": "fp8",
    "int8": "int8",
    "mxfp4": "fp4",
    "nvfp4": "fp4",
}
HOLD_CACHES = {"fp32", "bf16", "fp16", "fp8", "int8", "nvfp4", "q4_0", "q4_1", "q5_0", "q5_1", "q8_0", "iq4_nl"}


@pytest.mark.parametrize("name", BITS)
def test_a_format_takes_its_bits_and_runs_on_its_path(name: str, plugins: Plugins) -> None:
    found = plugins.format(name)
    assert found.name == name
    assert found.bits_per_element == pytest.approx(BITS[name], rel=1e-12)
    assert found.bytes_per_element == pytest.approx(BITS[name] / 8, rel=1e-12)
    # ggml's types say in their names what they take without scales.
    own = int(name.lstrip("iq")[0]) if "_" in name else int(BITS[name])
    assert found.bits == own
    assert found.compute == NATIVE.get(name)
    assert found.kv_cache == (name in HOLD_CACHES)
    if "_" not in name or name in GROUPS:
        assert found.group == GROUPS.get(name, 0)


@pytest.mark.parametrize(
    ("ending", "name"), [("awq", "int4-g128"), ("w4a16", "int4-g128"), ("gptqint8", "int8-g128"), ("nf4", "nf4")]
)
def test_what_checkpoints_are_called_by_a_format(ending: str, name: str, plugins: Plugins) -> None:
    assert ending in plugins.format(name).endings


def composed(plugins: Plugins, keys: str, model: str = "") -> Composition:
    spec = f'[hardware]\naccelerator = "any"\n[model]\nid = "any"\n{model}{keys}'
    return compose(spec, plugins, architecture=samples.dense_model(), accelerator=samples.accelerator())


def weights(composition: Composition) -> dict[str, float]:
    """Bytes an element of every weight by tensor."""
    return {
        d.tensor.name: d.format.bytes_per_element
        for op in composition.graph.ops
        for d in op.demands
        if isinstance(d, WeightRead) and d.tensor is not None and d.format is not None
    }


def flops(composition: Composition) -> list[tuple[str, float]]:
    return [(op.name, d.coefficient) for op in composition.graph.ops for d in op.demands if isinstance(d, Matmul)]


def test_a_group_size_changes_the_metadata_in_proportion(plugins: Plugins) -> None:
    for size, metadata in ((128, 20 / 128), (64, 20 / 64), (256, 20 / 256)):
        keys = f'[policy.quantization]\nweights = "int4-g128"\ngroup_size = {size}\n'
        found = weights(composed(plugins, keys))
        assert found["q_proj"] == pytest.approx((4 + metadata) / 8)
        # What the format does not cover stays as it was.
        assert found["lm_head"] == 2.0


@pytest.mark.parametrize(("weights", "each"), [("fp8", 1.0), ("int4-g128", (4 + 20 / 128) / 8)])
def test_memory_holds_what_a_step_reads(weights: str, each: float, plugins: Plugins) -> None:
    plain = composed(plugins, "").memory
    ledger = composed(plugins, f'[policy.quantization]\nweights = "{weights}"\n').memory
    covered = sum(w.params * w.repeats[0] for w in ledger.weights if w.format.name == weights)
    # The layers' matrices are covered; tables, head and norms stay in 16 bit.
    assert covered == 16 * (2 * 2048 * 2048 + 2 * 2048 * 512 + 3 * 2048 * 8192)
    assert plain.weights_bytes - ledger.weights_bytes == pytest.approx(covered * (2 - each))
    assert plain.bytes_per_token() == ledger.bytes_per_token()


def test_a_format_of_the_cache_alone(plugins: Plugins) -> None:
    plain, half = composed(plugins, ""), composed(plugins, '[policy.quantization]\nkv_cache = "fp8"\n')
    assert half.memory.bytes_per_token() == plain.memory.bytes_per_token() / 2
    assert half.memory.weights_bytes == plain.memory.weights_bytes
    assert weights(half) == weights(plain)
    # What nothing changed says nothing of it.
    for composition in (plain, half):
        told = [w.lineage for w in composition.memory.weights]
        told += [d.lineage for op in composition.graph.ops for d in op.demands if isinstance(d, WeightRead)]
        assert not [lineage for lineage in told if any(r.by == "quantization" for r in lineage.rewrites)]


@pytest.mark.parametrize(
    ("model", "keys", "same"),
    [
        ("openai/gpt-oss-20b", 'weights = "mxfp4"', True),
        ("openai/gpt-oss-20b", 'weights = "mxfp4"\ngroup_size = 32', True),
        ("openai/gpt-oss-20b", 'weights = "mxfp4"\ngroup_size = 16', False),
        ("openai/gpt-oss-20b", 'weights = "mxfp4"\ncovers = ["routed_experts", "attention"]', False),
        ("deepseek-ai/DeepSeek-V3", 'weights = "fp8-block128"', True),
        ("deepseek-ai/DeepSeek-V3", 'weights = "fp8"', False),
        ("meta-llama/Llama-3.1-8B", 'weights = "bf16"', True),
    ],
)
def test_to_name_the_stored_format_changes_nothing(model: str, keys: str, same: bool, plugins: Plugins) -> None:
    text = f'[hardware]\naccelerator = "nvidia/h200-sxm5-141gb"\n[model]\nid = "{model}"\n'
    plain, named = compose(text, plugins), compose(f"{text}[policy.quantization]\n{keys}\n", plugins)
    assert (weights(named) == weights(plain)) == same
    assert (named.memory.weights_bytes == plain.memory.weights_bytes) == same


def test_measured_bytes_scale_every_weight(plugins: Plugins) -> None:
    plain = composed(plugins, "")
    held = plain.memory.weights_bytes
    measured = composed(plugins, "", model=f"weights_bytes = {round(1.5 * held)}\n")
    assert measured.memory.weights_bytes == pytest.approx(1.5 * held, rel=1e-6)

    def read(composition: Composition) -> dict[str, float]:
        return {
            d.tensor.name: d.coefficient
            for op in composition.graph.ops
            for d in op.demands
            if isinstance(d, WeightRead) and d.tensor is not None
        }

    before, after = read(plain), read(measured)
    assert after.keys() == before.keys()
    for name, coefficient in before.items():
        assert after[name] == pytest.approx(1.5 * coefficient, rel=1e-6)
    # Multiplying costs what it did.
    assert flops(measured) == flops(plain)


def test_weights_multiply_natively_only_where_both_sides_are_in_the_format(plugins: Plugins) -> None:
    part = samples.accelerator()
    assert "fp8" in part.dense_flops

    def precision(keys: str) -> set[str]:
        return {
            d.precision
            for op in composed(plugins, keys).graph.ops
            for d in op.demands
            if isinstance(d, Matmul) and d.tensor is not None and d.tensor.name == "q_proj"
        }

    assert precision("") == {"bf16"}
    assert precision('[policy.quantization]\nweights = "fp8"\n') == {"fp8"}
    assert precision('[policy.quantization]\nweights = "fp8"\nactivations = "fp8"\n') == {"fp8"}
    assert precision('[policy.quantization]\nweights = "fp8"\nactivations = "bf16"\n') == {"bf16"}
    assert precision('[policy.quantization]\nweights = "int4-g128"\n') == {"bf16"}
    # This part has no path for four bits.
    assert "fp4" not in part.dense_flops
    assert precision('[policy.quantization]\nweights = "nvfp4"\n') == {"bf16"}


def test_the_cache_gets_a_share_of_the_memory_pages_and_a_cap(plugins: Plugins) -> None:
    whole = composed(plugins, "[policy.kv_cache]\nmemory_utilization = 1.0\n").memory
    ledger = composed(plugins, "[policy.kv_cache]\nmemory_utilization = 0.5\npage_size = 32\nmax_tokens = 640\n").memory
    assert ledger.budget == pytest.approx(ledger.visible / 2)
    assert whole.budget == whole.visible == ledger.visible
    assert ledger.page_size == 32
    assert ledger.resident_sequences(64) == 10
    assert ledger.resident_sequences(65) == 6
    sized = composed(plugins, '[policy.kv_cache]\nmemory_bytes = "1 GB"\n').memory
    assert sized.cache_left(0) == pytest.approx(1e9)


@pytest.mark.parametrize("share", ["-0.5", "0", "1.01", "101"])
def test_a_share_of_the_memory_is_more_than_none_and_no_more_than_all(share: str, plugins: Plugins) -> None:
    with pytest.raises(ValueError, match="memory_utilization"):
        composed(plugins, f"[policy.kv_cache]\nmemory_utilization = {share}\n")


def test_scales_of_nf4_as_engines_hold_them(plugins: Plugins) -> None:
    # QLoRA: half a bit a weight, 0.127 with the scales quantized again.
    assert plugins.format("nf4").bits_per_element == 4.5
    assert round(plugins.format("nf4-double").bits_per_element, 3) == 4.127


@pytest.mark.parametrize("alias", ["int4", "gptq", "awq", "w4a16", "gptq-int4-g128", "awq-int4-g128"])
def test_four_bits_mean_groups_of_128_unless_said_otherwise(alias: str, plugins: Plugins) -> None:
    found = plugins.format(alias)
    assert (found.name, found.bits, found.group) == ("int4-g128", 4, 128)
    # An fp16 scale and a zero point of four bits for every 128 weights.
    assert found.bits_per_element == 4 + (16 + 4) / 128
