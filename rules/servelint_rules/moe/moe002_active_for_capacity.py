"""MOE002 active-for-capacity."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from attrs import evolve

from servelint.plugin import (
    Case,
    Composition,
    Edit,
    Finding,
    Fix,
    InfeasibleError,
    Input,
    Lacks,
    Option,
    Related,
    Review,
    Rule,
    Severity,
    Source,
)
from servelint_rules.show import size
from servelint_rules.variants import sides

PATH = ("model", "weights_bytes")
SPEC = """\
servelint = 1
[hardware]
accelerator = "nvidia/h100-sxm5-80gb"
devices = 2
[model]
id = "mistralai/Mixtral-8x7B-v0.1"
max_model_len = 8192
weights_bytes = "25.8 GB" # expect: MOE002
"""


class Ledger(NamedTuple):
    """The weights in their formats, in bytes: all that are served, and those that one token uses."""

    total: float
    active: float


class ActiveForCapacity(Rule):
    """The memory of a mixture of experts was planned from its active parameters.

    What it checks
    --------------
    A declared ``model.weights_bytes`` that is, within the option ``tolerance``, what the active parameters take in
    their formats, while all of them take at least the option ``factor`` as much. An error where the weights in full do
    not fit the devices. A size of parameters times bits is QNT005's; a full size that does not fit is MEM001's.

    Why it is bad
    -------------
    A token uses a few experts, but the next token uses others: all of them have to be in memory. Active parameters
    say what a token computes, and nothing of capacity.

    The arithmetic
    --------------
    ``all = parameters x bytes``, against ``active = (everything but routed experts + top_k / experts x routed) x
    bytes``, each tensor in the format that it is stored in.

    How to fix
    ----------
    Give the size of the checkpoint's files, or leave ``weights_bytes`` out.

    Source
    ------
    Parameter ledger of the architecture; docs/cost-model.md, weights.
    """

    code = "MOE002"
    name = "active-for-capacity"
    weighs = True
    severity = Severity.WARNING
    questions = ("why did it run out of memory", "does it start")
    options = (
        Option("tolerance", 0.1, "relative distance from the active bytes that counts as them", 0.0, 0.5),
        Option("factor", 1.5, "how many times the active bytes all have to be", 1.0, 100.0),
    )
    failing = (
        Case("the active part of eight experts", SPEC, flip=("model.weights_bytes", '"93.4 GB"')),
        Case(
            "a tenth more than the active part, and the whole does not fit",
            SPEC.replace("devices = 2", "devices = 1").replace("25.8", "28.3"),
            flip=("model.weights_bytes", '"28.5 GB"'),
        ),
    )
    passing = (
        Case("the size of the files", SPEC.replace('"25.8 GB" # expect: MOE002', '"93.4 GB"')),
        Case("neither the active part nor the whole", SPEC.replace('"25.8 GB" # expect: MOE002', '"28.5 GB"')),
        Case(
            "a dense model, whose parameters are all active",
            """\
servelint = 1
[hardware]
accelerator = "nvidia/h100-sxm5-80gb"
[model]
id = "meta-llama/Llama-3.1-8B"
max_model_len = 8192
weights_bytes = "16.06 GB"
""",
        ),
    )

    def check(self, review: Review) -> Iterator[Finding | Lacks]:
        """Compare the declared size with both."""
        architecture, declared = review.architecture, review.deployment.model.weights_bytes
        if declared is None or architecture is None or not architecture.is_moe:
            return
        if review.composition is None:
            yield Lacks("a composed deployment")
            return
        ledger = _ledger(review.composition)
        if ledger is None or ledger.total < ledger.active * self.option("factor"):
            return
        if abs(declared / ledger.active - 1) > self.option("tolerance"):
            return
        full = _unmeasured(review.composition)
        short = full is not None and any(not s.memory.has_room for _, s in sides(full))
        share = architecture.params_active / architecture.params_serving
        yield Finding(
            PATH,
            f"{size(declared)} are the active parameters of {architecture.id} ({share:.0%} of all): all experts have "
            f"to be in memory, {size(ledger.total)}" + (", and that does not fit the devices" if short else ""),
            equation=(
                f"{architecture.params_active / 1e9:.1f} of {architecture.params_serving / 1e9:.1f} thousand million "
                f"parameters = {size(ledger.active)}; all of them {size(ledger.total)}"
            ),
            inputs=(
                review.input("declared weights", declared, "B", *PATH),
                Input("active parameters", architecture.params_active, "", Source("model", architecture.id, "top_k")),
                Input("parameters", architecture.params_serving, "", Source("model", architecture.id, "num_experts")),
            ),
            help=f"give the size of the checkpoint's files, about {size(ledger.total)}, or leave it out",
            related=(Related(("model", "id" if review.declared("model", "id") else "config"), "a mixture of experts"),),
            fix=Fix("give the size of all experts", (Edit(PATH, f"{ledger.total:.0f}"),)) if not short else None,
            severity=Severity.ERROR if short else Severity.WARNING,
        )


def _unmeasured(composition: Composition, *, whole: bool = False) -> Composition | None:
    """The deployment with weights as their formats make them; ``whole``: on one device, copies of experts left out."""
    setup = composition.setup
    deployment = evolve(setup.deployment, model=evolve(setup.deployment.model, weights_bytes=None))
    if whole:
        apart = ("parallelism", "moe", "speculation", "disaggregation")
        kept = {name: config for name, config in deployment.policies.items() if name not in apart}
        deployment = evolve(deployment, policies=kept)
    topology = evolve(setup.topology, devices=1) if whole else setup.topology
    other = Composition(evolve(setup, deployment=deployment, topology=topology))
    try:
        other.memory, other.scheduler  # noqa: B018
    except InfeasibleError:
        return None
    return other


def _ledger(composition: Composition) -> Ledger | None:
    whole = _unmeasured(composition, whole=True)
    if whole is None:
        return None
    total = active = 0.0
    for weights in whole.memory.weights:
        held = weights.bytes_on(0)
        block = whole.context.block(weights.block)
        routed = weights.tensor.role == "routed_experts" and block is not None and block.experts is not None
        total += held
        active += held * block.experts.top_k / block.experts.count if routed else held  # type: ignore[union-attr]
    return Ledger(total, active)
