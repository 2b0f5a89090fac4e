"""Hypothesis strategies: accelerators, architectures, step shapes, policy tables, workloads, whole specs.

What is generated is valid: it structures, and mostly composes. Tables of policies and of the spec itself are
drawn from the kinds that their own classes declare, so that a policy that no one thought of yet is generated
too; only where a random value would nearly always be refused (names, degrees of parallelism) does a
strategy here say better.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from hypothesis import strategies as st

from servelint.architecture import Architecture, Attention, Block, Experts, Indexer, LatentAttention, LinearState, Mixer
from servelint.architecture import Quantization as StoredQuantization
from servelint.composition import Composition
from servelint.datasheet import PATTERNS, read_datasheet
from servelint.errors import InfeasibleError
from servelint.hardware import Accelerator
from servelint.manager import Plugins
from servelint.review import Review
from servelint.shapes import StepShape
from servelint.spec.model import CLAIM_METRICS, PERCENTILES, Deployment
from servelint.spec.schema import (
    Anything,
    Ascending,
    Boolean,
    Either,
    Integer,
    Kind,
    Many,
    Named,
    Number,
    Quantity,
    Table,
    Tables,
    Text,
    kinds,
)
from servelint.testing import samples
from servelint.testing.compositions import review_of
from servelint.units import Dimension

Strategy = st.SearchStrategy[Any]

# Hardware


@st.composite
def datasheets(draw: st.DrawFn) -> dict[str, Any]:
    """An accelerator as a parsed datasheet, and so as an inline ``[hardware.datasheet]``."""
    sixteen = draw(_rates(13.0, 15.7))
    dense = {draw(st.sampled_from(("bf16", "fp16"))): sixteen}
    if draw(st.booleans()):
        dense |= {"bf16": sixteen, "fp16": sixteen}
    if "fp16" in dense and draw(st.booleans()):
        dense["fp16_acc16"] = sixteen * draw(st.sampled_from((1.0, 2.0)))
    for precision, gain in (("fp8", 2.0), ("int8", 2.0), ("fp4", 4.0), ("tf32", 0.5), ("fp32", 0.1)):
        if draw(st.booleans()):
            dense[precision] = sixteen * gain * draw(plain_floats(0.5, 2.0))
    sheet: dict[str, Any] = {
        "id": "generated/accelerator",
        "memory": {
            "published_bytes": draw(st.integers(8, 2000)) * 10**9,
            "bandwidth_bytes_per_s": draw(_rates(11.0, 13.5)),
        },
        "compute": {"dense_flops": dense, "sparse_flops": {n: 2 * r for n, r in dense.items() if draw(st.booleans())}},
        "pcie": {"generation": draw(st.integers(3, 6)), "lanes": draw(st.sampled_from((4, 8, 16)))},
    }
    if draw(st.booleans()):
        sheet["die"] = {"l2_bytes": draw(st.integers(0, 300 * 2**20))}
    if draw(st.booleans()):
        one_way = draw(_rates(10.0, 12.3))
        sheet["link"] = {
            "kind": "generated",
            "per_direction_bytes_per_s": one_way,
            "domain": draw(st.sampled_from((2, 4, 8, 16, 72))),
            "pattern": draw(st.sampled_from(PATTERNS)),
            "peer_bytes_per_s": one_way * draw(plain_floats(0.05, 1.0)),
            "in_network_reduction": draw(st.booleans()),
        }
    if draw(st.booleans()):
        fractions = {name: draw(plain_floats(0.05, 1.0)) for name in ("memory", "compute", "link")}
        sheet["efficiency"] = {**fractions, "launch_s": draw(plain_floats(0.0, 2e-5)), "basis": "generated"}
    return sheet


def _rates(low: float, high: float) -> st.SearchStrategy[float]:
    return st.floats(low, high).map(lambda exponent: float(round(10.0**exponent)))


def accelerators() -> st.SearchStrategy[Accelerator]:
    """Accelerators of every kind: with and without links, L2, narrow precisions, measured efficiencies."""
    return datasheets().map(lambda sheet: read_datasheet(sheet, "generated", require_sources=False))


# Models

MIXERS = ("mha", "gqa", "mqa", "mla", "sliding", "chunked", "sparse", "compressed", "indexed", "linear")
"""Kinds of token mixers that `architectures` knows."""


@st.composite
def mixers(draw: st.DrawFn, kind: str) -> Mixer:
    """A token mixer of one of `MIXERS`."""
    heads, dim = draw(st.sampled_from((4, 8, 12, 16, 32))), draw(st.sampled_from((32, 64, 128)))
    if kind == "linear":
        state = heads * dim * draw(st.sampled_from((16, 64, 128)))
        return LinearState(state, draw(st.integers(0, 20_000)), draw(st.sampled_from((2.0, 4.0))))
    if kind in ("mla", "sparse"):
        indexer = None
        if kind == "sparse":
            indexer = Indexer(draw(st.sampled_from((4, 32))), 128, draw(st.sampled_from((256, 2048))), 132.0)
        rank = draw(st.sampled_from((128, 256, 512)))
        return LatentAttention(heads, rank, draw(st.sampled_from((32, 64))), dim, dim, indexer)
    if kind == "compressed":
        stride = draw(st.sampled_from((0, 4, 32)))
        indexer = Indexer(draw(st.sampled_from((4, 32))), 128, 512, 33.0, stride) if stride == 4 else None
        window = draw(st.sampled_from((128, 1024)))
        return LatentAttention(heads, dim, 0, dim, dim, indexer, window, stride)
    kv_heads = {"mha": heads, "mqa": 1}.get(kind) or draw(st.sampled_from([h for h in (1, 2, 4, 8) if heads % h == 0]))
    window = draw(st.sampled_from((128, 1024, 4096))) if kind == "sliding" else 0
    chunk = draw(st.sampled_from((512, 8192))) if kind == "chunked" else 0
    indexer = Indexer(4, 128, draw(st.sampled_from((256, 2048))), 256.0) if kind == "indexed" else None
    return Attention(heads, kv_heads, dim, draw(st.sampled_from((dim, dim, 64))), window, chunk, indexer)


@st.composite
def architectures(
    draw: st.DrawFn, mixer_kinds: Sequence[str] = MIXERS, *, experts: bool | None = None, max_layers: int = 12
) -> Architecture:
    """A model: one to three kinds of token mixers, dense MLPs, experts or both, tied or untied tables.

    ``experts`` True or False asks for models with or without routed experts.
    """
    hidden = draw(st.sampled_from((256, 512, 1024, 4096)))
    layers = range(draw(st.integers(1, max_layers)))
    chosen = draw(st.lists(st.sampled_from(mixer_kinds), min_size=1, max_size=min(3, len(layers)), unique=True))
    blocks = []
    for kind, places in _shares(draw, chosen, layers):
        mixer = draw(mixers(kind))
        if isinstance(mixer, Attention):
            blocks.append(samples.attention_block(kind, places, hidden, mixer))
        elif isinstance(mixer, LatentAttention):
            blocks.append(samples.latent_block(kind, places, hidden, mixer))
        else:
            blocks.append(samples.state_block(kind, places, hidden, 2 * hidden, mixer))
    routed = draw(st.booleans()) if experts is None else experts
    feeds = ["moe", *draw(st.sampled_from(([], ["mlp"])))] if routed else ["mlp"]
    blocks += [_feed(draw, kind, places, hidden) for kind, places in _shares(draw, feeds[: len(layers)], layers)]
    quantization = None
    if draw(st.booleans()):
        covers = draw(
            st.sampled_from((("routed_experts",), ("attention", "mlp"), ("mlp", "shared_experts", "routed_experts")))
        )
        others = draw(st.sampled_from(((), (("o_proj", None),), (("o_proj", "fp8"), ("q_proj", None)))))
        quantization = StoredQuantization(draw(st.sampled_from(("fp8", "mxfp4", "int4-g128"))), covers, tensors=others)
    return samples.model(
        hidden,
        draw(st.sampled_from((1_000, 32_000, 128_256))),
        blocks,
        id="generated/model",
        tied=draw(st.booleans()),
        positions=draw(st.sampled_from((0, 0, 2048))),
        stored=draw(st.sampled_from(("bf16", "bf16", "fp16"))),
        quantization=quantization,
        parallel_blocks=draw(st.booleans()),
    )


def _shares(draw: st.DrawFn, names: Sequence[str], layers: Sequence[int]) -> list[tuple[str, list[int]]]:
    """Deal layers out to names, every name at least one."""
    dealt = list(names) + [draw(st.sampled_from(names)) for _ in layers[len(names) :]]
    dealt = draw(st.permutations(dealt)) if len(names) > 1 else dealt
    return [(name, [layer for layer, owner in zip(layers, dealt, strict=True) if owner == name]) for name in names]


def _feed(draw: st.DrawFn, kind: str, places: Sequence[int], hidden: int) -> Block:
    width = draw(st.sampled_from((256, 1024, 4096)))
    if kind == "mlp":
        return samples.dense_block("mlp", places, hidden, width)
    count = draw(st.sampled_from((4, 8, 60, 128, 256)))
    chosen = Experts(count, draw(st.integers(1, min(count, 8))))
    return samples.expert_block("moe", places, hidden, width, chosen, draw(st.sampled_from((0, width))))


# Step shapes

_counts = st.one_of(st.integers(1, 8), st.integers(1, 2048))
_contexts = st.one_of(st.integers(0, 4096), st.integers(0, 1_000_000))


def decode_shapes() -> st.SearchStrategy[StepShape]:
    """Decode steps: whole sequences, some with several tokens to verify."""
    return st.builds(
        lambda b, s, q: StepShape(float(b), float(s), float(q)),
        _counts,
        _contexts,
        st.one_of(st.just(1), st.integers(1, 9)),
    )


def prefill_shapes() -> st.SearchStrategy[StepShape]:
    """Prefill steps over a cached prefix."""
    return st.builds(
        lambda n, s, c: StepShape(
            prefill_sequences=float(n), prefill_tokens=float(s), prefill_context=float(c), prefill_outputs=1.0
        ),
        st.integers(1, 8),
        st.integers(1, 32_768),
        _contexts,
    )


def step_shapes() -> st.SearchStrategy[StepShape]:
    """Decode, prefill and mixed steps."""
    mixed = st.builds(
        lambda d, p, o: d._replace(
            prefill_sequences=p.prefill_sequences,
            prefill_tokens=p.prefill_tokens,
            prefill_context=p.prefill_context,
            prefill_outputs=o,
        ),
        decode_shapes(),
        prefill_shapes(),
        st.sampled_from((0.0, 1.0)),
    )
    return st.one_of(decode_shapes(), prefill_shapes(), mixed)


# Tables from what their classes declare


def plain_floats(low: float, high: float) -> st.SearchStrategy[float]:
    """Floats of a range that are 0 or no smaller than 1e-9: a spec refuses sizes that nothing has."""
    return st.floats(low, high).map(lambda x: x if x >= 1e-9 else max(low, 0.0))


_SCALES: Mapping[Dimension, tuple[float, float]] = {
    Dimension.BYTES: (1e6, 1e13),
    Dimension.BYTES_PER_SECOND: (1e9, 1e13),
    Dimension.FLOPS_PER_SECOND: (1e12, 1e16),
    Dimension.SECONDS: (1e-5, 100.0),
    Dimension.TOKENS: (1.0, 100_000.0),
    Dimension.TOKENS_PER_SECOND: (1.0, 1e6),
    Dimension.REQUESTS_PER_SECOND: (1e-3, 1e4),
    Dimension.FRACTION: (0.0, 1.0),
    Dimension.COUNT: (1.0, 1000.0),
    Dimension.WATTS: (1.0, 1000.0),
}
_SUFFIX = {
    Dimension.BYTES: "B",
    Dimension.BYTES_PER_SECOND: "B/s",
    Dimension.FLOPS_PER_SECOND: "FLOP/s",
    Dimension.SECONDS: "s",
    Dimension.TOKENS: "tok",
    Dimension.TOKENS_PER_SECOND: "tok/s",
    Dimension.REQUESTS_PER_SECOND: "req/s",
    Dimension.FRACTION: "",
}


def values_of(kind: Kind, *, extreme: bool = False) -> Strategy:
    """Values that a kind accepts; ``extreme`` also those at the ends of what it allows."""
    if isinstance(kind, Boolean):
        return st.booleans()
    if isinstance(kind, Text):
        return st.sampled_from(kind.choices) if kind.choices else st.sampled_from(("alpha", "beta-2", "é \N{ROCKET}"))
    usual: Strategy
    if isinstance(kind, Integer):
        usual = st.integers(kind.minimum, min(kind.maximum, kind.minimum + 64))
        return st.one_of(usual, st.integers(kind.minimum, kind.maximum)) if extreme else usual
    if isinstance(kind, Quantity):
        return _quantities(kind, extreme)
    if isinstance(kind, Number):
        usual = plain_floats(kind.minimum, min(kind.maximum, kind.minimum + 100.0))
        return st.one_of(usual, plain_floats(kind.minimum, kind.maximum)) if extreme else usual
    if isinstance(kind, Many):
        return st.lists(values_of(kind.kind, extreme=extreme), max_size=min(kind.limit, 4))
    if isinstance(kind, Ascending):
        return _ascending(kind, extreme)
    if isinstance(kind, Named):
        keys = st.sampled_from(kind.keys or ("bf16", "fp8", "one"))
        return st.dictionaries(keys, values_of(kind.kind, extreme=extreme), min_size=1, max_size=3)
    if isinstance(kind, Table):
        return tables_of(kind.cls, extreme=extreme)
    if isinstance(kind, Tables):
        return st.lists(tables_of(kind.cls, extreme=extreme), max_size=2)
    if isinstance(kind, Either):
        return st.one_of(values_of(kind.plain, extreme=extreme), values_of(kind.table, extreme=extreme))
    return st.just("anything") if isinstance(kind, Anything) else st.nothing()


def _quantities(kind: Quantity, extreme: bool) -> Strategy:
    low, high = _SCALES[kind.dimension]
    low, high = max(low, kind.minimum), min(high, kind.maximum)
    if extreme:
        low, high = max(kind.minimum, 1e-9 if kind.positive else 0.0), min(kind.maximum, 1e18)
    elif kind.positive and low <= 0:
        low = high * 1e-3
    numbers: Strategy = plain_floats(max(low, 1e-9) if kind.positive else low, high)
    if kind.dimension is Dimension.COUNT:
        return st.integers(int(low), int(high))
    if kind.dimension is Dimension.TOKENS:
        return st.integers(int(low), int(high))
    suffix = _SUFFIX.get(kind.dimension)
    if not suffix:
        return numbers
    return st.one_of(numbers, numbers.map(lambda x: f"{x:.6f} {suffix}" if x >= 1e-3 else x))


def _ascending(kind: Ascending, extreme: bool) -> Strategy:
    order = {"min": -1.0, "max": 2.0}

    def place(name: str) -> float:
        return order.get(name, int(name[1:]) / 10 ** (len(name) - 1) if name[1:].isdigit() else 0.5)

    names = [name for name in kind.keys if name not in ("mean", "std")]

    def spread(chosen: list[str]) -> Strategy:
        values = st.lists(values_of(kind.kind, extreme=extreme), min_size=len(chosen), max_size=len(chosen))
        return values.map(lambda v: dict(zip(sorted(chosen, key=place), sorted(v, key=_size), strict=True)))

    return st.lists(st.sampled_from(names), min_size=1, max_size=3, unique=True).flatmap(spread)


def _size(value: float | str) -> float:
    return float(value.split()[0]) if isinstance(value, str) else float(value)


@st.composite
def tables_of(
    draw: st.DrawFn, cls: type[Any], known: Mapping[str, Strategy] | None = None, *, extreme: bool = False
) -> dict[str, Any]:
    """A table of a spec class: required keys, and any of the others.

    ``known`` gives strategies for keys that need more than their kind says.
    """
    table = {}
    for name, (_, kind, required) in kinds(cls).items():
        if required or draw(st.booleans()):
            values = (known or {}).get(name)
            values = values_of(kind, extreme=extreme) if values is None else values
            if not values.is_empty:
                table[name] = draw(values)
    return {name: value for name, value in table.items() if value is not None}


# Policies

_DEGREES = st.sampled_from((1, 1, 2, 3, 4, 8))
_SMALL = st.sampled_from((1, 1, 1, 2, 4))


@st.composite
def parallelism_tables(draw: st.DrawFn, layers: int = 1) -> dict[str, Any]:
    """Degrees that can be laid out on a model of so many layers."""
    tensor, data = draw(_DEGREES), draw(_SMALL)
    table = {
        "tensor": tensor,
        "data": data,
        "pipeline": draw(st.integers(1, min(layers, 4))) if draw(st.booleans()) else 1,
        "attention_data": draw(st.sampled_from([n for n in range(1, tensor + 1) if tensor % n == 0])),
        "expert": draw(st.sampled_from([n for n in range(1, tensor * data + 1) if (tensor * data) % n == 0])),
        "context": draw(st.sampled_from((1, 1, 1, 2))),
    }
    return {name: value for name, value in table.items() if value > 1 or draw(st.booleans())}


def policy_strategies(plugins: Plugins, layers: int = 1, *, extreme: bool = False) -> dict[str, Strategy]:
    """A strategy for the table of every policy that the plugins provide, by name.

    Disaggregation is left out: its pools are whole deployments, and specs are drawn without them.
    """
    weights = st.sampled_from(sorted({f.name for f in plugins.formats.values()}))
    caches = st.sampled_from(sorted({f.name for f in plugins.formats.values() if f.kv_cache}))
    known: dict[str, dict[str, Strategy]] = {
        "quantization": {
            "weights": weights,
            "kv_cache": st.one_of(st.just("auto"), caches),
            "activations": st.sampled_from(("bf16", "fp8", "int8")),
            "group_size": st.sampled_from((32, 64, 128)),
        },
        "batching": {
            "max_sequences": _counts,
            "max_batched_tokens": st.integers(16, 65_536),
            "prefill_chunk": st.integers(16, 16_384),
            "parallel_samples": st.integers(1, 4),
            "prefill_decode_interval": st.integers(0, 8),
        },
        "kv_cache": {
            "memory_utilization": plain_floats(0.3, 1.0),
            "memory_bytes": plain_floats(1e8, 1e12),
            "max_tokens": st.integers(1, 10_000_000),
            "page_size": st.sampled_from((1, 16, 64, 256)),
        },
        "speculation": {
            "tokens": st.integers(0, 8),
            "acceptance_length": plain_floats(1.0, 9.0),
            "draft_model": st.nothing(),
            "draft_tensor": st.sampled_from((1, 2)),
        },
        "moe": {"skew": plain_floats(1.0, 8.0), "redundant_experts": st.integers(0, 32)},
    }
    found = {
        policy.name: tables_of(policy.config, known.get(policy.name), extreme=extreme)
        for policy in plugins.policies
        if policy.name not in ("disaggregation", "parallelism")
    }
    if any(policy.name == "parallelism" for policy in plugins.policies):
        found["parallelism"] = parallelism_tables(layers)
    return found


@st.composite
def policy_tables(draw: st.DrawFn, plugins: Plugins, layers: int = 1, names: Sequence[str] = ()) -> dict[str, Any]:
    """Tables of some of the policies (all of ``names``, when given), by policy name."""
    strategies = policy_strategies(plugins, layers)
    chosen = [n for n in sorted(strategies) if (n in names if names else draw(st.booleans()))]
    return {name: draw(strategies[name]) for name in chosen}


# Workloads and whole specs


@st.composite
def workloads(draw: st.DrawFn) -> dict[str, Any]:
    """A workload table: lengths by quantiles, arrivals or concurrency, cache hits, growth scenarios."""
    table: dict[str, Any] = {"prompt_tokens": draw(_lengths(20_000)), "output_tokens": draw(_lengths(2_000))}
    if draw(st.booleans()):
        table["rate"] = draw(plain_floats(0.01, 100.0))
        table["arrival_cv"] = draw(plain_floats(0.1, 5.0))
    elif draw(st.booleans()):
        table["concurrency"] = draw(st.integers(1, 512))
    if draw(st.booleans()):
        table["prefix_hit"] = {"value": draw(plain_floats(0.0, 1.0)), "basis": "assumed"}
    if draw(st.booleans()):
        table["growth"] = [{"name": "later", "prompt_tokens": draw(_lengths(200_000))}]
    return table


@st.composite
def _lengths(draw: st.DrawFn, most: int) -> int | dict[str, int]:
    middle = draw(st.integers(1, most))
    if draw(st.booleans()):
        return middle
    return {"p50": middle, "p99": middle + draw(st.integers(0, 4 * most))}


@st.composite
def objectives(draw: st.DrawFn) -> dict[str, Any]:
    """An SLO table."""
    table: dict[str, Any] = {}
    for metric, low, high in (("ttft", 0.01, 20.0), ("itl", 0.001, 0.5), ("tpot", 0.001, 0.5), ("e2e", 0.1, 300.0)):
        if draw(st.booleans()):
            table[metric] = {draw(st.sampled_from(PERCENTILES)): draw(plain_floats(low, high))}
    if draw(st.booleans()):
        table["headroom"] = draw(plain_floats(0.0, 0.9))
    return table


class Generated(NamedTuple):
    """A deployment: its spec as TOML text, and the model that stands for the one it names."""

    spec: str
    architecture: Architecture

    def review(self, plugins: Plugins, accelerator: Accelerator | None = None) -> Review:
        """Return the review of the spec with the generated model, and with another accelerator where one is given."""
        return review_of(self.spec, plugins, architecture=self.architecture, accelerator=accelerator)

    def compose(self, plugins: Plugins) -> Composition | None:
        """Return the composed replica, None when it is infeasible.

        Anything else that keeps it from composing raises AssertionError: a generated spec is valid.
        """
        review = self.review(plugins)
        if review.composition is None:
            assert isinstance(review.infeasible, InfeasibleError), [u.message for u in review.unresolved]
        return review.composition


@st.composite
def deployments(
    draw: st.DrawFn,
    plugins: Plugins,
    models: st.SearchStrategy[Architecture] | None = None,
    *,
    policies: Sequence[str] = (),
) -> Generated:
    """A deployment of a generated model on a generated accelerator.

    ``policies`` names the policy tables to draw; by default any of those that the plugins provide.
    """
    architecture = draw(architectures() if models is None else models)
    hardware: dict[str, Any] = {"datasheet": draw(datasheets())}
    tables = draw(policy_tables(plugins, architecture.num_layers, policies))
    if draw(st.booleans()):
        hardware["devices_per_node"] = draw(st.sampled_from((1, 2, 4, 8)))
    if draw(st.booleans()):
        hardware["network"] = {"bandwidth": draw(_rates(9.0, 11.5)), "per": draw(st.sampled_from(("device", "node")))}
    if draw(st.booleans()):
        hardware["efficiency"] = {name: draw(plain_floats(0.05, 1.0)) for name in ("memory", "compute", "link")}
    spec: dict[str, Any] = {
        "servelint": 1,
        "hardware": hardware,
        "model": {"id": architecture.id, "max_model_len": draw(st.sampled_from((2048, 32_768, 131_072)))},
        "policy": tables,
        "workload": draw(workloads()),
        "slo": draw(objectives()),
    }
    return Generated(toml(spec), architecture)


@st.composite
def specs(draw: st.DrawFn, plugins: Plugins, *, extreme: bool = False) -> str:
    """A valid spec as text, of catalogue names and of anything that its tables allow.

    ``extreme`` draws values from the whole range that each key accepts.
    """
    known = _spec_tables(plugins, extreme)
    table = draw(tables_of(Deployment, known, extreme=extreme))
    table |= {name: draw(known[name]) for name in ("hardware", "model") if name not in table}
    table["claim"] = draw(st.lists(_claims(extreme), max_size=2))
    policies = policy_strategies(plugins, 4, extreme=extreme)
    if extreme:
        policies |= {p.name: tables_of(p.config, _names(plugins), extreme=True) for p in plugins.policies}
    table["policy"] = {n: draw(policies[n]) for n in sorted(policies) if draw(st.booleans())}
    return toml({"servelint": 1, **table})


def _names(plugins: Plugins) -> dict[str, Strategy]:
    formats = st.sampled_from(sorted(plugins.formats))
    return {
        "weights": formats,
        "kv_cache": formats,
        "activations": formats,
        "accelerator": st.sampled_from(plugins.accelerators.ids()),
        "draft_model": st.sampled_from(plugins.models.ids()),
    }


def _spec_tables(plugins: Plugins, extreme: bool) -> dict[str, Strategy]:
    fields = {name: kind for name, (_, kind, _) in kinds(Deployment).items()}

    def table(name: str, known: dict[str, Strategy]) -> Strategy:
        kind = fields[name]
        assert isinstance(kind, Table)
        return tables_of(kind.cls, known, extreme=extreme)

    lengths = None if extreme else {"prompt_tokens": _lengths(20_000), "output_tokens": _lengths(2_000)}
    nothing: Strategy = st.nothing()
    accelerators = st.sampled_from(plugins.accelerators.ids())
    return {
        "hardware": table(
            "hardware",
            {
                "accelerator": accelerators,
                "instance": nothing,
                "datasheet": datasheets() if extreme else nothing,
                "devices": st.sampled_from((1, 2, 4, 8, 16)),
            },
        ).map(lambda h: {"accelerator": "nvidia/h100-sxm5-80gb", **h}),
        "model": table("model", {"config": nothing, "override": nothing}).flatmap(
            lambda m: st.sampled_from(plugins.models.ids()).map(lambda name: {**m, "id": name})
        ),
        "engine": table(
            "engine",
            {
                "name": st.sampled_from(sorted(plugins.engines)),
                "version": st.sampled_from(("0.11", "0.6.3", "1.0")),
                "args": nothing,
                "args_from": nothing,
                "env": nothing,
            },
        ),
        "workload": table("workload", {**(lengths or {}), "trace": nothing, "growth": nothing}),
        "claim": nothing,
    }


@st.composite
def _claims(draw: st.DrawFn, extreme: bool) -> dict[str, Any]:
    kind = kinds(Deployment)["claim"][1]
    assert isinstance(kind, Tables)
    table: dict[str, Any] = draw(tables_of(kind.cls, extreme=extreme))
    table["metric"] = draw(st.sampled_from(sorted(CLAIM_METRICS)))
    table["value"] = draw(values_of(CLAIM_METRICS[table["metric"]], extreme=extreme))
    return table


# TOML


def toml(table: Mapping[str, Any]) -> str:
    """Write a mapping of plain values as TOML: tables under headers, tables in arrays inline."""
    lines = [f"{_key(k)} = {_value(v)}" for k, v in table.items() if not isinstance(v, Mapping)]
    for name, value in table.items():
        if isinstance(value, Mapping):
            lines += _section((name,), value)
    return "\n".join(lines) + "\n"


def _section(path: tuple[str, ...], table: Mapping[str, Any]) -> list[str]:
    lines = [f"[{'.'.join(map(_key, path))}]"]
    lines += [f"{_key(k)} = {_value(v)}" for k, v in table.items() if not isinstance(v, Mapping)]
    for name, value in table.items():
        if isinstance(value, Mapping):
            lines += _section((*path, name), value)
    return lines


def _key(name: str) -> str:
    return name if name and all(c.isascii() and (c.isalnum() or c in "-_") for c in name) else _text(name)


def _text(text: str) -> str:
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{_key(k)} = {_value(v)}" for k, v in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_value, value)) + "]"
    return repr(value)
