"""QNT001 no-task-eval."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from servelint.composition import Assumption
from servelint.lineage import KeyPath
from servelint.plugin import Architecture, Case, Finding, Format, Input, Lacks, Option, Related, Review, Rule, Severity
from servelint_rules.qnt.weights import weights_path

NO_TASK = frozenset(
    {"perplexity", "ppl", "wikitext", "wikitext2", "c4", "ptb", "pile", "loss", "nll", "kl", "kld", "bpb", "divergence"}
)
"""Words in a task's name that make it a language-modelling figure, not a task."""

KV_BITS = 8
"""KV caches of at least this many bits are a run-time setting, not an artifact."""


class Narrowed(NamedTuple):
    """One thing that is stored in fewer bits than the checkpoint has: its key, its format, what it was.

    ``assumed`` says why that is the format, where nothing states it.
    """

    path: KeyPath
    what: str
    format: Format
    before: Format
    assumed: Assumption | None = None


class NoTaskEval(Rule):
    """A quantized artifact is deployed without an evaluation of its own on tasks.

    What it checks
    --------------
    ``policy.quantization.weights`` in fewer bits than the checkpoint stores, or a KV cache in fewer than 8,
    against ``[[evidence]]`` of kind ``task-eval``: it has to name an artifact other than the base model and
    list tasks. Perplexity and other language-modelling figures are no tasks. The format that the model's publisher
    stores it in is not a new artifact, and neither is an 8-bit KV cache; a checkpoint that others made of the model is.

    Why it is bad
    -------------
    Quantization loses quality unevenly: averages and perplexity hold while a slice (long context, code, one
    language) breaks. What was measured on the base model, or on another quantization of it, says nothing of
    the weights that serve.

    The arithmetic
    --------------
    Stored bits an element, metadata included, before and after. Fewer bits than the option ``bits``, a KV cache of
    fewer than 8, and evidence that is declared and does not count are a warning in a spec. Anything milder is advice,
    and so is everything in a manifest, which has no place for evaluations, and a format that nothing states: one that
    the checkpoint's name says, or that stands for a flag which leaves it open.

    How to fix
    ----------
    Evaluate the artifact on the tasks and slices that it serves, and declare the change of each score.

    Source
    ------
    docs/cost-model.md, quantization; Dettmers and Zettlemoyer, The case for 4-bit precision (arXiv 2212.09720).
    """

    code = "QNT001"
    name = "no-task-eval"
    severity = Severity.WARNING
    confidence = "high"
    questions = ("is the quality still right", "may I quantize this")
    options = (Option("bits", 8, "weights of fewer bits than this warn even where no evidence at all is declared"),)
    failing = (
        Case(
            "4-bit weights and no evaluation",
            """\
servelint = 1
[hardware]
accelerator = "nvidia/h100-sxm5-80gb"
[model]
id = "meta-llama/Llama-3.1-8B"
[policy.quantization]
weights = "int4-g128" # expect: QNT001
[workload]
prompt_tokens = 1000
output_tokens = 200
rate = "1 req/s"
""",
            flip=("policy.quantization.weights", '"bf16"'),
        ),
        Case(
            "FP8 weights with nothing but perplexity",
            """\
servelint = 1
[hardware]
accelerator = "nvidia/h100-sxm5-80gb"
[model]
id = "meta-llama/Llama-3.1-8B"
[policy.quantization]
weights = "fp8" # expect: QNT001
[slo]
itl = { p99 = "50 ms" }
[[evidence]]
kind = "task-eval"
artifact = "llama-3.1-8b-fp8-2026-09"
tasks = { wikitext-2-perplexity = 0.04 }
""",
            flip=("evidence[0].tasks", "{ code = -0.2 }"),
        ),
        Case(
            "an evaluation of the base model",
            """\
servelint = 1
[hardware]
accelerator = "nvidia/h100-sxm5-80gb"
[model]
id = "meta-llama/Llama-3.1-8B"
[policy.quantization]
weights = "fp8" # expect: QNT001
[slo]
itl = { p99 = "50 ms" }
[[evidence]]
kind = "task-eval"
artifact = "meta-llama/Llama-3.1-8B"
tasks = { code = 0.0 }
""",
            flip=("evidence[0].artifact", '"llama-3.1-8b-fp8-2026-09"'),
        ),
        Case(
            "a KV cache of 4 bits",
            """\
servelint = 1
[hardware]
accelerator = "nvidia/b200-sxm6-180gb"
[model]
id = "meta-llama/Llama-3.1-8B"
[policy.quantization]
kv_cache = "nvfp4" # expect: QNT001
[workload]
prompt_tokens = 1000
output_tokens = 200
rate = "1 req/s"
""",
            flip=("policy.quantization.kv_cache", '"fp8"'),
        ),
        Case(
            "8-bit weights, of which nothing is said",
            """\
servelint = 1
[hardware]
accelerator = "nvidia/h100-sxm5-80gb"
[model]
id = "meta-llama/Llama-3.1-8B"
[policy.quantization]
weights = "fp8" # expect: QNT001
[workload]
prompt_tokens = 1000
output_tokens = 200
rate = "1 req/s"
""",
            flip=("policy.quantization.weights", '"bf16"'),
        ),
        Case(
            "scores of nobody knows what",
            """\
servelint = 1
[hardware]
accelerator = "nvidia/h100-sxm5-80gb"
[model]
id = "meta-llama/Llama-3.1-8B"
[policy.quantization]
weights = "fp8" # expect: QNT001
[slo]
itl = { p99 = "50 ms" }
[[evidence]]
kind = "task-eval"
tasks = { code = -0.2 }
""",
            flip=("policy.quantization.weights", '"bf16"'),
        ),
        Case(
            "a checkpoint whose name says that others made it of the model",
            """\
servelint = 1
[hardware]
accelerator = "nvidia/h100-sxm5-80gb"
[model]
id = "acme/Llama-3.1-8B-AWQ" # expect: QNT001
""",
            flip=("model.id", '"meta-llama/Llama-3.1-8B"'),
        ),
    )
    passing = (
        Case(
            "such a checkpoint with scores of its own",
            """\
servelint = 1
[hardware]
accelerator = "nvidia/h100-sxm5-80gb"
[model]
id = "acme/Llama-3.1-8B-AWQ"
[[evidence]]
kind = "task-eval"
artifact = "acme/Llama-3.1-8B-AWQ"
tasks = { code = -0.2 }
""",
        ),
        Case(
            "FP8 weights with their own task scores",
            """\
servelint = 1
[hardware]
accelerator = "nvidia/h100-sxm5-80gb"
[model]
id = "meta-llama/Llama-3.1-8B"
[policy.quantization]
weights = "fp8"
[slo]
itl = { p99 = "50 ms" }
[[evidence]]
kind = "task-eval"
artifact = "llama-3.1-8b-fp8-2026-09"
tasks = { math = -0.1, code = -0.2 }
""",
        ),
        Case(
            "a checkpoint in its own FP8, and an 8-bit KV cache",
            """\
servelint = 1
[hardware]
accelerator = "nvidia/h100-sxm5-80gb"
[model]
id = "Qwen/Qwen3-8B-FP8"
[policy.quantization]
weights = "fp8"
kv_cache = "fp8"
[workload]
prompt_tokens = 1000
output_tokens = 200
rate = "1 req/s"
""",
        ),
    )

    def check(self, review: Review) -> Iterator[Finding | Lacks]:
        """Compare formats with the checkpoint's, and look for evidence that counts."""
        if review.composition is None:
            yield Lacks("hardware.accelerator and model")
            return
        narrowed = list(_narrowed(review))
        if not narrowed:
            return
        rejected = []
        for i, evidence in enumerate(review.deployment.evidence):
            if evidence.kind == "task-eval":
                key, reason = _why_not(review, evidence.artifact, tuple(evidence.tasks or ()))
                if not reason:
                    return
                rejected.append(Related(("evidence", i, key), reason))
        yield self._finding(review, narrowed[0], tuple(rejected))

    def _finding(self, review: Review, found: Narrowed, rejected: tuple[Related, ...]) -> Finding:
        narrow = bool(rejected) or found.format.bits < self.option("bits") or found.path[-1] == "kv_cache"
        serious = narrow and not review.document.manifest and found.assumed is None
        before, after = found.before.bits_per_element, found.format.bits_per_element
        missing = (
            "and no task evaluation of this artifact is declared"
            if not rejected
            else f"and the evaluation that is declared does not count: it {rejected[0].message}"
        )
        return Finding(
            found.path,
            f"{found.what} in {found.format.name} ({after:.3g} bits an element, {found.before.name} has {before:.3g})"
            + (f", which is assumed: {found.assumed.reason}" if found.assumed is not None else "")
            + f"{';' if found.assumed is not None else ','} {missing}",
            equation=f"{before:.4g} / {after:.4g} bits an element = {before / after:.2f}x fewer: a new artifact",
            inputs=(
                Input("bits before", before, "bit", found.before.source),
                Input("bits deployed", after, "bit", found.format.source),
                review.policy_input("quantization", str(found.path[-1]))
                if found.assumed is None
                else Input("weights", found.format.name, "", found.assumed.source),
            ),
            help=(
                'declare [[evidence]] with kind = "task-eval", the artifact\'s own name and the change of every task '
                "that it serves, such as tasks = { code = -0.2, long-context = -0.1 }"
            ),
            related=rejected,
            severity=Severity.WARNING if serious else Severity.INFO,
        )


def _narrowed(review: Review) -> Iterator[Narrowed]:
    """What is stored in fewer bits than the checkpoint has, weights first."""
    composition, config = review.composition, review.policy("quantization")
    if composition is None or config is None:
        return
    setup, path = composition.setup, ("policy", "quantization")
    assumed = review.assumption(*path, "weights")
    named = assumed.value if assumed is not None else config.weights
    if named not in (None, "auto"):
        new, made_of = review.plugins.format(str(named)), _made_of(review)
        roles = config.covers or new.covers
        stored = [
            setup.formats.of(tensor)
            for tensor, _ in setup.architecture.tensors()
            if tensor.matmul and tensor.role in roles
        ]
        widest = max(stored, key=lambda f: f.bits, default=new) if made_of is None else _stored(review, made_of)
        if new.bits < widest.bits:
            key = (*path, "weights") if review.declared(*path, "weights") else weights_path(review)
            yield Narrowed(key, "the weights are stored", new, widest, assumed)
    if config.kv_cache not in (None, "auto"):
        cache = review.plugins.format(config.kv_cache)
        if cache.bits < min(KV_BITS, setup.formats.cache.bits):
            yield Narrowed((*path, "kv_cache"), "the KV cache is kept", cache, setup.formats.cache)


def _made_of(review: Review) -> Architecture | None:
    """The model of the catalogue that others made the checkpoint of, None where it is one of the catalogue itself."""
    model = review.deployment.model
    named = review.plugins.checkpoint(model.id) if model.id is not None and model.config is None else None
    return review.plugins.models.get(named.base) if named is not None and named.format is not None else None


def _stored(review: Review, architecture: Architecture) -> Format:
    """The format that a model's publisher stores it in."""
    own = architecture.quantization
    return review.plugins.format(architecture.stored if own is None else own.format)


def _why_not(review: Review, artifact: str | None, tasks: tuple[str, ...]) -> tuple[str, str]:
    """The key by which evidence does not count and why, two empty texts when it does."""
    made_of = _made_of(review)
    model = review.deployment.model.id if made_of is None else made_of.id
    if artifact is None:
        return "kind", "names no artifact"
    if model is not None and artifact.lower() in (model.lower(), model.lower().rpartition("/")[2]):
        return "artifact", f"is of the base model {artifact}, not of what is deployed"
    if not tasks:
        return "artifact", "lists no tasks"
    if all(NO_TASK & set(re.split(r"[^a-z0-9]+", name.lower())) for name in tasks):
        return "tasks", f"lists {', '.join(tasks)} only, which is no task"
    return "", ""
