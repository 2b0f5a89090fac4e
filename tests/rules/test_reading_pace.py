"""SLO009 is a warning where one sequence alone is slower than people read, and advice elsewhere."""

from __future__ import annotations

from pathlib import Path

import pytest

from servelint.config import Config
from servelint.lint import Linter
from servelint.manager import Plugins
from servelint.rule import Severity

SPEC = """\
servelint = 1
[deployment]
goal = "latency"
[hardware]
accelerator = "nvidia/gb10"
devices = 2
nodes = 2
override = { memory_bandwidth = "366 GB/s", source = "bench/stream.json" }
[model]
id = "meta-llama/Meta-Llama-3-70B"
[workload]
prompt_tokens = 1000
output_tokens = 250
concurrency = 1
"""


@pytest.mark.parametrize(
    ("change", "severity"),
    [
        (("", ""), Severity.WARNING),
        (("366 GB/s", "367 GB/s"), Severity.INFO),
        (('"latency"', '"throughput"'), Severity.INFO),
        (("[workload]", '[policy.quantization]\nweights = "fp8"\n[workload]'), Severity.INFO),
    ],
    ids=["as it is", "one step faster", "nobody reads along", "narrower weights"],
)
def test_the_pace_of_one_sequence_decides(
    change: tuple[str, str], severity: Severity, plugins: Plugins, tmp_path: Path
) -> None:
    linter = Linter(plugins, Config(preview=True), tmp_path)
    text = SPEC.replace(*change) if change[0] else SPEC
    found = [f.finding for f in linter.check(str(tmp_path / "deployment.toml"), text).findings]
    assert [f.severity for f in found if f.code == "SLO009"] == [severity]
