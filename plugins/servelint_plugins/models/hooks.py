"""The plugin module of the built-in models: the hooks, apart from the functions that they call."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

from servelint.plugin import API_VERSION, Architecture, Entry, ModelFamily, hookimpl
from servelint_plugins import models

servelint_api = API_VERSION


@hookimpl
def servelint_models() -> Iterable[Entry[Architecture] | ModelFamily]:
    """Yield the catalogue, and the families that read published configs."""
    for name, path in models.catalogue():
        yield Entry(name, partial(models.load, path), partial(models.aliases, path))
    yield from models.families()
