"""Seeded logs with a planted cause, and the plain way to group them."""

from __future__ import annotations

import json
import random
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

Row = dict[str, Any]


def row(
    index: int,
    prompt: str,
    text: str,
    *,
    replica: str | None = None,
    fingerprint: str | None = None,
    cached: int | None = None,
    start_s: float | None = None,
    took_ms: float | None = 500.0,
    temperature: float | None = 0.0,
) -> Row:
    """One pair as a client would log it."""
    request: Row = {
        "model": "m",
        "messages": [{"role": "user", "content": prompt}],
        "max_tokens": 64,
        "user": f"u{index}",
    }
    if temperature is not None:
        request["temperature"] = temperature
    usage: Row = {"prompt_tokens": 9}
    if cached is not None:
        usage["prompt_tokens_details"] = {"cached_tokens": cached}
    out: Row = {
        "id": f"r{index}",
        "start_time": 1.7e9 + 10 * index if start_s is None else start_s,
        "latency_ms": took_ms,
        "request": request,
        "response": {
            "id": f"chatcmpl-{index}",
            "model": "m-1",
            "system_fingerprint": fingerprint,
            "choices": [
                {
                    "index": 0,
                    "message": {"role": "assistant", "content": text},
                    "finish_reason": "stop",
                }
            ],
            "usage": usage,
        },
    }
    if replica is not None:
        out["replica"] = replica
    return out


def planted(
    text_of: Callable[[int, Row], str],
    *,
    seed: int = 0,
    prompts: int = 20,
    repeats: int = 8,
    temperature: float | None = 0.0,
) -> list[Row]:
    """``prompts`` x ``repeats`` records in random order under random replica, cache and load;
    ``text_of(prompt, conditions)`` decides the answer."""
    rng = random.Random(seed)
    order = [p for p in range(prompts) for _ in range(repeats)]
    rng.shuffle(order)
    out = []
    clock = 1.7e9
    for index, prompt in enumerate(order):
        clock += rng.choice([0.1, 5.0])
        conditions: Row = {
            "replica": rng.choice(["east", "west"]),
            "cached": rng.choice([0, 64]),
            "start_s": clock,
            "progress": index / len(order),
            "rng": rng,
        }
        text = text_of(prompt, conditions)
        kept = {k: conditions[k] for k in ("replica", "cached", "start_s")}
        out.append(row(index, f"question {prompt}", text, temperature=temperature, **kept))
    return out


def write(path: Path, rows: Iterable[Any]) -> Path:
    path.write_text("".join(json.dumps(r) + "\n" for r in rows))
    return path


def brute_groups(rows: Iterable[Row]) -> dict[str, Counter[str]]:
    """Answers by prompt, counted record by record."""
    found: dict[str, Counter[str]] = defaultdict(Counter)
    for one in rows:
        prompt = one["request"]["messages"][0]["content"]
        found[prompt][one["response"]["choices"][0]["message"]["content"]] += 1
    return found
