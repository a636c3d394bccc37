"""Numbers as people read them: counts with intervals, percentages, significant digits."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from detdiag.report.safe import finite, visible


def number(value: Any, digits: int = 3) -> str:
    """``value`` with ``digits`` significant digits; integers whole; text as it is; None as "–"."""
    if value is None:
        return "–"
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return visible(value)
    if isinstance(value, int):
        return str(value)
    if not math.isfinite(value):
        return "NaN" if math.isnan(value) else ("∞" if value > 0 else "−∞")
    if value == int(value) and abs(value) < 1e6:
        return str(int(value))
    return f"{value:.{digits}g}"


def rounded(value: Any, digits: int = 4) -> float | None:
    """``value`` cut to ``digits`` significant digits for a figure; None if it is not finite."""
    real = finite(value)
    return None if real is None else float(f"{real:.{digits}g}")


def percent(share: float) -> str:
    """A share as a percentage with the digits it deserves, without the sign: ``0.158`` -> 16."""
    value = 100 * share
    if value == 0 or value >= 99.95 or 1 <= value < 99:
        return f"{value:.0f}"
    return f"{value:.2g}" if value < 1 else f"{value:.1f}"


def interval(ci95: Any) -> str:
    """``[0, 0.16]`` as ``0–16 %``; empty where there is none."""
    ends = _ends(ci95)
    return "" if ends is None else f"{percent(ends[0])}–{percent(ends[1])} %"


def _ends(ci95: Any) -> tuple[float, float] | None:
    if not isinstance(ci95, Sequence) or isinstance(ci95, str) or len(ci95) != 2:
        return None
    low, high = finite(ci95[0]), finite(ci95[1])
    return None if low is None or high is None else (low, high)


def interval_ends(row: Mapping[str, Any]) -> tuple[float, float] | None:
    """Both ends of ``row["ci95"]`` clipped to 0..1, or None."""
    ends = _ends(row.get("ci95"))
    return None if ends is None else (max(0.0, ends[0]), min(1.0, ends[1]))


def k_of_n(row: Mapping[str, Any], k: str = "k", n: str = "n") -> str:
    """``k/n`` of a row; "–" where either is missing."""
    return "–" if row.get(k) is None or row.get(n) is None else f"{number(row[k])}/{number(row[n])}"


def share(row: Mapping[str, Any], k: str = "k", n: str = "n") -> float | None:
    """``k / n`` of a row, or None where it cannot be had."""
    top, bottom = finite(row.get(k)), finite(row.get(n))
    return None if top is None or not bottom else min(1.0, max(0.0, top / bottom))


def wilson(k: int, n: int, z: float = 1.959963984540054) -> tuple[float, float]:
    """Wilson score interval of ``k`` of ``n`` (Wilson 1927), as shares."""
    centre = (k + z * z / 2) / (n + z * z)
    half = z / (n + z * z) * math.sqrt(k * (n - k) / n + z * z / 4)
    return (max(0.0, centre - half), min(1.0, centre + half))


def seconds(value: Any) -> str:
    """A wall time: ``0.4 s``, ``12 s``, ``3 min``."""
    real = finite(value)
    if real is None:
        return "–"
    if real < 10:
        return f"{real:.2g} s"
    return f"{real:.0f} s" if real < 180 else f"{real / 60:.0f} min"


def bytes_text(count: int) -> str:
    """A file size in kB or MB of 1000."""
    return f"{count / 1e6:.1f} MB" if count >= 1e6 else f"{max(1, round(count / 1e3))} kB"
