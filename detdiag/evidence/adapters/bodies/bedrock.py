"""Amazon Bedrock: Converse, and InvokeModel bodies of Titan, Llama and Mistral (others use their
own)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from detdiag.evidence.adapters.bodies.parts import answer_text
from detdiag.evidence.adapters.shape import arr, dig, obj, text
from detdiag.evidence.observation import Output


def matches(body: Mapping[str, Any]) -> bool:
    return (
        isinstance(dig(body, "output", "message", "content"), list)
        or isinstance(dig(body, "results", 0, "outputText"), str)
        or isinstance(dig(body, "outputs", 0, "text"), str)
        or (isinstance(body.get("generation"), str) and "stop_reason" in body)
    )


def outputs(body: Mapping[str, Any]) -> list[Output]:
    if isinstance(body.get("generation"), str):
        return [Output(text=body["generation"], finish_reason=text(body.get("stop_reason")))]
    if isinstance(body.get("outputs"), list):
        return [
            Output(text=text(dig(o, "text")), finish_reason=text(dig(o, "stop_reason")))
            for o in body["outputs"]
        ]
    if isinstance(body.get("results"), list):
        return [
            Output(text=text(dig(r, "outputText")), finish_reason=text(dig(r, "completionReason")))
            for r in body["results"]
        ]
    blocks = [obj(block) for block in arr(dig(body, "output", "message", "content"))]
    answers = [b["text"] for b in blocks if isinstance(b.get("text"), str)]
    thoughts = [dig(b, "reasoningContent", "reasoningText", "text") for b in blocks]
    calls = [
        (dig(b, "toolUse", "name"), dig(b, "toolUse", "input")) for b in blocks if "toolUse" in b
    ]
    reasoning = "\n".join(t for t in thoughts if isinstance(t, str)) or None
    return [
        Output(
            text=answer_text("".join(answers), calls, reasoning),
            finish_reason=text(body.get("stopReason")),
        )
    ]
