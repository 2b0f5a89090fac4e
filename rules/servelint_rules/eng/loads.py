"""From which release on an engine loads a model, for rules that compare releases."""

from __future__ import annotations

from servelint.plugin import Composition
from servelint.releases import release

Release = tuple[int, ...]

FIRST: dict[str, dict[str, Release]] = {
    "vllm": {
        "deepseek_v3": (0, 6, 6),
        "gemma3": (0, 8),
        "gemma3_text": (0, 8),
        "llama4": (0, 8, 3),
        "qwen3": (0, 8, 4),
        "qwen3_moe": (0, 8, 4),
        "qwen3_next": (0, 10),
        "gpt_oss": (0, 10, 1),
        "glm4_moe": (0, 10),
        "minimax_m2": (0, 11),
        "qwen3_vl": (0, 11),
        "qwen3_vl_moe": (0, 11),
        "deepseek_v32": (0, 12),
        "glm_moe_dsa": (0, 16),
        "qwen3_5": (0, 17),
        "qwen3_5_moe": (0, 17),
        "gemma4": (0, 19),
        "deepseek_v4": (0, 20),
        "minimax_m3": (0, 24),
    },
}
"""By engine and ``model_type``: releases before these do not load the model, or are older than its recipe asks for.

vllm-project/vllm#11559 (DeepSeek-V3), modelscope/ms-swift#3660 (Gemma 3), kubeai-project/kubeai#495 (Llama 4),
vllm-project/vllm#17327 (Qwen3), zai-org/GLM-4.5#5, xorbitsai/inference#4426 (Qwen3-VL), the release notes of v0.10.1
(gpt-oss) and v0.19.0 (Gemma 4); ``min_vllm_version`` in vllm-project/recipes@8959cf64:models for the others.
"""


def loads_before(composition: Composition, end: str) -> bool:
    """Whether any release before ``end`` is known to load the model, or nothing is known."""
    first = FIRST.get(composition.setup.engine.name, {}).get(composition.setup.architecture.model_type)
    return first is None or first < release(end)
