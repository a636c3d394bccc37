"""The families that speak the OpenAI protocol, each with the quirks that its users meet.

A family changes what the stub server accepts and how its replies look; the model behind them is
the same. Sources stand at each class: the server's own code or documentation, or the error
message as users reported it.
"""

from __future__ import annotations

from tests.stub_server.families.base import Family, FamilyServer
from tests.stub_server.families.hosted import Azure, LiteLLM, OpenAI, OpenAIReasoning, OpenRouter
from tests.stub_server.families.local import (
    TGI,
    VLLM,
    LlamaCpp,
    LlamaCppPython,
    Ollama,
    SGLang,
    TransformersServe,
)

__all__ = [
    "TGI",
    "VLLM",
    "Azure",
    "Family",
    "FamilyServer",
    "LiteLLM",
    "LlamaCpp",
    "LlamaCppPython",
    "Ollama",
    "OpenAI",
    "OpenAIReasoning",
    "OpenRouter",
    "SGLang",
    "TransformersServe",
]
