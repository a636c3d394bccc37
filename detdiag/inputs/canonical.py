"""The canonical form of a request body: what can change the output, and nothing else.

Bodies of the OpenAI, Anthropic, Gemini, Bedrock, Ollama, Hugging Face and SGLang shapes are
understood. Content strings are never touched: their bytes decide what the model reads.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Final


@lru_cache(maxsize=8192)
def normal_key(key: str) -> str:
    """``X-Request-ID``, ``requestId`` and ``request_id`` spelled one way: letters and digits."""
    return re.sub(r"[^a-z0-9]", "", key.lower())


_INERT_SPELLINGS: Final = (
    "user user_id end_user user_name metadata request_metadata labels tags "
    "request_id x_request_id client_request_id correlation_id x_correlation_id call_id "
    "litellm_call_id trace trace_id traceparent tracestate trace_context baggage span_id "
    "parent_span_id trace_name generation_name generation_id session_id idempotency_key "
    "x_idempotency_key stream stream_options store safety_identifier prompt_cache_key "
    "timestamp sent_at created created_at client_timestamp start_time request_time date "
    "api_key authorization proxy_authorization x_api_key cookie user_agent content_length "
    "accept_encoding connection host x_forwarded_for x_real_ip timeout request_timeout "
    "max_retries x_client_name x_title http_referer referer"
)
INERT_FIELDS: Final[frozenset[str]] = frozenset(normal_key(k) for k in _INERT_SPELLINGS.split())
"""Field names that cannot change the output, as :func:`normal_key` spells them."""

_INERT_PREFIXES: Final = ("xstainless", "xdatadog", "xb3", "sentry", "langfuse", "helicone")
_INERT_SUFFIXES: Final = ("requestid", "traceid", "spanid", "correlationid", "idempotencykey")

ENVELOPES: Final[frozenset[str]] = frozenset(
    normal_key(k) for k in "extra_body headers extra_headers extra_query litellm_params".split()
)
"""Objects that carry request fields one level down; inert names are dropped inside them too."""

PARAMETER_CONTAINERS: Final[frozenset[str]] = frozenset(
    normal_key(k)
    for k in "generation_config inference_config inference_parameters options parameters "
    "sampling_params text_generation_config additional_model_request_fields extra_body "
    "generate_kwargs".split()
)
"""Objects that hold sampling parameters one level down, over all provider shapes."""

PROMPT_FIELDS: Final[frozenset[str]] = frozenset(
    normal_key(k)
    for k in "messages prompt prompts system system_prompt system_instruction instructions input "
    "inputs input_text message chat_history preamble input_ids prompt_token_ids contents context "
    "documents tools functions tool_config "
    "tool_choice suffix template raw images chat_template chat_template_kwargs "
    "add_generation_prompt continue_final_message add_special_tokens".split()
)
"""Top-level fields that are rendered into what the model reads."""

_NORMAL_NAMES: Final[dict[str, str]] = {
    normal_key(alias): name
    for name, aliases in {
        "temperature": "temperature",
        "top_p": "top_p p",
        "top_k": "top_k k",
        "min_p": "min_p",
        "typical_p": "typical_p",
        "seed": "seed random_seed sampling_seed",
        "n": "n candidate_count num_return_sequences num_generations",
        "best_of": "best_of",
        "max_tokens": "max_tokens max_completion_tokens max_new_tokens max_output_tokens "
        "num_predict n_predict max_gen_len max_token_count max_tokens_to_sample",
        "min_tokens": "min_tokens min_new_tokens",
        "stop": "stop stop_sequences stop_strings",
        "stop_token_ids": "stop_token_ids",
        "repetition_penalty": "repetition_penalty repeat_penalty",
        "presence_penalty": "presence_penalty",
        "frequency_penalty": "frequency_penalty",
        "repeat_last_n": "repeat_last_n",
        "do_sample": "do_sample",
        "num_beams": "num_beams",
        "logit_bias": "logit_bias",
        "mirostat": "mirostat",
        "ignore_eos": "ignore_eos",
    }.items()
    for alias in aliases.split()
}


def is_inert(key: str) -> bool:
    """Whether a request field (any spelling) cannot change the output."""
    name = normal_key(key)
    return (
        name in INERT_FIELDS or name.startswith(_INERT_PREFIXES) or name.endswith(_INERT_SUFFIXES)
    )


def canonical_request(request: Mapping[str, Any]) -> dict[str, Any]:
    """``request`` without inert fields, keys sorted, integral floats of parameters as integers.

    Inert names are dropped at the top level and inside :data:`ENVELOPES` only: a tool argument
    called ``user`` is part of the prompt.
    """
    return {key: _sorted(value) for key, value in sorted(_kept(request).items())}


def request_digest(request: Mapping[str, Any]) -> str:
    """``sha256:...`` of the canonical form: equal for bodies that mean the same as JSON."""
    return _digest(canonical_request(request))


def ordered_digest(request: Mapping[str, Any]) -> str:
    """``sha256:...`` with the key order kept where it can be rendered into the prompt.

    Order is dropped at the top level, inside parameter objects and for the outer keys of a
    message (templates look those up by name); it is kept inside tools, schemas and arguments.
    """
    kept = _kept(request)
    return _digest({key: _prompt_ordered(key, kept[key]) for key in sorted(kept)})


def prompt_part(request: Mapping[str, Any]) -> dict[str, Any]:
    """Only what is rendered into the prompt: messages, prompt, system, tools and their kin."""
    return {k: v for k, v in request.items() if normal_key(k) in PROMPT_FIELDS}


def sampling_parameters(request: Mapping[str, Any]) -> dict[str, Any]:
    """Sampling parameters under their usual names (``temperature``, ``top_p``, ``max_tokens`` ...).

    Values are as sent, except that a single stop string becomes a list. A nested object wins over
    the top level, as it does where a client merges ``extra_body`` last.
    """
    found: dict[str, Any] = {}
    nested: list[Mapping[str, Any]] = []
    for key, value in request.items():
        if isinstance(value, Mapping):
            if normal_key(key) in PARAMETER_CONTAINERS:
                nested.append(value)
            elif normal_key(key) == "logitbias":
                found["logit_bias"] = value
            continue
        name = _NORMAL_NAMES.get(normal_key(key))
        if name is not None and value is not None:
            found[name] = [value] if name == "stop" and isinstance(value, str) else value
    for inner in nested:
        found.update(sampling_parameters(inner))
    return found


def _kept(request: Mapping[str, Any]) -> dict[str, Any]:
    out: dict[str, Any] = {}
    for key, value in request.items():
        if is_inert(key):
            continue
        if normal_key(key) in ENVELOPES and isinstance(value, Mapping):
            inner = _kept(value)
            if inner:
                out[key] = inner
        elif normal_key(key) in PROMPT_FIELDS:
            out[key] = value
        else:
            out[key] = _plain_numbers(value)
    return out


def _plain_numbers(value: Any) -> Any:
    """1.0 as 1: the same parameter. Never applied to prompts, where a digit is a token."""
    if isinstance(value, float) and value.is_integer() and abs(value) < 2**53:
        return int(value)
    if isinstance(value, Mapping):
        return {k: _plain_numbers(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain_numbers(v) for v in value]
    return value


def _sorted(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {k: _sorted(value[k]) for k in sorted(value)}
    if isinstance(value, (list, tuple)):
        return [_sorted(v) for v in value]
    return value


def _prompt_ordered(key: str, value: Any) -> Any:
    name = normal_key(key)
    if name in ("messages", "input", "contents") and isinstance(value, (list, tuple)):
        return [_message(item) for item in value]
    if name in PARAMETER_CONTAINERS or name in ENVELOPES:
        return _sorted(value)
    return value


def _message(item: Any) -> Any:
    if not isinstance(item, Mapping):
        return item
    return {key: item[key] for key in sorted(item)}


def _digest(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), default=str)
    return "sha256:" + hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
