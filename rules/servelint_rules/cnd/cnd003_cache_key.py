"""CND003 cache-key."""

from __future__ import annotations

from collections.abc import Iterator

from servelint.plugin import Case, Edit, Finding, Fix, Lacks, Related, Review, Rule, Severity

KEY = ("policy", "constrained_decoding", "cache_key")
NEEDED = ("schema", "tokenizer")
SPEC = """\
servelint = 1
[hardware]
accelerator = "nvidia/h100-sxm5-80gb"
[model]
id = "meta-llama/Llama-3.1-8B"
max_model_len = 8192
[policy.constrained_decoding]
schemas = "static"
cache_key = ["schema"] # expect: CND003
"""
WRONG = {
    "schema": "requests of one schema are given the masks of another, and what they return matches the wrong one",
    "tokenizer": "after a change of model or tokenizer the masks of the old vocabulary are applied to the new one: "
    "they allow and forbid the wrong tokens, and nothing reports it",
}


class CacheKey(Rule):
    """Compiled grammars are cached without the schema or the tokenizer that they were compiled for.

    What it checks
    --------------
    ``policy.constrained_decoding.cache_key`` has both ``schema`` and ``tokenizer``. A spec that does not say what
    compiled schemas are cached by is not judged.

    Why it is bad
    -------------
    A compiled grammar is a set of token masks: it belongs to one schema and to one vocabulary. Under a key that
    leaves one of them out, a cache that outlives a change of it, or that several models share, gives out masks that
    are wrong. The output is then silently invalid, or valid for something else.

    The arithmetic
    --------------
    None. Error where the schema is left out and schemas are dynamic, since then requests with different schemas
    certainly meet; else a warning.

    How to fix
    ----------
    Make digests of the schema and of the tokenizer part of the key; the version of the engine, too, where the cache
    outlives the process.

    Source
    ------
    mlc-ai/xgrammar#675 and vllm-project/vllm#45948: a compiled grammar is determined by grammar and tokenizer.
    """

    code = "CND003"
    name = "cache-key"
    severity = Severity.WARNING
    questions = ("is structured output right",)
    failing = (
        Case(
            "no tokenizer in the key", SPEC, flip=("policy.constrained_decoding.cache_key", '["schema", "tokenizer"]')
        ),
        Case(
            "new schemas under the key of the tokenizer",
            SPEC.replace('"static"', '"dynamic"').replace('["schema"]', '["tokenizer", "engine_version"]'),
            flip=("policy.constrained_decoding.cache_key", '["tokenizer", "schema"]'),
        ),
        Case(
            "neither in the key, of schemas that are known",
            SPEC.replace('["schema"]', '["engine_version"]'),
            flip=("policy.constrained_decoding.cache_key", '["engine_version", "schema", "tokenizer"]'),
        ),
        Case(
            "no tokenizer in the key of new schemas",
            SPEC.replace('"static"', '"dynamic"'),
            flip=("policy.constrained_decoding.cache_key", '["schema", "tokenizer"]'),
        ),
    )
    passing = (
        Case("both", SPEC.replace('["schema"] # expect: CND003', '["schema", "tokenizer"]')),
        Case("nothing is said of the key", SPEC.replace('cache_key = ["schema"] # expect: CND003\n', "")),
        Case("no request is constrained", SPEC.replace(" # expect: CND003", "\nshare = 0.0")),
    )

    def check(self, review: Review) -> Iterator[Finding | Lacks]:
        """Look for what the key leaves out."""
        config = review.deployment.policies.get("constrained_decoding")
        if config is None or config.share == 0:
            return
        if config.cache_key is None:
            yield Lacks("policy.constrained_decoding.cache_key")
            return
        missing = [part for part in NEEDED if part not in config.cache_key]
        if not missing:
            return
        complete = [*dict.fromkeys((*config.cache_key, *missing))]
        text = f"[{', '.join(f'{chr(34)}{part}{chr(34)}' for part in complete)}]"
        mixed = "schema" in missing and config.schemas == "dynamic"
        schemas = ("policy", "constrained_decoding", "schemas")
        yield Finding(
            KEY,
            f"compiled schemas are cached without the {' and the '.join(missing)} they were compiled for: "
            f"{'; '.join(WRONG[part] for part in missing)}",
            help=f"cache them by {' and '.join(complete)}",
            related=(Related(schemas, "each request may have its own"),) if mixed else (),
            fix=Fix(f"cache by {' and '.join(complete)}", (Edit(KEY, text),)),
            severity=Severity.ERROR if mixed else Severity.WARNING,
        )
