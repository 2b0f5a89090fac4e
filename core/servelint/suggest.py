"""Near matches for names that do not exist."""

from __future__ import annotations

from collections.abc import Iterable


def nearest(name: str, known: Iterable[str], limit: int = 3) -> list[str]:
    """Return up to ``limit`` known names that look like ``name``, best first."""
    # difflib is imported only when something is wrong.
    from difflib import SequenceMatcher

    wanted = name.lower()[:200]
    scored = []
    for candidate in dict.fromkeys(known):
        low = candidate.lower()
        ratio = SequenceMatcher(None, wanted, low, autojunk=False).ratio()
        contained = len(wanted) >= 3 and (wanted in low or low in wanted)
        if ratio >= 0.6 or contained:
            scored.append((-(ratio + (0.3 if contained else 0.0)), candidate))
    return [candidate for _, candidate in sorted(scored)[:limit]]


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return ``; did you mean 'x' or 'y'?``, or an empty string."""
    found = nearest(name, known)
    return f"; did you mean {' or '.join(map(repr, found))}?" if found else ""
