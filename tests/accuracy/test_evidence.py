"""What is said of published runs, held against the server's own figures; docs/evidence.md lists it."""

from __future__ import annotations

import json
from typing import Any

import evidence
import pytest
from attrs import evolve
from evidence import ROWS

from servelint.consistency import check, tail
from servelint.evidence import Measurement
from servelint.manager import Plugins


def measured(row: dict[str, Any], plugins: Plugins) -> Measurement:
    read = next(f.read for f in plugins.evidence_formats if f.name == row["tool"])
    (run,) = read(evidence.file_of(row))
    # Prometheus' figures are a file of their own.
    return evolve(run, kv_usage=row["server_kv_usage"], cache_hit=row["server_prefix_hit"])


@pytest.mark.parametrize("row", ROWS, ids=[row["id"] for row in ROWS])
def test_published_runs(row: dict[str, Any], plugins: Plugins) -> None:
    found = {item.kind: item for item in check(measured(row, plugins))}
    # Every one of them times two streamed events a token (fewer with drafts).
    pace = found.pop("pace")
    factor = row["tpot_ms_derived_from_e2e"] / row["tpot_ms_reported"]["mean"]
    assert f"{factor:.2g}x too short" in pace.message
    # Where the client fell behind its schedule, by far.
    assert ("load" in found) == (row["achieved_rps"] < 0.95 * row["requested_rps"])
    assert ("load" in found) == (row["schedule_delay_p99_s"] > 1)
    # The name of the metric that V0 has.
    busy = row["completed_rps"] * row["e2e_ms"]["mean"] / 1e3 >= 1
    assert ("idle" in found) == (busy and row["server_kv_usage"] == 0)
    assert set(found) <= {"load", "idle"}
    # The server's own pace agrees with what the latency gives, not with what the client reports.
    if row["n"] > 100:
        assert row["server_tpot_ms_mean"] == pytest.approx(row["tpot_ms_derived_from_e2e"], rel=0.15)


@pytest.mark.parametrize("row", ROWS, ids=[row["id"] for row in ROWS])
def test_claims_of_them(row: dict[str, Any], plugins: Plugins) -> None:
    said = evidence.said(evidence.reported(row, plugins))
    assert "CLM009 (pace)" in said
    # The pace that the latency gives is possible on this hardware, and is never called otherwise.
    said = evidence.said(evidence.derived(row, plugins))
    assert said == ("CLM009 (rate not kept)" if row["achieved_rps"] < 0.95 * row["requested_rps"] else "nothing")


def test_tails_of_few_requests(plugins: Plugins) -> None:
    few = [row["id"] for row in ROWS if tail(measured(row, plugins)) is not None]
    assert few == [row["id"] for row in ROWS if row["n"] < 1000]


def test_the_page_is_current(plugins: Plugins) -> None:
    assert evidence.PAGE.read_text(encoding="utf-8") == evidence.page(plugins), (
        "run: python tests/accuracy/evidence.py --write"
    )


def test_the_page_names_every_tool(plugins: Plugins) -> None:
    assert evidence.TOOLS.count("\n") - 2 == len(plugins.evidence_formats)


def test_rows_name_their_source() -> None:
    assert all("/" in row["source"] for row in ROWS)
    assert len({json.dumps(row) for row in ROWS}) == len(ROWS) == 20
