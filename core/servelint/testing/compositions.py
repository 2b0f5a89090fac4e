"""Composes a spec text for a test, also with a model or an accelerator that no catalogue has."""

from __future__ import annotations

from pathlib import Path

from servelint.architecture import Architecture
from servelint.composition import Composition
from servelint.errors import PluginError
from servelint.hardware import Accelerator
from servelint.manager import Plugins
from servelint.review import Review
from servelint.spec.document import parse


def review_of(
    spec: str,
    plugins: Plugins,
    *,
    architecture: Architecture | None = None,
    accelerator: Accelerator | None = None,
    root: Path | None = None,
) -> Review:
    """Return the review of a spec; a given architecture or accelerator stands for the one that it names.

    ``servelint = 1`` is put before a text that lacks it. Raises ValueError with everything that keeps the
    text from being structured.
    """
    text = spec if "servelint" in spec else f"servelint = 1\n{spec}"
    document = parse("spec.toml", text, plugins.policies)
    if document.problems:
        raise ValueError("; ".join(f"{p.path}: {p.message}" for p in document.problems))
    review = Review(document, plugins, root or Path())
    # Both are cached properties: a value that is there already is not looked up.
    if architecture is not None:
        review.architecture = architecture
    if accelerator is not None:
        review.accelerator = accelerator
    return review


def compose(
    spec: str,
    plugins: Plugins,
    *,
    architecture: Architecture | None = None,
    accelerator: Accelerator | None = None,
) -> Composition:
    """Return the composed replica of a spec.

    Raises ValueError for a spec that is wrong or names what does not exist, InfeasibleError for one that
    cannot be composed, PluginError where a plugin failed.
    """
    review = review_of(spec, plugins, architecture=architecture, accelerator=accelerator)
    composition = review.composition
    if composition is None:
        if review.infeasible is not None:
            raise review.infeasible
        if plugins.faults:
            raise PluginError(str(plugins.faults[-1]))
        missing = [str(u.message) for u in review.unresolved] or ["accelerator or model is not declared"]
        raise ValueError("; ".join(missing))
    return composition
