"""Attention kernels: what one that does not tile writes to memory."""

from __future__ import annotations

import pytest

from servelint.composition import Composition
from servelint.cost import OpCost
from servelint.manager import Plugins
from servelint.shapes import decode, prefill
from servelint.testing import compose

HEADS, LAYERS = 32, 32


def found(kernel: str, plugins: Plugins, tensor: int = 1, model: str = "meta-llama/Llama-3.1-8B") -> Composition:
    table = f'[policy.attention]\nkernel = "{kernel}"\n' if kernel else ""
    text = f'[hardware]\naccelerator = "h100-sxm"\n[model]\nid = "{model}"\n[policy.parallelism]\ntensor = {tensor}\n'
    return compose(text + table, plugins)


def core(composition: Composition, tokens: float) -> OpCost:
    return next(r for r in composition.pricer.breakdown(prefill(tokens)) if r.name.endswith(".core"))


def test_a_tiling_kernel_changes_nothing(plugins: Plugins) -> None:
    assert found("flash", plugins).graph.ops == found("", plugins).graph.ops


def test_scores_of_8192_tokens_are_134_mb_a_head_and_layer(plugins: Plugins) -> None:
    """Written once at least, and with the softmax passes about half a gigabyte."""
    flash, naive = (core(found(k, plugins), 8192.0) for k in ("flash", "naive"))
    matrix = (naive.hbm_bytes - flash.hbm_bytes) / HEADS / LAYERS
    assert matrix == pytest.approx(8192 * 8192 * 2)
    assert matrix / 1e6 == pytest.approx(134.2, abs=0.05)
    passes = (naive.activation_bytes - flash.activation_bytes) / HEADS / LAYERS
    assert (matrix + passes) / 1e9 == pytest.approx(0.537, abs=0.0005)


def test_tensor_parallelism_splits_the_scores_by_heads(plugins: Plugins) -> None:
    one, four = (
        core(found("naive", plugins, t), 2048.0).hbm_bytes - core(found("flash", plugins, t), 2048.0).hbm_bytes
        for t in (1, 4)
    )
    assert one == pytest.approx(4 * four, rel=1e-12)


def test_latent_attention_has_scores_too(plugins: Plugins) -> None:
    flash, naive = (core(found(k, plugins, 8, "deepseek-ai/DeepSeek-V3"), 1024.0) for k in ("flash", "naive"))
    assert naive.hbm_bytes - flash.hbm_bytes == pytest.approx(61 * 128 / 8 * 1024 * 1024 * 2, rel=1e-12)


def test_a_naive_kernel_is_never_faster(plugins: Plugins) -> None:
    flash, naive = found("flash", plugins), found("naive", plugins)
    for shape in (decode(1.0, 100.0), decode(64.0, 8192.0), prefill(4096.0)):
        assert naive.pricer.bound(shape) >= flash.pricer.bound(shape)
        assert naive.pricer.estimate(shape) > flash.pricer.estimate(shape)
