"""What a device needs beside what its engine budgets: captured graphs, buffers of peers without a link."""

from __future__ import annotations

from servelint.plugin import Composition, Review

GIB = 2**30
CAPTURING = ("vllm", "tgi")
"""Engines that fill their share with weights, activations and cache first and capture graphs beside it then."""
VENDORS = ("nvidia", "amd")
"""Makers of devices on which graphs are captured."""
GRAPHS_GIB = 0.127
GRAPHS_LAYER_GIB = 0.0052
"""Graphs of a device in GiB, as start-up logs have it: 0.21 for 16 layers, 0.46 for 64 with a single batch size."""
DIRECT = 2
"""Devices whose collectives need no buffers of their own without a direct link."""
EAGER = ("--enforce-eager", "--enforce_eager", "--disable-cuda-graph")


def captures(review: Review, side: Composition) -> bool:
    """Whether the engine is known to capture graphs outside its budget here."""
    engine = side.setup.engine.name
    return engine in CAPTURING and side.setup.topology.accelerator.vendor.lower() in VENDORS and not eager(review)


def eager(review: Review) -> bool:
    """Whether the launch arguments turn graphs off."""
    launched = review.document.launched
    if launched is None:
        return False
    words = [word.text for command in launched.invocation.commands for word in command]
    if any(word.partition("=")[0] in EAGER and not word.lower().endswith("=false") for word in words):
        return True
    return any("cudagraph_mode" in word and "NONE" in word for word in words)


def graphs_bytes(side: Composition) -> float:
    """Bytes that the captured graphs of a device take at least, by its layers."""
    layers = -(-side.setup.architecture.num_layers // side.memory.stages)
    return (GRAPHS_GIB + GRAPHS_LAYER_GIB * layers) * GIB


def unlinked_peers(side: Composition, tensor: int) -> int:
    """Devices of a tensor-parallel group beyond a pair that no direct link joins."""
    near = min(side.setup.topology.scale_up_domain, tensor)
    return max(tensor - max(near, DIRECT), 0)
