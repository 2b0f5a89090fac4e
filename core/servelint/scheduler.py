"""The scheduler: admission, batching, speculation and host limits, apart from graph and memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

from attrs import frozen

from servelint.values import Value

if TYPE_CHECKING:
    from servelint.composition import Composition


@frozen(slots=False, eq=False, repr=False)
class Pool(Value):
    """One side of disaggregated serving: its own composition on its own devices, and how many replicas."""

    composition: Composition
    replicas: int


@frozen(slots=False, eq=False, repr=False)
class Disaggregation(Value):
    """Prefill and decode pools, and the KV transfer between them.

    A transfer of n bytes takes ``setup_s + n / bytes_per_s``; with ``layerwise`` it overlaps the prefill
    and only the last layer's share is exposed.
    """

    prefill: Pool
    decode: Pool
    bytes_per_s: float
    setup_s: float
    layerwise: bool


@frozen(slots=False, eq=False, repr=False)
class Scheduler(Value):
    """How steps are filled.

    ``max_sequences`` run at once per replica, a step has at most ``max_batched_tokens`` new tokens, and a
    prompt is cut into chunks of ``chunk_tokens`` (None: a prompt is prefilled whole, and decode waits). Where steps
    are not ``mixed``, prompts go first, in steps of their own, and every sequence waits until all are through, or
    decodes ``decodes_between`` two of them.
    ``verify_tokens`` are new tokens a sequence and step (k+1 when verifying drafts), of which
    ``tokens_per_step`` are kept in expectation. ``skipped_share`` of the tokens need no step (jump-forward).
    ``first_token_s`` is host time on the TTFT path (grammar compile), ``first_token_share`` of requests pay
    it. A request decodes ``samples`` outputs from one prompt; ``prefix_reuse`` False computes every prompt whole.
    ``ranks`` serve sequences of their own; in ``lockstep`` they share a step (attention data parallelism, experts
    across ranks), so one that prefills delays all.
    """

    max_sequences: int | None = None
    max_batched_tokens: int | None = None
    chunk_tokens: int | None = None
    chunked: bool = True
    mixed: bool = True
    decodes_between: int = 0
    verify_tokens: int = 1
    tokens_per_step: float = 1.0
    skipped_share: float = 0.0
    first_token_s: float = 0.0
    first_token_share: float = 0.0
    samples: int = 1
    prefix_reuse: bool = True
    ranks: int = 1
    lockstep: bool = False
    disaggregation: Disaggregation | None = None

    @property
    def prompts_first(self) -> bool:
        """Whether every sequence waits until all prompts that have arrived are through."""
        return not (self.mixed or self.decodes_between)

    @property
    def yield_per_step(self) -> float:
        """Output tokens a sequence gains in one step, in expectation."""
        return self.tokens_per_step / (1.0 - self.skipped_share)
