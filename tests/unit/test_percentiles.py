"""Percentiles on the shipped deployments: they rise with the percentile, and with the batch."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest

from servelint.manager import Plugins
from servelint.review import Review
from servelint.spec.document import parse

SPECS = sorted((Path(__file__).parents[2] / "specs").rglob("*.toml"))
PERCENTILES = ("p50", "p75", "p90", "p95", "p99", "p999")


@pytest.mark.parametrize("path", SPECS, ids=lambda p: p.stem)
def test_percentiles_rise(path: Path, plugins: Plugins) -> None:
    review = Review(parse(str(path), path.read_text(), plugins.policies), plugins, path.parent)
    if review.composition is None or review.mix is None:
        pytest.fail("a shipped spec composes and has a workload")
    service = review.service(review.mix)
    for point in service.frontier(6):
        for metric in ("itl", "ttft", "tpot", "e2e"):
            values = [point.latency(metric, p) for p in PERCENTILES]
            for low, high in pairwise(values):
                assert low <= high * (1 + 1e-3), (metric, point.batch, values)


def test_ranks_in_lockstep_wait_for_whichever_prefills(plugins: Plugins) -> None:
    text = """\
servelint = 1
[hardware]
accelerator = "nvidia/h200-sxm5-141gb"
devices = 8
[model]
id = "deepseek-ai/DeepSeek-V3"
max_model_len = 8192
[policy.parallelism]
tensor = 8
attention_data = {ranks}
expert = 8
[workload]
prompt_tokens = 2000
output_tokens = 200
rate = "1 req/s"
"""
    shares = {}
    for ranks in (1, 8):
        document = parse("a.toml", text.replace("{ranks}", str(ranks)), plugins.policies)
        review = Review(document, plugins, Path())
        assert review.mix is not None
        shares[ranks] = review.service(review.mix).point(64.0).mixed_share
    # One rank of eight prefills an eighth as often, and a step is free of prefill only when all eight are.
    assert shares[8] == pytest.approx(1 - (1 - shares[1] / 8) ** 8)
