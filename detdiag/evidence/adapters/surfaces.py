"""Which API surface a recorded call used, in the names of the config rules."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import unquote, urlsplit

from detdiag.evidence.adapters.shape import dig, first, label, obj, text

_HOSTS: Final = (
    ("openrouter.ai", "openrouter.chat"),
    ("api.deepseek.com", "deepseek.chat"),
    ("api.mistral.ai", "mistral.chat"),
    ("api.groq.com", "groq.chat"),
    ("api.x.ai", "xai.chat"),
    ("api.together", "together.chat"),
    ("fireworks.ai", "fireworks.chat"),
    ("moonshot", "moonshot.chat"),
    ("dashscope", "dashscope.chat"),
    ("bigmodel.cn", "zhipu.chat"),
    ("minimax", "minimax.chat"),
    ("openai.azure.com", "azure.openai_chat"),
    ("api.cohere", "cohere.chat"),
)
_PATHS: Final = (
    ("/api/chat", "ollama.api"),
    ("/api/generate", "ollama.api"),
    ("/v1/messages", "anthropic.messages"),
    ("/v1/responses", "openai.responses"),
    ("generatecontent", "gemini.generate_content"),
    ("/converse", "bedrock.converse"),
    ("/v2/chat", "cohere.chat"),
)
_FINGERPRINTS: Final = (
    (re.compile(r"^fp_ollama$"), "ollama.openai_api"),
    (re.compile(r"^vllm-"), "vllm.openai_request"),
    (re.compile(r"^b\d+-[0-9a-f]{6,}$"), "llamacpp.server"),
    (re.compile(r"^\d+\.\d+\.\d+\S*-(sha-)?\w+$"), "tgi.chat"),
)
_PROVIDERS: Final = {
    "openai": "openai.chat",
    "azure": "azure.openai_chat",
    "azure.ai.openai": "azure.openai_chat",
    "az.ai.openai": "azure.openai_chat",
    "anthropic": "anthropic.messages",
    "gcp.gemini": "gemini.generate_content",
    "gcp.vertex_ai": "gemini.generate_content",
    "gemini": "gemini.generate_content",
    "vertex_ai": "gemini.generate_content",
    "aws.bedrock": "bedrock.converse",
    "bedrock": "bedrock.converse",
    "cohere": "cohere.chat",
    "mistral_ai": "mistral.chat",
    "mistral": "mistral.chat",
    "groq": "groq.chat",
    "deepseek": "deepseek.chat",
    "xai": "xai.chat",
    "x_ai": "xai.chat",
    "openrouter": "openrouter.chat",
    "ollama": "ollama.openai_api",
    "hosted_vllm": "vllm.openai_request",
    "vllm": "vllm.openai_request",
}
_URL_MODEL: Final = (
    re.compile(r"/models/([^/:?]+):\w*generateContent", re.IGNORECASE),
    re.compile(r"/model/([^/?]+)/(?:converse|invoke)"),
    re.compile(r"/deployments/([^/?]+)/"),
)


def provider_surface(provider: Any) -> str | None:
    """The surface of a provider name as OTel, LiteLLM or a tracer spells it."""
    return _PROVIDERS.get((label(provider) or "").lower())


def surface_of(url: str | None, request: Any, response: Any) -> str | None:
    """The surface of a call from its URL, else from the shapes of its bodies; None if unknown."""
    fingerprint = label(dig(response, "system_fingerprint")) or ""
    for pattern, name in _FINGERPRINTS:
        if pattern.match(fingerprint):
            return name
    return _by_url(url) or _by_shape(obj(request), obj(response))


def _by_url(url: str | None) -> str | None:
    if not url:
        return None
    parts = urlsplit(url) if _splits(url) else urlsplit("")
    host, path = (parts.netloc or "").lower(), parts.path.lower()
    for needle, name in _HOSTS:
        if needle in host:
            return name
    return next((name for needle, name in _PATHS if needle in path), None)


def _splits(url: str) -> bool:
    try:
        urlsplit(url)
    except ValueError:
        return False
    return True


def _by_shape(request: Mapping[str, Any], response: Mapping[str, Any]) -> str | None:
    if "contents" in request or "candidates" in response:
        return "gemini.generate_content"
    if "inferenceConfig" in request or isinstance(dig(response, "output", "message"), Mapping):
        return "bedrock.converse"
    if response.get("type") == "message" or "anthropic_version" in request:
        return "anthropic.messages"
    if "meta_info" in response or isinstance(request.get("sampling_params"), Mapping):
        return "sglang.native_generate"
    if "n_predict" in request or "generation_settings" in response:
        return "llamacpp.server"
    if "done_reason" in response or "eval_count" in response:
        return "ollama.api"
    if "generated_text" in response or ("inputs" in request and "parameters" in request):
        return "tgi.generate"
    if response.get("object") == "response":
        return "openai.responses"
    if ("chat_history" in request and "message" in request) or "generation_id" in response:
        return "cohere.chat"
    if isinstance(response.get("message"), Mapping) and "finish_reason" in response:
        return "cohere.chat"
    if "choices" in response or "messages" in request:
        return "openai.chat"
    return None


def with_url_model(request: Any, url: str | None) -> Mapping[str, Any] | None:
    """The request with the model that only its URL names (Gemini, Bedrock, Azure)."""
    if not isinstance(request, Mapping):
        return None
    if url and first(request, "model", "modelId") is None:
        for pattern in _URL_MODEL:
            found = pattern.search(url)
            if found:
                return {"model": unquote(found.group(1)), **request}
    return request


def _is_answer(response: Any) -> bool:
    """A reply in a server's own shape, where the request body was not recorded."""
    return isinstance(dig(response, "choices"), list) or any(
        isinstance(dig(response, key), list) for key in ("candidates", "content")
    )


_ASKS: Final = ("messages", "prompt", "contents", "inputs", "input_ids", "inputText")


def is_model_call(url: str | None, request: Any, response: Any) -> bool:
    """Whether an HTTP exchange asked a model for an answer (and not for embeddings or a list)."""
    path = (text(url) or "").lower().split("?", 1)[0]
    if any(part in path for part in ("/embeddings", "/moderations", "/tokenize", "/count_tokens")):
        return False
    if request is None:
        return _is_answer(response)
    body = obj(request)
    asks = any(k in body for k in _ASKS)
    return (
        asks
        or ("input" in body and "/responses" in path)
        or ("message" in body and path.endswith("/chat"))
        or (bool(body) and isinstance(dig(response, "choices"), list))
    )
