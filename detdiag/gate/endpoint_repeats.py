"""One question to a server, asked again and again: the engine of ``assert_endpoint_repeats``."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final, Literal

from detdiag.evidence.observation import Output

Compare = Literal["text", "token", "bitwise"]
COMPARE: Final = ("text", "token", "bitwise")


@contextmanager
def asker(
    url: str,
    prompt: str | Sequence[Mapping[str, Any]],
    *,
    model: str,
    max_tokens: int = 64,
    body: Mapping[str, Any] | None = None,
    headers: Mapping[str, str] | None = None,
    api_key_env: str | None = None,
    timeout_s: float = 60.0,
    compare: Compare = "text",
) -> Iterator[Callable[[], Any]]:
    """A function that sends the request once and returns what must repeat.

    Raises :class:`~detdiag.targets.endpoint.EndpointError` where no answer comes, ValueError where
    the reply lacks the channel that ``compare`` needs.
    """
    from detdiag.targets.endpoint import open_target
    from detdiag.targets.prompts import Prompt

    if compare not in COMPARE:
        raise ValueError(f"compare={compare!r}: expected one of {', '.join(COMPARE)}")
    asked = (
        Prompt("p1", prompt)
        if isinstance(prompt, str)
        else Prompt("p1", None, tuple(dict(m) for m in prompt))
    )
    template = {"temperature": 0, **(body or {})}
    loop = asyncio.new_event_loop()
    target = open_target(
        url, model, template=template, headers=headers, api_key_env=api_key_env,
        timeout_s=timeout_s,
    )  # fmt: skip
    try:
        loop.run_until_complete(target.explore(asked))

        def ask() -> Any:
            reply = loop.run_until_complete(target.ask(asked, max_tokens=max_tokens))
            return channel(reply.output, compare)

        yield ask
    finally:
        loop.run_until_complete(target.client.aclose())
        loop.close()


def channel(output: Output, compare: Compare) -> Any:
    """The text, the tokens, or the tokens with their log-probabilities of one answer."""
    if compare == "text":
        if output.text is None:
            raise ValueError("the reply holds no text to compare")
        return output.text
    positions = output.positions or ()
    if compare == "bitwise":
        if not positions:
            raise ValueError("the server returns no log-probabilities: compare='text' or 'token'")
        return [
            [p.id if p.id is not None else p.token, p.logprob,
             [[c.id if c.id is not None else c.token, c.logprob] for c in p.top]]
            for p in positions
        ]  # fmt: skip
    if output.token_ids is not None:
        return list(output.token_ids)
    if not positions:
        raise ValueError("the server returns no tokens: compare='text'")
    return [p.id if p.id is not None else p.token for p in positions]
