"""SPEC007 unit-ambiguity."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from servelint.lineage import KeyPath, dotted
from servelint.opening import open_spec
from servelint.plugin import (
    Case,
    Dimension,
    Edit,
    Finding,
    Fix,
    Input,
    Lacks,
    Quantity,
    Related,
    Review,
    Rule,
    Severity,
)
from servelint.spec.model import CLAIM_METRICS, Deployment
from servelint.spec.schema import Either, Kind, Many, Named, Table, Tables, kinds
from servelint.units import QuantityError, ambiguities, format_quantity, parse_quantity
from servelint_rules.ctx.ctx001_long_context_risk import LongContextRisk
from servelint_rules.mem.mem001_weights_do_not_fit import WeightsDoNotFit
from servelint_rules.mem.mem002_context_does_not_fit import ContextDoesNotFit
from servelint_rules.mem.mem003_kv_pressure_cascade import KvPressureCascade
from servelint_rules.slo.slo001_throughput_past_slo import ThroughputPastSlo
from servelint_rules.slo.slo005_ttft_infeasible import TtftInfeasible
from servelint_rules.slo.slo006_itl_infeasible import ItlInfeasible
from servelint_rules.slo.slo007_overload import Overload

VERDICTS: tuple[type[Rule], ...] = (
    WeightsDoNotFit, ContextDoesNotFit, KvPressureCascade, LongContextRisk, ThroughputPastSlo, TtftInfeasible,
    ItlInfeasible, Overload,
)  # fmt: skip
"""The rules whose verdict a reading may change: does it fit, does it hold its objectives, does it carry its load."""

CANDIDATE = r",|K|[MGTPE](?:$|\s*tok)"
"""What a text must contain for `ambiguities` to say anything."""

PREFIX = r"(?<=[0-9\s_.])([KMGTPE])(?!i)"
COMMA = r"[0-9]{1,3},[0-9]{3}(?![0-9,])"
BITS = 8
NEAR = 0.01

MOST = 8
"""Readings that are judged in one spec, each for the price of a check."""


class Written(NamedTuple):
    """A quantity as the spec writes it: its place, its text, its dimension."""

    path: KeyPath
    text: str
    dimension: Dimension


class Reading(NamedTuple):
    """Another way to read a quantity: the TOML text that would say it, its value, and why it may be meant."""

    text: str
    value: float
    why: str


class UnitAmbiguity(Rule):
    """A quantity can be read in two ways, and the verdict depends on which is meant.

    What it checks
    --------------
    Texts that two readers can take for two values: prefixes of bytes without the B ("72G"), K, capital prefixes of
    tokens ("32K", which engines take for powers of 1024), commas that may be decimal; and the memory of a device in
    the decimal figure of its box, where the runtime is known to see more. The spec is judged once more with the other
    reading: a finding where a rule on capacity, objectives or load (at its default options) then says something else.
    Besides, a network in GB/s that is the instance type's in Gbit/s. Values of launch arguments are read as the engine
    reads them.

    Why it is bad
    -------------
    The difference is 2.4 % a prefix for K and 7.4 % for G. Where a deployment is sized to a few percent it decides
    whether the weights fit, and nobody sees it in the spec. Bits for bytes are a factor of eight.

    The arithmetic
    --------------
    ``1 Ki = 1,024; 1 Mi = 1,024^2; 1 Gi = 1,024^3 = 1.074 G``; ``1 B = 8 b``.

    How to fix
    ----------
    Write the unit out: "72 GB" or "72 GiB", "32k" or "32Ki", or the plain number.

    Source
    ------
    docs/spec.md: how values are read. vllm-project/vllm: vllm/engine/arg_utils.py (human_readable_int: k is 1,000
    and K 1,024).
    """

    code = "SPEC007"
    name = "unit-ambiguity"
    severity = Severity.WARNING
    questions = ("is the spec valid", "does it fit")
    failing = (
        Case(
            "weights that fit in GB and not in GiB",
            """\
servelint = 1
[hardware]
accelerator = "nvidia/h100-sxm5-80gb"
[model]
id = "meta-llama/Llama-3.1-70B"
max_model_len = 4096
weights_bytes = "67.4G" # expect: SPEC007
[policy.quantization]
weights = "fp8"
""",
            flip=("model.weights_bytes", '"67.4 GB"'),
        ),
        Case(
            "prompts whose load is carried at 32,000 tokens and not at 32,768",
            """\
servelint = 1
[hardware]
accelerator = "nvidia/h100-sxm5-80gb"
[model]
id = "meta-llama/Llama-3.1-8B"
max_model_len = 65536
[policy.batching]
max_sequences = 32
[workload]
prompt_tokens = "32K" # expect: SPEC007
output_tokens = 500
rate = "0.45 req/s"
""",
            flip=("workload.prompt_tokens", '"32k"'),
        ),
        Case(
            "the memory on the box, without which the weights fit",
            """\
servelint = 1
[hardware]
accelerator = "nvidia/h100-sxm5-80gb"
[hardware.override]
memory = "80 GB" # expect: SPEC007
source = "product page"
[model]
id = "meta-llama/Llama-3.1-70B"
max_model_len = 2048
weights_bytes = "69.5 GB"
[policy.quantization]
weights = "fp8"
""",
            flip=("hardware.override.memory", "80_000_000_000"),
        ),
        Case(
            "the network of an instance in bytes for bits",
            """\
servelint = 1
[hardware]
instance = "aws/p5.48xlarge"
devices = 16
network = { bandwidth = "3200 GB/s", per = "node" } # expect: SPEC007
[model]
id = "meta-llama/Llama-3.1-70B"
max_model_len = 8192
[policy.parallelism]
tensor = 8
pipeline = 2
""",
            flip=("hardware.network.bandwidth", '"3200 Gbit/s"'),
        ),
    )
    passing = (
        Case(
            "a little less, which fits in both readings",
            """\
servelint = 1
[hardware]
accelerator = "nvidia/h100-sxm5-80gb"
[model]
id = "meta-llama/Llama-3.1-70B"
max_model_len = 4096
weights_bytes = "67.2G"
[policy.quantization]
weights = "fp8"
""",
        ),
        Case(
            "a unit that is written out",
            """\
servelint = 1
[hardware]
accelerator = "nvidia/h100-sxm5-80gb"
[model]
id = "meta-llama/Llama-3.1-70B"
max_model_len = 4096
weights_bytes = "67.4 GB"
[policy.quantization]
weights = "fp8"
""",
        ),
        Case(
            "the network of an instance in bits",
            """\
servelint = 1
[hardware]
instance = "aws/p5.48xlarge"
devices = 16
network = { bandwidth = "3200 Gbit/s", per = "node" }
[model]
id = "meta-llama/Llama-3.1-70B"
max_model_len = 8192
[policy.parallelism]
tensor = 8
pipeline = 2
""",
        ),
    )

    def check(self, review: Review) -> Iterator[Finding | Lacks]:
        """Judge the spec with the other reading of every text that has one."""
        network = _network(review)
        if network is not None:
            yield network
        open_texts = [(w, r) for w in _quantities(review) if (r := _other(review, w)) is not None]
        if not open_texts:
            return
        if review.composition is None:
            yield Lacks("a composed deployment, to judge it with the other reading")
            return
        if len(open_texts) > MOST:
            yield Lacks(f"one way to read the rest of {len(open_texts)} texts: {MOST} are judged")
        now = _verdicts(review)
        for written, reading in open_texts[:MOST]:
            other = _reread(review, written.path, reading.text)
            if other is None or other.composition is None:
                continue
            then = _verdicts(other)
            if set(now) != set(then):
                yield _finding(review, written, reading, now, then)


def _quantities(review: Review) -> Iterator[Written]:
    """Texts of the spec that could be read in two ways; only those that launch arguments do not set."""
    if review.document.manifest:
        return
    data = review.document.data
    for key, (_, kind, _) in kinds(Deployment).items():
        if key in data:
            yield from _walk(kind, data[key], (key,))
    tables = data.get("policy")
    if isinstance(tables, Mapping):
        for policy in review.plugins.policies:
            if policy.name in tables:
                yield from _walk(Table(policy.config), tables[policy.name], ("policy", policy.name))
    for path, claim in review.claims:
        kind, text = CLAIM_METRICS[claim.metric], review.document.value((*path, "value"))
        yield from _walk(kind, text, (*path, "value"))


def _walk(kind: Kind, value: object, path: KeyPath) -> Iterator[Written]:
    if isinstance(kind, Either):
        kind = kind.table if isinstance(value, Mapping) else kind.plain
    if isinstance(kind, Quantity):
        if isinstance(value, str) and (kind.dimension is Dimension.BYTES or re.search(CANDIDATE, value)):
            yield Written(path, value, kind.dimension)
    elif isinstance(kind, Table) and isinstance(value, Mapping):
        for key, (_, inner, _) in kinds(kind.cls).items():
            if key in value:
                yield from _walk(inner, value[key], (*path, key))
    elif isinstance(kind, Named) and isinstance(value, Mapping):
        for key, item in value.items():
            yield from _walk(kind.kind, item, (*path, key))
    elif isinstance(kind, Tables | Many) and isinstance(value, list):
        for i, item in enumerate(value):
            yield from _walk(Table(kind.cls) if isinstance(kind, Tables) else kind.kind, item, (*path, i))


def _other(review: Review, written: Written) -> Reading | None:
    """The other reading of a text, None when there is one only."""
    path, text, dimension = written
    if path in review.document.settings:
        return None
    if path == ("hardware", "override", "memory"):
        return _visible(review, text)
    note = ambiguities(text, dimension)
    if note is None:
        return None
    if re.search(PREFIX, text):
        other = re.sub(PREFIX, r"\1i", text, count=1)
    elif re.search(COMMA, text):
        other = text.replace(",", ".")
    else:
        return None
    try:
        value = parse_quantity(other, dimension)
    except QuantityError:
        return None
    return Reading(f'"{other}"', value, note)


def _visible(review: Review, text: str) -> Reading | None:
    """What the runtime sees of a device whose memory is given as the decimal figure of its box."""
    part = review.accelerator
    if part is None or part.runtime_visible_bytes is None:
        return None
    given, visible = parse_quantity(text, Dimension.BYTES), part.runtime_visible_bytes
    if abs(given / part.memory_bytes - 1) > NEAR / 2 or visible <= given * (1 + NEAR):
        return None
    shown = format_quantity(visible, Dimension.BYTES, 4)
    return Reading(
        str(visible),
        float(visible),
        f"{text!r} is the decimal figure of {part.name}, of which the runtime sees {shown}",
    )


def _reread(review: Review, path: KeyPath, text: str) -> Review | None:
    """The same spec with another value at a key, None when it is no longer valid."""
    document = review.document
    span = document.spans.value(path)
    if span is None:
        return None
    changed = document.text[: span.start] + text + document.text[span.end :]
    other = open_spec(document.name, changed, review.plugins, review.root)
    return None if other.deployment is None else Review(other, review.plugins, review.root)


def _verdicts(review: Review) -> dict[str, Finding]:
    """The first finding of warning or error by each rule that says whether the deployment works."""
    found: dict[str, Finding] = {}
    for rule in VERDICTS:
        for item in rule().check(review):
            if isinstance(item, Finding) and (item.severity or rule.severity) >= Severity.WARNING:
                found.setdefault(f"{rule.code} {rule.name}", item)
    return found


def _finding(
    review: Review, written: Written, reading: Reading, now: Mapping[str, Finding], then: Mapping[str, Finding]
) -> Finding:
    value = parse_quantity(written.text, written.dimension)
    shown, other = (format_quantity(v, written.dimension, 4) for v in (value, reading.value))
    appears, goes = sorted(set(then) - set(now)), sorted(set(now) - set(then))
    effects = [
        *([f"{' and '.join(appears)} appears ({then[appears[0]].message})"] if appears else []),
        *([f"{' and '.join(goes)} is gone"] if goes else []),
    ]
    return Finding(
        written.path,
        f"{reading.why}. The verdict depends on it: at {other} instead of {shown} {', and '.join(effects)}",
        equation=f"{other} / {shown} = {reading.value / value:.3f}",
        inputs=(
            review.input("as read", value, written.dimension.unit, *written.path),
            Input("other reading", reading.value, written.dimension.unit, review.source(*written.path)),
        ),
        help=f"set {dotted(written.path)} to {reading.text} if that is meant, else to the plain number "
        + (f"{value:.0f}" if value == int(value) else f"{value!r}"),
        related=tuple(Related((now | then)[name].path, name) for name in (*appears, *goes))[:2],  # type: ignore[operator]
    )


def _network(review: Review) -> Finding | None:
    """A network in bytes a second that is the instance type's in bits."""
    hardware, instance, path = review.deployment.hardware, review.instance, ("hardware", "network", "bandwidth")
    network = hardware.network
    if network is None or network.bandwidth is None or instance is None or instance.network_bytes_per_s is None:
        return None
    real = instance.network_bytes_per_s / (1 if network.per == "node" else instance.devices)
    if abs(network.bandwidth / (BITS * real) - 1) > NEAR:
        return None
    given, bits = (format_quantity(v, Dimension.BYTES_PER_SECOND) for v in (network.bandwidth, real))
    text = f'"{real * BITS / 1e9:g} Gbit/s"'
    return Finding(
        path,
        f"{given} a {network.per} is {BITS} times the network of {instance.id}: its {real * BITS / 1e9:g} Gbit/s, with "
        "bytes for bits",
        equation=f"{given} / {bits} = {network.bandwidth / real:.2f}",
        inputs=(
            review.input("given bandwidth", network.bandwidth, "B/s", *path),
            Input(f"network of the {network.per}", real, "B/s", instance.source("network_bytes_per_s")),
        ),
        help=f"set it to {text}",
        related=(Related(("hardware", "instance"), "has that network"),),
        fix=Fix("write bits", (Edit(path, text),), safe=True),
    )
