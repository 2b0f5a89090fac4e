"""The worked examples of the documentation, each with the figure that has to come out.

Bounds here are plain rooflines: without activations and without the L2 credit, with the KV cache in 16 bit
unless said otherwise.
"""

from __future__ import annotations

import pytest

from servelint.cost import Pricer
from servelint.manager import Plugins
from servelint.resources import CacheIO, Matmul, StateIO, WeightRead
from servelint.shapes import StepShape, decode, prefill
from servelint.testing import compose

H100 = "nvidia/h100-sxm5-80gb"
LLAMA_70B = "meta-llama/Llama-3.1-70B"


def spec(accelerator: str, model: str, *lines: str, devices: int = 1) -> str:
    head = f'[hardware]\naccelerator = "{accelerator}"\ndevices = {devices}\n[model]\nid = "{model}"\n'
    return head + "\n".join(lines)


def bound_s(text: str, plugins: Plugins, shape: StepShape) -> float:
    composition = compose(text, plugins)
    return float(Pricer(composition.graph, composition.setup.topology, l2_credit=False).bound(shape))


def amount(text: str, plugins: Plugins, shape: StepShape, *kinds: type) -> float:
    """Bytes (or FLOPs) that demands of some kinds come to, over all instances."""
    total = 0.0
    for op in compose(text, plugins).graph.ops:
        for demand in op.demands:
            if isinstance(demand, kinds):
                width = demand.format.bytes_per_element if isinstance(demand, CacheIO | WeightRead) else 1.0
                total += demand.coefficient * width * demand.feature.count(shape) * op.count
    return total


def test_machine_balance_of_h100(plugins: Plugins) -> None:
    h100 = plugins.accelerators.get(H100)
    balance = {p: h100.dense_flops[p] / h100.memory_bandwidth_bytes_per_s for p in ("bf16", "fp8")}
    assert balance["bf16"] == pytest.approx(989.4e12 / 3.35e12, rel=1e-12)
    assert balance["fp8"] == pytest.approx(1978.9e12 / 3.35e12, rel=1e-12)
    assert {p: round(b) for p, b in balance.items()} == {"bf16": 295, "fp8": 591}


def test_weight_only_single_stream_ceiling(plugins: Plugins) -> None:
    """70 GB of FP8 weights over one H100's bandwidth: 47.9 tok/s."""
    h100 = plugins.accelerators.get(H100)
    assert h100.memory_bandwidth_bytes_per_s / 70e9 == pytest.approx(47.9, abs=0.05)


def test_single_stream_intensity_is_two_flop_a_byte(plugins: Plugins) -> None:
    """Native FP8, one sequence: 2 FLOP a weight byte, 295 times below the FP8 balance."""
    text = spec(H100, LLAMA_70B, "[policy.quantization]", 'weights = "fp8"')
    composition = compose(text, plugins)
    covered = [
        (demand, op)
        for op in composition.graph.ops
        for demand in op.demands
        if isinstance(demand, WeightRead | Matmul) and demand.tensor is not None and demand.tensor.role in ("attention", "mlp")
    ]
    flops = sum(d.coefficient * op.count for d, op in covered if isinstance(d, Matmul))
    read = sum(d.coefficient * d.format.bytes_per_element * op.count for d, op in covered if isinstance(d, WeightRead))
    intensity = flops / read
    assert intensity == pytest.approx(2.0, rel=1e-12)
    h100 = composition.setup.topology.accelerator
    assert h100.dense_flops["fp8"] / h100.memory_bandwidth_bytes_per_s / intensity == pytest.approx(295, abs=0.5)


@pytest.mark.parametrize("lines", [(), ("[policy.quantization]", 'weights = "fp8"')], ids=["bf16", "native fp8"])
def test_weight_only_crossover_batch_is_295(plugins: Plugins, lines: tuple[str, ...]) -> None:
    """The batch from which the matrices of the layers take as long to multiply as to read."""
    composition = compose(spec(H100, LLAMA_70B, *lines), plugins)
    h100 = composition.setup.topology.accelerator
    op = composition.graph.op("layers_mlp.down_proj" if "layers_mlp.down_proj" in names(composition) else mlp(composition))
    seconds_a_token = sum(
        d.coefficient / h100.rate(d.precision)[1] for d in op.demands if isinstance(d, Matmul)
    )
    read = sum(
        d.coefficient * d.format.bytes_per_element / h100.memory_bandwidth_bytes_per_s
        for d in op.demands
        if isinstance(d, WeightRead)
    )
    assert read / seconds_a_token == pytest.approx(295, abs=0.5)
