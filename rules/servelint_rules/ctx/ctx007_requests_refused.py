"""CTX007 requests-refused."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

from attrs import evolve

from servelint.lineage import KeyPath
from servelint.plugin import (
    Case,
    Composition,
    Edit,
    Finding,
    Fix,
    Input,
    Lacks,
    Option,
    Related,
    Review,
    Rule,
    Severity,
)
from servelint.service import Mix
from servelint_rules.ctx.positions import launched_with, positions, rescaled
from servelint_rules.layouts import composed, fits
from servelint_rules.show import tokens
from servelint_rules.variants import narrower_cache, sides

LENGTH: KeyPath = ("model", "max_model_len")
LENGTHS = ("prompt_tokens", "output_tokens", "images_per_prompt", "encoder_tokens", "trace")
"""Keys of a workload that say how long its requests are."""
TRUNCATING = "allow-auto-truncate"
"""What lets SGLang cut prompts that are too long instead of refusing them."""
SEEN = 5e-5
"""Shares below this would be written as nothing; a sum of two distributions is not known that well."""


class Excess(NamedTuple):
    """Shares of requests whose prompt leaves no room for one token, and of those that only their output makes too long.

    ``wanted`` tokens take every prompt, with a token to answer it, and all but the option's share of whole requests.
    """

    prompts: float
    outputs: float
    wanted: int


class RequestsRefused(Rule):
    """Requests of the declared workload are longer than the engine serves.

    What it checks
    --------------
    The lengths of the workload, and of each growth scenario that declares its own, against ``model.max_model_len``, or
    against the positions of the model where none is declared: the share of prompts at or above it, and the share of
    requests whose prompt fits while prompt and output together do not. Silent where launch arguments scale the
    positions and no length is declared; a context that llama.cpp divides over slots is ENG005's.

    Why it is bad
    -------------
    Every engine refuses a prompt that fills its context: no schedule, replica or device serves it, and no figure here
    counts it as lost. What is too long only with its output is refused where the client asks for so many tokens, else
    cut off at the limit.

    The arithmetic
    --------------
    ``1 - share of prompts below max_model_len``, by the declared quantiles; the sum of independent prompt and output,
    or that of a trace. Error from the option's share of prompts on; a warning for fewer, and for more than that share
    of requests that their output makes too long.

    How to fix
    ----------
    The length in the help line, which memory holds and the model has positions for. Where there is none: another
    model, more memory, or a limit in front of the engine and lengths that say what is served.

    Source
    ------
    vllm-project/vllm vllm/engine/llm_engine.py and vllm/v1/engine/processor.py (a prompt over ``max_model_len`` is
    refused), vllm/entrypoints/openai (so are prompt and ``max_tokens`` together); sgl-project/sglang
    python/sglang/srt/managers/tokenizer_manager.py (both, unless ``--allow-auto-truncate`` is given);
    ggml-org/llama.cpp tools/server (``exceed_context_size_error``).
    """

    code = "CTX007"
    name = "requests-refused"
    weighs = True
    severity = Severity.ERROR
    questions = ("how long may a request be", "why is a request refused")
    options = (Option("share", 0.01, "share of prompts that is an error; share of cut outputs to speak of", 0.0, 1.0),)
    failing = (
        Case(
            "most prompts are longer than the limit",
            """\
servelint = 1
[hardware]
accelerator = "nvidia/h100-sxm5-80gb"
[model]
id = "Qwen/Qwen3-8B"
max_model_len = 900 # expect: CTX007
[workload]
prompt_tokens = { p50 = 1000, p99 = 8000 }
output_tokens = { p50 = 300, p99 = 1200 }
rate = "1 req/s"
""",
            flip=("model.max_model_len", "9216"),
        ),
        Case(
            "a prompt that leaves no room for a token",
            """\
servelint = 1
[hardware]
accelerator = "nvidia/h100-sxm5-80gb"
[model]
id = "Qwen/Qwen3-8B"
max_model_len = 4097 # expect: CTX007
[workload]
prompt_tokens = 4097
output_tokens = 1
rate = "1 req/s"
""",
            flip=("workload.prompt_tokens", "4096"),
        ),
        Case(
            "one token of output too many",
            """\
servelint = 1
[hardware]
accelerator = "nvidia/h100-sxm5-80gb"
[model]
id = "Qwen/Qwen3-8B"
max_model_len = 4096 # expect: CTX007
[workload]
prompt_tokens = 4000
output_tokens = 97
rate = "1 req/s"
""",
            flip=("workload.output_tokens", "96"),
        ),
        Case(
            "longer than the model has positions",
            """\
servelint = 1
[hardware]
accelerator = "nvidia/h100-sxm5-80gb"
[model]
id = "Qwen/Qwen3-8B"
[workload]
prompt_tokens = { p50 = 1000, p99 = 60000 } # expect: CTX007
output_tokens = 500
rate = "0.1 req/s"
""",
            flip=("workload.prompt_tokens.p99", "40000"),
        ),
        Case(
            "a growth scenario beyond the limit",
            """\
servelint = 1
[hardware]
accelerator = "nvidia/h100-sxm5-80gb"
[model]
id = "Qwen/Qwen3-8B"
max_model_len = 8192
[workload]
prompt_tokens = 1000
output_tokens = 200
rate = "0.1 req/s"
[[workload.growth]]
name = "documents"
prompt_tokens = 12000 # expect: CTX007
""",
            flip=("model.max_model_len", "12200"),
        ),
    )
    passing = (
        Case(
            "prompt and output just fit",
            """\
servelint = 1
[hardware]
accelerator = "nvidia/h100-sxm5-80gb"
[model]
id = "Qwen/Qwen3-8B"
max_model_len = 4096
[workload]
prompt_tokens = 4000
output_tokens = 96
rate = "1 req/s"
""",
        ),
        Case(
            "positions that a launch argument scales",
            """\
servelint = 1
[hardware]
accelerator = "nvidia/h100-sxm5-80gb"
[model]
id = "Qwen/Qwen3-8B"
[engine]
name = "vllm"
version = "0.9.0"
args = ["--rope-scaling", '{"rope_type": "yarn", "factor": 4.0}']
[workload]
prompt_tokens = { p50 = 1000, p99 = 60000 }
output_tokens = 500
rate = "0.1 req/s"
""",
        ),
    )

    def check(self, review: Review) -> Iterator[Finding | Lacks]:
        """Compare the lengths of requests with the longest that is served."""
        composition, mix = review.composition, review.mix
        if composition is None or mix is None:
            yield Lacks("a composed deployment and workload lengths")
            return
        declared = review.deployment.model.max_model_len
        limit = declared or positions(composition.setup.architecture)
        if limit <= 0 or (declared is None and rescaled(review)):
            return
        excess = _excess(mix, limit, self.option("share"))
        if not _divided(review, excess, limit):
            path = LENGTH if declared else _lengths(review, ("workload",))
            yield from self._finding(review, composition, path, mix, limit, excess)
        for i, scenario in review.growth:
            table: KeyPath = ("workload", "growth", i)
            if any(review.declared(*table, key) for key in LENGTHS):
                excess = _excess(scenario, limit, self.option("share"))
                path = _lengths(review, table)
                yield from self._finding(review, composition, path, scenario, limit, excess, f"{scenario.name}: ")

    def _finding(
        self,
        review: Review,
        composition: Composition,
        path: KeyPath,
        mix: Mix,
        limit: int,
        excess: Excess,
        scenario: str = "",
    ) -> Iterator[Finding]:
        share = self.option("share")
        total = mix.total or mix.prompt.plus(mix.output)
        p99 = math.ceil(total.quantile(0.99))
        short, whole = mix.prompt.share_within(limit - 1), total.share_within(limit)
        if excess.prompts > SEEN:
            cut = launched_with(review, TRUNCATING)
            refused = "cut before they are answered" if cut else "refused, whatever the load"
            certain = excess.prompts > share - SEEN and not cut
            what = f"{_percent(excess.prompts)} of the prompts have {tokens(limit)} tokens or more and are {refused}"
            if excess.outputs > SEEN:
                what += f"; {_percent(excess.outputs)} more requests are too long with their output"
        elif excess.outputs > max(share, SEEN):
            certain = False
            what = (
                f"{_percent(excess.outputs)} of the requests have a prompt that fits and are longer than "
                f"{tokens(limit)} tokens with their output: they are refused where the client asks for it, else cut off"
            )
        else:
            return
        own = review.declared(*LENGTH)
        help_, edits = _help(review, composition, limit, excess.wanted, p99)
        where = LENGTH if own else ("model", "id")
        said = "max_model_len" if own else "positions of the model"
        at = ("workload",) if not scenario else path[:3]
        yield Finding(
            path,
            f"{scenario}{what}",
            equation=(
                f"{_percent(short)} of the prompts are shorter than {tokens(limit)} tokens, {_percent(whole)} of the "
                f"requests have no more with their output; p99 of the prompts is "
                f"{tokens(mix.prompt.quantile(0.99))} tokens, with the output {tokens(p99)}"
            ),
            inputs=(
                Input(said, limit, "tok", review.source(*where)),
                Input("p99 of prompt and output", p99, "tok", review.source(*at)),
            ),
            help=help_,
            related=(Related(_lengths(review, at), "lengths of requests"),)
            if path == LENGTH
            else (Related(where, f"{tokens(limit)} tokens"),)
            if review.declared(*where)
            else (),
            fix=Fix(f"set max_model_len to {excess.wanted}", edits) if own and not scenario and edits else None,
            severity=Severity.ERROR if certain else Severity.WARNING,
            # That prompt and output are independent is an assumption; the prompts are as declared.
            confidence="high" if excess.prompts > SEEN else "medium",
        )


def _excess(mix: Mix, limit: int, share: float) -> Excess:
    """What of a mix is too long for a limit."""
    total = mix.total or mix.prompt.plus(mix.output)
    prompts = 1 - mix.prompt.share_within(limit - 1)
    return Excess(
        prompts,
        max(1 - total.share_within(limit) - prompts, 0.0),
        math.ceil(max(mix.prompt.quantile(1.0) + 1, total.quantile(1 - share))),
    )


def _divided(review: Review, excess: Excess, limit: int) -> bool:
    """Whether ENG005 says it: the engine divides a context over slots, which are too short for the p99."""
    launched = review.document.launched
    made = launched.settings.get(LENGTH) if launched is not None else None
    return made is not None and made.slots > 1 and excess.wanted > limit


def _lengths(review: Review, table: KeyPath) -> KeyPath:
    """Where a table says how long requests are."""
    return next(((*table, key) for key in LENGTHS if review.declared(*table, key)), table)


def _percent(share: float) -> str:
    """A share with the digits that tell it from none and from all."""
    return f"{share:.2%}" if share < 0.01 else f"{share:.1%}" if share < 0.9995 else f"{share:.0%}"


def _help(review: Review, composition: Composition, limit: int, wanted: int, p99: int) -> tuple[str, tuple[Edit, ...]]:
    """What serves requests of ``wanted`` tokens, or why nothing here does; with the edit that does it alone."""
    shorter = "or refuse longer requests in front of the engine and declare the lengths that are served"
    has = positions(composition.setup.architecture)
    if wanted > max(has, limit) and not rescaled(review):
        model = composition.setup.architecture.id
        return f"{model} has {tokens(has)} positions and {tokens(wanted)} are asked for: another model, {shorter}", ()
    longer = _with_length(composition, wanted)
    if longer is not None and all(fits(side) for _, side in sides(longer)):
        edits = (Edit(LENGTH, str(wanted)),)
        rest = f"; {tokens(p99)} take 99% of whole requests" if p99 < wanted else " and 99% of whole requests"
        return f"set model.max_model_len = {wanted}, which takes every prompt{rest}", edits
    narrow = narrower_cache(review)
    narrow = None if narrow is None else _with_length(narrow, wanted)
    if narrow is not None and all(fits(side) for _, side in sides(narrow)):
        return (
            f'set model.max_model_len = {wanted} and policy.quantization.kv_cache = "fp8": memory does not hold it '
            "otherwise",
            (),
        )
    held = 0 if longer is None else min(side.memory.longest_request(wanted) for _, side in sides(longer))
    most = f"memory holds {tokens(held)} tokens of one request at most and {tokens(wanted)} are asked for"
    return f"{most}: more devices, {shorter}", ()


def _with_length(composition: Composition, length: int) -> Composition | None:
    """The same deployment with another longest request, None where that does not compose."""
    setup = composition.setup
    model = evolve(setup.deployment.model, max_model_len=length)
    return composed(Composition(evolve(setup, deployment=evolve(setup.deployment, model=model))))
