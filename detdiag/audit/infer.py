"""Which surface a JSON body belongs to, by what only that surface has.

Inference answers only where the content is unique; otherwise it names the candidates, and the
caller asks (``--surface``) or falls back to rules that hold everywhere.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import urlsplit

_HOSTS: Final = (
    ("openai.azure.com", "azure.openai_chat"),
    ("cognitiveservices.azure.com", "azure.openai_chat"),
    ("api.openai.com", "openai.chat"),
    ("api.anthropic.com", "anthropic.messages"),
    ("generativelanguage.googleapis.com", "gemini.generate_content"),
    ("aiplatform.googleapis.com", "gemini.generate_content"),
    ("bedrock-runtime", "bedrock.converse"),
    ("api.cohere", "cohere.chat"),
    ("api.mistral.ai", "mistral.chat"),
    ("api.deepseek.com", "deepseek.chat"),
    ("api.groq.com", "groq.chat"),
    ("openrouter.ai", "openrouter.chat"),
    ("api.together", "together.chat"),
    ("api.fireworks.ai", "fireworks.chat"),
    ("api.x.ai", "xai.chat"),
    ("dashscope", "dashscope.chat"),
    ("bigmodel.cn", "zhipu.chat"),
    ("api.z.ai", "zhipu.chat"),
    ("api.moonshot", "moonshot.chat"),
    ("minimax", "minimax.chat"),
    ("volces.com", "doubao.chat"),
)
_MODELS: Final = tuple(
    (re.compile(pattern, re.IGNORECASE), surface)
    for pattern, surface in (
        (r"^(gpt-[345]|chatgpt-|o[134](-|$)|ft:gpt-|text-davinci)", "openai.chat"),
        (r"^claude-", "anthropic.messages"),
        (r"^(models/)?gemini-", "gemini.generate_content"),
        (
            r"^(us\.|eu\.|apac\.|global\.)?(anthropic|amazon|meta|cohere|mistral|ai21)\.\w",
            "bedrock.converse",
        ),
        (r"^(command-[ra]|command-light|command-nightly|c4ai-)", "cohere.chat"),
        (
            r"^(mistral-(large|medium|small|tiny)|ministral|codestral|magistral|pixtral-large|open-mi)",
            "mistral.chat",
        ),
        (r"^deepseek-(chat|reasoner|v4)", "deepseek.chat"),
        (
            r"^(llama-3\.[123]-\d+b-(versatile|instant|preview|specdec)|llama3-\d+b-8192"
            r"|mixtral-8x7b-32768|gemma2-9b-it$)",
            "groq.chat",
        ),
        (r"^accounts/fireworks/", "fireworks.chat"),
        (r"^grok-", "xai.chat"),
        (
            r"^(qwen-(max|plus|turbo|flash|long|vl)|qwen3-(max|coder-plus|coder-flash)|qwq-plus)",
            "dashscope.chat",
        ),
        (r"^glm-[345z]", "zhipu.chat"),
        (r"^(moonshot-v1|kimi-(k|latest|thinking))", "moonshot.chat"),
        (r"^(minimax-(m|text)|abab)", "minimax.chat"),
        (r"^(doubao-|ep-20\d\d)", "doubao.chat"),
    )
)
CHAT_CANDIDATES: Final = (
    "openai.chat",
    "azure.openai_chat",
    "vllm.openai_request",
    "sglang.openai_request",
    "llamacpp.server",
    "ollama.openai_api",
    "tgi.chat",
    "tensorrtllm.serve",
    "lmdeploy.serve",
    "mlc.server",
    "mistral.chat",
    "deepseek.chat",
    "groq.chat",
    "openrouter.chat",
    "together.chat",
    "fireworks.chat",
)
PARAMETERS: Final = frozenset(
    "temperature top_p top_k min_p seed n do_sample num_beams repetition_penalty presence_penalty "
    "frequency_penalty max_tokens max_new_tokens max_completion_tokens stop typical_p".split()
)
_VLLM_ONLY: Final = frozenset(
    "guided_json guided_regex guided_choice guided_grammar prompt_logprobs use_beam_search "
    "truncate_prompt_tokens structured_outputs spaces_between_special_tokens "
    "include_stop_str_in_output allowed_token_ids vllm_xargs".split()
)
_SGLANG_ONLY: Final = frozenset(
    "separate_reasoning stream_reasoning ebnf regex lora_path custom_logit_processor".split()
)
_LLAMA_ONLY: Final = frozenset(
    "n_predict cache_prompt samplers dynatemp_range dynatemp_exponent xtc_probability "
    "xtc_threshold mirostat mirostat_tau mirostat_eta id_slot n_probs typical_p top_n_sigma "
    "t_max_predict_ms n_keep repeat_last_n dry_multiplier penalize_nl post_sampling_probs "
    "adaptive_target".split()
)
_OPENROUTER_ONLY: Final = frozenset("provider models transforms route".split())
_HF_CALL: Final = frozenset(
    "do_sample num_beams max_new_tokens max_length min_new_tokens generation_config "
    "use_model_defaults penalty_alpha prompt_lookup_num_tokens num_return_sequences "
    "repetition_penalty no_repeat_ngram_size use_cache".split()
)


def surface_of_url(url: str) -> str | None:
    """Surface that a request URL stands for, by its host (and path for OpenAI)."""
    parts = urlsplit(url)
    for host, surface in _HOSTS:
        if host in parts.netloc:
            return (
                "openai.responses"
                if surface == "openai.chat" and "/responses" in parts.path
                else surface
            )
    return None


def infer_request(body: Mapping[str, Any]) -> tuple[str | None, tuple[str, ...]]:
    """(surface, ()) where the body is unique to one, else (None, candidates)."""
    keys = set(body)
    for test, surface in _SHAPES:
        if test(body, keys):
            return surface, ()
    model = body.get("model") or body.get("modelId")
    if isinstance(model, str):
        for pattern, surface in _MODELS:
            if pattern.search(model):
                if surface == "openai.chat" and "input" in keys and "messages" not in keys:
                    return "openai.responses", ()
                return surface, ()
    if keys & _VLLM_ONLY:
        return "vllm.openai_request", ()
    if keys & _SGLANG_ONLY:
        return "sglang.openai_request", ()
    if keys & {"messages", "prompt", "input"}:
        return None, CHAT_CANDIDATES
    return None, ("any.request", *CHAT_CANDIDATES[:4]) if keys & PARAMETERS else ()


def _bedrock(body: Mapping[str, Any], keys: set[str]) -> bool:
    if keys & {"inferenceConfig", "additionalModelRequestFields"}:
        return True
    messages = body.get("messages")
    if not isinstance(messages, list) or not messages or not isinstance(messages[0], dict):
        return False
    content = messages[0].get("content")
    first = content[0] if isinstance(content, list) and content else None
    return isinstance(first, dict) and "text" in first and "type" not in first


def _options(body: Mapping[str, Any], keys: set[str]) -> bool:
    return isinstance(body.get("options"), dict) and bool(keys & {"prompt", "messages", "model"})


_SHAPES: Final = (
    (
        lambda b, k: "contents" in k or isinstance(b.get("generationConfig"), dict),
        "gemini.generate_content",
    ),
    (_bedrock, "bedrock.converse"),
    (
        lambda b, k: (
            "anthropic_version" in k
            or isinstance(b.get("thinking"), dict)
            and "budget_tokens" in b["thinking"]
        ),
        "anthropic.messages",
    ),
    (_options, "ollama.api"),
    (lambda b, k: "keep_alive" in k and bool(k & {"prompt", "messages", "model"}), "ollama.api"),
    (lambda b, k: "inputs" in k, "tgi.generate"),
    (
        lambda b, k: isinstance(b.get("sampling_params"), dict) and bool(k & {"text", "input_ids"}),
        "sglang.native_generate",
    ),
    (lambda b, k: isinstance(b.get("input"), dict) and "messages" in b["input"], "dashscope.chat"),
    (lambda b, k: bool(k & _OPENROUTER_ONLY) and "messages" in k, "openrouter.chat"),
    (lambda b, k: bool(k & {"random_seed", "safe_prompt"}), "mistral.chat"),
    (lambda b, k: "data_sources" in k, "azure.openai_chat"),
    (lambda b, k: bool(k & {"chat_history"}) and "message" in k, "cohere.chat"),
    (lambda b, k: bool(k & _LLAMA_ONLY) and bool(k & {"prompt", "messages"}), "llamacpp.server"),
    (
        lambda b, k: (
            "input" in k and bool(k & {"instructions", "max_output_tokens", "previous_response_id"})
        ),
        "openai.responses",
    ),
    (
        lambda b, k: (
            bool(k & _HF_CALL)
            and not k & {"messages", "prompt", "input", "contents"}
            and not k & {"max_tokens", "max_completion_tokens"}
        ),
        "hf.generate_kwargs",
    ),
)


def is_generation_config(body: Mapping[str, Any]) -> bool:
    """Whether a JSON object is a checkpoint's ``generation_config.json``."""
    keys = set(body)
    if keys & {"messages", "prompt", "contents", "inputs", "generation_config", "architectures"}:
        return False
    if "transformers_version" in keys:
        return bool(
            keys & {"eos_token_id", "bos_token_id", "pad_token_id", "_from_model_config"}
            or keys & PARAMETERS
        )
    return bool(keys & {"eos_token_id", "bos_token_id", "pad_token_id"}) and bool(
        keys & {"do_sample", "temperature", "top_p", "top_k", "repetition_penalty"}
    )
