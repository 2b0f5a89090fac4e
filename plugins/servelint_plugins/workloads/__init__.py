"""Built-in workloads: length models and trace formats."""

from __future__ import annotations

from collections.abc import Iterable

from servelint.plugin import API_VERSION, LengthModel, TraceFormat, hookimpl
from servelint_plugins.workloads import lengths, traces

servelint_api = API_VERSION


@hookimpl
def servelint_workloads() -> Iterable[LengthModel | TraceFormat]:
    """Yield the built-in length models and trace formats."""
    return (*lengths.MODELS, *traces.FORMATS)
