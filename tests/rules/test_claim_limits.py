"""What a claim is read as, and the best that a bound allows of it, each against its closed form."""

from __future__ import annotations

import pytest

from servelint.manager import Plugins
from servelint.review import Review
from servelint.shapes import decode, prefill
from servelint.testing import review_of
from servelint_rules.clm.limits import Sides, Terms, best, described, fitting, kept_at_most, read, sides

HEAD = '[hardware]\naccelerator = "nvidia/h100-sxm5-80gb"\n'
MODEL = '[model]\nid = "meta-llama/Llama-3.1-8B"\nmax_model_len = 16384\n'
WORKLOAD = "[workload]\nprompt_tokens = 700\noutput_tokens = 200\nprefix_hit = 0.25\n"
POOLS = (
    "[policy.disaggregation]\nprefill = { tensor = 1, replicas = 2 }\ndecode = { tensor = 1, replicas = 3 }\n"
    'transfer = { bandwidth = "50 GB/s" }\n'
)


def reviewed(plugins: Plugins, claim: str, hardware: str = "", more: str = "") -> Review:
    return review_of(f"{HEAD}{hardware}{MODEL}{more}[[claim]]\n{claim}\n", plugins)


def terms_of(plugins: Plugins, claim: str, hardware: str = "", more: str = "") -> Terms:
    review = reviewed(plugins, claim, hardware, more)
    found = read(review, review.claims[0][1])
    assert found is not None
    return found


def judged(plugins: Plugins, claim: str, hardware: str = "", more: str = "") -> tuple[Sides, Terms]:
    review = reviewed(plugins, claim, hardware, more)
    on, terms = sides(review, review.claims[0][1]), read(review, review.claims[0][1])
    assert on is not None
    assert terms is not None
    return on, terms


OUTPUT = 'metric = "output_throughput"\nvalue = "1000 tok/s"\n'


def test_a_rate_of_the_deployment_is_shared_by_its_replicas(plugins: Plugins) -> None:
    at = "at = { concurrency = 33, prompt_tokens = 1000, output_tokens = 201 }"
    found = terms_of(plugins, f'{OUTPUT}per = "deployment"\n{at}', "replicas = 2\n")
    assert (found.kind, found.value, found.factor, found.batch) == ("output", 500.0, 0.5, 17)
    # On average half of the output that is there already.
    assert (found.prompt, found.output, found.context) == (1000.0, 201.0, 1100.0)
    assert found.unit == " of 2 replicas"
    assert found.stated == {"prompt", "output", "context"}
    few = terms_of(plugins, f'{OUTPUT}per = "deployment"\nat = {{ concurrency = 1 }}', "replicas = 4\n")
    assert few.batch == 1
    one = terms_of(plugins, f'{OUTPUT}per = "deployment"\n{at}')
    assert (one.value, one.batch, one.unit) == (1000.0, 33, "")
    open_ended = terms_of(plugins, f'{OUTPUT}per = "deployment"\n', "replicas = 2\n", WORKLOAD)
    assert (open_ended.value, open_ended.batch) == (500.0, None)


def test_a_rate_per_device_is_of_all_devices_of_a_replica(plugins: Plugins) -> None:
    per = f'{OUTPUT}per = "device"\n'
    found = terms_of(plugins, per, "devices = 4\n", "[policy.parallelism]\ntensor = 4\n" + WORKLOAD)
    assert (found.value, found.factor, found.unit) == (4000.0, 4.0, " per device")
    # Two devices that prefill and three that decode.
    assert terms_of(plugins, per, "", POOLS + WORKLOAD).value == 5000.0


@pytest.mark.parametrize("per", ["user", "request"])
def test_a_rate_of_one_user_is_that_of_a_sequence(per: str, plugins: Plugins) -> None:
    found = terms_of(plugins, f'{OUTPUT}per = "{per}"\n', "devices = 2\n", WORKLOAD)
    assert (found.kind, found.value, found.unit) == ("user", 1000.0, " per sequence")


def test_what_a_claim_leaves_open_is_the_workloads(plugins: Plugins) -> None:
    found = terms_of(plugins, OUTPUT, more=WORKLOAD)
    assert (found.prompt, found.output, found.batch, found.prefix_hit) == (700.0, 200.0, None, 0.25)
    assert found.context == pytest.approx(700 + 199 / 2, abs=1)
    assert found.stated == frozenset()
    own = terms_of(plugins, f"{OUTPUT}at = {{ context = 5000 }}\nassumes = {{ prefix_hit = 1.0 }}", more=WORKLOAD)
    assert (own.context, own.prompt, own.prefix_hit, own.stated) == (5000.0, 700.0, 0.999, {"context"})
    batch = terms_of(plugins, f"{OUTPUT}at = {{ batch = 7, concurrency = 9 }}", more=WORKLOAD)
    assert batch.batch == 7


def test_a_first_token_has_a_prompt_and_a_total_needs_lengths(plugins: Plugins) -> None:
    first = terms_of(plugins, 'metric = "ttft"\nvalue = "50 ms"\n')
    assert (first.prompt, first.output, first.prefix_hit) == (1.0, 0.0, 0.0)
    for claim in (
        'metric = "total_throughput"\nvalue = "1000 tok/s"\n',
        'metric = "request_rate"\nvalue = "3 req/s"\n',
    ):
        review = reviewed(plugins, claim)
        assert read(review, review.claims[0][1]) is None
    review = reviewed(plugins, 'metric = "speedup"\nvalue = 2.0\n', more=WORKLOAD)
    assert read(review, review.claims[0][1]) is None


def test_what_is_not_stated_is_set_to_what_makes_most_possible(plugins: Plugins) -> None:
    ideal = terms_of(plugins, 'metric = "ttft"\nvalue = "50 ms"\n', more=WORKLOAD).most_favorable()
    assert ideal is not None
    assert (ideal.prompt, ideal.context) == (1.0, 0.0)
    stated = terms_of(plugins, 'metric = "ttft"\nvalue = "50 ms"\nat = { prompt_tokens = 300 }', more=WORKLOAD)
    assert stated.most_favorable() == stated
    pace = terms_of(plugins, 'metric = "tpot"\nvalue = "50 ms"\n', more=WORKLOAD).most_favorable()
    assert pace is not None
    assert (pace.prompt, pace.context) == (700.0, 0.0)
    requests = 'metric = "request_rate"\nvalue = "3 req/s"\n'
    assert terms_of(plugins, requests, more=WORKLOAD).most_favorable() is None
    half = terms_of(plugins, f"{requests}at = {{ prompt_tokens = 300 }}", more=WORKLOAD)
    assert half.most_favorable() is None
    both = terms_of(plugins, f"{requests}at = {{ prompt_tokens = 300, output_tokens = 20 }}", more=WORKLOAD)
    assert both.most_favorable() == both


def test_a_claim_beats_a_limit_by_more_than_rounding(plugins: Plugins) -> None:
    rate = terms_of(plugins, OUTPUT, more=WORKLOAD)
    assert not rate.beats(1000 / 1.02, 0.02)
    assert rate.beats(1000 / 1.021, 0.02)
    pace = terms_of(plugins, 'metric = "tpot"\nvalue = "10 ms"\n', more=WORKLOAD)
    assert not pace.beats(0.01 / 0.98, 0.02)
    assert pace.beats(0.01 / 0.979, 0.02)


def test_the_best_first_token_is_the_bound_of_what_is_not_cached(plugins: Plugins) -> None:
    on, terms = judged(plugins, 'metric = "ttft"\nvalue = "50 ms"\n', more=WORKLOAD)
    found = best(on, terms, "bound")
    assert found is not None
    assert found.value == found.seconds == on.prefill.pricer.bound(prefill(525.0, 175.0))
    assert found.batch == 1.0
    warm = best(on, terms._replace(prompt=1.0, prefix_hit=0.999), "bound")
    assert warm is not None
    assert warm.value == on.prefill.pricer.bound(prefill(1.0, 0.0))


def test_the_best_pace_is_the_bound_of_a_step_and_of_each_pool_its_share(plugins: Plugins) -> None:
    at = "at = { batch = 12, context = 3000 }"
    on, terms = judged(plugins, f'metric = "tpot"\nvalue = "10 ms"\n{at}')
    step = on.decode.pricer.bound(decode(12.0, 3000.0))
    found = best(on, terms, "bound")
    assert found is not None
    assert (found.value, found.batch) == (step, 12.0)
    user = best(on, terms._replace(kind="user"), "bound")
    assert user is not None
    assert user.value == 1 / step
    alone = best(on, terms._replace(batch=None), "bound")
    assert alone is not None
    assert (alone.value, alone.batch) == (on.decode.pricer.bound(decode(1.0, 3000.0)), 1.0)
    apart, same = judged(plugins, f'metric = "itl"\nvalue = "10 ms"\n{at}', more=POOLS)
    shared = best(apart, same, "bound")
    assert shared is not None
    assert (shared.value, shared.batch) == (apart.decode.pricer.bound(decode(4.0, 3000.0)), 4.0)
    kept = best(on, terms, "bound", 2.5)
    assert kept is not None
    assert kept.value == pytest.approx(step / 2.5)


def test_the_best_rates_of_a_batch(plugins: Plugins) -> None:
    at = "at = { batch = 64, prompt_tokens = 900, output_tokens = 101 }"
    on, terms = judged(plugins, f"{OUTPUT}{at}")
    plain = decode(64.0, 950.0)
    found = best(on, terms, "bound")
    assert found is not None
    assert found.value == pytest.approx(64 / on.decode.pricer.bound(plain))
    # As many requests finish in a step as sequences decode, over the tokens of an output.
    loaded = plain._replace(prefill_sequences=64 / 101, prefill_tokens=900.0, prefill_context=0.0)
    step = on.decode.pricer.bound(loaded)
    total, requests = (best(on, terms._replace(kind=kind), "bound") for kind in ("total", "requests"))
    assert total is not None
    assert total.value == pytest.approx(64 * (900 + 101) / 101 / step)
    assert requests is not None
    assert requests.value == pytest.approx(64 / 101 / step)
    apart, same = judged(plugins, f"{OUTPUT}{at}", more=POOLS)
    pools = best(apart, same._replace(batch=63), "bound")
    assert pools is not None
    assert pools.value == pytest.approx(63 / apart.decode.pricer.bound(decode(21.0, 950.0)))


@pytest.mark.parametrize(("batch", "decoding"), [(1, 1.0), (2, 2.0)])
def test_a_batch_of_one_is_one(batch: int, decoding: float, plugins: Plugins) -> None:
    on, terms = judged(plugins, f"{OUTPUT}at = {{ batch = {batch}, context = 900 }}")
    found = best(on, terms, "bound")
    assert found is not None
    assert (found.batch, found.value) == (decoding, pytest.approx(decoding / found.seconds))
    apart, same = judged(plugins, f"{OUTPUT}at = {{ batch = {batch}, context = 900 }}", more=POOLS)
    shared = best(apart, same, "bound")
    assert shared is not None
    # Fewer than there are pools leave each at least one.
    assert shared.batch == 1.0


def test_without_a_batch_memory_decides(plugins: Plugins) -> None:
    on, terms = judged(plugins, OUTPUT, more=WORKLOAD)
    memory = on.decode.memory
    most = int((memory.visible - memory.fit(0).weights) / memory.sequence_bytes(terms.context, 0))
    assert fitting(on, terms.context) == most
    found = best(on, terms, "bound")
    assert found is not None
    assert found.batch == most
    rates = [b / on.decode.pricer.bound(decode(float(b), terms.context)) for b in (1, 2, 64, most)]
    assert found.value == pytest.approx(max(rates))
    # An empty context counts as one token.
    assert fitting(on, 0.0) == fitting(on, 1.0)
    token, _ = judged(plugins, OUTPUT, more=f"[policy.kv_cache]\npage_size = 1\n{WORKLOAD}")
    assert fitting(token, 0.0) == fitting(token, 1.0) == pytest.approx(2 * fitting(token, 2.0), abs=1)
    limited, same = judged(plugins, OUTPUT, "devices = 2\n", f"[policy.batching]\nmax_sequences = 20\n{WORKLOAD}")
    assert fitting(limited, same.context) == 20
    ranks = "[policy.parallelism]\ntensor = 1\ndata = 2\n[policy.batching]\nmax_sequences = 20\n"
    spread, same = judged(plugins, OUTPUT, "devices = 2\n", ranks + WORKLOAD)
    assert fitting(spread, same.context) == 40


def test_assumed_acceptance_counts_every_draft(plugins: Plugins) -> None:
    drafts = '[policy.speculation]\nmethod = "ngram"\ntokens = 4\n'
    assumed = reviewed(plugins, OUTPUT, more=drafts + WORKLOAD)
    assert assumed.composition is not None
    assert kept_at_most(assumed, assumed.composition) == 5.0
    declared = reviewed(plugins, OUTPUT, more=f"{drafts}acceptance = 0.5\n{WORKLOAD}")
    assert declared.composition is not None
    # 1 + 1/2 + 1/4 + 1/8 + 1/16
    assert kept_at_most(declared, declared.composition) == pytest.approx(1.9375)
    grammar = '[policy.constrained_decoding]\nbackend = "xgrammar"\nshare = 0.5\njump_forward = 0.4\n'
    jumping = reviewed(plugins, OUTPUT, more=drafts + grammar + WORKLOAD)
    assert jumping.composition is not None
    # A fifth of the tokens takes no step.
    assert kept_at_most(jumping, jumping.composition) == pytest.approx(5 / 0.8)


def test_a_claim_on_another_part_is_priced_there(plugins: Plugins) -> None:
    pace = 'metric = "tpot"\nvalue = "10 ms"\nat = { batch = 1, context = 100 }\n'
    on, _ = judged(plugins, f'{pace}assumes = {{ accelerator = "nvidia/h200-sxm5-141gb" }}')
    assert on.decode.setup.topology.accelerator.id == "nvidia/h200-sxm5-141gb"
    own, _ = judged(plugins, f'{pace}assumes = {{ accelerator = "nvidia/h100-sxm5-80gb" }}')
    assert own.decode.setup.topology.accelerator.id == "nvidia/h100-sxm5-80gb"
    assert own.copies == 1
    review = reviewed(plugins, f'{pace}assumes = {{ accelerator = "nvidia/unheard-of" }}')
    assert sides(review, review.claims[0][1]) is None


def test_a_total_without_an_output_is_none(plugins: Plugins) -> None:
    review = reviewed(plugins, 'metric = "total_throughput"\nvalue = "1000 tok/s"\nat = { prompt_tokens = 100 }')
    assert read(review, review.claims[0][1]) is None


def test_another_part_is_put_into_both_pools_and_into_one_replica_once(plugins: Plugins) -> None:
    rate = (
        'metric = "total_throughput"\nvalue = "1000 tok/s"\nat = { prompt_tokens = 100, output_tokens = 9 }\n'
        'assumes = { accelerator = "nvidia/h200-sxm5-141gb" }'
    )
    on, _ = judged(plugins, rate)
    assert on.prefill is on.decode
    apart, _ = judged(plugins, rate, more=POOLS.replace("tensor = 1, replicas = 2", "tensor = 2, replicas = 1"))
    assert [side.setup.topology.devices for side in (apart.prefill, apart.decode)] == [2, 1]
    names = {side.setup.topology.accelerator.id for side in (apart.prefill, apart.decode)}
    assert names == {"nvidia/h200-sxm5-141gb"}


def test_prompt_tokens_that_are_cached_are_read_and_not_computed(plugins: Plugins) -> None:
    at = "at = { batch = 64, prompt_tokens = 800, output_tokens = 1 }"
    on, terms = judged(plugins, f'metric = "total_throughput"\nvalue = "1000 tok/s"\n{at}', more=WORKLOAD)
    for hit, new in ((0.25, 600.0), (0.999, 1.0)):
        found = best(on, terms._replace(prefix_hit=hit), "bound")
        assert found is not None
        # Of outputs of one token, as many requests finish as sequences decode.
        assert found.shape == found.shape._replace(
            prefill_sequences=64.0, prefill_tokens=new, prefill_context=800.0 - new
        )
        assert found.value == pytest.approx(64 * 801 / on.decode.pricer.bound(found.shape))
    short = best(on, terms._replace(output=0.5), "bound")
    assert short is not None
    assert short.shape.prefill_sequences == 64.0
    requests = best(on, terms._replace(kind="requests"), "bound")
    assert requests is not None
    assert requests.value == pytest.approx(64 / requests.seconds)


def test_ranks_that_decode_in_one_step_are_not_charged_the_prefill_of_all(plugins: Plugins) -> None:
    at = "at = { batch = 64, prompt_tokens = 800, output_tokens = 101 }"
    ranks = "[policy.parallelism]\ntensor = 1\ndata = 2\n"
    on, terms = judged(plugins, f'metric = "total_throughput"\nvalue = "1000 tok/s"\n{at}', "devices = 2\n", ranks)
    found = best(on, terms, "bound")
    assert found is not None
    assert found.shape.prefill_sequences == 0


def test_a_limit_of_one_sequence_is_one(plugins: Plugins) -> None:
    rate = 'metric = "output_throughput"\nvalue = "1000 tok/s"\nat = { context = 900 }'
    on, terms = judged(plugins, rate, more="[policy.batching]\nmax_sequences = 1\n")
    found = best(on, terms, "bound")
    assert found is not None
    assert found.batch == 1.0
    assert described(terms, found) == "for one sequence with 900 tokens of context"


def test_how_many_fit_is_said_of_rates_without_a_batch(plugins: Plugins) -> None:
    on, terms = judged(plugins, 'metric = "output_throughput"\nvalue = "1000 tok/s"\nat = { context = 900 }')
    found = best(on, terms, "bound")
    assert found is not None
    assert described(terms, found).endswith(" with 900 tokens of context that fit at once")
    assert described(terms._replace(batch=9), found).endswith(" with 900 tokens of context")


def test_a_prompt_below_one_token_is_computed_as_one(plugins: Plugins) -> None:
    on, terms = judged(plugins, 'metric = "ttft"\nvalue = "50 ms"\nat = { prompt_tokens = 100 }')
    found = best(on, terms._replace(prefix_hit=0.999), "bound")
    assert found is not None
    assert found.value == on.prefill.pricer.bound(prefill(1.0, 99.0))
    less = best(on, terms._replace(prompt=0.5), "bound")
    assert less is not None
    assert less.shape == prefill(1.0, 0.0)
