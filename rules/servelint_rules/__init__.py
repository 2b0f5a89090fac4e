"""Built-in rules, one module a rule, one folder a family, found by walking this package."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

from servelint.plugin import API_VERSION, Rule, hookimpl

servelint_api = API_VERSION


def modules() -> Iterator[str]:
    """Yield the import name of every rule module: ``<family>/<code>_<name>.py``."""
    here = Path(__file__).parent
    for family in sorted(p for p in here.iterdir() if p.is_dir() and not p.name.startswith("_")):
        for path in sorted(family.glob("*.py")):
            if path.stem != "__init__":
                yield f"{__name__}.{family.name}.{path.stem}"


@hookimpl
def servelint_rules() -> Iterator[type[Rule]]:
    """Yield every rule class that a rule module defines."""
    for name in modules():
        for value in vars(import_module(name)).values():
            if isinstance(value, type) and issubclass(value, Rule) and value.__module__ == name and value.code:
                yield value
