"""No shape of a file breaks a reader: every value of a rendered manifest is replaced by what nobody expects."""

from __future__ import annotations

import copy
import random
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from servelint.errors import ServelintError
from servelint.launch.manifest import ManifestFile
from servelint.launch.reading import invocations, read
from servelint.manager import Plugins

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "accuracy"))
import deployments

WRONG: tuple[Any, ...] = (None, [], {}, "", "x", 7, True, [None], [[["x"]]], {"x": None}, "$(A) ${A:-b} 'open", "é" * 3)
ROWS = {row.format: row for row in deployments.rows()}
TREES = sorted(f for f, (name, _) in deployments.FORMATS.items() if name.endswith((".yaml", ".yml", ".json")))
TEXTS = sorted(set(deployments.FORMATS) - set(TREES))


def paths(value: Any, here: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    yield here
    children = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, child in children:
        yield from paths(child, (*here, key))


def replaced(tree: Any, path: tuple[Any, ...], wrong: Any) -> Any:
    if not path:
        return wrong
    made = copy.deepcopy(tree)
    inner = made
    for part in path[:-1]:
        inner = inner[part]
    inner[path[-1]] = wrong
    return made


def attempt(name: str, text: str, plugins: Plugins) -> None:
    """Read a file; the only error allowed says what is wrong with it."""
    try:
        for invocation in invocations(ManifestFile(name, text, name), plugins):
            read(invocation, plugins)
    except ServelintError:
        pass
    assert not plugins.faults, (plugins.faults, text)


@pytest.mark.parametrize("format_", TREES)
def test_wrong_values_anywhere(format_: str) -> None:
    plugins = Plugins()
    name, render = deployments.FORMATS[format_]
    documents = list(yaml.safe_load_all(render(ROWS[format_])))
    chosen = random.Random(format_)
    every = [(n, path) for n, document in enumerate(documents) for path in paths(document)]
    for n, path in every:
        for wrong in chosen.sample(WRONG, 4):
            made = [replaced(d, path, wrong) if i == n else d for i, d in enumerate(documents)]
            attempt(name, yaml.safe_dump_all(made, sort_keys=False, allow_unicode=True), plugins)


@pytest.mark.parametrize("format_", TEXTS)
def test_texts_cut_anywhere(format_: str) -> None:
    plugins = Plugins()
    name, render = deployments.FORMATS[format_]
    text = render(ROWS[format_])
    for stop in range(0, len(text), 3):
        attempt(name, text[:stop], plugins)
        attempt(name, text[:stop] + "\n" + text[stop + 5 :], plugins)
