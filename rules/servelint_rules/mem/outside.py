"""What a device needs beside what its engine budgets: captured graphs, buffers of peers without a link."""

from __future__ import annotations

from servelint.plugin import Composition, Lacks, Review

GIB = 2**30
REFUSING = ("vllm",)
"""Engines that do not start when one sequence of the model's own maximum length exceeds the KV cache."""
CAPTURING = ("vllm", "tgi")
"""Engines that fill their share with weights, activations and cache first and capture graphs beside it then."""
VENDORS = ("nvidia", "amd")
"""Makers of devices on which graphs are captured."""
GRAPHS_GIB = 0.127
GRAPHS_LAYER_GIB = 0.0052
"""Graphs of a device in GiB, as start-up logs have it: 0.21 for 16 layers, 0.46 for 64 with a single batch size."""
DIRECT = 2
"""Devices whose collectives need no buffers of their own without a direct link."""


def refused(review: Review) -> bool:
    """Whether a longest sequence that does not fit keeps the server from starting: it is declared, or an engine asks.

    Engines that are not known to ask serve shorter ones.
    """
    asks = review.engine is not None and review.engine.name in REFUSING
    return asks or review.declared("model", "max_model_len")


def unplaced(review: Review) -> Lacks | None:
    """What a rule lacks that asks what fits on a device: the composition, or where the model's parts lie."""
    if review.composition is None:
        return Lacks("a composed deployment")
    kept = review.offloaded
    return (
        None
        if kept is None or review.spills
        else Lacks(f"what the devices hold, since the engine keeps a part elsewhere ({kept})")
    )


def captures(review: Review, side: Composition) -> bool:
    """Whether the engine is known to capture graphs outside its budget here."""
    engine = side.setup.engine.name
    graphs = not review.deployment.engine.enforce_eager
    return graphs and engine in CAPTURING and side.setup.topology.accelerator.vendor.lower() in VENDORS


def captured_layers(side: Composition) -> int:
    """Layers of a device whose graphs are captured: those of its pipeline stage."""
    return -(-side.setup.architecture.num_layers // side.memory.stages)


def graphs_bytes(side: Composition) -> float:
    """Bytes that the captured graphs of a device take at least, by its layers."""
    return (GRAPHS_GIB + GRAPHS_LAYER_GIB * captured_layers(side)) * GIB


def unlinked_peers(side: Composition, tensor: int) -> int:
    """Devices of a tensor-parallel group beyond a pair that no direct link joins."""
    near = min(side.setup.topology.scale_up_domain, tensor)
    return max(tensor - max(near, DIRECT), 0)
