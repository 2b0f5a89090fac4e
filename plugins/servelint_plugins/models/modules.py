"""Which modules of a checkpoint a list names, in the spellings that producers of quantized checkpoints use.

Three dialects occur: exact module paths, ``*`` wildcards, and ``re:`` expressions. Of the last only the
parts that checkpoints use are read (``.*``, alternatives in parentheses, anchors); nothing is handed to a
regular-expression engine. Paths are compared below the layer number, because engines and producers disagree
on what stands before it. A pattern that names no number is tried once on a module and not on every layer, so
a long list stays cheap; readers bound what is left with the limits here.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

MAX_ALTERNATIVES = 64
MAX_PATTERNS = 20_000
MAX_LENGTH = 1_000
MAX_EXPRESSIONS = 512
MAX_STARS = 8
MAX_WILDCARDS = 2_048
MAX_NUMBERED = 10_000
"""Limits of a list: alternatives of an expression, patterns, characters of one, expressions, stars of a
pattern, patterns with stars, and patterns with stars and numbers times layers."""

_OTHER_TOWERS = ("vision", "visual", "audio", "mm_projector", "multi_modal")
_LAYER_MARKERS = ("layers.", "blocks.", "transformer.h.")


def excess(patterns: Sequence[str]) -> tuple[str, str] | None:
    """What of a list is beyond the limits: what was found and what is read, or None."""
    if len(patterns) > MAX_PATTERNS:
        return f"an array of {len(patterns)} items", f"at most {MAX_PATTERNS} modules"
    expressions = 0
    for pattern in patterns:
        if len(pattern) > MAX_LENGTH:
            return f"an array with a module of {len(pattern)} characters", f"modules of at most {MAX_LENGTH} characters"
        if pattern.count("*") > MAX_STARS:
            return f"an array with a module of {pattern.count('*')} wildcards", f"at most {MAX_STARS} in a module"
        expressions += pattern.startswith("re:")
    if expressions > MAX_EXPRESSIONS:
        return f"an array of {expressions} expressions", f"at most {MAX_EXPRESSIONS} of them"
    return None


class _Listed:
    """What a list says of one layer: paths below it and patterns for such paths."""

    __slots__ = ("paths", "patterns", "whole")

    def __init__(self) -> None:
        self.whole = False
        self.paths: set[str] = set()
        self.patterns: list[tuple[str, ...]] = []


class ModuleList:
    """Decides whether a module of a layer is in a list of modules.

    ``unread`` holds the expressions that use more than this reader knows; they match nothing. ``mtp`` is
    whether multi-token-prediction modules are listed under a name of their own. ``wildcards`` and
    ``numbered`` count the patterns with stars: all of them, and those that name a number other than a layer's.
    """

    def __init__(self, patterns: Sequence[str]) -> None:
        self.unread: list[str] = []
        self.mtp = False
        self.wildcards = 0
        self._paths: set[str] = set()
        self._layers: dict[str, _Listed] = {}
        self._plain: dict[tuple[str, ...], None] = {}
        self._numbered: dict[tuple[str, ...], None] = {}
        self._everywhere: dict[str, bool] = {}
        for pattern in patterns:
            is_expression = pattern.startswith("re:")
            alternatives = _alternatives(pattern.removeprefix("re:")) if is_expression else (pattern,)
            if alternatives is None:
                self.unread.append(pattern)
            for text in alternatives or ():
                self._add(text)

    @property
    def numbered(self) -> int:
        """Number of patterns that have to be tried on every layer."""
        return len(self._numbered)

    def share(self, layers: Collection[str], modules: Sequence[str]) -> float:
        """Share of ``modules`` over ``layers`` (their numbers as text) that the list names."""
        found = sum(self._count(layers, module) for module in modules)
        return found / max(len(layers) * len(modules), 1)

    def _add(self, text: str) -> None:
        if text.startswith(("mtp", "model.mtp")):
            self.mtp = True
            return
        if any(tower in text for tower in _OTHER_TOWERS):
            return
        layer, rest = _split(text)
        starred = "*" in (text if layer is None else rest)
        self.wildcards += starred
        if layer is not None:
            listed = self._layers.setdefault(layer, _Listed())
            if not rest.strip("."):
                listed.whole = True
            elif starred:
                listed.patterns.append(_fragments(rest))
            else:
                listed.paths.add(rest.strip("."))
        elif not starred:
            self._paths.add(_below_layers(text).strip("."))
        else:
            fragments = _fragments(_below_layers(text))
            numbered = any(character.isdigit() for fragment in fragments for character in fragment)
            (self._numbered if numbered else self._plain)[fragments] = None

    def _count(self, layers: Collection[str], module: str) -> int:
        """Number of ``layers`` in which the list names ``module``."""
        parts = module.split(".")
        ancestors = [".".join(parts[: i + 1]) for i in range(len(parts))]
        everywhere = self._everywhere.get(module)
        if everywhere is None:
            path = _path("", module)
            everywhere = not self._paths.isdisjoint(ancestors) or any(_in_order(path, f) for f in self._plain)
            self._everywhere[module] = everywhere
        if everywhere:
            return len(layers)
        named = {
            layer
            for layer, listed in self._layers.items()
            if layer in layers
            and (
                listed.whole
                or not listed.paths.isdisjoint(ancestors)
                or any(_in_order(f"{module}.", fragments) for fragments in listed.patterns)
            )
        }
        if self._numbered:
            named.update(layer for layer in layers if any(_in_order(_path(layer, module), f) for f in self._numbered))
        return len(named)


def _path(layer: str, module: str) -> str:
    return f"model.language_model.layers.{layer}.{module}."


def _split(text: str) -> tuple[str | None, str]:
    """The layer number that a path or pattern names, if it does, and what stands below the number."""
    for marker in _LAYER_MARKERS:
        _, found, tail = text.partition(marker)
        if found:
            number, _, rest = tail.partition(".")
            if number.rstrip("*").isdigit():
                return number.rstrip("*"), rest
    return None, text


def _below_layers(text: str) -> str:
    """A path or pattern without what stands before the layer; a star there may stand for anything."""
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
    if rest.count("(") > MAX_STARS:
        return None
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
