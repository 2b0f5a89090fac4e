"""Built-in accelerators: a folder of datasheets with provenance."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from servelint.plugin import API_VERSION, Accelerator, Entry, datasheets, hookimpl

servelint_api = API_VERSION


@hookimpl
def servelint_accelerators() -> Iterable[Entry[Accelerator]]:
    """Yield every datasheet below ``data``."""
    return datasheets(Path(__file__).parent / "data")
