"""Instance types of clouds and labels of manifests: the facts are reproduced, specs resolve, contradictions show."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import tomli

from servelint.config import Config
from servelint.errors import CatalogueError
from servelint.hardware import Instance
from servelint.instances import Instances, instance_sheets, label_tables, read_instance
from servelint.lineage import Source
from servelint.lint import Linter
from servelint.manager import Plugins
from servelint.plugin import API_VERSION, Entry, Labels, hookimpl
from servelint.review import Review
from servelint.spec.document import parse
from servelint.testing import check_instance

PLUGINS = Plugins()
ROOT = Path(__file__).parents[3]
DATA = ROOT / "plugins" / "servelint_plugins" / "instances"
FACTS = [json.loads(line) for line in (ROOT / "tests" / "data" / "facts" / "instances.jsonl").read_text().splitlines()]
GIB = 2**30
MODEL = '[model]\nid = "meta-llama/Llama-3.1-70B"\n'


def review(hardware: str, rest: str = MODEL) -> Review:
    document = parse("spec.toml", f"servelint = 1\n[hardware]\n{hardware}\n{rest}", PLUGINS.policies)
    assert not document.problems, document.problems
    return Review(document, PLUGINS, Path())


def findings(hardware: str, rest: str = MODEL) -> list[Any]:
    linter = Linter(PLUGINS, Config(), Path())
    result = linter.check("spec.toml", f"servelint = 1\n[hardware]\n{hardware}\n{rest}")
    return [located.finding for located in result.findings]


# Data


def test_there_are_enough_of_every_cloud() -> None:
    ids = PLUGINS.instances.ids()
    assert len(ids) >= 160
    least = {"aws": 50, "gcp": 35, "azure": 18, "oci": 20, "coreweave": 10, "lambda": 10}
    for cloud, count in least.items():
        assert sum(id_.startswith(f"{cloud}/") for id_ in ids) >= count, cloud


def test_the_facts_cover_what_they_did() -> None:
    assert sum("accelerator" in fact for fact in FACTS) >= 69
    assert sum("memory_mib" in fact for fact in FACTS) >= 56


@pytest.mark.parametrize(
    "fact", FACTS, ids=lambda fact: f"{fact['instance']}-{'label' if 'memory_mib' in fact else 'row'}"
)
def test_fact(fact: dict[str, Any]) -> None:
    found = PLUGINS.instances.get(fact["instance"])
    assert found.devices == fact["devices"]
    if "accelerator" in fact:
        assert found.accelerator == fact["accelerator"]
    if fact.get("gbit_per_s") is not None:
        assert found.network_bytes_per_s == fact["gbit_per_s"] * 125_000_000
    if "mbit_per_s" in fact:
        assert found.network_bytes_per_s == fact["mbit_per_s"] * 125_000
        assert found.host_memory_bytes == fact["memory_mib"] * 2**20


@pytest.mark.parametrize("name", PLUGINS.instances.ids())
def test_conforms(name: str) -> None:
    found = PLUGINS.instances.get(name)
    check_instance(found, plugins=PLUGINS)
    share = found.network_bytes_per_s_per_device
    if found.network_bytes_per_s is not None and share is not None:
        assert share * found.devices == pytest.approx(found.network_bytes_per_s)


@pytest.mark.parametrize("name", [n for n in PLUGINS.instances.ids() if PLUGINS.instances.get(n).rdma])
def test_a_node_with_rdma_has_room_for_it_on_its_bus(name: str) -> None:
    """No device sends faster than 800 Gbit/s, and none that has RDMA slower than a quarter of the first EFA's share."""
    share = PLUGINS.instances.get(name).network_bytes_per_s_per_device
    assert share is None or 5e9 <= share <= 100e9


def test_no_slices() -> None:
    ids = PLUGINS.instances.ids()
    for slice_of in ("aws/g6f.", "azure/Standard_NV6ads", "azure/Standard_NV18ads", "gcp/g4-standard-24"):
        assert not any(id_.startswith(slice_of) for id_ in ids), slice_of


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"devices": 0}, "expected a finite number of at least 1"),
        ({"devices": "8"}, "of the wrong type"),
        ({"devices": True}, "of the wrong type"),
        ({"rdma": 1}, "of the wrong type"),
        ({"network_bytes_per_s": float("inf")}, "expected a finite number"),
        ({"network_bytes_per_s": 5e9}, "network_bytes_per_s has no sources"),
        ({"network_byte_per_s": 5}, "unknown key 'network_byte_per_s'; did you mean 'network_bytes_per_s'?"),
        ({"accelerator": ""}, "accelerator is missing"),
        ({"gaps": [1]}, "gaps is not a list of texts"),
        ({"conflicts": [{}]}, "an entry of conflicts has no field"),
        ({"sources": {"accelerator": []}}, "accelerator has no sources"),
    ],
)
def test_bad_sheet(change: dict[str, Any], said: str) -> None:
    good = {
        "id": "acme/one",
        "accelerator": "nvidia/l4",
        "devices": 1,
        "sources": {"accelerator": ["a"], "devices": ["a"]},
    }
    assert read_instance(good, "one.toml").devices == 1
    with pytest.raises(CatalogueError, match=r"one\.toml") as caught:
        read_instance({**good, **change}, "one.toml")
    assert said in str(caught.value)


def test_a_sheet_in_the_wrong_place(tmp_path: Path) -> None:
    (tmp_path / "acme").mkdir()
    sheet = (DATA / "data" / "aws" / "p5.48xlarge.toml").read_text(encoding="utf-8")
    (tmp_path / "acme" / "other.toml").write_text(sheet, encoding="utf-8")
    (entry,) = instance_sheets(tmp_path)
    with pytest.raises(CatalogueError, match="its place says 'acme/other'"):
        entry.load()


# Names


@pytest.mark.parametrize(
    ("name", "id_"),
    [
        ("aws/p5.48xlarge", "aws/p5.48xlarge"),
        ("AWS/P5.48XLARGE", "aws/p5.48xlarge"),
        ("p5.48xlarge", "aws/p5.48xlarge"),
        ("a3-highgpu-8g", "gcp/a3-highgpu-8g"),
        ("standard_nd96isr_h100_v5", "azure/Standard_ND96isr_H100_v5"),
        ("nd96ISR_H100_v5", "azure/Standard_ND96isr_H100_v5"),
        ("Standard_ND96asr_A100_v4", "azure/Standard_ND96asr_v4"),
        ("bm.gpu.h100.8", "oci/BM.GPU.H100.8"),
        ("gpu_8x_h100_sxm5", "lambda/gpu_8x_h100_sxm5"),
    ],
)
def test_name(name: str, id_: str) -> None:
    assert PLUGINS.instances.resolve(name) == id_


def test_unknown_name_has_a_suggestion_at_its_place() -> None:
    (finding,) = findings('instance = "aws/p5.48xlargee"', "")
    assert (finding.code, finding.path) == ("SPEC004", ("hardware", "instance"))
    assert "did you mean 'aws/p5.48xlarge' or" in finding.message
    (finding,) = findings('instance = "zz"', "")
    assert "`servelint catalog instances` lists them, or name the accelerator and devices" in finding.message


# In a spec


def test_resolution() -> None:
    found = review('instance = "aws/p5.48xlarge"')
    setup = found.setup
    assert setup is not None
    topology = setup.topology
    assert (topology.accelerator.id, topology.devices, topology.devices_per_node) == ("nvidia/h100-sxm5-80gb", 8, 8)
    assert topology.network_bytes_per_s == 50e9
    assert setup.deployment.hardware.host_memory == 2048 * GIB
    assert setup.deployment.hardware.network is not None
    assert setup.deployment.hardware.network.rdma is True
    for key, field in (
        (("accelerator",), "accelerator"),
        (("devices",), "devices"),
        (("devices_per_node",), "devices"),
        (("network", "bandwidth"), "network_bytes_per_s"),
        (("host_memory",), "host_memory_bytes"),
    ):
        assumed = found.assumption("hardware", *key)
        assert assumed is not None, key
        assert assumed.source == Source("datasheet", "aws/p5.48xlarge", field)


def test_network_without_a_source_stays_the_default() -> None:
    found = review('instance = "lambda/gpu_8x_h100_sxm5"\ndevices = 16')
    setup = found.setup
    assert setup is not None
    assert setup.topology.network_bytes_per_s == 50e9
    assumed = found.assumption("hardware", "network", "bandwidth")
    assert assumed is not None
    assert assumed.source.kind == "default"


def test_declared_keys_win() -> None:
    hardware = (
        'instance = "aws/p5.48xlarge"\ndevices = 4\ndevices_per_node = 4\nhost_memory = "1 TB"\n'
        'network = { bandwidth = "10 GB/s", rdma = false }'
    )
    found = review(hardware)
    setup = found.setup
    assert setup is not None
    topology = setup.topology
    assert (topology.devices, topology.devices_per_node, topology.network_bytes_per_s) == (4, 4, 10e9)
    assert setup.deployment.hardware.host_memory == 1e12
    assert {a.path for a in found.assumptions if a.source.where == "aws/p5.48xlarge"} == {("hardware", "accelerator")}


def test_rdma_alone_keeps_the_bandwidth_of_the_instance() -> None:
    setup = review('instance = "aws/p5.48xlarge"\nnetwork = { rdma = false }').setup
    assert setup is not None
    network = setup.deployment.hardware.network
    assert network is not None
    assert (network.bandwidth, network.rdma) == (50e9, False)


@pytest.mark.parametrize(
    ("hardware", "policies", "devices", "per_node"),
    [
        ('instance = "aws/p5.48xlarge"', "", 8, 8),
        ('instance = "aws/p5.48xlarge"\nnodes = 2', "", 16, 8),
        ('instance = "aws/p5.48xlarge"\ndevices = 16', "", 16, 8),
        ('instance = "aws/p5.48xlarge"\ndevices = 2', "", 2, 8),
        ('instance = "aws/p5.48xlarge"', "[policy.parallelism]\ntensor = 4\n", 4, 8),
        ('instance = "aws/p5.48xlarge"', "[policy.parallelism]\ntensor = 8\npipeline = 2\n", 16, 8),
        ('instance = "aws/p5.48xlarge"', "[policy.kv_cache]\npage_size = 16\n", 8, 8),
        ('instance = "aws/p5.48xlarge"\naccelerator = "nvidia/h100-sxm5-80gb"', "", 8, 8),
    ],
)
def test_devices(hardware: str, policies: str, devices: int, per_node: int) -> None:
    found = review(hardware, MODEL + policies)
    setup = found.setup
    assert setup is not None
    assert (setup.topology.devices, setup.topology.devices_per_node) == (devices, per_node)
    assumed = found.assumption("hardware", "devices")
    assert (assumed is not None) == ("devices =" not in hardware and "tensor" not in policies)


def test_part_of_a_board_has_part_of_the_link() -> None:
    whole, half, one = (
        review(f'instance = "{name}"\ndevices = 16').setup
        for name in ("gcp/a3-highgpu-8g", "gcp/a3-highgpu-4g", "aws/p5.4xlarge")
    )
    assert whole is not None
    assert half is not None
    assert one is not None
    assert [h.tier for h in whole.topology.hops(8)] == ["scale_up"]
    assert [h.tier for h in half.topology.hops(8)] == ["scale_up", "network"]
    assert [h.tier for h in one.topology.hops(2)] == ["network"]
    rack = review('instance = "gcp/a4x-highgpu-4g"\ndevices = 8').setup
    assert rack is not None
    assert [h.tier for h in rack.topology.hops(8)] == ["scale_up"]


@pytest.mark.parametrize(
    ("hardware", "path", "said"),
    [
        (
            'instance = "aws/p5.48xlarge"\naccelerator = "nvidia/a100-sxm4-80gb"',
            ("hardware", "accelerator"),
            "aws/p5.48xlarge has 8 x nvidia/h100-sxm5-80gb, not nvidia/a100-sxm4-80gb",
        ),
        (
            'instance = "aws/p5.48xlarge"\ndevices = 9\ndevices_per_node = 9',
            ("hardware", "devices_per_node"),
            "9 devices a node, but aws/p5.48xlarge has 8: give at most 8",
        ),
        (
            'instance = "aws/p5.48xlarge"\ndevices = 17\nnodes = 2',
            ("hardware", "nodes"),
            "17 devices on 2 nodes, but aws/p5.48xlarge has 8: they take 3 nodes",
        ),
        (
            'instance = "aws/g6.12xlarge"\ndevices = 8\ndevices_per_node = 8',
            ("hardware", "devices_per_node"),
            "8 devices a node, but aws/g6.12xlarge has 4",
        ),
    ],
)
@pytest.mark.parametrize("rest", ["", MODEL], ids=["without a model", "with a model"])
def test_contradiction(hardware: str, path: tuple[str, ...], said: str, rest: str) -> None:
    found = [f for f in findings(hardware, rest) if f.code == "SPEC003"]
    assert [f.path for f in found] == [path]
    assert said in found[0].message


@pytest.mark.parametrize(
    "hardware",
    [
        'instance = "aws/p5.48xlarge"\naccelerator = "H100-SXM5-80GB"',
        'instance = "aws/p5.48xlarge"\ndevices = 8\ndevices_per_node = 8',
        'instance = "aws/p5.48xlarge"\ndevices = 16\nnodes = 2',
        'instance = "gcp/a4x-highgpu-4g"\ndevices = 72\ndevices_per_node = 72',
        'instance = "my-cluster/big"\naccelerator = "nvidia/h100-sxm5-80gb"\ndevices = 8',
    ],
)
def test_no_contradiction(hardware: str) -> None:
    assert not [f for f in findings(hardware) if f.code in ("SPEC003", "SPEC004")]
    assert review(hardware).composition is not None


WORKLOADS = {
    "fits": '[workload]\nprompt_tokens = 1000\noutput_tokens = 200\nrate = "2 req/s"\n[slo]\nitl = { p99 = "60 ms" }\n',
    "too large": "[policy.parallelism]\ntensor = 1\n[workload]\nprompt_tokens = 1000\noutput_tokens = 200\n",
    "over nodes": "[policy.parallelism]\ntensor = 16\n[workload]\nprompt_tokens = 1000\noutput_tokens = 200\n",
}
EXPLICIT = {
    "aws/p5.48xlarge": ("nvidia/h100-sxm5-80gb", 8, "400 GB/s"),
    "aws/p4d.24xlarge": ("nvidia/a100-sxm4-40gb", 8, "50 GB/s"),
    "aws/g6.48xlarge": ("nvidia/l4", 8, "12.5 GB/s"),
    "azure/Standard_ND96isr_MI300X_v5": ("amd/mi300x-oam-192gb", 8, "400 GB/s"),
}


@pytest.mark.parametrize("workload", WORKLOADS)
@pytest.mark.parametrize("name", EXPLICIT)
def test_findings_are_those_of_the_keys_it_stands_for(name: str, workload: str) -> None:
    accelerator, devices, network = EXPLICIT[name]
    degrees = {"fits": 8, "too large": 1, "over nodes": 16}[workload]
    explicit = (
        f'accelerator = "{accelerator}"\ndevices = {degrees}\ndevices_per_node = {devices}\n'
        f'network = {{ bandwidth = "{network}", per = "node" }}'
    )
    ours = findings(f'instance = "{name}"\ndevices = {degrees}', MODEL + WORKLOADS[workload])
    theirs = findings(explicit, MODEL + WORKLOADS[workload])
    assert [(f.code, f.message) for f in ours] == [(f.code, f.message) for f in theirs]
    assert theirs or workload == "fits"


def test_a_finding_about_the_device_stands_at_the_instance() -> None:
    text = f'servelint = 1\n[hardware]\ninstance = "aws/g6.xlarge"\n{MODEL}'
    document = parse("spec.toml", text, PLUGINS.policies)
    for key in ("accelerator", "devices", "devices_per_node", "network"):
        assert document.place(("hardware", key)) == document.place(("hardware", "instance"))
    assert document.place(("hardware", "instance")).line == 3


def test_a_variant_keeps_the_hardware_of_the_instance() -> None:
    found = review('instance = "aws/p4d.24xlarge"\ndevices = 16', MODEL + "[policy.parallelism]\ntensor = 16\n")
    other = found.variant(kv_cache=None)
    assert found.composition is not None
    assert other is not None
    assert other.setup.deployment.hardware == found.composition.setup.deployment.hardware
    assert other.setup.topology.network_bytes_per_s == 6.25e9


# Labels

SXM, PCIE, NVL = "nvidia/h100-sxm5-80gb", "nvidia/h100-pcie-80gb", "nvidia/h100-nvl-94gb"


@pytest.mark.parametrize(
    ("key", "value", "accelerator", "devices"),
    [
        ("nvidia.com/gpu.product", "NVIDIA-H100-80GB-HBM3", SXM, None),
        ("NVIDIA.com/GPU.product", "nvidia-h100-80gb-hbm3", SXM, None),
        ("nvidia.com/gpu.product", "NVIDIA-L40S", "nvidia/l40s", None),
        ("nvidia.com/gpu.product", "NVIDIA-B300-SXM6-AC", "nvidia/b300-sxm6-270gb", None),
        ("cloud.google.com/gke-accelerator", "nvidia-tesla-a100", "nvidia/a100-sxm4-40gb", None),
        ("cloud.google.com/gke-accelerator", "nvidia-a100-80gb", "nvidia/a100-sxm4-80gb", None),
        ("cloud.google.com/gke-accelerator", "nvidia-h100-mega-80gb", SXM, None),
        ("cloud.google.com/gke-tpu-accelerator", "tpu-v5-lite-podslice", "google/tpu-v5e", None),
        ("cloud.google.com/gke-tpu-accelerator", "tpu7x", "google/tpu7x", None),
        ("amd.com/gpu.product-name", "AMD_Instinct_MI300X_OAM", "amd/mi300x-oam-192gb", None),
        ("kubeai/resourceProfile", "amd-gpu-mi300x:8", "amd/mi300x-oam-192gb", 8),
        ("resourceProfile", "google-tpu-v5e-2x2:4", "google/tpu-v5e", 4),
        ("srt-slurm/gpu_type", "gb300", "nvidia/gb300-nvl72-279gb", None),
        ("truss/accelerator", "L4:2", "nvidia/l4", 2),
        ("bentoml/gpu_type", "nvidia-h200-141gb", "nvidia/h200-sxm5-141gb", None),
        ("ray/accelerator_type", "L40S", "nvidia/l40s", None),
        ("ray/accelerator_type", "TPU-V6E", "google/tpu-v6e", None),
        ("skypilot/accelerators", "B200:8", "nvidia/b200-sxm6-180gb", 8),
        ("skypilot/accelerators", "H100_NVLINK_80GB:1", "nvidia/h100-sxm5-80gb", 1),
        ("karpenter.k8s.aws/instance-gpu-name", "h100", SXM, None),
        ("gpu.nvidia.com/class", "H100_PCIE", PCIE, None),
        ("inference.optimization/acceleratorName", "NVIDIA-H100-80GB-HBM3", SXM, None),
        ("vast/gpu_name", "H100 SXM", SXM, None),
        ("modal/gpu", "H100-SXM:4", SXM, 4),
    ],
)
def test_label(key: str, value: str, accelerator: str, devices: int | None) -> None:
    match = PLUGINS.instances.by_label(key, value)
    assert match is not None
    assert (match.accelerator, match.devices) == (accelerator, devices)
    assert match.source


@pytest.mark.parametrize(
    ("key", "value", "id_", "devices"),
    [
        ("node.kubernetes.io/instance-type", "p5.48xlarge", "aws/p5.48xlarge", 8),
        ("beta.kubernetes.io/instance-type", "ct5lp-hightpu-4t", "gcp/ct5lp-hightpu-4t", 4),
        ("instanceType", "Standard_NC24ads_A100_v4", "azure/Standard_NC24ads_A100_v4", 1),
        ("recipe_node_shape", "VM.GPU.A10.2", "oci/VM.GPU.A10.2", 2),
    ],
)
def test_label_of_instance_types(key: str, value: str, id_: str, devices: int) -> None:
    match = PLUGINS.instances.by_label(key, value)
    assert match is not None
    assert (match.instance, match.devices) == (id_, devices)
    assert match.accelerator == PLUGINS.instances.get(id_).accelerator


def test_an_instance_type_of_another_cloud_is_none_of_this_one() -> None:
    assert PLUGINS.instances.by_label("kaito/instanceType", "p5.48xlarge") is None
    assert PLUGINS.instances.by_label("recipe_node_shape", "aws/p5.48xlarge") is None


@pytest.mark.parametrize(
    ("key", "value", "candidates", "said"),
    [
        ("srt-slurm/gpu_type", "h100", {SXM, PCIE, NVL}, "the form factor is not said"),
        ("nvidia.com/gpu.product", "NVIDIA-H100", {SXM, PCIE, NVL}, "the form factor is not said"),
        ("ray/accelerator_type", "A100-80G", {"nvidia/a100-sxm4-80gb", "nvidia/a100-pcie-80gb"}, "form factor"),
        (
            "karpenter.k8s.aws/instance-gpu-name",
            "a100",
            {"nvidia/a100-sxm4-40gb", "nvidia/a100-sxm4-80gb"},
            "instance-gpu-memory",
        ),
        ("skypilot/accelerators", "H200:8", {"nvidia/h200-sxm5-141gb", "nvidia/h200-nvl-141gb"}, "form factor"),
    ],
)
def test_ambiguous_label(key: str, value: str, candidates: set[str], said: str) -> None:
    match = PLUGINS.instances.by_label(key, value)
    assert match is not None
    assert match.accelerator is None
    assert set(match.accelerators) == candidates
    assert said in match.note


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("nvidia.com/gpu.product", "NVIDIA-H100-80GB-HBM3-MIG-1g.10gb", f"a MIG slice (1g.10gb) of {SXM}"),
        ("nvidia.com/gpu.product", "NVIDIA-A100-SXM4-40GB-MIG-3g.20gb", "a MIG slice (3g.20gb) of nvidia/a100-sxm4"),
        ("nvidia.com/gpu.product", "NVIDIA-H200-MIG-1g.18gb.me", "a MIG slice (1g.18gb.me)"),
        ("nvidia.com/gpu.product", "NVIDIA-L40S-SHARED", "a time share of nvidia/l40s"),
        ("nvidia.com/gpu.product", "Never-Heard-Of-SHARED", "a time share of a device"),
        ("nvidia.com/gpu.product", "Tesla-V100-SXM2-16GB", "has no datasheet here"),
        ("truss/accelerator", "H100_40GB", "half of an H100"),
        ("skypilot/accelerators", "T4:0.5", "0.5 of a device"),
        ("kubeai/resourceProfile", "nvidia-gpu-rtx4070-8gb:1", "no datasheet"),
        ("karpenter.k8s.aws/instance-gpu-name", "rtx-pro-4500", "no datasheet"),
        ("karpenter.k8s.aws/instance-gpu-name", "t4g", "no datasheet"),
        ("karpenter.k8s.aws/instance-gpu-name", "radeon-pro-v520", "no datasheet"),
        ("karpenter.k8s.aws/instance-accelerator-name", "inferentia", "no datasheet"),
        ("karpenter.k8s.aws/instance-accelerator-name", "qualcomm-ai100", "no datasheet"),
    ],
)
def test_refused_label(key: str, value: str, said: str) -> None:
    match = PLUGINS.instances.by_label(key, value)
    assert match is not None
    assert match.accelerators == ()
    assert said in match.note


def test_a_fraction_under_the_name_of_the_whole_is_noted() -> None:
    match = PLUGINS.instances.by_label("karpenter.k8s.aws/instance-gpu-name", "l4")
    assert match is not None
    assert match.accelerator == "nvidia/l4"
    assert "G6f and Gr6f have an eighth to half" in match.note
    assert "instance-gpu-memory" in match.note


@pytest.mark.parametrize("value", ["", " ", "never-heard-of", "H100:", "H100:x", "H100:-1"])
def test_unknown_value(value: str) -> None:
    assert PLUGINS.instances.by_label("skypilot/accelerators", value) is None


def test_unknown_key() -> None:
    assert PLUGINS.instances.by_label("app.kubernetes.io/name", "H100") is None
    assert PLUGINS.instances.by_label("gpu_type", "h100") is None  # srt-slurm and BentoML both have one


def test_every_label_names_accelerators_that_exist() -> None:
    count = 0
    for path in sorted((DATA / "labels").rglob("*.toml")):
        key = path.relative_to(DATA / "labels").with_suffix("").as_posix()
        assert key in PLUGINS.instances.label_keys
        for row in tomli.loads(path.read_text(encoding="utf-8")).get("values", []):
            for name in row["names"]:
                match = PLUGINS.instances.by_label(key, name)
                assert match is not None, (key, name)
                assert list(match.accelerators) == row["accelerators"]
                assert all(PLUGINS.accelerators.resolve(a) == a for a in match.accelerators), (key, name)
                count += 1
    assert count >= 180


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("sauce = 'x'\n", "sauce is unknown or of the wrong type; did you mean 'source'?"),
        ("[[values]]\nnames = ['a']\naccelerators = ['b']\n", "has no source"),
        ("source = 's'\n[[values]]\nnames = ['a']\naccelerators = ['b', 'c']\n", "has no note"),
        (
            "source = 's'\n[[values]]\nnames = ['a b']\naccelerators = ['x']\n"
            "[[values]]\nnames = ['A_B']\naccelerators = ['y']\n",
            "stands in two rows",
        ),
    ],
)
def test_bad_label_table(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "acme").mkdir()
    (tmp_path / "acme" / "gpu.toml").write_text(text, encoding="utf-8")
    (labels,) = label_tables(tmp_path)
    assert labels.key == "acme/gpu"
    assert labels.match is not None
    with pytest.raises(CatalogueError) as caught:
        labels.match("a")
    assert said in str(caught.value)
    assert "gpu.toml" in str(caught.value)


# Plugins


class Acme:
    """A third party's instance type and label, beside a wrong thing and a taken name."""

    servelint_api = API_VERSION

    @hookimpl
    def servelint_instances(self) -> Any:
        yield Entry("acme/box", lambda: Instance("acme/box", "nvidia/l4", 3))
        yield Entry("aws/p5.48xlarge", lambda: Instance("aws/p5.48xlarge", "nvidia/l4", 3))
        yield Labels("acme.io/machine", cloud="acme")
        yield 5


def test_a_third_party_adds_its_own() -> None:
    plugins = Plugins(modules={"zacme": Acme()})
    assert plugins.instances.get("box").devices == 3
    match = plugins.instances.by_label("acme.io/machine", "box")
    assert match is not None
    assert (match.accelerator, match.devices) == ("nvidia/l4", 3)
    faults = " ".join(map(str, plugins.faults))
    assert "instance type 'aws/p5.48xlarge' is already provided" in faults
    assert "yielded int, expected Entry or Labels" in faults
    with pytest.raises(AssertionError, match="accelerator has no sources"):
        check_instance(plugins.instances.get("box"), plugins=plugins)


def test_an_instance_whose_accelerator_nobody_provides() -> None:
    class Odd:
        servelint_api = API_VERSION

        @hookimpl
        def servelint_instances(self) -> Any:
            yield Entry("acme/odd", lambda: Instance("acme/odd", "acme/never", 1))

    plugins = Plugins(modules={"odd": Odd()})
    text = 'servelint = 1\n[hardware]\ninstance = "acme/odd"\n'
    found = [f.finding for f in Linter(plugins, Config(), Path()).check("s.toml", text).findings]
    assert [(f.code, f.path) for f in found] == [("SPEC004", ("hardware", "instance"))]
    assert "no plugin provides the accelerator 'acme/never'" in found[0].message


def test_a_check_without_an_instance_reads_none() -> None:
    code = """
import sys
from pathlib import Path
from servelint.config import Config
from servelint.lint import Linter
from servelint.manager import Plugins
text = 'servelint = 1\\n[hardware]\\n{}\\n[model]\\nid = "meta-llama/Llama-3.1-8B"\\n'
linter = Linter(Plugins(), Config(), Path())
linter.check("s.toml", text.format('accelerator = "nvidia/l4"'))
assert "servelint.instances" not in sys.modules, "instances were read"
linter.check("s.toml", text.format('instance = "aws/g6.xlarge"'))
assert "servelint.instances" in sys.modules
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_the_catalogue_is_one_of_instances() -> None:
    assert isinstance(PLUGINS.instances, Instances)
    assert PLUGINS.instances is PLUGINS.instances
