"""Reads manifests given as texts."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest

from servelint.launch.invocation import Invocation
from servelint.launch.manifest import ManifestFile
from servelint.launch.reading import Launched, invocations, read
from servelint.manager import Plugins

sys.path.insert(0, str(Path(__file__).parent))

Read = Callable[..., list[Launched]]


@pytest.fixture(scope="session")
def plugins() -> Plugins:
    return Plugins()


@pytest.fixture
def found(plugins: Plugins) -> Callable[..., tuple[Invocation, ...]]:
    """Reads a text as a file of that name into invocations; a reader that fails fails the test."""

    def reading(text: str, name: str = "m.yaml", **env: str) -> tuple[Invocation, ...]:
        before = len(plugins.faults)
        result = invocations(ManifestFile(name, dedent(text), name, env), plugins)
        assert plugins.faults[before:] == plugins.faults[:0]
        return result

    return reading


@pytest.fixture
def launched(plugins: Plugins, found: Callable[..., tuple[Invocation, ...]]) -> Read:
    """Reads a text as a file of that name into settings."""

    def reading(text: str, name: str = "m.yaml", **env: str) -> list[Launched]:
        return [read(i, plugins) for i in found(text, name, **env)]

    return reading


@pytest.fixture
def settings(launched: Read) -> Callable[..., dict[str, Any]]:
    """Reads a text that starts one engine into settings by dotted key, ``policy.`` left out."""

    def reading(text: str, name: str = "m.yaml", **env: str) -> dict[str, Any]:
        from read_values import values

        (one,) = launched(text, name, **env)
        return values(one)

    return reading
