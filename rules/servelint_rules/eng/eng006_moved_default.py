"""ENG006 moved-default."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from attrs import evolve

from servelint.errors import PluginError, UnpricedError
from servelint.lineage import dotted
from servelint.plugin import (
    Case,
    Composition,
    Finding,
    InfeasibleError,
    Input,
    Lacks,
    Option,
    Related,
    Review,
    Rule,
    Severity,
    Source,
)
from servelint.releases import release
from servelint.service import Point, Service
from servelint_rules.derivation import named
from servelint_rules.layouts import fits
from servelint_rules.show import duration, request_rates, tokens

SPEC = """\
servelint = 1
[hardware]
accelerator = "nvidia/h100-sxm5-80gb"
[model]
id = "meta-llama/Llama-3.1-70B"
max_model_len = 8192
[engine]
name = "vllm" # expect: ENG006
[policy.quantization]
weights = "fp8"
[policy.batching]
max_sequences = 64
max_batched_tokens = 2048
[workload]
prompt_tokens = { p50 = 800, p99 = 3000 }
output_tokens = { p50 = 200, p99 = 800 }
rate = "0.1 req/s"
[slo]
itl = { p99 = "500 ms" }
"""
UNKNOWN_THERE = """\
servelint = 1
[hardware]
accelerator = "nvidia/l40s"
devices = 2
[model]
id = "openai/gpt-oss-120b"
[engine]
name = "vllm"
"""
OLDER = """\
servelint = 1
[hardware]
accelerator = "nvidia/a100-sxm4-80gb"
[model]
id = "meta-llama/Llama-3.1-8B"
max_model_len = 16384
[engine]
name = "vllm" # expect: ENG006
[workload]
prompt_tokens = { p50 = 3000, p99 = 9000 }
output_tokens = { p50 = 300, p99 = 900 }
rate = "2 req/s"
[slo]
itl = { p99 = "590 ms" }
"""

PINNED = SPEC.replace(" # expect: ENG006", "\n[policy.kv_cache]\nmemory_utilization = 0.9")


class Span(NamedTuple):
    """Releases with the same defaults: the first of them, the first that is no more of them, and all in words."""

    release: str
    end: str
    words: str
    values: Mapping[tuple[str, str], Any]


class MovedDefault(Rule):
    """No release is declared, and a default that moved between releases decides a verdict.

    What it checks
    --------------
    Where neither ``engine.version`` nor the image's tag names a release: the engine's defaults at the assumed release
    against those of other releases that were read, for the keys that the spec leaves out. Where they differ the
    deployment is composed again with each, and it is advice when then it fits or does not, keeps or breaks an
    objective at the declared load, or, for releases newer than the assumed one, which an image without a tag becomes,
    when the load within the SLO differs by more than ``knee``. Releases that are known not to load the model, and
    those older than its recipe asks for, are left out.

    Why it is bad
    -------------
    What was checked is not what runs. The next image brings other defaults, and what fitted does not start, or starts
    and keeps fewer requests within the SLO, with no change in any file.

    The arithmetic
    --------------
    That of the verdict that changes, once with each value.

    How to fix
    ----------
    Declare the release; or set the key that moved, so that no release decides it.

    Source
    ------
    The engine's own defaults at the releases that docs/engines.md and its plugin name.
    """

    code = "ENG006"
    name = "moved-default"
    severity = Severity.INFO
    confidence = "medium"
    questions = ("what does a new image change", "what is assumed")
    options = (Option("knee", 0.1, "share by which the load within the SLO may differ in newer releases", 0.0),)
    failing = (
        Case("a newer release gives the cache more", SPEC, flip=("policy.batching.max_sequences", "2")),
        Case(
            "an older release breaks the inter-token objective",
            OLDER,
            flip=("slo.itl.p99", '"600 ms"'),
        ),
    )
    passing = (
        Case("the release is declared", SPEC.replace('"vllm" # expect: ENG006', '"vllm"\nversion = "0.11.0"')),
        Case("the default is set", PINNED),
        Case("older releases do not know the model", UNKNOWN_THERE),
        Case("an objective that both keep", OLDER.replace(" # expect: ENG006", "").replace("590 ms", "600 ms")),
    )

    def check(self, review: Review) -> Iterator[Finding | Lacks]:
        """Compose the deployment again at releases whose defaults differ."""
        setup, composition = review.setup, review.composition
        if setup is None or review.engine_version is not None or not setup.engine.moved:
            return
        if composition is None:
            yield Lacks("a composed deployment")
            return
        assumed = _values(review, composition, None)
        spans = list(_spans(review, composition))
        here = max((i for i, span in enumerate(spans) if span.values == assumed), default=None)
        if here is None:
            return
        for i, other in sorted(enumerate(spans), key=lambda x: (x[0] < here, abs(x[0] - here))):
            if other.values == assumed or (other.end and not _loads_before(composition, other.end)):
                continue
            changed = self._changed(review, composition, other, newer=i > here)
            if changed:
                yield _finding(review, spans[here], other, assumed, changed)
                return

    def _changed(self, review: Review, now: Composition, other: Span, *, newer: bool) -> str:
        """What the defaults of other releases change, in words; empty when nothing."""
        try:
            then = Composition(evolve(now.setup, engine_version=other.release))
            then.memory, then.scheduler, then.pricer  # noqa: B018
        except (InfeasibleError, UnpricedError, PluginError):
            return ""
        length = tokens(now.max_model_len)
        held = [fits(c) for c in (now, then)]
        if held[0] != held[1]:
            return f"a sequence of {length} tokens {'fits' if held[1] else 'does not fit'} in memory there"
        return _at_load(review, then) or (self._knee(review, then) if newer else "")

    def _knee(self, review: Review, then: Composition) -> str:
        """How the load within the SLO differs."""
        knee, service = review.knee, _service(review, then)
        if knee is None or service is None:
            return ""
        other = service.knee(review.objectives)
        if other is None:
            return "not even one sequence meets the SLO there"
        most = [point.rate * point.service.decode_replicas for point in (other, knee)]
        if abs(most[0] / most[1] - 1) <= self.option("knee"):
            return ""
        shown = request_rates(*most)
        return f"a replica carries {shown[0]} within the SLO there, and {shown[1]} here"


def _values(review: Review, composition: Composition, release: str | None) -> dict[tuple[str, str], Any]:
    """The engine's defaults at a release, for the keys that the spec leaves out."""
    setup = composition.setup
    found = setup.plugins.engine_defaults(setup.engine, release, composition.context)
    declared = setup.deployment.policies
    return {key: d.value for key, d in found.items() if getattr(declared.get(key[0]), key[1], None) is None}


def _spans(review: Review, composition: Composition) -> Iterator[Span]:
    """Ranges of releases with the same defaults, ascending."""
    releases = composition.setup.engine.moved
    values = [_values(review, composition, release) for release in releases]
    starts = [i for i in range(len(releases)) if i == 0 or values[i] != values[i - 1]]
    for start, end in zip(starts, [*starts[1:], 0], strict=True):
        words = f"from {releases[start]} to before {releases[end]}" if start and end else f"before {releases[end]}"
        yield Span(
            releases[start], releases[end] if end else "", words if end else f"from {releases[start]} on", values[start]
        )


def _loads_before(composition: Composition, end: str) -> bool:
    """Whether any release before ``end`` loads the model or is what its recipe asks for, or nothing is known."""
    setup = composition.setup
    first = setup.plugins.engine_first_release(setup.engine, setup.architecture.model_type)
    return not first or release(first) < release(end)


def _service(review: Review, composition: Composition) -> Service | None:
    mix = review.mix
    if mix is None:
        return None
    if not composition.scheduler.prefix_reuse:
        mix = mix._replace(prefix_hit=0.0)
    return Service(composition, mix, open_loop=review.rate() is not None)


def _at_load(review: Review, then: Composition) -> str:
    """Which objective is kept at the declared load in one and broken in the other."""
    now, service = review.operating_point, _service(review, then)
    rate, each = review.rate(), review.concurrency()
    if now is None or service is None or (rate is None and each is None):
        return ""
    other: Point | None
    if rate is not None:
        other = service.at_rate(rate)
    else:
        other = service.fullest
        other = other and service.point(min(other.batch, each or other.batch))
    if other is None:
        return "the declared load is not carried there"
    for objective in review.objectives:
        kept = [point.meets(objective, declared=True) for point in (now, other)]
        if kept[0] != kept[1]:
            here, there = (duration(p.latency(objective.metric, objective.percentile)) for p in (now, other))
            broken = "breaks" if kept[0] else "keeps"
            return (
                f"{named(objective)} at the declared load is {there} there, which {broken} the objective of "
                f"{duration(objective.declared_s)}, and {here} here"
            )
    return ""


def _finding(review: Review, here: Span, other: Span, assumed: Mapping[tuple[str, str], Any], changed: str) -> Finding:
    setup = review.setup
    engine, image = "" if setup is None else setup.engine.name, ("engine", "image")
    keys = [key for key in assumed if other.values.get(key) != assumed[key]]
    moved = [
        f"{dotted(('policy', *key))} is {_shown(other.values.get(key))} instead of {_shown(assumed[key])}"
        for key in keys
    ]
    settings = " and ".join(f"{dotted(('policy', *key))} = {_shown(assumed[key])}" for key in keys)
    assumption = review.assumption("policy", *keys[0]) if keys else None
    source = assumption.source if assumption is not None else Source("engine", engine)
    return Finding(
        ("engine", "name"),
        f"no release of {engine} is declared: the defaults {here.words} are assumed; {other.words}, "
        f"{', '.join(moved)}; {changed}",
        inputs=tuple(Input(dotted(("policy", *key)), assumed[key], "", source) for key in keys),
        help=f"declare engine.version; or set {settings}, so that no release decides it",
        related=(Related(image, "its tag names no release"),) if review.declared(*image) else (),
    )


def _shown(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:.3g}" if isinstance(value, float) else str(value)
