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
from detdiag.targets.endpoint.families import family_of
from detdiag.targets.endpoint.information import Capability, information, metrics_again
from detdiag.targets.endpoint.ladder import Dialect, climb, prompt_fields
from detdiag.targets.prompts import Prompt

TOKENIZE_BODIES: Final[tuple[tuple[str, ...], ...]] = (
    ("model", "prompt"),
    ("content",),
    ("inputs",),
)
"""Fields of a ``/tokenize`` request: vLLM and SGLang, llama.cpp, TGI."""


@dataclass(frozen=True, slots=True)
class Capabilities:
    """``chat`` / ``completions`` are usable paths; ``top`` / ``completions_top`` how many
    alternatives may be asked for there (0: none come back). ``family`` is as in
    :mod:`families`; ``info`` holds plain facts that the server told about itself."""

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
    dropped: frozenset[str] = frozenset()
    """Fields of our own default request that the server refuses (a temperature of 0)."""

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
    dialect = Dialect(wire.length_field(template))
    chat = await climb(client, asked, prompt, dialect, chat=True)
    plain = Dialect("max_tokens", dialect.length, dialect.dropped)
    legacy = await climb(client, asked, prompt, plain, chat=False)
    if chat.top is None and legacy.top is None:
        raise chat.error or EndpointError("no-answer", "neither chat nor completions answers")
    asked = {k: v for k, v in asked.items() if k not in dialect.dropped}
    spoken = dialect if chat.top is not None else plain
    extras = await _extras(client, asked, prompt, spoken, chat.top is not None)
    if metrics is None:
        told, metrics = await metrics_again(client, told)
    first = chat.reply or legacy.reply
    family = family_of(
        info, metrics=metrics, headers=first.headers if first else None,
        decoded=chat.decoded or legacy.decoded, host=client.address.host,
    )  # fmt: skip
    found = (
        Capability("chat completions", *chat.usable()),
        Capability("chat log-probabilities", chat.state, chat.note),
        Capability("/v1/completions", *legacy.usable()),
        Capability("completions log-probabilities", legacy.state, legacy.note),
        *(Capability(f"{name} 0", "refused", why) for name, why in dialect.dropped.items()),
        *extras,
        *told,
    )
    states = {c.name: c.state == "yes" for c in found}
    return Capabilities(
        chat.top is not None, legacy.top is not None, chat.top or 0, legacy.top or 0,
        states["/tokenize"], states["continue_final_message"], states["return_token_ids"],
        dialect.length_field, metrics, family, found, info, frozenset(dialect.dropped),
    )  # fmt: skip


async def _extras(
    client: Client,
    asked: Mapping[str, Any],
    prompt: Prompt,
    dialect: Dialect,
    chat: bool,
) -> list[Capability]:
    out = [await _tokenize(client, str(asked["model"]))]
    path = wire.CHAT if chat else wire.COMPLETIONS
    body = {**dialect.body(asked), **prompt_fields(prompt, chat=chat)}
    out.append(await _token_ids(client, path, body))
    out.append(await _continues(client, body) if chat else Capability(
        "continue_final_message", "refused", "no chat path"
    ))  # fmt: skip
    return out


async def _tokenize(client: Client, model: str) -> Capability:
    for fields in TOKENIZE_BODIES:
        body = {name: model if name == "model" else "one two" for name in fields}
        try:
            _, decoded = await client.post_json("/tokenize", body, retry=False)
        except EndpointError as error:
            note = error.message
            continue
        ids = token_ids_of(decoded)
        if ids:
            return Capability("/tokenize", "yes", f"{len(ids)} tokens for two words")
        note = "the reply holds no tokens"
    return Capability("/tokenize", "refused", note)


def token_ids_of(decoded: Any) -> list[int]:
    """Ids in a reply of ``/tokenize``: ``{"tokens": [...]}``, or TGI's list of ``{"id": ...}``."""
    tokens = decoded.get("tokens") if isinstance(decoded, Mapping) else decoded
    if not isinstance(tokens, list):
        return []
    ids = [t.get("id") if isinstance(t, Mapping) else t for t in tokens]
    return [i for i in ids if isinstance(i, int)] if all(isinstance(i, int) for i in ids) else []


async def _token_ids(client: Client, path: str, body: Mapping[str, Any]) -> Capability:
    try:
        _, decoded = await client.post_json(path, {**body, "return_token_ids": True})
    except EndpointError as error:
        return Capability("return_token_ids", "refused", error.message)
    found = bodies.outputs(decoded)
    if found and found[0].token_ids is not None:
        return Capability("return_token_ids", "yes")
    return Capability("return_token_ids", "absent", "the field is ignored")


async def _continues(client: Client, body: Mapping[str, Any]) -> Capability:
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
