"""What a server can do, found by asking: nothing is assumed from its name or version.

Refused (400, 404, 422) and silently absent are different answers and are kept apart.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from detdiag.evidence.adapters import bodies
from detdiag.targets.endpoint import wire
from detdiag.targets.endpoint.client import Client
from detdiag.targets.endpoint.exchange import EndpointError
from detdiag.targets.endpoint.information import Capability, State, family_of, information
from detdiag.targets.prompts import Prompt

LADDER: Final = (20, 8, 5, 1)


@dataclass(frozen=True, slots=True)
class Capabilities:
    """``chat`` / ``completions`` are usable paths; ``top`` / ``completions_top`` how many
    alternatives come back there (0: none). ``family`` is vllm, sglang, llamacpp, tgi, ollama or
    None; ``info`` holds plain facts that the server told about itself."""

    chat: bool = False
    completions: bool = False
    top: int = 0
    completions_top: int = 0
    tokenize: bool = False
    continues: bool = False
    """Does chat accept ``continue_final_message`` (vLLM, SGLang)?"""
    token_ids: bool = False
    """Does the server return token ids (vLLM ``return_token_ids``)?"""
    length_field: str = "max_tokens"
    metrics: Literal["vllm", "sglang", "llamacpp", "tgi"] | None = None
    family: str | None = None
    found: tuple[Capability, ...] = ()
    info: Mapping[str, Any] = field(default_factory=dict)

    def rows(self) -> list[dict[str, str]]:
        return [c.to_dict() for c in self.found]


async def explore(
    client: Client, model: str, template: Mapping[str, Any], prompt: Prompt
) -> Capabilities:
    """Ask once for each capability: about a dozen small requests.

    Raises :class:`EndpointError` where neither chat nor completions answers at all.
    """
    told, info, metrics = await information(client)
    asked = dict(wire.fixed_fields(template)) | {"model": model}
    name = wire.length_field(template)
    chat, name = await _ladder(client, asked, prompt, name, chat=True)
    legacy, _ = await _ladder(client, asked, prompt, "max_tokens", chat=False)
    if chat.top is None and legacy.top is None:
        raise chat.error or EndpointError("no-answer", "neither chat nor completions answers")
    extras = await _extras(client, asked, prompt, name, chat.top is not None, legacy)
    family = metrics or family_of(info)
    found = (
        Capability("chat completions", *chat.usable()),
        Capability("chat log-probabilities", chat.state, chat.note),
        Capability("/v1/completions", *legacy.usable()),
        Capability("completions log-probabilities", legacy.state, legacy.note),
        *extras,
        *told,
    )
    states = {c.name: c.state == "yes" for c in found}
    return Capabilities(
        chat.top is not None, legacy.top is not None, chat.top or 0, legacy.top or 0,
        states["/tokenize"], states["continue_final_message"], states["return_token_ids"],
        name, metrics, family, found, info,
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Rung:
    """``top`` None: the path does not answer. ``note`` says where the ladder stopped and why."""

    top: int | None
    state: State
    note: str
    error: EndpointError | None = None

    def usable(self) -> tuple[State, str]:
        if self.top is not None:
            return "yes", ""
        return ("refused" if self.error and self.error.status else "error"), self.note


async def _ladder(
    client: Client, asked: Mapping[str, Any], prompt: Prompt, name: str, *, chat: bool
) -> tuple[_Rung, str]:
    """Climb down from 20 alternatives to none; returns what answered and the length field."""
    path = wire.CHAT if chat else wire.COMPLETIONS
    body = {**asked, **_prompt(prompt, chat), name: 1}
    refusal = ""
    for top in (*LADDER, 0):
        try:
            _, decoded = await client.post_json(path, wire.with_logprobs(body, top, chat=chat))
        except EndpointError as error:
            if error.status not in (400, 404, 405, 422, 501):
                if error.status in (401, 403) or error.kind in ("unreachable", "spent"):
                    raise
                return _Rung(None, "error", error.message, error), name
            if _wants_other_length(error, name):
                return await _ladder(client, asked, prompt, "max_completion_tokens", chat=chat)
            refusal = refusal or f"{top} alternatives: {error.message}"
            if error.status in (404, 405, 501) or not top:
                return _Rung(None, "refused", error.message, error), name
            continue
        if not bodies.outputs(decoded):
            return _Rung(None, "error", "the reply holds no answer", _no_answer()), name
        return _climbed(decoded, top, refusal), name
    raise AssertionError("the last rung returns")


def _climbed(decoded: Any, top: int, refusal: str) -> _Rung:
    got = max((len(p.top) for p in bodies.outputs(decoded)[0].positions or ()), default=0)
    if got:
        return _Rung(got if got < top else top, "yes", refusal or f"{got} alternatives a token")
    if refusal:
        return _Rung(0, "refused", refusal)
    return _Rung(0, "absent", f"asked for {top}, the reply holds none and no error")


def _no_answer() -> EndpointError:
    return EndpointError("no-answer", "the reply holds no answer in a known shape")


def _wants_other_length(error: EndpointError, name: str) -> bool:
    return name == "max_tokens" and "max_completion_tokens" in error.body


def _prompt(prompt: Prompt, chat: bool) -> dict[str, Any]:
    if chat:
        return {"messages": wire.chat_messages(prompt)}
    return {
        "prompt": prompt.text or "\n".join(str(m.get("content")) for m in prompt.messages or ())
    }


async def _extras(
    client: Client,
    asked: Mapping[str, Any],
    prompt: Prompt,
    name: str,
    chat: bool,
    legacy: _Rung,
) -> list[Capability]:
    out = [await _tokenize(client, str(asked["model"]))]
    path = wire.CHAT if chat else wire.COMPLETIONS
    body = {**asked, **_prompt(prompt, chat), name: 1}
    out.append(await _token_ids(client, path, body))
    out.append(await _continues(client, body, name) if chat else Capability(
        "continue_final_message", "refused", "no chat path"
    ))  # fmt: skip
    return out


async def _tokenize(client: Client, model: str) -> Capability:
    for body in ({"model": model, "prompt": "one two"}, {"content": "one two"}):
        try:
            _, decoded = await client.post_json("/tokenize", body, retry=False)
        except EndpointError as error:
            note = error.message
            continue
        if isinstance(decoded, Mapping) and isinstance(decoded.get("tokens"), list):
            return Capability("/tokenize", "yes", f"{len(decoded['tokens'])} tokens for two words")
        note = "the reply holds no tokens"
    return Capability("/tokenize", "refused", note)


async def _token_ids(client: Client, path: str, body: Mapping[str, Any]) -> Capability:
    try:
        _, decoded = await client.post_json(path, {**body, "return_token_ids": True})
    except EndpointError as error:
        return Capability("return_token_ids", "refused", error.message)
    found = bodies.outputs(decoded)
    if found and found[0].token_ids is not None:
        return Capability("return_token_ids", "yes")
    return Capability("return_token_ids", "absent", "the field is ignored")


async def _continues(client: Client, body: Mapping[str, Any], name: str) -> Capability:
    """Is an assistant message at the end a prefix to go on from? Then two short words make the
    prompt longer by themselves; a server that closes the turn adds its marks, too."""
    kind = "continue_final_message"
    last = {"role": "assistant", "content": "one two"}
    longer = {
        **body,
        "messages": [*body["messages"], last],
        "continue_final_message": True,
        "add_generation_prompt": False,
    }
    try:
        _, plain = await client.post_json(wire.CHAT, body)
        _, continued = await client.post_json(wire.CHAT, longer)
    except EndpointError as error:
        return Capability(kind, "refused", error.message)
    before, after = _prompt_tokens(plain), _prompt_tokens(continued)
    if not bodies.outputs(continued) or before is None or after is None:
        return Capability(kind, "absent", "no answer or no token count to check it by")
    note = f"two words more: prompt_tokens {before} and {after}"
    return Capability(kind, "yes" if 0 < after - before <= 3 else "absent", note)


def _prompt_tokens(decoded: Any) -> int | None:
    usage = decoded.get("usage") if isinstance(decoded, Mapping) else None
    found = usage.get("prompt_tokens") if isinstance(usage, Mapping) else None
    return found if isinstance(found, int) else None
