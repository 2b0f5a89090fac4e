"""Reading configs as people have them: quantized checkpoints, odd spellings, and configs that lie."""

from __future__ import annotations

import copy
import json
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from servelint.architecture import Architecture, Attention, Quantization
from servelint_plugins import models

FACTS = Path(__file__).parents[2] / "data" / "facts" / "configs"
CONFIGS: dict[str, dict[str, Any]] = {path.stem: json.loads(path.read_text()) for path in sorted(FACTS.glob("*.json"))}
LLAMA = CONFIGS["meta-llama--Llama-3.1-70B"]
DEEPSEEK = CONFIGS["deepseek-ai--DeepSeek-V3"]
KIMI = CONFIGS["moonshotai--Kimi-K2-Instruct"]
MIXTRAL = CONFIGS["mistralai--Mixtral-8x7B-v0.1"]
GPT_OSS = CONFIGS["openai--gpt-oss-120b"]


def read(config: dict[str, Any], **fields: Any) -> Architecture:
    return models.read_config("test/model", {**config, **fields})


def refusal(config: dict[str, Any], **fields: Any) -> str:
    with pytest.raises(ValueError) as caught:
        read(config, **fields)
    return str(caught.value)


def weights(bits: int, kind: str, **more: Any) -> dict[str, Any]:
    return {"weights": {"num_bits": bits, "type": kind, **more}, "targets": ["Linear"]}


def compressed(group: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"quant_method": "compressed-tensors", "config_groups": {"group_0": group}, **more}


ACTIVATIONS = {"num_bits": 8, "type": "int", "dynamic": True}

QUANTIZED: list[tuple[str, dict[str, Any], str, int, str | None]] = [
    ("fp8 blocks", {"quant_method": "fp8", "weight_block_size": [128, 128]}, "fp8-block128", 128, None),
    ("fp8 tensors", {"quant_method": "fp8", "activation_scheme": "static"}, "fp8", 0, None),
    ("fbgemm", {"quant_method": "fbgemm_fp8", "modules_to_not_convert": ["lm_head"]}, "fp8", 0, None),
    ("gptq", {"quant_method": "gptq", "bits": 4, "group_size": 128}, "int4-g128", 128, None),
    ("awq", {"quant_method": "awq", "bits": 4, "group_size": 64}, "int4-g64", 64, None),
    ("awq, old spelling", {"quant_method": "awq", "w_bit": 4, "q_group_size": 128}, "int4-g128", 128, None),
    ("mxfp4", {"quant_method": "mxfp4"}, "mxfp4", 32, None),
    ("fp8 channels", compressed(weights(8, "float", strategy="channel")), "fp8", 0, None),
    (
        "fp8 blocks, compressed-tensors",
        compressed(weights(8, "float", strategy="block", block_structure=[128, 128])),
        "fp8-block128",
        128,
        None,
    ),
    ("w4a16", compressed(weights(4, "int", strategy="group", group_size=32)), "int4-g32", 32, None),
    ("w8a8", compressed({**weights(8, "int"), "input_activations": ACTIVATIONS}), "int8", 0, None),
    ("nvfp4", compressed(weights(4, "float", strategy="tensor_group", group_size=16)), "nvfp4", 16, None),
    ("mxfp4, packed", compressed(weights(4, "float", strategy="group", group_size=32)), "mxfp4", 32, None),
    (
        "fp8 with a cache scheme",
        compressed(weights(8, "float"), kv_cache_scheme={"num_bits": 8, "type": "float"}),
        "fp8",
        0,
        "fp8",
    ),
    (
        "modelopt",
        {"quant_method": "modelopt", "quant_algo": "FP8", "kv_cache_quant_algo": "FP8"},
        "fp8",
        0,
        "fp8",
    ),
    ("modelopt without method", {"quant_algo": "FP8", "kv_cache_scheme": "FP8"}, "fp8", 0, "fp8"),
    ("modelopt nvfp4", {"quant_method": "modelopt_fp4", "quant_algo": "NVFP4"}, "nvfp4", 16, None),
    (
        "modelopt awq",
        {"quant_method": "modelopt", "quant_algo": "W4A16_AWQ", "group_size": 128},
        "int4-g128",
        128,
        None,
    ),
]


@pytest.mark.parametrize(
    ("config", "name", "group", "kv_cache"),
    [case[1:] for case in QUANTIZED],
    ids=[case[0] for case in QUANTIZED],
)
def test_quantization_formats(config: dict[str, Any], name: str, group: int, kv_cache: str | None) -> None:
    quantization = read(LLAMA, quantization_config=config).quantization
    assert quantization is not None
    assert (quantization.format, quantization.group, quantization.kv_cache) == (name, group, kv_cache)
    assert quantization.covers == ("attention", "mlp")


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"quant_method": "bitsandbytes", "load_in_4bit": True}, "quant_method' is 'bitsandbytes'"),
    ({"quant_method": "fp8", "weight_block_size": [64, 64]}, "weight_block_size"),
    ({"quant_method": "gptq", "bits": 3, "group_size": 128}, "3 bits with group size 128"),
    ({"quant_method": "gptq", "bits": 4, "group_size": -1}, "4 bits with group size -1"),
    ({"quant_method": "gptq", "group_size": 128}, "'quantization_config.bits' is missing"),
    ({"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION"}, "quant_algo"),
    ({"quant_method": "fp8", "quant_algo": "MIXED_PRECISION"}, "quantized_layers' is missing"),
    (
        {"quant_algo": "MIXED_PRECISION", "quantized_layers": {"model.layers.0.mlp": {"quant_algo": "MXFP8"}}},
        "quantized_layers.model.layers.0.mlp.quant_algo' is 'MXFP8'",
    ),
    ({"quant_method": "compressed-tensors"}, "config_groups"),
    ({"quant_method": "compressed-tensors", "config_groups": {}}, "config_groups"),
    (compressed(weights(2, "int", group_size=128)), "2 bits"),
    (compressed(weights(6, "float")), "6 float bits"),
    (compressed({}), "weights"),
    (compressed(weights(8, "float"), kv_cache_scheme={"num_bits": 4, "type": "int"}), "kv_cache_scheme"),
    (
        {
            "quant_method": "compressed-tensors",
            "config_groups": {"a": weights(8, "float"), "b": weights(4, "int", group_size=128)},
        },
        "one format for all groups",
    ),
    (
        {"quant_method": "awq", "bits": 4, "group_size": 128, "modules_to_not_convert": [1]},
        "array of strings",
    ),
]


@pytest.mark.parametrize(("config", "part"), REFUSED, ids=[case[1] for case in REFUSED])
def test_quantization_that_is_not_read(config: dict[str, Any], part: str) -> None:
    message = refusal(LLAMA, quantization_config=config)
    assert part in message
    assert "supported:" in message


def test_experts_only_by_wildcard_modules() -> None:
    config = {
        "quant_method": "mxfp4",
        "modules_to_not_convert": ["model.layers.*.self_attn", "model.layers.*.mlp.router", "lm_head"],
    }
    assert read(GPT_OSS, quantization_config=config).quantization.covers == ("routed_experts",)  # type: ignore[union-attr]


def test_experts_only_by_expressions() -> None:
    """The way Kimi-K2-Thinking keeps everything but the routed experts in 16 bit."""
    ignore = [
        "lm_head",
        "re:.*self_attn.*",
        "re:.*shared_experts.*",
        r"re:.*mlp\.(gate|up|gate_up|down)_proj.*",
    ]
    config = compressed(weights(4, "int", group_size=32), ignore=ignore)
    assert read(KIMI, quantization_config=config).quantization.covers == ("routed_experts",)  # type: ignore[union-attr]


def test_attention_left_alone_by_exact_modules() -> None:
    """The way the FP8 Llama-3.1-405B keeps all attention, and two layers' MLPs, in 16 bit."""
    llama = CONFIGS["meta-llama--Llama-3.1-405B"]
    kept = [f"model.layers.{i}.self_attn.{m}_proj" for i in range(126) for m in "qkvo"]
    kept += [f"model.layers.{i}.mlp.{m}_proj" for i in (0, 125) for m in ("gate", "up", "down")]
    config = {"quant_method": "fbgemm_fp8", "modules_to_not_convert": kept}
    architecture = read(llama, quantization_config=config)
    assert architecture.quantization is not None
    assert architecture.quantization.covers == ("mlp",)
    assert any("2% of the mlp modules" in note for note in architecture.notes)


def test_a_layer_below_another_prefix() -> None:
    config = compressed(weights(8, "float"), ignore=["language_model.model.layers.3.mlp", "re:vision_tower.*"])
    architecture = read(LLAMA, quantization_config=config)
    assert architecture.quantization is not None
    assert architecture.quantization.covers == ("attention", "mlp")
    assert any("1% of the mlp modules" in note for note in architecture.notes)


@pytest.mark.parametrize(
    ("ignore", "kept"),
    [
        (["model.layers.61*"], {"mtp"}),
        (["mtp.layers.0*", "mtp*"], {"mtp"}),
        (["model.layers.*.self_attn*"], {"attention"}),
        (["re:.*layers.*self_attn.*"], {"attention"}),
        ([f"model.layers.{i}.self_attn*" for i in range(61)], {"attention"}),
        (["re:.*mlp.(shared_experts|gate).*"], {"shared_experts"}),
        (["mlp.experts", "lm_head"], {"routed_experts", "mtp"}),
        (["vision_tower.layers.0*", "model.visual.blocks.1.mlp"], set()),
    ],
)
def test_modules_left_alone(ignore: list[str], kept: set[str]) -> None:
    config = compressed(weights(8, "float"), ignore=ignore)
    quantization = read(DEEPSEEK, quantization_config=config).quantization
    assert quantization is not None
    every = {"attention", "mlp", "shared_experts", "routed_experts", "mtp"}
    assert set(quantization.covers) == every - kept


def test_layer_numbers_are_whole() -> None:
    """A pattern for layer 1 says nothing of layers 11 or 21."""
    config = compressed(weights(8, "float"), ignore=["model.layers.1.self_attn*", "model.layers.2.mlp"])
    notes = read(LLAMA, quantization_config=config).notes
    assert sum("leaves 1% of" in note for note in notes) == 2


def test_an_expression_that_is_not_read_is_reported() -> None:
    config = compressed(weights(8, "float"), ignore=["re:^(?!.*experts).*$"])
    assert any("is not read" in note for note in read(MIXTRAL, quantization_config=config).notes)


def test_nested_alternatives_stay_cheap() -> None:
    patterns = ["re:" + "(a|b|c|d)" * 40, "re:" + "(" * 1000 + "x", "re:" + "()" * 400]
    config = compressed(weights(8, "float"), ignore=[pattern[:1000] for pattern in patterns])
    assert read(LLAMA, quantization_config=config).quantization is not None


DEEP = {**LLAMA, "num_hidden_layers": 2000}
LONG_LISTS: list[tuple[str, list[str], str]] = [
    ("wildcards", ["*a*a*a*a*a*a*a*a*" + str(i) for i in range(20_000)], "9 wildcards"),
    ("numbered", ["*a*a*a*a*a*a*" + str(i) for i in range(2_000)], "2000 wildcards with numbers"),
    ("layers", [f"model.layers.{i % 9}.*a*a*a*{i}*" for i in range(20_000)], "20000 wildcards"),
    ("expressions", [f"re:.*x{i}.(a|b|c|d)(e|f|g|h)(i|j|k|l)" for i in range(20_000)], "20000 expressions"),
    ("long", ["re:" + "(a|b)" * 50_000], "250003 characters"),
    ("stars", ["*" * 1_000], "1000 wildcards"),
    ("many", ["x"] * 20_001, "20001 items"),
]


@pytest.mark.parametrize(("patterns", "part"), [case[1:] for case in LONG_LISTS], ids=[c[0] for c in LONG_LISTS])
def test_a_list_beyond_the_limits_is_refused_at_once(patterns: list[str], part: str) -> None:
    started = time.process_time()
    for field in ("ignore", "targets"):
        group = weights(8, "float")
        config = compressed({**group, "targets": patterns} if field == "targets" else group)
        message = refusal(DEEP, quantization_config={**config, "ignore": patterns} if field == "ignore" else config)
        assert part in message
        assert "at most" in message
    assert time.process_time() - started < 3.0


@pytest.mark.parametrize(
    "patterns",
    [
        [f"model.layers.{i}.mlp.experts.{j}.up_proj" for i in range(20) for j in range(1_000)],
        [f"model.layers.{i % 2000}.*a*b*c*d*e*f*" for i in range(2_048)],
        ["*.self_attn*a*b*c*d*e*" + "x" * (i % 900) for i in range(2_048)],
        [f"re:.*x{'y' * i}.(a|b|c|d)(e|f|g|h)(i|j|k|l)$" for i in range(30)],
        [f"*.a*b*c*{i}*" for i in range(5)],
        [f"re:(a|b|c|d)(e|f|g|h)(i|j|k|l){'m' * i}$" for i in range(512)],
    ],
    ids=["exact", "layers", "plain", "expressions", "numbered", "alternatives"],
)
def test_a_list_within_the_limits_is_read_at_once(patterns: list[str]) -> None:
    started = time.process_time()
    config = compressed(weights(8, "float"), ignore=patterns)
    assert read(DEEP, quantization_config=config).quantization is not None
    assert time.process_time() - started < 2.0


def formats(quantization: Quantization | None) -> dict[str, str | None]:
    assert quantization is not None
    return dict(quantization.tensors)


def test_one_quantized_matrix_of_a_role() -> None:
    """The way DeepSeek in NVFP4 quantizes the output projection and none of the others in attention."""
    kept = ("kv_a_proj_with_mqa", "kv_b_proj", "q_a_proj", "q_b_proj")
    ignore = [f"model.layers.{i}.self_attn.{name}" for i in range(61) for name in kept]
    config = {"quant_method": "modelopt", "quant_algo": "NVFP4", "exclude_modules": [*ignore, "model.layers.61*"]}
    quantization = read(DEEPSEEK, quantization_config=config).quantization
    assert formats(quantization) == {"q_a_proj": None, "q_b_proj": None, "kv_a_proj": None, "kv_b_proj": None}
    assert quantization is not None
    assert quantization.covers == ("attention", "mlp", "shared_experts", "routed_experts")


def test_most_of_a_role_left_alone() -> None:
    """What is quantized in a role that mostly is not stands by its name."""
    config = compressed(weights(8, "float"), ignore=["re:.*self_attn.(q|o)_proj.*"])
    quantization = read(LLAMA, quantization_config=config).quantization
    assert quantization is not None
    assert quantization.covers == ("mlp",)
    assert formats(quantization) == {"kv_proj": "fp8"}


def test_a_format_for_each_listed_module() -> None:
    """Mixed precision: attention in fp8, experts in nvfp4, and the dense layers not listed at all."""
    layers = {f"model.layers.{i}.self_attn.{m}_proj": {"quant_algo": "FP8"} for i in range(32) for m in "qkvo"}
    layers |= {"model.layers.*.block_sparse_moe.experts*": {"quant_algo": "NVFP4", "group_size": 16}}
    config = {"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION", "quantized_layers": layers}
    quantization = read(MIXTRAL, quantization_config=config).quantization
    assert quantization is not None
    assert (quantization.format, quantization.group, quantization.covers) == ("nvfp4", 16, ("routed_experts",))
    assert formats(quantization) == {"q_proj": "fp8", "kv_proj": "fp8", "o_proj": "fp8"}


def test_groups_with_targets() -> None:
    config = {
        "quant_method": "compressed-tensors",
        "config_groups": {
            "a": {**weights(8, "float"), "targets": ["re:.*self_attn.*"]},
            "b": {**weights(4, "int", group_size=128), "targets": ["re:.*mlp.*"]},
        },
    }
    quantization = read(LLAMA, quantization_config=config).quantization
    assert quantization is not None
    assert (quantization.format, quantization.covers) == ("int4-g128", ("mlp",))
    assert formats(quantization) == {"q_proj": "fp8", "kv_proj": "fp8", "o_proj": "fp8"}


def test_quantization_of_a_nested_config() -> None:
    outer = CONFIGS["google--gemma-3-27b-it"]
    config = {"quant_method": "awq", "bits": 4, "group_size": 128}
    at_top = read(outer, quantization_config=config)
    inside = read({**outer, "text_config": {**outer["text_config"], "quantization_config": config}})
    assert at_top.quantization == inside.quantization
    assert at_top.quantization is not None


@pytest.mark.parametrize(
    ("stated", "stored"),
    [("bfloat16", "bf16"), ("torch.float16", "fp16"), ("float32", "fp32")],
)
def test_dtype(stated: str, stored: str) -> None:
    assert read(LLAMA, torch_dtype=stated).stored == stored
    assert read(LLAMA, dtype=stated).stored == stored


def test_a_dtype_that_is_left_out_is_an_assumption_in_the_notes() -> None:
    architecture = read(LLAMA)
    assert architecture.stored == "bf16"
    assert any("bf16 is assumed" in note for note in architecture.notes)
    assert not any("assumed" in note for note in read(LLAMA, torch_dtype="bfloat16").notes)


def test_rope_scaling() -> None:
    scaling = read(LLAMA).rope_scaling
    assert scaling is not None
    assert (scaling.kind, scaling.factor, scaling.original_max_position) == ("llama3", 8.0, 8192)
    assert read(LLAMA, rope_scaling=None).rope_scaling is None
    assert read(LLAMA, rope_scaling={"rope_type": "default"}).rope_scaling is None
    renamed = {k: v for k, v in LLAMA.items() if k != "rope_scaling"}
    again = read(renamed, rope_parameters=LLAMA["rope_scaling"]).rope_scaling
    assert again == scaling
    assert "rope_scaling.factor" in refusal(LLAMA, rope_scaling={"type": "yarn"})
    assert "'spiral'" in refusal(LLAMA, rope_scaling={"type": "spiral", "factor": 2.0})


def test_long_rope_factor_follows_from_the_lengths() -> None:
    config = CONFIGS["microsoft--Phi-3-mini-4k-instruct"]
    longer = read(config, max_position_embeddings=131072, rope_scaling={"type": "longrope"}, sliding_window=None)
    assert longer.rope_scaling is not None
    assert longer.rope_scaling.factor == 32.0


def windows(architecture: Architecture) -> dict[str, tuple[int, int]]:
    return {b.name: (b.count, b.mixer.window) for b in architecture.blocks if isinstance(b.mixer, Attention)}


def test_a_window_as_long_as_the_context_is_full_attention() -> None:
    mistral = CONFIGS["mistralai--Mistral-7B-v0.1"]
    assert windows(read(mistral)) == {"sliding_attention": (32, 4096)}
    assert windows(read(mistral, sliding_window=32768)) == {"full_attention": (32, 0)}
    assert windows(read(mistral, sliding_window=None)) == {"full_attention": (32, 0)}


def test_qwen_slides_only_where_asked() -> None:
    qwen = CONFIGS["Qwen--Qwen2.5-14B"]
    assert windows(read(qwen, sliding_window=4096)) == {"full_attention": (48, 0)}
    asked = read(qwen, sliding_window=4096, use_sliding_window=True, max_window_layers=40)
    assert windows(asked) == {"full_attention": (40, 0), "sliding_attention": (8, 4096)}


def test_layer_types_decide() -> None:
    gemma = CONFIGS["google--gemma-2-27b"]
    kinds = ["full_attention"] * 6 + ["sliding_attention"] * 40
    assert windows(read(gemma, layer_types=kinds)) == {
        "sliding_attention": (40, 4096),
        "full_attention": (6, 0),
    }
    assert "46 items" in refusal(gemma, layer_types=kinds[:-1])
    assert "layer_types" in refusal(gemma, layer_types=["spiral"] * 46)


def test_an_unknown_family_lists_the_known_ones() -> None:
    message = refusal(LLAMA, model_type="mamba9")
    assert "model_type" in message
    assert "'mamba9'" in message
    assert "llama" in message
    assert "deepseek_v3" in message


@pytest.mark.parametrize(
    ("field", "value", "part"),
    [
        ("num_hidden_layers", None, "is missing"),
        ("num_hidden_layers", 0, "from 1 to 2000"),
        ("num_hidden_layers", True, "is true"),
        ("num_hidden_layers", "80", "is '80'"),
        ("num_hidden_layers", 80.0, "is 80.0"),
        ("hidden_size", 10**4000, "integer of"),
        ("hidden_size", -8192, "-8192"),
        ("num_attention_heads", 72, "a divisor of hidden_size"),
        ("num_key_value_heads", 7, "a divisor of num_attention_heads (64)"),
        ("vocab_size", 10**8, "from 1 to 10000000"),
        ("tie_word_embeddings", "false", "true or false"),
        ("torch_dtype", "float8", "bfloat16"),
        ("rope_scaling", [1], "an array of 1 items"),
        ("quantization_config", "fp8", "an object"),
    ],
)
def test_a_wrong_field_is_named(field: str, value: object, part: str) -> None:
    message = refusal(LLAMA, **{field: value})
    assert f"'{field}" in message
    assert part in message
    assert "supported:" in message
    assert message.startswith("test/model: ")
    assert len(message) < 500


@pytest.mark.parametrize(
    ("field", "value"),
    [("num_experts_per_tok", 257), ("n_routed_experts", 10**6), ("kv_lora_rank", None), ("q_lora_rank", -1)],
)
def test_wrong_expert_and_latent_fields(field: str, value: object) -> None:
    assert f"'{field}'" in refusal(DEEPSEEK, **{field: value})


def test_a_missing_query_rank_differs_from_null() -> None:
    without = {k: v for k, v in DEEPSEEK.items() if k != "q_lora_rank"}
    assert "q_lora_rank" in refusal(without)
    names = {t.name for t in read(DEEPSEEK, q_lora_rank=None).blocks[0].tensors}
    assert "q_proj" in names
    assert "q_a_proj" not in names


def test_a_config_is_an_object() -> None:
    with pytest.raises(ValueError, match="object"):
        models.read_config("test/model", [1, 2])  # type: ignore[arg-type]


def nested(depth: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(depth):
        value = [value]
    return value


hostile = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.sampled_from([0, -1, 2, 3, 10**6, 2**63, 10**400, -(10**400), 1e308]),
    st.floats(),
    st.text(max_size=20),
    st.just("x" * 100_000),
    st.lists(st.one_of(st.integers(), st.text(max_size=5), st.floats()), max_size=5),
    st.dictionaries(st.text(max_size=5), st.integers(), max_size=3),
    st.just(nested(3000)),
    st.just({"rope_type": "yarn", "factor": float("nan")}),
    st.just({1: 2, None: 3}),
    st.just(object()),
)


ADDED = ("layer_types", "quantization_config", "text_config", "no_rope_layers", "moe_layers", "head_dim")


@st.composite
def mutated(draw: st.DrawFn) -> dict[str, Any]:
    """A published config with up to four fields changed, dropped or added, nested ones included."""
    config = copy.deepcopy(draw(st.sampled_from(list(CONFIGS.values()))))
    if draw(st.booleans()):
        config["quantization_config"] = copy.deepcopy(draw(st.sampled_from([case[1] for case in QUANTIZED])))
    holders = [config, *(v for v in config.values() if isinstance(v, dict))]
    for _ in range(draw(st.integers(1, 4))):
        holder = draw(st.sampled_from(holders))
        key = draw(st.sampled_from([*holder, "layer_types", "quantization_config", "text_config", "no_rope_layers"]))
        if draw(st.integers(0, 4)) == 0:
            holder.pop(key, None)
        elif isinstance(holder.get(key), list) and draw(st.booleans()):
            holder[key] = [draw(hostile), *holder[key][1:]]
        else:
            holder[key] = draw(hostile)
    return config


@settings(max_examples=400, deadline=None)
@given(mutated())
def test_a_hostile_config_is_refused_or_read(config: dict[str, Any]) -> None:
    """Nothing but ValueError escapes, and what is read is sane."""
    message = "test/model: "
    try:
        architecture = models.read_config("test/model", config)
    except ValueError as error:
        message = str(error)
    else:
        assert architecture.params_total > 0
        assert architecture.params_active <= architecture.params_serving
        assert all(tensor.params > 0 for tensor, _ in architecture.tensors())
    assert message.startswith("test/model: ")
    assert len(message) < 1500


@settings(max_examples=100, deadline=None)
@given(st.dictionaries(st.text(max_size=20), hostile, max_size=8), st.sampled_from(models.families()))
def test_a_made_up_config_is_refused(config: dict[str, Any], family: Any) -> None:
    for model_type in family.model_types:
        with pytest.raises(ValueError, match="config field"):
            models.read_config("test/model", {**config, "model_type": model_type})
