"""What a model name tells about its provider's rules (families, thinking modes)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

_OPENAI_REASONING: Final = re.compile(
    r"(^|/|\b)(o1|o3|o4)(-|$|:)|(^|/)(gpt-5(?!\.[12](\D|$)))(?!.*chat)", re.IGNORECASE
)
_GPT_5_MINOR: Final = re.compile(r"(^|/)gpt-5\.[12](\D|$)(?!.*chat)", re.IGNORECASE)
_CLAUDE_FIXED: Final = re.compile(
    r"claude-(opus-4[.-][789](\D|$)|(opus|sonnet|haiku|fable)-5(\D|$)|5)", re.IGNORECASE
)
_CLAUDE_ONE_OF: Final = re.compile(
    r"claude-(opus-4[.-][156](\D|$)|sonnet-4[.-][56](\D|$)|haiku-4[.-]5(\D|$))", re.IGNORECASE
)
_KIMI_FIXED: Final = re.compile(r"kimi-(k2\.[5-9]|k[3-9])", re.IGNORECASE)
_GEMINI_3: Final = re.compile(r"gemini-3", re.IGNORECASE)
_DATED: Final = re.compile(r"(\d{4}-\d{2}-\d{2}|\d{8}|-\d{4}$|@\w+$)")


def family(model: str) -> str:
    """A word for the family of sampling rules, ``""`` where none is known."""
    if _CLAUDE_FIXED.search(model):
        return "claude-fixed"
    if _CLAUDE_ONE_OF.search(model):
        return "claude-one-of"
    if _OPENAI_REASONING.search(model):
        return "openai-reasoning"
    if _GPT_5_MINOR.search(model):
        return "gpt-5-minor"
    if _KIMI_FIXED.search(model):
        return "kimi-fixed"
    return "gemini-3" if _GEMINI_3.search(model) else ""


def fixed_sampling(model: str) -> bool:
    """Whether the provider refuses any sampling parameter for ``model``."""
    return family(model) in ("claude-fixed", "openai-reasoning", "kimi-fixed")


def is_alias(model: str) -> bool:
    """Whether a hosted model name carries no snapshot date."""
    return bool(model) and _DATED.search(model) is None


def deepseek_thinks(body: Mapping[str, Any]) -> bool:
    """Whether a DeepSeek request runs in thinking mode."""
    thinking = body.get("thinking")
    if isinstance(thinking, Mapping):
        return thinking.get("type") != "disabled"
    if str(body.get("reasoning_effort", "")).lower() == "none":
        return False
    return "deepseek-chat" not in str(body.get("model", ""))
