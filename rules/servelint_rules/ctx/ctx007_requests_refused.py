"""CTX007 requests-refused."""

from __future__ import annotations

import math
from collections.abc import Iterator

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
from servelint.served import (
    LENGTH,
    PROMPT,
    SEEN,
    Limit,
    excess,
    limit,
    percent,
    positions,
    rescaled,
    too_long,
    truncates,
)
from servelint.service import Mix
from servelint_rules.layouts import composed, fits
from servelint_rules.show import tokens
from servelint_rules.variants import narrower_cache, sides, written

CAP: KeyPath = ("policy", "kv_cache", "max_tokens")
LENGTHS = ("prompt_tokens", "output_tokens", "images_per_prompt", "encoder_tokens", "trace")
"""Keys of a workload that say how long its requests are."""


class RequestsRefused(Rule):
    """Requests of the declared workload are longer than the engine serves.

    What it checks
    --------------
    The lengths of the workload, and of each growth scenario that declares its own, against ``model.max_model_len``, or
    against the positions of the model where none is declared: the share of prompts at or above it, or above
    ``model.max_prompt_tokens``, and the share of requests whose prompt fits while prompt and output together do not.
    Silent where launch arguments scale the positions and no length is declared; a context that llama.cpp divides over
    slots is ENG005's.

    Why it is bad
    -------------
    vLLM, SGLang, TGI and llama.cpp refuse a prompt that fills the context: no schedule, replica or device serves it,
    and no figure here counts it as lost. Where the engine may cut it instead (``engine.truncates``: SGLang's
    ``--allow-auto-truncate``, older builds of llama.cpp) it answers another prompt: a warning. What is too long only
    with its output is refused where the client asks for so many tokens, else cut off at the limit.

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
    huggingface/text-generation-inference router/src/validation.rs (a prompt over ``--max-input-tokens``, and one that
    is over ``--max-total-tokens`` with its ``max_new_tokens``); ggml-org/llama.cpp tools/server
    (``exceed_context_size_error``), #15416, #17284 (contexts are shifted only where asked for; later not even then).
    """

    code = "CTX007"
    name = "requests-refused"
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
        longest = limit(review)
        if longest is None:
            return
        if not _divided(review, longest, mix, self.option("share")):
            yield from self._finding(review, composition, ("workload",), mix, longest)
        for i, scenario in review.growth:
            table: KeyPath = ("workload", "growth", i)
            if any(review.declared(*table, key) for key in LENGTHS):
                yield from self._finding(review, composition, table, scenario, longest, f"{scenario.name}: ")

    def _finding(
        self,
        review: Review,
        composition: Composition,
        table: KeyPath,
        mix: Mix,
        longest: Limit,
        scenario: str = "",
    ) -> Iterator[Finding]:
        share, found = self.option("share"), excess(mix, longest)
        if found.prompts > SEEN:
            certain = found.prompts > share - SEEN and not truncates(review)
            what = too_long(review, longest, found)
            if found.outputs > SEEN:
                what += f"; {percent(found.outputs)} more requests are too long with their output"
        elif found.outputs > max(share, SEEN):
            certain = False
            what = (
                f"{percent(found.outputs)} of the requests have a prompt that fits and are longer than "
                f"{tokens(longest.tokens)} tokens with their output: they are refused where the client asks for it, "
                "else cut off"
            )
        else:
            return
        p99 = math.ceil(mix.context(0.99))
        short, whole = mix.prompt.share_within(longest.prompt), mix.whole.share_within(longest.tokens)
        # A limit of prompts alone is what prompts exceed, where it leaves more room than one token.
        apart = found.prompts > SEEN and longest.prompt < longest.tokens - 1
        where = PROMPT if apart else LENGTH if review.declared(*LENGTH) else ("model", "id")
        said = where[-1] if where != ("model", "id") else "positions of the model"
        most = longest.prompt if apart else longest.tokens
        own, lengths = where != ("model", "id"), _lengths(review, table)
        path = where if own and not scenario else lengths
        help_, edits = _help(review, composition, longest, mix, _wanted(mix, share), p99)
        yield Finding(
            path,
            f"{scenario}{what}",
            equation=(
                f"{percent(short)} of the prompts are shorter than {tokens(longest.prompt + 1)} tokens, "
                f"{percent(whole)} of the requests have no more than {tokens(longest.tokens)} with their output; "
                f"p99 of the prompts is {tokens(mix.prompt.quantile(0.99))} tokens, with the output {tokens(p99)}"
            ),
            inputs=(
                Input(str(said), most, "tok", review.source(*where)),
                Input("p99 of prompt and output", p99, "tok", review.source(*table)),
            ),
            help=help_,
            related=(Related(lengths, "lengths of requests"),)
            if path == where
            else (Related(where, f"{tokens(most)} tokens"),)
            if review.declared(*where)
            else (),
            fix=Fix(_said(edits), edits) if own and not scenario and edits else None,
            severity=Severity.ERROR if certain else Severity.WARNING,
            # That prompt and output are independent is an assumption; the prompts are as declared.
            confidence="high" if found.prompts > SEEN else "medium",
        )


def _wanted(mix: Mix, share: float) -> int:
    """Tokens that take every prompt, with a token to answer it, and all but a share of whole requests."""
    return math.ceil(max(mix.prompt.quantile(1.0) + 1, mix.context(1 - share)))


def _divided(review: Review, longest: Limit, mix: Mix, share: float) -> bool:
    """Whether ENG005 says it: the engine divides a context over slots, which are too short for the p99."""
    made = review.document.settings.get(LENGTH)
    return made is not None and made.slots > 1 and _wanted(mix, share) > longest.tokens


def _lengths(review: Review, table: KeyPath) -> KeyPath:
    """Where a table says how long requests are."""
    return next(((*table, key) for key in LENGTHS if review.declared(*table, key)), table)


def _said(edits: tuple[Edit, ...]) -> str:
    return " and ".join(f"set {edit.path[-1]} to {edit.text}" for edit in edits)


def _help(
    review: Review, composition: Composition, longest: Limit, mix: Mix, wanted: int, p99: int
) -> tuple[str, tuple[Edit, ...]]:
    """What serves the requests of a mix, or why nothing here does; with the edits that do it alone."""
    shorter = "or refuse longer requests in front of the engine and declare the lengths that are served"
    has = positions(composition.setup.architecture)
    if wanted > max(has, longest.tokens) and not rescaled(review):
        model = composition.setup.architecture.id
        return f"{model} has {tokens(has)} positions and {tokens(wanted)} are asked for: another model, {shorter}", ()
    needed = {LENGTH: wanted} if wanted > longest.tokens else {}
    prompt, cap = math.ceil(mix.prompt.quantile(1.0)), composition.memory.token_cap
    if review.declared(*PROMPT) and prompt > longest.prompt:
        needed[PROMPT] = prompt
    if review.declared(*CAP) and cap is not None and cap < wanted:
        needed[CAP] = wanted
    # One flag may set both what a request may have and what the cache holds.
    said = " and ".join(dict.fromkeys(written(review, path, number) for path, number in needed.items()))
    longer = _with_length(composition, wanted)
    if longer is not None and fits(longer):
        rest = f"; {tokens(p99)} take 99% of whole requests" if p99 < wanted else " and 99% of whole requests"
        return f"set {said}, which takes every prompt{rest}", tuple(Edit(p, str(n)) for p, n in needed.items())
    narrow = narrower_cache(review)
    narrow = None if narrow is None else _with_length(narrow, wanted)
    if narrow is not None and fits(narrow):
        return f'set {said} and policy.quantization.kv_cache = "fp8": memory does not hold it otherwise', ()
    held = 0 if longer is None else min(side.memory.longest_request(wanted) for _, side in sides(longer))
    most = f"memory holds {tokens(held)} tokens of one request at most and {tokens(wanted)} are asked for"
    return f"{most}: more devices, {shorter}", ()


def _with_length(composition: Composition, length: int) -> Composition | None:
    """The same deployment with another longest request and a cache that may hold it; None where it does not compose."""
    setup = composition.setup
    deployment = setup.deployment
    cache = deployment.policies.get("kv_cache")
    if cache is not None and cache.max_tokens is not None:
        policies = {**deployment.policies, "kv_cache": evolve(cache, max_tokens=max(cache.max_tokens, length))}
        deployment = evolve(deployment, policies=policies)
    model = evolve(deployment.model, max_model_len=length)
    return composed(Composition(evolve(setup, deployment=evolve(deployment, model=model))))
