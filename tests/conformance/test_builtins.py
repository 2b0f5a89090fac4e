"""The conformance kit on everything that comes with servelint: every datasheet, model and policy."""

from __future__ import annotations

from typing import Any

import pytest

from servelint.manager import Plugins
from servelint.testing import check_accelerator, check_model, check_policy

PLUGINS = Plugins()


NO_RATES = "the vendor publishes no matrix rates: a spec that uses the part has to give hardware.override.dense_flops"
WAIVERS = {
    name: dict.fromkeys(("datasheet", "sources", "figures", "faster", "load", "larger", "scaling", "arrays"), NO_RATES)
    for name in ("apple/m3-ultra-80c", "apple/m4-max-40c")
}


@pytest.mark.parametrize("name", PLUGINS.accelerators.ids())
def test_accelerator(name: str) -> None:
    check_accelerator(PLUGINS.accelerators.get(name), plugins=PLUGINS, waivers=WAIVERS.get(name))


@pytest.mark.parametrize("name", PLUGINS.models.ids())
def test_model(name: str) -> None:
    check_model(PLUGINS.models.get(name), plugins=PLUGINS)


TABLES: dict[str, list[dict[str, Any]]] = {
    "constrained_decoding": [
        {"backend": "xgrammar", "mask": "200 us", "overlap": overlap} for overlap in (True, False)
    ],
    "disaggregation": [{"prefill": {"devices": 1}, "decode": {"devices": 2, "tensor": 2}, "transfer": {"setup": 0.01}}],
    "moe": [{"skew": 2.0, "redundant_experts": 8}],
    "parallelism": [
        {"tensor": 4},
        {"tensor": 2, "pipeline": 2},
        {"tensor": 4, "attention_data": 4, "expert": 4},
        {"tensor": 2, "data": 2, "expert": 4},
        {"tensor": 4, "context": 2},
        {"pipeline": 2, "data": 2},
    ],
    "quantization": [
        {"weights": name, "kv_cache": "fp8"} for name in sorted({f.name for f in PLUGINS.formats.values()})
    ],
    "speculation": [{"method": m, "tokens": 3, "acceptance": 0.6} for m in ("ngram", "mtp", "eagle")],
}
IDENTITIES: dict[str, dict[str, Any]] = {
    "parallelism": {},
    "constrained_decoding": {"backend": "xgrammar", "mask": 0, "compile": 0},
    "moe": {"skew": 1.0, "redundant_experts": 0},
    "speculation": {"method": "mtp", "tokens": 0},
}


@pytest.mark.parametrize("name", [policy.name for policy in PLUGINS.policies])
def test_policy(name: str) -> None:
    policy = next(p for p in PLUGINS.policies if p.name == name)
    check_policy(policy, tables=TABLES.get(name, ()), identity=IDENTITIES.get(name), plugins=PLUGINS)
