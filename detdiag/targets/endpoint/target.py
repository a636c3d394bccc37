"""One server under test: asks questions, returns observations."""

from __future__ import annotations

import hashlib
import itertools
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal

from detdiag.evidence.adapters import bodies as reply_bodies
from detdiag.evidence.adapters import prompt_token_ids, response_factors
from detdiag.evidence.adapters.factors import header_labels, served_from_cache
from detdiag.evidence.adapters.surfaces import surface_of
from detdiag.evidence.observation import Observation, Output
from detdiag.targets.endpoint import wire
from detdiag.targets.endpoint.address import Address, moved
from detdiag.targets.endpoint.capabilities import Capabilities, explore
from detdiag.targets.endpoint.client import Client
from detdiag.targets.endpoint.exchange import EndpointError, Reply
from detdiag.targets.prompts import Prompt

Api = Literal["chat", "completions"]
_KEPT = ("id", "created", "usage", "service_tier", "timings")
_BROKEN_OFF: Final = ("abort", "error", "cancelled")
"""Finish reasons of half an answer: vLLM and SGLang abort what they cannot hold, routers say
``error`` where a provider fails on the way."""

_SHORT_ID: Final = re.compile(r"\D*\d{1,6}")
_NUMBERS = itertools.count(1)


@dataclass(slots=True)
class EndpointTarget:
    """``template`` is the body every request starts from (model, temperature ...); ``replica`` is
    a factor value for one of several URLs. ``capabilities`` are set by :meth:`explore`."""

    client: Client
    model: str
    template: Mapping[str, Any]
    capabilities: Capabilities = field(default_factory=Capabilities)
    replica: str | None = None

    @property
    def address(self) -> Address:
        return self.client.address

    @property
    def name(self) -> str:
        """The URL without user information and query."""
        return self.client.address.shown

    @property
    def api(self) -> Api:
        return "chat" if self.capabilities.chat else "completions"

    @property
    def top(self) -> int:
        """Alternatives a token that the chosen path returns (0: no log-probabilities)."""
        caps = self.capabilities
        return caps.top if caps.chat else caps.completions_top

    async def explore(self, prompt: Prompt) -> Capabilities:
        """Find the capabilities; raises :class:`EndpointError` if nothing answers.

        Where the address has no such route, its other usual bases are tried (``/v1`` below a
        prefix). A field of our own that the server refuses leaves the template."""
        try:
            self.capabilities = await explore(self.client, self.model, self.template, prompt)
        except EndpointError as error:
            if error.status not in (404, 405) or not await self._elsewhere(prompt):
                raise
        if self.capabilities.dropped:
            dropped = self.capabilities.dropped
            self.template = {k: v for k, v in self.template.items() if k not in dropped}
        return self.capabilities

    async def _elsewhere(self, prompt: Prompt) -> bool:
        given = self.client.address
        for api in given.elsewhere:
            self.client.address = moved(given, api)
            try:
                self.capabilities = await explore(self.client, self.model, self.template, prompt)
            except EndpointError:
                continue
            return True
        self.client.address = given
        return False

    def body(
        self,
        prompt: Prompt,
        *,
        max_tokens: int,
        api: Api | None = None,
        overrides: Mapping[str, Any] | None = None,
        logprobs: bool = True,
        prompt_ids: tuple[int, ...] | None = None,
    ) -> tuple[str, dict[str, Any]]:
        """(path, request body). ``overrides`` win over everything; None takes a field out."""
        chat = (api or self.api) == "chat"
        caps = self.capabilities
        body: dict[str, Any] = {**wire.fixed_fields(self.template), "model": self.model}
        if chat:
            body["messages"] = wire.chat_messages(prompt)
            body[caps.length_field] = max_tokens
        else:
            body["prompt"] = list(prompt_ids) if prompt_ids is not None else _plain(prompt)
            body["max_tokens"] = max_tokens
        if logprobs:
            body = wire.with_logprobs(body, caps.top if chat else caps.completions_top, chat=chat)
        if caps.token_ids:
            body["return_token_ids"] = True
        body |= overrides or {}
        body = {k: v for k, v in body.items() if v is not None}
        return (wire.CHAT if chat else wire.COMPLETIONS), body

    async def ask(
        self,
        prompt: Prompt,
        *,
        max_tokens: int = 1,
        connection: str = "c0",
        burst: str | None = None,
        phase: str = "",
        overrides: Mapping[str, Any] | None = None,
        factors: Mapping[str, Any] | None = None,
        api: Api | None = None,
        prompt_ids: tuple[int, ...] | None = None,
        query: str | None = None,
        role: str = "trial",
    ) -> Observation:
        """Send one request and read the reply.

        Factors: what the reply says about itself, ``connection``, ``replica``, ``time`` and the
        given ones. ``response["context"]`` keeps times, connection, burst, labels, digests of the
        log-probabilities as sent, and retries. Raises :class:`EndpointError`.
        """
        path, body = self.body(
            prompt, max_tokens=max_tokens, api=api, overrides=overrides, prompt_ids=prompt_ids
        )
        reply, decoded = await self.client.post_json(path, body, connection=connection)
        output = self._output(decoded, reply)
        labels = header_labels(reply.headers)
        found: dict[str, Any] = {
            **response_factors(decoded),
            "connection": reply.connection,
            "time": reply.sent_s,
            **(factors or {}),
        }
        if self.replica is not None or labels:
            found["replica"] = " ".join([*filter(None, [self.replica]), *labels.values()])
        number = next(_NUMBERS)
        return Observation(
            id=f"{phase or 'ask'}-{int(reply.sent_s * 1e6):x}-{number}",
            query=query or f"{prompt.id}/{max_tokens}",
            request=body,
            surface=surface_of(self.address.url(path), body, decoded),
            prompt_token_ids=prompt_token_ids(decoded) or prompt_ids,
            output=output,
            factors=found,
            response={
                **{
                    k: decoded[k]
                    for k in _KEPT
                    if decoded.get(k) is not None and _tells(decoded, k)
                },
                "context": context_of(reply, labels, phase, burst),
            },
            role=role,
        )

    def _output(self, decoded: Any, reply: Reply) -> Output:
        found = reply_bodies.outputs(decoded) if isinstance(decoded, Mapping) else []
        if not found:
            shown = self.client.scrub(" ".join(str(decoded).split()))[:120]
            raise EndpointError(
                "no-answer",
                f"HTTP {reply.status}: no answer in the reply: {shown}",
                status=reply.status,
                retries=reply.retries,
            )
        output = found[0]
        if output.finish_reason in _BROKEN_OFF:
            raise EndpointError(
                "no-answer",
                f"the server broke its answer off (finish_reason {output.finish_reason})",
                retries=reply.retries,
            )
        if output.token_ids or output.positions or output.text:
            return output
        if output.finish_reason == "length":
            raise EndpointError(
                "no-answer",
                "the reply holds no text: all its tokens went to reasoning that is not shown; "
                "--max-new-tokens gives it room to answer",
                retries=reply.retries,
            )
        if output.text is None:
            raise EndpointError(
                "no-answer", "the reply holds a choice without text", retries=reply.retries
            )
        return output


def _tells(decoded: Mapping[str, Any], key: str) -> bool:
    """Ollama draws its ids from a thousand numbers: two equal ones are no sign of a cache."""
    return key != "id" or not _SHORT_ID.fullmatch(str(decoded["id"]))


def context_of(
    reply: Reply, labels: Mapping[str, str], phase: str, burst: str | None
) -> dict[str, Any]:
    """What an observation keeps about the call itself; times in seconds since 1970."""
    try:
        first, every = wire.vector_digests(wire.decode_exact(reply.body))
    except ValueError:  # put together from a stream, or numbers that no float holds
        first = every = None
    out: dict[str, Any] = {
        "phase": phase,
        "connection": reply.connection,
        "sent_s": reply.sent_s,
        "first_byte_s": reply.first_byte_s,
        "end_s": reply.end_s,
        "body_sha256": hashlib.sha256(reply.body).hexdigest()[:16],
    }
    if burst is not None:
        out["burst"] = burst
    if labels:
        out["labels"] = dict(labels)
    if reply.retries:
        out["retries"] = [r.to_dict() for r in reply.retries]
    if served_from_cache(reply.headers):
        out["response_cache"] = True
    if first is not None:
        out |= {"digest_first": first, "digest": every}
    return out


def with_factors(observation: Observation, **factors: Any) -> Observation:
    """A copy with more factors (what is only known after a burst)."""
    return replace(observation, factors={**observation.factors, **factors})


def with_context(observation: Observation, **context: Any) -> Observation:
    """A copy with more context under ``response["context"]``."""
    response = dict(observation.response or {})
    return replace(
        observation, response={**response, "context": {**response.get("context", {}), **context}}
    )


def _plain(prompt: Prompt) -> str:
    if prompt.text is not None:
        return prompt.text
    return "\n".join(str(m.get("content") or "") for m in prompt.messages or ())
