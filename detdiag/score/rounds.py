"""How prompts are put together into calls. No torch here."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")


def windows(items: Sequence[T], most: int) -> list[tuple[T, ...]]:
    """Groups of at most ``most`` in the order given, as even as they go, so that none is left
    alone beside larger ones."""
    count = -(-len(items) // most)
    edges = [round(i * len(items) / count) for i in range(count + 1)]
    return [tuple(items[a:b]) for a, b in zip(edges, edges[1:], strict=False)]


def copies_in_burst(prompts: int, concurrency: int, runs: int, conditions: int) -> int:
    """How often each prompt is in a burst, so that the burst has about ``concurrency`` requests
    and every prompt equally often; fewer where ``runs`` would not give a cycle of bursts."""
    wanted = max(1, round(concurrency / prompts))
    return min(wanted, max(1, runs // (2 * conditions)))


def shares_calls(prompts: int, conditions: Sequence[str]) -> bool:
    """Whether one call serves several prompts."""
    return prompts > 1 and any(name in conditions for name in ("batch", "load"))
