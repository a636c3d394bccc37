"""Requests in flight at once, over arrays of a whole log."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


def overlap_counts(start_s: Floats, end_s: Floats, server: NDArray[Any]) -> Floats:
    """Peak number of recorded requests of the same server in flight during each one, itself
    included; NaN where start or end is missing. Half-open intervals."""
    out = np.full(len(start_s), np.nan)
    timed = np.isfinite(start_s) & np.isfinite(end_s)
    for name in np.unique(server[timed]):
        index = np.flatnonzero(timed & (server == name))
        out[index] = _peaks(start_s[index], np.maximum(start_s[index], end_s[index]))
    return out


def _peaks(start_s: Floats, end_s: Floats) -> Floats:
    starts, ends = np.sort(start_s), np.sort(end_s)
    levels = np.searchsorted(starts, starts, "right") - np.searchsorted(ends, starts, "right")
    low = np.searchsorted(starts, start_s, "left")
    high = np.maximum(np.searchsorted(starts, end_s, "left"), low + 1)
    return np.maximum(1, _range_max(levels, low, high)).astype(np.float64)


def _range_max(values: NDArray[Any], low: NDArray[Any], high: NDArray[Any]) -> NDArray[Any]:
    """Maximum of ``values[low:high]`` for each pair, by a sparse table a power of two at a time."""
    power = np.frexp(high - low)[1] - 1
    out = np.empty(len(low), dtype=values.dtype)
    row, width = values, 1
    for exponent in range(int(power.max(initial=0)) + 1):
        mine = power == exponent
        out[mine] = np.maximum(row[low[mine]], row[high[mine] - width])
        row = np.maximum(row[:-width], row[width:]) if len(row) > width else row
        width *= 2
    return out
