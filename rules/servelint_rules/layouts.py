"""The sides of a deployment and what-if layouts, for rules that ask what else would do."""

from __future__ import annotations

from typing import Any

from attrs import evolve

from servelint.lineage import KeyPath
from servelint.plugin import Accelerator, Attention, Composition, InfeasibleError, LatentAttention, Review

NODE = 8
"""Devices of the largest replica that is proposed: those of the usual node."""
FAST = "scale_up"


def decode_side(composition: Composition) -> Composition:
    """What decodes: the pool for it, or the replica itself."""
    pools = composition.scheduler.disaggregation
    return composition if pools is None else pools.decode.composition


def prefill_side(composition: Composition) -> Composition:
    """What prefills: the pool for it, or the replica itself."""
    pools = composition.scheduler.disaggregation
    return composition if pools is None else pools.prefill.composition


def parallelism(composition: Composition) -> Any:
    """The resolved ``[policy.parallelism]`` of a replica or pool."""
    return composition.context.configs["parallelism"]


def tensor_path(review: Review, pool: str = "") -> KeyPath:
    """The key that decides the tensor-parallel degree: declared, or the devices it was assumed from."""
    if pool:
        path: KeyPath = ("policy", "disaggregation", pool)
        return next(((*path, key) for key in ("tensor", "devices") if review.declared(*path, key)), path)
    for path in (("policy", "parallelism", "tensor"), ("hardware", "devices"), ("hardware", "instance")):
        if review.declared(*path):
            return path
    return ("hardware", "accelerator")


def heads_divide(composition: Composition, tensor: int) -> bool:
    """Whether engines can split the attention of the model over that many devices."""
    for block in composition.setup.architecture.blocks:
        mixer = block.mixer
        if isinstance(mixer, Attention | LatentAttention) and mixer.q_heads % tensor:
            return False
        if isinstance(mixer, Attention) and mixer.kv_heads % tensor and tensor % mixer.kv_heads:
            return False
    return True


def fits(composition: Composition) -> bool:
    """Whether a replica, or each of its pools, holds the model, its fixed costs and the longest sequence.

    A declared size of the cache says nothing of what the weights leave: both are asked.
    """
    ledgers = (side.memory for side in (prefill_side(composition), decode_side(composition)))
    longest = composition.max_model_len
    return all(memory.has_room and memory.admits(longest) for memory in ledgers)


def within_fast_links(composition: Composition, group: int) -> bool:
    """Whether a group of neighbors is joined by the scale-up link alone."""
    return all(hop.tier == FAST for hop in composition.setup.topology.hops(group))


# What-if layouts


def with_policies(composition: Composition, **policies: Any) -> Composition:
    """The same replica or pool with some resolved policy tables replaced; it need not compose."""
    setup = composition.setup
    changed = evolve(setup.deployment, policies={**setup.deployment.policies, **policies})
    return Composition(evolve(setup, deployment=changed))


def relaid(composition: Composition, config: Any, devices: int, devices_per_node: int | None = None) -> Composition:
    """The same replica on so many devices with another resolved ``[policy.parallelism]``; it need not compose.

    Without ``devices_per_node`` nodes stay as large as they are. Fewer devices may be declared than the degrees
    take, and a part of them is one at least.
    """
    devices = max(devices, 1)
    setup = with_policies(composition, parallelism=config).setup
    each = devices_per_node or setup.topology.devices_per_node
    return Composition(evolve(setup, topology=evolve(setup.topology, devices=devices, devices_per_node=each)))


def composed(composition: Composition) -> Composition | None:
    """The composition once its memory, scheduler and prices stand; None where they cannot."""
    try:
        composition.memory, composition.scheduler, composition.pricer  # noqa: B018
    except (InfeasibleError, KeyError):
        # A KeyError is a precision that the accelerator has no rate for.
        return None
    return composition


def altered(composition: Composition, **policies: Any) -> Composition | None:
    """The same replica or pool with some resolved policy tables replaced, None when that does not compose."""
    return composed(with_policies(composition, **policies))


def widened(composition: Composition, factor: int) -> Composition | None:
    """The same replica with ``factor`` times the devices and tensor parallelism, None when that does not compose."""
    config, topology = parallelism(composition), composition.setup.topology
    if not heads_divide(composition, config.attention_tensor * factor):
        return None
    devices = topology.devices * factor
    each = max(topology.devices_per_node, min(devices, max(topology.scale_up_domain, NODE)))
    return composed(relaid(composition, evolve(config, tensor=config.t * factor), devices, each))


def on_accelerator(composition: Composition, accelerator: Accelerator) -> Composition | None:
    """The same replica or pool on other devices, None when that does not compose."""
    setup = composition.setup
    return composed(Composition(evolve(setup, topology=evolve(setup.topology, accelerator=accelerator))))
