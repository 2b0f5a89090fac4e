"""The ledger against facts that were checked with the reference implementation's module tree.

Conventions, where sources differ:

* Totals are the main model with its vision tower; multi-token-prediction modules come on top, without the
  copies of embedding and head that some checkpoints store beside them.
* Buffers that a checkpoint holds (routing-correction biases) are no parameters.
* Active parameters count the embedding whole and, of routed experts, only those that a token uses.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from servelint.architecture import Architecture, Attention, LatentAttention, LinearState, Tensor
from servelint.composition import resolve_formats
from servelint.layout import lay
from servelint.manager import Plugins
from servelint.resources import CacheIO, Matmul, StateIO
from servelint.shapes import decode
from servelint_plugins import models

FACTS = Path(__file__).parents[2] / "data" / "facts"
ROWS: list[dict[str, Any]] = [json.loads(line) for line in (FACTS / "models.jsonl").read_text().splitlines()]
CATALOGUE = dict(models.catalogue())

ROLES = {
    "embed": "embedding",
    "pos_embed": "embedding",
    "lm_head": "lm_head",
    "norm": "norm",
    "attn": "attention",
    "indexer": "attention",
    "ssm": "ssm",
    "linear_attn": "ssm",
    "mlp": "mlp",
    "router": "router",
    "routed_experts": "routed_experts",
    "shared_experts": "shared_experts",
    "vision": "vision",
    "projector": "vision",
}
"""Our role of each role in the facts."""

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


def read(row: dict[str, Any]) -> Architecture:
    return models.read_config(row["id"], json.loads((FACTS / row["config_file"]).read_text()))


def mtp(architecture: Architecture) -> int:
    return architecture.params_by_role.get("mtp", 0)


each_model = pytest.mark.parametrize("row", ROWS, ids=[row["id"] for row in ROWS])


def test_the_facts_are_all_there() -> None:
    assert len(ROWS) == 44
    assert len({row["id"] for row in ROWS}) == 44


@each_model
def test_parameters_by_role(row: dict[str, Any]) -> None:
    expected: dict[str, int] = {}
    for role, params in row["params_by_role"].items():
        expected[ROLES[role]] = expected.get(ROLES[role], 0) + params
    found = read(row).params_by_role
    found.pop("mtp", None)
    assert found == expected


@each_model
def test_totals(row: dict[str, Any]) -> None:
    architecture = read(row)
    assert architecture.params_total - mtp(architecture) == row["params_total"]
    assert architecture.params_serving == row["params_language_model"]
    assert architecture.params_active == row["params_active"]
    assert architecture.lm_head_tied == row["lm_head_tied"]


@each_model
def test_active_parameters_without_the_input_table(row: dict[str, Any]) -> None:
    architecture = read(row)
    tables = architecture.positions.params if architecture.positions else 0
    if not architecture.lm_head_tied:
        tables += architecture.embedding.params
    assert architecture.params_active - tables == row["params_active_excl_input_embedding"]


PUBLISHED = [
    (row, published)
    for row in ROWS
    for published in row["published"]
    if "total" in published.get("parts", ())
    and set(published["parts"]) <= {"total", "buffers", "mtp", "mtp_dup", "inv_freq"}
    and row["id"] != "moonshotai/Kimi-K2-Instruct"  # Published totals differ by elements nobody explains.
    and "Coder-Next" not in published["what"]
]


@pytest.mark.parametrize(("row", "published"), PUBLISHED, ids=[f"{row['id']}-{p['value']}" for row, p in PUBLISHED])
def test_published_checkpoint_totals(row: dict[str, Any], published: dict[str, Any]) -> None:
    architecture = models.load(CATALOGUE[row["id"]])
    parts = published["parts"]
    total = architecture.params_total - mtp(architecture)
    if "buffers" in parts:
        total += row["params_checkpoint_buffers"]
    if "mtp" in parts:
        total += mtp(architecture)
        if "buffers" in parts:
            total += row["num_experts"]  # The MTP layer's own routing-correction biases.
    if "mtp_dup" in parts:
        total += 2 * architecture.embedding.params
    if "inv_freq" in parts:
        total += row["num_hidden_layers"] * row["head_dim"] // 2
    # A delta is a named difference of some checkpoint, such as stored copies of the KV heads.
    assert total + published.get("delta", 0) == published["value"]


@each_model
def test_layers_by_kind(row: dict[str, Any]) -> None:
    architecture = read(row)
    blocks = {block.name: block for block in architecture.blocks}
    expected: dict[str, int] = {}
    for kind, count in row["layer_kinds"].items():
        if kind != "none":
            expected[KINDS[kind]] = expected.get(KINDS[kind], 0) + count
    assert {name: block.count for name, block in blocks.items() if block.mixer is not None} == expected
    mixing = sorted(i for block in blocks.values() if block.mixer for i in block.layers)
    assert len(mixing) == architecture.num_layers - row["layer_kinds"].get("none", 0)
    assert len(set(mixing)) == len(mixing)
    if row["full_attention_layer_indices"] != "all":
        full = blocks["full_attention"].layers if "full_attention" in blocks else ()
        assert list(full) == row["full_attention_layer_indices"]


@each_model
def test_kv_cache(row: dict[str, Any]) -> None:
    architecture = read(row)
    elements = architecture.kv_elements_per_token()
    assert 2 * elements["full"] == row["kv_bytes_per_token_bf16_full_layers"]
    limited = {"swa": "sliding", "chunked": "chunked"}.get(row["swa_kind"], "sliding")
    assert 2 * elements[limited] == row["kv_bytes_per_token_bf16_swa_layers"]
    assert 2 * sum(elements.values()) == row["kv_bytes_per_token_bf16_all_layers"]
    # The facts list the index cache apart from the KV cache.
    for context, expected in row["kv_bytes_per_seq_bf16_at"].items():
        index = int(context) * architecture.indexer_bytes_per_token()
        assert architecture.kv_bytes_per_sequence(int(context)) - index == expected


@each_model
def test_windows(row: dict[str, Any]) -> None:
    mixers = [b.mixer for b in read(row).blocks if isinstance(b.mixer, Attention)]
    limits = {mixer.window or mixer.chunk for mixer in mixers} - {0}
    assert limits == ({row["swa_window"]} if row["swa_window"] else set())


@each_model
def test_index_cache(row: dict[str, Any]) -> None:
    architecture = read(row)
    blocks = [b for b in architecture.blocks if isinstance(b.mixer, LatentAttention) and b.mixer.indexer]
    in_16_bit = sum(2 * b.count * b.mixer.indexer.head_dim for b in blocks)  # type: ignore[union-attr]
    assert in_16_bit == row["kv_indexer_bytes_per_token_bf16"]
    # As deployed: fp8 keys and one fp32 scale for each 128 of them.
    assert architecture.indexer_bytes_per_token() == row["kv_indexer_bytes_per_token_bf16"] * 132 / 256


@each_model
def test_fixed_state(row: dict[str, Any]) -> None:
    architecture = read(row)
    states = [(b.count, b.mixer) for b in architecture.blocks if isinstance(b.mixer, LinearState)]
    expected = row["state_bytes_per_seq"] or {
        "recurrent_elements": 0,
        "conv_elements": 0,
        "recurrent_fp32_conv_bf16": 0,
    }
    assert sum(count * mixer.recurrent_elements for count, mixer in states) == expected["recurrent_elements"]
    assert sum(count * mixer.conv_elements for count, mixer in states) == expected["conv_elements"]
    assert architecture.state_bytes_per_sequence() == expected["recurrent_fp32_conv_bf16"]


@each_model
def test_shapes(row: dict[str, Any]) -> None:
    architecture = read(row)
    assert architecture.model_type == row["model_type"]
    assert architecture.hidden_size == row["hidden_size"]
    assert architecture.num_layers == row["num_hidden_layers"]
    assert architecture.vocab_size == row["vocab_size"]
    config = json.loads((FACTS / row["config_file"]).read_text())
    assert architecture.max_position == config.get("model_max_length", row["max_position_embeddings"])
    routed = {(b.experts.count, b.experts.top_k) for b in architecture.blocks if b.experts}
    assert routed == ({(row["num_experts"], row["experts_per_token"])} if row["num_experts"] else set())


@each_model
def test_catalogue_holds_the_same_model(row: dict[str, Any]) -> None:
    shipped = models.load(CATALOGUE[row["id"]])
    reference = read(row)
    assert shipped.blocks == reference.blocks
    assert set(row["aliases"]) <= {*shipped.aliases, *CATALOGUE}
    assert set(models.aliases(CATALOGUE[row["id"]])) == set(shipped.aliases)
    native = row["native_weight_dtype"]
    assert shipped.stored == ("fp16" if native.startswith("fp16") else "bf16")
    formats = {"fp8": "fp8-block128", "mxf": "mxfp4"}
    found = shipped.quantization.format if shipped.quantization else None
    assert found == formats.get(native[:3])


each_file = pytest.mark.parametrize("model_id", sorted(CATALOGUE))


@each_file
def test_every_catalogue_file_loads(model_id: str) -> None:
    architecture = models.load(CATALOGUE[model_id])
    assert architecture.id == model_id
    assert architecture.sources
    assert architecture.model_type in {t for family in models.families() for t in family.model_types}
    assert not any("assumed" in note for note in architecture.notes)
    assert min(tensor.params for tensor, _ in architecture.tensors()) > 0


@each_file
def test_every_layer_reduces_what_it_splits(model_id: str) -> None:
    """A block whose matrices are split by heads, width or experts has an output side to reduce."""

    def split(tensor: Tensor) -> bool:
        return tensor.matmul and tensor.axis != "replicated"

    for block in models.load(CATALOGUE[model_id]).blocks:
        assert len({tensor.name for tensor in block.tensors}) == len(block.tensors)
        assert any(map(split, block.tensors)) == any(tensor.reduced for tensor in block.tensors)
        assert list(block.layers) == sorted(set(block.layers))


def test_published_totals_of_the_catalogue() -> None:
    """Totals that a catalogue file states beside its config are the ledger's."""
    checked = 0
    for path in CATALOGUE.values():
        published = models.published(path)
        if not published:
            continue
        architecture = models.load(path)
        assert architecture.params_total - mtp(architecture) == published["params_total"]
        assert architecture.params_active == published["params_active"]
        checked += 1
    assert checked >= 44


TREES: dict[str, int] = json.loads((FACTS / "module_trees.json").read_text())["params"]
REFERENCES: list[dict[str, Any]] = [
    json.loads(line) for line in (FACTS / "reference_configs.jsonl").read_text().splitlines()
]


@pytest.mark.parametrize("model_id", sorted(TREES))
def test_catalogue_against_the_reference_implementation(model_id: str) -> None:
    """Totals of the module trees that ``tests/accuracy/module_trees.py`` counts for the same configs."""
    architecture = models.load(CATALOGUE[model_id])
    assert architecture.params_total - mtp(architecture) == TREES[model_id]


@pytest.mark.parametrize("row", REFERENCES, ids=[f"{i}-{row['model_type']}" for i, row in enumerate(REFERENCES)])
def test_families_against_the_reference_implementation(row: dict[str, Any]) -> None:
    """The same for class defaults of every family there, and for switches that real models leave alone."""
    architecture = models.read_config("test/model", row["config"])
    assert architecture.params_total - mtp(architecture) == row["params"]


def test_every_family_is_checked() -> None:
    checked = {row["model_type"] for row in (*ROWS, *REFERENCES)}
    checked |= {models.load(path).model_type for path in CATALOGUE.values()}
    known = {model_type for family in models.families() for model_type in family.model_types}
    assert known - checked == {"gemma4_text", "minimax_text_01"}  # Other names of ones that are.


def axes(model_id: str, block: str) -> dict[str, str]:
    blocks = {b.name: b for b in models.load(CATALOGUE[model_id]).blocks}
    return {t.name: t.axis for t in blocks[block].tensors}


def test_axes_that_tensor_parallelism_splits() -> None:
    assert axes("meta-llama/Llama-3.1-8B", "full_attention") == {
        "q_proj": "heads",
        "kv_proj": "kv_heads",
        "o_proj": "heads",
        "input_norm": "replicated",
    }
    assert axes("meta-llama/Llama-3.1-8B", "mlp")["gate_up_proj"] == "width"
    latent = axes("deepseek-ai/DeepSeek-V3.2", "latent_attention")
    replicated = {name for name, axis in latent.items() if axis == "replicated"}
    assert replicated == {
        "q_a_proj",
        "q_a_norm",
        "kv_a_proj",
        "kv_a_norm",
        "input_norm",
        "indexer_q_proj",
        "indexer_k_proj",
        "indexer_k_norm",
        "indexer_weights_proj",
    }
    moe = axes("deepseek-ai/DeepSeek-V3", "moe")
    assert moe["router"] == "replicated"
    assert moe["experts_gate_up"] == moe["experts_down"] == "experts"
    assert moe["shared_gate_up"] == moe["shared_down"] == "width"


def test_kimi_linear_by_kinds_of_layers() -> None:
    """Parameters by kind as the inventory counts them that the catalogue names."""
    architecture = models.load(CATALOGUE["moonshotai/Kimi-Linear-48B-A3B-Instruct"])
    params = {b.name: (len(b.layers), sum(t.params for t in b.tensors)) for b in architecture.blocks}
    norms = 2304
    assert params["linear_attention"] == (20, 790_285_440 // 20 + norms)
    assert params["latent_attention"] == (7, 203_804_160 // 7 + norms)
    (state,) = [b.mixer for b in architecture.blocks if isinstance(b.mixer, LinearState)]
    assert (state.recurrent_elements, state.conv_elements) == (32 * 128 * 128, 3 * 32 * 128 * 3)
    linear = axes("moonshotai/Kimi-Linear-48B-A3B-Instruct", "linear_attention")
    assert {name for name, axis in linear.items() if axis == "replicated"} == {
        "gates_down",
        "gated_norm",
        "input_norm",
    }


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("full_attn_layers", [0, 4], "full_attn_layers"),
        ("full_attn_layers", [28], "full_attn_layers"),
        ("num_heads", None, "num_heads"),
    ],
)
def test_layers_of_kimi_linear_are_checked(field: str, value: object, message: str) -> None:
    config = dict(models.config(CATALOGUE["moonshotai/Kimi-Linear-48B-A3B-Instruct"]))
    linear = config["linear_attn_config"]
    assert isinstance(linear, dict)
    config["linear_attn_config"] = {**linear, field: value}
    with pytest.raises(ValueError, match=message):
        models.read_config("test/model", config)


def test_an_output_bias_is_added_once() -> None:
    """Every rank would add its own copy to the sum otherwise."""
    attention = axes("openai/gpt-oss-120b", "full_attention")
    assert attention["q_bias"] == "heads"
    assert attention["kv_bias"] == "kv_heads"
    assert attention["o_bias"] == "replicated"


def test_variants_differ_from_their_base_only_where_they_say() -> None:
    base = models.load(CATALOGUE["meta-llama/Llama-3.1-70B"])
    awq = models.load(CATALOGUE["hugging-quants/Meta-Llama-3.1-70B-Instruct-AWQ-INT4"])
    assert awq.blocks == base.blocks
    assert (base.stored, awq.stored) == ("bf16", "fp16")
    assert base.quantization is None
    assert awq.quantization is not None
    instruct = models.load(CATALOGUE["Qwen/Qwen2.5-7B-Instruct"])
    assert instruct.max_position == 32768
    assert models.load(CATALOGUE["Qwen/Qwen2.5-7B"]).max_position == 131072


def test_shared_index_layers_keep_no_keys() -> None:
    architecture = models.load(CATALOGUE["zai-org/GLM-5.2"])
    counts = {b.name: b.count for b in architecture.blocks if isinstance(b.mixer, LatentAttention)}
    assert sum(counts.values()) == 78
    assert architecture.indexer_bytes_per_token() == 132 * counts["latent_attention"]


def test_no_name_stands_for_two_models() -> None:
    names = {model_id.casefold(): model_id for model_id in CATALOGUE}
    for model_id, path in CATALOGUE.items():
        for alias in models.aliases(path):
            assert names.setdefault(alias.casefold(), model_id) == model_id, alias


def test_listing_imports_no_reader() -> None:
    """Start-up pays for the directory listing only."""
    code = (
        "import sys\n"
        "from servelint_plugins import models\n"
        "assert models.catalogue() and models.families()\n"
        "loaded = [m for m in sys.modules if m.startswith('servelint_plugins.models.')]\n"
        "assert loaded == ['servelint_plugins.models.fields'], loaded\n"
        "models.load(dict(models.catalogue())['meta-llama/Llama-3.1-8B'])\n"
        "loaded = [m for m in sys.modules if m.startswith('servelint_plugins.models.readers.')]\n"
        "assert loaded == ['servelint_plugins.models.readers.llama'], loaded\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, env={"PYTHONPATH": ":".join(sys.path)})


def test_a_checkpoint_stores_one_matrix_of_a_role_in_its_own_format() -> None:
    """NVFP4 checkpoints of DeepSeek quantize the output projection of attention alone; it is priced so."""
    architecture = models.load(CATALOGUE["nvidia/DeepSeek-V3.1-NVFP4"])
    formats = resolve_formats(Plugins(), architecture)
    attention = next(b for b in architecture.blocks if b.name == "latent_attention")
    found = {t.name: formats.of(t).name for t in attention.tensors if t.matmul}
    assert found == {
        "q_a_proj": "bf16",
        "q_b_proj": "bf16",
        "kv_a_proj": "bf16",
        "kv_b_proj": "bf16",
        "o_proj": "nvfp4",
    }
    moe = next(b for b in architecture.blocks if b.name == "moe")
    assert {formats.of(t).name for t in moe.tensors if t.role == "routed_experts"} == {"nvfp4"}


@pytest.mark.parametrize(
    ("model_id", "experts", "others"),
    [
        ("deepseek-ai/DeepSeek-V4-Flash", "mxfp4", "fp8-block128"),
        ("nvidia/DeepSeek-V4-Pro-NVFP4", "nvfp4", "fp8-block128"),
        ("nvidia/Qwen3.6-35B-A3B-NVFP4", "nvfp4", "fp8"),
    ],
)
def test_checkpoints_of_two_formats(model_id: str, experts: str, others: str) -> None:
    architecture = models.load(CATALOGUE[model_id])
    formats = resolve_formats(Plugins(), architecture)
    tensors = [t for b in architecture.blocks for t in b.tensors if t.matmul]
    assert {formats.of(t).name for t in tensors if t.role == "routed_experts"} == {experts}
    assert {formats.of(t).name for t in tensors if t.role == "attention"} == {others}


def test_the_cache_of_compressed_attention() -> None:
    """DeepSeek-V4-Flash: 21 layers keep an entry and an index key for 4 tokens, 20 an entry for 128, all a window."""
    architecture = models.load(CATALOGUE["deepseek-ai/DeepSeek-V4-Flash"])
    counts = {b.name: b.count for b in architecture.blocks if isinstance(b.mixer, LatentAttention)}
    assert counts == {"sliding_attention": 2, "compressed_sparse_attention": 21, "heavily_compressed_attention": 20}
    elements = architecture.kv_elements_per_token()
    assert elements == {"full": 21 * 512 // 4 + 20 * 512 // 128, "sliding": 43 * 512, "chunked": 0}
    assert architecture.indexer_bytes_per_token() == 21 * 132 / 4
    grown = 100_000 * (elements["full"] * 2 + 21 * 33)
    assert architecture.kv_bytes_per_sequence(100_000) == grown + 128 * 43 * 512 * 2


def test_the_cache_of_indexed_attention() -> None:
    """MiniMax-M3 keeps every key and value, and in 57 of 60 layers one index key of 128 elements a token."""
    architecture = models.load(CATALOGUE["MiniMaxAI/MiniMax-M3"])
    mixers = {b.name: (b.count, b.mixer) for b in architecture.blocks if isinstance(b.mixer, Attention)}
    assert {name: count for name, (count, _) in mixers.items()} == {"full_attention": 3, "sparse_attention": 57}
    assert architecture.kv_elements_per_token()["full"] == 60 * 2 * 4 * 128
    assert architecture.indexer_bytes_per_token() == 57 * 256
    indexer = mixers["sparse_attention"][1].indexer
    assert indexer is not None
    assert indexer.reach == 16 * 128


DEPLOYED = """
01-ai/Yi-34B ai21labs/AI21-Jamba-1.5-Large ai21labs/Jamba-v0.1 bigcode/starcoder2-15b databricks/dbrx-instruct
CohereForAI/c4ai-command-r-plus CohereForAI/c4ai-command-r-v01 deepseek-ai/DeepSeek-R1 deepseek-ai/DeepSeek-V2-Lite
deepseek-ai/DeepSeek-V3.2 deepseek-ai/DeepSeek-V3 deepseek-ai/DeepSeek-V4-Flash deepseek-ai/DeepSeek-V4-Pro
EleutherAI/gpt-j-6b facebook/opt-13b facebook/opt-66b google/gemma-2-27b google/gemma-2-9b google/gemma-3-12b-it
google/gemma-3-27b-it google/gemma-3-4b-it google/gemma-4-31B-it ibm-granite/granite-3.1-8b-instruct
ibm-granite/granite-4.0-h-small meta-llama/Llama-2-13b-hf meta-llama/Llama-2-70b-hf meta-llama/Llama-2-7b-hf
meta-llama/Llama-3.1-405B meta-llama/Llama-3.1-70B meta-llama/Llama-3.1-8B meta-llama/Llama-3.2-1B
meta-llama/Llama-3.2-3B meta-llama/Llama-3.3-70B-Instruct meta-llama/Llama-4-Maverick-17B-128E-Instruct
meta-llama/Llama-4-Scout-17B-16E-Instruct microsoft/Phi-3-mini-128k-instruct microsoft/Phi-3-mini-4k-instruct
microsoft/phi-4 MiniMaxAI/MiniMax-M1-80k MiniMaxAI/MiniMax-M2 MiniMaxAI/MiniMax-M3 mistralai/Mistral-7B-v0.1
mistralai/Mistral-7B-v0.3 mistralai/Mistral-Large-Instruct-2407 mistralai/Mistral-Small-24B-Instruct-2501
mistralai/Mixtral-8x22B-v0.1 mistralai/Mixtral-8x7B-v0.1 moonshotai/Kimi-K2-Instruct moonshotai/Kimi-K2.5
nvidia/Llama-3.1-Nemotron-70B-Instruct-HF nvidia/Nemotron-H-56B-Base-8K nvidia/Nemotron-H-8B-Base-8K
nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16 openai/gpt-oss-120b openai/gpt-oss-20b Qwen/Qwen2.5-0.5B Qwen/Qwen2.5-1.5B
Qwen/Qwen2.5-14B Qwen/Qwen2.5-32B Qwen/Qwen2.5-3B Qwen/Qwen2.5-72B Qwen/Qwen2.5-7B Qwen/Qwen3-0.6B Qwen/Qwen3-1.7B
Qwen/Qwen3-14B Qwen/Qwen3-235B-A22B Qwen/Qwen3-30B-A3B Qwen/Qwen3-32B Qwen/Qwen3-4B Qwen/Qwen3-8B Qwen/Qwen3.5-27B
Qwen/Qwen3-Coder-480B-A35B-Instruct Qwen/Qwen3-Next-80B-A3B-Thinking tiiuae/falcon-40b tiiuae/falcon-7b
zai-org/GLM-4.5-Air zai-org/GLM-4.5 zai-org/GLM-4.6 zai-org/GLM-5
"""


def test_models_that_people_deploy_are_known_by_their_names() -> None:
    known = {*CATALOGUE, *(alias for path in CATALOGUE.values() for alias in models.aliases(path))}
    assert set(DEPLOYED.split()) - known == set()


def test_module_trees_are_there_for_all_but_the_ones_named() -> None:
    """Every model is compared with the reference implementation, or the facts say why it cannot be."""
    facts = json.loads((FACTS / "module_trees.json").read_text())
    assert {*facts["params"], *facts["without"]} == set(CATALOGUE)
    assert set(facts["without"]) == {"MiniMaxAI/MiniMax-M1-80k"}
    assert facts["versions"]["transformers"] in facts["source"]


def core(model_id: str, block: str) -> tuple[float, float, float]:
    """FLOPs, cache elements read and index bytes read of one sequence's next token in one layer's attention."""
    architecture = models.load(CATALOGUE[model_id])
    graph = lay(architecture, resolve_formats(Plugins(), architecture))
    step = decode(1.0, 10_000.0)
    (op,) = (op for op in graph.ops if op.name == f"{block}.core")
    flops = sum(d.coefficient * float(d.feature.count(step)) for d in op.demands if isinstance(d, Matmul))
    read = sum(
        d.coefficient * float(d.feature.count(step)) for d in op.demands if isinstance(d, CacheIO) and not d.write
    )
    index = max((d.coefficient * float(d.feature.count(step)) for d in op.demands if isinstance(d, StateIO)), default=0)
    return flops, read, index


def test_work_of_compressed_attention() -> None:
    """512 picked entries of 4 tokens, or all 78 of 128, and the last 128 tokens, of which one is new.

    Keys are read once, as values too.
    """
    pair = 2 * 64 * (512 + 512)
    scan = 2 * 64 * 128 / 4 * 10_001
    model_id = "deepseek-ai/DeepSeek-V4-Flash"
    assert core(model_id, "compressed_sparse_attention") == (
        pair * (128 + 512) + scan,
        (127 + 512) * 512,
        10_000 * 132 / 4,
    )
    flops, read, index = core(model_id, "heavily_compressed_attention")
    assert flops == pytest.approx(pair * (128 + 10_001 / 128))
    assert (read, index) == (127 * 512 + 10_000 * 4, 0)
    assert core(model_id, "sliding_attention") == (pair * 128, 127 * 512, 0)


def test_work_of_indexed_attention() -> None:
    """16 blocks of 128 tokens, found by scanning all keys of the index."""
    flops, read, index = core("MiniMaxAI/MiniMax-M3", "sparse_attention")
    assert flops == 2 * 64 * (128 + 128) * 2048 + 2 * 4 * 128 * 10_001
    assert (read, index) == (2048 * 2 * 4 * 128, 10_000 * 256)
