"""Disaggregation: pools on their own devices, and the KV transfer between them."""

from __future__ import annotations

from pathlib import Path

import pytest

from servelint.config import Config
from servelint.distribution import Lengths
from servelint.errors import InfeasibleError, UnpricedError
from servelint.lint import Linter
from servelint.manager import Plugins
from servelint.rule import Severity
from servelint.scheduler import Disaggregation
from servelint.service import Mix, Service, kv_bytes
from servelint.shapes import decode, prefill
from servelint.testing import compose, review_of

H100 = "nvidia/h100-sxm5-80gb"


def spec(policy: str, model: str = "meta-llama/Llama-3.1-8B", hardware: str = "", more: str = "") -> str:
    return (
        f'[hardware]\naccelerator = "{H100}"\n{hardware}[model]\nid = "{model}"\n{more}'
        f"[policy.disaggregation]\n{policy}"
    )


def pools_of(text: str, plugins: Plugins) -> Disaggregation:
    found = compose(text, plugins).scheduler.disaggregation
    assert found is not None
    return found


def service(policy: str, plugins: Plugins, prompt: float = 4096.0) -> Service:
    mix = Mix("fixed", Lengths.fixed(prompt), Lengths.fixed(100))
    return Service(compose(spec(policy), plugins), mix, open_loop=False)


def test_the_whole_sequence_travels_once(plugins: Plugins) -> None:
    """131,072 B a token: 4,096 tokens are 536.9 MB, 10.74 ms at 50 GB/s."""
    pools = 'prefill = { devices = 1 }\ndecode = { devices = 1 }\ntransfer = { bandwidth = "50 GB/s", setup = "5 ms", '
    serial = service(pools + "layerwise = false }\n", plugins)
    assert kv_bytes(serial.composition, 4096) == 536_870_912
    found = serial.scheduler.disaggregation
    assert found is not None
    assert serial.transfer_s(4096, 0.08, found) == pytest.approx(0.005 + 536_870_912 / 50e9, rel=1e-12)


def test_layers_stream_behind_the_prefill(plugins: Plugins) -> None:
    """Only what prefill does not cover is exposed, and always the last of 32 layers."""
    for bandwidth, exposed in (("50 GB/s", 536_870_912 / 50e9 / 32), ("4 GB/s", 536_870_912 / 4e9 - 0.08 * 31 / 32)):
        transfer = f'{{ bandwidth = "{bandwidth}", setup = "5 ms" }}'
        text = f"prefill = {{ devices = 1 }}\ndecode = {{ devices = 1 }}\ntransfer = {transfer}\n"
        found = service(text, plugins)
        pools = found.scheduler.disaggregation
        assert pools is not None
        assert pools.layerwise
        assert found.transfer_s(4096, 0.08, pools) == pytest.approx(0.005 + exposed, rel=1e-12)


def test_an_mla_latent_travels_once_not_per_rank(plugins: Plugins) -> None:
    text = spec("prefill = { tensor = 8 }\ndecode = { tensor = 8 }\n", "deepseek-ai/DeepSeek-V3").replace(
        H100, "h200-sxm"
    )
    pools = pools_of(text, plugins)
    assert kv_bytes(pools.decode.composition, 1000) == 61 * 576 * 2 * 1000
    assert pools.decode.composition.memory.bytes_per_token() == 61 * 576 * 2


def test_transfer_is_part_of_ttft_and_not_of_itl(plugins: Plugins) -> None:
    pools = "prefill = {{ devices = 1 }}\ndecode = {{ devices = 1 }}\n"
    table = pools + 'transfer = {{ bandwidth = "{}", layerwise = false }}\n'
    fast, slow = (service(table.format(b), plugins).point(16.0) for b in ("100 GB/s", "1 GB/s"))
    assert slow.ttft("mean") - fast.ttft("mean") == pytest.approx(536_870_912 * (1 / 1e9 - 1 / 100e9), rel=1e-9)
    assert slow.itl("p99") == fast.itl("p99")


def test_prefill_does_not_delay_decoding(plugins: Plugins) -> None:
    apart = service("prefill = { devices = 1 }\ndecode = { devices = 1 }\n", plugins).point(32.0)
    assert apart.mixed_share == 0.0
    assert apart.itl("p999") == apart.plain_s
    mix = Mix("fixed", Lengths.fixed(4096), Lengths.fixed(100))
    together = Service(
        compose(f'[hardware]\naccelerator = "{H100}"\n[model]\nid = "meta-llama/Llama-3.1-8B"\n', plugins), mix
    )
    assert together.point(32.0).itl("p99") > apart.itl("p99")


def test_prompts_of_a_pool_share_its_steps(plugins: Plugins) -> None:
    """A step of 8,192 tokens holds eight prompts of 1,000, each of which takes an eighth of it, or one of 8,192."""
    pools = "prefill = { devices = 1 }\ndecode = { devices = 1 }\n"
    short, long = service(pools, plugins, 1000.0), service(pools, plugins, 8192.0)
    found = short.scheduler.disaggregation
    assert found is not None
    step = found.prefill.composition.pricer.estimate(prefill(1000.0, sequences=8))
    assert short.pool_share_s(1000.0) == pytest.approx(step / 8, rel=1e-12)
    assert short.pool_share_s(1000.0) < short.pool_prefill_s(1000.0)
    assert long.pool_share_s(8192.0) == long.pool_prefill_s(8192.0)
    point = short.point(8.0)
    assert point.prefill_utilization == pytest.approx(point.rate * step / 8, rel=1e-12)


@pytest.mark.parametrize(
    ("pool", "devices", "tensor", "replicas"),
    [
        ("{ devices = 4 }", 4, 4, 1),
        ("{ tensor = 2 }", 2, 2, 1),
        ("{ tensor = 2, pipeline = 2 }", 4, 2, 1),
        ("{ devices = 4, tensor = 4, replicas = 3 }", 4, 4, 3),
        ("{ devices = 8, tensor = 2 }", 2, 2, 4),
        ("{ devices = 8, tensor = 2, replicas = 4 }", 2, 2, 4),
        ("{ devices = 4, pipeline = 2 }", 4, 2, 1),
        ("{ replicas = 2 }", 8, 8, 2),
    ],
)
def test_what_a_pool_leaves_out(pool: str, devices: int, tensor: int, replicas: int, plugins: Plugins) -> None:
    hardware = "devices = 8\n"
    found = pools_of(spec(f"prefill = {{ devices = 8 }}\ndecode = {pool}\n", hardware=hardware), plugins).decode
    composition = found.composition
    assert composition.setup.topology.devices == devices
    assert composition.context.configs["parallelism"].t == tensor
    assert found.replicas == replicas


def test_pools_may_be_of_different_parts(plugins: Plugins) -> None:
    pools = pools_of(spec('prefill = { devices = 1 }\ndecode = { accelerator = "h200-sxm", devices = 1 }\n'), plugins)
    times = [float(p.composition.pricer.bound(decode(64.0, 4096.0))) for p in (pools.prefill, pools.decode)]
    # The bound is memory-bound on both: 4.8 against 3.35 TB/s, less one L2.
    assert times[0] / times[1] == pytest.approx(4.8 / 3.35, rel=1e-3)


def test_an_override_of_the_spec_holds_for_pools_of_the_same_part(plugins: Plugins) -> None:
    more = '[hardware.override]\nmemory_bandwidth = "3 TB/s"\nsource = "lab"\n'
    pools = pools_of(spec("prefill = { devices = 2 }\ndecode = { devices = 2 }\n", more=more), plugins)
    rates = {
        p.composition.setup.topology.accelerator.memory_bandwidth_bytes_per_s for p in (pools.prefill, pools.decode)
    }
    assert rates == {3e12}


def test_the_decode_pool_stands_for_a_deployment_without_devices(plugins: Plugins) -> None:
    for degrees in ("tensor = 8", "tensor = 4, pipeline = 2", "devices = 8"):
        text = spec(f"prefill = {{ tensor = 4 }}\ndecode = {{ {degrees} }}\n", "meta-llama/Llama-3.1-70B")
        assert review_of(text, plugins).devices == 8


@pytest.mark.parametrize(
    ("pool", "degrees"),
    [
        # What says nothing of its devices is laid out as the deployment.
        ("{ replicas = 2 }", (2, 2, 2)),
        ('{ accelerator = "h200-sxm" }', (2, 2, 2)),
        # Its own tensor and pipeline degrees stand for the deployment's; data ranks stay.
        ("{ devices = 8 }", (4, 1, 2)),
        ("{ tensor = 4 }", (4, 1, 2)),
    ],
)
def test_a_pool_is_laid_out_as_the_deployment_or_as_it_says(
    pool: str, degrees: tuple[int, ...], plugins: Plugins
) -> None:
    more = "[policy.parallelism]\ntensor = 2\npipeline = 2\ndata = 2\n"
    pools = pools_of(spec(f"prefill = {{ devices = 8 }}\ndecode = {pool}\n", more=more), plugins)
    shape = pools.decode.composition.context.configs["parallelism"]
    assert (shape.t, shape.p, shape.d) == degrees


def test_a_transfer_needs_no_setup_unless_one_is_declared(plugins: Plugins) -> None:
    pools = "prefill = { devices = 1 }\ndecode = { devices = 1 }\n"
    assert pools_of(spec(pools), plugins).setup_s == 0.0
    assert pools_of(spec(f'{pools}transfer = {{ setup = "5 ms" }}\n'), plugins).setup_s == 0.005


@pytest.mark.parametrize("pool", ["{ devices = 2, tensor = 4 }", "{ devices = 64, pipeline = 64 }"])
def test_a_pool_that_cannot_be_laid_out_is_named(pool: str, plugins: Plugins) -> None:
    with pytest.raises(InfeasibleError, match="the decode pool") as caught:
        compose(spec(f"prefill = {{ devices = 2 }}\ndecode = {pool}\n"), plugins)
    assert caught.value.path == ("policy", "disaggregation", "decode")


def test_a_transfer_without_bandwidth_takes_the_network_and_says_so(plugins: Plugins) -> None:
    network = 'network = { bandwidth = "400 Gbit/s", per = "device" }\n'
    review = review_of(spec("prefill = { devices = 2 }\ndecode = { devices = 4 }\n", hardware=network), plugins)
    assert review.scheduler is not None
    assert review.scheduler.disaggregation is not None
    assert review.setup is not None
    expected = 2 * 50e9 * review.setup.topology.efficiency.link
    assert review.scheduler.disaggregation.bytes_per_s == pytest.approx(expected)
    assumed = review.assumption("policy", "disaggregation", "transfer", "bandwidth")
    assert assumed is not None
    assert assumed.value == pytest.approx(expected)


@pytest.mark.parametrize("pool", ["prefill", "decode"])
def test_what_is_assumed_of_a_pools_hardware_is_assumed_of_that_pool(pool: str, plugins: Plugins) -> None:
    text = spec(f"{pool} = {{ devices = 16 }}\n", "meta-llama/Llama-3.1-70B", "devices = 8\n")
    review = review_of(text, plugins)
    assert review.composition is not None
    # Sixteen devices are two nodes, and nothing is said of the network between them.
    assumed = [a.path for a in review.assumptions if a.path[:3] == ("policy", "disaggregation", pool)]
    assert ("policy", "disaggregation", pool, "network", "bandwidth") in assumed


def test_an_empty_table_changes_nothing(plugins: Plugins) -> None:
    assert compose(spec(""), plugins).scheduler.disaggregation is None


@pytest.mark.parametrize(("side", "other"), [("prefill", "decode"), ("decode", "prefill")])
def test_a_pool_without_a_published_rate_is_unpriced_and_not_impossible(
    side: str, other: str, plugins: Plugins, tmp_path: Path
) -> None:
    pools = f'{side} = {{ accelerator = "apple/m4-max-40c", devices = 1 }}\n{other} = {{ devices = 1 }}\n'
    result = Linter(plugins, Config(), tmp_path).check("a.toml", "servelint = 1\n" + spec(pools))
    (found,) = (f.finding for f in result.findings)
    assert (found.code, found.severity) == ("SPEC005", Severity.INFO)
    assert found.path == ("policy", "disaggregation", side, "accelerator")
    assert f"the {side} pool: apple/m4-max-40c has no published compute rate for bf16" in found.message
    assert "hardware.override.dense_flops" not in found.help


def test_pools_of_a_deployment_without_a_published_rate_are_not_blamed(plugins: Plugins) -> None:
    text = spec("prefill = { devices = 1 }\ndecode = { devices = 1 }\n").replace(
        "nvidia/h100-sxm5-80gb", "apple/m4-max-40c"
    )
    assert "apple/m4-max-40c" in text
    review = review_of(text, plugins)
    assert review.composition is None
    assert isinstance(review.infeasible, UnpricedError)
    assert review.infeasible.path == ("hardware", "accelerator")
