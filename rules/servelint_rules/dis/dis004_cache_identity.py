"""DIS004 cache-identity."""

from __future__ import annotations

from collections.abc import Iterator

from servelint.plugin import Case, Edit, Finding, Fix, Lacks, Related, Review, Rule, Severity

CACHE = ("policy", "kv_cache")
SPEC = """\
servelint = 1
[hardware]
accelerator = "nvidia/h100-sxm5-80gb"
[model]
id = "meta-llama/Llama-3.1-8B"
max_model_len = 8192
[policy.kv_cache]
offload = "lmcache, host memory"
tenants = 40
identity = ["tokens", "model"] # expect: DIS004
"""


class CacheIdentity(Rule):
    """Several tenants reach a KV cache whose blocks are found without knowing whose they are.

    What it checks
    --------------
    A cache that more than one tenant reaches (``policy.kv_cache.tenants``), and in which prefixes are reused, in
    memory or in the tiers of ``offload``: its blocks must be found by the tenant, too
    (``policy.kv_cache.identity``). A spec that does not say how many tenants there are, or what blocks are found by,
    is not judged.

    Why it is bad
    -------------
    A prompt whose blocks are cached has its first token sooner. Where blocks are found by their tokens alone, that
    tells one tenant what another one sent, prefix by prefix. A tier that outlives the engine keeps the blocks for
    longer and for more readers, and to delete what one tenant left takes knowing which blocks are its own.

    The arithmetic
    --------------
    None.

    How to fix
    ----------
    Salt the hash of blocks with the tenant (``cache_salt`` of a request, or a router that adds it), or give each
    tenant a cache of its own; then name ``tenant`` in ``identity``. Prefixes that all tenants share are then cached
    once for each.

    Source
    ------
    vllm-project/vllm docs/design/prefix_caching.md, cache isolation.
    """

    code = "DIS004"
    name = "cache-identity"
    severity = Severity.WARNING
    questions = ("who sees cached prompts",)
    failing = (
        Case(
            "a tier behind the cache, found by tokens and model",
            SPEC,
            flip=("policy.kv_cache.identity", '["tokens", "model", "tenant"]'),
        ),
        Case(
            "two tenants, one more than needs no identity",
            SPEC.replace('offload = "lmcache, host memory"\n', "").replace("40", "2"),
            flip=("policy.kv_cache.tenants", "1"),
        ),
    )
    passing = (
        Case("one tenant", SPEC.replace("40", "1").replace(" # expect: DIS004", "")),
        Case("found by the tenant", SPEC.replace('["tokens", "model"] # expect: DIS004', '["tokens", "tenant"]')),
        Case(
            "nothing is reused",
            SPEC.replace('offload = "lmcache, host memory"', "prefix_reuse = false").replace(" # expect: DIS004", ""),
        ),
        Case(
            "nothing is said of what blocks are found by",
            SPEC.replace('identity = ["tokens", "model"] # expect: DIS004', ""),
        ),
    )

    def check(self, review: Review) -> Iterator[Finding | Lacks]:
        """Look for the tenant in what blocks are found by."""
        declared = review.deployment.policies.get("kv_cache")
        if declared is None or declared.tenants == 1:
            return
        missing = [key for key in ("tenants", "identity") if getattr(declared, key) is None]
        if missing:
            if len(missing) == 1 or declared.offload is not None:
                yield Lacks(" and ".join(f"policy.kv_cache.{key}" for key in missing))
            return
        resolved = review.policy("kv_cache")
        if resolved is None:
            yield Lacks("a composed deployment")
            return
        if "tenant" in declared.identity or not (declared.offload or resolved.prefix_reuse):
            return
        path = (*CACHE, "identity")
        complete = [*declared.identity, "tenant"]
        text = f"[{', '.join(f'{chr(34)}{part}{chr(34)}' for part in complete)}]"
        where = f"memory and {declared.offload!r}" if declared.offload else "memory"
        found = " and ".join(declared.identity) or "nothing"
        yield Finding(
            path,
            f"{declared.tenants:,} tenants reach one KV cache in {where}, whose blocks are found by {found}: a prompt "
            "that another tenant has sent before is answered from its blocks, and sooner, which tells the two apart",
            help=f"find blocks by {' and '.join(complete)}: salt their hash with the tenant",
            inputs=(review.input("tenants", declared.tenants, "", *CACHE, "tenants"),),
            related=tuple(
                Related((*CACHE, key), words)
                for key, words in (("tenants", "who reaches the cache"), ("offload", "where its blocks stay"))
                if review.declared(*CACHE, key)
            ),
            fix=Fix("find blocks by the tenant, too", (Edit(path, text),)),
        )
