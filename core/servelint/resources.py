"""Demands: what an op asks of the hardware, as typed values.

A demand never knows a rate. Policies rewrite demands (a format changes the bits of a `WeightRead`, tensor
parallelism divides what lies along its axis); only `servelint.cost` divides one by a capacity.
"""

from __future__ import annotations

from typing import Literal, TypeVar

from attrs import evolve, frozen

from servelint.architecture import Axis, Tensor
from servelint.formats import Format
from servelint.lineage import Input, Lineage
from servelint.shapes import ONCE, Feature
from servelint.values import Value

CollectiveKind = Literal["all_reduce", "all_gather", "all_to_all", "send"]

D = TypeVar("D", bound="Demand")


@frozen(eq=False, repr=False)
class Demand(Value):
    """``coefficient x feature(shape)`` units of something, per device and per instance of the op.

    ``axis`` is what sharding may divide it along; ``lineage`` its derivation.
    """

    coefficient: float
    feature: Feature
    axis: Axis
    lineage: Lineage

    def scaled(self: D, factor: float, by: str, formula: str, *inputs: Input) -> D:
        """Return the demand multiplied by ``factor``, the reason added to its lineage."""
        return evolve(
            self,
            coefficient=self.coefficient * factor,
            lineage=self.lineage.rewritten(by, formula, *inputs),
        )


@frozen(eq=False, repr=False)
class Matmul(Demand):
    """Tensor-core FLOPs at a precision. ``tensor`` is the weight, None for attention and state updates."""

    precision: str = "bf16"
    tensor: Tensor | None = None


@frozen(eq=False, repr=False)
class WeightRead(Demand):
    """Parameters read from HBM; bytes follow from the stored format."""

    tensor: Tensor | None = None
    format: Format | None = None


@frozen(eq=False, repr=False)
class CacheIO(Demand):
    """KV-cache elements read or written in HBM; bytes follow from the cache format."""

    format: Format | None = None
    write: bool = False
    kind: str = "full"


@frozen(eq=False, repr=False)
class StateIO(Demand):
    """Bytes of fixed per-sequence state, or of an index cache in a format of its own, read or written."""


@frozen(eq=False, repr=False)
class ActivationIO(Demand):
    """Bytes of activations through HBM: part of the estimate, never of a bound (fusion can remove them)."""


@frozen(eq=False, repr=False)
class Collective(Demand):
    """A message of ``coefficient x feature`` bytes among ``group`` devices, ``stride`` apart.

    For ``all_reduce`` and ``all_gather`` the bytes are the whole (reduced, gathered) message; for
    ``all_to_all`` and ``send`` what one device sends. ``count x launches(shape)`` collectives are launched an
    instance, each of which takes its latency.
    """

    kind: CollectiveKind = "all_reduce"
    group: int = 1
    stride: int = 1
    count: float = 1.0
    launches: Feature = ONCE


@frozen(eq=False, repr=False)
class HostWork(Demand):
    """Seconds of host time: part of the estimate, never of a bound (a faster host removes it)."""


@frozen(eq=False, repr=False)
class Launch(Demand):
    """Kernel launches: part of the estimate."""
