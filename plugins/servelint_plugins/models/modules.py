"""Which modules of a checkpoint a quantizer left alone, from the lists that producers write.

Three dialects occur: exact module paths, ``*`` wildcards, and ``re:`` expressions. Of the last only the
parts that checkpoints use are read (``.*``, alternatives in parentheses, anchors); nothing is handed to a
regular-expression engine, so a config cannot make matching slow. Paths are compared below the layer
number, because engines and producers disagree on what stands before it.
"""

from __future__ import annotations

from collections.abc import Sequence

MAX_ALTERNATIVES = 64

_OTHER_TOWERS = ("vision", "visual", "audio", "mm_projector", "multi_modal")
_LAYER_MARKERS = ("layers.", "blocks.", "transformer.h.")


class UntouchedModules:
    """Decides whether a module of a layer is in a list of untouched modules.

    ``unread`` holds the expressions that use more than this reader knows; they match nothing. ``mtp`` is
    whether multi-token-prediction modules are listed under a name of their own.
    """

    def __init__(self, patterns: Sequence[str]) -> None:
        self.unread: list[str] = []
        self.mtp = False
        self._paths: set[str] = set()
        self._in_layer: dict[str, list[tuple[str, ...]]] = {}
        self._anywhere: dict[tuple[str, ...], None] = {}
        for pattern in patterns:
            is_expression = pattern.startswith("re:")
            alternatives = _alternatives(pattern.removeprefix("re:")) if is_expression else (pattern,)
            if alternatives is None:
                self.unread.append(pattern)
            for text in alternatives or ():
                self._add(text)

    @property
    def wildcards(self) -> int:
        """Number of patterns that have to be tried on every module."""
        return len(self._anywhere)

    def share(self, layers: Sequence[int], modules: Sequence[str]) -> float:
        """Share of ``modules`` over ``layers`` that stay untouched."""
        found = sum(self._matches(layer, module) for layer in layers for module in modules)
        return found / max(len(layers) * len(modules), 1)

    def _add(self, text: str) -> None:
        if text.startswith(("mtp", "model.mtp")):
            self.mtp = True
            return
        if any(tower in text for tower in _OTHER_TOWERS):
            return
        tail = _below_layers(text)
        if "*" not in tail:
            self._paths.add(tail.strip("."))
            return
        layer, _, rest = tail.partition(".")
        if tail != text and layer.rstrip("*").isdigit():
            self._in_layer.setdefault(layer.rstrip("*"), []).append(_fragments(rest))
        else:
            self._anywhere[_fragments(tail)] = None

    def _matches(self, layer: int, module: str) -> bool:
        parts = module.split(".")
        ancestors = [".".join(parts[: i + 1]) for i in range(len(parts))]
        if str(layer) in self._paths or not self._paths.isdisjoint(ancestors):
            return True
        if any(f"{layer}.{ancestor}" in self._paths for ancestor in ancestors):
            return True
        if any(_in_order(f"{module}.", fragments) for fragments in self._in_layer.get(str(layer), ())):
            return True
        path = f"model.language_model.layers.{layer}.{module}."
        return any(_in_order(path, fragments) for fragments in self._anywhere)


def _below_layers(text: str) -> str:
    """A module path without what stands before the layer number."""
    for marker in _LAYER_MARKERS:
        head, found, tail = text.partition(marker)
        if found and "*" not in head:
            return tail
    return text


def _fragments(pattern: str) -> tuple[str, ...]:
    """The texts between the stars; a pattern that does not end in a star ends where a name ends."""
    parts = [part for part in pattern.replace(".*", "*").split("*") if part.strip(".")]
    if parts and not pattern.endswith("*"):
        parts[-1] += "."
    return tuple(parts)


def _in_order(path: str, fragments: Sequence[str]) -> bool:
    at = 0
    for fragment in fragments:
        at = path.find(fragment, at)
        if at < 0:
            return False
        at += len(fragment)
    return True


def _alternatives(expression: str) -> tuple[str, ...] | None:
    r"""Expand the parentheses of a simple expression; None where it uses more than ``.*`` and ``\.``."""
    texts = [""]
    rest = expression.removeprefix("^").replace("\\.", ".").replace("\\d+", "*")
    # Producers match from the start only, so an expression without a final anchor may go on.
    rest = rest.removesuffix("$") if rest.endswith("$") else rest.removesuffix(".*") + "*"
    while "(" in rest:
        before, _, rest = rest.partition("(")
        inside, closed, rest = rest.partition(")")
        options = inside.removeprefix("?:").split("|")
        if not closed or "(" in inside or len(texts) * len(options) > MAX_ALTERNATIVES:
            return None
        texts = [text + before + option for text in texts for option in options]
    texts = [text + rest for text in texts]
    if any(character in text for text in texts for character in "?[]{}+|)\\$^"):
        return None
    return tuple(texts)
