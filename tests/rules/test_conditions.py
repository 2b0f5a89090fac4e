"""What the rules' conditions and helpers let through on either side, each against a closed form or counted by hand."""

from __future__ import annotations

import math
import re
from statistics import NormalDist
from types import SimpleNamespace
from typing import Any

import pytest
from attrs import evolve

from servelint.architecture import RopeScaling
from servelint.config import Config
from servelint.manager import Plugins
from servelint.review import Review
from servelint.rule import Case, Finding, Rule
from servelint.served import positions
from servelint.testing import compose, review_of, samples
from servelint.testing.rules import edited, flipped, key_path, run_case
from servelint_rules.ctx.ctx002_context_distribution_missing import DEVIATES, Doubt, _stretched
from servelint_rules.dec.splits import degrees, plain, splits, spread
from servelint_rules.hw.hw010_double_count import BOARDS, RANKS
from servelint_rules.mem.mem003_kv_pressure_cascade import Held, _admitted, _held, _load, _reserves
from servelint_rules.mem.mem005_stranded_memory import _empty, _halved
from servelint_rules.spd.spd004_k_too_long import _th
from servelint_rules.variants import MOST_TOKENS, larger_budgets, replicas_for

H100 = 'servelint = 1\n[hardware]\naccelerator = "nvidia/h100-sxm5-80gb"\n'
MODEL = '[model]\nid = "meta-llama/Llama-3.1-8B"\nmax_model_len = 8192\n'
RULES = Plugins().rules


def findings(code: str, text: str, plugins: Plugins, files: tuple[tuple[str, str], ...] = ()) -> list[Finding]:
    found = run_case(Case("", text, files=files), plugins, Config(select=(code,), preview=True))
    assert not plugins.faults, plugins.faults
    return [f.finding for f in found.findings if f.finding.code == code]


# Claims in company

CLAIM = re.compile(r"\[\[claim\]\]\n(?:(?!\[(?!claim\.)).*\n?)*")
ONE_CLAIM = [
    pytest.param(rule, case, id=f"{rule.code}-{i}")
    for rule in RULES
    for i, case in enumerate(rule.failing)
    if len(CLAIM.findall(case.spec)) == 1 and case.flip is not None and case.flip[0].startswith("claim[0]")
]


@pytest.mark.parametrize(("rule", "case"), ONE_CLAIM)
def test_a_claim_that_holds_says_nothing_of_the_one_beside_it(rule: type[Rule], case: Case, plugins: Plugins) -> None:
    (holds,) = CLAIM.findall(flipped(case, plugins))
    (fails,) = CLAIM.findall(case.spec)
    alone = findings(rule.code, case.spec, plugins, case.files)
    for place, both in enumerate((f"{fails}\n{holds}", f"{holds}\n{fails}")):
        text = CLAIM.sub(lambda _, both=both: both, case.spec)
        found = findings(rule.code, text, plugins, case.files)
        assert [f.message for f in found] == [f.message for f in alone]
        assert [f.path for f in found] == [(f.path[0], place, *f.path[2:]) for f in alone if f.path[0] == "claim"]


# Contexts


def test_a_spread_of_lengths_is_lognormal_with_the_mean_and_the_tail_that_are_asked_for(plugins: Plugins) -> None:
    for p, z in DEVIATES:
        assert z == pytest.approx(NormalDist().inv_cdf(p), abs=6e-4)
    text = f"{H100}{MODEL}[workload]\nprompt_tokens = 1000\noutput_tokens = 200\n"
    review = review_of(text, plugins)
    assert review.mix is not None
    for tail in (1.5, 3.6):
        for key, mean in (("prompt_tokens", 1000), ("output_tokens", 200)):
            mix = _stretched(review, Doubt(("workload", key), key, review.mix, None), tail)
            lengths = mix.prompt if key == "prompt_tokens" else mix.output
            other = mix.output if key == "prompt_tokens" else mix.prompt
            assert lengths.quantile(0.99) == pytest.approx(tail * mean, rel=1e-3)
            assert lengths.mean == pytest.approx(mean, rel=0.05)
            assert other.is_fixed


def test_a_spread_ends_with_the_context_of_the_model(plugins: Plugins) -> None:
    text = f"{H100}{MODEL}[workload]\nprompt_tokens = 4000\noutput_tokens = 200\n"
    review = review_of(text, plugins)
    assert review.mix is not None
    doubt = Doubt(("workload", "prompt_tokens"), "prompt_tokens", review.mix, None)
    assert _stretched(review, doubt, 3.6).prompt.quantile(1.0) == pytest.approx(8192 - 200)
    # A length that is over the limit by itself stays what it is.
    long = review_of(text.replace("4000", "8150"), plugins)
    assert long.mix is not None
    kept = _stretched(long, doubt._replace(mix=long.mix), 3.6)
    assert kept.prompt.quantile(1.0) == pytest.approx(8150)


@pytest.mark.parametrize(
    ("rope", "model_type", "limit"),
    [
        (None, "llama", 8192),
        (RopeScaling("linear", 4.0, 0), "llama", 32768),
        (RopeScaling("linear", 1.0, 0), "llama", 8192),
        (RopeScaling("linear", 8.0, 0), "gemma3_text", 8192),
        (RopeScaling("dynamic", 2.0, 0), "llama", 16384),
        (RopeScaling("yarn", 4.0, 4096), "qwen2", 16384),
        (RopeScaling("yarn", 4.0, 1024), "qwen2", 8192),
        (RopeScaling("yarn", 4.0, 0), "qwen2", 8192),
        (RopeScaling("llama3", 8.0, 8192), "llama", 8192),
    ],
)
def test_positions_that_a_scaling_gives(rope: RopeScaling | None, model_type: str, limit: int) -> None:
    model = evolve(samples.dense_model(), max_position=8192, rope_scaling=rope, model_type=model_type)
    assert positions(model) == limit


@pytest.mark.parametrize(("room", "speaks"), [(131_000, True), (130_000, False)])
def test_a_cache_for_one_sequence_is_one_that_decodes(room: int, speaks: bool, plugins: Plugins) -> None:
    """Of 131,000 tokens, the longest percent of them included."""
    text = f"{plugins.rule('CTX004').failing[0].spec}[policy.kv_cache]\nmax_tokens = {room}\npage_size = 1\n"
    assert bool(findings("CTX004", text, plugins)) is speaks


# Memory


def test_what_sequences_hold_is_a_normal_sum() -> None:
    held = Held(mean=100.0, deviation=30.0, prompt=50.0, room=1000.0)
    assert held.sigma(4.0, 0.0) == 60.0
    assert held.sigma(0.0, 0.09) == pytest.approx(30.0)
    assert held.sigma(4.0, 0.64) == pytest.approx(100.0)
    assert held.demand(4.0, 0.64, 2.0) == pytest.approx(600.0)
    same = held._replace(deviation=0.0)
    # Twelve of equal size: two of them have no room.
    assert same.evicted(12.0, 0.0) == pytest.approx(2 / 12)
    assert same.evicted(9.0, 0.0) == 0.0
    # No more than twenty prompts are let in.
    assert same.evicted(100.0, 0.0) == same.evicted(20.0, 0.0) == pytest.approx(0.5)


SIX = "[workload]\nprompt_tokens = 1000\noutput_tokens = 200\n"


def load_of(text: str, plugins: Plugins) -> tuple[Review, Any]:
    review = review_of(text, plugins)
    assert review.mix is not None
    return review, _load(review, review.service(review.mix))


def test_the_load_of_a_replica(plugins: Plugins) -> None:
    _, closed = load_of(f"{H100}replicas = 2\n{MODEL}{SIX}concurrency = 65\n", plugins)
    assert (closed.number, closed.spread, closed.path) == (33.0, 0.0, ("workload", "concurrency"))
    pools = (
        "[policy.disaggregation]\nprefill = { tensor = 1, replicas = 1 }\ndecode = { tensor = 1, replicas = 3 }\n"
        'transfer = { bandwidth = "50 GB/s" }\n'
    )
    _, apart = load_of(f"{H100}replicas = 2\n{MODEL}{pools}{SIX}concurrency = 65\n", plugins)
    assert apart.number == 11.0
    for cv, factor in ((1, 1.0), (3, 5.0), (0, 0.5)):
        review, opened = load_of(f'{H100}{MODEL}{SIX}rate = "4 req/s"\narrival_cv = {cv}\n', plugins)
        assert review.operating_point is not None
        assert opened.number == pytest.approx(review.operating_point.batch)
        assert opened.spread == pytest.approx(factor * opened.number)
    admits = "[policy.batching]\nmax_sequences = 40\nmax_batched_tokens = 2048\n"
    _, full = load_of(f"{H100}{MODEL}{admits}{SIX}", plugins)
    assert (full.number, full.spread, full.path) == (40.0, 0.0, ("policy", "batching", "max_sequences"))
    _, budget = load_of(f"{H100}{MODEL}{admits.replace('2048', '24')}{SIX}", plugins)
    assert budget.number == 24.0
    ranks = "[policy.parallelism]\ntensor = 1\ndata = 2\n"
    _, both = load_of(f"{H100}devices = 2\n{MODEL}{ranks}{admits.replace('2048', '24')}{SIX}", plugins)
    assert both.number == 48.0
    # What only decodes has room for all of them in a step.
    _, decoding = load_of(f"{H100}{MODEL}{pools}{admits.replace('2048', '24')}{SIX}", plugins)
    assert decoding.number == 40.0
    drafts = '[policy.speculation]\nmethod = "ngram"\ntokens = 4\nacceptance = 0.5\n'
    review, _ = load_of(f"{H100}{MODEL}{admits.replace('2048', '24')}{drafts}{SIX}", plugins)
    assert review.mix is not None
    # Each verifies five tokens.
    assert _admitted(review.service(review.mix)) == 4.0
    review, _ = load_of(f"{H100}{MODEL}{admits.replace('2048', '3')}{drafts}{SIX}", plugins)
    assert review.mix is not None
    assert _admitted(review.service(review.mix)) == 1.0


def test_a_running_sequence_holds_its_prompt_and_half_of_its_output(plugins: Plugins) -> None:
    page = "[policy.kv_cache]\npage_size = 1\n"
    for more, tokens, first in (("", 1100, 1000), ("prefix_hit = 0.5\n", 600, 500)):
        review = review_of(f"{H100}{MODEL}{page}{SIX}{more}", plugins)
        assert review.mix is not None
        assert review.memory is not None
        held = _held(review.memory, review.mix)
        assert held is not None
        each = review.memory.sequence_bytes(1.0, 0)
        assert held.mean == pytest.approx(tokens * each)
        assert held.prompt == pytest.approx(first * each)
        # Evenly over four places in 200 tokens: 25, 75, 125, 175.
        assert held.deviation == pytest.approx(math.sqrt((75**2 + 25**2) / 2) * each)
        assert held.room == review.memory.cache_left(0)
    # Without reuse every prompt lies there whole.
    review = review_of(f"{H100}{MODEL}{page}prefix_reuse = false\n{SIX}prefix_hit = 0.5\n", plugins)
    assert review.mix is not None
    assert review.memory is not None
    whole = _held(review.memory, review.mix)
    assert whole is not None
    assert whole.prompt == pytest.approx(1000 * review.memory.sequence_bytes(1.0, 0))


def test_the_stage_that_runs_out_first_counts(plugins: Plugins) -> None:
    layers = "[policy.parallelism]\ntensor = 1\npipeline = 2\npipeline_layers = [8, 24]\n"
    page = "[policy.kv_cache]\npage_size = 1\n"
    review = review_of(f"{H100}devices = 2\n{MODEL}{layers}{page}{SIX}", plugins)
    assert review.mix is not None
    assert review.memory is not None
    held = _held(review.memory, review.mix)
    assert held is not None
    # Three times the layers, and less room beside their weights.
    assert held.mean == pytest.approx(1100 * review.memory.sequence_bytes(1.0, 1))
    assert held.room == review.memory.cache_left(1) < review.memory.cache_left(0)


def test_engines_that_do_not_evict_are_not_judged(plugins: Plugins) -> None:
    trt = '[engine]\nname = "tensorrt-llm"\nversion = "1.0.0"\n'
    for more, why in (
        ("", None),
        ('[policy.kv_cache]\noffload = "cpu"\n', "how fast evicted blocks come back"),
        (trt, "a capacity scheduler that evicts"),
        (f'{trt}[policy.batching]\nadmission = "guaranteed_no_evict"\n', "a capacity scheduler that evicts"),
        (f'{trt}[policy.batching]\nadmission = "MAX_UTILIZATION"\n', None),
        ('[engine]\nname = "vllm"\nversion = "0.11.0"\n', None),
    ):
        found = _reserves(review_of(f"{H100}{MODEL}{more}{SIX}", plugins))
        assert (found is None) if why is None else (found is not None and found.startswith(why)), more


def test_the_whole_load_is_shared_by_the_replicas_that_decode(plugins: Plugins) -> None:
    text = plugins.rule("MEM003").failing[0].spec
    pools = (
        "[policy.disaggregation]\nprefill = { tensor = 1, replicas = 1 }\ndecode = { tensor = 1, replicas = 2 }\n"
        'transfer = { bandwidth = "50 GB/s" }\n'
    )
    for more, whole, that in (("", 64, ""), (pools, 64, " that decode")):
        (found,) = findings("MEM003", text + more, plugins)
        match = re.search(
            r"at most (\d+) sequences .*; the load's (\d+) then take (\d+) replicas([a-z ]*), latency aside;",
            found.help,
        )
        assert match is not None, found.help
        safe, load, replicas = (int(n) for n in match.groups()[:3])
        assert (load, replicas, match[4]) == (whole, math.ceil(whole / safe), that)


@pytest.mark.parametrize(
    ("devices", "degrees_", "half"),
    [
        (4, "tensor = 4\n", 2),
        (2, "tensor = 2\n", 1),
        (1, "tensor = 1\n", None),
        (4, "tensor = 2\npipeline = 2\n", 2),
        (6, "tensor = 6\n", None),
        (4, "tensor = 4\nattention_data = 2\n", None),
    ],
)
def test_half_of_a_group_is_a_group_of_half_the_devices(
    devices: int, degrees_: str, half: int | None, plugins: Plugins
) -> None:
    found = _halved(compose(f"{H100}devices = {devices}\n{MODEL}[policy.parallelism]\n{degrees_}", plugins))
    assert (None if found is None else found.setup.topology.devices) == half


def test_what_stays_empty_is_that_of_the_fullest_stage(plugins: Plugins) -> None:
    layers = "[policy.parallelism]\ntensor = 1\npipeline = 2\npipeline_layers = [8, 24]\n"
    review = review_of(f"{H100}devices = 2\n{MODEL}{layers}{SIX}", plugins)
    assert review.composition is not None
    assert review.mix is not None
    memory = review.composition.memory
    left = [
        memory.visible
        - memory.fit(stage).weights
        - sum(r.bytes for r in memory.reserves)
        - 5 * memory.sequence_bytes(review.mix.context(0.95), stage)
        for stage in (0, 1)
    ]
    assert _empty(review.composition, review.mix, 5.0) == pytest.approx(min(left))
    ranks = "[policy.parallelism]\ntensor = 1\ndata = 2\n"
    shared = review_of(f"{H100}devices = 2\n{MODEL}{ranks}{SIX}", plugins)
    assert shared.composition is not None
    memory = shared.composition.memory
    held = 3 * memory.sequence_bytes(review.mix.context(0.95), 0)
    free = memory.visible - memory.fit(0).weights - sum(r.bytes for r in memory.reserves) - held
    assert _empty(shared.composition, review.mix, 6.0) == pytest.approx(free)


# Figures of several devices

BOARD_NAMES = {2: "pair or superchip", 4: "tray", 8: "board", 16: "two boards", 36: "half rack", 72: "rack"}


@pytest.mark.parametrize("number", [2, 4, 8, 16, 36, 72])
def test_the_bandwidth_of_a_board_is_told_by_its_devices(number: int, plugins: Plugins) -> None:
    assert BOARDS == BOARD_NAMES
    override = f'[hardware.override]\nmemory_bandwidth = "{number * 3.35:.2f} TB/s"\nsource = "launch"\n'
    (found,) = findings("HW010", f"{H100}{override}{MODEL}", plugins)
    assert f"of {number} x NVIDIA H100 SXM5 80GB, a {BOARD_NAMES[number]};" in found.message


@pytest.mark.parametrize(
    ("part", "ranks"),
    [
        ("amd/mi250x-oam-128gb", 2),
        ("google/tpu7x", 2),
        ("aws/inferentia2", 2),
        ("aws/trainium1", 2),
        ("aws/trainium2", 4),
    ],
)
def test_parts_that_show_as_several_devices(part: str, ranks: int, plugins: Plugins) -> None:
    accelerator = plugins.accelerators.get(part)
    assert RANKS[accelerator.family] == ranks
    each = accelerator.memory_bandwidth_bytes_per_s / ranks / 1e12
    hardware = f'servelint = 1\n[hardware]\naccelerator = "{part}"\n'
    override = f'[hardware.override]\nmemory_bandwidth = "{each:.6f} TB/s"\nsource = "one of them"\n'
    (found,) = findings("HW010", f"{hardware}{override}{MODEL}", plugins)
    assert f"of one of the {ranks} devices that a framework sees" in found.message


# Layouts


def test_tensor_parallel_degrees_divide_devices_and_heads_within_fast_links(plugins: Plugins) -> None:
    composition = compose(f"{H100}devices = 8\n{MODEL}[policy.parallelism]\ntensor = 8\n", plugins)
    assert list(degrees(composition, 8)) == [1, 2, 4, 8]
    assert list(degrees(composition, 6)) == [1, 2]
    assert list(degrees(composition, 1)) == [1]
    words = {change.words for change in splits(composition, 8)}
    assert words == {
        "tensor parallelism 1 in 8 pipeline stages",
        "tensor parallelism 2 in 4 pipeline stages",
        "tensor parallelism 4 in 2 pipeline stages",
    }
    assert list(spread(composition, 8)) == []
    assert plain(composition)


def test_experts_are_spread_where_they_divide(plugins: Plugins) -> None:
    text = f'{H100}devices = 8\n[model]\nid = "any"\n[policy.parallelism]\ntensor = 8\n'
    composition = compose(text, plugins, architecture=samples.hybrid_model())
    (change,) = spread(composition, 8)
    assert change.words == "experts over 8 devices, attention data-parallel"
    config: Any = change.composition.context.configs["parallelism"]
    assert (config.t, config.p, config.expert, config.attention_ranks) == (8, 1, 8, 8)
    # Of 32 experts no whole number lies on each of three devices.
    assert list(spread(composition, 3)) == []
    # What was spread is laid out whole again.
    for other in splits(change.composition, 8):
        laid: Any = other.composition.context.configs["parallelism"]
        assert ((laid.expert or 1), laid.attention_ranks) == (1, 1)


@pytest.mark.parametrize(
    ("devices", "table", "expected"),
    [
        (2, "tensor = 2\n", True),
        (2, "tensor = 1\npipeline = 2\n", True),
        (2, "tensor = 1\ndata = 2\n", False),
        (2, "tensor = 2\nattention_data = 2\n", False),
        (2, "tensor = 1\ncontext = 2\n", False),
    ],
)
def test_a_plain_split_is_of_tensors_and_stages(devices: int, table: str, expected: bool, plugins: Plugins) -> None:
    found = compose(f"{H100}devices = {devices}\n{MODEL}[policy.parallelism]\n{table}", plugins)
    assert plain(found) is expected


QUANTIZED = [pytest.param(i, id=f"QNT004-{i}") for i in range(len(Plugins().rule("QNT004").failing))]


@pytest.mark.parametrize("index", QUANTIZED)
def test_degrees_that_keep_groups_whole_are_all_that_do(index: int, plugins: Plugins) -> None:
    """QNT004 is quiet at each degree of its help, and at no other that heads and widths allow."""
    text = plugins.rule("QNT004").failing[index].spec
    (found,) = findings("QNT004", text, plugins)
    match = re.search(r"keep groups whole: ([\d, ]+)", found.help)
    assert match is not None
    listed = {int(n) for n in match[1].split(", ")}
    now = int(re.search(r"tensor = (\d+)", found.message)[1])  # type: ignore[index]
    for degree in range(1, 2 * now + 1):
        spec = edited(text, key_path("policy.parallelism.tensor"), str(degree), plugins)
        spec = edited(spec, key_path("hardware.devices"), str(degree), plugins)
        spec = re.sub(r"expert = \d+.*\n", "", spec)
        review = review_of(spec, plugins)
        if review.composition is None:
            assert degree not in listed
        elif findings("QNT004", spec, plugins):
            assert degree not in listed, degree
    assert max(listed) <= 2 * now
    assert 1 in listed


# Loads and drafts


@pytest.mark.parametrize(
    ("at", "load"),
    [
        ("{ batch = 8, context = 3000 }", (8, 3000)),
        ("{ concurrency = 6, prompt_tokens = 1000, output_tokens = 200 }", (6, 1100)),
        ("{ batch = 7, prompt_tokens = 900 }", (7, 900)),
        ("{ batch = 5 }", (5, 1600)),
    ],
)
def test_a_speed_up_is_judged_at_the_point_that_it_states(at: str, load: tuple[int, int], plugins: Plugins) -> None:
    text = (
        f"{H100}devices = 8\n{MODEL}[policy.parallelism]\ntensor = 8\n[workload]\nprompt_tokens = 1500\n"
        f'output_tokens = 200\n[[claim]]\nmetric = "speedup"\nvalue = 8\nat = {at}\n'
    )
    (found,) = findings("PAR007", text, plugins)
    inputs = {i.name: i.value for i in found.inputs}
    assert (inputs["sequences"], inputs["context"]) == (load[0], pytest.approx(load[1], abs=1))


@pytest.mark.parametrize(
    ("number", "word"),
    [(1, "1st"), (2, "2nd"), (3, "3rd"), (4, "4th"), (11, "11th"), (12, "12th"), (13, "13th"), (21, "21st"),
     (22, "22nd"), (23, "23rd"), (101, "101st"), (111, "111th"), (112, "112th"), (113, "113th")],
)  # fmt: skip
def test_ordinals(number: int, word: str) -> None:
    assert _th(number) == word


def test_larger_budgets_are_doublings(plugins: Plugins) -> None:
    def tried(batching: str) -> list[int]:
        text = f"{H100}{MODEL}[policy.batching]\n{batching}"
        return [tokens for tokens, _ in larger_budgets(review_of(text, plugins))]

    doublings = [2**i for i in range(10, MOST_TOKENS.bit_length())]
    assert tried("max_batched_tokens = 512\n") == doublings
    assert doublings[-1] == MOST_TOKENS
    # A chunk is no more than the budget of the step.
    assert tried("max_batched_tokens = 4096\nprefill_chunk = 512\n") == [1024, 2048, 4096]
    assert tried(f"max_batched_tokens = {MOST_TOKENS}\n") == []


class Carrier:
    """Carries so many requests a second, twice as many with a sequence more, and keeps its objective up to a rate."""

    decode_replicas = 2

    def __init__(self, knee: float | None, kept: float) -> None:
        self.most, self.kept = knee, kept

    def knee(self, objectives: object) -> object:
        return None if self.most is None else SimpleNamespace(rate=self.most, batch=1.0)

    def point(self, batch: float) -> object:
        assert self.most is not None
        return SimpleNamespace(rate=self.most * batch)

    def at_rate(self, rate: float) -> object:
        return SimpleNamespace(misses=lambda objectives, declared: [] if rate <= self.kept * (1 + 1e-9) else ["late"])


@pytest.mark.parametrize(
    ("knee", "kept", "total", "needed"),
    [
        (3.0, 6.0, 12.0, 2),
        (3.0, 6.0, 12.1, 3),
        (3.0, 6.0, 0.0, 1),
        # The knee is a fraction off: one more replica is asked for.
        (3.0, 5.9, 12.0, 3),
        (3.0, 3.9, 12.0, None),
        # Between one sequence and two: four would keep it, and so do three, each of which carries 8 of at most 10.
        (3.0, 10.0, 24.0, 3),
        (3.0, 11.9, 24.0, 3),
        (3.0, 12.0, 24.0, 2),
        (0.0, 6.0, 12.0, None),
        (None, 6.0, 12.0, None),
    ],
)
def test_replicas_run_at_the_knee(knee: float | None, kept: float, total: float, needed: int | None) -> None:
    service: Any = Carrier(knee, kept)
    assert replicas_for(service, total, ()) == needed
