"""Reports of texts, without files."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from servelint.config import Config
from servelint.lint import Report, lint
from servelint.manager import Plugins

Checked = Callable[..., Report]


@pytest.fixture
def checked(plugins: Plugins) -> Checked:
    def check(
        *texts: str, config: Config | None = None, root: Path | None = None, names: tuple[str, ...] = ()
    ) -> Report:
        named = names or tuple(f"{'abcdef'[i]}.toml" for i in range(len(texts)))
        chosen = config or Config(select=("SPEC001", "SPEC002", "SPEC003", "SPEC004", "HW001", "MEM001", "LINT"))
        return lint(zip(named, texts, strict=True), plugins, chosen, root or Path())

    return check
