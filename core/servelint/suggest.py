"""Near matches for names that do not exist."""

from __future__ import annotations

from collections.abc import Iterable

LEAST_RATIO = 0.6
MOST_CHARACTERS = 200
"""Of a name that are compared; longer ones are no typing errors."""


def nearest(name: str, known: Iterable[str], limit: int = 3) -> list[str]:
    """Return up to ``limit`` known names that look like ``name``, best first."""
    # difflib is imported only when something is wrong.
    from difflib import SequenceMatcher

    wanted = name.lower()[:MOST_CHARACTERS]
    matcher = SequenceMatcher(None, autojunk=False)
    # What is known of the second sequence is kept from one candidate to the next.
    matcher.set_seq2(wanted)
    scored = []
    for candidate in dict.fromkeys(known):
        low = candidate.lower()
        contained = min(len(wanted), len(low)) >= 3 and (wanted in low or low in wanted)
        matcher.set_seq1(low)
        # The quick ratios are upper bounds and cost next to nothing.
        if contained or (matcher.real_quick_ratio() >= LEAST_RATIO and matcher.quick_ratio() >= LEAST_RATIO):
            ratio = matcher.ratio()
            if contained or ratio >= LEAST_RATIO:
                scored.append((-(ratio + (0.3 if contained else 0.0)), candidate))
    return [candidate for _, candidate in sorted(scored)[:limit]]


def did_you_mean(name: str, known: Iterable[str], otherwise: str = "") -> str:
    """Return ``; did you mean 'x' or 'y'?``; without a near match ``; `` and ``otherwise``, or an empty string."""
    return meant(nearest(name, known)) or (f"; {otherwise}" if otherwise else "")


def meant(names: Iterable[str]) -> str:
    """Return ``; did you mean 'x' or 'y'?``, or an empty string when there is no name."""
    found = " or ".join(map(repr, names))
    return f"; did you mean {found}?" if found else ""
