"""Result files that would cost time, memory or a fault: each is refused, or read within a second or two."""

from __future__ import annotations

import time

import pytest

from servelint_plugins.evidence import mlperf, vllm

RUN = '"duration": 1, "num_prompts": 1, "completed": 1'
FILES = {
    "lengths beyond any number": "{" + RUN + f', "input_lens": [{"9" * 400}], "output_lens": [NaN]}}',
    "many keys of YAML": "a: {" + ",".join("a" for _ in range(1_500_000)) + "}",
    "many lines": "{" + RUN + "}\n" + "{}\n" * 500_000,
    "comments": "#\n" * 1_500_000 + "!",
    "blank lines of a summary": "MLPerf Results Summary\na" + " " * 60 + "\n" * 5_000_000,
    "blanks of a summary": "MLPerf Results Summary\nMin latency (ns) : 1" + " " * 5_000_000 + "x",
}


@pytest.mark.parametrize("what", FILES)
def test_it_ends_soon(what: str) -> None:
    began = time.process_time()
    for module in (mlperf, vllm):
        try:
            found = list(module.read(FILES[what]))
        except ValueError:
            continue
        assert len(found) <= 1
    assert time.process_time() - began < 2.0


def test_a_length_beyond_any_number_is_left_out() -> None:
    (found,) = vllm.read(FILES["lengths beyond any number"])
    assert "max" not in found.prompt_tokens
