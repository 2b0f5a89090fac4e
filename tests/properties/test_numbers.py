"""Every number of a spec at the ends of what it may be, and beyond: findings, no fault, no NaN, no infinity, soon.

The keys are those that the tables declare, so that a new one is tried too. Each is tried by itself; what is allowed
is also tried together, since products and quotients of extremes are where arithmetic ends.
"""

from __future__ import annotations

import copy
import re
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import pytest

from servelint.config import Config
from servelint.datasheet import FLOPS, LIMITS
from servelint.lineage import KeyPath
from servelint.lint import PROBLEM_NAMES, FileResult, Linter
from servelint.manager import Plugins
from servelint.spec.model import CLAIM_METRICS, MOST_CLAIMS, MOST_GROWTH, Deployment
from servelint.spec.schema import Either, Integer, Kind, Many, Named, Number, Quantity, Table, Tables, kinds
from servelint.testing.strategies import toml
from servelint.units import Dimension

SEED = 20_260_917
MOST_SECONDS = 3.0
TOGETHER = 100
"""Specs of each base with several extremes at once."""

SHEET: dict[str, Any] = {
    "id": "acme/a1",
    "memory": {"published_bytes": 96_000_000_000, "bandwidth_bytes_per_s": 4e12},
    "compute": {"dense_flops": {"bf16": 5e14, "fp8": 1e15}},
    "link": {"kind": "l", "per_direction_bytes_per_s": 3e11, "domain": 8, "pattern": "mesh", "peer_bytes_per_s": 5e10},
    "pcie": {"generation": 5, "lanes": 16},
}
COMMON: dict[str, Any] = {
    "servelint": 1,
    "hardware": {"accelerator": "nvidia/h100-sxm5-80gb", "devices": 8},
    "model": {"id": "meta-llama/Llama-3.1-70B", "max_model_len": 16384},
    "workload": {
        "prompt_tokens": {"p50": 1000, "p99": 6000},
        "output_tokens": {"p50": 200, "p99": 800},
        "rate": 1.0,
        "growth": [{"rate": 2.0}],
    },
    "slo": {m: {"p50": 5.0, "p99": 20.0} for m in ("ttft", "itl", "tpot", "e2e")},
    "claim": [{"metric": "throughput", "value": 900.0, "at": {"concurrency": 16}}],
}
BASES: dict[str, dict[str, Any]] = {
    "dense": {},
    "inline": {"hardware": {"datasheet": SHEET, "devices": 4}},
    "lockstep": {
        "model": {"id": "Qwen/Qwen3-30B-A3B", "max_model_len": 16384},
        "policy": {"parallelism": {"data": 4, "expert": 8, "tensor": 2}, "moe": {"skew": 1.5}},
    },
    "pipeline": {"policy": {"parallelism": {"pipeline": 4, "tensor": 2}}},
    "pools": {"policy": {"disaggregation": {"prefill": {"tensor": 4}, "decode": {"tensor": 4}, "transfer": {}}}},
    "drafting": {
        "policy": {
            "speculation": {"method": "eagle", "tokens": 3, "acceptance": 0.6},
            "constrained_decoding": {"share": 0.5, "schemas": "dynamic"},
        }
    },
}

PLUGINS = Plugins()
assert PLUGINS.rules  # loaded before anything is timed
LINTER = Linter(PLUGINS, Config(), Path(__file__).parent)
HUGE = "1" + "0" * 400
NEVER = ("nan", "-nan", "inf", "-inf", "1e308", "-1e308", HUGE, "-1", "true", "5e-324", '"1e-29 B"', '"1e400"')


class Place(NamedTuple):
    """A numeric key: its path and the ends of what it takes."""

    path: KeyPath
    ends: tuple[float, ...]


def places() -> list[Place]:
    """Every number that a spec can have."""
    found = [*_of_table(Deployment, ())]
    for policy in PLUGINS.policies:
        found += _of_table(policy.config, ("policy", policy.name))
    sheet = ("hardware", "datasheet")
    found += [Place((*sheet, *key.split(".")), limits) for key, limits in LIMITS.items()]
    found += [Place((*sheet, "compute", rates, "bf16"), FLOPS) for rates in ("dense_flops", "sparse_flops")]
    return found


def _of_table(cls: type[Any], path: KeyPath) -> Iterator[Place]:
    for name, (_, kind, _) in kinds(cls).items():
        yield from _of(kind, (*path, name))


def _of(kind: Kind, path: KeyPath) -> Iterator[Place]:
    if isinstance(kind, Integer | Number):
        yield Place(path, (kind.minimum, kind.maximum))
    elif isinstance(kind, Quantity):
        whole = kind.dimension is Dimension.COUNT
        ends = {kind.minimum, kind.least, kind.maximum}
        yield Place(path, tuple(sorted(int(e) if whole else e for e in ends)))
    elif isinstance(kind, Either):
        yield from _of(kind.plain, path)
        yield from _of(kind.table, path)
    elif isinstance(kind, Table):
        yield from _of_table(kind.cls, path)
    elif isinstance(kind, Tables):
        yield from _of_table(kind.cls, (*path, 0))
    elif isinstance(kind, Named):
        wanted = [k for k in ("p50", "p99", "mean", "std", "max", "bf16") if k in kind.keys or not kind.keys]
        for name in wanted if kind.keys else ("bf16",):
            yield from _of(kind.kind, (*path, name))
    elif isinstance(kind, Many):
        yield from _of(kind.kind, (*path, 0))


PLACES = places()


def base(name: str) -> dict[str, Any]:
    return {**copy.deepcopy(COMMON), **copy.deepcopy(BASES[name])}


def put(data: dict[str, Any], path: KeyPath, written: str) -> None:
    """Write a value as it is at a key path, making the tables on the way; a value beside is replaced by a table."""
    where: Any = data
    for part, following in pairwise(path):
        empty: Any = [] if isinstance(following, int) else {}
        if isinstance(where, list):
            while len(where) <= int(part):
                where.append(copy.deepcopy(empty))
        elif not isinstance(where.get(part), dict | list):
            where[part] = empty
        where = where[part]
    if isinstance(where, list):
        where[:] = [f"@{written}@"]
    else:
        where[path[-1]] = f"@{written}@"


def text_of(data: dict[str, Any]) -> str:
    text = toml(data)
    return re.sub(r'"@((?:[^"\\]|\\.)*)@"', lambda m: m[1].replace('\\"', '"'), text)


def check(what: str, text: str) -> FileResult:
    began = time.process_time()
    result = LINTER.check("spec.toml", text)
    seconds = time.process_time() - began
    faults = [str(fault) for fault in PLUGINS.faults]
    PLUGINS.faults.clear()
    assert not faults, f"{what}: {faults[0]}\n{text}"
    assert seconds < MOST_SECONDS, f"{what}: {seconds:.2f} s\n{text}"
    for located in result.findings:
        finding = located.finding
        words = f"{finding.message} {finding.equation} {finding.help} {' '.join(r.message for r in finding.related)}"
        # A problem of the spec quotes the value that it found there.
        quoted = finding.code in PROBLEM_NAMES
        odd = re.search(r"\b(nan|inf)\b", words, re.IGNORECASE)
        assert quoted or not odd, f"{what}: {finding.code}: {words}\n{text}"
        numbers = [v.value for v in finding.inputs if isinstance(v.value, float)]
        assert all(n == n for n in numbers), f"{what}: NaN in an input of {finding.code}\n{text}"
    return result


def test_there_are_numbers_to_try() -> None:
    paths = {place.path for place in PLACES}
    assert len(paths) > 120
    assert {
        ("hardware", "override", "memory"),
        ("hardware", "datasheet", "link", "peer_bytes_per_s"),
        ("workload", "prompt_tokens", "p99"),
        ("policy", "disaggregation", "transfer", "bandwidth"),
        ("claim", 0, "at", "itl_p99"),
    } <= paths


@pytest.mark.parametrize("name", BASES)
def test_the_bases_compose(name: str) -> None:
    result = check(name, text_of(base(name)))
    assert result.review is not None
    assert result.review.composition is not None


@pytest.mark.parametrize("name", BASES)
def test_each_number_at_its_ends(name: str) -> None:
    refused = []
    # Two bases try every number; the others a part, since most of their arithmetic is the same.
    for place in PLACES if name in ("dense", "inline") else Random(f"{SEED} {name}").sample(PLACES, 50):
        if place.path[:2] == ("hardware", "datasheet") and name != "inline":
            continue
        for end in place.ends:
            data = base(name)
            put(data, place.path, repr(end))
            result = check(f"{place.path} = {end!r}", text_of(data))
            problems = [f.finding for f in result.findings if f.finding.path == place.path]
            refused += [f"{place.path} = {end!r}: {p.message}" for p in problems if "must be" in p.message]
    assert not refused


@pytest.mark.parametrize("name", ["dense", "inline"])
def test_what_no_number_can_be_is_refused_at_its_place(name: str) -> None:
    for place in PLACES:
        if place.path[:2] == ("hardware", "datasheet") and name != "inline":
            continue
        for written in NEVER:
            if place.ends[0] < 0 and written == "-1":
                continue
            data = base(name)
            put(data, place.path, written)
            what = f"{place.path} = {written}"
            result = check(what, text_of(data))
            fine = written == "5e-324" and place.ends[0] == 0
            codes = {f.finding.code for f in result.findings if f.finding.severity is not None}
            assert fine or codes & {"SPEC001", "SPEC003", "SPEC004"}, f"{what}: {sorted(codes)}"


@pytest.mark.parametrize("name", BASES)
def test_extremes_together(name: str) -> None:
    random = Random(f"{SEED} {name}")
    usual = [p for p in PLACES if name == "inline" or p.path[:2] != ("hardware", "datasheet")]
    composed = 0
    for i in range(TOGETHER):
        data = base(name)
        chosen = random.sample(usual, random.choice((2, 2, 3, 4, 6)))
        for place in chosen:
            put(data, place.path, repr(random.choice(place.ends)))
        result = check(f"{name} {i}: {[p.path for p in chosen]}", text_of(data))
        composed += result.review is not None and result.review.composition is not None
    assert composed > 0.2 * TOGETHER


@pytest.mark.parametrize("metric", CLAIM_METRICS)
def test_claims_at_their_ends(metric: str) -> None:
    kind = CLAIM_METRICS[metric]
    for name in BASES:
        for value in (kind.minimum, kind.maximum):
            data = base(name)
            data["claim"] = [{"metric": metric, "value": value, "per": per} for per in ("replica", "device", "user")]
            check(f"{name}: {metric} = {value}", text_of(data))


@pytest.mark.parametrize("metric", ["total_throughput", "throughput", "request_rate", "ttft", "itl"])
@pytest.mark.parametrize("pipeline", [1, 16])
def test_as_many_claims_and_scenarios_as_are_read_are_checked_soon(metric: str, pipeline: int) -> None:
    impossible = 1e6 if metric in ("request_rate", "throughput", "total_throughput") else 1e-6
    data = base("dense")
    data["hardware"]["devices"] = 16
    data["model"] = {"id": "meta-llama/Llama-3.1-405B", "max_model_len": 65536}
    data["policy"] = {
        "quantization": {"weights": "fp8"},
        "parallelism": {"tensor": 16 // pipeline, "pipeline": pipeline},
    }
    data["workload"]["growth"] = [
        {"rate": 1 + i / 20, "prompt_tokens": {"p50": 1000 + i, "p99": 9000 + i}} for i in range(MOST_GROWTH)
    ]
    data["claim"] = [
        {
            "metric": metric,
            "value": impossible,
            "at": {"concurrency": i + 1, "prompt_tokens": 1000 + i, "output_tokens": 300},
            "assumes": {"dense_flops": (500 + i) * 1e12, "memory_bandwidth": 3e12},
        }
        for i in range(MOST_CLAIMS)
    ]
    result = check(metric, text_of(data))
    assert sum(f.finding.code == "CLM001" for f in result.findings) == MOST_CLAIMS
