"""``model``: the ledger of one model by any spelling of its name or from a config, and what it refuses."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from servelint.__main__ import main
from servelint.manager import Plugins

FACTS = Path(__file__).parents[1] / "data" / "facts"
ROWS: list[dict[str, Any]] = [json.loads(line) for line in (FACTS / "models.jsonl").read_text("utf-8").splitlines()]
KINDS = {
    "full": "full_attention",
    "swa": "sliding_attention",
    "chunked": "chunked_attention",
    "mla": "latent_attention",
    "mamba1": "mamba",
    "mamba2": "mamba",
    "gdn": "linear_attention",
    "lightning": "linear_attention",
}
"""Our block of each layer kind in the facts; ``none`` there is a layer without a token mixer."""

LLAMA = {
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 100,
    "max_position_embeddings": 1024,
    "torch_dtype": "bfloat16",
    "tie_word_embeddings": False,
}

Run = Callable[..., dict[str, Any]]


@pytest.fixture
def model(capsys: pytest.CaptureFixture[str]) -> Run:
    def run(*arguments: str) -> dict[str, Any]:
        assert main(["model", *arguments, "--format", "json"]) == 0
        found: dict[str, Any] = json.loads(capsys.readouterr().out)
        return found

    return run


@pytest.fixture
def refusal(capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    def run(*arguments: str) -> str:
        assert main(["model", *arguments]) == 2
        said = capsys.readouterr()
        assert said.out == ""
        assert "Traceback" not in said.err
        return said.err

    return run


@pytest.mark.parametrize("row", ROWS, ids=[row["id"] for row in ROWS])
def test_every_fact_is_in_the_json(row: dict[str, Any], model: Run) -> None:
    found = model(row["id"])
    assert found["id"] == row["id"]
    assert found["model_type"] == row["model_type"]
    assert found["params_total"] == row["params_total"]
    assert found["params_language_model"] == row["params_language_model"]
    assert found["params_active"] == row["params_active"]
    assert found["params_active_without_input_table"] == row["params_active_excl_input_embedding"]
    assert found["params_embedding"] == row["params_embedding"]
    assert found["params_lm_head"] == row["params_lm_head"]
    assert found["lm_head_tied"] == row["lm_head_tied"]
    assert found["params_vision"] == row["params_vision_and_projector"]
    assert sum(found["params_by_role"].values()) == found["params_total"] + found["params_mtp"]
    kv = found["kv_bytes_per_token"]
    assert kv["full"] == row["kv_bytes_per_token_bf16_full_layers"]
    local = "chunked" if row["swa_kind"] == "chunked" else "sliding"
    assert kv[local] == row["kv_bytes_per_token_bf16_swa_layers"]
    assert kv["indexer"] == row["kv_indexer_bytes_per_token_bf16"]
    assert sum(kv.values()) - kv["indexer"] == row["kv_bytes_per_token_bf16_all_layers"]
    assert set(kv) == {"full", "sliding", "indexer"} | ({"chunked"} if local == "chunked" else set())
    layers: dict[str, int] = {}
    for kind, count in row["layer_kinds"].items():
        if kind != "none":
            layers[KINDS[kind]] = layers.get(KINDS[kind], 0) + count
    assert {kind: n for kind, n in found["layers"].items() if kind in KINDS.values()} == layers
    state = row["state_bytes_per_seq"] or {"recurrent_fp32_conv_bf16": 0}
    assert found["state_bytes_per_sequence"] == state["recurrent_fp32_conv_bf16"]
    for name, key in (("num_layers", "num_hidden_layers"), ("hidden_size",) * 2, ("vocab_size",) * 2):
        assert found[name] == row[key]
    assert set(found["windows_tokens"].values()) == ({row["swa_window"]} if row["swa_window"] else set())
    experts = {"count": row["num_experts"], "top_k": row["experts_per_token"]} if row["num_experts"] else None
    assert found["experts"] == experts
    for context, expected in row["kv_bytes_per_seq_bf16_at"].items():
        assert model(row["id"], "--context", context)["kv_bytes_per_sequence"] == expected
    assert set(row["aliases"]) <= {*found["aliases"], *Plugins().models.ids()}


def test_a_sequence_is_as_long_as_the_model_allows_unless_told(model: Run) -> None:
    found = model("google/gemma-3-27b-it")
    assert found["context_tokens"] == found["max_position_tokens"] == 131_072
    assert found["kv_bytes_per_sequence"] == 131_072 * 81_920 + 1024 * 425_984
    assert model("google/gemma-3-27b-it", "--context", "512")["kv_bytes_per_sequence"] == 512 * 507_904


def test_the_cache_has_the_width_asked_for_and_not_the_checkpoints(model: Run) -> None:
    plain, half = model("Qwen/Qwen3-8B-FP8"), model("Qwen/Qwen3-8B-FP8", "--kv-dtype", "fp8_e4m3")
    assert plain["kv_dtype"] == "bf16"
    assert half["kv_dtype"] == "fp8"
    assert plain["kv_bytes_per_token"]["full"] == 2 * half["kv_bytes_per_token"]["full"] == 36 * 8 * 256 * 2
    index = model("deepseek-ai/DeepSeek-V3.2", "--kv-dtype", "fp8")
    assert index["kv_bytes_per_token"]["indexer"] == index["indexer_bytes_per_token_as_deployed"] == 61 * 132


@pytest.mark.parametrize(
    "name",
    [
        "meta-llama/Llama-3.1-8B",
        "META-LLAMA/llama-3.1-8b",
        "meta_llama/Llama_3.1_8B",
        "meta-llama/llama-3-1-8b",
        "meta.llama/llama_3_1_8b",
        "llama-3.1-8b",
        "Meta-Llama-3.1-8B",
        "meta_llama_3_1_8b",
    ],
)
def test_spellings_of_a_name(name: str, model: Run) -> None:
    assert model(name)["id"] == "meta-llama/Llama-3.1-8B"


def test_every_id_is_found_with_any_separator(plugins: Plugins) -> None:
    for name in plugins.models.ids():
        for separator in "-_.":
            spelled = name.upper().replace(".", separator).replace("_", separator).replace("-", separator)
            assert plugins.models.resolve(spelled) == name, spelled


@pytest.mark.parametrize("place", ["config.json", "", "link"])
def test_a_config_anywhere(place: str, tmp_path: Path, model: Run) -> None:
    held = tmp_path / "held"
    held.mkdir()
    (held / "config.json").write_text(json.dumps(LLAMA), encoding="utf-8")
    path = held / place
    if place == "link":
        # As caches of published files have them: a folder of links to elsewhere.
        path = tmp_path / "snapshot"
        path.mkdir()
        (path / "config.json").symlink_to(held / "config.json")
    found = model(str(path))
    assert found["provider"] is None
    assert found["kv_bytes_per_token"] == {"full": 2 * 2 * 32 * 2, "sliding": 0, "indexer": 0}
    assert found["context_tokens"] == 1024
    assert found["params_embedding"] == found["params_lm_head"] == 6400


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('{"model_type": "lama"}', "model_type 'lama'; did you mean 'llama'"),
        ("{}", 'it has no "model_type"'),
        ("[1]", "it is not a JSON object"),
        ("{", "cannot be used"),
        ("[" * 100_000, "nested too deeply"),
        ('{"model_type": "llama"}', "hidden_size"),
        (json.dumps({**LLAMA, "num_hidden_layers": 10**9}), "num_hidden_layers"),
        (json.dumps({**LLAMA, "hidden_size": "64"}), "hidden_size"),
        ('{"model_type": "llama", "a": ' + " " * 5_000_000 + "1}", "the limit is 5,000,000"),
    ],
)
def test_a_config_that_cannot_be_used(text: str, words: str, tmp_path: Path, refusal: Callable[..., str]) -> None:
    (tmp_path / "config.json").write_text(text, encoding="utf-8")
    said = refusal(str(tmp_path / "config.json"))
    assert words in said
    assert "config.json" in said


def test_an_unknown_family_lists_the_known_ones(tmp_path: Path, refusal: Callable[..., str]) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "wholly_new"}', encoding="utf-8")
    said = refusal(str(tmp_path))
    assert "no plugin reads configs with model_type 'wholly_new'" in said
    assert "supported: " in said
    assert "deepseek_v3" in said


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("meta-llama/Llama-3.1-8C",), "did you mean 'meta-llama/Llama-3.1-8B'"),
        (("zzzz",), "`servelint catalog models` lists them, or give the path of a config.json"),
        (("./zzzz",), "does not exist"),
        (("/dev/null",), "not a regular file"),
        (("a\0b",), "no plugin provides the model"),
        (("x" * 5000,), "no plugin provides the model"),
        (("gpt2", "--kv-dtype", "int4"), "no KV cache is kept in"),
        (("gpt2", "--kv-dtype", "bf61"), "did you mean 'bf16'"),
        (("gpt2", "--context", "0"), "expected a number from 1"),
        (("gpt2", "--format", "sarif"), "none of text, json"),
        (("gpt2", "--contxt", "3"), "did you mean '--context'"),
    ],
)
def test_refusals(arguments: tuple[str, ...], words: str, refusal: Callable[..., str]) -> None:
    assert words in refusal(*arguments)


@pytest.mark.parametrize(
    ("arguments", "shown"),
    [
        (("google/gemma-3-27b-it",), "5 sliding_attention, 1 full_attention, repeated"),
        (("google/gemma-3-27b-it",), "rope scaling: linear, factor 8\n"),
        (("google/gemma-3-27b-it",), "window 1,024"),
        (("openai/gpt-oss-120b",), "quantization: mxfp4 of routed_experts"),
        (("Qwen/Qwen3-Next-80B-A3B-Thinking",), "fixed state"),
        (("deepseek-ai/DeepSeek-V3.2",), "index keys as engines keep them, with scales: 8,052 B a token"),
        (("deepseek-ai/DeepSeek-V3",), "without multi-token prediction  671,026,404,352"),
        (("meta-llama/Llama-4-Scout-17B-16E-Instruct",), "language model  107,769,861,120"),
        (
            ("meta-llama/Llama-3.1-70B", "--context", "1000", "--kv-dtype", "fp8"),
            "fp8, all layers; a sequence has 1,000",
        ),
        (("meta-llama/Llama-3.1-70B",), "rope scaling: llama3, factor 8, trained at 8,192 tokens"),
    ],
)
def test_text(arguments: tuple[str, ...], shown: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["model", *arguments]) == 0
    assert shown in capsys.readouterr().out


def test_every_model_has_a_ledger(plugins: Plugins, capsys: pytest.CaptureFixture[str]) -> None:
    for name in plugins.models.ids()[::4]:
        assert main(["model", name]) == 0
        said = capsys.readouterr().out
        assert said.startswith(name)
        assert "= all" in said
