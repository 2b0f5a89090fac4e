"""Blocks that keep a constant state per sequence: Mamba 1 and 2, gated DeltaNet, Kimi Delta and lightning attention."""

from __future__ import annotations

from typing import NamedTuple

from servelint.architecture import LinearState, Tensor
from servelint_plugins.models.builders import compact, matrix, norm, vector


class Mamba1(NamedTuple):
    """Sizes of a Mamba-1 block: inner width, state per channel, convolution kernel, rank of the step size."""

    inner: int
    state: int
    kernel: int
    rank: int

    @property
    def mixer(self) -> LinearState:
        """The state of one sequence in one layer."""
        return LinearState(self.inner * self.state, self.inner * (self.kernel - 1))

    def tensors(self, hidden: int, *, conv_bias: bool, proj_bias: bool, norms: bool) -> tuple[Tensor, ...]:
        """Parameters; ``norms`` adds Jamba's norms on step size, B and C."""
        return compact(
            (
                matrix("in_proj", "ssm", hidden * 2 * self.inner, "heads"),
                vector("in_bias", "ssm", 2 * self.inner if proj_bias else 0, "heads"),
                vector("conv", "ssm", self.inner * (self.kernel + conv_bias), "heads"),
                matrix("x_proj", "ssm", self.inner * (self.rank + 2 * self.state), "heads"),
                matrix("dt_proj", "ssm", self.rank * self.inner, "heads"),
                vector("dt_bias", "ssm", self.inner, "heads"),
                vector("decay", "ssm", self.inner * (self.state + 1), "heads"),
                matrix("out_proj", "ssm", self.inner * hidden, "heads", reduced=True),
                vector("out_bias", "ssm", hidden if proj_bias else 0),
                norm("state_norms", self.rank + 2 * self.state if norms else 0),
            )
        )


class Mamba2(NamedTuple):
    """Sizes of a Mamba-2 block: heads, channels per head, groups, state size, convolution kernel."""

    heads: int
    head_dim: int
    groups: int
    state: int
    kernel: int

    @property
    def inner(self) -> int:
        """Inner width."""
        return self.heads * self.head_dim

    @property
    def convolved(self) -> int:
        """Channels under the convolution: x, B and C."""
        return self.inner + 2 * self.groups * self.state

    @property
    def mixer(self) -> LinearState:
        """The state of one sequence in one layer."""
        return LinearState(self.inner * self.state, self.convolved * (self.kernel - 1))

    def tensors(self, hidden: int, *, conv_bias: bool, proj_bias: bool) -> tuple[Tensor, ...]:
        """Parameters, the gated norm included."""
        projected = self.inner + self.convolved + self.heads
        return compact(
            (
                matrix("in_proj", "ssm", hidden * projected, "heads"),
                vector("in_bias", "ssm", projected if proj_bias else 0, "heads"),
                vector("conv", "ssm", self.convolved * (self.kernel + conv_bias), "heads"),
                vector("decay", "ssm", 3 * self.heads, "heads"),
                norm("gated_norm", self.inner, "heads"),
                matrix("out_proj", "ssm", self.inner * hidden, "heads", reduced=True),
                vector("out_bias", "ssm", hidden if proj_bias else 0),
            )
        )


class DeltaNet(NamedTuple):
    """Sizes of a gated DeltaNet block: key and value heads, their sizes, convolution kernel."""

    key_heads: int
    value_heads: int
    key_dim: int
    value_dim: int
    kernel: int

    @property
    def convolved(self) -> int:
        """Channels under the convolution: q, k and v."""
        return 2 * self.key_heads * self.key_dim + self.value_heads * self.value_dim

    @property
    def mixer(self) -> LinearState:
        """The state of one sequence in one layer: a key by value matrix for each value head."""
        recurrent = self.value_heads * self.key_dim * self.value_dim
        return LinearState(recurrent, self.convolved * (self.kernel - 1))

    def tensors(self, hidden: int) -> tuple[Tensor, ...]:
        """Parameters; q, k, v, output gate, decay and step size come from one group of projections."""
        values = self.value_heads * self.value_dim
        projected = self.convolved + values + 2 * self.value_heads
        return (
            matrix("in_proj", "ssm", hidden * projected, "heads"),
            vector("conv", "ssm", self.convolved * self.kernel, "heads"),
            vector("decay", "ssm", 2 * self.value_heads, "heads"),
            norm("gated_norm", self.value_dim),
            matrix("out_proj", "ssm", values * hidden, "heads", reduced=True),
        )


class KimiDelta(NamedTuple):
    """Sizes of a Kimi Delta Attention block: heads, size of a head's keys and of its values, convolution kernel."""

    heads: int
    head_dim: int
    kernel: int

    @property
    def inner(self) -> int:
        """Width of the queries, the keys and the values each."""
        return self.heads * self.head_dim

    @property
    def mixer(self) -> LinearState:
        """The state of one sequence in one layer: a key by value matrix for each head."""
        return LinearState(self.inner * self.head_dim, 3 * self.inner * (self.kernel - 1))

    def tensors(self, hidden: int) -> tuple[Tensor, ...]:
        """Parameters; decay of each channel and output gate come through narrow matrices that every rank holds."""
        return (
            matrix("in_proj", "ssm", hidden * (3 * self.inner + self.heads), "heads"),
            vector("conv", "ssm", 3 * self.inner * self.kernel, "heads"),
            matrix("gates_down", "ssm", 2 * hidden * self.head_dim, "replicated"),
            matrix("gates_up", "ssm", 2 * self.head_dim * self.inner, "heads"),
            vector("decay", "ssm", self.inner + self.heads, "heads"),
            norm("gated_norm", self.head_dim),
            matrix("out_proj", "ssm", self.inner * hidden, "heads", reduced=True),
        )


def lightning(hidden: int, heads: int, head_dim: int) -> tuple[LinearState, tuple[Tensor, ...]]:
    """MiniMax's lightning attention: a head_dim by head_dim state for each head, and an output gate."""
    inner = heads * head_dim
    tensors = (
        matrix("in_proj", "ssm", hidden * 4 * inner, "heads"),
        norm("state_norm", inner, "heads"),
        matrix("out_proj", "ssm", inner * hidden, "heads", reduced=True),
    )
    return LinearState(heads * head_dim * head_dim, 0), tensors
