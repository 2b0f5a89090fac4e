"""What a check of one small spec costs as a process, in units of a bare interpreter, and where the time goes."""

from __future__ import annotations

import os
import re
import resource
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.benchmark

RUNS = 21
MOST_TIMES = 15.0
SPEC = """\
servelint = 1
[hardware]
accelerator = "nvidia/h100-sxm5-80gb"
[model]
id = "meta-llama/Llama-3.1-8B"
max_model_len = 8192
[workload]
prompt_tokens = { p50 = 900, p99 = 4000 }
output_tokens = 200
rate = "1 req/s"
[slo]
itl = { p99 = "100 ms" }
"""
THIRD_PARTY = ("attr", "attrs", "cattrs", "pluggy", "tomli", "typing_extensions")
IMPORT = re.compile(r"import time:\s+(\d+) \|\s+\d+ \|\s+(\S+)")


def environment() -> dict[str, str]:
    """Return an environment in which compiled modules are kept, as they are on a user's machine."""
    return {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")}


def cpu_seconds(*command: str) -> float:
    """CPU seconds of a process: the least of some runs, which other processes disturb least."""
    found = []
    for _ in range(RUNS):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run(command, env=environment(), stdout=subprocess.DEVNULL, check=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        found.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    return min(found)


def import_seconds(*command: str) -> dict[str, float]:
    """Seconds of imports by whose they are, of the run in which ours take least."""
    runs = []
    for _ in range(RUNS):
        done = subprocess.run(command, env=environment(), capture_output=True, text=True, check=True)
        seconds = {"ours": 0.0, "third-party": 0.0, "standard library": 0.0}
        for micros, name in IMPORT.findall(done.stderr):
            top = name.partition(".")[0]
            ours = top.startswith("servelint")
            seconds["ours" if ours else "third-party" if top in THIRD_PARTY else "standard library"] += (
                int(micros) / 1e6
            )
        runs.append(seconds)
    return min(runs, key=lambda seconds: seconds["ours"])


def test_a_small_check_against_a_bare_interpreter(tmp_path: Path) -> None:
    spec = tmp_path / "small.toml"
    spec.write_text(SPEC, encoding="utf-8")
    check = (sys.executable, "-m", "servelint", "check", str(spec), "--concise")
    bare, whole = cpu_seconds(sys.executable, "-c", "pass"), cpu_seconds(*check)
    split = import_seconds(sys.executable, "-X", "importtime", *check[1:])
    shown = ", ".join(f"{name} {seconds * 1e3:.1f} ms" for name, seconds in split.items())
    print(f"\nbare {bare * 1e3:.1f} ms, check {whole * 1e3:.1f} ms: {whole / bare:.1f} times; imports: {shown}")
    assert whole < MOST_TIMES * bare
    assert 0 < split["ours"] < whole
