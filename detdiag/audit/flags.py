"""Command-line flags of the engines: short names, switches, and how a word list is read.

Only what the rules and the resolvers read is named; any other flag is kept as it stands.
A flag with a following word that is not a flag takes it as its value, unless it is a switch.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from detdiag.audit.shellwords import Word
from detdiag.rules.condition import number


@dataclass(frozen=True, slots=True)
class FlagTable:
    """``aliases`` maps spellings to the canonical name (no dashes); ``switches`` take no value."""

    aliases: Mapping[str, str]
    switches: frozenset[str]


@dataclass(frozen=True, slots=True)
class Flag:
    """One flag as written; ``word`` is the flag's own word, ``value_word`` the value's (None for
    a switch and for ``--flag=value``, whose value lies inside ``word``)."""

    name: str
    value: Any
    spelled: str
    line: int
    word: Word
    value_word: Word | None = None


def _table(aliases: str, switches: str) -> FlagTable:
    pairs = dict(pair.split(":") for pair in aliases.split())
    return FlagTable(pairs, frozenset(switches.split()))


FLAG_TABLES: Final[dict[str, FlagTable]] = {
    "vllm": _table(
        "tp:tensor-parallel-size pp:pipeline-parallel-size dp:data-parallel-size q:quantization "
        "O:optimization-level sc:speculative-config ep:enable-expert-parallel "
        "cc:compilation-config ac:attention-config max-seq-len:max-model-len",
        "enable-prefix-caching enable-chunked-prefill disable-cascade-attn enforce-eager "
        "trust-remote-code enable-lora calculate-kv-scales disable-custom-all-reduce "
        "enable-expert-parallel disable-log-requests disable-log-stats enable-auto-tool-choice "
        "async-scheduling enable-flashinfer-autotune enable-reasoning enable-sleep-mode "
        "disable-frontend-multiprocessing use-v2-block-manager enable-log-requests headless "
        "enable-prompt-tokens-details enable-server-load-tracking return-tokens-as-token-ids "
        "disable-sliding-window language-model-only enable-eplb multi-step-stream-outputs",
    ),
    "sglang": _table(
        "tp:tp-size tensor-parallel-size:tp-size dp:dp-size data-parallel-size:dp-size "
        "model:model-path ep:ep-size pp:pp-size",
        "enable-deterministic-inference disable-radix-cache disable-flashinfer-autotune "
        "enable-fp32-lm-head trust-remote-code speculative-use-rejection-sampling enable-metrics "
        "enable-dp-attention disable-cuda-graph enable-torch-compile enable-mixed-chunk "
        "disable-custom-all-reduce skip-tokenizer-init disable-overlap-schedule log-requests "
        "enable-cache-report enable-nccl-nvls enable-symm-mem disable-cuda-graph-padding "
        "enable-multimodal enable-lora skip-server-warmup",
    ),
    "llamacpp": _table(
        "temperature:temp np:parallel s:seed b:batch-size ub:ubatch-size c:ctx-size m:model "
        "md:model-draft model-draft:model-draft draft:draft-max draft-n:draft-max hf:hf-repo "
        "sampler-seq:sampling-seq ngl:gpu-layers n-gpu-layers:gpu-layers fa:flash-attn t:threads "
        "xtc-p:xtc-probability xtc-t:xtc-threshold cb:cont-batching nocb:no-cont-batching "
        "hfd:hf-repo-draft hfrd:hf-repo-draft n:predict n-predict:predict "
        "adaptive-p-target:adaptive-target kvu:kv-unified",
        "cache-prompt cont-batching mlock no-mmap jinja embedding embeddings metrics slots "
        "verbose swa-full no-warmup ignore-eos kv-unified context-shift log-disable reranking",
    ),
    "ollama": _table("", ""),
    "tgi": _table(
        "", "trust-remote-code json-output disable-custom-kernels disable-grammar-support"
    ),
    "tensorrtllm": _table(
        "extra-llm-api-options:config tp:tp-size", "trust-remote-code fail-fast-on-attention-window"
    ),
    "lmdeploy": _table("", "enable-prefix-caching enable-metrics eager-mode trust-remote-code"),
    "mlc": _table("", "enable-tracing enable-debug"),
    "exllamav2": _table("t:temp topk:top-k", ""),
    "hf": _table("", "trust-remote-code continuous-batching force-model"),
    "llamacpp_python": _table("", ""),
}
_MODEL_FIRST: Final = frozenset({"vllm", "tensorrtllm", "lmdeploy", "mlc"})
"""Engines whose first bare word is the model."""
JSON_FLAGS: Final = frozenset(
    "override-generation-config speculative-config kernel-config compilation-config "
    "attention-config preferred-sampling-params hf-overrides".split()
)


def read_flags(words: Sequence[Word], engine: str) -> dict[str, Flag]:
    """Flags of a launch line by canonical name; the last occurrence counts, as in argparse."""
    table = FLAG_TABLES.get(engine) or FLAG_TABLES["ollama"]
    flags: dict[str, Flag] = {}
    index = 0
    while index < len(words):
        word = words[index]
        index += 1
        if not _is_flag(word.text):
            if engine in _MODEL_FIRST and "model" not in flags:
                flags["model"] = Flag("model", word.text, word.text, word.line, word)
            continue
        name, equals, inline = word.text.lstrip("-").partition("=")
        canonical = _canonical(name, engine, table)
        value: Any = inline
        value_word = None
        if not equals:
            follower = words[index] if index < len(words) else None
            value, value_word = _value(canonical, follower, table)
            index += value_word is not None
        _store(flags, canonical, value, word, value_word, table, engine)
    return flags


def _is_flag(text: str) -> bool:
    return text.startswith("-") and len(text) > 1 and number(text) is None


def _canonical(name: str, engine: str, table: FlagTable) -> str:
    name, dot, rest = name.partition(".")
    # -O3 and -O.level are vLLM's only glued short flags.
    if engine == "vllm" and len(name) == 2 and name[0] == "O" and name[1].isdigit():
        return "optimization-level"
    dashed = name.replace("_", "-")
    return table.aliases.get(name, table.aliases.get(dashed, dashed)) + dot + rest


def _value(name: str, follower: Word | None, table: FlagTable) -> tuple[Any, Word | None]:
    base = name.removeprefix("no-")
    switch = name in table.switches or (name.startswith("no-") and base in table.switches)
    if follower is None or _is_flag(follower.text):
        return True, None
    if switch and follower.text.lower() not in ("true", "false"):
        return True, None
    return follower.text, follower


def _store(
    flags: dict[str, Flag],
    name: str,
    value: Any,
    word: Word,
    value_word: Word | None,
    table: FlagTable,
    engine: str,
) -> None:
    spelled = word.text.partition("=")[0]
    if engine == "vllm" and spelled[:2] == "-O" and spelled[2:].isdigit():
        value = spelled[2:]
    if name.startswith("no-") and name[3:] in table.switches:
        name, value = name[3:], False
    elif isinstance(value, str) and value.lower() in ("true", "false"):
        value = value.lower() == "true"
    base, dot, rest = name.partition(".")
    if base in JSON_FLAGS:
        value = _nested(flags.get(base), rest if dot else "", _json(value))
        name = base
    flags[name] = Flag(name, value, spelled, word.line, word, value_word)


def _json(value: Any) -> Any:
    if isinstance(value, str):
        try:
            return json.loads(value)
        except (ValueError, RecursionError):
            return value
    return value


def _nested(before: Flag | None, dotted: str, value: Any) -> Any:
    """Merge ``--flag.a.b value`` into what earlier words set."""
    if not dotted:
        return value
    merged = dict(before.value) if before is not None and isinstance(before.value, dict) else {}
    *parents, leaf = dotted.split(".")
    target = merged
    for key in parents:
        child = target.get(key)
        target[key] = dict(child) if isinstance(child, dict) else {}
        target = target[key]
    target[leaf] = value
    return merged
