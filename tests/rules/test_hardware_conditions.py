"""What the rules of hardware figures and of quantization let through on either side of their conditions."""

from __future__ import annotations

import json
import math
import re
from types import SimpleNamespace
from typing import Any

import pytest

from servelint.composition import DEFAULT_EFFICIENCY
from servelint.config import Config
from servelint.manager import Plugins
from servelint.rule import Case, Finding, Severity
from servelint.service import Service
from servelint.testing import review_of
from servelint.testing.rules import run_case
from servelint_rules.hw.figures import near, variants
from servelint_rules.hw.hw001_sparse_flops import deployed_precision
from servelint_rules.qnt.weights import busy_s, dequantized, wide_name

H100 = 'servelint = 1\n[hardware]\naccelerator = "nvidia/h100-sxm5-80gb"\n'
MODEL = '[model]\nid = "meta-llama/Llama-3.1-8B"\nmax_model_len = 8192\n'
AT = "at = { batch = 1, context = 100 }\n"


def on(part: str) -> str:
    return H100.replace("nvidia/h100-sxm5-80gb", part)


def findings(code: str, text: str, plugins: Plugins, files: tuple[tuple[str, str], ...] = ()) -> list[Finding]:
    found = run_case(Case("", text, files=files), plugins, Config(select=(code,), preview=True))
    assert not plugins.faults, plugins.faults
    return [f.finding for f in found.findings if f.finding.code == code]


def only(code: str, text: str, plugins: Plugins, files: tuple[tuple[str, str], ...] = ()) -> Finding:
    (found,) = findings(code, text, plugins, files)
    return found


def claim(assumes: str) -> str:
    return f'[[claim]]\nmetric = "tpot"\nvalue = "20 ms"\n{AT}assumes = {{ {assumes} }}\n'


# Whose figures they are


@pytest.mark.parametrize(
    ("name", "ids"),
    [
        ("H100", {"h100-nvl-94gb", "h100-pcie-80gb", "h100-sxm5-80gb"}),
        # A generation may be left out, and two letters are no form factor.
        ("an H100 SXM of ours", {"h100-sxm5-80gb"}),
        ("an H100 SX of ours", {"h100-nvl-94gb", "h100-pcie-80gb", "h100-sxm5-80gb"}),
        ("H100 80GB", {"h100-pcie-80gb", "h100-sxm5-80gb"}),
        ("A100 with 40GB on SXM", {"a100-sxm4-40gb"}),
        # Of two families it is neither's.
        ("H100 or H200", set()),
        ("Acme A1", set()),
    ],
)
def test_parts_that_a_name_can_mean(name: str, ids: set[str], plugins: Plugins) -> None:
    review = review_of(H100 + MODEL, plugins)
    assert {sku.id.partition("/")[2] for sku in variants(review, name)} == ids


@pytest.mark.parametrize(
    ("value", "published", "same"),
    [(100.9, 100.0, True), (101.1, 100.0, False), (99.1, 100.0, True), (98.9, 100.0, False), (1.0, 0.0, False),
     (0.5, 0.5, True)],
)  # fmt: skip
def test_a_figure_is_the_published_one_to_a_hundredth(value: float, published: float, same: bool) -> None:
    assert near(value, (published, 7e9)) is same


# HW001


@pytest.mark.parametrize(("sparse", "speaks"), [("1000e12", True), ("500e12", False), ("510e12", False)])
def test_a_part_that_gains_nothing_from_sparsity_has_no_sparse_rate(
    sparse: str, speaks: bool, plugins: Plugins
) -> None:
    text = (
        'servelint = 1\n[hardware.datasheet]\nid = "acme/a1"\nname = "Acme A1"\n'
        "memory = { published_bytes = 96_000_000_000, bandwidth_bytes_per_s = 4e12 }\n"
        f"compute = {{ dense_flops = {{ bf16 = 500e12 }}, sparse_flops = {{ bf16 = {sparse} }} }}\n{MODEL}"
    )
    rate = 'accelerator = "nvidia/h100-sxm5-80gb", dense_flops = "1979 TFLOP/s", precision = "bf16"'
    assert findings("HW001", text, plugins) == []
    own = claim(f'dense_flops = "{float(sparse) / 1e12:g} TFLOP/s", precision = "bf16"')
    found = findings("HW001", text + own + claim(rate), plugins)
    places = [("claim", i, "assumes", "dense_flops") for i in (0, 1)]
    assert [f.path for f in found] == (places if speaks else places[1:])


def test_the_precision_of_most_of_the_work(plugins: Plugins) -> None:
    """Of a layer 42 million parameters are attention's and 176 million the MLP's."""
    text = f'{H100}{MODEL}[policy.quantization]\nweights = "fp8"\n'
    assert deployed_precision(review_of(text, plugins)) == "fp8"
    assert deployed_precision(review_of(f'{text}covers = ["attention"]\n', plugins)) == "bf16"
    assert deployed_precision(review_of(f'{text}covers = ["mlp"]\n', plugins)) == "fp8"


# HW002


def test_a_name_that_fits_two_products(plugins: Plugins) -> None:
    found = only("HW002", H100 + MODEL + claim('accelerator = "A100 80GB"'), plugins)
    assert found.message.startswith("'A100 80GB' can be 2 products with 1.94 TB/s to 2.04 TB/s: ")
    assert (found.severity, found.path) == (Severity.INFO, ("claim", 0, "assumes", "accelerator"))


@pytest.mark.parametrize(
    ("memory", "bandwidth", "form", "path"),
    [
        # One figure of each variant.
        ("94000000000", "2039000000000", "", ("hardware", "datasheet", "name")),
        ("94000000000", "2039000000000", 'form_factor = "PCIe"\n', None),
        # Memory and bandwidth of one.
        ("80000000000", "2039000000000", "", ("hardware", "datasheet", "compute", "dense_flops", "bf16")),
    ],
)
def test_a_datasheet_is_of_the_variant_that_two_of_its_figures_are_of(
    memory: str, bandwidth: str, form: str, path: tuple[str, ...] | None, plugins: Plugins
) -> None:
    text = (
        f'servelint = 1\n[hardware.datasheet]\nname = "H100 as bought"\n{form}[hardware.datasheet.memory]\n'
        f"published_bytes = {memory}\nbandwidth_bytes_per_s = {bandwidth}\n"
        f"[hardware.datasheet.compute.dense_flops]\nbf16 = 989.4e12\n{MODEL}"
    )
    assert [f.path for f in findings("HW002", text, plugins)] == ([] if path is None else [path])


def test_a_figure_of_another_variant_points_at_the_part_that_is_named(plugins: Plugins) -> None:
    elsewhere = claim('accelerator = "H100 PCIe", memory_bandwidth = "3.35 TB/s"')
    found = only("HW002", H100 + MODEL + elsewhere, plugins)
    (related,) = found.related
    assert related.path == ("claim", 0, "assumes", "accelerator")
    assert related.message.startswith("this part is NVIDIA H100 PCIe")
    here = only("HW002", on("nvidia/h100-pcie-80gb") + MODEL + claim('memory_bandwidth = "3.35 TB/s"'), plugins)
    assert [r.path for r in here.related] == [("hardware", "accelerator")]


@pytest.mark.parametrize(("memory", "speaks"), [("94 GB", True), ("93 GB", False), ("80 GB", False), ("70 GB", False)])
def test_memory_is_another_variants_where_it_is_more(memory: str, speaks: bool, plugins: Plugins) -> None:
    override = f'[hardware.override]\nmemory = "{memory}"\nsource = "sheet"\n'
    assert bool(findings("HW002", f"{H100}{override}{MODEL}", plugins)) is speaks


# HW003


@pytest.mark.parametrize(
    ("hardware", "speaks"),
    [
        ("efficiency = { memory = 0.99 }\n", True),
        ("efficiency = { memory = 0.98 }\n", False),
        # One device sends nothing.
        ("efficiency = { link = 1.0 }\n", False),
        ("devices = 2\nefficiency = { link = 1.0 }\n", True),
    ],
)
def test_fractions_that_nobody_measured(hardware: str, speaks: bool, plugins: Plugins) -> None:
    assert bool(findings("HW003", f"{H100}{hardware}{MODEL}", plugins)) is speaks


def test_what_is_usual_is_the_measurement_of_the_part(plugins: Plugins) -> None:
    measured = plugins.accelerators.get("nvidia/h100-sxm5-80gb").measured["memory"]
    found = only("HW003", H100 + MODEL + claim("efficiency = 1.0"), plugins)
    assert found.path == ("claim", 0, "assumes", "efficiency")
    assert (
        f"{measured:g} was measured on this part, so times that rest on it come out {1 - measured:.0%}" in found.message
    )
    unmeasured = next(
        part for part in map(plugins.accelerators.get, plugins.accelerators.ids()) if "memory" not in part.measured
    )
    other = only("HW003", on(unmeasured.id) + MODEL + claim("efficiency = 1.0"), plugins)
    assert f"{DEFAULT_EFFICIENCY['memory']:g} is the stated default" in other.message


# HW004


@pytest.mark.parametrize(
    ("figures", "words"),
    [('memory = "79 GB"', "it can be"), ('memory = "79 GB", memory_bandwidth = "3 TB/s"', "they can be")],
)
def test_one_figure_without_a_source_and_two(figures: str, words: str, plugins: Plugins) -> None:
    found = only("HW004", f"{H100}override = {{ {figures} }}\n{MODEL}", plugins)
    assert f"and no source is given: {words} neither checked" in found.message


@pytest.mark.parametrize(
    ("source", "names"),
    [
        ("TODO", False),
        ("n/a", False),
        ("xxx", False),
        ("(tbd)", False),
        ("x100 datasheet, 2024-03", True),
        ("bench.json", True),
    ],
)
def test_a_placeholder_names_no_source(source: str, names: bool, plugins: Plugins) -> None:
    text = f'{H100}override = {{ memory = "79 GB", source = "{source}" }}\n{MODEL}'
    found = findings("HW004", text, plugins)
    assert [f.path for f in found] == ([] if names else [("hardware", "override", "source")])
    assert all(f"{source!r} names none" in f.message for f in found)


@pytest.mark.parametrize(
    ("memory", "compute", "lacking"),
    [
        (["A1 datasheet"], ["A1 datasheet"], []),
        # One of several is enough.
        (["TODO", "A1 datasheet"], ["A1 datasheet"], []),
        (["TODO"], ["A1 datasheet"], ["memory"]),
        ([], ["A1 datasheet"], ["memory"]),
        ([], [], ["memory", "compute"]),
    ],
)
def test_tables_of_a_datasheet_without_sources(
    memory: list[str], compute: list[str], lacking: list[str], plugins: Plugins
) -> None:
    text = (
        'servelint = 1\n[hardware.datasheet]\nid = "acme/a1"\nname = "Acme A1"\n[hardware.datasheet.memory]\n'
        f"published_bytes = 96_000_000_000\nbandwidth_bytes_per_s = 4e12\nsources = {json.dumps(memory)}\n"
        "[hardware.datasheet.compute]\ndense_flops = { bf16 = 500e12 }\n"
        f"sources = {json.dumps(compute)}\n{MODEL}"
    )
    found = findings("HW004", text, plugins)
    assert [f.path for f in found] == [("hardware", "datasheet", name) for name in lacking[:1]]
    names = ", ".join(f"hardware.datasheet.{name}" for name in lacking)
    assert all(f" rests on {names}, and no source is given" in f.message for f in found)


# HW005


def test_a_claim_with_a_rate_of_another_precision_is_told_once(plugins: Plugins) -> None:
    fp4, fp8 = ('dense_flops = "18 PFLOP/s", precision = "fp8"', 'dense_flops = "4500 TFLOP/s", precision = "fp8"')
    part = on("nvidia/b200-sxm6-180gb")
    other, deployed = findings("HW005", part + MODEL + claim(fp4) + claim(fp8), plugins)
    assert other.path == ("claim", 0, "assumes", "dense_flops")
    assert "18 PFLOP/s is the fp4 rate of" in other.message
    assert deployed.path == ("claim", 1, "assumes", "precision")
    assert "the deployment multiplies in bf16, at most at 2.25 PFLOP/s" in deployed.message


def test_an_override_with_a_rate_of_another_precision_is_told_once(plugins: Plugins) -> None:
    def override(rate: str) -> str:
        source = 'source = "sheet"'
        return (
            f'{on("nvidia/b200-sxm6-180gb")}[hardware.override]\ndense_flops = {{ fp8 = "{rate}" }}\n{source}\n{MODEL}'
        )

    assert "is the fp4 rate of" in only("HW005", override("18 PFLOP/s"), plugins).message
    assert "the fp8 rate changes nothing" in only("HW005", override("4200 TFLOP/s"), plugins).message


@pytest.mark.parametrize(
    ("precision", "rate", "severity"),
    [
        # FP4 at the rate of FP8 is no fallback to 16 bit.
        ("fp4", "4500 TFLOP/s", Severity.INFO),
        ("fp4", "2250 TFLOP/s", None),
        ("bf16", "9 PFLOP/s", Severity.WARNING),
        ("bf16", "1100 TFLOP/s", Severity.INFO),
    ],
)
def test_a_rate_that_is_too_low_is_advice(
    precision: str, rate: str, severity: Severity | None, plugins: Plugins
) -> None:
    part = on("nvidia/b200-sxm6-180gb")
    rates = f'bf16 = "2250 TFLOP/s", {precision} = "{rate}"' if precision != "bf16" else f'bf16 = "{rate}"'
    text = f'{part}[hardware.override]\ndense_flops = {{ {rates} }}\nsource = "sheet"\n{MODEL}'
    assert [f.severity for f in findings("HW005", text, plugins)] == ([] if severity is None else [severity])


def test_what_decides_the_precision_is_named_alone(plugins: Plugins) -> None:
    fp8 = claim('dense_flops = "1979 TFLOP/s", precision = "fp8"')
    plain = only("HW005", H100 + MODEL + fp8, plugins)
    assert [r.path for r in plain.related] == [("model", "id")]
    told = only("HW005", f'{H100}{MODEL}[policy.quantization]\nweights = "int4"\n{fp8}', plugins)
    assert [r.path for r in told.related] == [("policy", "quantization", "weights")]


# HW006

V100 = on("nvidia/v100-sxm2-32gb")
OLDER = '[engine]\nname = "vllm"\nversion = "0.9.2"\n'


@pytest.mark.parametrize(("model", "speaks"), [("Qwen/Qwen2.5-1.5B", True), ("meta-llama/Llama-2-7b-hf", False)])
def test_a_checkpoint_in_fp16_runs_where_bf16_is_missing(model: str, speaks: bool, plugins: Plugins) -> None:
    text = f'{V100}[model]\nid = "{model}"\nmax_model_len = 2048\n{OLDER}'
    assert bool(findings("HW006", text, plugins)) is speaks
    assert findings("HW006", f'{text}args = "--dtype half"\n', plugins) == []


@pytest.mark.parametrize(
    ("script", "speaks"),
    [
        ("vllm serve Qwen/Qwen2.5-1.5B --max-model-len 2048\n", True),
        ("vllm serve Qwen/Qwen2.5-1.5B --max-model-len 2048 --dtype half\n", False),
        # Nothing is known of what was not read.
        (None, False),
    ],
)
def test_a_launch_file_says_the_16_bit_format(script: str | None, speaks: bool, plugins: Plugins) -> None:
    text = f'{V100}[model]\nid = "Qwen/Qwen2.5-1.5B"\nmax_model_len = 2048\n{OLDER}args_from = {{ file = "run.sh" }}\n'
    files = () if script is None else (("run.sh", script),)
    assert bool(findings("HW006", text, plugins, files)) is speaks


def test_a_refusal_of_the_format_is_enough_and_one_of_something_else_is_not(plugins: Plugins) -> None:
    a100 = on("nvidia/a100-sxm4-80gb")
    engine = '[engine]\nname = "vllm"\nversion = "0.11.0"\n'
    batching = "[policy.batching]\nmax_batched_tokens = 16\nmax_sequences = 32\n"
    weights = '[policy.quantization]\nweights = "fp8"\n'
    review = review_of(a100 + MODEL + engine + batching + weights, plugins)
    assert [path[-1] for path, _, _ in review.refusals] == ["max_batched_tokens"]
    assert findings("HW006", a100 + MODEL + engine + batching + weights, plugins)
    fp4 = on("nvidia/v100-sxm2-32gb") + MODEL + engine + weights + 'activations = "fp16"\n'
    assert [path[-1] for path, _, _ in review_of(fp4, plugins).refusals] == ["weights"]
    bf16 = V100 + MODEL + engine + '[policy.quantization]\nweights = "fp8"\n'
    assert {path[-1] for path, _, _ in review_of(bf16, plugins).refusals} & {"weights", "activations"}
    assert findings("HW006", bf16, plugins) == []


# HW007


@pytest.mark.parametrize(
    ("network", "words"),
    [
        # Eight ports of 400 Gbit/s, 50 GB/s one way, and the 450 GB/s of NVLink.
        ('bandwidth = "800 Gbit/s"', "100 GB/s is what the network of aws/p5.48xlarge carries in both directions"),
        ('bandwidth = "6400 Gbit/s", per = "node"', "800 GB/s is what the network of aws/p5.48xlarge carries in both"),
        ('bandwidth = "900 GB/s"', "900 GB/s is what NVLink4 + NVSwitch carries in both directions"),
        ('bandwidth = "900 GB/s", per = "node"', None),
        ('bandwidth = "3200 Gbit/s", per = "node"', None),
        ('bandwidth = "6400 Gbit/s"', None),
        ('bandwidth = "812 Gbit/s"', None),
    ],
)
def test_a_network_of_a_device_and_of_a_node(network: str, words: str | None, plugins: Plugins) -> None:
    hardware = f'servelint = 1\n[hardware]\ninstance = "aws/p5.48xlarge"\nnetwork = {{ {network} }}\n'
    found = findings("HW007", hardware + MODEL, plugins)
    assert bool(found) is (words is not None)
    for finding in found:
        assert words is not None
        assert finding.message.startswith(words)
        assert [r.path for r in finding.related] == [("hardware", "instance")]


# HW008


@pytest.mark.parametrize(
    ("memory", "key"),
    [
        # 24 GB on the box, of which the runtime sees 23.6.
        ("published_bytes = 24_000_000_000", "published_bytes"),
        ("published_bytes = 24_000_000_000\nruntime_visible_bytes = 23_600_000_000", None),
        ("published_bytes = 23_600_000_000\nruntime_visible_bytes = 24_000_000_000", "runtime_visible_bytes"),
        ("published_bytes = 24_000_000_000\ndriver_total_bytes = 24_000_000_000", "driver_total_bytes"),
    ],
)
def test_memory_that_a_datasheet_plans_with(memory: str, key: str | None, plugins: Plugins) -> None:
    text = (
        'servelint = 1\n[hardware.datasheet]\nid = "nvidia/l4"\ncompute = { dense_flops = { bf16 = 121e12 } }\n'
        f"[hardware.datasheet.memory]\nbandwidth_bytes_per_s = 300e9\n{memory}\n{MODEL}"
    )
    found = findings("HW008", text, plugins)
    assert [f.path for f in found] == ([] if key is None else [("hardware", "datasheet", "memory", key)])
    assert all([r.path for r in f.related] == [("hardware", "datasheet", "id")] for f in found)


# HW009


@pytest.mark.parametrize(
    ("part", "hardware", "counted"),
    [
        ("nvidia/h100-sxm5-80gb", "devices = 8\ndevices_per_node = 4\n", [4]),
        # A node is no larger than the deployment.
        ("nvidia/h100-sxm5-80gb", "devices = 2\ndevices_per_node = 8\n", [2]),
        ("nvidia/h100-sxm5-80gb", "devices = 2\nreplicas = 3\ndevices_per_node = 8\n", [6]),
        ("nvidia/h100-sxm5-80gb", "devices = 2\nreplicas = 5\ndevices_per_node = 8\n", [8]),
        # Six over four nodes: two in the fullest.
        ("nvidia/h100-sxm5-80gb", "devices = 6\nnodes = 4\n", [2]),
        ("nvidia/h100-sxm5-80gb", "devices = 4\n", [4]),
        ("nvidia/h100-sxm5-80gb", "devices = 16\n", [8]),
        # The link joins several nodes, of which nothing says how many devices they have.
        ("nvidia/gb200-nvl72-186gb", "devices = 8\n", []),
        ("nvidia/gb200-nvl72-186gb", "devices = 8\ndevices_per_node = 4\n", [4]),
    ],
)
def test_devices_that_draw_from_a_node_and_a_rack(
    part: str, hardware: str, counted: list[int], plugins: Plugins
) -> None:
    def told(power: str) -> list[int]:
        found = findings("HW009", f"{on(part)}{hardware}power = {{ {power} }}\n{MODEL}", plugins)
        return [int(f.message.split()[0]) for f in found]

    total = math.prod(int(n) for n in re.findall(r"(?:devices|replicas) = (\d+)", hardware))
    assert told('per_node = "100 W"') == counted
    assert told('per_rack = "100 W", nodes_per_rack = 3') == [min(3 * n, total) for n in counted]
    assert told('per_rack = "100 W"') == []


def test_a_budget_for_devices_whose_power_nothing_says(plugins: Plugins) -> None:
    silent = next(part for part in map(plugins.accelerators.get, plugins.accelerators.ids()) if part.power_w is None)
    power = 'power = { per_node = "100 W" }\n'
    found = only("HW009", f"{on(silent.id)}devices = 1\ndevices_per_node = 1\n{power}{MODEL}", plugins)
    assert (found.severity, found.path) == (Severity.INFO, ("hardware", "power", "per_node"))
    assert found.message == f"a budget of 100 W is declared, and nothing says what {silent.name} draws"


def test_a_budget_that_is_drawn_to_the_watt_is_not_exceeded(plugins: Plugins) -> None:
    """Eight devices of 700 W."""

    def budget(watts: str) -> Finding:
        power = f'power = {{ per_node = "{watts}", per_device = "700 W" }}\n'
        return only("HW009", f"{H100}devices = 8\n{power}{MODEL}", plugins)

    whole, less = budget("5600 W"), budget("5599 W")
    assert (whole.severity, less.severity) == (Severity.INFO, Severity.WARNING)
    assert "draw 5.6 kW at full load, which leaves 0% of the node's 5.6 kW" in whole.message
    assert "1 W more than the node may" in less.message
    # What the spec says of a device goes before the part.
    assert [r.path for r in whole.related] == [("hardware", "power", "per_device")]


# HW010


@pytest.mark.parametrize(
    ("part", "rate"),
    [
        # Twice the 10 PFLOP/s that other documents give the part is their sparse rate, the datasheet's is 18 PFLOP/s.
        ("nvidia/b200-sxm6-180gb", 'fp4 = "20 PFLOP/s"'),
        # Twice 362.05 TFLOP/s, beside a sparse rate that is printed as 733.
        ("nvidia/l40s", 'bf16 = "724.1 TFLOP/s"'),
    ],
)
def test_twice_a_dense_rate_is_a_sparse_one(part: str, rate: str, plugins: Plugins) -> None:
    override = f'[hardware.override]\ndense_flops = {{ {rate} }}\nsource = "launch"\n'
    assert findings("HW010", f"{on(part)}{override}{MODEL}", plugins) == []


@pytest.mark.parametrize(
    ("part", "figures", "code"),
    [
        # Twice the memory of this variant is that of the other.
        ("nvidia/a100-sxm4-40gb", 'memory = "80 GB"', "HW002"),
        # Four times the rate in bf16 is that in fp4.
        ("nvidia/b200-sxm6-180gb", 'dense_flops = { bf16 = "9 PFLOP/s" }', "HW005"),
    ],
)
def test_a_multiple_that_is_another_figure_of_the_family_is_that(
    part: str, figures: str, code: str, plugins: Plugins
) -> None:
    text = f'{on(part)}[hardware.override]\n{figures}\nsource = "sheet"\n{MODEL}'
    assert len(findings(code, text, plugins)) == 1
    assert findings("HW010", text, plugins) == []


@pytest.mark.parametrize(("devices", "factor", "speaks"), [(3, 3, True), (1, 3, False), (3, 5, False), (5, 5, True)])
def test_figures_of_the_whole_replica(devices: int, factor: int, speaks: bool, plugins: Plugins) -> None:
    override = f'[hardware.override]\nmemory_bandwidth = "{factor * 3.35:.2f} TB/s"\nsource = "sum"\n'
    layers = f"[policy.parallelism]\ntensor = 1\ndata = {devices}\n"
    found = findings("HW010", f"{H100}devices = {devices}\n{override}{MODEL}{layers}", plugins)
    assert [f"of {factor} x NVIDIA H100 SXM5 80GB, a replica" in f.message for f in found] == [True] * speaks


MI250X = on("amd/mi250x-oam-128gb")


@pytest.mark.parametrize(
    ("figures", "places"),
    [
        # Memory and bandwidth of one die, and rates of the package.
        ('memory = "64 GiB"\nmemory_bandwidth = "1.6384 TB/s"\n', ["memory_bandwidth"]),
        ('memory = "64 GiB"\ndense_flops = { bf16 = "191.5 TFLOP/s" }\n', ["bf16"]),
        ('memory_bandwidth = "1.6384 TB/s"\ndense_flops = { bf16 = "191.5 TFLOP/s" }\n', ["memory_bandwidth", "bf16"]),
        ('memory = "64 GiB"\nmemory_bandwidth = "1.6384 TB/s"\ndense_flops = { bf16 = "191.5 TFLOP/s" }\n', []),
        # A slice.
        ('memory = "64 GiB"\n', []),
    ],
)
def test_a_die_is_a_device_with_all_of_its_figures(figures: str, places: list[str], plugins: Plugins) -> None:
    text = f'{MI250X}[hardware.override]\n{figures}source = "one die"\n{MODEL}'
    assert [f.path[-1] for f in findings("HW010", text, plugins)] == places


@pytest.mark.parametrize(
    ("args", "key"),
    [
        ("--tensor-parallel-size 1 --pipeline-parallel-size 2", "pipeline"),
        ("--tensor-parallel-size 2 --pipeline-parallel-size 1", "tensor"),
        ("--tensor-parallel-size 1", None),
    ],
)
def test_ranks_are_told_of_the_degree_that_makes_them(args: str, key: str | None, plugins: Plugins) -> None:
    engine = f'[engine]\nname = "vllm"\nversion = "0.11"\nargs = "{args}"\n'
    found = findings("HW010", MI250X + MODEL + engine, plugins)
    assert [f.path for f in found] == ([] if key is None else [("policy", "parallelism", key)])


def test_ranks_take_whole_parts(plugins: Plugins) -> None:
    engine = '[engine]\nname = "vllm"\nversion = "0.11"\nargs = "--pipeline-parallel-size 3"\n'
    found = only("HW010", MI250X + MODEL + engine, plugins)
    assert "start 3 ranks, and a framework sees 2 devices of each AMD" in found.message
    assert ": 2 of them, not 3, with " in found.message
    assert found.equation == "3 ranks / 2 a part = 1.5 parts"
    # The spec itself says how many parts there are.
    assert findings("HW010", f"{MI250X}devices = 3\n{MODEL}{engine}", plugins) == []


def test_the_part_that_a_claim_names_is_the_part(plugins: Plugins) -> None:
    def related(assumes: str) -> list[Any]:
        return [r.path for r in only("HW010", H100 + MODEL + claim(assumes), plugins).related]

    rate = 'memory_bandwidth = "26.8 TB/s"'
    assert related(f'accelerator = "nvidia/h100-sxm5-80gb", {rate}') == [("claim", 0, "assumes", "accelerator")]
    assert related(rate) == [("hardware", "accelerator")]


# QNT001

B200 = on("nvidia/b200-sxm6-180gb")


@pytest.mark.parametrize(
    ("table", "key"),
    [
        ('weights = "fp8"\nkv_cache = "nvfp4"\n', "weights"),
        ('kv_cache = "nvfp4"\n', "kv_cache"),
        ('kv_cache = "fp8"\n', None),
    ],
)
def test_weights_go_before_the_cache_and_the_cache_counts_below_eight_bits(
    table: str, key: str | None, plugins: Plugins
) -> None:
    found = findings("QNT001", f"{B200}{MODEL}[policy.quantization]\n{table}", plugins)
    assert [f.path for f in found] == ([] if key is None else [("policy", "quantization", key)])


# QNT002


def faster(value: float, at: str, table: str = 'weights = "int4-g128"', hardware: str = H100) -> str:
    quantization = f"[policy.quantization]\n{table}\n"
    return f'{hardware}{MODEL}{quantization}[[claim]]\nmetric = "speedup"\nvalue = {value}\n{at}\n'


def test_a_speed_up_of_a_deployment_that_speculates_may_be_that_of_the_draft(plugins: Plugins) -> None:
    text = faster(4.0, "at = { batch = 32, context = 4000 }")
    assert findings("QNT002", text, plugins)
    drafts = '[policy.speculation]\nmethod = "ngram"\ntokens = 1\nacceptance = 0.5\n'
    assert findings("QNT002", text + drafts, plugins) == []


@pytest.mark.parametrize(("devices", "value", "speaks"), [(1, 2.0, True), (2, 2.0, False), (2, 2.1, True)])
def test_as_many_times_as_there_are_devices_is_let_pass(
    devices: int, value: float, speaks: bool, plugins: Plugins
) -> None:
    text = faster(value, "at = { batch = 32, context = 4000 }", hardware=f"{H100}devices = {devices}\n")
    assert bool(findings("QNT002", text, plugins)) is speaks


def test_a_claim_of_no_load_is_judged_at_the_best_of_those_that_are_admitted(plugins: Plugins) -> None:
    """An FP8 cache gains the more, the more sequences read it."""
    admits = "[policy.batching]\nmax_sequences = 8\nmax_batched_tokens = 2048\n"

    def judged(at: str) -> Finding:
        return only("QNT002", faster(6.0, f"at = {{ {at}context = 4000 }}", 'kv_cache = "fp8"') + admits, plugins)

    limits = {}
    for batch in (1, 2, 4, 8):
        found = judged(f"batch = {batch}, ")
        match = re.search(r"at most ([\d.]+)x", found.message)
        assert match is not None
        limits[batch] = float(match[1])
    assert sorted(limits, key=lambda batch: limits[batch]) == [1, 2, 4, 8]
    most, anywhere = judged("batch = 8, "), judged("")
    assert anywhere.message == f"{most.message}, where it is largest"
    # Memory would hold more of them, and none of them are let in.
    assert anywhere.equation == most.equation
    assert "memory then holds more" not in anywhere.equation


# QNT003


def test_a_format_that_only_lacks_its_path_was_not_chosen_for_its_bytes(plugins: Plugins) -> None:
    text = plugins.rule("QNT003").failing[0].spec
    ampere = text.replace("nvidia/h100-sxm5-80gb", "nvidia/a100-sxm4-80gb").replace("2 req/s", "0.4 req/s")
    assert findings("QNT003", ampere, plugins)
    assert findings("QNT003", ampere.replace("int4-g128", "fp8"), plugins) == []


@pytest.mark.parametrize(("sequences", "speaks"), [(16, True), (15, False)])
def test_room_for_twice_the_sequences_is_enough(sequences: int, speaks: bool, plugins: Plugins) -> None:
    """Eight sequences of 1,001 tokens decode, and the cache is as large whatever the weights are."""
    text = (
        plugins.rule("QNT003")
        .failing[0]
        .spec.replace("12000", "1000")
        .replace("output_tokens = 10", "output_tokens = 1")
    ).replace('rate = "2 req/s"', "concurrency = 8")
    review = review_of(text, plugins)
    assert review.operating_point is not None
    assert review.memory is not None
    assert review.operating_point.batch == pytest.approx(8.0)
    room = int(review.memory.sequence_bytes(1001.0, 0) * (sequences + 0.5))
    found = findings("QNT003", f'{text}[policy.kv_cache]\nmemory_bytes = "{room} B"\n', plugins)
    assert bool(found) is speaks


# QNT004


def layout(model: str, weights: str, tensor: int, more: str = "", devices: int = 0) -> str:
    table = f'[policy.quantization]\nweights = "{weights}"\n' if weights else ""
    return (
        f'{on("nvidia/h200-sxm5-141gb")}devices = {devices or tensor}\n[model]\nid = "{model}"\nmax_model_len = 2048\n'
        f"{table}[policy.parallelism]\ntensor = {tensor}\n{more}"
    )


@pytest.mark.parametrize(
    ("text", "cut", "degrees"),
    [
        # 32 heads of 64: 2,048 a row of the output projection, half a group on each of 32 devices.
        (layout("meta-llama/Llama-3.2-1B", "int4-g128", 32), "the attention output width of 2,048 into 64",
         "1, 2, 4, 8, 16"),
        # Eight KV heads of 64, half a block each; on 16 devices two hold the same head, which is no whole block either.
        (layout("meta-llama/Llama-3.2-1B", "fp8-block", 8), "the key width of 512 into 64", "1, 2, 4"),
        (layout("meta-llama/Llama-3.2-1B", "fp8-block", 16), "the key width of 512 into 64", "1, 2, 4"),
        # 40 heads divide by 5, 8 and 10; 13,824 = 108 x 128 by none of them.
        (layout("meta-llama/Llama-2-13b-hf", "int4-g128", 8), "the MLP width of 13,824 into 1,728", "1, 2, 4"),
        # Every matrix is cut wrongly, and three of them are told.
        (layout("deepseek-ai/DeepSeek-V2-Lite", "fp8-block", 32),
         "the attention output width of 2,048 into 64 and the MLP width of 10,944 into 342 and the expert width of "
         "1,408 into 44", "1"),
        # Two of four groups of sixteen share an expert: eight devices, and four would do without the groups.
        (layout("Qwen/Qwen3-235B-A22B-FP8", "", 2, "data = 8\nexpert = 2\n", 16), "the expert width of 1,536 into 192",
         "1, 2, 4"),
        (layout("Qwen/Qwen3-235B-A22B-FP8", "", 8, "expert = 2\n"), None, ""),
        # Nothing is cut on one device: 10,944 is 85 groups and a half.
        (layout("deepseek-ai/DeepSeek-V2-Lite", "int4-g128", 1), None, ""),
        # What does not divide at all is another rule's.
        (layout("meta-llama/Llama-2-13b-hf", "int4-g128", 5), None, ""),
    ],
)  # fmt: skip
def test_widths_that_are_cut_inside_a_group(text: str, cut: str | None, degrees: str, plugins: Plugins) -> None:
    found = findings("QNT004", text, plugins)
    assert bool(found) is (cut is not None)
    for finding in found:
        assert f" cuts {cut}, which is no whole number of" in finding.message
        match = re.search(r"keep groups whole: ([\d, ]+)", finding.help)
        assert match is not None
        assert match[1] == degrees


# QNT005


@pytest.mark.parametrize(
    ("declared", "parameters"),
    [
        ("7 GB", "14e9"),
        ("7.2 GB", None),
        ("7.385 GB", "14.77e9"),
        ("7.5 GB", "15e9"),
        ("7.6 GB", None),
        ("15 GB", None),
    ],
)
def test_sizes_that_are_parameters_times_bits(declared: str, parameters: str | None, plugins: Plugins) -> None:
    """14.77 thousand million parameters in 4 bits, and the round numbers on either side of them."""
    text = (
        f'{H100}[model]\nid = "Qwen/Qwen2.5-14B"\nmax_model_len = 4096\nweights_bytes = "{declared}"\n'
        '[policy.quantization]\nweights = "int4-g128"\n'
    )
    found = findings("QNT005", text, plugins)
    assert [f" is {parameters} parameters x 4 bits / 8;" in f.message for f in found] == [True] * (
        parameters is not None
    )


# QNT006


def cache(part: str, version: str, backend: str = "", model: str = "meta-llama/Llama-2-7b-hf") -> str:
    kernels = f'attention_backend = "{backend}"\n' if backend else ""
    release = f'version = "{version}"\n' if version else ""
    return (
        f'{on(part)}[model]\nid = "{model}"\nmax_model_len = 2048\n[engine]\nname = "vllm"\n{release}{kernels}'
        '[policy.quantization]\nkv_cache = "fp8"\n'
    )


AMPERE, VOLTA = "nvidia/a100-sxm4-80gb", "nvidia/v100-sxm2-32gb"


@pytest.mark.parametrize(
    ("part", "version", "backend", "severity"),
    [
        # 0.11.0 and 0.11.1 take Triton.
        (AMPERE, "0.10.2", "", None),
        (AMPERE, "0.11.0", "", Severity.ERROR),
        (AMPERE, "0.11.1", "", Severity.ERROR),
        (AMPERE, "0.11.2", "", None),
        # Its kernels were read from 0.11, and are known not to compile up to 0.19.
        (AMPERE, "0.10.2", "TRITON_ATTN", Severity.WARNING),
        (AMPERE, "0.11.0", "TRITON_ATTN", Severity.ERROR),
        (AMPERE, "0.19.1", "TRITON_ATTN", Severity.ERROR),
        (AMPERE, "0.20.0", "TRITON_ATTN", Severity.WARNING),
        # On Volta nothing reads it in any release that was read.
        (VOLTA, "0.10.2", "", Severity.WARNING),
        (VOLTA, "0.20.0", "", Severity.ERROR),
        (VOLTA, "0.26.0", "", Severity.ERROR),
        (VOLTA, "0.27.0", "", Severity.WARNING),
        # FlashAttention 3 is for 9.0 alone: neither 8.9 nor 10.0 has it.
        ("nvidia/h100-sxm5-80gb", "0.11.0", "FLASH_ATTN", None),
        ("nvidia/l40s", "0.11.0", "FLASH_ATTN", Severity.WARNING),
        ("nvidia/b200-sxm6-180gb", "", "FLASH_ATTN", Severity.WARNING),
        # The release refuses it itself.
        ("nvidia/l40s", "0.11.2", "FLASH_ATTN", None),
    ],
)
def test_releases_that_read_an_fp8_cache(
    part: str, version: str, backend: str, severity: Severity | None, plugins: Plugins
) -> None:
    found = findings("QNT006", cache(part, version, backend), plugins)
    assert [f.severity for f in found] == ([] if severity is None else [severity])


@pytest.mark.parametrize(("version", "speaks"), [("0.20", False), ("0.20.2", False), ("0.21", True), ("0.21.0", True)])
def test_the_layout_of_sparse_attention_was_taken_for_any_fp8(version: str, speaks: bool, plugins: Plugins) -> None:
    text = (
        f'{on("nvidia/h200-sxm5-141gb")}[model]\nid = "deepseek-ai/DeepSeek-V3.2"\nmax_model_len = 8192\n'
        f'[engine]\nname = "vllm"\nversion = "{version}"\n[policy.parallelism]\ntensor = 8\n'
        '[policy.quantization]\nkv_cache = "fp8_e4m3"\n'
    )
    assert bool(findings("QNT006", text, plugins)) is speaks


# QNT007


@pytest.mark.parametrize(
    ("part", "model", "native"),
    [
        # Twice 312 TFLOP/s, and four times 989.4.
        ("nvidia/a100-sxm4-80gb", "Qwen/Qwen3-8B-FP8", 'fp8 = "624 TFLOP/s"'),
        ("nvidia/h100-sxm5-80gb", "nvidia/Qwen3-32B-NVFP4", 'fp4 = "3957.6 TFLOP/s"'),
    ],
)
def test_the_price_of_a_fallback_is_that_over_a_native_path(
    part: str, model: str, native: str, plugins: Plugins
) -> None:
    text = plugins.rule("QNT007").failing[0].spec.replace("nvidia/a100-sxm4-80gb", part)
    text = text.replace("Qwen/Qwen3-8B-FP8", model).replace("2 req/s", "0.5 req/s")
    found, review = only("QNT007", text, plugins), review_of(text, plugins)
    override = f'[hardware.override]\ndense_flops = {{ {native} }}\nsource = "as if"\n[model]'
    other = review_of(text.replace("[model]", override), plugins)
    assert review.operating_point is not None
    assert other.composition is not None
    point, service = review.operating_point, review.operating_point.service
    then = Service(other.composition, service.mix, open_loop=service.open_loop).point(point.batch)
    assert f" = {busy_s(point) / busy_s(then):.2f}x, the dequantization not counted" in found.equation


@pytest.mark.parametrize(("part", "named"), [("nvidia/a10", True), ("nvidia/a10g", False)])
def test_a_format_is_advised_where_its_rate_is_known(part: str, named: bool, plugins: Plugins) -> None:
    """The A10G multiplies int8, and nothing says how fast."""
    text = plugins.rule("QNT007").failing[0].spec.replace("nvidia/a100-sxm4-80gb", part).replace("2 req/s", "0.5 req/s")
    found = only("QNT007", text, plugins)
    assert ("a checkpoint in int8, which it multiplies natively" in found.help) is named


@pytest.mark.parametrize("table", ['weights = "fp8"', 'activations = "bf16"'])
def test_a_format_that_the_spec_declares_is_no_fallback_of_the_checkpoint(table: str, plugins: Plugins) -> None:
    text = plugins.rule("QNT007").failing[0].spec
    assert findings("QNT007", text, plugins)
    assert findings("QNT007", f"{text}[policy.quantization]\n{table}\n", plugins) == []


@pytest.mark.parametrize(
    ("part", "speaks"),
    [("nvidia/h100-sxm5-80gb", False), ("nvidia/b200-sxm6-180gb", False), ("nvidia/l40s", True),
     ("nvidia/rtx-5090", True)],
)  # fmt: skip
def test_flash_attention_has_sinks_on_9_and_10(part: str, speaks: bool, plugins: Plugins) -> None:
    text = plugins.rule("QNT007").failing[1].spec.replace("nvidia/rtx-4090", part)
    assert bool(findings("QNT007", text, plugins)) is speaks


def test_a_refusal_of_something_else_does_not_hide_a_backend_without_sinks(plugins: Plugins) -> None:
    text = plugins.rule("QNT007").failing[1].spec
    batching = "[policy.batching]\nmax_batched_tokens = 16\nmax_sequences = 32\n"
    assert [path[-1] for path, _, _ in review_of(text + batching, plugins).refusals] == ["max_batched_tokens"]
    assert len(findings("QNT007", text + batching, plugins)) == 1
    refused = text.replace("0.11.0", "0.11.2") + '[policy.quantization]\nkv_cache = "fp8"\n'
    assert ("engine", "attention_backend") in [path for path, _, _ in review_of(refused, plugins).refusals]
    assert findings("QNT007", refused, plugins) == []


# What they share


@pytest.mark.parametrize(
    ("table", "share"),
    [
        ('weights = "int4-g128"\n', 1.0),
        # Of a layer 176 million parameters are the MLP's and 42 million attention's.
        ('weights = "int4-g128"\ncovers = ["mlp"]\n', 3 * 14336 / (3 * 14336 + 2 * 4096 + 2 * 1024)),
        ('weights = "int4-g128"\ncovers = ["attention"]\n', None),
        ('weights = "fp8"\nactivations = "bf16"\n', 1.0),
        ('weights = "fp8"\n', None),
        ('weights = "bf16"\n', None),
    ],
)
def test_weights_that_multiply_in_16_bit(table: str, share: float | None, plugins: Plugins) -> None:
    review = review_of(f"{H100}{MODEL}[policy.quantization]\n{table}", plugins)
    assert review.composition is not None
    found = dequantized(review.composition)
    assert (found.share if found is not None else None) == (None if share is None else pytest.approx(share))


def test_a_format_is_advised_as_an_edit_where_the_spec_says_it_itself(plugins: Plugins) -> None:
    text = plugins.rule("QNT003").failing[0].spec
    said = only("QNT003", text, plugins)
    assert said.help.startswith('policy.quantization.weights = "fp8" gives 1.64x the speed of bf16')
    assert said.fix is not None
    table = text[text.index("[policy.quantization]") : text.index("[policy.batching]")]
    engine = '[engine]\nname = "vllm"\nversion = "0.11.0"\nargs = "--quantization gptq"\n'
    launched = only("QNT003", text.replace(table, engine), plugins)
    assert launched.path == said.path
    assert launched.help.startswith("fp8 weights give 1.64x the speed of bf16")


@pytest.mark.parametrize(
    ("part", "model", "name"),
    [
        (AMPERE, "meta-llama/Llama-3.1-8B", "bf16"),
        (AMPERE, "meta-llama/Llama-2-7b-hf", "fp16"),
        (VOLTA, "meta-llama/Llama-3.1-8B", "fp16"),
        # Stored in fp32, which the part has a rate for.
        (VOLTA, "openai-community/gpt2", "fp16"),
        (AMPERE, "openai-community/gpt2", "bf16"),
    ],
)
def test_the_16_bit_format_of_a_checkpoint(part: str, model: str, name: str, plugins: Plugins) -> None:
    assert wide_name(review_of(f'{on(part)}[model]\nid = "{model}"\nmax_model_len = 1024\n', plugins)) == name


@pytest.mark.parametrize(("batch", "working"), [(8.0, 0.25 * 0.04 + 0.75 * 0.02), (0.5, 0.25 * 0.04 + 0.75 * 0.01)])
def test_the_time_of_a_request_is_that_of_the_steps_that_work(batch: float, working: float) -> None:
    """Below one sequence there is none in some of the steps."""
    point: Any = SimpleNamespace(
        batch=batch, mixed_share=0.25, average_mixed_s=0.04, plain_s=0.02, requests_per_step=0.1
    )
    assert busy_s(point) == pytest.approx(working / 0.1)
