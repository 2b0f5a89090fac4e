"""Settings of what was read, in the short form that the tests compare."""

from __future__ import annotations

from typing import Any

from servelint.launch.reading import Launched


def values(made: Launched) -> dict[str, Any]:
    """Settings by dotted key, ``policy.`` left out."""
    return {".".join(map(str, p)).removeprefix("policy."): s.value for p, s in made.settings.items()}
