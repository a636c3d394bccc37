"""Remedies to import into your own code; ``docs/remedies.md`` says what each guarantees and costs.

White box (a model in this process): :func:`row_invariant`, :func:`torch_repeatable`,
:func:`fp32_head`, :func:`fp32_router`, :func:`pinned_routing`, :func:`stateless`,
:func:`no_dropout`, :func:`no_jitter`, :func:`uncapped_experts`, :func:`frozen_clock`.
Black box (somebody else's server): :func:`canonical_body`, :class:`ResponseCache`,
:func:`request_key`, :func:`votes_needed`, :func:`majority_vote`, :func:`validated`.

Each name is loaded when it is first used; torch comes with the white-box ones alone.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from detdiag.remedies.cache import Cached, ResponseCache, request_key
    from detdiag.remedies.modules import no_dropout, no_jitter, stateless, uncapped_experts
    from detdiag.remedies.precision import fp32_head, fp32_router
    from detdiag.remedies.prompt import (
        PromptPolicy,
        canonical_body,
        canonical_bytes,
        canonical_text,
        frozen_clock,
    )
    from detdiag.remedies.repeatable import CHILD_ENVIRONMENT, torch_repeatable
    from detdiag.remedies.routing import pinned_routing
    from detdiag.remedies.rows import row_invariant
    from detdiag.remedies.validate import NotValid, Validated, validated
    from detdiag.remedies.votes import Vote, majority_vote, vote_error, votes_needed

_HOMES: Final = {
    "cache": "Cached ResponseCache request_key",
    "modules": "no_dropout no_jitter stateless uncapped_experts",
    "precision": "fp32_head fp32_router",
    "prompt": "PromptPolicy canonical_body canonical_bytes canonical_text frozen_clock",
    "repeatable": "CHILD_ENVIRONMENT torch_repeatable",
    "routing": "pinned_routing",
    "rows": "row_invariant",
    "validate": "NotValid Validated validated",
    "votes": "Vote majority_vote vote_error votes_needed",
}
_WHERE: Final = {name: home for home, names in _HOMES.items() for name in names.split()}

__all__ = [
    "CHILD_ENVIRONMENT",
    "Cached",
    "NotValid",
    "PromptPolicy",
    "ResponseCache",
    "Validated",
    "Vote",
    "canonical_body",
    "canonical_bytes",
    "canonical_text",
    "fp32_head",
    "fp32_router",
    "frozen_clock",
    "majority_vote",
    "no_dropout",
    "no_jitter",
    "pinned_routing",
    "request_key",
    "row_invariant",
    "stateless",
    "torch_repeatable",
    "uncapped_experts",
    "validated",
    "vote_error",
    "votes_needed",
]


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_WHERE[name]}"), name)
