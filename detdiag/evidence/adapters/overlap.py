"""Concurrency as a log shows it: requests in flight at once, among those that were recorded."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Sequence

Interval = tuple[str, float, float]
"""Server, start and end in seconds."""


def peak_overlap(intervals: Sequence[Interval | None]) -> list[int | None]:
    """For each interval the most requests in flight at any moment of it, itself included.

    The peak and not the count at the start: the first request of a burst shares the batch too.
    Half-open intervals: one that starts when another ends does not overlap. None stays None.
    """
    by_server: dict[str, list[int]] = defaultdict(list)
    for index, interval in enumerate(intervals):
        if interval is not None:
            by_server[interval[0]].append(index)
    out: list[int | None] = [None] * len(intervals)
    for members in by_server.values():
        spans = [(one[1], max(one[1], one[2])) for i in members if (one := intervals[i])]
        for index, peak in zip(members, _peaks(spans), strict=True):
            out[index] = peak
    return out


def _peaks(spans: list[tuple[float, float]]) -> list[int]:
    """The count in flight only rises at a start, so the peak of a span is the largest count at
    its own start and at the starts inside it."""
    starts = sorted(start for start, _ in spans)
    ends = sorted(end for _, end in spans)
    levels = [bisect_right(starts, s) - bisect_right(ends, s) for s in starts]
    table = _sparse(levels)
    out = []
    for start, end in spans:
        low, high = bisect_left(starts, start), bisect_left(starts, end)
        out.append(max(1, _largest(table, low, max(high, low + 1))))
    return out


def _sparse(levels: list[int]) -> list[list[int]]:
    """Sparse table of range maxima: row k holds the maxima of runs of 2^k."""
    table = [levels]
    width = 1
    while 2 * width <= len(levels):
        row = table[-1]
        table.append([max(row[i], row[i + width]) for i in range(len(row) - width)])
        width *= 2
    return table


def _largest(table: list[list[int]], low: int, high: int) -> int:
    power = (high - low).bit_length() - 1
    return max(table[power][low], table[power][high - (1 << power)])
