"""The JSON report: keys, units, and values that any parser takes."""

from __future__ import annotations

import json
import math
from typing import Any

from servelint.report.json import dumps, render

FINDING_KEYS = [
    "code", "name", "severity", "confidence", "message", "file", "line", "column", "end_line", "end_column",
    "key_path", "equation", "help", "related", "inputs", "fix",
]  # fmt: skip


def test_a_finding_has_the_keys_of_the_contract(checked: Any) -> None:
    spec = (
        'servelint = 1\n[hardware]\naccelerator = "nvidia/h100-sxm5-80gb"\n[model]\nid = "meta-llama/Llama-3.1-70B"\n'
    )
    data = json.loads(render(checked(spec)))
    assert data["schema_version"] == 1
    assert data["summary"] == {"errors": 1, "warnings": 0, "info": 0}
    (finding,) = data["findings"]
    assert list(finding) == FINDING_KEYS
    assert finding["key_path"] == "model.id"
    assert (finding["line"], finding["column"], finding["end_line"], finding["end_column"]) == (5, 6, 5, 32)
    weights = finding["inputs"][0]
    assert weights["quantity"] == "bytes"
    assert math.isclose(weights["value"], 70.55e9 * 2, rel_tol=0.01)
    assert weights["line"] == 5


def test_suppressed_findings_stand_apart(checked: Any) -> None:
    data = json.loads(render(checked("servelint = 1\nhardware.devices = 0 # servelint: ignore[SPEC003] known\n")))
    assert data["findings"] == []
    assert data["files"][0]["suppressed"] == [{"code": "SPEC003", "line": 2, "reason": "known"}]


def test_messages_are_safe_also_when_decoded(checked: Any) -> None:
    data = json.loads(render(checked('servelint = 1\n"\\u001b[2J" = 1\n')))
    assert "\x1b" not in data["findings"][0]["message"]
    assert "\\x1b[2J" in data["findings"][0]["message"]


def test_what_json_cannot_say_is_null() -> None:
    assert json.loads(dumps({"a": math.inf, "b": [math.nan, 1.5], "c": (1, "x\udcff")})) == {
        "a": None,
        "b": [None, 1.5],
        "c": [1, "x\\udcff"],
    }
