"""Request bodies, and replies read without losing a digit."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final

from detdiag.errors import DetdiagError
from detdiag.targets.prompts import Prompt

CHAT: Final = "v1:/chat/completions"
COMPLETIONS: Final = "v1:/completions"
_OURS: Final = frozenset({"messages", "prompt", "stream", "stream_options", "max_tokens"})
_LENGTHS: Final = ("max_tokens", "max_completion_tokens")
DEFAULT_TEMPLATE: Final[Mapping[str, Any]] = MappingProxyType({"temperature": 0})
"""What every request starts from where the user gave none. Zero is greedy everywhere: vLLM raises
a tiny temperature to 0.01, TGI samples at everything but exactly 0."""


class Sent(float):
    """A JSON number with the text that the server sent."""

    text: str

    def __new__(cls, text: str) -> Sent:
        self = super().__new__(cls, text)
        self.text = text
        return self


def read_template(raw: bytes, path: str | None = None) -> dict[str, Any]:
    """The body of ``--request FILE``; raises :class:`DetdiagError` if it is no JSON object."""
    try:
        found = json.loads(raw.decode("utf-8-sig"))
    except ValueError as error:
        raise DetdiagError(f"not valid JSON: {error}", path=path) from error
    if not isinstance(found, dict):
        raise DetdiagError("expected a JSON object (a request body)", path=path)
    return found


def prompt_of_template(template: Mapping[str, Any]) -> Prompt | None:
    """The prompt inside a request body; None where it holds none."""
    messages, prompt = template.get("messages"), template.get("prompt")
    if isinstance(messages, list) and messages:
        return Prompt("request", None, tuple(dict(m) for m in messages if isinstance(m, Mapping)))
    return Prompt("request", prompt) if isinstance(prompt, str) else None


def length_of_template(template: Mapping[str, Any]) -> int | None:
    """``max_tokens`` of a request body under either of its names."""
    for name in _LENGTHS:
        value = template.get(name)
        if isinstance(value, int) and not isinstance(value, bool) and value > 0:
            return value
    return None


def is_default(template: Mapping[str, Any]) -> bool:
    """Whether the body holds nothing of the user's own (the model's name aside)."""
    return {k: v for k, v in template.items() if k != "model"} == dict(DEFAULT_TEMPLATE)


def length_field(template: Mapping[str, Any]) -> str:
    return _LENGTHS[1] if _LENGTHS[1] in template else _LENGTHS[0]


def fixed_fields(template: Mapping[str, Any]) -> dict[str, Any]:
    """What every request keeps of the template: all but prompt, length and streaming."""
    return {k: v for k, v in template.items() if k not in _OURS and k != _LENGTHS[1]}


def chat_messages(prompt: Prompt) -> list[dict[str, Any]]:
    if prompt.messages is not None:
        return [dict(m) for m in prompt.messages]
    return [{"role": "user", "content": prompt.text or ""}]


def with_logprobs(body: dict[str, Any], top: int, *, chat: bool) -> dict[str, Any]:
    """``body`` asking for ``top`` alternatives a token (0: none)."""
    if top <= 0:
        return body
    if chat:
        return {**body, "logprobs": True, "top_logprobs": top}
    return {**body, "logprobs": top}


def decode_exact(raw: bytes) -> Any:
    """JSON with every fraction as :class:`Sent`; raises ``ValueError``."""
    try:
        return json.loads(raw, parse_float=Sent)
    except RecursionError as error:
        raise ValueError("nested too deep") from error


def vector_digests(decoded: Any) -> tuple[str | None, str | None]:
    """(digest of the first position, digest of all) over tokens and values as sent; None without.

    The second must only be compared between replies with the same tokens.
    """
    rows = [_row(entry) for entry in _logprob_entries(decoded)]
    if not rows:
        return None, None
    return _digest(rows[:1]), _digest(rows)


def _choice(decoded: Any) -> Mapping[str, Any]:
    choices = decoded.get("choices") if isinstance(decoded, Mapping) else None
    first = choices[0] if isinstance(choices, list) and choices else None
    return first if isinstance(first, Mapping) else {}


def _logprob_entries(decoded: Any) -> Sequence[Any]:
    logprobs = _choice(decoded).get("logprobs")
    if not isinstance(logprobs, Mapping):
        return []
    if isinstance(logprobs.get("content"), list):
        return list(logprobs["content"])
    tops = logprobs.get("top_logprobs")
    return [t for t in tops if isinstance(t, Mapping)] if isinstance(tops, list) else []


def _row(entry: Any) -> list[tuple[str, str]]:
    """(token, value as sent) of one position, in the order sent."""
    if not isinstance(entry, Mapping):
        return []
    tops = entry.get("top_logprobs")
    if "token" not in entry:  # the legacy layout: one object of token to value
        return [(str(k), _text(v)) for k, v in entry.items()]
    pairs = [(str(entry.get("token")), _text(entry.get("logprob")))]
    if isinstance(tops, list):
        pairs += [
            (str(t.get("token")), _text(t.get("logprob"))) for t in tops if isinstance(t, Mapping)
        ]
    return pairs


def _text(value: Any) -> str:
    return value.text if isinstance(value, Sent) else json.dumps(value)


def _digest(rows: Any) -> str:
    return hashlib.sha256(json.dumps(rows).encode("utf-8", "surrogatepass")).hexdigest()[:16]
