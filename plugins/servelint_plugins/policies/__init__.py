"""Built-in policies and number formats."""

from __future__ import annotations

from collections.abc import Iterable

from servelint.plugin import API_VERSION, Format, Policy, hookimpl
from servelint_plugins.policies import (
    attention,
    batching,
    constrained_decoding,
    disaggregation,
    formats,
    kv_cache,
    moe,
    parallelism,
    quantization,
    speculation,
)

servelint_api = API_VERSION

_MODULES = (
    attention,
    batching,
    constrained_decoding,
    disaggregation,
    kv_cache,
    moe,
    parallelism,
    quantization,
    speculation,
)


@hookimpl
def servelint_policies() -> Iterable[Policy]:
    """Yield the built-in policies."""
    return (module.POLICY for module in _MODULES)


@hookimpl
def servelint_formats() -> Iterable[Format]:
    """Yield the built-in number formats."""
    return formats.FORMATS
