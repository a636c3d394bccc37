"""The adapters in the order of asking: marked formats first, plain shapes last."""

from __future__ import annotations

from typing import Final, cast

from detdiag.evidence.adapters import (
    bedrock_log,
    curl,
    har,
    helicone,
    langfuse,
    langsmith,
    litellm,
    openai_batch,
    openinference,
    openllmetry,
    otel,
    otel_events,
    pairs,
    replies,
    vcr,
)
from detdiag.evidence.adapters.document import Document
from detdiag.evidence.adapters.interface import Adapter

ADAPTERS: Final[tuple[Adapter, ...]] = cast(
    "tuple[Adapter, ...]",
    (
        har,
        vcr,
        openai_batch,
        bedrock_log,
        openinference,
        openllmetry,
        otel,
        otel_events,
        litellm,
        langsmith,
        langfuse,
        helicone,
        pairs,
        replies,
        curl,
    ),
)


def adapter_for(document: Document) -> Adapter | None:
    """The first adapter that recognises the content; None for unknown shapes."""
    return next((adapter for adapter in ADAPTERS if adapter.matches(document)), None)
