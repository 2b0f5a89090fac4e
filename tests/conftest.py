"""Plugins are loaded once for the whole run: they do not change."""

from __future__ import annotations

import pytest

from servelint.manager import Plugins


@pytest.fixture(scope="session")
def plugins() -> Plugins:
    loaded = Plugins()
    assert not loaded.faults, loaded.faults
    return loaded
