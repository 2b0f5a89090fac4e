"""Benchmarks run only when asked for: with ``-m benchmark``, or by a path in this folder."""

from __future__ import annotations

from pathlib import Path

import pytest

HERE = Path(__file__).parent


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    paths = [config.invocation_params.dir / argument.partition("::")[0] for argument in config.args]
    if any(path.resolve().is_relative_to(HERE) for path in paths) or "benchmark" in (config.getoption("-m") or ""):
        return
    mine = [item for item in items if item.path.is_relative_to(HERE)]
    items[:] = [item for item in items if item not in mine]
    config.hook.pytest_deselected(items=mine)
