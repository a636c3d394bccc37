"""Which comparison a verdict's rule stands for, as something that a child process can repeat."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

TEACHER_FORCED: Final = ":teacher-forced"
MOST_PROMPTS: Final = 3
EXTRA_PADDING: Final = 7

_KINDS: Final[tuple[tuple[str, str], ...]] = (
    ("batch.state-carried", "history"),
    ("batch.padding", "padding"),
    ("batch.neighbour-content", "neighbours"),
    ("batch.shared-scale", "neighbours"),
    ("batch.prefix-reuse", ""),
    ("batch.", "size"),
    ("operator.per-process", ""),
    ("operator.", "repeat"),
    ("moe.capacity", "company"),
    ("moe.expert", "company"),
    ("moe.", "repeat"),
    ("decode.", "generate"),
    ("config.sampling", "generate"),
    ("config.", ""),
    ("input.", "input"),
)
WORDS: Final = {
    "history": "a prompt before and after other requests",
    "padding": "a prompt with and without padding",
    "neighbours": "a row among copies and among other rows",
    "size": "a prompt alone and in batches of copies",
    "company": "a prompt alone, among copies and among other rows",
    "repeat": "identical runs of one prompt",
    "generate": "identical calls of generate",
    "input": "the same question rendered again, or by another client",
}
REASONS: Final = {
    "config": "a parameter is changed in the request, which one process cannot measure",
    "version": "one process has one stack: compare it with the other by detdiag fingerprint",
    "batch": "it needs a server that keeps prefixes",
    "operator": "it needs several starts of one server",
}


@dataclass(frozen=True, slots=True)
class Contrast:
    """What to compare. ``prompts``: ``{"id", "row", "start"}``, rows of token ids whose logits
    from ``start`` on are compared; ``requests``: files of two clients that should send one."""

    kind: str
    prompts: tuple[Mapping[str, Any], ...]
    sizes: tuple[int, ...] = (2, 4)
    repeats: int = 2
    reruns: int = 12
    new_tokens: int = 16
    requests: tuple[str, ...] = ()

    def to_job(self) -> dict[str, Any]:
        return {
            "kind": self.kind,
            "prompts": [dict(p) for p in self.prompts],
            "sizes": list(self.sizes),
            "repeats": self.repeats,
            "reruns": self.reruns,
            "new_tokens": self.new_tokens,
            "requests": list(self.requests),
        }


def kind_of(rule: str) -> str | None:
    """The kind of contrast for ``rule``; None where a child cannot repeat it."""
    return next((kind or None for start, kind in _KINDS if rule.startswith(start)), None)


def kind_for(rule: str, factors: Sequence[str]) -> str | None:
    """:func:`kind_of`, but company where a routing rule was found by a batch contrast."""
    kind = kind_of(rule)
    batch = {"batch_size", "neighbours", "row", "padded_length"}
    if kind == "repeat" and rule.startswith("moe.") and batch & set(factors):
        return "company"
    return kind


def reason_against(layer: str) -> str:
    """Why nothing of ``layer`` can be measured again here."""
    return REASONS.get(layer, "the contrast cannot be repeated in one process")


def prompts_of(observations: Sequence[Any], first: str | None = None) -> list[dict[str, Any]]:
    """The forced rows of a walk, the query ``first`` before the others."""
    found: dict[str, dict[str, Any]] = {}
    for seen in observations:
        query = str(seen.query or "")
        ids, made = seen.prompt_token_ids, seen.output.token_ids
        if not query.endswith(TEACHER_FORCED) or not ids or not made:
            continue
        name = query.removesuffix(TEACHER_FORCED)
        if name not in found and not name.endswith("-neighbour"):
            found[name] = {"id": name, "row": list(ids), "start": len(ids) - len(made)}
    order = sorted(found, key=lambda name: name != first)
    return [found[name] for name in order[:MOST_PROMPTS]]
