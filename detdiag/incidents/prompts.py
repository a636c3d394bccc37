"""What a request asks and whether it samples, in the words of a table cell."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from detdiag.evidence.adapters.shape import arr, content_text, dig, number
from detdiag.incidents.model import Sampling
from detdiag.inputs.canonical import prompt_part, sampling_parameters

EXCERPT: Final = 400


def excerpt(request: Mapping[str, Any]) -> str:
    """The last thing that was asked, at most ``EXCERPT`` characters."""
    found = _last_question(prompt_part(request))
    return found if len(found) <= EXCERPT else found[: EXCERPT - 1] + "…"


def _last_question(prompt: Mapping[str, Any]) -> str:
    for key in ("messages", "contents", "input", "prompt", "inputs", "instructions", "system"):
        value = prompt.get(key)
        if isinstance(value, str):
            return value
        for message in reversed(arr(value)):
            found = message if isinstance(message, str) else _message(message)
            if found:
                return found
    return ""


def _message(message: Any) -> str | None:
    for key in ("content", "parts", "text"):
        found = content_text(dig(message, key))
        if found:
            return found
    return None


def sampling_of(request: Mapping[str, Any]) -> Sampling:
    """``on`` where the request itself asks for sampling, ``greedy`` where it rules it out.

    A temperature that is missing is ``not set``: the server's default decides.
    """
    parameters = sampling_parameters(request)
    temperature = number(parameters.get("temperature"))
    if parameters.get("do_sample") is False or number(parameters.get("top_k")) == 1:
        return "greedy"
    if temperature is not None:
        return "greedy" if temperature == 0 else "on"
    return "on" if parameters.get("do_sample") is True else "not set"


def fork(usual: str, other: str) -> int:
    """First character at which two texts differ; the length of the shorter where one goes on."""
    if usual == other:
        return len(usual)
    low, high = 0, min(len(usual), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        if usual[:middle] == other[:middle]:
            low = middle
        else:
            high = middle - 1
    return low
