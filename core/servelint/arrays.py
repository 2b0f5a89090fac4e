"""Elementwise helpers that take plain numbers or numpy arrays.

One cost path serves a single step and a grid of a million points. Plain numbers never import numpy, so a
check of one spec does not pay for it; anything else is handed to numpy, which broadcasts.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Number: TypeAlias = float | npt.NDArray[np.float64]
else:
    Number: TypeAlias = Any

_PLAIN = (float, int)


def maximum(a: Number, b: Number) -> Number:
    """Return the larger of two values, elementwise."""
    if isinstance(a, _PLAIN) and isinstance(b, _PLAIN):
        return a if a >= b else b
    import numpy as np

    return np.maximum(a, b)


def minimum(a: Number, b: Number) -> Number:
    """Return the smaller of two values, elementwise."""
    if isinstance(a, _PLAIN) and isinstance(b, _PLAIN):
        return a if a <= b else b
    import numpy as np

    return np.minimum(a, b)


def ceil(a: Number) -> Number:
    """Return the ceiling, elementwise, as a float."""
    if isinstance(a, _PLAIN):
        return float(math.ceil(a))
    import numpy as np

    return np.ceil(a)


def sign(a: Number) -> Number:
    """Return 1 where a value is positive and 0 where it is 0, elementwise."""
    if isinstance(a, _PLAIN):
        return 1.0 if a > 0 else 0.0
    import numpy as np

    return np.sign(a)


def is_plain(a: Number) -> bool:
    """Tell whether a value is a plain number rather than an array."""
    return isinstance(a, _PLAIN)


def where(condition: Any, a: Number, b: Number) -> Number:
    """Return ``a`` where a condition holds and ``b`` elsewhere, elementwise."""
    if isinstance(condition, bool):
        return a if condition else b
    import numpy as np

    return np.where(condition, a, b)
