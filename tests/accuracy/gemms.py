"""The matrix products of Llama-3.1-8B on one H200, timed by the project itself, beside the same ops of the graph.

One NVIDIA H200 SXM5 141GB, 2026-11-29: driver 580.159.04, PyTorch 2.11.0 with CUDA 13.0, cuBLAS, BF16 weights of
random values, one CUDA graph of the 129 products of a decode step (32 layers of QKV, output, gate and up, down; the
head), mean of 30 replays after 5. No attention, norms or sampling are in it. Nothing was set on these rows.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import published

from servelint.composition import DEFAULT_LAUNCH_S
from servelint.cost import Pricer
from servelint.shapes import decode

DATA = Path(__file__).resolve().parents[1] / "data" / "measured" / "gemm_chain.csv"
PRODUCTS = ("in_proj", "out_proj", "up_proj", "down_proj", "lm_head")
SPEC = """\
servelint = 1
[hardware]
accelerator = "nvidia/h200-sxm5-141gb"
[model]
id = "meta-llama/Llama-3.1-8B"
"""


class Chain(NamedTuple):
    """A batch: seconds measured, their bound (each product alone at the roofline), and the estimate.

    The ops of the graph have more kernels than their product; the estimate here counts one for each.
    """

    sequences: int
    measured: float
    bound: float
    estimate: float


def chains() -> Iterator[Chain]:
    """Price the products of every measured batch."""
    found = published.review(SPEC).composition
    assert found is not None
    free = Pricer(found.graph, published.without_launches(found.setup.topology))
    accelerator = found.setup.topology.accelerator
    flops, bandwidth = accelerator.dense_flops["bf16"], accelerator.memory_bandwidth_bytes_per_s
    with DATA.open(encoding="utf-8") as stream:
        for row in csv.DictReader(stream):
            batch = int(row["sequences"])
            ops = [op for op in free.breakdown(decode(float(batch), 1.0)) if op.name.endswith(PRODUCTS)]
            assert len(ops) == len(PRODUCTS)
            bound = sum(max(float(op.flops) / flops, float(op.hbm_bytes) / bandwidth) for op in ops)
            estimate = sum(float(op.seconds) + op.instances * DEFAULT_LAUNCH_S for op in ops)
            yield Chain(batch, float(row["seconds"]), bound, estimate)


def rows() -> Iterator[tuple[object, ...]]:
    """Yield the rows of the table."""
    for c in chains():
        error = c.estimate / c.measured - 1
        yield (
            c.sequences,
            f"{c.measured * 1e3:.2f}",
            f"{c.bound * 1e3:.2f}",
            f"{c.estimate * 1e3:.2f}",
            f"{error:+.0%}",
        )
