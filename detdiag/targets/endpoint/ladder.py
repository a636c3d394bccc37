"""The way down from 20 alternatives a token to none, and how a server wants to be asked."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from detdiag.evidence.adapters import bodies
from detdiag.targets.endpoint import wire
from detdiag.targets.endpoint.client import Client
from detdiag.targets.endpoint.exchange import EndpointError, Reply
from detdiag.targets.endpoint.information import State
from detdiag.targets.prompts import Prompt

LADDER: Final = (20, 8, 5, 1)
LENGTHS: Final = (1, 16, 256, 2048)
"""Tokens that a question may cost: models that reason first refuse to stop before they answer."""

_REFUSED: Final = frozenset({400, 404, 405, 422, 501})
_MISSING: Final = frozenset({404, 405, 501})
"""Statuses of a path that is not there."""
_FINAL: Final = frozenset({401, 402, 403, 429})
_TEMPERATURE: Final = re.compile(
    r"temperature\W.{0,60}(support|deprecated|not allowed|strictly positive|default)"
    r"|(unsupported|not supported|deprecated)\b.{0,40}\Wtemperature\b",
    re.IGNORECASE,
)
_TOO_SHORT: Final = re.compile(
    r"max_tokens or model output limit was reached|below minimum value|must be at least \d",
    re.IGNORECASE,
)


@dataclass(slots=True)
class Dialect:
    """How this server wants to be asked, learned from its refusals. ``dropped`` holds fields of
    ours (never of a request that the user gave) that it refuses, with its words."""

    length_field: str = "max_tokens"
    length: int = LENGTHS[0]
    dropped: dict[str, str] = field(default_factory=dict)

    def body(self, asked: Mapping[str, Any]) -> dict[str, Any]:
        kept = {k: v for k, v in asked.items() if k not in self.dropped}
        return {**kept, self.length_field: self.length}

    def learn(self, error: EndpointError, asked: Mapping[str, Any]) -> bool:
        """Whether this refusal says how else to ask."""
        words = error.body
        if self.length_field == "max_tokens" and "max_completion_tokens" in words:
            self.length_field = "max_completion_tokens"
            return True
        if _TOO_SHORT.search(words) and self.length < LENGTHS[-1]:
            self.length = next(n for n in LENGTHS if n > self.length)
            return True
        ours = wire.is_default(asked) and "temperature" not in self.dropped
        if ours and _TEMPERATURE.search(words):
            self.dropped["temperature"] = error.message
            return True
        return False


@dataclass(frozen=True, slots=True)
class Rung:
    """``top`` None: the path does not answer. ``note`` says where the ladder stopped and why;
    ``reply`` and ``decoded`` are the first answer."""

    top: int | None
    state: State
    note: str
    error: EndpointError | None = None
    reply: Reply | None = None
    decoded: Any = None

    def usable(self) -> tuple[State, str]:
        if self.top is not None:
            return "yes", ""
        return ("refused" if self.error and self.error.status else "error"), self.note


async def climb(
    client: Client, asked: Mapping[str, Any], prompt: Prompt, dialect: Dialect, *, chat: bool
) -> Rung:
    """Ask for 20 alternatives, then fewer, until the server answers; ``dialect`` is told apart on
    the way. Raises :class:`EndpointError` where nothing on this server can answer (no access, no
    connection, no requests left)."""
    path = wire.CHAT if chat else wire.COMPLETIONS
    refusal, broken = "", False
    for top in (*LADDER, 0):
        try:
            reply, decoded = await _ask(
                client, path, asked, prompt, dialect, top, retry=not broken or not top
            )
        except EndpointError as error:
            if _nothing_answers(error, top):
                raise
            broken = broken or (error.status or 0) >= 500
            if not top or not _goes_down(error):
                state: State = "refused" if error.status in _REFUSED else "error"
                return Rung(None, state, error.message, error)
            refusal = refusal or f"{top} alternatives: {error.message}"
            continue
        if not bodies.outputs(decoded):
            return Rung(None, "error", "the reply holds no answer", _no_answer())
        return _reached(reply, decoded, top, refusal)
    raise AssertionError("the last rung returns")


def _nothing_answers(error: EndpointError, top: int) -> bool:
    if error.kind in ("unreachable", "spent"):
        return True
    return error.status in _FINAL and not (top and error.status == 403)


def _goes_down(error: EndpointError) -> bool:
    """May fewer alternatives be answered? A 403 or a 5xx can mean the log-probabilities alone:
    OpenAI's reasoning models, llama-cpp-python without ``--logits_all``."""
    status = error.status or 0
    return status not in _MISSING and (status in _REFUSED or status == 403 or status >= 500)


async def _ask(
    client: Client,
    path: str,
    asked: Mapping[str, Any],
    prompt: Prompt,
    dialect: Dialect,
    top: int,
    *,
    retry: bool,
) -> tuple[Reply, Any]:
    chat = path == wire.CHAT
    while True:
        body = {**dialect.body(asked), **prompt_fields(prompt, chat=chat)}
        try:
            return await client.post_json(
                path, wire.with_logprobs(body, top, chat=chat), retry=retry
            )
        except EndpointError as error:
            if error.status not in (400, 422) or not dialect.learn(error, asked):
                raise


def _reached(reply: Reply, decoded: Any, top: int, refusal: str) -> Rung:
    got = max((len(p.top) for p in bodies.outputs(decoded)[0].positions or ()), default=0)
    if got:
        note = refusal or f"{got} alternatives a token"
        # What was accepted is asked for again: fewer here may be more at another token (OpenAI).
        return Rung(top if got > 1 else 1, "yes", note, None, reply, decoded)
    if refusal:
        return Rung(0, "refused", refusal, None, reply, decoded)
    note = f"asked for {top}, the reply holds none and no error"
    return Rung(0, "absent", note, None, reply, decoded)


def _no_answer() -> EndpointError:
    return EndpointError("no-answer", "the reply holds no answer in a known shape")


def prompt_fields(prompt: Prompt, *, chat: bool) -> dict[str, Any]:
    if chat:
        return {"messages": wire.chat_messages(prompt)}
    return {
        "prompt": prompt.text or "\n".join(str(m.get("content")) for m in prompt.messages or ())
    }
