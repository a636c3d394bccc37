"""Small exact statistics in plain Python (a case must not wait for scipy to import)."""

from __future__ import annotations

import math
from typing import Final

_Z95: Final = 1.959963984540054


def wilson(k: int, n: int) -> tuple[float, float] | None:
    """95 % Wilson interval of ``k`` of ``n``; None without trials."""
    if n <= 0:
        return None
    p, z2 = k / n, _Z95 * _Z95
    centre = (p + z2 / (2 * n)) / (1 + z2 / n)
    half = _Z95 * math.sqrt(p * (1 - p) / n + z2 / (4 * n * n)) / (1 + z2 / n)
    low = 0.0 if k == 0 else max(0.0, centre - half)
    high = 1.0 if k == n else min(1.0, centre + half)
    return (low, high)
