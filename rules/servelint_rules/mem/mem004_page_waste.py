"""MEM004 page-waste."""

from __future__ import annotations

from collections.abc import Iterator

from attrs import evolve

from servelint.lineage import KeyPath
from servelint.plugin import Case, Edit, Finding, Fix, Lacks, Option, Related, Review, Rule, Severity
from servelint_rules.averages import averaged
from servelint_rules.layouts import decode_side
from servelint_rules.show import tokens

PAGE: KeyPath = ("policy", "kv_cache", "page_size")


class PageWaste(Rule):
    """Pages are so large for these requests that much of the KV cache holds nothing.

    What it checks
    --------------
    The half page that a running sequence leaves empty on average against what it holds, at the mean context of the
    workload, where a ``page_size`` is declared and the KV cache is what limits how many sequences run at once. Silent
    where admission or the token budget limits them first: then the empty part is not missed; and for layers of
    different kinds that share blocks, whose padding the engine decides.

    Why it is bad
    -------------
    Capacity that is paid for holds no tokens. Large pages are chosen for transfers and kernels, and are harmless for
    long requests only.

    The arithmetic
    --------------
    ``waste = page / 2 / (context + page / 2)``: the last page of a sequence is half full on average.

    How to fix
    ----------
    The largest page whose waste is below the threshold is in the help line; some kernels ask for pages of their own
    (MLA: 64).

    Source
    ------
    Kwon et al., Efficient Memory Management for Large Language Model Serving with PagedAttention (arXiv 2309.06180),
    sections 4.1 and 7.2.
    """

    code = "MEM004"
    name = "page-waste"
    severity = Severity.INFO
    questions = ("how many requests run at once", "where does the memory go")
    options = (Option("waste", 0.1, "share of the used KV cache that may hold no tokens", 0.0, 1.0),)
    failing = (
        Case(
            "pages of 256 for contexts of 600",
            """\
servelint = 1
[hardware]
accelerator = "nvidia/l4"
[model]
id = "meta-llama/Llama-3.1-8B"
max_model_len = 8192
[policy.batching]
max_sequences = 256
[policy.kv_cache]
page_size = 256 # expect: MEM004
[workload]
prompt_tokens = 500
output_tokens = 200
""",
            flip=("policy.kv_cache.page_size", "16"),
        ),
        Case(
            "one step above the boundary",
            """\
servelint = 1
[hardware]
accelerator = "nvidia/l4"
[model]
id = "meta-llama/Llama-3.1-8B"
max_model_len = 8192
[policy.batching]
max_sequences = 256
[policy.kv_cache]
page_size = 134 # expect: MEM004
[workload]
prompt_tokens = 500
output_tokens = 200
""",
            flip=("policy.kv_cache.page_size", "133"),
        ),
    )
    passing = (
        Case(
            "one step below the boundary",
            """\
servelint = 1
[hardware]
accelerator = "nvidia/l4"
[model]
id = "meta-llama/Llama-3.1-8B"
max_model_len = 8192
[policy.batching]
max_sequences = 256
[policy.kv_cache]
page_size = 133
[workload]
prompt_tokens = 500
output_tokens = 200
""",
        ),
        Case(
            "nobody misses the memory: admission limits first",
            """\
servelint = 1
[hardware]
accelerator = "nvidia/l4"
[model]
id = "meta-llama/Llama-3.1-8B"
max_model_len = 8192
[policy.batching]
max_sequences = 8
[policy.kv_cache]
page_size = 256
[workload]
prompt_tokens = 500
output_tokens = 200
""",
        ),
    )

    def check(self, review: Review) -> Iterator[Finding | Lacks]:
        """Compare the half page of a sequence with its mean context."""
        if not review.declared(*PAGE):
            return
        mix, composition = review.mix, review.composition
        if mix is None or composition is None:
            yield Lacks("a composed deployment and workload lengths")
            return
        memory, context = decode_side(composition).memory, mix.mean_context
        waste, limit = _waste(memory.page_size, context), self.option("waste")
        if waste <= limit or any(c.held for c in memory.caches):
            return
        service = review.service(mix)
        # A whole page less would have to let more sequences run: blocks that an engine pools are of its own size.
        roomy = evolve(memory, page_size=1).resident_sequences(context)
        fits = service.limits["KV capacity"]
        if fits != service.batch_limit or roomy <= fits or fits < 1:
            return
        page = _largest(limit, context)
        mended = _waste(page, context)
        yield Finding(
            PAGE,
            f"a sequence holds {tokens(context)} tokens on average and leaves half of a page of {memory.page_size} "
            f"tokens empty: {waste:.0%} of the KV cache, which is what limits the sequences at once",
            equation=(
                f"{memory.page_size} / 2 / ({tokens(context)} + {memory.page_size} / 2) = {waste:.1%} > {limit:.0%}"
            ),
            inputs=(
                review.input("page size", memory.page_size, "tok", *PAGE),
                averaged(review, "mean context", round(context, 1)),
            ),
            help=f"set policy.kv_cache.page_size = {page}, which leaves {mended:.1%} empty",
            related=(Related(("workload",), f"mean context {tokens(context)} tokens"),),
            fix=Fix(f"pages of {page} tokens", (Edit(PAGE, str(page)),)),
        )


def _waste(page: int, context: float) -> float:
    """Share of the pages of an average sequence that holds nothing; none where a page is a token."""
    empty = page / 2 if page > 1 else 0.0
    return empty / (context + empty)


def _largest(limit: float, context: float) -> int:
    """The largest power of two whose waste is within the limit, at least one token."""
    page = 256
    while _waste(page, context) > limit:
        page //= 2
    return page
