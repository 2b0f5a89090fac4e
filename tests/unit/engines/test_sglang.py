"""SGLang: its flags by release, what its arguments set, its defaults by release and device, what it refuses."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import pytest

from servelint.launch.invocation import Invocation, Reading, Word
from servelint.launch.reading import starts
from servelint.manager import Plugins
from servelint.place import Place
from servelint.releases import image_release, release
from servelint.review import Review
from servelint.spec.document import parse
from servelint_plugins.engines import sglang
from servelint_plugins.engines.sglang_arguments import read as read_arguments
from servelint_plugins.engines.sglang_flags import CHECKED, CHECKED_RELEASES, WHOLE, table

HERE = Place(1, 1, 1, 2)


def read(text: str, version: str | None = None, files: dict[str, str] | None = None, prefix: str = "") -> Reading:
    line = tuple(Word(part, HERE) for part in shlex.split(text))
    before = tuple(Word(part, HERE) for part in prefix.split())
    beside = {name: Word(value, Place(7, 1, 7, 9)) for name, value in (files or {}).items()}
    return read_arguments(Invocation("chat", "spec", HERE, commands=((*before, *line),), files=beside), line, version)


def settings(reading: Reading) -> dict[str, Any]:
    return {".".join(map(str, s.path)).removeprefix("policy."): s.value for s in reading.settings}


def kinds(reading: Reading) -> list[str]:
    return [t.kind for t in reading.troubles]


def review(plugins: Plugins, accelerator: str, rest: str, model: str = "meta-llama/Llama-3.1-8B") -> Review:
    head = f'servelint = 1\n[hardware]\naccelerator = "{accelerator}"\n[model]\nid = "{model}"\n'
    return Review(parse("a.toml", head + rest, plugins.policies), plugins, Path())


def share(plugins: Plugins, accelerator: str, rest: str, model: str = "meta-llama/Llama-3.1-8B") -> float:
    composition = review(plugins, accelerator, rest, model).composition
    assert composition is not None
    found: float = composition.context.configs["kv_cache"].memory_utilization
    return found


@pytest.mark.parametrize(
    ("text", "version", "expected"),
    [
        ("--model-path a/b --tp 8", None, {"model.id": "a/b", "parallelism.tensor": 8}),
        (
            "--model a/b --tensor-parallel-size 4 --pp-size 2",
            None,
            {"parallelism.tensor": 4, "parallelism.pipeline": 2},
        ),
        ("--tp 4 --dp 2", None, {"parallelism.data": 2}),
        ("--tp 8 --dp 8 --enable-dp-attention", None, {"parallelism.attention_data": 8}),
        ("--tp 8 --attn-dp-size 4", "0.5.23", {"parallelism.attention_data": 4}),
        ("--tp 8 --enable-dp-attention", "0.4.3", {"parallelism.attention_data": 8}),
        ("--tp 8 --ep 4", None, {"parallelism.expert": 4}),
        ("--tp 8 --enable-deepep-moe", "0.4.9", {"parallelism.expert": 8}),
        ("--tp 16 --moe-a2a-backend deepep --ep-size 2", None, {"parallelism.expert": 16}),
        ("--tp 16 --nnodes 2 --node-rank 0", None, {"hardware.devices_per_node": 8}),
        ("--dcp-size 4", "0.5.20", {"parallelism.context": 4}),
        ("--mem-fraction-static 0.85", None, {"kv_cache.memory_utilization": 0.85}),
        ("--context-length 32768", None, {"model.max_model_len": 32768}),
        ("--max-running-requests 64", None, {"batching.max_sequences": 64}),
        ("--tp 8 --dp 4 --enable-dp-attention --max-running-requests 64", None, {"batching.max_sequences": 16}),
        ("--chunked-prefill-size 4096", None, {"batching.prefill_chunk": 4096}),
        ("--chunked-prefill-size -1", None, {"batching.chunked_prefill": False}),
        ("--enable-mixed-chunk", None, {"batching.mixed_steps": True}),
        (
            "--enable-mixed-chunk --speculative-algorithm NEXTN",
            "0.5.16",
            {"batching.mixed_steps": False, "speculation.method": "mtp", "speculation.tokens": 3},
        ),
        # Newer releases go on mixing with drafts of the model's own, and where attention is not data parallel.
        ("--enable-mixed-chunk --speculative-algorithm NEXTN", "0.5.20", {"batching.mixed_steps": True}),
        ("--enable-mixed-chunk --speculative-algorithm NEXTN", None, {"batching.mixed_steps": True}),
        ("--enable-mixed-chunk --speculative-algorithm NGRAM", "0.5.20", {"batching.mixed_steps": False}),
        (
            "--tp 8 --dp 8 --enable-dp-attention --enable-mixed-chunk --speculative-algorithm NEXTN",
            "0.5.20",
            {"batching.mixed_steps": False},
        ),
        ("--prefill-decode-interval 4", "0.5.20", {"batching.prefill_decode_interval": 4}),
        ("--max-prefill-tokens 8192", None, {"batching.max_batched_tokens": 8192}),
        ("--page-size 64 --disable-radix-cache", None, {"kv_cache.page_size": 64, "kv_cache.prefix_reuse": False}),
        ("--kv-cache-dtype fp8_e5m2", None, {"quantization.kv_cache": "fp8"}),
        ("--model-path a/b --quantization fp8", None, {"quantization.weights": "fp8"}),
        ("--torchao-config int4wo-128", None, {"quantization.weights": "int4-g128"}),
        ("--enable-hierarchical-cache", None, {"kv_cache.offload": "host memory"}),
        ("--ep-num-redundant-experts 32", None, {"moe.redundant_experts": 32}),
        ("--attention-backend fa3", None, {"engine.attention_backend": "fa3"}),
        ("--max-total-tokens 65536", None, {"kv_cache.max_tokens": 65536}),
        ("--disable-cuda-graph", None, {"engine.enforce_eager": True}),
        ("--cuda-graph-max-bs 24", "0.5.9", {"engine.cuda_graph_max_batch": 24}),
        ("--cuda-graph-bs-decode 1 2 48 16", "0.5.20", {"engine.cuda_graph_max_batch": 48}),
        (
            "--speculative-algorithm EAGLE3 --speculative-draft-model-path h --speculative-num-steps 3 "
            "--speculative-eagle-topk 1 --speculative-num-draft-tokens 4",
            None,
            {"speculation.method": "eagle", "speculation.tokens": 3},
        ),
        (
            "--speculative-algorithm EAGLE --speculative-num-steps 5 --speculative-eagle-topk 4 "
            "--speculative-num-draft-tokens 8",
            None,
            {"speculation.method": "mtp", "speculation.tokens": 7},
        ),
        ("--speculative-algorithm NEXTN", None, {"speculation.method": "mtp", "speculation.tokens": 3}),
        (
            "--speculative-algorithm STANDALONE --speculative-draft-model-path a/small --speculative-num-steps 2",
            None,
            {"speculation.method": "draft", "speculation.draft_model": "a/small", "speculation.tokens": 2},
        ),
    ],
)
def test_arguments_set_keys(text: str, version: str | None, expected: dict[str, Any]) -> None:
    found = settings(read(text, version))
    assert {key: found.get(key) for key in expected} == expected


@pytest.mark.parametrize(
    ("text", "absent"),
    [
        ("--kv-cache-dtype auto", "quantization.kv_cache"),
        ("--model-path a/b --quantization none", "quantization.weights"),
        ("--tp 8 --enable-dp-attention", "parallelism.attention_data"),
        ("--tp 8 --dp 2 --enable-dp-attention", "parallelism.data"),
        ("--max-running-requests 0", "batching.max_sequences"),
        ("--attn-dp-size -4 --tp -8 --dp -2", "parallelism.attention_data"),
    ],
)
def test_arguments_that_set_nothing(text: str, absent: str) -> None:
    assert absent not in settings(read(text))


@pytest.mark.parametrize(
    ("text", "version", "kind"),
    [
        ("--enable-ep-moe", "0.5.7", "removed"),
        ("--enable-ep-moe", "0.5.3", None),
        ("--cuda-graph-max-bs 64", "0.5.20", "removed"),
        ("--cuda-graph-max-bs 64", "0.5.17", None),
        ("--page-size 16", "0.4.3", "not-yet"),
        ("--page-size 16", "0.4.4", None),
        ("--mem-frac 0.8", "0.5.9", "abbreviated"),
        ("--tp 8", "0.5.9", None),
        ("--nsa-prefill flashmla", "0.5.9", None),
        ("--no-such-flag 3", "0.5.9", "unknown"),
        ("--no-such-flag 3", "0.5.8", None),
        ("--no-such-flag 3", "0.5.24", None),
        ("--no-such-flag 3", None, "unlisted"),
        ("--tensor-paralel 8", None, "unknown"),
        ("--tensor-paralel-size 8", "0.5.24", "unknown"),
        ("--enable-ep-moe", None, "dated"),
        ("--tp eight", None, "bad-value"),
        ("'--tp 8'", None, "lost"),
        ("--tp 8 --enable-dp-attention", "0.5.9", "lost"),
        ("--tp 8 --enable-dp-attention", "0.4.9", "unsupported"),
    ],
)
def test_what_is_wrong_with_arguments(text: str, version: str | None, kind: str | None) -> None:
    assert kinds(read(text, version)) == ([] if kind is None else [kind])


def test_workers_of_dynamo_have_flags_of_their_own() -> None:
    found = read("--model-path a/b --migration-limit 3", "0.5.9", prefix="python3 -m dynamo.sglang")
    assert not found.troubles
    assert settings(found)["model.id"] == "a/b"


def test_a_removed_flag_says_what_took_its_place() -> None:
    (trouble,) = read("--cuda-graph-max-bs 64", "0.5.23").troubles
    assert "0.5.20" in trouble.message
    assert "--cuda-graph-max-bs-decode" in trouble.help


def test_the_configuration_file_goes_below_the_command() -> None:
    found = read(
        "--config /etc/run.yaml --tp 4",
        files={"run.yaml": "tp: 2\ncontext-length: 4096\nenable-hierarchical-cache: true\n"},
    )
    assert settings(found)["parallelism.tensor"] == 4
    assert settings(found)["model.max_model_len"] == 4096
    assert settings(found)["kv_cache.offload"] == "host memory"
    (length,) = (s for s in found.settings if s.path == ("model", "max_model_len"))
    assert length.place.line == 8


@pytest.mark.parametrize(
    ("files", "kind"), [(None, "unresolved"), ({"run.yaml": "- 1\n"}, "bad-value"), ({"run.yaml": "{a"}, "bad-value")]
)
def test_a_configuration_file_that_cannot_be_read(files: dict[str, str] | None, kind: str) -> None:
    assert kinds(read("--config run.yaml", files=files)) == [kind]


@pytest.mark.parametrize(
    ("form", "text", "tensor"),
    [
        ("kubernetes", "--model-path a/b", 1),
        ("spec", "--model-path a/b", None),
        ("kubernetes", "--config x.yaml", None),
    ],
)
def test_one_device_where_no_degree_is_given(form: str, text: str, tensor: int | None) -> None:
    line = tuple(Word(part, HERE) for part in text.split())
    found = settings(read_arguments(Invocation("chat", form, HERE, commands=(line,)), line, None))
    assert found.get("parallelism.tensor") == tensor


def test_flags_that_change_no_figure_are_named() -> None:
    assert read("--model-path a/b --host 0.0.0.0 --trust-remote-code").unused == ("--host", "--trust-remote-code")


@pytest.mark.parametrize("name", sorted(table().flags))
def test_releases_of_every_flag_are_in_order(name: str) -> None:
    flag = table().flags[name]
    known = [release(v) for v in (flag.before, flag.since, flag.until) if v]
    assert known == sorted(known)
    assert bool(flag.before) == bool(flag.since)
    assert not known or known[-1] <= release(CHECKED)


def test_checked_releases_are_in_order() -> None:
    assert list(CHECKED_RELEASES) == sorted(CHECKED_RELEASES, key=release)
    assert (0, 5, 9) in WHOLE
    assert (0, 5, 3) not in WHOLE


@pytest.mark.parametrize(
    ("command", "image", "arguments"),
    [
        ("python3 -m sglang.launch_server --tp 2", None, 2),
        ("sglang serve --tp 2", None, 2),
        ("python3 -m dynamo.sglang --tp 2", None, 2),
        ("--tp 2", "lmsysorg/sglang:v0.5.9", 2),
        ("python3 -m sglang_router.launch_router --port 1", None, None),
    ],
)
def test_what_starts_it(plugins: Plugins, command: str, image: str | None, arguments: int | None) -> None:
    line = tuple(Word(part, HERE) for part in command.split())
    invocation = Invocation("x", "t", HERE, commands=(line,), image=Word(image, HERE) if image else None)
    engine, words = starts(invocation, dict.fromkeys(plugins.engines.values()))
    assert (engine is sglang.ENGINE, len(words)) == ((True, arguments) if arguments else (False, 0))


def test_the_image_tag_is_the_release() -> None:
    assert image_release("docker.io/lmsysorg/sglang:v0.5.9-cu129-amd64", sglang.ENGINE.release_images) == "0.5.9"
    assert image_release("nvcr.io/nvidia/ai-dynamo/sglang-runtime:1.0.0", sglang.ENGINE.release_images) is None


@pytest.mark.parametrize(
    ("version", "accelerator", "rest", "expected"),
    [
        # Fixed by the degrees, up to 0.4.6.
        ("0.4.6", "nvidia/a100-sxm4-80gb", "[policy.parallelism]\ntensor = 8\n", 0.81),
        ("0.4.6", "nvidia/l40s", "", 0.88),
        # By memory class: 9.5 GiB and half a GiB a device.
        ("0.5.1", "nvidia/h100-sxm5-80gb", "[policy.parallelism]\ntensor = 4\n", 1 - 11.5 / 79.19),
        # 512 MiB, 1.5 x 8192 MiB, 2 x 256 MiB of graphs, 1/8 GiB.
        ("0.5.9", "nvidia/h100-sxm5-80gb", "", 1 - 13.125 / 79.19),
        # Drafts take 2 GiB more.
        (
            "0.5.9",
            "nvidia/h100-sxm5-80gb",
            '[policy.speculation]\nmethod = "eagle"\ntokens = 3\n',
            1 - 15.125 / 79.19,
        ),
        # 58 sizes of prompt steps, 8 MiB each.
        ("0.5.12", "nvidia/h100-sxm5-80gb", "", 1 - 13.578 / 79.19),
        # The floor of 10 GiB.
        ("0.5.9", "nvidia/h100-sxm5-80gb", "[policy.batching]\nprefill_chunk = 2048\n", 1 - 10 / 79.19),
    ],
)
def test_the_static_share(plugins: Plugins, version: str, accelerator: str, rest: str, expected: float) -> None:
    text = f'{rest}[engine]\nname = "sglang"\nversion = "{version}"\n'
    assert share(plugins, accelerator, text) == pytest.approx(expected, abs=0.0015)


def test_a_vision_tower_takes_of_the_share(plugins: Plugins) -> None:
    engine = '[engine]\nname = "sglang"\nversion = "0.5.9"\n'
    plain = share(plugins, "nvidia/h100-sxm5-80gb", engine)
    assert share(plugins, "nvidia/h100-sxm5-80gb", engine, "Qwen/Qwen2.5-VL-7B-Instruct") < 0.95 * plain


@pytest.mark.parametrize(
    ("version", "rest", "path"),
    [
        ("0.5.9", '[policy.parallelism]\npipeline = 2\n[policy.speculation]\nmethod = "ngram"\ntokens = 3\n', "method"),
        ("0.5.9", "[policy.kv_cache]\npage_size = 64\n[policy.batching]\nprefill_chunk = 1000\n", "prefill_chunk"),
        ("0.5.9", "[policy.kv_cache]\npage_size = 3000\n", "page_size"),
        ("0.5.23", '[policy.parallelism]\npipeline = 2\n[policy.speculation]\nmethod = "ngram"\ntokens = 3\n', None),
        ("0.5.9", "[policy.parallelism]\npipeline = 2\n", None),
        ("0.5.9", "[policy.kv_cache]\npage_size = 64\n", None),
        ("0.6.0", "[policy.kv_cache]\npage_size = 3000\n", None),
        ("0.5.16", "[policy.batching]\nprefill_decode_interval = 1\n", "prefill_decode_interval"),
        ("0.5.20", "[policy.batching]\nprefill_decode_interval = 1\n", None),
        ("0.5.16", "[policy.batching]\nprefill_decode_interval = 0\n", None),
    ],
)
def test_what_is_refused(plugins: Plugins, version: str, rest: str, path: str | None) -> None:
    composition = review(plugins, "nvidia/h100-sxm5-80gb", f'{rest}[engine]\nname = "sglang"\n').composition
    assert composition is not None
    found = [refused[-1] for refused, _, _ in sglang.unsupported(version, composition.context)]
    assert found == ([] if path is None else [path])


@pytest.mark.parametrize(
    ("device", "version", "refused"),
    [
        ("nvidia/v100-sxm2-32gb", "0.5.7", True),
        ("nvidia/v100-sxm2-32gb", "0.5.5", False),
        ("nvidia/t4", "0.5.23", False),
        ("amd/mi300x-oam-192gb", "0.5.23", False),
    ],
)
def test_devices_below_the_least_capability(plugins: Plugins, device: str, version: str, refused: bool) -> None:
    composition = review(plugins, device, '[engine]\nname = "sglang"\n').composition
    assert composition is not None
    found = [path for path, _, _ in sglang.unsupported(version, composition.context)]
    assert found == ([("hardware", "accelerator")] if refused else [])


def test_nothing_is_refused_where_no_release_is_known(plugins: Plugins) -> None:
    composition = review(plugins, "nvidia/h100-sxm5-80gb", "[policy.kv_cache]\npage_size = 3000\n").composition
    assert composition is not None
    assert not list(sglang.unsupported(None, composition.context))


V4 = """\
servelint = 1
[hardware]
accelerator = "{device}"
devices = 8
[model]
id = "deepseek-ai/DeepSeek-V4-Pro"
[engine]
name = "sglang"
version = "{version}"
"""


@pytest.mark.parametrize(
    ("device", "version", "scales", "wide"),
    [
        ("nvidia/h200-sxm5-141gb", "0.5.15", 4 / 32, 2.0),
        ("nvidia/h200-sxm5-141gb", "0.5.20", 0.0, 2.0),
        ("nvidia/b200-sxm6-180gb", "0.5.15", 0.0, 1.0),
    ],
)
def test_what_hopper_holds_beside_the_checkpoint(
    plugins: Plugins, device: str, version: str, scales: float, wide: float
) -> None:
    review = Review(parse("a.toml", V4.format(device=device, version=version), plugins.policies), plugins, Path())
    assert review.composition is not None
    held = review.composition.memory.weights
    experts = sum(w.params for w in held if w.tensor.role == "routed_experts" and "as loaded" not in w.name)
    beside = sum(w.params * w.format.bytes_per_element for w in held if "as loaded" in w.name)
    assert beside == pytest.approx(scales * experts)
    first = next(w for w in held if w.tensor.name == "o_a_proj")
    assert first.format.bits_per_element / 8 == pytest.approx(wide, rel=1e-3)


def test_the_largest_graph_is_part_of_the_reserve(plugins: Plugins) -> None:
    def share(line: str) -> float:
        text = (
            'servelint = 1\n[hardware]\naccelerator = "nvidia/l40s"\n[model]\nid = "meta-llama/Llama-3.1-8B"\n'
            f'[engine]\nname = "sglang"\nversion = "0.5.9"\n{line}'
        )
        review = Review(parse("a.toml", text, plugins.policies), plugins, Path())
        assert review.composition is not None
        return review.composition.memory.budget

    # 2 MiB for each sequence, of which 32 are the default here.
    assert share("") - share("cuda_graph_max_batch = 96\n") == pytest.approx(2 * 64 * 2**20)
