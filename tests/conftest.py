"""Plugins are loaded once for the whole run: they do not change."""

from __future__ import annotations

import pytest

from servelint.manager import Plugins


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--hostile", type=int, default=300, metavar="N", help="hostile specs of each kind to check")


@pytest.fixture(scope="session")
def plugins() -> Plugins:
    loaded = Plugins()
    assert not loaded.faults, loaded.faults
    return loaded
