"""Surfaces: where each API keeps its parameters, how it spells them, and which rules see it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Literal

Role = Literal[
    "request", "launch", "model_file", "call", "env", "modelfile", "response", "settings"
]


@dataclass(frozen=True, slots=True)
class Surface:
    """``containers`` are the objects of a body that hold parameters ("" is the top level), first
    one first. ``spelling`` maps a common parameter name to this surface's own. ``also`` names
    further rule surfaces that judge the same document."""

    name: str
    engine: str
    role: Role
    containers: tuple[str, ...] = ("",)
    spelling: Mapping[str, str] = field(default_factory=dict)
    also: tuple[str, ...] = ()


def _names(text: str) -> dict[str, str]:
    return dict(pair.split("=") for pair in text.split())


_OPENAI: Final = _names("max_tokens=max_completion_tokens")
_ANY: Final = ("any.request",)
_LLAMA: Final = _names("repetition_penalty=repeat_penalty max_tokens=n_predict typical_p=typical_p")
_OLLAMA: Final = _names("repetition_penalty=repeat_penalty max_tokens=num_predict")
_GEMINI: Final = _names(
    "top_p=topP top_k=topK max_tokens=maxOutputTokens stop=stopSequences n=candidateCount "
    "presence_penalty=presencePenalty frequency_penalty=frequencyPenalty "
    "logprobs=responseLogprobs"
)
_BEDROCK: Final = _names("top_p=topP max_tokens=maxTokens stop=stopSequences")
_HF: Final = _names("max_tokens=max_new_tokens")


def _hosted(name: str, engine: str, spelling: Mapping[str, str] | None = None) -> Surface:
    return Surface(name, engine, "request", spelling=spelling or {}, also=_ANY)


_ALL: Final = (
    _hosted("openai.chat", "openai", _OPENAI),
    Surface(
        "openai.responses",
        "openai",
        "request",
        spelling=_names("max_tokens=max_output_tokens"),
        also=_ANY,
    ),
    _hosted("azure.openai_chat", "azure", _OPENAI),
    _hosted("anthropic.messages", "anthropic", _names("stop=stop_sequences")),
    Surface(
        "gemini.generate_content",
        "gemini",
        "request",
        ("generationConfig", "generation_config", "config"),
        _GEMINI,
        _ANY,
    ),
    Surface(
        "bedrock.converse",
        "bedrock",
        "request",
        ("inferenceConfig", "inference_config"),
        _BEDROCK,
        _ANY,
    ),
    _hosted("cohere.chat", "cohere", _names("top_p=p top_k=k stop=stop_sequences")),
    _hosted("mistral.chat", "mistral", _names("seed=random_seed")),
    _hosted("deepseek.chat", "deepseek"),
    _hosted("groq.chat", "groq"),
    _hosted("openrouter.chat", "openrouter"),
    _hosted("together.chat", "together"),
    _hosted("fireworks.chat", "fireworks"),
    _hosted("xai.chat", "xai"),
    Surface("dashscope.chat", "dashscope", "request", ("", "parameters"), also=_ANY),
    _hosted("zhipu.chat", "zhipu"),
    Surface("zhipu.python_sdk", "zhipu", "request", also=_ANY),
    _hosted("moonshot.chat", "moonshot"),
    _hosted("minimax.chat", "minimax"),
    _hosted("doubao.chat", "doubao"),
    _hosted("any.request", "any"),
    Surface("vllm.openai_request", "vllm", "request", also=("vllm.sampling_params", "any.request")),
    Surface("vllm.sampling_params", "vllm", "request", also=_ANY),
    Surface(
        "vllm.offline",
        "vllm",
        "request",
        ("", "sampling_params"),
        also=("vllm.sampling_params", "any.request"),
    ),
    Surface(
        "sglang.openai_request", "sglang", "request", also=("sglang.sampling_params", "any.request")
    ),
    Surface(
        "sglang.native_generate",
        "sglang",
        "request",
        ("sampling_params",),
        _names("seed=sampling_seed max_tokens=max_new_tokens"),
        ("sglang.sampling_params", "any.request"),
    ),
    Surface("sglang.ollama_api", "sglang", "request", ("options",), _OLLAMA, _ANY),
    Surface("sglang.sampling_params", "sglang", "request", also=_ANY),
    Surface("llamacpp.server", "llamacpp", "request", ("",), _LLAMA, _ANY),
    Surface("llamacpp.python", "llamacpp_python", "request", ("",), _LLAMA, _ANY),
    Surface("ollama.api", "ollama", "request", ("options",), _OLLAMA, _ANY),
    Surface("ollama.openai_api", "ollama", "request", also=_ANY),
    Surface("ollama.anthropic_api", "ollama", "request", also=_ANY),
    Surface("tgi.generate", "tgi", "request", ("parameters",), _HF, _ANY),
    Surface("tgi.chat", "tgi", "request", also=_ANY),
    Surface("tensorrtllm.llm_api", "tensorrtllm", "request", ("", "sampling_params"), also=_ANY),
    Surface("tensorrtllm.serve", "tensorrtllm", "request", also=_ANY),
    Surface("lmdeploy.serve", "lmdeploy", "request", also=_ANY),
    Surface("lmdeploy.turbomind", "lmdeploy", "request", also=("lmdeploy.serve", "any.request")),
    Surface("lmdeploy.pytorch", "lmdeploy", "request", also=("lmdeploy.serve", "any.request")),
    Surface("lmdeploy.pipeline", "lmdeploy", "request", ("", "gen_config"), _HF, _ANY),
    Surface("mlc.server", "mlc", "request", also=_ANY),
    Surface(
        "exllamav2.settings",
        "exllamav2",
        "request",
        spelling=_names("repetition_penalty=token_repetition_penalty"),
        also=_ANY,
    ),
    Surface("hf.serve", "hf", "request", also=_ANY),
    Surface("hf.pipeline", "hf", "call", ("", "generate_kwargs"), _HF, ("hf.generate_kwargs",)),
    Surface("hf.generate_kwargs", "hf", "call", spelling=_HF, also=("hf.generation_config",)),
    Surface("hf.generation_config", "hf", "model_file", spelling=_HF),
    Surface("vllm.engine", "vllm", "launch", also=("vllm.server", "any.server")),
    Surface("vllm.server", "vllm", "launch", also=("vllm.engine", "any.server")),
    Surface("sglang.server", "sglang", "launch", also=("any.server",)),
    Surface("ollama.server", "ollama", "launch"),
    Surface("ollama.modelfile", "ollama", "modelfile", spelling=_OLLAMA),
    Surface("tgi.launcher", "tgi", "launch"),
    Surface("tensorrtllm.engine", "tensorrtllm", "launch"),
    Surface("lmdeploy.engine", "lmdeploy", "launch"),
    Surface("any.server", "any", "launch"),
    Surface("vllm.openai_response", "vllm", "response"),
    Surface("ollama.openai_response", "ollama", "response"),
    Surface("torch.env", "torch", "env"),
    Surface("torch.argmax", "torch", "settings"),
    Surface("torch.topk", "torch", "settings"),
    Surface("engine.any", "any", "settings"),
    Surface("flashattention.kernel", "flashattention", "settings"),
    Surface("flashinfer.sampling", "flashinfer", "settings"),
)
SURFACES: Final[dict[str, Surface]] = {surface.name: surface for surface in _ALL}
LAUNCHABLE: Final = {
    "llamacpp.server",
    "llamacpp.python",
    "mlc.server",
    "exllamav2.settings",
    "hf.serve",
}
"""Surface names that stand for the launch line as well as for a request body."""

_REQUEST_OF: Final = {
    "vllm": "vllm.openai_request",
    "sglang": "sglang.openai_request",
    "llamacpp": "llamacpp.server",
    "llamacpp_python": "llamacpp.python",
    "ollama": "ollama.api",
    "tgi": "tgi.chat",
    "tensorrtllm": "tensorrtllm.serve",
    "lmdeploy": "lmdeploy.serve",
    "mlc": "mlc.server",
    "exllamav2": "exllamav2.settings",
    "hf": "hf.serve",
}


def request_surface(engine: str, body: Mapping[str, object]) -> Surface:
    """The request surface of ``engine`` that a body of this shape speaks to."""
    if engine == "ollama" and "options" not in body and ("messages" in body or "input" in body):
        native = {"keep_alive", "format", "think", "raw", "template"} & set(body)
        return SURFACES["ollama.api" if native else "ollama.openai_api"]
    if engine == "tgi" and "inputs" in body:
        return SURFACES["tgi.generate"]
    if engine == "sglang" and "sampling_params" in body:
        return SURFACES["sglang.native_generate"]
    return SURFACES[_REQUEST_OF.get(engine, "any.request")]


def common_name(surface: Surface, spelled: str) -> str:
    """The common name of a parameter that ``surface`` spells ``spelled``."""
    for common, own in surface.spelling.items():
        if own == spelled:
            return common
    return spelled
